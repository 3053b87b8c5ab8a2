//! The slots of a group's inode table: which of them hold an inode.
//!
//! On a volume with checksums of groups a descriptor says how many slots at the end of its table
//! were never in use (`bg_itable_unused`, INODE_UNINIT). They may never have been written, and are
//! not read. Any other slot is read before an inode is put there: a bitmap may be wrong.

use crate::error::{Corrupt, Result};
use lanefs_format::{GroupDesc, GroupFlags, InodeSlot, InodeUse, Layout};

/// The slots of one group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slots<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) desc: GroupDesc,
    /// The volume has checksums of groups.
    pub(crate) checksums: bool,
}

impl Slots<'_> {
    /// Returns how many slots may hold an inode; the others were never in use.
    pub(crate) fn used(&self) -> u32 {
        let per_group = self.layout.inodes_per_group();
        let unused = match self.checksums {
            true if self.desc.flags.contains(GroupFlags::INODE_UNINIT) => per_group,
            true => self.desc.itable_unused,
            false => 0,
        };
        per_group.saturating_sub(unused)
    }

    /// Returns whether the block with slot `index` never held an inode. It starts as zeros,
    /// whatever its content on the device is.
    pub(crate) fn is_fresh(&self, index: u32) -> bool {
        index - index % self.layout.inodes_per_block() >= self.used()
    }

    /// Checks that all inodes that were never in use are free: they are allocated without reading
    /// them.
    ///
    /// # Errors
    /// [`Corrupt::UnusedInodes`].
    pub(crate) fn check_counts(&self, group: u32) -> Result<()> {
        let unused = self.layout.inodes_per_group().saturating_sub(self.used());
        let free = self.desc.free_inodes_count;
        if unused > free { Err(Corrupt::UnusedInodes { group, unused, free }.into()) } else { Ok(()) }
    }

    /// Checks that inode `ino` of the group, which is free in the bitmap, is free in the table too.
    /// `read` reads its slot, and is not called for one that was never in use.
    ///
    /// # Errors
    /// [`Corrupt::InodeInUse`]: the bitmap is wrong. Those of `read`.
    pub(crate) fn check_free(&self, ino: u32, read: impl FnOnce() -> Result<InodeUse>) -> Result<()> {
        let InodeSlot { group, index, .. } = self.layout.inode_slot(ino)?;
        if index >= self.used() {
            return Ok(());
        }
        match read()? {
            // A deleted inode has a deletion time, and one that was never in use is all zeros.
            InodeUse { mode, links, dtime } if links != 0 || mode != 0 && dtime == 0 => {
                Err(Corrupt::InodeInUse { ino, group, mode, links }.into())
            }
            _ => Ok(()),
        }
    }
}
