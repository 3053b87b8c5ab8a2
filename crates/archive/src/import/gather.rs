//! The data of a large file, gathered and written past the page cache.
//!
//! Nothing is read again, so a copy in the page cache costs time and gives nothing. A small file
//! goes through it all the same: the flusher writes it out while the import goes on.

use crate::Cause;
use crate::excerpt::Excerpt;
use lanefs::File;

/// The size of a file from which on it is large, and the bytes that are gathered.
const MOST: u64 = 8 << 20;
/// The fewest bytes for which a write past the cache is waited for.
const LEAST: u64 = 1 << 20;

/// Pieces in memory that lie one behind the other in a file.
#[derive(Debug, Default)]
pub(super) struct Gather {
    start: u64,
    pieces: Vec<Excerpt>,
    bytes: u64,
}

impl Gather {
    /// Returns whether data of a file of this size is gathered.
    pub(super) fn is_for(size: u64) -> bool {
        size >= MOST
    }

    /// Takes a piece in memory, and writes what does not go with it, or is enough.
    ///
    /// # Errors
    /// Those of [`File::write_at`].
    pub(super) fn push(&mut self, file: &File, offset: u64, piece: Excerpt) -> Result<(), Cause> {
        if self.start + self.bytes != offset {
            self.write(file)?;
            self.start = offset;
        }
        self.bytes += piece.len();
        self.pieces.push(piece);
        if self.bytes >= MOST { self.write(file) } else { Ok(()) }
    }

    /// Writes all that was gathered.
    ///
    /// # Errors
    /// Those of [`File::write_at`].
    pub(super) fn write(&mut self, file: &File) -> Result<(), Cause> {
        let pieces = std::mem::take(&mut self.pieces);
        let mut slices: Vec<&[u8]> = pieces.iter().filter_map(Excerpt::bytes).collect();
        let mut at = self.start;
        self.start += std::mem::take(&mut self.bytes);
        // A file ends with a part of a block.
        let end = slices.pop_if(|_| !self.start.is_multiple_of(file.metadata().block_size().into()));
        let len: u64 = slices.iter().map(|slice| slice.len() as u64).sum();
        if len >= LEAST && file.write_gathered(&slices, at)? {
            slices.clear();
            at += len;
        }
        for slice in slices.into_iter().chain(end) {
            file.write_at(slice, at)?;
            at += slice.len() as u64;
        }
        Ok(())
    }
}
