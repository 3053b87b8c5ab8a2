//! A message that one sleeping thread waits for.
//!
//! Each sleeper has a signal of its own. Whoever wakes many of them wakes each by itself: they do
//! not queue up behind a lock that they would all have to take in turn, and only those are woken
//! that have something to do.

use lanefs_sync::time::Instant;
use lanefs_sync::{Condvar, Mutex};

/// A message to come, once.
#[derive(Debug)]
pub(crate) struct Signal<T> {
    message: Mutex<Option<T>>,
    sent: Condvar,
}

impl<T> Signal<T> {
    pub(crate) fn new() -> Self {
        Self { message: Mutex::new(None), sent: Condvar::new() }
    }

    /// Sends the message and wakes who waits for it.
    pub(crate) fn send(&self, message: T) {
        *self.message.lock() = Some(message);
        self.sent.notify_one();
    }

    /// Sleeps until the message is there, and takes it.
    pub(crate) fn wait(&self) -> T {
        let mut message = self.message.lock();
        loop {
            match message.take() {
                Some(message) => return message,
                None => self.sent.wait(&mut message),
            }
        }
    }

    /// Sleeps until the message is there, and takes it, or until `deadline`.
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
