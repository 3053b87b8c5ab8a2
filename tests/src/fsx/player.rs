//! Operations done on a file of lanefs and on a model of it, which must agree after each.

use super::{FALLOCATES, FileOp, Way};
use crate::ops::content;
use lanefs::format::InodeFlags;
use lanefs::{Error, FallocMode, File, Volume};
use std::ops::Range;

/// The content that a file must have. Either all of a file, or one lot of a file that others share:
/// then nothing is known of the rest, and the file's size stays as it is.
#[derive(Debug, Clone)]
pub struct Model {
    path: String,
    /// The first byte of the lot.
    start: u64,
    /// Whether this is a lot.
    shared: bool,
    bytes: Vec<u8>,
}

impl Model {
    /// A file that is empty, or is made when it is opened.
    pub fn whole(path: impl Into<String>) -> Self {
        Self { path: path.into(), start: 0, shared: false, bytes: Vec::new() }
    }

    /// A lot, all zeros, of a file that is there and reaches further.
    pub fn lot(path: impl Into<String>, lot: Range<u64>) -> Self {
        let bytes = vec![0; (lot.end - lot.start) as usize];
        Self { path: path.into(), start: lot.start, shared: true, bytes }
    }

    /// The path of the file.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns whether all of the file is known.
    pub fn is_whole(&self) -> bool {
        !self.shared
    }

    /// The end of what is known.
    pub fn size(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Where operations may take place, in a file that may grow to `max`.
    pub fn bounds(&self, max: u64) -> Range<u64> {
        self.start..if self.shared { self.size() } else { max }
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        let at = (at - self.start) as usize;
        if self.bytes.len() < at + bytes.len() {
            self.bytes.resize(at + bytes.len(), 0);
        }
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// The bytes of `range` as far as the file goes.
    fn read(&self, range: Range<u64>) -> &[u8] {
        let inner = |at: u64| (at.saturating_sub(self.start) as usize).min(self.bytes.len());
        &self.bytes[inner(range.start)..inner(range.end).max(inner(range.start))]
    }
}

/// A model and the open file.
#[derive(Debug)]
pub struct Player<'v> {
    volume: &'v Volume,
    model: Model,
    /// For reading and writing, and for appending, by [`Way`].
    files: [File; 3],
    appends: [File; 3],
}

impl<'v> Player<'v> {
    /// Opens the model's file; makes it if it is not there and the model is empty.
    ///
    /// # Errors
    /// What differs.
    pub fn new(volume: &'v Volume, model: Model) -> Result<Self, String> {
        let make = model.is_whole() && model.bytes.is_empty();
        let open = |way: Way, append: bool| {
            let options = volume.open_options().read(true).write(true).append(append).create(make);
            let options = options.direct(way == Way::Direct).dsync(way == Way::Dsync);
            options.open(&model.path).map_err(|e| format!("open {}: {e}", model.path))
        };
        let all = |append: bool| {
            Ok::<_, String>([
                open(Way::Buffered, append)?,
                open(Way::Direct, append)?,
                open(Way::Dsync, append)?,
            ])
        };
        let (files, appends) = (all(false)?, all(true)?);
        let player = Self { volume, model, files, appends };
        player.verify().map_err(|said| format!("as opened: {said}"))?;
        Ok(player)
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Closes the file.
    pub fn into_model(self) -> Model {
        self.model
    }

    /// Does `op` on both sides.
    ///
    /// # Errors
    /// What differs, or what lanefs says where nothing can fail.
    pub fn play(&mut self, op: FileOp) -> Result<(), String> {
        let path = self.model.path.clone();
        let failed = |e: Error| format!("{path}: {op}: {e}");
        match op {
            FileOp::Write { at, len, fill, way } => {
                let bytes = content(at, len, fill);
                self.files[way as usize].write_at(&bytes, at).map_err(failed)?;
                self.model.write(at, &bytes);
            }
            FileOp::Append { len, fill, way } => {
                let bytes = content(self.model.size(), len, fill);
                self.appends[way as usize].write_at(&bytes, 0).map_err(failed)?;
                self.model.write(self.model.size(), &bytes);
            }
            FileOp::Read { at, len, way } => self.compare(at..at + len as u64, way)?,
            FileOp::TryRead { at, len, way } => self.try_compare(at..at + len as u64, way)?,
            FileOp::TryWrite { at, len, fill, way } => {
                let bytes = content(at, len, fill);
                match self.files[way as usize].try_write_at(&bytes, at) {
                    Ok(n) => self.model.write(at, &bytes[..n]),
                    Err(Error::WouldBlock) => {}
                    Err(e) => return Err(failed(e)),
                }
            }
            FileOp::Copy { from, at, len } => {
                let copied = self.files[0].copy_range(from, &self.files[0], at, len).map_err(failed)?;
                let bytes = self.model.read(from..from + len).to_vec();
                if copied != bytes.len() as u64 {
                    return Err(format!("{path}: {op}: {copied} bytes, not {}", bytes.len()));
                }
                if copied > 0 {
                    self.model.write(at, &bytes);
                }
            }
            FileOp::Truncate { len } => {
                self.files[0].set_len(len).map_err(failed)?;
                self.model.bytes.resize(len as usize, 0);
            }
            FileOp::Fallocate { mode, at, len } => {
                self.fallocate(FALLOCATES[mode], at, len).map_err(failed)?
            }
            FileOp::Seek { at } => self.seek(at)?,
            FileOp::Fsync => self.files[0].sync_all().map_err(failed)?,
            FileOp::Fdatasync => self.files[0].sync_data().map_err(failed)?,
            FileOp::Reopen => *self = Self::new(self.volume, self.model.clone())?,
        }
        self.check_size()
    }

    fn fallocate(&mut self, mode: FallocMode, at: u64, len: u64) -> lanefs::Result<()> {
        let block = u64::from(self.files[0].metadata().block_size());
        let (size, end) = (self.model.size(), at + len);
        let extents = self.files[0].metadata().flags().contains(InodeFlags::EXTENTS);
        let whole = at.is_multiple_of(block) && len.is_multiple_of(block);
        let sound = match mode {
            FallocMode::CollapseRange => whole && end < size,
            FallocMode::InsertRange => whole && at < size,
            _ => true,
        };
        match self.files[0].fallocate(mode, at, len) {
            Ok(()) if sound => {}
            Err(Error::Invalid(_)) if !sound => return Ok(()),
            Err(Error::NotSupported(_)) if !extents => return Ok(()),
            Ok(()) => return Err(Error::Invalid("it was not refused")),
            Err(e) => return Err(e),
        }
        let bytes = &mut self.model.bytes;
        let inner = |at: u64| (at - self.model.start) as usize;
        let cut = inner(at).min(bytes.len())..inner(end).min(bytes.len());
        let grows = matches!(mode, FallocMode::Allocate | FallocMode::ZeroRange);
        match mode {
            FallocMode::CollapseRange => drop(bytes.drain(cut)),
            FallocMode::InsertRange => drop(bytes.splice(cut.start..cut.start, vec![0; len as usize])),
            FallocMode::PunchHole | FallocMode::ZeroRange | FallocMode::ZeroRangeKeepSize => {
                bytes[cut].fill(0)
            }
            _ => {}
        }
        if grows && end > size {
            bytes.resize(inner(end), 0);
        }
        Ok(())
    }

    /// Compares all that is known.
    ///
    /// # Errors
    /// What differs.
    pub fn verify(&self) -> Result<(), String> {
        self.check_size()?;
        self.compare(self.model.start..self.model.size(), Way::Buffered)
    }

    fn check_size(&self) -> Result<(), String> {
        let (found, size) = (self.files[0].metadata().len(), self.model.size());
        match self.model.shared || found == size {
            true => Ok(()),
            false => Err(format!("{}: {found} bytes, not {size}", self.model.path)),
        }
    }

    fn compare(&self, range: Range<u64>, way: Way) -> Result<(), String> {
        let path = &self.model.path;
        let expected = self.model.read(range.clone());
        let mut found = vec![0xA5; (range.end - range.start) as usize];
        let n = self.files[way as usize]
            .read_at(&mut found, range.start)
            .map_err(|e| format!("{path}: read {range:?}: {e}"))?;
        if n != expected.len() {
            return Err(format!("{path}: read {range:?}: {n} bytes, not {}", expected.len()));
        }
        self.same(range, &found[..n], expected)
    }

    /// What can be had at once is right, and nothing only at the end.
    fn try_compare(&self, range: Range<u64>, way: Way) -> Result<(), String> {
        let path = &self.model.path;
        let expected = self.model.read(range.clone());
        let mut found = vec![0xA5; (range.end - range.start) as usize];
        match self.files[way as usize].try_read_at(&mut found, range.start) {
            Ok(n) if n <= expected.len() && (n > 0 || expected.is_empty() || found.is_empty()) => {
                self.same(range, &found[..n], &expected[..n])
            }
            Ok(n) => Err(format!("{path}: read {range:?} at once: {n} of {} bytes", expected.len())),
            Err(Error::WouldBlock) => Ok(()),
            Err(e) => Err(format!("{path}: read {range:?} at once: {e}")),
        }
    }

    fn same(&self, range: Range<u64>, found: &[u8], expected: &[u8]) -> Result<(), String> {
        let (path, n) = (&self.model.path, found.len());
        let differs = |i: &usize| found[*i] != expected[*i];
        let Some(first) = (0..n).find(differs) else { return Ok(()) };
        let last = (0..n).rev().find(differs).unwrap_or(first);
        let shown = |bytes: &[u8]| bytes[first..(first + 16).min(n)].to_vec();
        Err(format!(
            "{path}: read {range:?}: bytes {}..={} differ ({} of them): found {:02x?}, not {:02x?}",
            range.start + first as u64,
            range.start + last as u64,
            (0..n).filter(differs).count(),
            shown(found),
            shown(expected),
        ))
    }

    /// What is said to be a hole is zeros.
    fn seek(&self, at: u64) -> Result<(), String> {
        let path = &self.model.path;
        let found = self.files[0].next_data(at).map_err(|e| format!("{path}: seek {at}: {e}"))?;
        let (start, end) = found.unwrap_or((u64::MAX, u64::MAX));
        let data = match self.files[0].seek_data(at) {
            Err(Error::NothingThere { .. }) => u64::MAX,
            other => other.map_err(|e| format!("{path}: seek data {at}: {e}"))?,
        };
        let hole = match self.files[0].seek_hole(at) {
            Err(Error::NothingThere { .. }) if self.model.is_whole() && at >= self.model.size() => u64::MAX,
            other => other.map_err(|e| format!("{path}: seek hole {at}: {e}"))?,
        };
        if hole < at || data < at || hole == data && hole != u64::MAX {
            return Err(format!("{path}: data at {data} and a hole at {hole}, seen from {at}"));
        }
        let start = start.max(data);
        let hole = self.model.read(at..start);
        match hole.iter().position(|b| *b != 0) {
            _ if start < at || found.is_some() && end <= start => {
                Err(format!("{path}: seek {at}: {found:?}"))
            }
            None => Ok(()),
            Some(i) => Err(format!("{path}: seek {at}: {found:?}, but there is data at {}", at + i as u64)),
        }
    }
}
