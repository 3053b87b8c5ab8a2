//! The smallest volume with room for given files.
//!
//! The answer is computed by planning: nothing is written.

use crate::journal::default_size;
use crate::plan::Plan;
use crate::{MkfsError, Options, PlannedDevice};
use lanefs_format::{Compat, Features};

/// The block size of [`fit`] where none is asked for.
const BLOCK_SIZE: u32 = 4096;
/// No volume has more blocks.
const MOST_BLOCKS: u64 = 1 << 48;

/// The room that a new volume has for files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Bytes of the volume, without an end that is too short for a group of blocks.
    pub size: u64,
    /// Bytes in a block.
    pub block_size: u32,
    /// Blocks for files and directories.
    pub free_blocks: u64,
    /// Inodes for files and directories.
    pub free_inodes: u32,
}

/// Returns what a volume of `size` bytes has for files.
///
/// ```
/// let room = lanefs_mkfs::room(64 << 20, &lanefs_mkfs::Options::default())?;
/// assert!(room.free_blocks > 50 << 10 && room.block_size == 1024);
/// # Ok::<(), lanefs_mkfs::MkfsError>(())
/// ```
///
/// # Errors
/// Options that cannot be had together or in a volume of this size.
pub fn room(size: u64, options: &Options) -> Result<Room, MkfsError> {
    let plan = Plan::new(PlannedDevice::of_file(size), &Options { size: Some(size), ..options.clone() })?;
    Ok(Room {
        size: plan.layout.blocks_count() * u64::from(plan.layout.block_size()),
        block_size: plan.layout.block_size(),
        free_blocks: plan.superblock.free_blocks_count(),
        free_inodes: plan.superblock.free_inodes_count(),
    })
}

/// Returns the options of the smallest volume that has `blocks` free blocks. Blocks have 4096 bytes
/// unless `options` say otherwise; [`Options::inode_count`] should be set. The journal has the size
/// that `options` say, else the usual one of a volume of `blocks` blocks, which for fewer than 2048
/// is none.
///
/// ```
/// use lanefs_mkfs::{Options, fit, room};
///
/// let options = fit(10_000, &Options { inode_count: Some(500), ..Options::default() })?;
/// let room = room(options.size.unwrap(), &options)?;
/// assert!((10_000..10_060).contains(&room.free_blocks));
/// # Ok::<(), lanefs_mkfs::MkfsError>(())
/// ```
///
/// # Errors
/// Options that cannot be had together, or in a volume of any size.
pub fn fit(blocks: u64, options: &Options) -> Result<Options, MkfsError> {
    let block_size = options.block_size.unwrap_or(BLOCK_SIZE);
    let mut options = Options { block_size: Some(block_size), ..options.clone() };
    let journal = Features { compat: Compat::HAS_JOURNAL, ..Features::default() };
    if options.journal_size.is_none() {
        // Fixed here, because it grows in steps with the size that is looked for.
        match default_size(blocks) {
            Some(len) => options.journal_size = Some(((u64::from(len) * u64::from(block_size)) >> 20) as u32),
            None => {
                options.features.on = options.features.on.minus(journal);
                options.features.off = options.features.off.union(journal);
            }
        }
    }
    // A size beyond 64 bits is refused as the largest one is.
    let room_of = |blocks: u64| room(blocks.saturating_mul(u64::from(block_size)), &options);
    let fits = |wanted: u64| match room_of(wanted) {
        Ok(room) => Ok(room.free_blocks >= blocks),
        Err(e) if is_lack(&e) && wanted < MOST_BLOCKS => Ok(false),
        Err(e) => Err(e),
    };
    // As many blocks as are to be free are too few: some are the volume's own.
    let (mut few, mut step) = (blocks, 1024);
    while !fits(few.saturating_add(step))? {
        few = few.saturating_add(step);
        step = step.saturating_mul(2);
    }
    let mut enough = few.saturating_add(step);
    while enough - few > 1 {
        let middle = few + (enough - few) / 2;
        if fits(middle)? { enough = middle } else { few = middle }
    }
    options.size = Some(room_of(enough)?.size);
    Ok(options)
}

/// Returns whether a larger volume may have what this one lacks.
fn is_lack(e: &MkfsError) -> bool {
    use MkfsError::{JournalTooBig, NoSpace, TooManyInodes, TooSmall};
    matches!(e, TooSmall { .. } | TooManyInodes { .. } | JournalTooBig { .. } | NoSpace(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_block_less_is_too_small() {
        for (blocks, inodes) in [(60, 16), (1000, 40), (2047, 16), (2048, 300), (40_000, 9000), (300_000, 16)]
        {
            for block_size in [1024, 4096] {
                let wanted =
                    Options { inode_count: Some(inodes), block_size: Some(block_size), ..Options::default() };
                let options = fit(blocks, &wanted).expect("a volume");
                let size = options.size.expect("a size");
                assert!(room(size, &options).expect("room").free_blocks >= blocks);
                let less = room(size - u64::from(block_size), &options);
                assert!(less.is_err() || less.expect("room").free_blocks < blocks, "{blocks} {block_size}");
                let journal = options.journal_size.map_or(0, |mib| u64::from(mib) << 20);
                assert_eq!(journal > 0, blocks >= 2048, "{blocks} {block_size}");
            }
        }
    }

    #[test]
    fn more_than_any_volume_has_ends_the_search() {
        for blocks in [1 << 48, 1 << 53, u64::MAX] {
            for block_size in [1024, 4096, 65_536] {
                let wanted = Options { block_size: Some(block_size), ..Options::default() };
                let found = fit(blocks, &wanted);
                assert!(matches!(found, Err(MkfsError::TooManyGroups { .. })), "{blocks}: {found:?}");
            }
        }
    }

    #[test]
    fn options_that_cannot_be_had_end_the_search() {
        let label = Options { label: vec![b'x'; 17], ..Options::default() };
        assert!(matches!(fit(100, &label), Err(MkfsError::Label(17))));
        let inodes = Options { inode_count: Some(u32::MAX), inode_size: Some(64), ..Options::default() };
        assert!(matches!(fit(100, &inodes), Err(MkfsError::InodeSize { .. })));
    }
}
