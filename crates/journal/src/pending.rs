//! Ordered data: in-flight file data that a commit must wait for, or that it writes itself.

use crate::{Handle, JournalError, Result};
use lanefs_sync::{Condvar, Mutex};
use std::fmt::Debug;
use std::sync::Arc;

/// In-flight data. A transaction tied to it ([`Handle::order_after`]) does not commit before the
/// data has been written. So after a crash no committed mapping exposes stale content of the
/// medium.
///
/// Until the writing thread has called [`done`](Self::done), it must not hold or start a handle,
/// nor wait for a commit: the commit waits for that call. Dropping the value counts as a failed
/// write.
#[derive(Debug)]
pub struct Pending(Arc<Ordered>);

/// The commit's side of a [`Pending`].
#[derive(Debug, Default)]
pub(crate) struct Ordered {
    outcome: Mutex<Option<Result<()>>>,
    ended: Condvar,
}

impl Ordered {
    /// Waits until the data is written. Returns the write's error.
    pub(crate) fn wait(&self) -> Result<()> {
        let mut outcome = self.outcome.lock();
        loop {
            if let Some(outcome) = &*outcome {
                return outcome.clone();
            }
            self.ended.wait(&mut outcome);
        }
    }
}

impl Default for Pending {
    fn default() -> Self {
        Self::new()
    }
}

impl Pending {
    /// Returns a value for data whose write is about to begin.
    pub fn new() -> Self {
        Self(Arc::default())
    }

    /// Reports the end of the write; the data need not be flushed. After a failure, the commit of a
    /// transaction tied to the data aborts the journal.
    pub fn done<E: Into<JournalError>>(self, outcome: std::result::Result<(), E>) {
        self.end(outcome.map_err(Into::into));
    }

    pub(crate) fn ordered(&self) -> Arc<Ordered> {
        Arc::clone(&self.0)
    }

    fn end(&self, result: Result<()>) {
        let mut outcome = self.0.outcome.lock();
        if outcome.is_none() {
            *outcome = Some(result);
            self.0.ended.notify_all();
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.end(Err(JournalError::Aborted("ordered data was given up before it was written".into())));
    }
}

/// File data that a commit writes in the batch of its log blocks ([`Handle::write_with_commit`]).
pub trait CommitData: Debug + Send {
    /// Returns the bytes, in pieces, with the byte of the device at which each of them begins.
    fn writes(&self) -> Vec<(u64, Vec<&[u8]>)>;
}

impl Handle<'_> {
    /// Leaves data to the commit of this handle's transaction, which writes it together with its
    /// log blocks, before the flush: one round less on a device with latency. A failure aborts the
    /// journal. The data is dropped before any thread is told that the transaction is durable. No
    /// other write may touch its place on the device before that. The caller commits soon, as the
    /// data is kept in memory until then. Without a log, the data is durable before the changes are
    /// written home.
    ///
    /// # Errors
    /// A handle that has ended.
    pub fn write_with_commit(&self, data: Box<dyn CommitData>) -> Result<()> {
        self.add_data(data)
    }

    /// Ties data in flight to this handle's transaction: its commit waits for the data before it
    /// flushes the device and writes the commit block. After a [`restart`](Self::restart) the
    /// caller must tie the data again if later changes depend on it. Without a log, the changes are
    /// not written in place before the data is durable.
    ///
    /// # Errors
    /// A handle that has ended.
    pub fn order_after(&self, data: &Pending) -> Result<()> {
        self.add_ordered(data.ordered())
    }
}
