//! The request to end early, for example by a signal. Running experiments check it again and again,
//! and fail with [`Stopped`], so that mounts, devices and files are cleaned up as after any
//! failure.
//!
//! One request for the whole process, as for signals.

use crate::Outcome;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

static ASKED: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// Returns the flag of the request: a caller stores anything but zero in it to end the run.
pub fn flag() -> Arc<AtomicUsize> {
    Arc::clone(&ASKED)
}

/// Returns the stored value, if an end was requested.
pub fn asked() -> Option<usize> {
    Some(ASKED.load(Ordering::Relaxed)).filter(|asked| *asked != 0)
}

/// The error of a run that was ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped;

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stopped")
    }
}

impl std::error::Error for Stopped {}

/// Fails if the run is to stop.
///
/// # Errors
/// [`Stopped`].
pub(crate) fn check() -> Outcome<()> {
    match asked() {
        Some(_) => Err(Stopped.into()),
        None => Ok(()),
    }
}
