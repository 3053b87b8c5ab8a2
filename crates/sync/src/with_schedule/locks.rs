//! Locks of a session, in parking_lot's shape.
//!
//! A thread takes the real lock by trying, and is blocked in the scheduler where it does not get
//! it. Outside of a session each lock is the real one.

use super::scheduler::{Key, point, wake_all, with};
use super::threads::block;
use super::time::Instant;
use super::written::note;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn key<T: ?Sized>(place: &T) -> Key {
    Key::Place(ptr::from_ref(place).cast::<()>().addr())
}

/// Takes what `attempt` gives: inside of a session by trying and waiting for `place`, outside of
/// one by `outside`.
fn take<G, P: ?Sized>(
    place: &P,
    what: &'static str,
    at: &'static Location<'static>,
    attempt: impl Fn() -> Option<G>,
    outside: impl FnOnce() -> G,
) -> G {
    point();
    note(place, at);
    loop {
        if let Some(taken) = attempt() {
            return taken;
        }
        if block(key(place), what, at, None).is_none() {
            return outside();
        }
    }
}

/// Mutual exclusion.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(parking_lot::Mutex<T>);

/// A locked [`Mutex`]. It is empty only while it is dropped, and inside of [`Condvar::wait`], which
/// borrows it alone.
#[derive(Debug)]
pub struct MutexGuard<'a, T: ?Sized> {
    lock: &'a Mutex<T>,
    inner: Option<parking_lot::MutexGuard<'a, T>>,
    at: &'static Location<'static>,
}

impl<T> Mutex<T> {
    /// Returns an unlocked mutex.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    /// Returns the guarded value.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let at = Location::caller();
        let inner = take(&self.0, "mutex", at, || self.0.try_lock(), || self.0.lock());
        MutexGuard { lock: self, inner: Some(inner), at }
    }

    /// Takes the lock, if it is free.
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let at = Location::caller();
        point();
        note(&self.0, at);
        self.0.try_lock().map(|inner| MutexGuard { lock: self, inner: Some(inner), at })
    }

    /// Borrows the guarded value: no other thread has the mutex.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }

    /// Returns whether a thread holds it.
    pub fn is_locked(&self) -> bool {
        point();
        self.0.is_locked()
    }
}

impl<T: ?Sized> MutexGuard<'_, T> {
    fn unlock(&mut self) {
        if self.inner.take().is_some() {
            note(&self.lock.0, self.at);
            wake_all(key(&self.lock.0));
        }
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        match &self.inner {
            Some(guard) => guard,
            None => unreachable!("used while it waits"),
        }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.inner {
            Some(guard) => guard,
            None => unreachable!("used while it waits"),
        }
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.unlock();
    }
}

/// A condition variable.
#[derive(Debug, Default)]
pub struct Condvar {
    outside: parking_lot::Condvar,
}

/// The result of a timed wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Returns whether the time ran out.
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    /// Returns a condition variable with no waiters.
    pub const fn new() -> Self {
        Self { outside: parking_lot::Condvar::new() }
    }

    fn wait_at<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        until: Option<Instant>,
        at: &'static Location<'static>,
    ) -> WaitTimeoutResult {
        note(&self.outside, at);
        let Some(()) = with(|_, _| ()) else { return self.wait_outside(guard, until) };
        point();
        // From here to the wait no other thread runs: a notification cannot fall between.
        guard.unlock();
        let late = block(key(&self.outside), "notification", at, until.map(Instant::nanos));
        let lock = guard.lock;
        guard.inner = Some(take(&lock.0, "mutex", at, || lock.0.try_lock(), || lock.0.lock()));
        WaitTimeoutResult(late.unwrap_or(false))
    }

    fn wait_outside<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        until: Option<Instant>,
    ) -> WaitTimeoutResult {
        let Some(inner) = &mut guard.inner else { return WaitTimeoutResult(false) };
        match until {
            None => {
                self.outside.wait(inner);
                WaitTimeoutResult(false)
            }
            Some(until) => {
                let left = until.saturating_duration_since(Instant::now());
                WaitTimeoutResult(self.outside.wait_for(inner, left).timed_out())
            }
        }
    }

    /// Unlocks, waits for a notification, locks again.
    #[track_caller]
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        self.wait_at(guard, None, Location::caller());
    }

    /// Waits as [`wait`](Self::wait) does, but not beyond `until`.
    #[track_caller]
    pub fn wait_until<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, until: Instant) -> WaitTimeoutResult {
        self.wait_at(guard, Some(until), Location::caller())
    }

    /// Waits as [`wait`](Self::wait) does, but no longer than `patience`.
    #[track_caller]
    pub fn wait_for<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        patience: Duration,
    ) -> WaitTimeoutResult {
        self.wait_at(guard, Some(Instant::now() + patience), Location::caller())
    }

    /// Wakes one waiter.
    #[track_caller]
    pub fn notify_one(&self) {
        point();
        note(&self.outside, Location::caller());
        with(|session, _| session.wake_one(key(&self.outside)));
        self.outside.notify_one();
    }

    /// Wakes all waiters.
    #[track_caller]
    pub fn notify_all(&self) {
        point();
        note(&self.outside, Location::caller());
        wake_all(key(&self.outside));
        self.outside.notify_all();
    }
}

/// Many readers or one writer. As with parking_lot's, a reader waits behind a writer that waits.
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized> {
    writers: AtomicUsize,
    inner: parking_lot::RwLock<T>,
}

/// A [`RwLock`] that is shared.
#[derive(Debug)]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
    inner: Option<parking_lot::RwLockReadGuard<'a, T>>,
    at: &'static Location<'static>,
}

/// A [`RwLock`] that one thread has alone.
#[derive(Debug)]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
    inner: Option<parking_lot::RwLockWriteGuard<'a, T>>,
    at: &'static Location<'static>,
}

impl<T> RwLock<T> {
    /// Returns an unlocked lock.
    pub const fn new(value: T) -> Self {
        Self { writers: AtomicUsize::new(0), inner: parking_lot::RwLock::new(value) }
    }

    /// Returns the guarded value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    fn attempt_to_read(&self) -> Option<parking_lot::RwLockReadGuard<'_, T>> {
        (self.writers.load(Ordering::Relaxed) == 0).then(|| self.inner.try_read()).flatten()
    }

    /// Waits to read.
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let (attempt, at) = (|| self.attempt_to_read(), Location::caller());
        let inner = take(&self.inner, "lock to read", at, attempt, || self.inner.read());
        RwLockReadGuard { lock: self, inner: Some(inner), at }
    }

    /// Waits to write.
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let at = Location::caller();
        point();
        note(&self.inner, at);
        let inner = self.inner.try_write().unwrap_or_else(|| {
            self.writers.fetch_add(1, Ordering::Relaxed);
            let inner = loop {
                if block(key(&self.inner), "lock to write", at, None).is_none() {
                    break self.inner.write();
                }
                if let Some(inner) = self.inner.try_write() {
                    break inner;
                }
            };
            self.writers.fetch_sub(1, Ordering::Relaxed);
            inner
        });
        RwLockWriteGuard { lock: self, inner: Some(inner), at }
    }

    /// Shares the lock, if no thread holds it alone or waits for it.
    #[track_caller]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let at = Location::caller();
        point();
        note(&self.inner, at);
        self.attempt_to_read().map(|inner| RwLockReadGuard { lock: self, inner: Some(inner), at })
    }

    /// Takes the lock alone, if it is free.
    #[track_caller]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let at = Location::caller();
        point();
        note(&self.inner, at);
        self.inner.try_write().map(|inner| RwLockWriteGuard { lock: self, inner: Some(inner), at })
    }

    /// Borrows the guarded value: no other thread has the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        match &self.inner {
            Some(guard) => guard,
            None => unreachable!("empty only while it is dropped"),
        }
    }
}

impl<T: ?Sized> Drop for RwLockReadGuard<'_, T> {
    fn drop(&mut self) {
        self.inner = None;
        note(&self.lock.inner, self.at);
        wake_all(key(&self.lock.inner));
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        match &self.inner {
            Some(guard) => guard,
            None => unreachable!("empty only while it is dropped"),
        }
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.inner {
            Some(guard) => guard,
            None => unreachable!("empty only while it is dropped"),
        }
    }
}

impl<T: ?Sized> Drop for RwLockWriteGuard<'_, T> {
    fn drop(&mut self) {
        self.inner = None;
        note(&self.lock.inner, self.at);
        wake_all(key(&self.lock.inner));
    }
}

/// A value that is set once.
#[derive(Debug)]
pub struct OnceLock<T> {
    value: std::sync::OnceLock<T>,
    /// Held by the thread that makes the value: the real cell would block the others in the system.
    turn: Mutex<()>,
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> OnceLock<T> {
    /// Returns a cell without a value.
    pub const fn new() -> Self {
        Self { value: std::sync::OnceLock::new(), turn: Mutex::new(()) }
    }

    /// Returns the value, if it is set.
    pub fn get(&self) -> Option<&T> {
        point();
        self.value.get()
    }

    /// Returns the value, if it is set: no other thread has the cell.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.value.get_mut()
    }

    /// Sets the value.
    ///
    /// # Errors
    /// `value`, if there is one already.
    #[track_caller]
    pub fn set(&self, value: T) -> Result<(), T> {
        let _turn = self.turn.lock();
        self.value.set(value)
    }

    /// Returns the value; `make` makes it if it is not set.
    #[track_caller]
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        let _turn = self.turn.lock();
        match self.value.get() {
            Some(value) => value,
            None => {
                let made = make();
                self.value.get_or_init(|| made)
            }
        }
    }

    /// Returns the value, if it was set.
    pub fn into_inner(self) -> Option<T> {
        self.value.into_inner()
    }
}
