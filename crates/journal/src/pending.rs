//! Ordered data: in-flight file data that a commit must wait for.

use crate::{Handle, JournalError, Result};
use lanefs_sync::{Condvar, Mutex};
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

impl Handle<'_> {
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
