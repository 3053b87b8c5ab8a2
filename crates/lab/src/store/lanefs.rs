//! lanefs in any of its modes.

use super::{Contender, Handle, LoopDevice, LoopOptions, Store, format, name};
use crate::Outcome;
use ::lanefs::{OpenOptions, Volume};
use lanefs_device::{FileOptions, Pace, PacedDevice, PmemDevice, open_url};
use std::io;
use std::path::Path;
use std::sync::Arc;

struct Lanefs {
    volume: Volume,
    /// The loop device that the volume is on, if it is on one. It is detached after the close.
    below: Option<LoopDevice>,
}

impl Lanefs {
    fn boxed(volume: Volume, below: Option<LoopDevice>) -> Box<dyn Store> {
        Box::new(Self { volume, below })
    }
}

impl Store for Lanefs {
    fn file(&self, number: usize, _: u64, direct: bool) -> Outcome<Box<dyn Handle>> {
        let path = format!("/{}", name(number));
        let options = self.volume.open_options().read(true).write(true).create(true).direct(direct);
        Ok(Box::new(options.open(path)?))
    }

    fn volume(&self) -> Option<&Volume> {
        Some(&self.volume)
    }

    fn finish(self: Box<Self>) -> Outcome<()> {
        let Self { volume, below } = *self;
        volume.close()?;
        drop(below);
        Ok(())
    }
}

impl Handle for ::lanefs::File {
    fn write(&self, at: u64, data: &[u8]) -> io::Result<()> {
        self.write_at(data, at).map_err(io::Error::other)
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        let n = self.read_at(buf, at).map_err(io::Error::other)?;
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

    fn look(&self) -> Option<u64> {
        Some(self.metadata().version())
    }
}

/// Returns lanefs on the backing file by direct I/O (`io=direct`), with a journal of `journal` MiB
/// and the options that `change` makes.
pub fn lanefs(
    name: &'static str,
    journal: u32,
    change: impl Fn(OpenOptions) -> OpenOptions + 'static,
) -> Contender {
    lanefs_default(name, journal, move |options| change(options.direct(true)))
}

/// Returns lanefs on the backing file with the options of a caller that sets none, but for those
/// that `change` makes, and with a journal of `journal` MiB. On a file of ext4 or XFS this is
/// `io=mixed`: small reads use the system's page cache, and other I/O is direct.
pub fn lanefs_default(
    name: &'static str,
    journal: u32,
    change: impl Fn(OpenOptions) -> OpenOptions + 'static,
) -> Contender {
    Contender::new(name, move |backing| {
        backing.make_volume(journal)?;
        let options = change(OpenOptions::new().write(true));
        Ok(Lanefs::boxed(options.open(backing.path())?, None))
    })
}

/// Returns lanefs on a loop device over the backing file by direct I/O, with a journal of `journal`
/// MiB: what the kernel's file systems have below them. By default, a volume on a block device uses
/// the system's page cache for all I/O, which would measure that too.
pub fn lanefs_over_loop(name: &'static str, journal: u32) -> Contender {
    Contender::new(name, move |backing| {
        backing.make_volume(journal)?;
        let device = LoopDevice::new(backing.path(), LoopOptions::DIRECT)?;
        let volume = OpenOptions::new().write(true).direct(true).open(device.path())?;
        Ok(Lanefs::boxed(volume, Some(device)))
    })
}

/// Returns lanefs on a mapped file of `size` bytes.
///
/// # Errors
/// The errors of making and opening a volume.
pub fn mapped(path: &Path, size: u64, options: OpenOptions) -> Outcome<Box<dyn Store>> {
    let device = PmemDevice::create(path, size)?;
    format(&device, 64)?;
    Ok(Lanefs::boxed(options.write(true).open_device(Arc::new(device))?, None))
}

/// Returns lanefs on a simulated device of `size` bytes, in memory.
///
/// # Errors
/// The errors of making and opening a volume; no memory.
pub fn simulated(pace: Pace, size: u64, journal: u32, options: OpenOptions) -> Outcome<Box<dyn Store>> {
    let memory = open_url(format!("mem:{size}"), &FileOptions::new())?;
    format(&memory, journal)?;
    let device = PacedDevice::new(memory, pace);
    Ok(Lanefs::boxed(options.write(true).open_device(Arc::new(device))?, None))
}
