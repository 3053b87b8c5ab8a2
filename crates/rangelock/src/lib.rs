//! Range locks: readers and writers of ranges of `u64`.
//!
//! ```
//! use lanefs_rangelock::{Range, RangeLock};
//!
//! let lock = RangeLock::new();
//! let head = lock.write(Range::new(0, 4096)?);
//! let tail = lock.read(Range::starting_at(8192));
//! assert!(lock.try_read(Range::new(4000, 4100)?).is_none());
//! let head = head.downgrade();
//! assert!(lock.try_read(Range::new(4000, 4100)?).is_some());
//! # drop((head, tail));
//! # Ok::<(), lanefs_rangelock::RangeError>(())
//! ```
//!
//! # What it promises
//!
//! - Ranges that overlap are held together only by readers.
//! - Among those that conflict, first come, first served: holders and waiters alike are waited for.
//!   So neither readers nor writers starve.
//! - A waiter holds up only those whom it conflicts with, and nothing is held while it sleeps.
//! - A request for several ranges is in line for all of them at one moment; so requests do not
//!   deadlock each other. (Guards that a thread keeps while it asks for more can, as with any
//!   lock.)
//!
//! # How it works
//!
//! Each file tells its part at its head: `leaf` is where records are and conflicts are counted,
//! `lock` the short way through it, `admit` the long way, `wait` how waiters sleep, `tree` how
//! leaves are found, split and merged, and `shared` how readers that nobody disturbs avoid all of
//! it. `docs/adr` of the project tells why it is so and not as first designed.

// Leaves and nodes are shared memory under a protocol of our own; each use says why it holds.
#![allow(unsafe_code)]

mod admit;
mod guard;
mod leaf;
mod lock;
mod mutex;
mod range;
mod shared;
mod stats;
mod thread_index;
mod tree;
mod wait;

#[cfg(test)]
mod tests;

pub use guard::{ManyGuard, NotAPart, ReadGuard, WriteGuard};
pub use lock::RangeLock;
pub use mutex::{MutexRangeGuard, MutexRangeLock};
pub use range::{Mode, Range, RangeError};
pub use stats::{Record, Stats};
