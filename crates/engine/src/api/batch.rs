//! Batches of reads and writes.

use super::File;
use super::file::Access;
use crate::error::Result;
use crate::fs::Fs;
use crate::fs::data::{self, Bytes, Caching};
use std::sync::Arc;

/// A read or a write of [`File::run_batch`].
#[derive(Debug)]
pub struct Io<'a> {
    file: &'a File,
    offset: u64,
    bytes: Bytes<'a>,
}

impl<'a> Io<'a> {
    /// Makes a read as [`File::read_at`] does it.
    pub fn read(file: &'a File, buf: &'a mut [u8], offset: u64) -> Self {
        Self { file, offset, bytes: Bytes::Read(buf) }
    }

    /// Makes a write as [`File::write_at`] does it.
    pub fn write(file: &'a File, bytes: &'a [u8], offset: u64) -> Self {
        Self { file, offset, bytes: Bytes::Write(bytes) }
    }

    /// Returns the volume, if the request may go to the device in a batch.
    fn goes_along(&self) -> Option<&'a Arc<Fs>> {
        let Access { caching, append, .. } = self.file.access;
        let may = match self.bytes {
            Bytes::Read(_) => self.file.check_read(),
            Bytes::Write(_) => self.file.check_write(),
        };
        let direct = caching == Caching::Direct;
        (direct && !append && may.is_ok()).then_some(&self.file.inode().fs)
    }

    fn run_alone(&mut self) -> Result<usize> {
        match &mut self.bytes {
            Bytes::Read(buf) => self.file.read_at(buf, self.offset),
            Bytes::Write(bytes) => self.file.write_at(bytes, self.offset).map(|()| bytes.len()),
        }
    }
}

impl File {
    /// Runs reads and writes of any files, in no order. Returns for each how many bytes, as
    /// [`read_at`](Self::read_at) and [`write_at`](Self::write_at) do.
    ///
    /// Requests of files opened with [`direct`](crate::FileOptions::direct) go to the device
    /// together, if it is open for direct I/O: all reads at once, and all overwrites at once. So
    /// one thread keeps the device as busy as many threads with single requests. Requests that
    /// overlap may mix.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// use lanefs::{File, Io};
    /// let options = volume.open_options().read(true).write(true).create(true);
    /// let file = options.direct(true).open("/a")?;
    /// file.write_at(&[1; 8192], 0)?;
    /// let mut second = [0; 4096];
    /// let mut ios = [Io::write(&file, &[2; 4096], 0), Io::read(&file, &mut second, 4096)];
    /// let done = File::run_batch(&mut ios);
    /// assert!(done.into_iter().all(|done| done.is_ok_and(|len| len == 4096)));
    /// assert_eq!(second, [1; 4096]);
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn run_batch(ios: &mut [Io<'_>]) -> Vec<Result<usize>> {
        let mut moved = vec![None; ios.len()];
        // Only the first file's volume has a batch; nearly always it is that of all files.
        let mut volumes = ios.iter().filter_map(Io::goes_along);
        if let Some(fs) = volumes.next().filter(|_| volumes.next().is_some()).map(Arc::clone) {
            let requests = ios.iter_mut().zip(&mut moved).filter_map(|(io, done)| {
                io.goes_along().filter(|its| Arc::ptr_eq(its, &fs))?;
                let bytes = match &mut io.bytes {
                    Bytes::Read(buf) => Bytes::Read(buf),
                    Bytes::Write(bytes) => Bytes::Write(bytes),
                };
                Some(data::Request { content: io.file.inode().content(), offset: io.offset, bytes, done })
            });
            data::run_batch(&fs, requests);
        }
        let finish = |(io, moved): (&mut Io<'_>, Option<usize>)| match (moved, &io.bytes) {
            (None, _) => io.run_alone(),
            (Some(len), Bytes::Read(_)) => Ok(len),
            (Some(len), Bytes::Write(_)) => io.file.after_write().map(|()| len),
        };
        ios.iter_mut().zip(moved).map(finish).collect()
    }
}
