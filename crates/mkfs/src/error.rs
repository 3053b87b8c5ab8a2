//! The errors of making a volume.

use lanefs_device::DeviceError;
use lanefs_format::FormatError;
use lanefs_format::dirent::DirentError;
use lanefs_format::extent::ExtentError;

/// The reason why a volume cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum MkfsError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("a volume of {blocks} blocks of {block_size} bytes is too small for its own structures")]
    TooSmall { blocks: u64, block_size: u32 },
    #[error("{blocks} blocks need the 64bit feature, or larger blocks")]
    TooManyBlocks { blocks: u64 },
    /// More groups than have numbers.
    #[error("{blocks} blocks are more than 4294967295 groups of {per_group}: larger blocks make fewer")]
    TooManyGroups { blocks: u64, per_group: u32 },
    #[error("no memory to plan {groups} block groups: larger blocks make fewer")]
    NoMemory { groups: u32 },
    #[error("a volume of {bytes} bytes on a device of {device}")]
    BeyondDevice { bytes: u64, device: u64 },
    #[error("blocks of {0} bytes: must be a power of two between 1024 and 65536")]
    BlockSize(u32),
    #[error("blocks of {block_size} bytes on a device with sectors of {sector}")]
    BelowSector { block_size: u32, sector: u32 },
    #[error("inodes of {size} bytes: must be a power of two between 128 and {max}")]
    InodeSize { size: u16, max: u32 },
    #[error("an inode for every {0} bytes: must be between 1024 and 67108864")]
    InodeRatio(u32),
    #[error("{inodes} inodes of {inode_size} bytes do not fit in {blocks} blocks")]
    TooManyInodes { inodes: u64, inode_size: u16, blocks: u64 },
    #[error("{0} percent of blocks to reserve: must be between 0 and 50")]
    ReservedPercent(f64),
    #[error("root directory of user {uid} and group {gid}: 4294967295 stands for no user")]
    Owner { uid: u32, gid: u32 },
    #[error("mmp_update_interval of {seconds} s: at most {max}")]
    MmpInterval { seconds: u16, max: u16 },
    #[error("a label of {0} bytes: at most 16")]
    Label(usize),
    #[error("a journal of {blocks} blocks: must be between 1024 and 10240000")]
    JournalSize { blocks: u64 },
    #[error("a journal of {blocks} blocks is too big for {free} free blocks")]
    JournalTooBig { blocks: u64, free: u64 },
    #[error("cannot make a volume with: {0}")]
    Features(String),
    #[error("the feature {feature} needs {needs}")]
    Needs { feature: &'static str, needs: &'static str },
    #[error("the features {0} and {1} exclude each other")]
    Exclusive(&'static str, &'static str),
    #[error("no room for {0}")]
    NoSpace(&'static str),
    #[error("{0}: not a size (a number, then nothing or one of K, M, G, T, P)")]
    Size(String),
    #[error("{0}: not a usage type (floppy, small, default, big, huge, news, largefile, largefile4)")]
    Usage(String),
    #[error("planned an invalid volume, a defect of lanefs to report: {0}")]
    Format(#[from] FormatError),
    #[error("planned an invalid extent tree, a defect of lanefs to report: {0}")]
    Extent(#[from] ExtentError),
    #[error("planned an invalid directory, a defect of lanefs to report: {0}")]
    Dirent(#[from] DirentError),
}
