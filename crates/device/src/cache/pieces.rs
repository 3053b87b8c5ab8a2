//! What is read from the base at once, and the versions by which a write makes a read too old to
//! be kept.

use super::{BLOCK, PIECE};
use crate::{AlignedBuf, ReadOp};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Pieces that share a version.
pub(super) const STRIPES: usize = 64;

/// The versions of all pieces: a write changes that of its pieces when it has ended.
#[derive(Debug)]
pub(super) struct Versions([Mutex<u64>; STRIPES]);

impl Default for Versions {
    fn default() -> Self {
        Self([const { Mutex::new(0) }; STRIPES])
    }
}

impl Versions {
    fn lock(&self, piece: u64) -> MutexGuard<'_, u64> {
        self.0[(piece % STRIPES as u64) as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, piece: u64) -> u64 {
        *self.lock(piece)
    }

    /// Changes the version of a piece, with `work` before anything of it can be stored.
    pub(super) fn change<T>(&self, piece: u64, work: impl FnOnce() -> T) -> T {
        let mut version = self.lock(piece);
        *version += 1;
        work()
    }

    /// Changes the versions of all pieces, as [`change`](Self::change) does that of one.
    pub(super) fn change_all<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut all: Vec<_> = (0..STRIPES as u64).map(|piece| self.lock(piece)).collect();
        all.iter_mut().for_each(|version| **version += 1);
        work()
    }

    /// Runs `work` if the version of a piece is still `then`. No change of it ends meanwhile.
    pub(super) fn if_unchanged(&self, piece: u64, then: u64, work: impl FnOnce()) {
        let version = self.lock(piece);
        if *version == then {
            work();
        }
    }
}

/// A piece that is read from the base.
pub(super) struct Piece {
    pub(super) number: u64,
    /// Its version before it was asked for.
    pub(super) version: u64,
    pub(super) bytes: AlignedBuf,
}

/// Pieces, in order and each once.
pub(super) struct Pieces(Vec<Piece>);

impl Pieces {
    /// Returns the pieces of a device of `size` bytes that have these blocks, not yet read.
    pub(super) fn of_blocks(blocks: impl Iterator<Item = u64>, size: u64, versions: &Versions) -> Self {
        let mut numbers: Vec<u64> = blocks.map(|block| block / (PIECE / BLOCK)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let piece = |number| {
            let len = size.saturating_sub(number * PIECE).min(PIECE);
            Piece { number, version: versions.of(number), bytes: AlignedBuf::zeroed(len as usize) }
        };
        Self(numbers.into_iter().map(piece).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Piece> {
        self.0.iter()
    }

    /// Returns the reads that fill them.
    pub(super) fn reads(&mut self) -> Vec<ReadOp<'_>> {
        self.0.iter_mut().map(|p| ReadOp { offset: p.number * PIECE, buf: &mut p.bytes }).collect()
    }

    /// Returns the bytes of a block that they were made for.
    pub(super) fn block(&self, block: u64) -> &[u8] {
        let number = block / (PIECE / BLOCK);
        let found = self.0.binary_search_by_key(&number, |piece| piece.number);
        let bytes = found.map_or(&[][..], |at| &self.0[at].bytes);
        let start = ((block * BLOCK - number * PIECE) as usize).min(bytes.len());
        &bytes[start..(start + BLOCK as usize).min(bytes.len())]
    }
}
