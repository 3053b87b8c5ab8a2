//! Memory that a lock of the caller's own guards.

/// A [`core::cell::UnsafeCell`] with the interface of loom's, which tracks every pointer into it.
#[derive(Debug, Default)]
pub struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    /// Returns a cell with `value` in it.
    pub const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    /// Returns a pointer to write through; while it lives, no other may.
    #[inline]
    pub fn get_mut(&self) -> MutPtr<T> {
        MutPtr(self.0.get())
    }
}

/// A pointer into an [`UnsafeCell`].
#[derive(Debug)]
pub struct MutPtr<T>(*mut T);

impl<T> MutPtr<T> {
    /// Hands the pointer to `f`.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0)
    }
}
