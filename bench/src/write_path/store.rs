//! Files of one kind or another, behind one face.

use super::backing::{Backing, format};
use super::{Outcome, Variant, variant};
use lanefs::{OpenOptions, Volume};
use lanefs_device::{AlignedBuf, PmemDevice};
use lanefs_tests::LoopMount;
use rustix::fs::OFlags;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

/// A place that has files, by number.
pub(crate) trait Store: Sync {
    /// File `number`, which is made if there is none; `size` is what it will hold at most.
    fn file(&self, number: usize, size: u64, direct: bool) -> Outcome<Box<dyn Handle>>;

    /// The volume, where it is lanefs'.
    fn volume(&self) -> Option<&Volume> {
        None
    }

    /// Unmounts or closes.
    fn finish(self: Box<Self>) -> Outcome<()>;
}

/// An open file.
pub(crate) trait Handle: Send + Sync {
    fn write(&self, at: u64, data: &[u8]) -> io::Result<()>;
    fn read(&self, at: u64, buf: &mut [u8]) -> io::Result<()>;
    fn set_len(&self, len: u64) -> io::Result<()>;
    fn sync(&self) -> io::Result<()>;
    fn sync_data(&self) -> io::Result<()>;
}

/// Opens `count` files and writes each full of something, `size` bytes.
pub(crate) fn filled(
    store: &dyn Store,
    count: usize,
    size: u64,
    direct: bool,
) -> Outcome<Vec<Box<dyn Handle>>> {
    let mut page = AlignedBuf::zeroed(1 << 20);
    page.fill(0x5a);
    (0..count)
        .map(|number| {
            let file = store.file(number, size, direct)?;
            let mut at = 0;
            while at < size {
                let n = (size - at).min(page.len() as u64);
                file.write(at, &page[..n as usize])?;
                at += n;
            }
            file.sync()?;
            Ok(file)
        })
        .collect()
}

// ---- raw

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

/// The backing file, for direct I/O.
pub(crate) fn open_raw(backing: &Backing) -> io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .custom_flags(OFlags::DIRECT.bits().cast_signed())
        .open(backing.path())
}

/// Direct I/O on the backing file, each file a part of it.
pub(crate) fn raw() -> Variant {
    variant("raw", |backing| Ok(Box::new(Raw(Arc::new(open_raw(backing)?)))))
}

// ---- the kernel

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

    fn finish(self: Box<Self>) -> Outcome<()> {
        self.0.unmount();
        Ok(())
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

/// The kernel's ext4 with a journal of so many MiB and these mount options besides noatime.
pub(crate) fn ext4(name: &'static str, journal: u32, options: &'static str) -> Variant {
    variant(name, move |backing| {
        backing.make_ext4(journal);
        Ok(Box::new(Kernel(LoopMount::direct(backing.path(), "ext4", &format!("noatime,{options}"))?)))
    })
}

/// The kernel's XFS.
pub(crate) fn xfs() -> Variant {
    variant("XFS", |backing| {
        backing.make_xfs();
        Ok(Box::new(Kernel(LoopMount::direct(backing.path(), "xfs", "noatime")?)))
    })
}

// ---- lanefs

struct Lanefs(Volume);

impl Store for Lanefs {
    fn file(&self, number: usize, _: u64, direct: bool) -> Outcome<Box<dyn Handle>> {
        let path = format!("/{}", name(number));
        let options = self.0.open_options().read(true).write(true).create(true).direct(direct);
        Ok(Box::new(options.open(path)?))
    }

    fn volume(&self) -> Option<&Volume> {
        Some(&self.0)
    }

    fn finish(self: Box<Self>) -> Outcome<()> {
        Ok(self.0.close()?)
    }
}

impl Handle for lanefs::File {
    fn write(&self, at: u64, data: &[u8]) -> io::Result<()> {
        self.write_at(at, data).map_err(io::Error::other)
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        let n = self.read_at(at, buf).map_err(io::Error::other)?;
        if n == buf.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Self::set_len(self, len).map_err(io::Error::other)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_all().map_err(io::Error::other)
    }

    fn sync_data(&self) -> io::Result<()> {
        Self::sync_data(self).map_err(io::Error::other)
    }
}

/// lanefs on the backing file by direct I/O, with a journal of so many MiB and options of one's choice.
pub(crate) fn lanefs(
    name: &'static str,
    journal: u32,
    change: impl Fn(OpenOptions) -> OpenOptions + 'static,
) -> Variant {
    variant(name, move |backing| {
        backing.make_volume(journal)?;
        let options = change(OpenOptions::new().write(true).direct(true));
        Ok(Box::new(Lanefs(options.open(backing.path())?)))
    })
}

/// lanefs on a mapped file of `size` bytes.
pub(crate) fn mapped(path: &Path, size: u64, options: OpenOptions) -> Outcome<Box<dyn Store>> {
    let device = PmemDevice::create(path, size)?;
    format(&device, 64)?;
    Ok(Box::new(Lanefs(options.write(true).open_device(Arc::new(device))?)))
}

fn name(number: usize) -> String {
    format!("f{number}")
}
