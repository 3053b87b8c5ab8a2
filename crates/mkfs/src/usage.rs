//! The usage types of volumes: the table by which mke2fs chooses block size and inode ratio.
//!
//! The numbers are those of the `mke2fs.conf` that comes with e2fsprogs 1.47.0.

use crate::MkfsError;
use std::str::FromStr;

/// A usage type (`mke2fs -T`); the first five follow from the size where none is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Usage {
    Floppy,
    Small,
    Default,
    Big,
    Huge,
    News,
    LargeFile,
    LargeFile4,
}

impl Usage {
    /// Returns the type for a volume of `blocks` blocks of `block_size` bytes.
    pub(crate) fn by_size(blocks: u64, block_size: u32) -> Self {
        let meg = (1 << 20) / u64::from(block_size);
        match blocks {
            n if n < 3 * meg => Self::Floppy,
            n if n < 512 * meg => Self::Small,
            n if n < (4 << 20) * meg => Self::Default,
            n if n < (16 << 20) * meg => Self::Big,
            _ => Self::Huge,
        }
    }

    /// Returns the number of bytes in a block.
    pub(crate) fn block_size(self) -> u32 {
        match self {
            Self::Floppy | Self::Small => 1024,
            _ => 4096,
        }
    }

    /// Returns how many bytes there are for every inode.
    pub(crate) fn inode_ratio(self) -> u32 {
        match self {
            Self::Floppy => 8192,
            Self::Small | Self::News => 4096,
            Self::Default => 16384,
            Self::Big => 32768,
            Self::Huge => 65536,
            Self::LargeFile => 1 << 20,
            Self::LargeFile4 => 4 << 20,
        }
    }
}

impl FromStr for Usage {
    type Err = MkfsError;

    fn from_str(s: &str) -> Result<Self, MkfsError> {
        Ok(match s {
            "floppy" => Self::Floppy,
            "small" => Self::Small,
            "default" => Self::Default,
            "big" => Self::Big,
            "huge" => Self::Huge,
            "news" => Self::News,
            "largefile" => Self::LargeFile,
            "largefile4" => Self::LargeFile4,
            _ => return Err(MkfsError::Usage(s.to_owned())),
        })
    }
}
