//! Being told to end early: by a signal, say. Whatever runs looks here again and again, and gives
//! up with [`Stopped`], so that all that was mounted, attached or made goes the way that it goes
//! after a failure.
//!
//! One for the process, as signals are.

use crate::Outcome;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

static ASKED: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// Whoever stores anything but zero there wants an end.
pub fn flag() -> Arc<AtomicUsize> {
    Arc::clone(&ASKED)
}

/// What was stored, if an end is wanted.
pub fn asked() -> Option<usize> {
    Some(ASKED.load(Ordering::Relaxed)).filter(|asked| *asked != 0)
}

/// It was ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped;

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stopped")
    }
}

impl std::error::Error for Stopped {}

/// # Errors
/// [`Stopped`].
pub(crate) fn check() -> Outcome<()> {
    match asked() {
        Some(_) => Err(Stopped.into()),
        None => Ok(()),
    }
}
