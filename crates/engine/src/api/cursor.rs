//! An open file with a position.

use super::File;
use crate::error::{Error, Result};
use std::borrow::Borrow;
use std::io::{self, Read, Seek, SeekFrom, Write};

/// An open file with a position: [`Read`], [`Write`] and [`Seek`], as [`std::fs::File`] has them.
///
/// It has a [`File`] or a reference to one. Each cursor has a position of its own. A file that is
/// open for appending is written at its end, and the position is then behind what was written.
///
/// ```
/// use lanefs::FileCursor;
/// use std::io::{BufRead, BufReader, Seek, Write};
///
/// let volume = lanefs::Volume::in_memory(16 << 20)?;
/// let mut log = FileCursor::new(volume.create_file("/log")?);
/// writeln!(log, "one")?;
/// writeln!(log, "two")?;
/// log.rewind()?;
/// let lines: Vec<String> = BufReader::new(log).lines().collect::<Result<_, _>>()?;
/// assert_eq!(lines, ["one", "two"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct FileCursor<F> {
    file: F,
    at: u64,
}

impl<F: Borrow<File>> FileCursor<F> {
    /// Begins at the start of the file.
    pub fn new(file: F) -> Self {
        Self { file, at: 0 }
    }

    /// Returns the file.
    pub fn into_inner(self) -> F {
        self.file
    }

    /// Advances the position to `from` plus `by` bytes.
    fn moved(&mut self, from: u64, by: usize) -> Result<usize> {
        self.at = from.checked_add(by as u64).ok_or(Error::FileTooBig)?;
        Ok(by)
    }
}

impl<F: Borrow<File>> Read for FileCursor<F> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.file.borrow().read_at(buf, self.at)?;
        Ok(self.moved(self.at, n)?)
    }
}

impl<F: Borrow<File>> Write for FileCursor<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let (from, n) = self.file.borrow().write_part_from(bytes, self.at)?;
        Ok(self.moved(from, n)?)
    }

    /// Does nothing: written bytes can be read at once; [`File::sync_all`] makes them durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<F: Borrow<File>> Seek for FileCursor<F> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.file.borrow().metadata().len().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(Error::Invalid("a position before the start of the file"))?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Volume;

    #[test]
    fn positions_are_those_of_a_file_of_the_system() {
        let volume = Volume::in_memory(16 << 20).unwrap();
        let file = volume.open_options().read(true).write(true).create(true).open("/f").unwrap();
        let mut ours = FileCursor::new(&file);
        let mut theirs = tempfile::tempfile().unwrap();
        let moves = [SeekFrom::Start(3), SeekFrom::End(-2), SeekFrom::Current(-1), SeekFrom::End(5)];
        for to in moves.into_iter().chain([SeekFrom::Current(i64::MIN), SeekFrom::Current(0)]) {
            for write in [&b"some"[..], b"", b"more bytes"] {
                assert_eq!(ours.write(write).unwrap(), theirs.write(write).unwrap());
            }
            let (a, b) = (ours.seek(to), theirs.seek(to));
            assert_eq!(a.as_ref().ok(), b.as_ref().ok());
            assert_eq!(a.map_err(|e| e.kind()).err(), b.map_err(|e| e.kind()).err());
            let (mut a, mut b) = (Vec::new(), Vec::new());
            assert_eq!(ours.read_to_end(&mut a).unwrap(), theirs.read_to_end(&mut b).unwrap());
            assert_eq!(a, b);
        }
        assert_eq!(ours.stream_position().unwrap(), theirs.stream_position().unwrap());
    }

    /// After an error, which says that no byte was written, a `BufWriter` would write all of them
    /// again.
    #[test]
    fn a_full_volume_ends_a_write_where_it_got_to() {
        let volume = Volume::in_memory(16 << 20).unwrap();
        for append in [false, true] {
            let file = volume.open_options().write(true).append(append).create(true).open("/f").unwrap();
            file.set_len(0).unwrap();
            file.write_at(b"start", 0).unwrap();
            let mut cursor = FileCursor::new(&file);
            cursor.seek(SeekFrom::End(0)).unwrap();
            let bytes: Vec<_> = (0..32_u32 << 20).map(|i| (i / 1000) as u8).collect();
            let n = cursor.write(&bytes).unwrap();
            assert!(n > 1 << 20 && n < bytes.len(), "{n}");
            assert_eq!(cursor.stream_position().unwrap(), 5 + n as u64);
            assert!(volume.read("/f").unwrap()[5..] == bytes[..n]);
            assert_eq!(cursor.write(&bytes).unwrap_err().kind(), io::ErrorKind::StorageFull);
        }
    }

    #[test]
    fn a_file_for_appending_is_written_at_its_end() {
        let volume = Volume::in_memory(16 << 20).unwrap();
        volume.write("/f", b"start").unwrap();
        let file = volume.open_options().append(true).open("/f").unwrap();
        let mut cursor = FileCursor::new(file);
        cursor.write_all(b"+end").unwrap();
        assert_eq!(cursor.stream_position().unwrap(), 9);
        assert_eq!(volume.read("/f").unwrap(), b"start+end");
    }
}
