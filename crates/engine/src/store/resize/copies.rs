//! The backups of superblock and descriptors.
//!
//! They are written in place, behind the commit of a step and before its superblock may be written
//! in place (see [`super`]).

use super::Blocks;
use super::step::encode_table;
use crate::error::Result;
use lanefs_format::{GroupDesc, SUPERBLOCK_SIZE, State, Superblock};

/// Writes all backups of the volume that `sb` and `groups` describe.
///
/// # Errors
/// The device's.
pub(super) fn write(device: &Blocks, sb: &Superblock, groups: &[GroupDesc]) -> Result<()> {
    write_grown(device, (sb, groups), 0)
}

/// Writes the backups of a volume that had `before` groups and has grown: all of the superblock,
/// and of descriptors those blocks that are not in an old backup already.
///
/// # Errors
/// The device's.
pub(super) fn write_grown(
    device: &Blocks,
    (sb, groups): (&Superblock, &[GroupDesc]),
    before: u32,
) -> Result<()> {
    let layout = sb.layout();
    let (size, per_block) = (layout.block_size() as usize, layout.descs_per_block());
    let mut backup = sb.clone();
    // Before a program uses a backup, it should check the volume.
    backup.set_state(backup.state() - State::VALID_FS);
    backup.set_recover(false);
    backup.set_orphan_present(false);
    let first_meta_bg = match sb.has_in(lanefs_format::Incompat::META_BG) {
        true => sb.raw().s_first_meta_bg.get(),
        false => u32::MAX,
    };
    let first_new = before.saturating_sub(1) / per_block;
    for group in 1..layout.group_count() {
        let copy = layout.super_location(group);
        if let Some(block) = copy {
            let mut bytes = vec![0; size];
            if let Some(head) = bytes.get_mut(..SUPERBLOCK_SIZE) {
                head.copy_from_slice(&backup.encode_backup(group));
            }
            device.write(block, &bytes)?;
        }
        let count = layout.group_desc_blocks(group);
        let n = group / per_block;
        let tables = match n >= first_meta_bg {
            // The first group of those that a block describes has no backup of it.
            true if group.is_multiple_of(per_block) => continue,
            true => n..n + count,
            false => 0..count,
        };
        let mut at = copy.map_or(layout.group_first_block(group)?, |block| block + 1);
        let kept = if group < before { tables.start.max(first_new).min(tables.end) } else { tables.start };
        at += u64::from(kept - tables.start);
        let tables = kept..tables.end;
        if tables.is_empty() {
            continue;
        }
        let mut bytes = vec![0; tables.len() * size];
        for (n, table) in tables.zip(bytes.chunks_exact_mut(size)) {
            encode_table(sb, groups, n, table)?;
        }
        device.write(at, &bytes)?;
    }
    Ok(())
}

/// Writes zeros where the backups of new groups will be, those from `before` on. A file of holes
/// gets its blocks so, or the growth fails while the volume is unchanged.
///
/// # Errors
/// The device's.
pub(super) fn allocate(device: &Blocks, sb: &Superblock, before: u32) -> Result<()> {
    let layout = sb.layout();
    for group in before..layout.group_count() {
        let copies = u32::from(layout.has_super(group)) + layout.group_desc_blocks(group);
        if copies > 0 {
            let zeros = vec![0; copies as usize * layout.block_size() as usize];
            device.write(layout.group_first_block(group)?, &zeros)?;
        }
    }
    Ok(())
}
