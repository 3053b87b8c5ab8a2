//! The scratch volume of a build's first pass: large, sparse, and never durable.

use super::volatile::Volatile;
use crate::Cause;
use crate::unfinished::TemporaryFile;
use lanefs::format::features::FeatureEdit;
use lanefs::mkfs::{self, Options};
use lanefs::{OpenOptions, Volume};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Bytes of the largest scratch volume. ext4 with blocks of 4 KiB has no file of 16 TiB, and other
/// file systems of a host have none of this size (EFBIG).
const MOST: u64 = 8 << 40;
/// Blocks of the usual scratch volume. Only metadata is ever written, which takes about three
/// megabytes for so many.
const BLOCKS: u64 = 1 << 28;
/// Bytes of it for every inode.
const INODE_RATIO: u32 = 16 << 10;
/// Bytes of its cache.
const CACHE: usize = 64 << 20;

/// How large a scratch volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScratchSize {
    /// For most trees.
    Usual,
    /// For the others. It takes more time, and more of the disk.
    Most,
}

/// A volume in a file without a name.
#[derive(Debug)]
pub(super) struct Scratch {
    volume: Volume,
    device: Arc<Volatile>,
    _file: TemporaryFile,
}

impl AsRef<Volume> for Scratch {
    fn as_ref(&self) -> &Volume {
        &self.volume
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The volume is closed next, which would write all that it has in memory.
        self.device.abandon();
    }
}

impl Scratch {
    /// Makes one beside `target`, in which files take what they would take in a volume of
    /// `options`.
    pub(super) fn new(target: &Path, options: &Options, size: ScratchSize) -> Result<Self, Cause> {
        let options = sized(options, size)?;
        let (mut file, device) = TemporaryFile::device(target, options.size.unwrap_or(MOST))?;
        // So that nothing is left of it, whatever ends this process. After a failure the drop tries
        // again.
        let _ = file.remove();
        let device = Arc::new(Volatile::new(device));
        mkfs::format(&*device, &options)?;
        let opened = OpenOptions::new().write(true).mmp(false).threads(false).cache_bytes(CACHE);
        let volume = opened.open_device(device.clone())?;
        Ok(Self { volume, device, _file: file })
    }

    /// Returns whether the largest scratch volume of these options is larger than the usual one.
    pub(super) fn can_be_larger(options: &Options) -> bool {
        let bytes = |size| sized(options, size).ok().and_then(|options| options.size);
        bytes(ScratchSize::Most) > bytes(ScratchSize::Usual)
    }
}

/// Returns the options of a scratch volume. The size of the largest is halved until these options
/// allow it: a volume without `64bit` has fewer than 2^32 blocks.
fn sized(options: &Options, size: ScratchSize) -> Result<Options, Cause> {
    let usual = MOST.min(BLOCKS * u64::from(options.block_size.unwrap_or(4096)));
    let mut bytes = if size == ScratchSize::Usual { usual } else { MOST };
    loop {
        let options = of_scratch(options, bytes)?;
        if bytes == usual || mkfs::room(bytes, &options).is_ok() {
            return Ok(options);
        }
        bytes = usual.max(bytes / 2);
    }
}

/// Returns the options of the scratch volume: those of the volume, but for what costs time in one
/// so large.
fn of_scratch(options: &Options, size: u64) -> Result<Options, Cause> {
    let without: FeatureEdit =
        "^has_journal,^resize_inode,^orphan_file,sparse_super2".parse().map_err(io::Error::other)?;
    let mut features = options.features;
    features.on = features.on.minus(without.off).union(without.on);
    features.off = features.off.minus(without.on).union(without.off);
    Ok(Options {
        size: Some(size),
        inode_count: None,
        inode_ratio: Some(INODE_RATIO.max(options.block_size.unwrap_or(0))),
        journal_size: None,
        features,
        ..options.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_volume_is_as_large_as_a_file_can_be() {
        let size = |block_size, features: &str, size| {
            let features = features.parse().unwrap();
            let options = Options { block_size: Some(block_size), features, ..Options::default() };
            sized(&options, size).unwrap().size.unwrap()
        };
        for (block_size, usual) in
            [(1024, 1 << 38), (4096, 1 << 40), (16384, 4 << 40), (32768, 8 << 40), (65536, 8 << 40)]
        {
            assert_eq!(size(block_size, "64bit", ScratchSize::Usual), usual, "{block_size}");
        }
        for block_size in [4096, 16384, 65536] {
            assert_eq!(size(block_size, "64bit", ScratchSize::Most), 8 << 40, "{block_size}");
            let features = "64bit".parse().unwrap();
            let options = Options { block_size: Some(block_size), features, ..Options::default() };
            assert_eq!(Scratch::can_be_larger(&options), block_size < 32768, "{block_size}");
        }
        assert_eq!(size(2048, "^64bit", ScratchSize::Most), 4 << 40);
    }

    #[test]
    fn a_scratch_volume_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        for (block_size, size) in [(65536, ScratchSize::Usual), (4096, ScratchSize::Most)] {
            let options = Options { block_size: Some(block_size), ..Options::default() };
            let scratch = Scratch::new(&dir.path().join("v.img"), &options, size).unwrap();
            assert!(scratch.as_ref().statfs().blocks_free > (7 << 40) / u64::from(block_size));
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }
}
