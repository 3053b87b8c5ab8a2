//! The file that raw I/O, lanefs and loop devices use in turn.
//!
//! It is written whole before any measurement, so that no contender pays for block allocation in
//! the file system below. A program that makes a volume on it must not punch holes.

use super::run_tool;
use crate::{Outcome, stop};
use lanefs_device::{AlignedBuf, BlockDevice, FileDevice, FileOptions, forward_to};
use lanefs_mkfs as mkfs;
use std::path::{Path, PathBuf};

/// The file, removed when dropped; or a block device.
#[derive(Debug)]
pub struct Backing {
    path: PathBuf,
    size: u64,
    remove: bool,
}

impl Backing {
    /// Makes a file of `size` bytes in `dir`, without holes.
    ///
    /// # Errors
    /// The errors of writing; a file system that takes no direct I/O.
    pub fn new(dir: &Path, size: u64) -> Outcome<Self> {
        let backing = Self { path: dir.join("lanefs-lab.img"), size, remove: true };
        let device = FileOptions::new().direct(true).create(&backing.path, size)?;
        let mut page = AlignedBuf::zeroed(4 << 20);
        page.fill(0xa5);
        let mut at = 0;
        while at < size {
            stop::check()?;
            let n = (size - at).min(page.len() as u64);
            device.write_at(&page[..n as usize], at)?;
            at += n;
        }
        device.flush()?;
        Ok(backing)
    }

    /// Uses a block device. Its content is lost.
    ///
    /// # Errors
    /// The errors of opening it; less than `size` bytes.
    pub fn on_device(path: &Path, size: u64) -> Outcome<Self> {
        let has = FileOptions::new().direct(true).open(path)?.size();
        if has < size {
            return Err(format!("{}: has {has} bytes, {size} are needed", path.display()).into());
        }
        Ok(Self { path: path.to_owned(), size: has, remove: false })
    }

    /// Returns the name of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Makes a volume by lanefs' mkfs, with a journal of `journal` MiB.
    ///
    /// # Errors
    /// The errors of `mkfs`.
    pub fn make_volume(&self, journal: u32) -> Outcome<()> {
        let device = NoPunchDevice(FileDevice::open(&self.path)?);
        format(&device, journal)?;
        device.flush()?;
        Ok(())
    }

    /// Makes a volume by mke2fs, with a journal of `journal` MiB.
    ///
    /// # Errors
    /// The errors of mke2fs.
    pub fn make_ext4(&self, journal: u32) -> Outcome<()> {
        let journal = format!("size={journal}");
        let extended = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
        let path = self.path.to_string_lossy();
        run_tool("mke2fs", &["-q", "-F", "-t", "ext4", "-m", "1", "-J", &journal, "-E", extended, &path])?;
        Ok(())
    }

    /// Makes an XFS by mkfs.xfs.
    ///
    /// # Errors
    /// The errors of mkfs.xfs.
    pub fn make_xfs(&self) -> Outcome<()> {
        run_tool("mkfs.xfs", &["-q", "-f", "-K", &self.path.to_string_lossy()])?;
        Ok(())
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        if self.remove {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Makes a volume on a device, with a journal of so many MiB.
///
/// # Errors
/// The errors of `mkfs`.
pub fn format(device: &dyn BlockDevice, journal: u32) -> Outcome<()> {
    let options = mkfs::Options {
        journal_size: Some(journal),
        reserved_percent: Some(1.0),
        keep: true,
        ..mkfs::Options::default()
    };
    mkfs::format(device, &options)?;
    Ok(())
}

/// A file in which zeros are written, not punched.
#[derive(Debug)]
struct NoPunchDevice(FileDevice);

impl BlockDevice for NoPunchDevice {
    forward_to!(0: size read_only read_at write_at read_batch write_batch flush);

    fn discard(&self, _: u64, _: u64) -> lanefs_device::Result<()> {
        Ok(())
    }
}
