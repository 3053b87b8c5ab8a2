//! A volume as its bytes say, read without the engine: the role of each block, and the blocks of
//! each inode.

use lanefs_format::extent::{At, NodeRef};
use lanefs_format::{
    Checksummer, GroupDesc, GroupFlags, Inode, InodeFlags, InodeUse, Layout, Superblock, bitmap,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The kind of fixed metadata in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The superblock that is in use.
    Super,
    /// The block of that number of the descriptors that are in use.
    Descriptors(u32),
    /// Copies of superblock and descriptors, and space kept for more of them.
    Copy(u32),
    BlockBitmap(u32),
    InodeBitmap(u32),
    /// A block of the table of a group.
    Table(u32, u32),
    Log,
}

/// The bytes of a volume that lanefs has opened for writing.
pub(super) struct Volume<'b> {
    bytes: &'b [u8],
    pub(super) sb: Superblock,
    pub(super) layout: Layout,
    pub(super) groups: Vec<GroupDesc>,
    roles: BTreeMap<u64, Role>,
}

impl<'b> Volume<'b> {
    /// Reads superblock and descriptors.
    ///
    /// # Errors
    /// One of them is damaged: such a volume is not opened.
    pub(super) fn read(bytes: &'b [u8]) -> Result<Self, String> {
        let sb = Superblock::parse(&bytes[1024..2048]).map_err(|e| e.to_string())?;
        let layout = sb.layout();
        let mut this = Self { bytes, layout, groups: Vec::new(), roles: BTreeMap::new(), sb };
        for group in 0..layout.group_count() {
            let desc = this.desc(group, &this.sb.checksummer())?;
            this.groups.push(desc);
        }
        this.find_roles();
        Ok(this)
    }

    fn desc(&self, group: u32, csum: &Checksummer) -> Result<GroupDesc, String> {
        let (block, offset) = self.layout.desc_location(group).map_err(|e| e.to_string())?;
        let bytes = self.block(block).and_then(|b| b.get(offset as usize..)).unwrap_or_default();
        GroupDesc::parse(bytes, group, &self.layout, csum).map_err(|e| e.to_string())
    }

    fn find_roles(&mut self) {
        let layout = self.layout;
        for group in 0..layout.group_count() {
            let first = layout.group_first_block(group).unwrap_or_default();
            let copies = first..first + u64::from(layout.group_base_meta(group));
            self.roles.extend(copies.map(|block| (block, Role::Copy(group))));
        }
        for n in 0..layout.desc_blocks() {
            self.roles.insert(layout.desc_block(n).unwrap_or_default(), Role::Descriptors(n));
        }
        self.roles.insert(1024 / u64::from(layout.block_size()), Role::Super);
        let log = self.blocks_of(self.sb.raw().s_journal_inum.get());
        self.roles.extend(log.into_iter().map(|block| (block, Role::Log)));
        for (group, desc) in (0..).zip(&self.groups) {
            self.roles.insert(desc.block_bitmap, Role::BlockBitmap(group));
            self.roles.insert(desc.inode_bitmap, Role::InodeBitmap(group));
            for n in 0..layout.inode_table_blocks() {
                self.roles.insert(desc.inode_table + u64::from(n), Role::Table(group, n));
            }
        }
    }

    pub(super) fn role(&self, block: u64) -> Option<Role> {
        self.roles.get(&block).copied()
    }

    pub(super) fn block(&self, block: u64) -> Option<&'b [u8]> {
        let size = u64::from(self.layout.block_size());
        let at = usize::try_from(block.checked_mul(size)?).ok()?;
        self.bytes.get(at..at.checked_add(size as usize)?)
    }

    /// Returns whether the bitmap has `block` as free.
    pub(super) fn is_free(&self, block: u64) -> bool {
        let Ok((group, bit)) = self.layout.group_of_block(block) else { return false };
        let desc = &self.groups[group as usize];
        desc.flags.contains(GroupFlags::BLOCK_UNINIT)
            || self.block(desc.block_bitmap).is_some_and(|map| !bitmap::test(map, bit as usize))
    }

    /// Returns whether nothing says that `ino` is in use: neither the bitmap nor its slot.
    pub(super) fn is_unused(&self, ino: u32) -> bool {
        let Ok(slot) = self.layout.inode_slot(ino) else { return false };
        let desc = &self.groups[slot.group as usize];
        let bit = ((ino - 1) % self.layout.inodes_per_group()) as usize;
        let marked = self.block(desc.inode_bitmap).is_none_or(|map| bitmap::test(map, bit));
        if desc.flags.contains(GroupFlags::INODE_UNINIT) {
            return true;
        }
        !marked
            && self.slot(ino).and_then(|slot| InodeUse::of(slot).ok()).is_none_or(|fields| fields.links == 0)
    }

    /// The slot of `ino` in its table.
    pub(super) fn slot(&self, ino: u32) -> Option<&'b [u8]> {
        let slot = self.layout.inode_slot(ino).ok()?;
        let table = self.groups.get(slot.group as usize)?.inode_table;
        let at = slot.offset as usize;
        self.block(table + u64::from(slot.table_block))?.get(at..at + usize::from(self.layout.inode_size()))
    }

    fn inode(&self, ino: u32) -> Option<Inode> {
        Inode::parse(self.slot(ino)?, ino, &self.sb.inode_context()).ok()
    }

    /// The block of attributes of inode `ino`.
    pub(super) fn attributes_of(&self, ino: u32) -> Option<u64> {
        self.inode(ino).map(|inode| inode.file_acl).filter(|block| *block != 0)
    }

    fn has_target_block(&self, inode: &Inode) -> bool {
        inode.is_symlink() && inode.fast_symlink(&self.sb.inode_context()).is_none()
    }

    /// Every block that inode `ino` says is its own: content, map and attributes.
    pub(super) fn blocks_of(&self, ino: u32) -> BTreeSet<u64> {
        let mut found = BTreeSet::new();
        let Some(inode) = self.inode(ino) else { return found };
        found.extend(Some(inode.file_acl).filter(|block| *block != 0));
        if inode.flags.contains(InodeFlags::EXTENTS) {
            self.extents(&inode.i_block, ino, &mut found);
        } else if inode.is_dir() || inode.is_regular() || self.has_target_block(&inode) {
            self.pointers(&inode.i_block[..48], 0, &mut found);
            for level in 1..=3 {
                let at = 44 + level * 4;
                self.pointers(&inode.i_block[at..at + 4], level, &mut found);
            }
        }
        found
    }

    fn extents(&self, node: &[u8], ino: u32, found: &mut BTreeSet<u64>) {
        let Ok(node) = NodeRef::new(node, At { ino, block: 0 }) else { return };
        for entry in node.entries {
            if node.eh_depth == 0 {
                let extent = entry.extent();
                found.extend(self.inside(extent.ee_start..extent.ee_start + u64::from(extent.len)));
            } else {
                let child = entry.index().ei_leaf;
                // A node that is its own child ends here.
                if let Some(bytes) = self.block(child).filter(|_| found.insert(child)) {
                    self.extents(bytes, ino, found);
                }
            }
        }
    }

    fn pointers(&self, pointers: &[u8], level: usize, found: &mut BTreeSet<u64>) {
        for pointer in pointers.chunks_exact(4) {
            let block = u64::from(u32::from_le_bytes(pointer.try_into().unwrap_or_default()));
            let inside = self.inside(block..block + 1);
            if block == 0 || inside.is_empty() || !found.insert(block) || level == 0 {
                continue;
            }
            if let Some(bytes) = self.block(block) {
                self.pointers(bytes, level - 1, found);
            }
        }
    }

    fn inside(&self, blocks: Range<u64>) -> Range<u64> {
        let end = self.layout.blocks_count();
        blocks.start.min(end)..blocks.end.min(end)
    }
}
