//! Lookup in the map: down to the numbers, then along them while the blocks are adjacent.

use super::{DIRECT, number, slot, span};
use crate::error::{Error, IndirectError, Result};
use crate::store::kind;
use crate::store::map::{Mapping, ReadBlocks};

/// Looks up the mapping of `lblk` in the map of inode `ino`.
pub(crate) fn lookup(blocks: &impl ReadBlocks, ino: u32, root: &[u8], lblk: u32) -> Result<Mapping> {
    let size = blocks.block_size();
    let (n, levels, base) = slot(size, lblk).ok_or(Error::FileTooBig)?;
    if levels == 0 {
        return Ok(run(root.get(..DIRECT as usize * 4).unwrap_or_default(), n));
    }
    let (mut block, mut rel) = (number(root, n), u64::from(lblk - base));
    let hole = |len: u64| Mapping::Hole {
        before: 0,
        len: u32::try_from(len).unwrap_or(u32::MAX).min(u32::MAX - lblk),
    };
    if block == 0 {
        return Ok(hole(span(size, levels) - rel));
    }
    for level in (1..=levels).rev() {
        check(blocks, ino, lblk, block)?;
        let below = span(size, level - 1);
        // Less than the numbers of a block.
        let n = (rel / below) as usize;
        rel %= below;
        if level == 1 {
            return blocks.view(u64::from(block), kind::INDIRECT, |_| Ok(()), |bytes| Ok(run(bytes, n)));
        }
        let (next, empty) = blocks.view(
            u64::from(block),
            kind::INDIRECT,
            |_| Ok(()),
            |bytes| Ok((number(bytes, n), zeros(bytes, n))),
        )?;
        if next == 0 {
            // Nothing lies below any of these numbers.
            return Ok(hole(below * u64::from(empty.max(1)) - rel));
        }
        block = next;
    }
    Ok(Mapping::Hole { before: 0, len: 1 })
}

/// Checks that a number that will be followed lies inside the volume.
pub(super) fn check(blocks: &impl ReadBlocks, ino: u32, lblk: u32, block: u32) -> Result<()> {
    let bound = blocks.limits();
    match bound.contains(&u64::from(block)) {
        true => Ok(()),
        false => Err(IndirectError::Pointer { ino, lblk, block, bound }.into()),
    }
}

/// Returns how many numbers from number `n` on are zeros.
fn zeros(bytes: &[u8], n: usize) -> u32 {
    bytes.chunks_exact(4).skip(n).take_while(|b| *b == [0; 4]).count() as u32
}

/// Returns the run of zeros, or of adjacent blocks, that begins at number `n`.
fn run(bytes: &[u8], n: usize) -> Mapping {
    let mut rest = bytes.chunks_exact(4).skip(n).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    match rest.next() {
        None => Mapping::Hole { before: 0, len: 1 },
        Some(0) => Mapping::Hole { before: 0, len: zeros(bytes, n) },
        Some(first) => {
            let len =
                1 + rest.zip(u64::from(first) + 1..).take_while(|(b, next)| u64::from(*b) == *next).count()
                    as u32;
            Mapping::Mapped { block: u64::from(first), len, unwritten: false }
        }
    }
}
