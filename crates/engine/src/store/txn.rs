//! A transaction handle with the volume that it changes: the only caller of the journal's handles.
//!
//! [`Store::transact`] starts a [`Txn`] with credits for all blocks that the operation may change,
//! before any lock of a group or buffer is taken, and ends it. The operation's changes become
//! durable with the transaction's commit.
//!
//! Invariant: a part of an operation is never committed. An operation that fails has changed
//! nothing, or has undone its changes ([`Txn::undone`]), or the journal is aborted before the
//! handle ends. So operations read all blocks and claim all space before they change anything.
//!
//! Hazard: [`Txn::restart`] ends the transaction in the middle of an operation. The changes before
//! it must be consistent and finished by recovery (an orphan), or harmless as they are.

use crate::error::{Error, Result};
use crate::store::space::Claim;
use crate::store::{Reserved, Store};
use lanefs_journal::{Buffer, CommitData, Handle, Pending, Tid, WriteGuard};
use lanefs_sync::order::{Level, Note};
use std::cell::Cell;
use std::collections::VecDeque;

/// Credits of the parts of operations: distinct blocks that may change.
pub(crate) mod credits {
    /// An inode's block of the table.
    pub(crate) const INODE: u32 = 1;
    /// The superblock.
    pub(crate) const SUPER: u32 = 1;
    /// A run of blocks taken or freed within one group: bitmap and descriptor.
    pub(crate) const RUN: u32 = 2;
    /// A run of metadata freed, of at most [`Txn::run_of`](super::Txn::run_of) blocks, with its
    /// revokes.
    pub(crate) const FREED_RUN: u32 = RUN + 1;
    /// A new inode: bitmap, descriptor, table block, and the descriptor of a full group on the way.
    pub(crate) const NEW_INODE: u32 = 4;
    /// Adding to or removing from the orphan list: superblock or orphan file block, and a
    /// neighbour's inode.
    pub(crate) const ORPHAN: u32 = SUPER + 2 * INODE;
    /// An extended attribute block freed, copied or made, and the volume's first attribute.
    pub(crate) const XATTR: u32 = (1 + RUN) + FREED_RUN + INODE + SUPER;
}

/// What a freed block held. Metadata must be revoked, so that recovery does not replay an old copy
/// over the block's next content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockKind {
    Data,
    Metadata,
}

/// An open handle on a volume.
#[derive(Debug)]
pub(crate) struct Txn<'f> {
    store: &'f Store,
    handle: Handle<'f>,
    /// Noted in the lock order as held. A restart notes it anew, because it may wait like a start.
    note: Option<Note>,
    /// Blocks that were claimed for this operation.
    claim: Option<Claim>,
    /// Blocks that were chosen for this operation, of those that 32 bits can number.
    low: VecDeque<Reserved>,
    /// Changes of blocks since the last consistent point.
    changes: Cell<Mark>,
}

/// The number of changes of an operation at some point: see [`Txn::mark`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Mark(u32);

impl Mark {
    /// Returns the mark after one more change.
    pub(crate) fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl Store {
    /// Runs one operation under a handle with `credits` blocks that may change.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; the journal's error if it was aborted; that of
    /// `operation`, which aborts the journal if it left changes behind.
    pub(crate) fn transact<'f, T>(
        &'f self,
        credits: u32,
        operation: impl FnOnce(&mut Txn<'f>) -> Result<T>,
    ) -> Result<T> {
        self.check_writable()?;
        let mut txn = Txn::start(self, credits)?;
        let outcome = operation(&mut txn);
        txn.settle(outcome)
    }
}

impl<'f> Txn<'f> {
    fn start(store: &'f Store, credits: u32) -> Result<Self> {
        let note = Note::new(Level::Handle, 0);
        let handle = store.journal.start(credits)?;
        let (note, low) = (Some(note), VecDeque::new());
        Ok(Self { store, handle, note, claim: None, low, changes: Cell::default() })
    }

    /// Ends an operation under this handle, which may go on with the next one. An operation that
    /// failed half way aborts the journal.
    pub(crate) fn settle<T>(&self, outcome: Result<T>) -> Result<T> {
        match &outcome {
            Ok(_) => self.consistent(),
            Err(e) if self.changes.get() != Mark::default() => {
                self.store.journal.abort(&format!("an operation failed half way: {e}"));
            }
            Err(_) => {}
        }
        outcome
    }

    /// Notes that the volume is consistent with all changes so far.
    fn consistent(&self) {
        self.changes.set(Mark::default());
    }

    /// Returns the number of changes so far. Between two equal marks there is no change.
    pub(crate) fn mark(&self) -> Mark {
        self.changes.get()
    }

    /// Notes that all changes since `mark` were undone.
    pub(crate) fn undone(&self, mark: Mark) {
        self.changes.set(mark);
    }

    /// Ends an operation with error `e` at a point where the volume is consistent: the changes so
    /// far stay.
    pub(crate) fn stop<T>(&self, e: Error) -> Result<T> {
        self.consistent();
        Err(e)
    }

    fn count_change(&self) {
        self.changes.set(self.changes.get().next());
    }

    /// Returns the transaction that the handle belongs to.
    pub(crate) fn tid(&self) -> Tid {
        self.handle.tid()
    }

    /// Keeps the transaction from committing before the data of `pending` is written.
    pub(crate) fn order_after(&self, pending: &Pending) -> Result<()> {
        Ok(self.handle.order_after(pending)?)
    }

    /// Leaves data to the commit: see [`Handle::write_with_commit`].
    pub(crate) fn write_with_commit(&self, data: impl CommitData + 'static) -> Result<()> {
        Ok(self.handle.write_with_commit(Box::new(data))?)
    }

    /// Returns the volume.
    pub(crate) fn store(&self) -> &'f Store {
        self.store
    }

    /// Returns the right to change a metadata block. Costs a credit if this transaction has not
    /// changed it yet.
    #[cfg_attr(lanefs_schedule, track_caller)]
    pub(crate) fn write<'g>(&'g self, buffer: &'g Buffer) -> Result<WriteGuard<'g>> {
        let guard = self.handle.write(buffer)?;
        self.count_change();
        Ok(guard)
    }

    /// Makes a metadata block of zeros in a block just allocated, without reading it.
    pub(crate) fn create(&self, block: u64) -> Result<Buffer> {
        let buffer = self.handle.create(block)?;
        self.count_change();
        Ok(buffer)
    }

    /// Makes allocations take blocks of `claim` first. The rest of it is given back when the handle
    /// ends.
    pub(crate) fn spend(&mut self, claim: Claim) {
        match &mut self.claim {
            Some(own) => own.join(claim),
            None => self.claim = Some(claim),
        }
    }

    /// Returns the claim that allocations take blocks of.
    pub(super) fn claim_mut(&mut self) -> Option<&mut Claim> {
        self.claim.as_mut()
    }

    /// Returns the blocks that were [chosen](Self::reserve_low) for this operation and that no
    /// allocation has taken yet. They are given back when the handle ends.
    pub(super) fn low_mut(&mut self) -> &mut VecDeque<Reserved> {
        &mut self.low
    }

    /// Takes the unspent part of the claim.
    pub(crate) fn unspent(&mut self) -> Option<Claim> {
        self.claim.take()
    }

    /// Tells the journal which blocks' bits are about to be cleared. Costs a credit for each
    /// [`run_of`](Self::run_of) blocks of metadata.
    pub(crate) fn freed(&self, start: u64, len: u64, kind: BlockKind) -> Result<()> {
        self.handle.free(start, len, kind == BlockKind::Metadata)?;
        self.count_change();
        Ok(())
    }

    /// Returns the longest run of blocks whose freeing costs no more than one credit, besides
    /// bitmap and descriptor.
    pub(crate) fn run_of(&self, kind: BlockKind) -> u32 {
        match kind {
            BlockKind::Data => u32::MAX,
            BlockKind::Metadata => self.store.journal.revokes_per_credit(),
        }
    }

    /// Returns the credits left.
    pub(crate) fn credits(&self) -> u32 {
        self.handle.credits()
    }

    /// Asks for `n` more credits without waiting; `false` if the transaction has no room.
    pub(crate) fn extend(&mut self, n: u32) -> Result<bool> {
        Ok(self.handle.extend(n)?)
    }

    /// Ends the transaction's part so far and goes on with `n` credits, maybe in a newer
    /// transaction. The caller has made its structures consistent, and holds no lock of an inode or
    /// buffer: the thread that the restart waits for may be waiting for that lock.
    pub(crate) fn restart(&mut self, n: u32) -> Result<()> {
        self.consistent();
        self.note = None;
        self.note = Some(Note::new(Level::Handle, 0));
        Ok(self.handle.restart(n)?)
    }

    /// Gets `n` credits: from those left, by an extension, or by a restart. So the caller's
    /// structures must be consistent.
    pub(crate) fn ensure(&mut self, n: u32) -> Result<()> {
        let left = self.credits();
        if left >= n || self.extend(n - left)? { Ok(()) } else { self.restart(n) }
    }
}
