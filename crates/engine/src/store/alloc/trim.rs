//! Discards free blocks on the device: all that are free, or those that a commit has freed.

use super::group::disk_runs;
use crate::error::Result;
use crate::store::Store;
use lanefs_device::BlockDevice;
use lanefs_journal::Freed;
use std::ops::Range;

/// Discards the free runs of at least `least` blocks in `blocks`. Returns how many blocks. Holds a
/// group's mutex meanwhile, so that no thread takes a block that is being discarded; searches for
/// space skip the group.
///
/// # Errors
/// [`Error::ReadOnly`](crate::Error::ReadOnly); the device's; those of damaged bitmaps.
pub(crate) fn trim(store: &Store, blocks: Range<u64>, least: u64) -> Result<u64> {
    store.check_writable()?;
    let mut trimmed = 0;
    for group in 0..store.layout().group_count() {
        let first = store.layout().group_first_block(group)?;
        let bits = u64::from(store.layout().group_blocks(group)?);
        let clip = |block: u64| (block.clamp(first, first + bits) - first) as u32;
        let wanted = clip(blocks.start)..clip(blocks.end);
        let Some(mut state) = store.alloc.lock_group(group).filter(|_| !wanted.is_empty()) else { continue };
        if !state.may_have(store, group, 0)? {
            continue;
        }
        // A bitmap that only this function reads is not kept.
        let runs = if state.is_unread() { disk_runs(store, group)? } else { state.free_runs() };
        for run in runs {
            let run = run.start.max(wanted.start)..run.end.min(wanted.end);
            if !run.is_empty() && run.len() as u64 >= least {
                store.device.discard(
                    store.byte_of(first + u64::from(run.start)),
                    run.len() as u64 * u64::from(store.block_size),
                )?;
                trimmed += run.len() as u64;
            }
        }
    }
    Ok(trimmed)
}

/// Discards the blocks that a commit has freed, before they can be allocated again.
pub(crate) fn discard_freed(device: &dyn BlockDevice, block_size: u32, freed: &[Freed]) {
    let mut freed = freed.to_vec();
    freed.sort_unstable_by_key(|e| e.start);
    let mut run = 0..0;
    for Freed { start, len } in freed {
        if start != run.end {
            discard(device, block_size, std::mem::replace(&mut run, start..start));
        }
        run.end = start.saturating_add(len);
    }
    discard(device, block_size, run);
}

fn discard(device: &dyn BlockDevice, block_size: u32, run: Range<u64>) {
    let size = u64::from(block_size);
    let len = run.end.saturating_sub(run.start).saturating_mul(size);
    if len > 0 {
        // A device that does not discard does no harm.
        let _ = device.discard(run.start.saturating_mul(size), len);
    }
}
