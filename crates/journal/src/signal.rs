//! A one-shot message to one sleeping thread.
//!
//! Each sleeper has its own signal, so the waking thread chooses which sleepers to wake, and the
//! woken threads do not contend for a common lock.

use lanefs_sync::time::Instant;
use lanefs_sync::{Condvar, Mutex};

/// A slot for one message.
#[derive(Debug)]
pub(crate) struct Signal<T> {
    message: Mutex<Option<T>>,
    sent: Condvar,
}

impl<T> Signal<T> {
    pub(crate) fn new() -> Self {
        Self { message: Mutex::new(None), sent: Condvar::new() }
    }

    /// Stores the message and wakes the thread that waits for it.
    pub(crate) fn send(&self, message: T) {
        *self.message.lock() = Some(message);
        self.sent.notify_one();
    }

    /// Waits for the message and takes it.
    pub(crate) fn wait(&self) -> T {
        let mut message = self.message.lock();
        loop {
            match message.take() {
                Some(message) => return message,
                None => self.sent.wait(&mut message),
            }
        }
    }

    /// Waits for the message until `deadline`, and takes it. Returns `None` if it did not come.
    pub(crate) fn wait_until(&self, deadline: Instant) -> Option<T> {
        let mut message = self.message.lock();
        while message.is_none() {
            let left = deadline.checked_duration_since(Instant::now())?;
            if self.sent.wait_for(&mut message, left).timed_out() {
                break;
            }
        }
        message.take()
    }
}
