//! A transaction handle with the volume that it changes: the only caller of the journal's handles.
//!
//! A [`Txn`] is started with credits for all the blocks that the operation may change, before any
//! lock of a group or buffer is taken. Dropped, it ends; what it changed becomes durable with the
//! transaction's commit. Nothing undoes a half-done operation: operations look before they change.

use crate::alloc::{self, BlockKind, Claim, Reserved};
use crate::error::Result;
use crate::volume::Fs;
use lanefs_journal::{Buffer, Handle, Pending, Tid, WriteGuard};
use lanefs_sync::order::{Level, Note};

/// Credits of the parts that operations are made of: distinct blocks that may change.
pub(crate) mod credits {
    /// An inode's block of the table.
    pub(crate) const INODE: u32 = 1;
    /// The superblock.
    pub(crate) const SUPER: u32 = 1;
    /// A run of blocks taken or freed within one group: bitmap and descriptor.
    pub(crate) const RUN: u32 = 2;
    /// A new inode: bitmap, descriptor, table block, and a descriptor on the way.
    pub(crate) const NEW_INODE: u32 = 4;
    /// Onto or off the orphan list: superblock or orphan file block, and a neighbour's inode.
    pub(crate) const ORPHAN: u32 = SUPER + 2 * INODE;
    /// An extended attribute block freed, copied or made.
    pub(crate) const XATTR: u32 = 2 * (1 + RUN) + INODE;
}

/// An open handle on a volume.
#[derive(Debug)]
pub(crate) struct Txn<'f> {
    fs: &'f Fs,
    handle: Handle<'f>,
    /// Noted as held; taken anew by a restart, which may wait like a start.
    note: Option<Note>,
    /// Blocks that were promised to this operation.
    claim: Option<Claim>,
}

impl<'f> Txn<'f> {
    pub(crate) fn start(fs: &'f Fs, credits: u32) -> Result<Self> {
        let note = Note::new(Level::Handle, 0);
        let handle = fs.journal.start(credits)?;
        Ok(Self { fs, handle, note: Some(note), claim: None })
    }

    /// The transaction that it belongs to.
    pub(crate) fn tid(&self) -> Tid {
        self.handle.tid()
    }

    /// The transaction does not commit before the data of `pending` is written.
    pub(crate) fn order_after(&self, pending: &Pending) -> Result<()> {
        Ok(self.handle.order_after(pending)?)
    }

    /// The volume.
    pub(crate) fn fs(&self) -> &'f Fs {
        self.fs
    }

    /// The right to change a metadata block. Costs a credit when this transaction has not
    /// changed it yet.
    pub(crate) fn write<'g>(&'g self, buffer: &'g Buffer) -> Result<WriteGuard<'g>> {
        Ok(self.handle.write(buffer)?)
    }

    /// A metadata block of zeros in the place of a block just taken, without reading it.
    pub(crate) fn create(&self, block: u64) -> Result<Buffer> {
        Ok(self.handle.create(block)?)
    }

    /// Blocks of `claim` are taken first from now on. What is left goes back when the handle ends.
    pub(crate) fn spend(&mut self, claim: Claim) {
        match &mut self.claim {
            Some(own) => own.join(claim),
            None => self.claim = Some(claim),
        }
    }

    /// What is left of the claim.
    pub(crate) fn unspent(&mut self) -> Option<Claim> {
        self.claim.take()
    }

    /// Takes one block for metadata, near `goal`, and marks it on disk.
    ///
    /// # Errors
    /// [`Error::NoSpace`](crate::Error::NoSpace), with nothing changed.
    pub(crate) fn alloc_meta(&mut self, goal: u64) -> Result<u64> {
        Ok(self.alloc_run(goal, 1)?.0)
    }

    /// Takes 1..=`want` contiguous blocks near `goal` and marks them on disk.
    ///
    /// # Errors
    /// [`Error::NoSpace`](crate::Error::NoSpace), with nothing changed.
    pub(crate) fn alloc_run(&mut self, goal: u64, want: u32) -> Result<(u64, u32)> {
        let reserved = match self.claim.as_mut().filter(|c| c.blocks() > 0) {
            Some(claim) => alloc::reserve_claimed(self.fs, goal, want, claim)?,
            None => alloc::reserve(self.fs, goal, want)?,
        };
        let run = (reserved.start(), reserved.len());
        self.take_reserved(reserved)?;
        Ok(run)
    }

    /// Marks blocks that were reserved in core as used on disk.
    pub(crate) fn take_reserved(&mut self, reserved: Reserved) -> Result<()> {
        alloc::take_reserved(self, reserved)
    }

    /// Frees blocks. They are handed out again when this transaction has committed.
    ///
    /// # Errors
    /// Blocks that no file can own, or that are free already.
    pub(crate) fn free(&mut self, start: u64, len: u32, kind: BlockKind) -> Result<()> {
        alloc::free_blocks(self, start, len, kind)
    }

    /// Tells the journal of blocks whose bits are clear now.
    pub(crate) fn freed(&self, start: u64, len: u64, kind: BlockKind) -> Result<()> {
        Ok(self.handle.free(start, len, kind == BlockKind::Metadata)?)
    }

    /// Credits left.
    pub(crate) fn credits(&self) -> u32 {
        self.handle.credits()
    }

    /// Asks for `n` more credits without waiting; `false` if the transaction has no room.
    pub(crate) fn extend(&mut self, n: u32) -> Result<bool> {
        Ok(self.handle.extend(n)?)
    }

    /// Ends the transaction's part so far and goes on with `n` credits, maybe in a newer
    /// transaction. The caller has made its structures consistent, and holds no
    /// inode and no buffer: whoever waits for those may be what the restart waits for.
    pub(crate) fn restart(&mut self, n: u32) -> Result<()> {
        self.note = None;
        self.note = Some(Note::new(Level::Handle, 0));
        Ok(self.handle.restart(n)?)
    }

    /// Makes sure of `n` credits: what is left, more of them, or a restart.
    pub(crate) fn ensure(&mut self, n: u32) -> Result<()> {
        let left = self.credits();
        if left >= n || self.extend(n - left)? { Ok(()) } else { self.restart(n) }
    }
}
