//! What a program gets: parking_lot's locks, std's atomics and threads.

pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use std::sync::{Arc, atomic};
pub use std::{hint, thread};

/// Runs `f` once; under loom, once for each interleaving.
pub fn model(f: impl Fn() + Send + Sync + 'static) {
    f();
}
