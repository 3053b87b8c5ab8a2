//! Makes ext4 volumes as `mke2fs` 1.47.0 does: the same features, sizes and places.
//!
//! [`format()`] plans the whole volume in memory (numbers only: a few bytes for each group), then
//! writes it: what is zero is zeroed by the device's cheapest way, the superblock comes last,
//! behind a flush. A volume of 15 TiB needs some 20 MiB of memory.
#![forbid(unsafe_code)]

mod create;
mod error;
mod file;
mod journal;
mod mmp;
mod options;
mod orphan_file;
mod plan;
mod resize_inode;
mod room;
mod shape;
mod space;
mod tables;
mod tree;
mod usage;
mod write;

pub use create::create;
pub use error::MkfsError;
pub use options::{FsType, Options, parse_size};
pub use room::{Room, fit, room};
pub use usage::Usage;

use lanefs_device::BlockDevice;
use lanefs_format::{Features, Superblock};

/// A description of the new volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The superblock as it was written.
    pub superblock: Superblock,
    /// Bytes in a block.
    pub block_size: u32,
    /// Blocks of the volume.
    pub blocks_count: u64,
    /// Inodes of the volume.
    pub inodes_count: u32,
    /// Block groups.
    pub group_count: u32,
    /// Blocks of the journal, 0 if there is none.
    pub journal_blocks: u32,
    /// The features: the requested ones as adjusted to the sizes.
    pub features: Features,
    /// The volume's UUID.
    pub uuid: [u8; 16],
    /// Blocks that hold copies of the superblock.
    pub backups: Vec<u64>,
}

/// Creates a volume on `device`. Its old content is lost.
///
/// ```
/// use lanefs_device::MemDevice;
/// use lanefs_mkfs::{Options, format};
///
/// let device = MemDevice::new(16 << 20);
/// let options = Options { label: b"data".to_vec(), ..Options::default() };
/// let report = format(&device, &options)?;
/// assert_eq!((report.block_size, report.journal_blocks), (1024, 1024));
/// # Ok::<(), lanefs_mkfs::MkfsError>(())
/// ```
///
/// # Errors
/// Options that cannot be had together or on a device of this size (nothing has been written
/// then), or the device's failure.
pub fn format(device: &dyn BlockDevice, options: &Options) -> Result<Report, MkfsError> {
    report(&plan::Plan::new(PlannedDevice::of(device), options)?, device, options)
}

/// What a volume is planned for.
#[derive(Clone, Copy)]
struct PlannedDevice {
    /// In bytes.
    size: u64,
    /// The bytes of a logical sector. No block is smaller: the kernel would not mount the volume.
    sector: u32,
}

impl PlannedDevice {
    /// Returns a device with the sectors of a file.
    fn of_file(size: u64) -> Self {
        Self { size, sector: 512 }
    }

    fn of(device: &dyn BlockDevice) -> Self {
        let sector = device.sector_size().try_into().unwrap_or(u32::MAX);
        Self { size: device.size(), sector }
    }
}

/// Writes what was planned, and describes it.
fn report(plan: &plan::Plan, device: &dyn BlockDevice, options: &Options) -> Result<Report, MkfsError> {
    let superblock = write::write(plan, device, options)?;
    let layout = plan.layout;
    Ok(Report {
        block_size: layout.block_size(),
        blocks_count: layout.blocks_count(),
        inodes_count: layout.inodes_count(),
        group_count: layout.group_count(),
        journal_blocks: plan.journal_blocks,
        features: superblock.features(),
        uuid: superblock.raw().s_uuid,
        backups: (1..layout.group_count()).filter_map(|g| layout.super_location(g)).collect(),
        superblock,
    })
}
