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
//! - Only readers hold overlapping ranges at the same time.
//! - Conflicting requests are served first in, first out: a request waits for earlier holders and
//!   for earlier waiters. So neither readers nor writers starve.
//! - A waiter delays only requests that it conflicts with, and it holds no internal lock while it
//!   sleeps.
//! - A request for several ranges queues for all of them atomically, so requests do not deadlock
//!   each other. (A thread that keeps a guard while it requests another range can deadlock, as with
//!   any lock.)
//!
//! # How it works
//!
//! The head of each file explains its part:
//!
//! - `leaf`: the records, and how conflicts are counted;
//! - `lock`: the fast path, which touches one leaf;
//! - `admit`: the slow path, which may touch several;
//! - `wait`: how waiters sleep;
//! - `tree`: how leaves are found, split and merged;
//! - `shared`: how readers bypass all of it while no thread writes.
//!
//! `docs/adr` of the project records the design decisions.

// Leaves and nodes are shared memory under this crate's own protocol; each use says why it is
// sound.
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
