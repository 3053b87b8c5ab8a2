//! A handle: the part of one operation in a transaction.

use crate::{Buffer, Freed, Journal, Result, Tid, WriteGuard};
use parking_lot::RwLockReadGuard;
use std::cell::{Cell, RefCell};

/// An operation's part of the running transaction: what it changes becomes durable as a whole.
///
/// A thread has at most one handle at a time, holds it only briefly, never across data I/O, and
/// asks for its credits before it takes the lock of any buffer. Guards borrow the handle, so it
/// cannot stop or restart while a block is being changed.
#[derive(Debug)]
pub struct Handle<'j> {
    journal: &'j Journal,
    gate: Option<RwLockReadGuard<'j, ()>>,
    tid: Cell<Tid>,
    credits: Cell<u32>,
    joined: RefCell<Vec<Buffer>>,
    freed: RefCell<Vec<Freed>>,
}

impl<'j> Handle<'j> {
    pub(crate) fn new(journal: &'j Journal, gate: RwLockReadGuard<'j, ()>, tid: Tid, credits: u32) -> Self {
        Self {
            journal,
            gate: Some(gate),
            tid: Cell::new(tid),
            credits: Cell::new(credits),
            joined: RefCell::default(),
            freed: RefCell::default(),
        }
    }

    /// The transaction: what [`Journal::commit`] wants to know to make this handle's work durable.
    pub fn tid(&self) -> Tid {
        self.tid.get()
    }

    /// Credits left.
    pub fn credits(&self) -> u32 {
        self.credits.get()
    }

    /// The journal.
    pub fn journal(&self) -> &'j Journal {
        self.journal
    }

    /// Opens `buffer` for change. The first touch of a block in a transaction costs one credit.
    ///
    /// # Errors
    /// An aborted journal; no credit left.
    pub fn write<'g>(&'g self, buffer: &'g Buffer) -> Result<WriteGuard<'g>> {
        self.journal.check()?;
        let mut owner = buffer.0.owner.lock();
        if *owner != Some(self.tid.get()) {
            *owner = Some(self.tid.get());
            self.credits.set(self.credits.get().saturating_sub(1));
            self.joined.borrow_mut().push(buffer.clone());
        }
        drop(owner);
        Ok(buffer.write())
    }

    /// A block that becomes metadata: zeroed in the cache, the device is not read. Costs one credit.
    ///
    /// # Errors
    /// An aborted journal; no credit left; a block outside of the volume.
    pub fn create(&self, block: u64) -> Result<Buffer> {
        let buffer = self.journal.blank(block)?;
        self.write(&buffer)?.fill(0);
        buffer.clear_verified();
        Ok(buffer)
    }

    /// Gives blocks back. They are reported to `on_freed` once the transaction is committed and
    /// must not be used again before. `metadata`: they were read or written through the journal; their
    /// buffers are dropped and older copies in the log will not be replayed.
    ///
    /// # Errors
    /// An aborted journal; no credit left for revoke records.
    pub fn free(&self, start: u64, len: u64, metadata: bool) -> Result<()> {
        self.journal.check()?;
        if metadata {
            self.journal.forget(start, len);
        }
        self.freed.borrow_mut().push(Freed { start, len });
        Ok(())
    }

    /// Asks for `n` more credits without waiting. `false`: the transaction has not that many;
    /// [`restart`](Self::restart) at a point where the volume is consistent.
    ///
    /// # Errors
    /// An aborted journal.
    pub fn extend(&self, n: u32) -> Result<bool> {
        self.journal.check()?;
        self.credits.set(self.credits.get().saturating_add(n));
        Ok(true)
    }

    /// Ends this handle's part and goes on with `n` credits, perhaps in a later transaction. What was
    /// done so far may become durable without what follows. Waits for space.
    ///
    /// # Errors
    /// An aborted journal; more credits than a transaction has. The handle can then only be stopped.
    pub fn restart(&mut self, n: u32) -> Result<()> {
        self.finish();
        let (gate, tid) = self.journal.enter(n)?;
        self.gate = Some(gate);
        self.tid.set(tid);
        self.credits.set(n);
        Ok(())
    }

    /// Ends the handle. Durable after a commit.
    pub fn stop(self) {}

    fn finish(&mut self) {
        if self.gate.is_some() {
            self.journal.leave(self.joined.get_mut(), self.freed.get_mut());
            self.gate = None;
        }
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        self.finish();
    }
}
