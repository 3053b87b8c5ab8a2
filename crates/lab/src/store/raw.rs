//! The backing file itself, or a loop device on it: the upper bounds for every file system.

use super::{Backing, Contender, Handle, LoopDevice, LoopOptions, Store};
use crate::Outcome;
use rustix::fs::OFlags;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

struct Raw {
    file: Arc<File>,
    /// The loop device that `file` is, if it is one. It is detached after the file is closed.
    below: Option<LoopDevice>,
}

struct Region {
    file: Arc<File>,
    base: u64,
}

impl Store for Raw {
    fn file(&self, number: usize, size: u64, _: bool) -> Outcome<Box<dyn Handle>> {
        Ok(Box::new(Region { file: Arc::clone(&self.file), base: number as u64 * size }))
    }

    fn finish(self: Box<Self>) -> Outcome<()> {
        let Self { file, below } = *self;
        drop(file);
        drop(below);
        Ok(())
    }
}

impl Handle for Region {
    fn write(&self, at: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, self.base + at)
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, self.base + at)
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// Opens the backing file for direct I/O.
///
/// # Errors
/// The errors of opening.
pub fn open_raw(backing: &Backing) -> io::Result<File> {
    open_direct(backing.path())
}

/// Opens a file or a block device for direct I/O.
///
/// # Errors
/// The errors of opening.
pub fn open_direct(path: &Path) -> io::Result<File> {
    let flags = OFlags::DIRECT.bits().cast_signed();
    File::options().read(true).write(true).custom_flags(flags).open(path)
}

/// Returns direct I/O on the backing file, each file a part of it.
pub fn raw() -> Contender {
    Contender::new("raw", |backing| {
        let file = Arc::new(open_raw(backing)?);
        Ok(Box::new(Raw { file, below: None }))
    })
}

/// Returns direct I/O on a loop device over the backing file, each file a part of it: the same as
/// [`raw`] with what the kernel's file systems have below them.
pub fn raw_over_loop() -> Contender {
    Contender::new("raw over loop", |backing| {
        let device = LoopDevice::new(backing.path(), LoopOptions::DIRECT)?;
        let file = Arc::new(open_direct(device.path())?);
        Ok(Box::new(Raw { file, below: Some(device) }))
    })
}
