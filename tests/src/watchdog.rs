//! Threads that wait for each other for ever are told of, not waited for.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Long enough for a loaded machine, and short enough to tell of a deadlock.
const PATIENCE: Duration = Duration::from_secs(180);

/// Ends the process if it is not dropped in time.
#[derive(Debug)]
pub struct Watchdog {
    _alive: Sender<()>,
}

impl Watchdog {
    /// Watches over what `what` says from now on.
    pub fn new(what: impl Into<String>) -> Self {
        let what = what.into();
        let (alive, dropped) = channel();
        std::thread::spawn(move || {
            if dropped.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                eprintln!("threads hang: {what}");
                std::process::abort();
            }
        });
        Self { _alive: alive }
    }
}
