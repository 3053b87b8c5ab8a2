//! The scratch volume of a build's first pass: large, sparse, and never durable.

use super::volatile::Volatile;
use crate::Cause;
use crate::unfinished::create_beside;
use lanefs::format::features::FeatureEdit;
use lanefs::mkfs::{self, Options};
use lanefs::{OpenOptions, Volume};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

/// Blocks of the scratch volume. Only its metadata is ever written.
const BLOCKS: u64 = 1 << 28;
/// Bytes of it for every inode.
const INODE_RATIO: u32 = 16 << 10;
/// Bytes of its cache.
const CACHE: usize = 64 << 20;

/// A volume in a file that is removed with it.
#[derive(Debug)]
pub(super) struct Scratch {
    volume: Volume,
    device: Arc<Volatile>,
    _file: Removed,
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

/// Removes a file when it is dropped, where an open file could not be removed.
#[derive(Debug)]
struct Removed(Option<PathBuf>);

impl Drop for Removed {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

impl Scratch {
    /// Makes one beside `target`, in which files take what they would take in a volume of
    /// `options`.
    pub(super) fn new(target: &Path, options: &Options) -> Result<Self, Cause> {
        let block_size = options.block_size.unwrap_or(4096);
        let size = BLOCKS * u64::from(block_size);
        let (path, file) = create_beside(target, size)?;
        // So that nothing is left of it, whatever ends this process.
        let removed = fs::remove_file(&path).is_ok();
        let file_guard = Removed((!removed).then_some(path));
        let device = Arc::new(Volatile::new(Arc::new(file)));
        mkfs::format(&*device, &of_scratch(options, size)?)?;
        let opened = OpenOptions::new().write(true).mmp(false).threads(false).cache_bytes(CACHE);
        let volume = opened.open_device(device.clone())?;
        Ok(Self { volume, device, _file: file_guard })
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
