//! Runs one piece of work in several threads.

use crate::error::Result;
use lanefs_device::BlockedSignals;
use std::thread::Builder;

/// Runs `work` in `n` threads and returns when all have ended. The caller's thread is one of them,
/// and the only one if the system gives no other. The others take no signals.
///
/// # Errors
/// One of the errors of `work`.
pub(crate) fn together(n: usize, name: &str, work: impl Fn() -> Result<()> + Sync) -> Result<()> {
    std::thread::scope(|scope| {
        let thread = || Builder::new().name(name.into()).spawn_scoped(scope, &work);
        let others: Vec<_> = {
            let _signals = (n > 1).then(BlockedSignals::new);
            (1..n).map_while(|_| thread().ok()).collect()
        };
        let done = work();
        others.into_iter().fold(done, |done, other| {
            done.and(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    })
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Barrier, Mutex};

    /// Returns the signals that the calling thread blocks, as `/proc` has them.
    fn blocked() -> String {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap().trim().to_owned()
    }

    #[test]
    fn only_the_callers_thread_takes_signals() {
        let (own, all, masks) = (blocked(), Barrier::new(3), Mutex::new(Vec::new()));
        together(3, "test", || {
            masks.lock().unwrap().push(blocked());
            all.wait();
            Ok(())
        })
        .unwrap();
        let masks = masks.into_inner().unwrap();
        assert_eq!(masks.iter().filter(|mask| **mask == own).count(), 1, "{masks:?}");
        assert_eq!(blocked(), own);
    }
}
