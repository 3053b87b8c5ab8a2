//! The backing file itself: the upper bound for every file system.

use super::{Backing, Contender, Handle, Store};
use crate::Outcome;
use rustix::fs::OFlags;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;

struct Raw(Arc<File>);

struct Region {
    file: Arc<File>,
    base: u64,
}

impl Store for Raw {
    fn file(&self, number: usize, size: u64, _: bool) -> Outcome<Box<dyn Handle>> {
        Ok(Box::new(Region { file: Arc::clone(&self.0), base: number as u64 * size }))
    }

    fn finish(self: Box<Self>) -> Outcome<()> {
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
    File::options()
        .read(true)
        .write(true)
        .custom_flags(OFlags::DIRECT.bits().cast_signed())
        .open(backing.path())
}

/// Returns direct I/O on the backing file, each file a part of it.
pub fn raw() -> Contender {
    Contender::new("raw", |backing| Ok(Box::new(Raw(Arc::new(open_raw(backing)?)))))
}
