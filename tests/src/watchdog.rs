//! Threads that wait for each other for ever are told of, not waited for.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

const NAP: Duration = Duration::from_secs(1);

/// Long enough for a loaded machine, and short enough to tell of a deadlock. Naps are counted and
/// not the clock read: a machine or a process that is stopped for a while sleeps through one of
/// them.
const NAPS: u32 = 300;

/// A guard that ends the process if it is not dropped in time.
#[derive(Debug)]
pub struct Watchdog {
    _alive: Sender<()>,
}

impl Watchdog {
    /// Watches over what `what` says from now on.
    pub fn new(what: impl Into<String>) -> Self {
        Self::behind(Duration::ZERO, what)
    }

    /// Watches as [`new`](Self::new) does, over work that is to last for `time` before it ends.
    pub fn behind(time: Duration, what: impl Into<String>) -> Self {
        let what = what.into();
        let (alive, dropped) = channel();
        std::thread::spawn(move || {
            let is_over = dropped.recv_timeout(time) != Err(RecvTimeoutError::Timeout);
            if !is_over && patiently(&dropped) == Err(RecvTimeoutError::Timeout) {
                eprintln!("threads hang: {what}");
                std::process::abort();
            }
        });
        Self { _alive: alive }
    }
}

/// Receives what is sent before patience ends.
///
/// # Errors
/// The errors of [`Receiver::recv_timeout`].
pub fn patiently<T>(inbox: &Receiver<T>) -> Result<T, RecvTimeoutError> {
    let naps = (1..NAPS).map(|_| inbox.recv_timeout(NAP));
    let mut news = naps.filter(|news| !matches!(news, Err(RecvTimeoutError::Timeout)));
    news.next().unwrap_or_else(|| inbox.recv_timeout(NAP))
}
