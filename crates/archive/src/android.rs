//! Android sparse images, version 1.0: what fastboot and `simg2img` take.
//!
//! A header, then chunks in the order of the image: raw bytes, a word that repeats, blocks that
//! DONT_CARE skips, and in the end the CRC of all, in which these are zeros. Free blocks of the
//! volume become DONT_CARE chunks. The same volume gives the same bytes.

use crate::unfinished::{Unfinished, host};
use crate::{Action, Cause, Error, Event};
use flate2::Crc;
use lanefs::Volume;
use lanefs::device::BlockDevice;
use lanefs::format::Incompat;
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::ops::{ControlFlow, Range};
use std::path::Path;

const MAGIC: u32 = 0xed26_ff3a;
const HEADER: u16 = 28;
const CHUNK_HEADER: u16 = 12;
const RAW: u16 = 0xcac1;
const FILL: u16 = 0xcac2;
const DONT_CARE: u16 = 0xcac3;
const CRC32: u16 = 0xcac4;

/// Bytes of a raw chunk at most, and those that are read at once.
const PIECE: u64 = 1 << 20;

/// Writes a volume to a file as an Android sparse image. `device` is what the volume lies on; both
/// must not change meanwhile. Its first superblock says how large it is: what lies behind the
/// volume is left out. With `overwrite`, a file that is there is replaced when the new one is
/// complete; after an error or a cancel there is none.
///
/// # Errors
/// [`Cause::NeedsRecovery`], [`Cause::TooManyBlocks`], [`Cause::TargetExists`]; the device cannot
/// be read, a bitmap is damaged, the file cannot be written, or `events` cancelled.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("system.img");
/// use lanefs::{OpenOptions, Volume, device::MemDevice, mkfs};
/// use std::{ops::ControlFlow, sync::Arc};
/// let device = Arc::new(MemDevice::new(16 << 20));
/// mkfs::format(&*device, &mkfs::Options::default())?;
/// let volume = Volume::open_device(device.clone())?;
/// volume.write("/build.prop", b"ro.lane=1\n")?;
/// volume.close()?;
/// let volume = OpenOptions::new().open_device(device.clone())?;
/// lanefs_archive::android_sparse(&volume, &*device, &path, false, |_| ControlFlow::Continue(()))?;
/// assert!(path.metadata()?.len() < 1 << 20, "free blocks take no room");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn android_sparse(
    volume: &Volume,
    device: &dyn BlockDevice,
    path: impl AsRef<Path>,
    overwrite: bool,
    mut events: impl FnMut(Event) -> ControlFlow<()>,
) -> Result<(), Error> {
    let path = path.as_ref();
    let failed = |cause: Cause| Error::new(Action::Write, host(path), cause);
    let mut file = Unfinished::new(path, Action::Write, overwrite, false)?;
    let info = volume.info();
    if info.recovery.journal.needed || info.superblock.has_in(Incompat::RECOVER) {
        return Err(failed(Cause::NeedsRecovery));
    }
    let blocks = info.superblock.blocks_count();
    let total = u32::try_from(blocks).map_err(|_| failed(Cause::TooManyBlocks(blocks)))?;
    let stream = file.create_stream().map_err(failed)?;
    let mut image = Image::new(stream, device, info.superblock.block_size()).map_err(failed)?;
    let (mut at, mut ended) = (0, Ok(()));
    let runs = volume.free_runs(|free| {
        ended = image.used(at..free.start, &mut events).and_then(|()| image.free(free.end - free.start));
        at = free.end;
        if ended.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    runs.map_err(|e| failed(e.into()))?;
    ended.map_err(failed)?;
    image.used(at..blocks, &mut events).map_err(failed)?;
    image.finish(total).map_err(|e| failed(e.into()))?;
    file.finish()
}

/// An image that is being written.
struct Image<'a> {
    stream: BufWriter<&'a File>,
    device: &'a dyn BlockDevice,
    block_size: u64,
    chunks: u32,
    crc: Zeros,
    /// Blocks that all hold this word, and were not written yet.
    filled: (u32, u32),
    /// Bytes of a raw chunk that was not written yet.
    raw: Vec<u8>,
}

impl<'a> Image<'a> {
    fn new(stream: &'a File, device: &'a dyn BlockDevice, block_size: u32) -> Result<Self, Cause> {
        let mut stream = BufWriter::with_capacity(PIECE as usize, stream);
        // The real header is written in the end.
        stream.write_all(&[0; HEADER as usize])?;
        let (block_size, crc) = (block_size.into(), Zeros::new());
        Ok(Self { stream, device, block_size, chunks: 0, crc, filled: (0, 0), raw: Vec::new() })
    }

    /// Writes blocks that are in use.
    fn used(
        &mut self,
        blocks: Range<u64>,
        events: &mut impl FnMut(Event) -> ControlFlow<()>,
    ) -> Result<(), Cause> {
        let mut bytes = Vec::new();
        let (mut at, end) = (blocks.start * self.block_size, blocks.end * self.block_size);
        while at < end {
            let len = (end - at).min(PIECE);
            if events(Event::Data(len)).is_break() {
                return Err(Cause::Cancelled);
            }
            bytes.resize(len as usize, 0);
            self.device.read_at(&mut bytes, at).map_err(lanefs::Error::from)?;
            self.crc.sum.update(&bytes);
            for block in bytes.chunks_exact(self.block_size as usize) {
                self.block(block)?;
            }
            at += len;
        }
        Ok(())
    }

    fn block(&mut self, block: &[u8]) -> io::Result<()> {
        let (words, _) = block.as_chunks::<4>();
        let word = words.first().copied().unwrap_or_default();
        if words.iter().any(|other| *other != word) {
            self.end_filled()?;
            self.raw.extend(block);
            return if self.raw.len() as u64 >= PIECE { self.end_raw() } else { Ok(()) };
        }
        self.end_raw()?;
        let word = u32::from_le_bytes(word);
        if self.filled.0 != word {
            self.end_filled()?;
        }
        self.filled = (word, self.filled.1 + 1);
        Ok(())
    }

    /// Passes over blocks that are free.
    fn free(&mut self, blocks: u64) -> Result<(), Cause> {
        self.end()?;
        self.crc.add(blocks * self.block_size);
        // A volume has no more than this type holds.
        Ok(self.chunk(DONT_CARE, blocks as u32, 0)?)
    }

    fn end(&mut self) -> io::Result<()> {
        self.end_raw()?;
        self.end_filled()
    }

    fn end_raw(&mut self) -> io::Result<()> {
        let raw = std::mem::take(&mut self.raw);
        if raw.is_empty() {
            return Ok(());
        }
        self.chunk(RAW, (raw.len() as u64 / self.block_size) as u32, raw.len() as u32)?;
        self.stream.write_all(&raw)
    }

    fn end_filled(&mut self) -> io::Result<()> {
        let (word, blocks) = std::mem::take(&mut self.filled);
        if blocks == 0 {
            return Ok(());
        }
        self.chunk(FILL, blocks, 4)?;
        self.stream.write_all(&word.to_le_bytes())
    }

    /// Writes the header of a chunk with so many bytes behind it.
    fn chunk(&mut self, kind: u16, blocks: u32, bytes: u32) -> io::Result<()> {
        self.chunks += 1;
        self.stream.write_all(&kind.to_le_bytes())?;
        self.stream.write_all(&[0; 2])?;
        self.stream.write_all(&blocks.to_le_bytes())?;
        self.stream.write_all(&(u32::from(CHUNK_HEADER) + bytes).to_le_bytes())
    }

    /// Writes the checksum and the header.
    fn finish(mut self, total: u32) -> io::Result<()> {
        self.end()?;
        let crc = self.crc.sum.sum();
        self.chunk(CRC32, 0, 4)?;
        self.stream.write_all(&crc.to_le_bytes())?;
        self.stream.seek(SeekFrom::Start(0))?;
        let words = [self.block_size as u32, total, self.chunks, crc].map(u32::to_le_bytes);
        self.stream.write_all(&MAGIC.to_le_bytes())?;
        for half in [1, 0, HEADER, CHUNK_HEADER] {
            self.stream.write_all(&half.to_le_bytes())?;
        }
        self.stream.write_all(words.as_flattened())?;
        self.stream.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
    }
}

/// A CRC to which any number of zeros is added in no time.
struct Zeros {
    sum: Crc,
    /// The CRC of 2^i zeros.
    of: Vec<Crc>,
}

impl Zeros {
    /// The longest run that is added at once has 2^30 bytes: a CRC counts in 32 bits.
    const LONGEST: u32 = 30;

    fn new() -> Self {
        let mut one = Crc::new();
        one.update(&[0]);
        let mut of = vec![one];
        for i in 0..Self::LONGEST as usize {
            let mut double = Crc::new();
            double.combine(&of[i]);
            double.combine(&of[i]);
            of.push(double);
        }
        Self { sum: Crc::new(), of }
    }

    fn add(&mut self, mut bytes: u64) {
        while let Some(log) = bytes.checked_ilog2() {
            let log = log.min(Self::LONGEST);
            self.sum.combine(&self.of[log as usize]);
            bytes -= 1 << log;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_added_as_if_they_were_there() {
        for zeros in [0, 1, 5, 4096, 100_000, 3 << 20] {
            let (mut fast, mut slow) = (Zeros::new(), Crc::new());
            for bytes in [&b"before"[..], b"behind"] {
                fast.sum.update(bytes);
                fast.add(zeros);
                slow.update(bytes);
                slow.update(&vec![0; zeros as usize]);
            }
            assert_eq!(fast.sum.sum(), slow.sum(), "{zeros}");
        }
    }
}
