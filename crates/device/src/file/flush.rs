//! Shares flushes between waiting callers. A failed flush is permanent.
//!
//! A caller needs a flush that starts after its call. While a flush runs, callers queue; when it
//! ends, one of them runs the next flush on behalf of all. Only one `fdatasync` runs at a time: the
//! kernel reports a writeback error once for each open file, and a concurrent second call could
//! miss it.

use rustix::io::Errno;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
struct FlushState {
    /// Flushes that have started.
    started: u64,
    /// The newest flush that succeeded.
    done: u64,
    running: bool,
    failed: Option<Errno>,
}

/// The state that flushes of one device share.
#[derive(Debug, Default)]
pub(super) struct Flusher {
    state: Mutex<FlushState>,
    ended: Condvar,
}

impl Flusher {
    /// Waits until a `sync` that started after this call has succeeded, run here or by another
    /// caller.
    pub(super) fn flush(&self, sync: impl FnOnce() -> rustix::io::Result<()>) -> rustix::io::Result<()> {
        let mut state = self.lock();
        let needed = state.started + 1;
        loop {
            if let Some(errno) = state.failed {
                return Err(errno);
            }
            if state.done >= needed {
                return Ok(());
            }
            if !state.running {
                break;
            }
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.started += 1;
        state.running = true;
        let ticket = state.started;
        drop(state);

        let result = sync();

        let mut state = self.lock();
        state.running = false;
        match result {
            Ok(()) => state.done = ticket,
            Err(errno) => state.failed = Some(errno),
        }
        self.ended.notify_all();
        result
    }

    fn lock(&self) -> MutexGuard<'_, FlushState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn failure_is_kept() {
        let flusher = Flusher::default();
        assert_eq!(flusher.flush(|| Ok(())), Ok(()));
        assert_eq!(flusher.flush(|| Err(Errno::NOSPC)), Err(Errno::NOSPC));
        assert_eq!(flusher.flush(|| panic!("must not run again")), Err(Errno::NOSPC));
    }

    /// Callers that come while a flush runs must not be content with it, and share the next one.
    #[test]
    fn waiters_share_the_next() {
        // However the threads are scheduled, there is a time in which all have come to wait.
        let mut patience = Duration::from_millis(1);
        while flushes_of_four(patience) > 1 {
            patience *= 2;
            assert!(patience < Duration::from_secs(60), "nobody shares");
        }
    }

    /// How many flushes four waiters need that have `patience` to come while another runs.
    fn flushes_of_four(patience: Duration) -> u32 {
        let flusher = Flusher::default();
        let runs = AtomicU32::new(0);
        let (entered_tx, entered) = channel();
        let (go, go_rx) = channel::<()>();
        let sync = || {
            runs.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                flusher.flush(move || {
                    entered_tx.send(()).unwrap();
                    go_rx.recv().unwrap();
                    Ok(())
                })
            });
            entered.recv().unwrap();
            let waiters: Vec<_> = (0..4).map(|_| scope.spawn(|| flusher.flush(sync))).collect();
            std::thread::sleep(patience);
            assert!(waiters.iter().all(|w| !w.is_finished()), "content with a flush that began before");
            go.send(()).unwrap();
            for waiter in waiters {
                assert_eq!(waiter.join().unwrap(), Ok(()));
            }
        });
        runs.into_inner()
    }
}
