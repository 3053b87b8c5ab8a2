//! A handle: one operation's part of a transaction.

use crate::gate::Place;
use crate::pending::{CommitData, Ordered};
use crate::{Buffer, Freed, Journal, JournalError, Result, Tid, WriteGuard};
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// An operation's part of the running transaction. Its changes become durable as a whole.
///
/// A thread has at most one handle at a time, and holds it only briefly: never across data I/O, a
/// commit or a namespace lock. It asks for its credits before it takes the lock of any buffer.
/// Guards borrow the handle, so it cannot stop or restart while a block is being changed.
///
/// An operation that fails half way must undo its changes, or [abort](Journal::abort) the journal:
/// the changes of an ended handle will be committed. A handle that ends because its thread panics,
/// or that runs out of credits, aborts the journal.
///
/// An abort by another thread does not stop a handle: it completes its operation in memory, and its
/// transaction is not committed. So an operation never ends half way because of an abort, and
/// threads that still read the volume see its blocks consistent.
#[derive(Debug)]
pub struct Handle<'j> {
    journal: &'j Journal,
    /// `None` after a failed restart.
    place: Option<Place>,
    tid: Tid,
    credits: Cell<u32>,
    joined: RefCell<Vec<Buffer>>,
    freed: RefCell<Vec<Freed>>,
}

impl<'j> Handle<'j> {
    pub(crate) fn new(journal: &'j Journal, place: Place, credits: u32) -> Self {
        Self {
            journal,
            place: Some(place),
            tid: place.tid,
            credits: Cell::new(credits),
            joined: RefCell::default(),
            freed: RefCell::default(),
        }
    }

    /// Returns the transaction, which [`Journal::commit`] takes to make this handle's changes
    /// durable.
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Credits left.
    pub fn credits(&self) -> u32 {
        self.credits.get()
    }

    /// Returns the journal.
    pub fn journal(&self) -> &'j Journal {
        self.journal
    }

    /// Locks `buffer` for a change. The first change of a block in a transaction costs one credit.
    /// Waits while another thread holds the block.
    ///
    /// # Errors
    /// No credit left; a handle that has ended.
    #[cfg_attr(lanefs_schedule, track_caller)]
    pub fn write<'g>(&'g self, buffer: &'g Buffer) -> Result<WriteGuard<'g>> {
        self.join(buffer)?;
        Ok(buffer.write())
    }

    /// Returns a block that becomes metadata: zeroed in the cache, without a read of the device.
    /// Costs one credit.
    ///
    /// # Errors
    /// No credit left; a block outside of the volume; a handle that has ended.
    pub fn create(&self, block: u64) -> Result<Buffer> {
        let place = self.place()?;
        let buffer = self.journal.core.blank(block)?;
        self.join(&buffer)?;
        buffer.write().fill(0);
        buffer.clear_verified();
        self.journal.core.transactions[place.slot].lock().revokes.remove(&block);
        Ok(buffer)
    }

    /// Gives blocks back. They are reported to `on_freed` once the transaction is committed and
    /// must not be used again before. `metadata`: they were read or written through the journal;
    /// their buffers are dropped, and older copies in the log will not be replayed. One credit pays
    /// for [`revokes_per_credit`](Journal::revokes_per_credit) of them; revokes that fit in a
    /// revoke block that the transaction has already paid for are free. So a run of at most that
    /// many blocks costs at most one credit.
    ///
    /// # Errors
    /// No credit left for revoke records; a handle that has ended.
    pub fn free(&self, start: u64, len: u64, metadata: bool) -> Result<()> {
        let place = self.place()?;
        if metadata {
            self.journal.core.forget_freed(start, len, self.tid);
            if self.journal.core.log.is_some() {
                self.revoke(place, start, len)?;
            }
        }
        self.freed.borrow_mut().push(Freed { start, len });
        Ok(())
    }

    /// Requests `n` more credits without waiting. Returns false if the transaction has fewer left:
    /// the caller then has to [`restart`](Self::restart) where the volume is consistent.
    ///
    /// # Errors
    /// A handle that has ended.
    pub fn extend(&self, n: u32) -> Result<bool> {
        let place = self.place()?;
        let extended = self.journal.core.gate.extend(place.slot, n);
        if extended {
            self.credits.set(self.credits.get().saturating_add(n));
        }
        Ok(extended)
    }

    /// Ends this handle's part and continues with `n` credits, perhaps in a later transaction. The
    /// changes so far may become durable without the later ones. Waits for space.
    ///
    /// # Errors
    /// An aborted journal; more credits than a transaction has. The handle can then only be
    /// stopped.
    pub fn restart(&mut self, n: u32) -> Result<()> {
        self.finish();
        let n = n.max(1);
        self.journal.core.counters.restarts.add(1);
        let place = self.journal.core.enter(n)?;
        self.place = Some(place);
        self.tid = place.tid;
        self.credits.set(n);
        Ok(())
    }

    /// Ends the handle. Its changes are durable after a commit.
    pub fn stop(self) {}

    fn place(&self) -> Result<Place> {
        self.place.ok_or_else(|| JournalError::Aborted("the handle has ended".into()))
    }

    pub(crate) fn add_ordered(&self, data: Arc<Ordered>) -> Result<()> {
        let place = self.place()?;
        self.journal.core.transactions[place.slot].lock().ordered.push(data);
        Ok(())
    }

    pub(crate) fn add_data(&self, data: Box<dyn CommitData>) -> Result<()> {
        let place = self.place()?;
        self.journal.core.transactions[place.slot].lock().data.push(data);
        Ok(())
    }

    #[cfg_attr(lanefs_schedule, track_caller)]
    fn join(&self, buffer: &Buffer) -> Result<()> {
        let place = self.place()?;
        if buffer.join(place.tid) {
            self.joined.borrow_mut().push(buffer.clone());
            self.spend(place, 1, buffer.block())?;
        }
        Ok(())
    }

    /// Takes `n` credits from the handle, and missing ones from the transaction's reserve.
    ///
    /// # Errors
    /// [`JournalError::OutOfCredits`], which aborts the journal: the log may have no space for the
    /// transaction's changes, and the operation is half done.
    fn spend(&self, place: Place, n: u32, block: u64) -> Result<()> {
        let left = self.credits.get();
        if n > left {
            self.overdraw(place, n - left, block)?;
        }
        self.credits.set(left.saturating_sub(n));
        Ok(())
    }

    fn overdraw(&self, place: Place, n: u32, block: u64) -> Result<()> {
        {
            let mut txn = self.journal.core.transactions[place.slot].lock();
            let overdrawn = txn.overdrawn.saturating_add(n);
            if overdrawn <= self.journal.core.slack() {
                txn.overdrawn = overdrawn;
                self.journal.core.counters.credits_overdrawn.add(n.into());
                return Ok(());
            }
        }
        let error = JournalError::OutOfCredits { tid: place.tid, block };
        self.journal.core.abort(&error);
        Err(error)
    }

    fn revoke(&self, place: Place, start: u64, len: u64) -> Result<()> {
        let per_credit = u64::from(self.journal.revokes_per_credit());
        let to_pay = {
            let mut txn = self.journal.core.transactions[place.slot].lock();
            txn.revokes.extend(start..start.saturating_add(len));
            let needed = (txn.revokes.len() as u64).div_ceil(per_credit) as u32;
            let to_pay = needed.saturating_sub(txn.revoke_credits);
            txn.revoke_credits += to_pay;
            to_pay
        };
        self.spend(place, to_pay, start)
    }

    fn finish(&mut self) {
        let Some(place) = self.place.take() else { return };
        if std::thread::panicking() {
            self.journal.abort("a thread panicked in the middle of an operation");
        }
        let unused = self.credits.replace(0);
        self.journal.core.leave(place, unused, self.joined.get_mut(), self.freed.get_mut());
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        self.finish();
    }
}
