//! Taking and freeing blocks.
//!
//! [`reserve`] chooses blocks in core only; [`take_reserved`] marks them on disk under a handle;
//! [`free_blocks`] clears them on disk, and the journal's commit gives them back in core.

use super::group::{initial_block_bitmap, read_block_bitmap, read_desc, uninit};
use crate::error::{Corrupt, Error, Result};
use crate::txn::Txn;
use crate::volume::Fs;
use lanefs_format::{GroupFlags, bitmap};

/// What a freed block held: metadata must be revoked, so that no old log copy is replayed over
/// what comes after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockKind {
    Data,
    Metadata,
}

/// A run of blocks taken in core and not on disk. Dropped, they are free again.
#[derive(Debug)]
pub(crate) struct Reserved<'f> {
    fs: &'f Fs,
    start: u64,
    len: u32,
}

impl Reserved<'_> {
    /// First block.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Number of blocks, at least 1.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if self.len != 0 {
            self.fs.alloc.release(self.start, u64::from(self.len));
        }
    }
}

/// Takes 1..=`want` contiguous blocks in core, near `goal`.
///
/// First a run of `want` (or of a whole group's worth) at the goal or behind it, then anywhere;
/// when no group has one, halves are good enough, down to single blocks.
///
/// # Errors
/// [`Error::NoSpace`]; the error of a damaged group that could have served.
pub(crate) fn reserve(fs: &Fs, goal: u64, want: u32) -> Result<Reserved<'_>> {
    let available = fs.available_blocks();
    if available == 0 {
        return Err(Error::NoSpace);
    }
    let want = want.clamp(1, fs.layout.blocks_per_group().min(32768));
    let want = u64::from(want).min(available) as u32;
    let groups = fs.layout.group_count();
    let (home, bit) = fs.layout.group_of_block(goal).map_or((0, None), |(group, bit)| (group, Some(bit)));
    let mut least = want;
    loop {
        for i in 0..groups {
            // home, home + 1, ... around the end.
            let group = ((u64::from(home) + u64::from(i)) % u64::from(groups)) as u32;
            if i > 0 && read_desc(fs, group)?.free_blocks_count < least {
                continue;
            }
            let from = bit.filter(|_| i == 0);
            if let Some(run) = reserve_in(fs, group, from, want, least)? {
                return Ok(run);
            }
        }
        if least == 1 {
            return Err(Error::NoSpace);
        }
        least = (least / 4).max(1);
    }
}

fn reserve_in<'f>(
    fs: &'f Fs,
    group: u32,
    from: Option<u32>,
    want: u32,
    least: u32,
) -> Result<Option<Reserved<'f>>> {
    let Some(mut state) = fs.alloc.lock_group(group) else { return Ok(None) };
    state.load(fs, group)?;
    let from = from.unwrap_or(state.next());
    let Some(run) = state.take(from, want, least) else { return Ok(None) };
    drop(state);
    let start = fs.layout.group_first_block(group)? + u64::from(run.start);
    fs.alloc.sub_free_blocks(run.len() as u64);
    Ok(Some(Reserved { fs, start, len: run.len() as u32 }))
}

/// Marks reserved blocks as used on disk, under the handle of `txn`. At most 2 credits a group.
pub(crate) fn take_reserved(txn: &mut Txn<'_>, mut reserved: Reserved<'_>) -> Result<()> {
    let fs = txn.fs();
    for_each_group(fs, reserved.start, reserved.len, |group, bits, _| {
        let Some(_state) = fs.alloc.lock_group(group) else { return Ok(()) };
        change_bitmap(txn, group, bits, true)
    })?;
    // On disk now: no longer given back by the drop.
    reserved.len = 0;
    Ok(())
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
        change_bitmap(txn, group, bits.clone(), false)?;
        drop(state);
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
        let map = initial_block_bitmap(fs, group, &desc)?;
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
