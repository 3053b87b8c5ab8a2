//! The primitives of a program: parking_lot's locks, std's atomics, threads and clocks.

pub use parking_lot::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult,
};
pub use std::sync::{Arc, OnceLock, Weak, atomic};
pub use std::{hint, thread};

/// Runs `f` once; under loom, once for each interleaving.
pub fn model(f: impl Fn() + Send + Sync + 'static) {
    f();
}

/// Clocks.
pub mod time {
    pub use crate::real_time::{boottime, realtime, realtime_coarse};
    pub use std::time::Instant;
}
