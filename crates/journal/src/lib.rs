//! jbd2 in user space: transactions over a cache of metadata blocks.
//!
//! The journal is the only way to a volume's metadata. [`Journal::read`] gives a [`Buffer`];
//! [`Journal::start`] gives a [`Handle`] through which buffers are changed, made and freed.
//! All that one handle did becomes durable together or not at all.
#![forbid(unsafe_code)]

mod alone;
mod background;
mod baton;
mod buffer;
mod cache;
mod checkpoint;
mod commit;
mod core;
mod error;
mod flush;
mod gate;
mod handle;
mod held;
mod journal;
mod log;
mod options;
mod pending;
pub mod recovery;
mod signal;
mod stats;
#[cfg(test)]
mod testing;
mod tid;
mod transaction;

pub use alone::Alone;
pub use buffer::{Buffer, ReadGuard, WriteGuard};
pub use error::{JournalError, Result};
pub use flush::Ticket;
pub use handle::Handle;
pub use journal::Journal;
pub use options::{Freed, LOG_RUNS_MAX, LogConfig, LogRun, OnFreed, Options};
pub use pending::{CommitData, Pending};
pub use stats::{Levels, Stats, Times};
pub use tid::Tid;
