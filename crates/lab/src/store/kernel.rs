//! The kernel's file systems, on a loop device over the backing file.

use super::{Contender, Handle, LoopMount, LoopOptions, Store, name};
use crate::Outcome;
use rustix::fs::OFlags;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

struct Kernel(LoopMount);

impl Store for Kernel {
    fn file(&self, number: usize, _: u64, direct: bool) -> Outcome<Box<dyn Handle>> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        if direct {
            options.custom_flags(OFlags::DIRECT.bits().cast_signed());
        }
        Ok(Box::new(options.open(self.0.path().join(name(number)))?))
    }

    fn finish(mut self: Box<Self>) -> Outcome<()> {
        self.0.unmount()
    }
}

impl Handle for File {
    fn write(&self, at: u64, data: &[u8]) -> io::Result<()> {
        self.write_all_at(data, at)
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(buf, at)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Self::set_len(self, len)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }

    fn sync_data(&self) -> io::Result<()> {
        Self::sync_data(self)
    }
}

/// Returns the kernel's ext4 with a journal of `journal` MiB, mounted with noatime and `options`.
pub fn ext4(name: &'static str, journal: u32, options: &'static str) -> Contender {
    Contender::new(name, move |backing| {
        backing.make_ext4(journal)?;
        let words = format!("noatime,{options}");
        Ok(Box::new(Kernel(LoopMount::new(backing.path(), "ext4", &words, LoopOptions::DIRECT)?)))
    })
}

/// Returns the kernel's XFS.
pub fn xfs() -> Contender {
    Contender::new("XFS", |backing| {
        backing.make_xfs()?;
        Ok(Box::new(Kernel(LoopMount::new(backing.path(), "xfs", "noatime", LoopOptions::DIRECT)?)))
    })
}
