//! Sessions: a program under the scheduler.

pub use super::scheduler::Failure;
use super::scheduler::{Scheduler, point as scheduler_point, with};
use super::threads::{panic_text, unwinding};
use std::sync::Arc;

/// The result of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Scheduling points.
    pub points: u64,
    /// How often another thread went on.
    pub switches: u64,
    /// What went wrong, if anything did.
    pub failure: Option<Failure>,
}

/// Runs `body`, and all threads that it starts, by `seed`. The same program does the same with the
/// same seed.
///
/// A session that fails leaves its threads parked, with all that they own.
///
/// # Panics
/// If the system gives no thread.
#[allow(clippy::expect_used, reason = "there is no session without a thread")]
pub fn run(seed: u64, body: impl FnOnce() + Send + 'static) -> Report {
    let session = Scheduler::new(seed);
    let inside = Arc::clone(&session);
    let main = std::thread::Builder::new().name("main".into()).spawn(move || {
        inside.enter(0);
        let said = unwinding(body).err().map(|panic| panic_text(&*panic));
        inside.leave(0, said);
    });
    let main = main.expect("a thread");
    let (points, switches, failure) = session.wait_for_end();
    if !matches!(failure, Some(Failure::Deadlock(_) | Failure::Endless(_))) {
        // The panic, if any, is in the report.
        let _ = main.join();
    }
    Report { points, switches, failure }
}

/// Lets the scheduler choose which thread goes on: for devices, around each I/O.
pub fn point() {
    scheduler_point();
}

/// Runs `f` without preemption: another thread goes on only when this one waits.
pub fn calmly<R>(f: impl FnOnce() -> R) -> R {
    struct Calm;
    impl Drop for Calm {
        fn drop(&mut self) {
            with(|session, _| session.calm(-1));
        }
    }
    with(|session, _| session.calm(1));
    let _calm = Calm;
    f()
}

/// Returns the number of points so far: of two moments of a session, the later one has the greater
/// number.
pub fn points() -> u64 {
    with(|session, _| session.points()).unwrap_or(0)
}

/// Returns a number less than `end`, made of the seed; 0 outside of a session.
pub fn below(end: u64) -> u64 {
    with(|session, _| session.below(end)).unwrap_or(0)
}

/// Returns the number of this thread in its session.
pub fn thread_number() -> Option<usize> {
    with(|_, number| number)
}

#[cfg(test)]
mod tests;
