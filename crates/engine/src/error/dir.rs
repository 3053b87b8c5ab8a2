//! Rules of directories that can be broken.

use lanefs_format::dirent::DirentError;
use lanefs_format::htree::HtreeError;

/// A directory that breaks a rule of the format: which directory, which of its blocks, which
/// rule. `lblk` counts blocks of the directory, `block` those of the volume.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum DirError {
    #[error("directory {ino}: i_size {size} is not a positive multiple of {block_size}, at most {max}")]
    Size { ino: u32, size: u64, block_size: u32, max: u64 },
    #[error("directory {ino}: i_size counts {blocks} blocks, and the volume has {bound}")]
    Blocks { ino: u32, blocks: u32, bound: u64 },
    #[error("directory {ino}: block {lblk} is a hole")]
    Hole { ino: u32, lblk: u32 },
    #[error("directory {ino}: block {lblk} (block {block}) is mapped but was never written")]
    Unwritten { ino: u32, lblk: u32, block: u64 },
    #[error("directory {ino}, block {lblk} (block {block}): {rule}")]
    Leaf { ino: u32, lblk: u32, block: u64, rule: DirentError },
    #[error("directory {ino}, index block {lblk} (block {block}): {rule}")]
    Index { ino: u32, lblk: u32, block: u64, rule: HtreeError },
    #[error(
        "directory {ino}, index block {lblk}: entry {entry} leads to block {value}, beyond the {bound} of the directory"
    )]
    IndexBlock { ino: u32, lblk: u32, entry: usize, value: u32, bound: u32 },
    #[error(
        "directory {ino}, index block {lblk}: hashes {first:#010x} to {last:#010x} leave the parent's {low:#010x} to {high:#010x}"
    )]
    IndexRange { ino: u32, lblk: u32, first: u32, last: u32, low: u32, high: u32 },
    #[error(
        "directory {ino}, block {lblk}: a name of inode {inode} has hash {hash:#010x}, outside of the block's {low:#010x} to {high:#010x}"
    )]
    LeafHash { ino: u32, lblk: u32, inode: u32, hash: u32, low: u32, high: u32 },
    #[error(
        "directory {ino}, block {lblk}: its index or its map leads to block {block}, which came before already"
    )]
    Repeat { ino: u32, lblk: u32, block: u64 },
    #[error("directory {ino}: more than {most} names have hash {hash:#010x}")]
    EqualHashes { ino: u32, hash: u32, most: usize },
    #[error("directory {ino}: entry \"{name}\" is not in its place in block 0")]
    Dots { ino: u32, name: &'static str },
    #[error("directory {ino}: new block {lblk} was given block {block}, which block {other} of it has")]
    BlockTwice { ino: u32, lblk: u32, block: u64, other: u32 },
    #[error("directory {ino}: no room for {need} bytes in block {lblk}, however often its path is split")]
    SplitTooSmall { ino: u32, lblk: u32, need: usize },
    #[error("directory {ino}: entry at byte {offset} of block {block} is not the one that was looked up")]
    Moved { ino: u32, block: u64, offset: usize },
}
