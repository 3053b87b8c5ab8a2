//! Data on its way to the device that a commit must wait for: ordered data.

use crate::{Handle, JournalError, Result};
use lanefs_sync::{Condvar, Mutex};
use std::sync::Arc;

/// Data in flight. A transaction that it is tied to ([`Handle::order_after`]) is not committed
/// before the data has been written, so that after a crash no committed mapping shows what was on
/// the medium before.
///
/// Whoever writes the data holds no handle, starts none and waits for no commit until it has called
/// [`done`](Self::done): the commit waits for it. Dropping it counts as a failure.
#[derive(Debug)]
pub struct Pending(Arc<Ordered>);

/// The commit's side of a [`Pending`].
#[derive(Debug, Default)]
pub(crate) struct Ordered {
    outcome: Mutex<Option<Result<()>>>,
    ended: Condvar,
}

impl Ordered {
    /// Returns when the data is written.
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
    /// Data whose writing is about to begin.
    pub fn new() -> Self {
        Self(Arc::default())
    }

    /// The writing has ended; the data need not be flushed. A failure aborts the journal when a
    /// transaction that is tied to it comes to be committed.
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
    /// flushes the device and writes the commit block. After a [`restart`](Self::restart) it has to
    /// be tied again if it matters to what follows. Without a log, the changes are not brought home
    /// before the data is durable.
    ///
    /// # Errors
    /// A handle that has ended.
    pub fn order_after(&self, data: &Pending) -> Result<()> {
        self.add_ordered(data.ordered())
    }
}
