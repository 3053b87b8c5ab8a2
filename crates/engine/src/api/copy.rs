//! Copying between files of a volume (copy_file_range).

use super::File;
use crate::error::{Error, Result};
use crate::fs::data::FallocMode;

/// Bytes that are copied at a time.
const PIECE: u64 = 1 << 20;

impl File {
    /// Copies up to `len` bytes from `offset` on to `to_offset` of `to`. Returns how many: fewer at
    /// the end of this file, or if a later part failed. Holes stay holes. As with
    /// copy_file_range(2), another thread may see a part of the copy.
    ///
    /// # Errors
    /// [`Error::BadHandle`] if not open for reading, or `to` not for writing or for appending only;
    /// [`Error::Invalid`] for ranges of one file that overlap; otherwise as to read and to write.
    /// If `to` was opened with `sync` or `dsync`, those of a sync: all may have been copied.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// volume.write("/from", b"a line of text")?;
    /// let (from, to) = (volume.open_file("/from")?, volume.create_file("/to")?);
    /// assert_eq!(from.copy_range(2, &to, 0, 4)?, 4);
    /// assert_eq!(volume.read("/to")?, b"line");
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn copy_range(&self, offset: u64, to: &File, to_offset: u64, len: u64) -> Result<u64> {
        self.check_read()?;
        to.check_write()?;
        if to.appends() {
            return Err(Error::BadHandle("open for appending"));
        }
        let least = to_offset.saturating_add(1);
        crate::store::map::check_size(&to.inode().fs, to.inode().flags(), least)?;
        let len = len.min(self.inode().file().size().saturating_sub(offset));
        let to_end = to_offset.checked_add(len).ok_or(Error::FileTooBig)?;
        let same = std::ptr::eq(&**self.inode(), &**to.inode());
        if same && offset < to_end && to_offset < offset.saturating_add(len) {
            return Err(Error::Invalid("ranges that overlap"));
        }
        let mut done = 0;
        while done < len {
            match self.copy_some(offset + done, to, to_offset + done, len - done) {
                Ok(0) => break,
                Ok(n) => done += n,
                // The next call fails in the same place, and reports it.
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            }
        }
        if done > 0 {
            to.after_write()?;
        }
        Ok(done)
    }

    /// Copies a hole, or a piece of data. Makes nothing durable.
    pub(crate) fn copy_some(&self, offset: u64, to: &File, to_offset: u64, len: u64) -> Result<u64> {
        let data = self.next_data(offset)?;
        // Another thread may have cut this file meanwhile: behind its end there is no hole.
        let left = self.inode().file().size().saturating_sub(offset);
        let hole = data.map_or(left, |(start, _)| start - offset).min(left).min(len);
        if hole > 0 {
            let before = to.inode().file().size().saturating_sub(to_offset);
            if before > 0 {
                to.check_write()?;
                to.inode().content().fallocate(FallocMode::PunchHole, to_offset, hole.min(before))?;
            }
            to.inode().content().extend(to_offset + hole)?;
            return Ok(hole);
        }
        let there = data.map_or(0, |(start, end)| end - start);
        let mut buf = vec![0; there.min(len).min(PIECE) as usize];
        let n = self.read_at(&mut buf, offset)?;
        buf.truncate(n);
        let (_, written) = to.write_part_unsynced(&buf, to_offset)?;
        Ok(written as u64)
    }
}
