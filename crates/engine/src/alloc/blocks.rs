//! Taking and freeing blocks on disk, under a handle.
//!
//! [`take_reserved`] marks blocks that were chosen in core; [`free_blocks`] clears them on disk, and
//! the journal's commit gives them back in core.

use super::Reserved;
use super::group::{initial_block_bitmap, read_block_bitmap, read_desc, uninit};
use crate::error::{Corrupt, Result};
use crate::txn::Txn;
use crate::volume::Fs;
use lanefs_format::{GroupFlags, bitmap};
use std::sync::atomic::Ordering::Relaxed;

/// What a freed block held: metadata must be revoked, so that no old log copy is replayed over
/// what comes after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockKind {
    Data,
    Metadata,
}

/// Marks reserved blocks as used on disk, under the handle of `txn`. At most 2 credits a group.
pub(crate) fn take_reserved(txn: &mut Txn<'_>, mut reserved: Reserved) -> Result<()> {
    let fs = txn.fs();
    for_each_group(fs, reserved.start(), reserved.len(), |group, bits, _| {
        let Some(_state) = fs.alloc.lock_group(group) else { return Ok(()) };
        let n = bits.len() as u32;
        change_bitmap(txn, group, bits, true)?;
        // On disk now: no longer given back by the drop.
        reserved.used(n);
        Ok(())
    })
}

/// Frees blocks on disk, under the handle of `txn`. They are handed out again after the commit.
///
/// # Errors
/// A range outside of the data blocks, or with a block that is free already: nothing is changed
/// in that group.
pub(crate) fn free_blocks(txn: &mut Txn<'_>, start: u64, len: u32, kind: BlockKind) -> Result<()> {
    let fs = txn.fs();
    fs.check_data_range(start, u64::from(len))?;
    for_each_group(fs, start, len, |group, bits, first| {
        let Some(mut state) = fs.alloc.lock_group(group) else { return Ok(()) };
        // The busy map must have the blocks before the disk's map loses them.
        state.load(fs, group)?;
        if state.is_lost() {
            // They stay used, for nobody knows what else is.
            return Ok(());
        }
        change_bitmap(txn, group, bits.clone(), false)?;
        drop(state);
        fs.alloc.freeing.fetch_add(bits.len() as u64, Relaxed);
        txn.freed(first, bits.len() as u64, kind)
    })
}

/// Cuts a range of blocks at group borders: group, bits in it, first block.
fn for_each_group(
    fs: &Fs,
    start: u64,
    len: u32,
    mut f: impl FnMut(u32, std::ops::Range<usize>, u64) -> Result<()>,
) -> Result<()> {
    let mut at = start;
    let end = start.saturating_add(u64::from(len));
    while at < end {
        let (group, bit) = fs.layout.group_of_block(at)?;
        let n = u64::from(fs.layout.group_blocks(group)? - bit).min(end - at);
        let bit = bit as usize;
        f(group, bit..bit + n as usize, at)?;
        at += n;
    }
    Ok(())
}

/// Sets or clears `bits` on disk and brings the descriptor's count and checksums along. The
/// group's mutex is held.
fn change_bitmap(txn: &mut Txn<'_>, group: u32, bits: std::ops::Range<usize>, used: bool) -> Result<()> {
    let fs = txn.fs();
    let mut desc = read_desc(fs, group)?;
    let first = fs.layout.group_first_block(group)?;
    let n = bits.len() as u32;
    let buffer = if uninit(fs, &desc, GroupFlags::BLOCK_UNINIT) {
        let map = initial_block_bitmap(fs, group)?;
        let buffer = txn.create(desc.block_bitmap)?;
        txn.write(&buffer)?.copy_from_slice(&map);
        desc.flags -= GroupFlags::BLOCK_UNINIT;
        buffer
    } else {
        read_block_bitmap(fs, group, &desc)?
    };
    let mut map = txn.write(&buffer)?;
    // Double use and double free are found before anything changes.
    if used {
        if let Some(bit) = bitmap::next_set(&map, bits.clone()) {
            return Err(Corrupt::DoubleUse { block: first + bit as u64, group }.into());
        }
        bitmap::set(&mut map, bits)?;
        desc.free_blocks_count = desc.free_blocks_count.saturating_sub(n);
    } else {
        if let Some(bit) = bitmap::next_zero(&map, bits.clone()) {
            return Err(Corrupt::DoubleFree { block: first + bit as u64, group }.into());
        }
        bitmap::clear(&mut map, bits)?;
        desc.free_blocks_count = (desc.free_blocks_count + n).min(fs.layout.group_blocks(group)?);
    }
    desc.sum_block_bitmap(&map, &fs.layout, &fs.checksummer)?;
    drop(map);
    fs.write_desc(txn, group, &desc)
}
