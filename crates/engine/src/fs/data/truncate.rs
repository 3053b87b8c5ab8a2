//! Truncation, in as many transactions as it takes.
//!
//! 1. Dirty pages before the new end are written out, because the new size is the size on disk.
//! 2. One handle sets the new size and makes the inode an orphan: from then on recovery finishes
//!    it.
//! 3. The tail of the last block is zeroed.
//! 4. The blocks behind are freed, from the end on, in bounded handles. The last handle takes the
//!    inode off the orphan list.

use super::content::Content;
use super::set_size;
use crate::error::Result;
use crate::fs::Fs;
use crate::fs::inode::CachedInode;
use crate::store::map::{self, Progress};
use crate::store::orphan;
use crate::store::txn::{Txn, credits};
use lanefs_format::Inode;
use lanefs_format::extent::MAX_BLOCKS;

impl Content<'_> {
    /// Sets i_size. Bytes that are added read as zeros.
    ///
    /// # Errors
    /// [`Error::FileTooBig`], [`Error::NotPermitted`]; a damaged map.
    pub(crate) fn truncate(self, size: u64) -> Result<()> {
        let fs = self.fs();
        fs.check_writable()?;
        let _held = self.lock_from(size)?;
        self.node.check_mutable()?;
        self.node.check_no_verity()?;
        map::check_size(fs, self.node.flags(), size)?;
        let before = self.file.size();
        self.write_back_to(size.min(before))?;
        let _alone = self.hold_writeback();
        if self.file.is_cut_short() {
            self.free_cut(before)?;
        }
        if size > before {
            return self.grow(before, size);
        }
        let needed = credits::INODE + credits::SUPER + credits::ORPHAN;
        let prepared = self.node.prepare()?;
        fs.transact(needed, |txn| {
            prepared.update(txn, |txn, inode| {
                touch(fs, inode);
                set_size(txn, inode, size)?;
                // A file without blocks has nothing to free after a crash.
                if map::is_empty(inode) { Ok(()) } else { orphan::add(txn, self.node.ino) }
            })
        })?;
        // Before blocks are freed, so that no reader finds them.
        self.file.set_size(size);
        self.free_cut(size)
    }

    /// Frees the blocks behind `size`, the new i_size of an orphan, and takes it off the orphan
    /// list. If that fails, the file must not grow until a truncation has freed them: the old
    /// bytes would be back.
    pub(super) fn free_cut(self, size: u64) -> Result<()> {
        // One that failed may have freed all blocks, and left the inode on the list.
        let was_cut_short = self.file.is_cut_short();
        self.file.set_cut_short(true);
        self.drop_pages(size)?;
        if was_cut_short || !map::is_empty(&self.node.state()) {
            self.node.free_behind(|txn| self.node.update(txn, |txn, inode| orphan::settle(txn, inode)))?;
        }
        self.file.set_cut_short(false);
        Ok(())
    }

    /// Moves i_size up to `size`, if it is less. Bytes that are added read as zeros.
    ///
    /// # Errors
    /// Those of [`truncate`](Self::truncate), but for a file that is append-only;
    /// [`CutShort`](crate::Error::CutShort).
    pub(crate) fn extend(self, size: u64) -> Result<()> {
        let fs = self.fs();
        fs.check_writable()?;
        let (_held, before) = self.lock_end()?;
        self.node.check_not_immutable()?;
        self.node.check_no_verity()?;
        if size <= before {
            return Ok(());
        }
        map::check_size(fs, self.node.flags(), size)?;
        self.write_back_to(before)?;
        let _alone = self.hold_writeback();
        self.grow(before, size)
    }

    fn grow(self, before: u64, size: u64) -> Result<()> {
        let fs = self.fs();
        self.file.check_growth(self.node.ino)?;
        self.node.zero_tail(before, size)?;
        let prepared = self.node.prepare()?;
        fs.transact(credits::INODE + credits::SUPER, |txn| {
            prepared.update(txn, |txn, inode| {
                touch(fs, inode);
                set_size(txn, inode, size)
            })
        })?;
        self.file.set_size(size);
        Ok(())
    }

    /// Drops the cached bytes behind `size`, and their claims.
    fn drop_pages(self, size: u64) -> Result<()> {
        self.file.alloc.discard();
        let Some(pages) = self.file.pages_if_used() else { return Ok(()) };
        let cut = pages.cut(size..u64::MAX);
        self.give_up(&cut.dropped)
    }
}

impl CachedInode {
    /// Finishes an interrupted truncation of an orphan: frees the blocks behind i_size and zeroes
    /// the tail. If that fails, a file must not grow, as after [`free_cut`](Content::free_cut).
    pub(crate) fn truncate_tail(&self) -> Result<()> {
        let (mapped, is_file) = {
            let inode = self.state();
            (map::has_map(&self.fs, &inode), inode.is_regular())
        };
        if let Some(file) = self.file_if_used() {
            file.set_size(self.state().size);
        }
        let freed = if mapped { self.free_behind(|_| Ok(())) } else { Ok(()) };
        if freed.is_err() && is_file {
            self.file().set_cut_short(true);
        }
        freed
    }

    /// Frees all blocks of an orphan that is to be deleted, whatever its i_size and type.
    pub(crate) fn truncate_for_delete(&self) -> Result<()> {
        if let Some(content) = self.content_if_used() {
            let _alone = content.hold_writeback();
            content.drop_pages(0)?;
        }
        {
            let inode = self.state();
            if !map::has_map(&self.fs, &inode) || map::is_empty(&inode) {
                return Ok(());
            }
        }
        self.free_from(0, |_| Ok(()))
    }

    /// Zeroes the tail of the last block of the file, frees all blocks behind it, and runs `then`
    /// under the last handle, which has credits for the inode and the list of orphans. If `then`
    /// fails and has changed nothing, the blocks are free.
    pub(super) fn free_behind<'n>(&'n self, then: impl FnOnce(&mut Txn<'n>) -> Result<()>) -> Result<()> {
        let fs = &*self.fs;
        let size = self.state().size;
        self.zero_tail(size, u64::MAX)?;
        // Beyond the map there is nothing to free.
        let first = u32::try_from(size.div_ceil(u64::from(fs.block_size))).unwrap_or(MAX_BLOCKS);
        self.free_from(first, then)
    }

    fn free_from<'n>(&'n self, first: u32, then: impl FnOnce(&mut Txn<'n>) -> Result<()>) -> Result<()> {
        let needed = map::remove_credits(&self.state()) + credits::INODE;
        let prepared = self.prepare()?;
        self.fs.transact(needed, |txn| {
            loop {
                let step =
                    prepared.update_map(txn, |txn, inode| map::remove(txn, inode, first..MAX_BLOCKS))?;
                match step {
                    Progress::Done => {
                        // A restart begins to count changes again.
                        if let Err(e) = txn.ensure(credits::INODE + credits::ORPHAN) {
                            return txn.stop(e);
                        }
                        let freed = txn.mark();
                        let done = then(txn);
                        return done.or_else(|e| if txn.mark() == freed { txn.stop(e) } else { Err(e) });
                    }
                    Progress::More => txn.restart(needed)?,
                    Progress::Stopped(e) => return txn.stop(e),
                }
            }
        })
    }
}

/// Stamps a change of the content.
pub(super) fn touch(fs: &Fs, inode: &mut Inode) {
    let now = fs.now();
    (inode.mtime, inode.ctime) = (now, now);
}
