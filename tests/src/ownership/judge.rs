//! Compares a volume before an operation with the volume after it.

use super::bytes::{Role, Volume};
use lanefs_format::{GroupDesc, bitmap};
use std::collections::BTreeSet;

/// Checks that every block that differs between `before` and `after` belongs to the inodes
/// `owners`, or to no inode.
///
/// # Errors
/// The first block that belongs to another inode.
pub(super) fn judge(before: &[u8], after: &[u8], owners: &BTreeSet<u32>) -> Result<(), String> {
    let (old, new) = (Volume::read(before)?, Volume::read(after)?);
    if !old.sb.same_volume(&new.sb) {
        return Err("the superblock tells of another volume".to_owned());
    }
    let mut owned: BTreeSet<u64> = owners.iter().flat_map(|ino| old.blocks_of(*ino)).collect();
    owned.extend(old.blocks_of(old.sb.raw().s_orphan_file_inum.get()));
    let judge = Judge { old, new, owners, owned };
    let size = judge.old.layout.block_size() as usize;
    let blocks = (0..).zip(before.chunks(size).zip(after.chunks(size)));
    for (block, (old, new)) in blocks.filter(|(_, (old, new))| old != new) {
        judge.block(block, old, new).map_err(|said| format!("block {block}: {said}"))?;
    }
    Ok(())
}

struct Judge<'b> {
    old: Volume<'b>,
    new: Volume<'b>,
    owners: &'b BTreeSet<u32>,
    /// Blocks of the owners before the operation.
    owned: BTreeSet<u64>,
}

impl Judge<'_> {
    fn block(&self, block: u64, old: &[u8], new: &[u8]) -> Result<(), String> {
        match self.old.role(block) {
            Some(Role::Super | Role::Log) => Ok(()),
            Some(Role::Copy(group)) => {
                Err(format!("a copy of the superblock or its descriptors in group {group}"))
            }
            Some(Role::Descriptors(n)) => self.descriptors(n),
            Some(Role::BlockBitmap(group)) => self.block_bitmap(group, old, new),
            Some(Role::InodeBitmap(group)) => self.inode_bitmap(group, old, new),
            Some(Role::Table(group, n)) => self.table(group, n, old, new),
            None if self.old.is_free(block) || self.owned.contains(&block) => Ok(()),
            None if self.is_shared(block, old, new) => Ok(()),
            None => Err("it is of none of the inodes of the operation, and was not free".to_owned()),
        }
    }

    /// Returns whether `block` holds attributes that an owner now shares with others: of the
    /// content only the count of users has changed, and the checksum.
    fn is_shared(&self, block: u64, old: &[u8], new: &[u8]) -> bool {
        let counted = |bytes: &[u8]| [&bytes[..4], &bytes[8..16], &bytes[20..]].concat();
        let uses = |ino: &u32| self.new.attributes_of(*ino) == Some(block);
        self.owners.iter().any(uses) && counted(old) == counted(new)
    }

    /// A descriptor changes with a bitmap of its group, and what it leads to never.
    fn descriptors(&self, n: u32) -> Result<(), String> {
        let per_block = self.old.layout.descs_per_block();
        for group in n * per_block..((n + 1) * per_block).min(self.old.layout.group_count()) {
            let (old, new) = (&self.old.groups[group as usize], &self.new.groups[group as usize]);
            let places = |desc: &GroupDesc| [desc.block_bitmap, desc.inode_bitmap, desc.inode_table];
            if places(old) != places(new) {
                return Err(format!("the descriptor of group {group} leads to other places"));
            }
            let bitmaps = [old.block_bitmap, old.inode_bitmap];
            let same = bitmaps.iter().all(|map| self.old.block(*map) == self.new.block(*map));
            // An inode that was taken and given back has been in use since.
            let since = GroupDesc { itable_unused: new.itable_unused, flags: new.flags, ..*old };
            if same && since != *new {
                return Err(format!(
                    "the descriptor of group {group}, whose bitmaps are as before: {old:?}, {new:?}"
                ));
            }
        }
        Ok(())
    }

    fn block_bitmap(&self, group: u32, old: &[u8], new: &[u8]) -> Result<(), String> {
        let first = self.old.layout.group_first_block(group).map_err(|e| e.to_string())?;
        for bit in 0..self.old.layout.clusters_per_group() as usize {
            let block = first + bit as u64;
            let freed = bitmap::test(old, bit) && !bitmap::test(new, bit);
            if freed && !self.old.is_free(block) && !self.owned.contains(&block) {
                return Err(format!(
                    "it frees block {block}, which is of none of the inodes of the operation"
                ));
            }
        }
        Ok(())
    }

    fn inode_bitmap(&self, group: u32, old: &[u8], new: &[u8]) -> Result<(), String> {
        for bit in 0..self.old.layout.inodes_per_group() {
            let ino = group * self.old.layout.inodes_per_group() + bit + 1;
            if bitmap::test(old, bit as usize) != bitmap::test(new, bit as usize) {
                self.inode(ino)?;
            }
        }
        Ok(())
    }

    fn table(&self, group: u32, n: u32, old: &[u8], new: &[u8]) -> Result<(), String> {
        let (size, per_block) =
            (usize::from(self.old.layout.inode_size()), self.old.layout.inodes_per_block());
        let first = group * self.old.layout.inodes_per_group() + n * per_block + 1;
        let slots = (first..).zip(old.chunks_exact(size).zip(new.chunks_exact(size)));
        slots.filter(|(_, (old, new))| old != new).try_for_each(|(ino, _)| self.inode(ino))
    }

    fn inode(&self, ino: u32) -> Result<(), String> {
        if self.owners.contains(&ino) || self.old.is_unused(ino) {
            return Ok(());
        }
        Err(format!("inode {ino}, not one of {:?}, and in use", self.owners))
    }
}
