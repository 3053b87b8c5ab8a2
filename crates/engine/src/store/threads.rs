//! Runs one piece of work in several threads.

use crate::error::Result;
use std::thread::Builder;

/// Runs `work` in `n` threads and returns when all have ended. The caller's thread is one of them,
/// and the only one if the system gives no other.
///
/// # Errors
/// One of the errors of `work`.
pub(crate) fn together(n: usize, name: &str, work: impl Fn() -> Result<()> + Sync) -> Result<()> {
    std::thread::scope(|scope| {
        let thread = || Builder::new().name(name.into()).spawn_scoped(scope, &work);
        let others: Vec<_> = (1..n).map_while(|_| thread().ok()).collect();
        let done = work();
        others.into_iter().fold(done, |done, other| {
            done.and(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    })
}
