//! One block group in core: its free blocks, and where to look first.
//!
//! A group whose bitmap is damaged, or marks fixed metadata as free, is lost: no block of it is
//! allocated or freed, and the other groups stay usable. Closing the volume then marks it as having
//! errors.

use super::buddy::{Buddy, ORDERS};
use crate::error::{Error, Result};
use crate::store::txn::Txn;
use crate::store::{Store, kind};
use lanefs_format::{GroupDesc, GroupFlags, bitmap};
use lanefs_journal::{Buffer, JournalError};
use std::ops::Range;

/// In-core state of a group, behind its mutex.
#[derive(Debug)]
pub(crate) struct Group {
    blocks: Blocks,
    /// The value last passed to [`Orders`](super::orders::Orders).
    top: Option<u32>,
    /// Blocks were freed, and its bitmap was not read.
    freed: bool,
    /// Where the last allocation ended.
    next: u32,
    /// No inode below this index is free.
    pub(super) inode_hint: u32,
    /// Its bitmap of inodes is damaged.
    pub(super) inodes_lost: bool,
}

/// Which blocks may be handed out.
#[derive(Debug)]
enum Blocks {
    /// The bitmap was not read yet.
    Unread,
    /// No block of so many: costs no memory, however full a volume is.
    Full(u32),
    Some(Box<Buddy>),
    /// The bitmap is damaged: which blocks are free is not known.
    Lost,
}

impl Group {
    /// Returns a group whose bitmap was not read yet. If it is `full`,
    /// [`Orders`](super::orders::Orders) has it as a group without a free block.
    pub(super) fn unread(full: bool) -> Self {
        let top = (!full).then_some(ORDERS as u32 - 1);
        Self { blocks: Blocks::Unread, top, freed: false, next: 0, inode_hint: 0, inodes_lost: false }
    }

    /// Reads the bitmap from disk, once. If it is damaged, the group is lost: that is noted, and is
    /// no error.
    ///
    /// # Errors
    /// The errors of a journal that has ended.
    pub(super) fn load(&mut self, store: &Store, group: u32) -> Result<()> {
        if !self.is_unread() {
            return Ok(());
        }
        let read = read_desc(store, group).map(|desc| (self.read(store, group, &desc), desc));
        match read {
            Ok((Ok(()), _)) => {}
            Ok((Err(e), desc)) if is_damage(&e) => self.lose(store, &e, desc.free_blocks_count),
            Err(e) if is_damage(&e) => self.lose(store, &e, 0),
            Ok((Err(e), _)) | Err(e) => return Err(e),
        }
        store.alloc.learn(group, self);
        Ok(())
    }

    /// Takes the group out of use. Its descriptor counts `free` blocks as free.
    fn lose(&mut self, store: &Store, e: &Error, free: u32) {
        self.blocks = Blocks::Lost;
        store.alloc.space.lose(free.into());
        store.note_error(e);
    }

    fn read(&mut self, store: &Store, group: u32, desc: &GroupDesc) -> Result<()> {
        let blocks = store.layout().group_blocks(group)?;
        let buddy = if uninit(store, desc, GroupFlags::BLOCK_UNINIT) {
            Buddy::new(&initial_block_bitmap(store, group)?, blocks)
        } else {
            let buffer = read_block_bitmap(store, group, desc)?;
            let map = buffer.read();
            store.zones().check_bitmap(store.layout(), group, &map)?;
            Buddy::new(&map, blocks)
        };
        self.blocks = match buddy.free() {
            0 => Blocks::Full(blocks),
            _ => Blocks::Some(Box::new(buddy)),
        };
        Ok(())
    }

    /// Returns whether its bitmap is damaged.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self.blocks, Blocks::Lost)
    }

    /// Returns whether the bitmap was never read.
    pub(super) fn is_unread(&self) -> bool {
        matches!(self.blocks, Blocks::Unread)
    }

    /// Returns whether the group may have a free run of `order`: by the descriptor, if the bitmap
    /// was never read.
    pub(super) fn may_have(&mut self, store: &Store, group: u32, order: u32) -> Result<bool> {
        if self.is_unread() {
            let top = match read_desc(store, group) {
                Ok(desc) => desc.free_blocks_count.checked_ilog2(),
                Err(e) if is_damage(&e) => {
                    self.lose(store, &e, 0);
                    None
                }
                Err(e) => return Err(e),
            };
            if top < Some(order) {
                store.alloc.orders.set(group, self.top, top);
                self.top = top;
            }
        }
        Ok(self.top >= Some(order))
    }

    /// Returns the largest order with a free run, as it was passed last and as it is now.
    pub(super) fn change_of_top(&mut self) -> (Option<u32>, Option<u32>) {
        let now = match &self.blocks {
            Blocks::Unread if std::mem::take(&mut self.freed) => Some(ORDERS as u32 - 1),
            Blocks::Unread => self.top,
            Blocks::Full(_) | Blocks::Lost => None,
            Blocks::Some(buddy) => buddy.top(),
        };
        (std::mem::replace(&mut self.top, now), now)
    }

    /// Finds up to `want` free blocks that include an aligned run of `order`: from bit `from` of
    /// the group on, then from the start.
    pub(super) fn find(&self, from: u32, want: u32, order: u32) -> Option<Range<u32>> {
        match &self.blocks {
            Blocks::Some(buddy) => buddy.find(from, want, order),
            _ => None,
        }
    }

    /// Returns the free blocks, at most `want`, that begin right at `bit`.
    pub(super) fn find_at(&self, bit: u32, want: u32) -> Range<u32> {
        match &self.blocks {
            Blocks::Some(buddy) => bit..bit + buddy.run_at(bit, want),
            _ => bit..bit,
        }
    }

    /// Marks a run that was found as busy.
    pub(super) fn mark(&mut self, run: Range<u32>) {
        if let Blocks::Some(buddy) = &mut self.blocks {
            buddy.take(run.clone());
            self.next = run.end;
            if buddy.free() == 0 {
                self.blocks = Blocks::Full(buddy.blocks());
            }
        }
    }

    /// Returns the free blocks.
    #[cfg(test)]
    pub(super) fn free(&self) -> u32 {
        match &self.blocks {
            Blocks::Some(buddy) => buddy.free(),
            _ => 0,
        }
    }

    /// Returns all runs of free blocks, in order.
    pub(super) fn free_runs(&self) -> Vec<Range<u32>> {
        match &self.blocks {
            Blocks::Some(buddy) => buddy.runs(),
            _ => Vec::new(),
        }
    }

    /// Returns where to search when the caller has no goal in this group.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// Makes the group `blocks` blocks long; those that come are used. A group whose bitmap was
    /// never read learns its length from it.
    pub(super) fn lengthen(&mut self, blocks: u32) {
        match &mut self.blocks {
            Blocks::Full(before) => *before = blocks.max(*before),
            Blocks::Some(buddy) if buddy.blocks() < blocks => **buddy = buddy.lengthened(blocks),
            Blocks::Some(_) | Blocks::Unread | Blocks::Lost => {}
        }
    }

    /// Frees blocks. A group whose bitmap was never read only notes that it may have free blocks.
    pub(super) fn release(&mut self, bit: u32, len: u32) {
        self.freed = self.is_unread();
        if let Blocks::Full(blocks) = self.blocks {
            self.blocks = Blocks::Some(Box::new(Buddy::full(blocks)));
        }
        if let Blocks::Some(buddy) = &mut self.blocks {
            buddy.release(bit..bit.saturating_add(len));
            self.next = self.next.min(bit);
        }
    }
}

/// Returns whether a structure of the volume broke a rule; other structures may be intact. A
/// failure of the device is no damage: the next attempt may succeed, and the caller gets the error.
pub(super) fn is_damage(e: &Error) -> bool {
    matches!(e, Error::Format(_) | Error::Corrupt(_) | Error::Journal(JournalError::BlockOutOfRange { .. }))
}

/// Returns whether `flag` says that a bitmap was never written. The flags count only with
/// checksums.
pub(super) fn uninit(store: &Store, desc: &GroupDesc, flag: GroupFlags) -> bool {
    store.has_group_checksums() && desc.flags.contains(flag)
}

/// A group's descriptor, checked, with its block held in memory: writing it does no I/O.
#[derive(Debug)]
pub(super) struct HeldDesc {
    pub(super) desc: GroupDesc,
    group: u32,
    buffer: Buffer,
    offset: usize,
}

impl HeldDesc {
    pub(super) fn read(store: &Store, group: u32) -> Result<Self> {
        let (block, offset) = store.layout().desc_location(group)?;
        let (buffer, offset) = (store.journal.read(block)?, offset as usize);
        let desc = store.parse_desc(group, buffer.read().get(offset..).unwrap_or_default())?;
        Ok(Self { desc, group, buffer, offset })
    }

    /// Writes the descriptor. The group's mutex is held.
    pub(super) fn write(&self, txn: &Txn<'_>) -> Result<()> {
        let store = txn.store();
        let mut bytes = txn.write(&self.buffer)?;
        let slot = bytes.get_mut(self.offset..).unwrap_or_default();
        Ok(self.desc.encode(slot, self.group, store.layout(), &store.checksummer)?)
    }
}

/// Returns the descriptor of `group`, checked.
pub(crate) fn read_desc(store: &Store, group: u32) -> Result<GroupDesc> {
    Ok(HeldDesc::read(store, group)?.desc)
}

/// Returns the block bitmap of `group`, its checksum verified once after each load.
pub(super) fn read_block_bitmap(store: &Store, group: u32, desc: &GroupDesc) -> Result<Buffer> {
    let buffer = store.journal.read(desc.block_bitmap)?;
    if !buffer.verified(kind::BLOCK_BITMAP) {
        desc.verify_block_bitmap(&buffer.read(), group, store.layout(), &store.checksummer)?;
        buffer.set_verified(kind::BLOCK_BITMAP);
    }
    Ok(buffer)
}

/// Calls `f`, without a lock, with each run of blocks that are free in the bitmap of `group`.
pub(crate) fn free_runs(store: &Store, group: u32, mut f: impl FnMut(Range<u64>)) -> Result<()> {
    let first = store.layout().group_first_block(group)?;
    let runs = {
        let _state = store.alloc.lock_group(group);
        disk_runs(store, group)?
    };
    for run in runs {
        f(first + u64::from(run.start)..first + u64::from(run.end));
    }
    Ok(())
}

/// Returns the runs of blocks that are free in the bitmap of `group`. The caller holds the group's
/// mutex. With bigalloc a bit is a cluster, which lanefs does not read.
pub(super) fn disk_runs(store: &Store, group: u32) -> Result<Vec<Range<u32>>> {
    if store.layout().cluster_bits() > 0 {
        return Err(Error::NotSupported("free blocks of a volume with bigalloc".into()));
    }
    let desc = read_desc(store, group)?;
    let blocks = store.layout().group_blocks(group)? as usize;
    let map = match uninit(store, &desc, GroupFlags::BLOCK_UNINIT) {
        true => initial_block_bitmap(store, group)?,
        false => read_block_bitmap(store, group, &desc)?.read().to_vec(),
    };
    store.zones().check_bitmap(store.layout(), group, &map)?;
    let mut runs = Vec::new();
    let mut at = 0;
    while let Some(run) = bitmap::next_run(&map, at..blocks, blocks) {
        at = run.end;
        runs.push(run.start as u32..run.end as u32);
    }
    Ok(runs)
}

/// Returns the bitmap of a group in which only fixed metadata is in use.
pub(super) fn initial_block_bitmap(store: &Store, group: u32) -> Result<Vec<u8>> {
    store.zones().initial_bitmap(store.layout(), group)
}
