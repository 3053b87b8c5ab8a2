//! lanefs in any of its modes.

use super::{Contender, Handle, Store, format, name};
use crate::Outcome;
use ::lanefs::{OpenOptions, Volume};
use lanefs_device::{FileOptions, Pace, PacedDevice, PmemDevice, open_url};
use std::io;
use std::path::Path;
use std::sync::Arc;

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

/// Returns lanefs on the backing file by direct I/O, with a journal of `journal` MiB and the
/// options that `change` makes.
pub fn lanefs(
    name: &'static str,
    journal: u32,
    change: impl Fn(OpenOptions) -> OpenOptions + 'static,
) -> Contender {
    Contender::new(name, move |backing| {
        backing.make_volume(journal)?;
        let options = change(OpenOptions::new().write(true).direct(true));
        Ok(Box::new(Lanefs(options.open(backing.path())?)))
    })
}

/// Returns lanefs on a mapped file of `size` bytes.
///
/// # Errors
/// The errors of making and opening a volume.
pub fn mapped(path: &Path, size: u64, options: OpenOptions) -> Outcome<Box<dyn Store>> {
    let device = PmemDevice::create(path, size)?;
    format(&device, 64)?;
    Ok(Box::new(Lanefs(options.write(true).open_device(Arc::new(device))?)))
}

/// Returns lanefs on a simulated device of `size` bytes, in memory.
///
/// # Errors
/// The errors of making and opening a volume; no memory.
pub fn simulated(pace: Pace, size: u64, journal: u32, options: OpenOptions) -> Outcome<Box<dyn Store>> {
    let memory = open_url(format!("mem:{size}"), &FileOptions::new())?;
    format(&memory, journal)?;
    let device = PacedDevice::new(memory, pace);
    Ok(Box::new(Lanefs(options.write(true).open_device(Arc::new(device))?)))
}
