//! Atomics of a session: each operation is a scheduling point, and then what std does.
//!
//! Threads run one at a time, so that every operation is sequentially consistent. What weaker
//! orders allow, loom tries. Outside of a session, a write is noted where writes are counted.

/// Atomics with the interface of [`std::sync::atomic`].
pub mod atomic {
    use crate::with_schedule::scheduler::point;
    use crate::with_schedule::written::note;
    use std::panic::Location;
    use std::sync::atomic as real;

    pub use std::sync::atomic::Ordering;

    /// Orders accesses as [`std::sync::atomic::fence`] does.
    pub fn fence(order: Ordering) {
        point();
        real::fence(order);
    }

    macro_rules! common {
        ($name:ident, $real:ty, $value:ty $(, $of:ident)?) => {
            impl$(<$of>)? $name$(<$of>)? {
                /// Returns an atomic that holds `value`.
                pub const fn new(value: $value) -> Self {
                    Self(<$real>::new(value))
                }

                /// Loads as the atomic of std does.
                pub fn load(&self, order: Ordering) -> $value {
                    point();
                    self.0.load(order)
                }

                /// Stores as the atomic of std does.
                #[track_caller]
                pub fn store(&self, value: $value, order: Ordering) {
                    point();
                    note(self, Location::caller());
                    self.0.store(value, order);
                }

                /// Swaps as the atomic of std does.
                #[track_caller]
                pub fn swap(&self, value: $value, order: Ordering) -> $value {
                    point();
                    note(self, Location::caller());
                    self.0.swap(value, order)
                }

                /// Compares and exchanges as the atomic of std does.
                ///
                /// # Errors
                /// The value, if it is another.
                #[track_caller]
                pub fn compare_exchange(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    point();
                    note(self, Location::caller());
                    self.0.compare_exchange(current, new, success, failure)
                }

                /// Compares and exchanges as the atomic of std does.
                ///
                /// # Errors
                /// The value, if it is another.
                #[track_caller]
                pub fn compare_exchange_weak(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    self.compare_exchange(current, new, success, failure)
                }

                /// Updates as the atomic of std does.
                ///
                /// # Errors
                /// The value, if `f` gives none for it.
                #[track_caller]
                pub fn fetch_update(
                    &self,
                    set: Ordering,
                    fetch: Ordering,
                    f: impl FnMut($value) -> Option<$value>,
                ) -> Result<$value, $value> {
                    point();
                    note(self, Location::caller());
                    self.0.fetch_update(set, fetch, f)
                }

                /// Borrows the value as the atomic of std does.
                pub fn get_mut(&mut self) -> &mut $value {
                    self.0.get_mut()
                }

                /// Returns the value as the atomic of std does.
                pub fn into_inner(self) -> $value {
                    self.0.into_inner()
                }
            }
        };
    }

    macro_rules! fetches {
        ($name:ident, $value:ty, $($fetch:ident),*) => {
            impl $name {
                $(
                    /// As that of std.
                    #[track_caller]
                    pub fn $fetch(&self, value: $value, order: Ordering) -> $value {
                        point();
                        note(self, Location::caller());
                        self.0.$fetch(value, order)
                    }
                )*
            }
        };
    }

    macro_rules! integer {
        ($name:ident, $value:ty) => {
            /// As that of [`std::sync::atomic`].
            #[derive(Debug, Default)]
            #[repr(transparent)]
            pub struct $name(real::$name);
            common!($name, real::$name, $value);
            fetches!(
                $name, $value, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_xor, fetch_max, fetch_min
            );
        };
    }

    integer!(AtomicU8, u8);
    integer!(AtomicU16, u16);
    integer!(AtomicU32, u32);
    integer!(AtomicU64, u64);
    integer!(AtomicUsize, usize);

    /// An atomic with the interface of that of [`std::sync::atomic`].
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub struct AtomicBool(real::AtomicBool);
    common!(AtomicBool, real::AtomicBool, bool);
    fetches!(AtomicBool, bool, fetch_and, fetch_or, fetch_xor);

    /// An atomic with the interface of that of [`std::sync::atomic`].
    #[derive(Debug)]
    #[repr(transparent)]
    pub struct AtomicPtr<T>(real::AtomicPtr<T>);
    common!(AtomicPtr, real::AtomicPtr<T>, *mut T, T);

    impl<T> Default for AtomicPtr<T> {
        fn default() -> Self {
            Self(real::AtomicPtr::default())
        }
    }
}
