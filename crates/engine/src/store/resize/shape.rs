//! The superblock of a volume of another size.
//!
//! Growth goes through up to two shapes:
//!
//! 1. While reserved descriptor blocks are left, the table of descriptors grows into them. The
//!    resize inode names the rest.
//! 2. Then new descriptors lie in the groups that they describe (`meta_bg`), without a resize
//!    inode. That begins early where 32 bits no longer hold the number of a backup's block, or
//!    where the log is too small for the resize inode's map.

use super::step::super_place;
use crate::error::{ResizeError, Result};
use lanefs_format::{Compat, Incompat, RawSuperblock, Superblock};

/// Blocks that a last group must have besides its own structures, as mke2fs and resize2fs want it.
const ROOM_FOR_FILES: u32 = 50;

/// Returns the superblock for `blocks` blocks, all but the free counts, which the caller sets. The
/// resize inode stays only if `keep_reserve`.
///
/// # Errors
/// A size that block or inode numbers do not reach.
pub(super) fn with_blocks(old: &Superblock, blocks: u64, keep_reserve: bool) -> Result<Superblock> {
    let before = old.layout();
    check_width(old, blocks)?;
    let first = before.first_data_block();
    let (per_group, ipg) = (u64::from(before.blocks_per_group()), before.inodes_per_group());
    let groups = blocks.saturating_sub(first).div_ceil(per_group);
    let most = u64::from(u32::MAX / ipg);
    if groups > most {
        let max = first + most * per_group;
        return Err(ResizeError::TooManyInodes { blocks, per_group: ipg, max }.into());
    }
    if groups == 0 {
        let (what, block) = ("the superblock", super_place(old).0);
        return Err(ResizeError::Immovable { blocks, what, block }.into());
    }
    let mut raw = old.raw().clone();
    (raw.s_free_blocks_count_lo, raw.s_free_blocks_count_hi) = (0.into(), 0.into());
    raw.s_free_inodes_count = 0.into();
    let (low, high) = halves(blocks);
    (raw.s_blocks_count_lo, raw.s_blocks_count_hi) = (low.into(), high.into());
    raw.s_inodes_count = (groups as u32 * ipg).into();
    let reserved = u128::from(old.reserved_blocks_count()) * u128::from(blocks);
    let (low, high) = halves((reserved / u128::from(old.blocks_count())) as u64);
    (raw.s_r_blocks_count_lo, raw.s_r_blocks_count_hi) = (low.into(), high.into());
    let keep_reserve = keep_reserve && blocks <= u64::from(u32::MAX);
    place_descriptors(old, &mut raw, groups as u32, keep_reserve);
    move_last_backup(old, &mut raw, groups as u32 - 1);
    let new = Superblock::from_raw(raw.clone())?;
    if raw.s_overhead_clusters != 0 {
        let overhead = u64::from(raw.s_overhead_clusters.get()) + new.layout().overhead();
        raw.s_overhead_clusters = (overhead.saturating_sub(before.overhead()) as u32).into();
    }
    Ok(Superblock::from_raw(raw)?)
}

fn halves(n: u64) -> (u32, u32) {
    (n as u32, (n >> 32) as u32)
}

fn check_width(old: &Superblock, blocks: u64) -> Result<()> {
    let max = u64::from(u32::MAX);
    if blocks > max && !old.has_in(Incompat::BIT64) {
        return Err(ResizeError::Needs64Bit { blocks, max }.into());
    }
    Ok(())
}

/// Decides where the descriptors of `groups` groups lie.
fn place_descriptors(old: &Superblock, raw: &mut RawSuperblock, groups: u32, keep_reserve: bool) {
    let before = old.layout();
    let (have, need) = (before.desc_blocks(), groups.div_ceil(before.descs_per_block()));
    if old.has_in(Incompat::META_BG) {
        raw.s_first_meta_bg = raw.s_first_meta_bg.get().min(need).into();
        return;
    }
    let reserve = u32::from(raw.s_reserved_gdt_blocks.get());
    let resize_inode = old.has(Compat::RESIZE_INODE);
    let more = need.saturating_sub(have);
    if resize_inode && more <= reserve && keep_reserve {
        // An indirect block has room for so many.
        let most = old.block_size() / 4;
        raw.s_reserved_gdt_blocks = ((reserve + have.saturating_sub(need)).min(most) as u16).into();
        if more > 0 {
            raw.s_reserved_gdt_blocks = ((reserve - more) as u16).into();
        }
    } else if resize_inode || more > 0 {
        raw.s_first_meta_bg = have.min(need).into();
        raw.s_feature_incompat = (raw.s_feature_incompat.get() | Incompat::META_BG.bits()).into();
        raw.s_feature_compat = (raw.s_feature_compat.get() & !Compat::RESIZE_INODE.bits()).into();
        raw.s_reserved_gdt_blocks = 0.into();
        // Revision 0 has no features.
        raw.s_first_ino = old.first_ino().into();
        raw.s_inode_size = old.inode_size().into();
        raw.s_rev_level = 1.into();
    }
}

/// Keeps the second backup of `sparse_super2` in the last group. With `meta_bg` it stays where it
/// is, because the place of a descriptor block depends on it.
fn move_last_backup(old: &Superblock, raw: &mut RawSuperblock, last: u32) {
    let meta_bg = raw.s_feature_incompat.get() & Incompat::META_BG.bits() != 0;
    let was = old.layout().group_count() - 1;
    if !old.has(Compat::SPARSE_SUPER2) || meta_bg || last == was || was == 0 {
        return;
    }
    let [first, second] = raw.s_backup_bgs.map(|group| group.get());
    if last < was {
        // There may be no room for a copy in the new last group.
        raw.s_backup_bgs = [first, second].map(|group| if group > last { 0 } else { group }.into());
        return;
    }
    let moved = match (first, second) {
        // Of two groups: the second one keeps its copy.
        (1, 0) | (0, 1) if was == 1 => [1, last],
        (first, second) if second == was => [first, last],
        (first, second) if first == was => [last, second],
        as_it_is => as_it_is.into(),
    };
    raw.s_backup_bgs = moved.map(Into::into);
}

/// Returns how far towards `to` blocks one step may go: the reserved descriptor blocks are used up
/// before the volume changes to `meta_bg`.
pub(super) fn reach(old: &Superblock, to: u64) -> u64 {
    if old.has_in(Incompat::META_BG) || !old.has(Compat::RESIZE_INODE) {
        return to;
    }
    let layout = old.layout();
    let (first, per_group) = (layout.first_data_block(), u64::from(layout.blocks_per_group()));
    let desc_blocks = u64::from(layout.desc_blocks()) + u64::from(layout.group_reserved_gdt(0));
    let groups = desc_blocks * u64::from(layout.descs_per_block());
    let cap = first + groups.min((u64::from(u32::MAX) - first) / per_group) * per_group;
    if cap > layout.blocks_count() { to.min(cap) } else { to }
}

/// Returns the largest size up to `wanted` blocks at which the last group, if it is not that of
/// now, has room for its own structures and some files.
///
/// # Errors
/// The errors of [`with_blocks`].
pub(super) fn fit(old: &Superblock, wanted: u64) -> Result<u64> {
    let before = old.layout();
    let mut blocks = wanted;
    loop {
        let mut sb =
            if blocks < before.blocks_count() { with_blocks(old, blocks, true)? } else { old.clone() };
        while sb.blocks_count() < blocks {
            sb = with_blocks(&sb, reach(&sb, blocks), true)?;
        }
        let layout = sb.layout();
        let last = layout.group_count() - 1;
        let len = layout.group_blocks(last)?;
        let own = layout.group_base_meta(last) + 2 + layout.inode_table_blocks() + ROOM_FOR_FILES;
        let as_before = last + 1 == before.group_count() && blocks >= before.blocks_count();
        if as_before || last == 0 || len == layout.blocks_per_group() || len >= own {
            return Ok(blocks);
        }
        blocks -= u64::from(len);
    }
}
