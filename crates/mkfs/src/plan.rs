//! The plan of a volume, made before anything is written: the blocks in use, every group
//! descriptor, and the content of the few blocks that are not zero.
//!
//! Structures are placed in the order of mke2fs, because each takes the first free space that the
//! earlier ones left.

use crate::space::Space;
use crate::{MkfsError, Options, PlannedDevice, shape};
use lanefs_format::{
    Checksummer, Compat, GroupDesc, GroupFlags, Inode, InodeContext, Layout, RoCompat, Superblock, Timestamp,
};
use std::collections::BTreeMap;
use std::ops::Range;

/// Returns room for the descriptors of all groups, if there is memory for what else a volume of so
/// many takes: a copy of them, and their table.
fn groups(layout: &Layout) -> Result<Vec<GroupDesc>, MkfsError> {
    let count = layout.group_count() as usize;
    let table = layout.desc_blocks() as usize * layout.block_size() as usize;
    let no_memory = |_| MkfsError::NoMemory { groups: layout.group_count() };
    let mut groups = Vec::new();
    groups.try_reserve_exact(count).map_err(no_memory)?;
    let all = (2 * count * size_of::<GroupDesc>()).saturating_add(table);
    let mut rest = Vec::<u8>::new();
    rest.try_reserve_exact(all).map_err(no_memory)?;
    // Not to be taken for nothing by the optimizer.
    std::hint::black_box(&rest);
    Ok(groups)
}

/// A volume to be written.
pub(crate) struct Plan {
    pub(crate) superblock: Superblock,
    pub(crate) layout: Layout,
    pub(crate) csum: Checksummer,
    pub(crate) ctx: InodeContext,
    pub(crate) now: Timestamp,
    pub(crate) space: Space,
    pub(crate) groups: Vec<GroupDesc>,
    pub(crate) inodes: BTreeMap<u32, Inode>,
    /// Content of blocks, by number. Blocks of inode tables are not here.
    pub(crate) content: BTreeMap<u64, Vec<u8>>,
    /// Blocks that must be zero though nothing is written to them: the journal's.
    pub(crate) zero: Vec<Range<u64>>,
    pub(crate) journal_blocks: u32,
}

impl Plan {
    /// Plans a volume on a device.
    pub(crate) fn new(device: PlannedDevice, options: &Options) -> Result<Self, MkfsError> {
        let superblock = shape::shape(device, options)?;
        let layout = superblock.layout();
        let mut plan = Self {
            layout,
            csum: superblock.checksummer(),
            ctx: superblock.inode_context(),
            now: Timestamp::from_sec(superblock.times()[2] as i64),
            space: Space::new(layout.first_data_block()..layout.blocks_count()),
            groups: groups(&layout)?,
            inodes: BTreeMap::new(),
            content: BTreeMap::new(),
            zero: Vec::new(),
            journal_blocks: 0,
            superblock,
        };
        plan.make_groups()?;
        plan.place_tables()?;
        plan.make_tree(options.root_owner)?;
        plan.make_resize_inode()?;
        plan.make_journal(options)?;
        plan.make_mmp(options)?;
        plan.make_orphan_file()?;
        plan.settle()?;
        Ok(plan)
    }

    /// Returns whether descriptors have checksums, and with them the flags of what is
    /// uninitialised.
    pub(crate) fn has_desc_csum(&self) -> bool {
        let ro = self.superblock.features().ro_compat;
        ro.intersects(RoCompat::METADATA_CSUM | RoCompat::GDT_CSUM)
    }

    /// Returns the number of blocks of a group's own bitmaps and inode table.
    pub(crate) fn table_blocks(&self) -> u32 {
        2 + self.layout.inode_table_blocks()
    }

    /// Descriptors of empty groups; copies of superblock and descriptors are taken.
    fn make_groups(&mut self) -> Result<(), MkfsError> {
        let csum = self.has_desc_csum();
        let layout = self.layout;
        let last = layout.group_count() - 1;
        for group in 0..=last {
            let first = layout.group_first_block(group)?;
            let base = layout.group_base_meta(group);
            self.space.take(first..first + u64::from(base));
            let mut desc = GroupDesc {
                free_blocks_count: layout.group_blocks(group)?.saturating_sub(base),
                free_inodes_count: layout.inodes_per_group(),
                flags: GroupFlags::INODE_ZEROED,
                ..GroupDesc::default()
            };
            if csum {
                desc.flags |= GroupFlags::INODE_UNINIT;
                // The last bitmap always exists: its end is padded.
                desc.flags.set(GroupFlags::BLOCK_UNINIT, group != last);
                desc.itable_unused = layout.inodes_per_group();
            }
            self.groups.push(desc);
        }
        Ok(())
    }

    /// Takes free blocks, and has the groups they lie in know it.
    pub(crate) fn take(&mut self, range: Range<u64>) -> Result<(), MkfsError> {
        self.space.take(range.clone());
        let mut at = range.start;
        while at < range.end {
            let (group, _) = self.layout.group_of_block(at)?;
            let first = self.layout.group_first_block(group)?;
            let end = range.end.min(first + u64::from(self.layout.group_blocks(group)?));
            if let Some(desc) = self.groups.get_mut(group as usize) {
                desc.free_blocks_count = desc.free_blocks_count.saturating_sub((end - at) as u32);
                desc.flags.remove(GroupFlags::BLOCK_UNINIT);
            }
            at = end;
        }
        Ok(())
    }

    /// Takes the first free block at or behind `goal`, or else the first of the volume.
    pub(crate) fn take_block(&mut self, goal: u64, what: &'static str) -> Result<u64, MkfsError> {
        let run = self.space.next_run_wrapped(goal).ok_or(MkfsError::NoSpace(what))?;
        self.take(run.start..run.start + 1)?;
        Ok(run.start)
    }

    /// Returns where to look for the first block of an inode's data: at its flex group.
    pub(crate) fn goal(&self, ino: u32) -> Result<u64, MkfsError> {
        let group = self.layout.inode_slot(ino)?.group;
        let flex = self.layout.groups_per_flex();
        Ok(self.layout.group_first_block(group / flex * flex)?)
    }

    /// Puts an inode into use.
    pub(crate) fn add_inode(&mut self, inode: Inode) -> Result<(), MkfsError> {
        let slot = self.layout.inode_slot(inode.ino)?;
        let csum = self.has_desc_csum();
        let left = self.layout.inodes_per_group() - slot.index - 1;
        if let Some(desc) = self.groups.get_mut(slot.group as usize) {
            desc.free_inodes_count = desc.free_inodes_count.saturating_sub(1);
            desc.flags.remove(GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT);
            if csum {
                desc.itable_unused = desc.itable_unused.min(left);
            }
            desc.used_dirs_count += u32::from(inode.is_dir());
        }
        self.inodes.insert(inode.ino, inode);
        Ok(())
    }

    /// Returns a new inode with all times now.
    pub(crate) fn new_inode(&self, ino: u32, mode: u16, links_count: u16) -> Inode {
        let mut inode = Inode::new(ino, mode, &self.ctx);
        inode.links_count = links_count;
        (inode.atime, inode.ctime, inode.mtime, inode.crtime) = (self.now, self.now, self.now, self.now);
        inode
    }

    /// Returns a block of zeros.
    pub(crate) fn zero_block(&self) -> Vec<u8> {
        vec![0; self.layout.block_size() as usize]
    }

    /// Sums up the free blocks and inodes of the groups.
    fn settle(&mut self) -> Result<(), MkfsError> {
        let blocks = self.groups.iter().map(|d| u64::from(d.free_blocks_count)).sum();
        let inodes: u32 = self.groups.iter().map(|d| d.free_inodes_count).sum();
        let journal = match self.superblock.has(Compat::HAS_JOURNAL) {
            true => u64::from(self.journal_blocks),
            false => 0,
        };
        let mut raw = self.superblock.raw().clone();
        raw.s_overhead_clusters = ((self.layout.overhead() + journal) as u32).into();
        self.superblock = Superblock::from_raw(raw)?;
        self.superblock.set_free_blocks_count(blocks);
        self.superblock.set_free_inodes_count(inodes);
        Ok(())
    }

    /// Changes fields of the superblock that were open until now.
    pub(crate) fn edit_superblock(
        &mut self,
        edit: impl FnOnce(&mut lanefs_format::RawSuperblock),
    ) -> Result<(), MkfsError> {
        let mut raw = self.superblock.raw().clone();
        edit(&mut raw);
        self.superblock = Superblock::from_raw(raw)?;
        Ok(())
    }
}
