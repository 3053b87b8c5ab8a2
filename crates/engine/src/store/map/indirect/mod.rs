//! Indirect blocks: the map of files without extents (ext2, ext3, `^extents`).
//!
//! `i_block` holds 15 block numbers of 32 bits: 12 of data, then one block of numbers, one
//! of blocks of numbers, and one of three levels. 0 is a hole, of as many blocks as lie below it.
//!
//! The blocks carry no checksum and no magic; each number is checked when it is followed. Hazard: a
//! number may lead anywhere, to another level's block or to its own. Levels bound the depth of
//! every walk, and freeing finds a block that it has freed already.

mod lookup;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use lookup::lookup;
pub(crate) use table::{REMOVE_CREDITS, Table, insert_credits, missing};

use crate::store::alloc::LOW_BLOCKS;

/// Numbers of data blocks in `i_block`.
const DIRECT: u32 = 12;
/// Bytes of `i_block`.
const ROOT_SIZE: usize = 60;
/// Numbers are of 32 bits, so blocks from here on cannot be mapped. The allocator keeps files with
/// such a map below it.
const MAX_PHYSICAL: u64 = LOW_BLOCKS;

/// Numbers in a block.
pub(crate) fn pointers(block_size: usize) -> u32 {
    // At most 64 KiB.
    (block_size / 4) as u32
}

/// Returns the logical blocks below one number of the level: 1 for a number of data, `pointers`
/// above that, ...
fn span(block_size: usize, level: u32) -> u64 {
    u64::from(pointers(block_size)).pow(level)
}

/// Returns the logical blocks that the map holds.
pub(crate) fn max_blocks(block_size: usize) -> u32 {
    let all = u64::from(DIRECT) + (1..=3).map(|level| span(block_size, level)).sum::<u64>();
    u32::try_from(all).unwrap_or(u32::MAX)
}

/// Returns the blocks of numbers that map the first `blocks` blocks of a file.
pub(crate) fn number_blocks(block_size: usize, blocks: u64) -> u64 {
    let mut left = blocks.saturating_sub(DIRECT.into());
    let mut count = 0;
    for level in 1..=3 {
        let here = left.min(span(block_size, level));
        count += (1..=level).map(|below| here.div_ceil(span(block_size, below))).sum::<u64>();
        left -= here;
    }
    count
}

/// Returns the place of a logical block: the number in `i_block`, the levels of blocks below it,
/// and the first logical block below it. `None` beyond the map.
fn slot(block_size: usize, lblk: u32) -> Option<(usize, u32, u32)> {
    if lblk < DIRECT {
        return Some((lblk as usize, 0, lblk));
    }
    let mut base = u64::from(DIRECT);
    for level in 1..=3 {
        let end = base + span(block_size, level);
        if u64::from(lblk) < end {
            return Some((DIRECT as usize + level as usize - 1, level, u32::try_from(base).ok()?));
        }
        base = end;
    }
    None
}

/// Returns the `n`th number of a block or of `i_block`.
fn number(bytes: &[u8], n: usize) -> u32 {
    bytes.chunks_exact(4).nth(n).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

/// Returns all numbers of a block or of `i_block`.
fn numbers(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Writes the `n`th number.
fn set_number(bytes: &mut [u8], n: usize, value: u32) {
    if let Some(slot) = bytes.chunks_exact_mut(4).nth(n) {
        slot.copy_from_slice(&value.to_le_bytes());
    }
}
