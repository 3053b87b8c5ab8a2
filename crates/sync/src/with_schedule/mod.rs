//! Primitives that a seeded scheduler decides over: built with `--cfg lanefs_schedule`.
//!
//! Inside of [`schedule::run`] one thread of the session runs at a time. Every lock, wait, atomic
//! operation, start and end of a thread is a point at which the scheduler may go on with another
//! one. Time is the session's too. Outside of a session each primitive is what a program gets, and
//! [`written`] counts what threads write.
//!
//! Invariant: a lock takes the real one by trying. A thread that does not get it is blocked in the
//! scheduler, never in the system, so the scheduler can report a deadlock.
//!
//! Hazard: what the scheduler does not see must not wait for a thread that is not running. A lock
//! of another crate is safe if no scheduling point lies within its critical sections.

mod atomics;
mod locks;
mod random;
mod scheduler;
mod threads;

pub mod schedule;
pub mod time;
pub mod written;

pub use atomics::atomic;
pub use locks::{
    Condvar, Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult,
};
pub use std::sync::{Arc, Weak};
pub use threads::thread;

/// Calls of a spinning thread.
pub mod hint {
    /// Goes on with another thread, if there is one.
    pub fn spin_loop() {
        super::scheduler::yield_now();
    }
}

/// Runs `f` once; under loom, once for each interleaving.
pub fn model(f: impl Fn() + Send + Sync + 'static) {
    f();
}
