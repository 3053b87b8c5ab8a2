//! The thread that renews a claim.

use super::Holder;
use crate::error::{Error, Result};
use lanefs_sync::thread::{self, JoinHandle};
use lanefs_sync::time::Instant;
use lanefs_sync::{Condvar, Mutex};
use std::sync::Arc;

/// The thread of a claim. It knows the claim's [`Holder`] alone, not the volume.
#[derive(Debug, Default)]
pub(super) struct Updater {
    control: Arc<Control>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Control {
    stop: Mutex<bool>,
    changed: Condvar,
}

impl Updater {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`Error::Thread`].
    pub(super) fn start(&self, holder: &Arc<Holder>) -> Result<()> {
        let (control, holder) = (Arc::clone(&self.control), Arc::clone(holder));
        let thread = thread::Builder::new().name("lanefs-mmp".into()).spawn(move || run(&control, &holder));
        *self.thread.lock() = Some(thread.map_err(Error::Thread)?);
        Ok(())
    }

    /// Ends the thread, and waits for it.
    pub(super) fn stop(&self) {
        *self.control.stop.lock() = true;
        self.control.changed.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            // A panic in it was reported where it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for Updater {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(control: &Control, holder: &Holder) {
    loop {
        let next = Instant::now() + holder.until_update();
        let mut stop = control.stop.lock();
        while !*stop {
            if control.changed.wait_until(&mut stop, next).timed_out() {
                break;
            }
        }
        if *stop {
            return;
        }
        drop(stop);
        if !holder.renew() {
            return;
        }
    }
}
