//! The end of a test's other threads, also where the test fails.

use std::sync::atomic::{AtomicBool, Ordering};

/// Sets a flag when it is dropped, as by a panic: threads that go on until then end too, and a
/// scope that waits for them.
#[derive(Debug)]
pub struct Ending<'a>(pub &'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
