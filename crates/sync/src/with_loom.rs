//! The primitives of a model: loom's, with the interface of parking_lot's.
//!
//! loom never poisons a lock that the model still runs with: a panic ends the model.

pub use loom::sync::{Arc, atomic};
pub use loom::{cell, hint, model, thread};
pub use std::sync::{OnceLock, Weak};

/// Clocks: the system's.
pub mod time {
    pub use crate::real_time::{boottime, realtime, realtime_coarse};
    pub use std::time::Instant;
}

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::Duration;

/// Mutual exclusion.
#[derive(Debug)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

/// A locked [`Mutex`]. It is empty only inside [`Condvar::wait`], which borrows it alone.
#[derive(Debug)]
pub struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    /// Returns an unlocked mutex.
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Takes the lock, if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok().map(|guard| MutexGuard(Some(guard)))
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        match &self.0 {
            Some(guard) => guard,
            None => unreachable!("used while it waits"),
        }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.0 {
            Some(guard) => guard,
            None => unreachable!("used while it waits"),
        }
    }
}

/// A condition variable.
#[derive(Debug, Default)]
pub struct Condvar(loom::sync::Condvar);

/// The result of a timed wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitTimeoutResult(());

impl WaitTimeoutResult {
    /// Returns false: time does not pass in a model.
    pub fn timed_out(&self) -> bool {
        false
    }
}

impl Condvar {
    /// Returns a condition variable with no waiters.
    pub fn new() -> Self {
        Self::default()
    }

    /// Unlocks, waits for a notification, locks again.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if let Some(inner) = guard.0.take() {
            guard.0 = Some(self.0.wait(inner).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Waits as [`wait`](Self::wait) does: time does not pass in a model.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _patience: Duration) -> WaitTimeoutResult {
        self.wait(guard);
        WaitTimeoutResult(())
    }

    /// Waits as [`wait`](Self::wait) does: time does not pass in a model.
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _until: time::Instant) -> WaitTimeoutResult {
        self.wait(guard);
        WaitTimeoutResult(())
    }

    /// Wakes one waiter.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Many readers or one writer.
#[derive(Debug)]
pub struct RwLock<T>(loom::sync::RwLock<T>);

pub use loom::sync::{RwLockReadGuard, RwLockWriteGuard};

impl<T> RwLock<T> {
    /// Returns an unlocked lock.
    pub fn new(value: T) -> Self {
        Self(loom::sync::RwLock::new(value))
    }

    /// Waits to read.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits to write.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> RwLock<T> {
    /// Shares the lock, if no thread has it alone.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.0.try_read().ok()
    }

    /// Takes the lock alone, if it is free.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.0.try_write().ok()
    }
}

impl<T: Default> Default for RwLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}
