//! Taking and freeing blocks on disk, under a handle.
//!
//! [`take_reserved`] marks blocks that were chosen in core; [`free_blocks`] clears them on disk,
//! and the journal's commit gives them back in core. [`unmark`] takes a mark back under the handle
//! that made it. All read and check a group's bitmap and descriptor before they change either
//! ([`Bits`]): a read that fails, and blocks that are used or free already, change nothing.

use super::Reserved;
use super::group::{HeldDesc, initial_block_bitmap, read_block_bitmap, uninit};
use crate::error::{Corrupt, Error, Result};
use crate::store::Store;
use crate::store::txn::{BlockKind, Txn};
use lanefs_format::{GroupFlags, bitmap};
use lanefs_journal::Buffer;
use lanefs_sync::atomic::Ordering::Relaxed;
use std::ops::Range;

/// Marks reserved blocks as used on disk, under the handle of `txn`, and leaves `reserved` empty.
/// Costs [`credits::RUN`](crate::store::txn::credits::RUN).
///
/// # Errors
/// A block that is used already; the device's. Nothing is changed.
pub(crate) fn take_reserved(txn: &mut Txn<'_>, reserved: &mut Reserved) -> Result<()> {
    let (store, len) = (txn.store(), reserved.len());
    if len == 0 {
        return Ok(());
    }
    let (group, bits) = locate(store, reserved.start(), len)?;
    let Some(_state) = store.alloc.lock_group(group) else { return Ok(()) };
    Bits::read(store, group, bits, true)?.change(txn)?;
    // On disk now: dropping `reserved` must not free them in core.
    reserved.used(len);
    Ok(())
}

/// Clears the bits of blocks that were marked under the same handle and that nothing refers to. The
/// blocks are reserved in core, as before they were marked. Costs no credit.
///
/// # Errors
/// A block that is free already; the device's. Nothing is changed.
pub(crate) fn unmark(txn: &mut Txn<'_>, start: u64, len: u32) -> Result<Reserved> {
    let store = txn.store();
    let (group, bits) = locate(store, start, len)?;
    let _state = store.alloc.lock_group(group);
    Bits::read(store, group, bits, false)?.change(txn)?;
    Ok(Reserved::again(store, start, len))
}

/// Frees blocks of one group on disk, under the handle of `txn`. They can be allocated again after
/// the commit. Costs [`credits::FREED_RUN`](crate::store::txn::credits::FREED_RUN) for at most
/// [`Txn::run_of`] blocks.
///
/// # Errors
/// A range outside of the data blocks or of a group, or with a block that is free already; the
/// device's. Nothing is changed.
pub(crate) fn free_blocks(txn: &mut Txn<'_>, start: u64, len: u32, kind: BlockKind) -> Result<()> {
    let store = txn.store();
    if len == 0 {
        return Ok(());
    }
    store.check_data_range(start, u64::from(len))?;
    free_run(txn, start, len, kind)
}

/// Frees a block that no file owns, which was written past the journal. Costs as
/// [`free_blocks`] does.
///
/// # Errors
/// A block that is free already; the device's. Nothing is changed.
pub(crate) fn free_system_block(txn: &mut Txn<'_>, block: u64) -> Result<()> {
    free_run(txn, block, 1, BlockKind::Data)
}

fn free_run(txn: &mut Txn<'_>, start: u64, len: u32, kind: BlockKind) -> Result<()> {
    let store = txn.store();
    let (group, bits) = locate(store, start, len)?;
    let Some(mut state) = store.alloc.lock_group(group) else { return Ok(()) };
    // The busy map must have the blocks before the disk's map loses them.
    state.load(store, group)?;
    if state.is_lost() {
        // The blocks stay used: with a lost bitmap, no thread can tell which blocks are free.
        return Ok(());
    }
    let bits = Bits::read(store, group, bits, false)?;
    // Takes the credits before it changes anything.
    txn.freed(start, len.into(), kind)?;
    bits.change(txn)?;
    store.alloc.freeing.fetch_add(len.into(), Relaxed);
    Ok(())
}

/// The blocks in memory that a [`free_blocks`] will change.
#[derive(Debug)]
pub(crate) struct HeldForFree(#[expect(dead_code, reason = "held, not looked at")] Option<Bits>);

/// Reads and checks what [`free_blocks`] will change for these blocks. While the result is held,
/// freeing them does no I/O.
///
/// # Errors
/// A range outside of the data blocks or of a group, or with a block that is free already; the
/// device's.
pub(crate) fn hold_for_free(store: &Store, start: u64, len: u32) -> Result<HeldForFree> {
    store.check_data_range(start, u64::from(len))?;
    let (group, bits) = locate(store, start, len)?;
    let Some(mut state) = store.alloc.lock_group(group) else { return Ok(HeldForFree(None)) };
    state.load(store, group)?;
    let held = if state.is_lost() { None } else { Some(Bits::read(store, group, bits, false)?) };
    Ok(HeldForFree(held))
}

/// Returns the group of a run of blocks, and its bits there.
fn locate(store: &Store, start: u64, len: u32) -> Result<(u32, Range<usize>)> {
    let (group, bit) = store.layout().group_of_block(start)?;
    if len > store.layout().group_blocks(group)?.saturating_sub(bit) {
        return Err(Error::Invalid("a run of blocks that leaves its group"));
    }
    Ok((group, bit as usize..bit as usize + len as usize))
}

/// A run of bits of a group's bitmap, with the blocks in memory that change with it.
#[derive(Debug)]
struct Bits {
    group: u32,
    bits: Range<usize>,
    /// The value that the bits get; none of them has it now.
    used: bool,
    desc: HeldDesc,
    map: Map,
}

/// The block of a bitmap.
#[derive(Debug)]
enum Map {
    Read(Buffer),
    /// Never written: the content that it gets.
    Unwritten(Vec<u8>),
}

impl Bits {
    /// Reads bitmap and descriptor, and finds double use and double free. The caller holds the
    /// group's mutex.
    fn read(store: &Store, group: u32, bits: Range<usize>, used: bool) -> Result<Self> {
        let desc = HeldDesc::read(store, group)?;
        let map = match uninit(store, &desc.desc, GroupFlags::BLOCK_UNINIT) {
            true => Map::Unwritten(initial_block_bitmap(store, group)?),
            false => Map::Read(read_block_bitmap(store, group, &desc.desc)?),
        };
        let clash = match &map {
            Map::Read(buffer) => find(&buffer.read(), bits.clone(), used),
            Map::Unwritten(bytes) => find(bytes, bits.clone(), used),
        };
        if let Some(bit) = clash {
            let block = store.layout().group_first_block(group)? + bit as u64;
            return Err(match used {
                true => Corrupt::DoubleUse { block, group }.into(),
                false => Corrupt::DoubleFree { block, group }.into(),
            });
        }
        Ok(Self { group, bits, used, desc, map })
    }

    /// Sets or clears the bits, and updates the descriptor's count and checksums. The caller has
    /// held the group's mutex since [`read`](Self::read).
    fn change(mut self, txn: &mut Txn<'_>) -> Result<()> {
        let store = txn.store();
        let (n, desc) = (self.bits.len() as u32, &mut self.desc.desc);
        let total = store.layout().group_blocks(self.group)?;
        let buffer = match self.map {
            Map::Read(buffer) => buffer,
            Map::Unwritten(bytes) => {
                let buffer = txn.create(desc.block_bitmap)?;
                txn.write(&buffer)?.copy_from_slice(&bytes);
                desc.flags -= GroupFlags::BLOCK_UNINIT;
                buffer
            }
        };
        let mut map = txn.write(&buffer)?;
        if self.used {
            bitmap::set(&mut map, self.bits)?;
            desc.free_blocks_count = desc.free_blocks_count.saturating_sub(n);
        } else {
            bitmap::clear(&mut map, self.bits)?;
            desc.free_blocks_count = (desc.free_blocks_count + n).min(total);
        }
        desc.sum_block_bitmap(&map, store.layout(), &store.checksummer)?;
        drop(map);
        self.desc.write(txn)
    }
}

/// Returns the first of `bits` that is `set` already.
fn find(map: &[u8], bits: Range<usize>, set: bool) -> Option<usize> {
    if set { bitmap::next_set(map, bits) } else { bitmap::next_zero(map, bits) }
}
