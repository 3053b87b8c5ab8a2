//! Copies runs of blocks to free ones. Much of it is copied by several threads, so that the device
//! reads and writes at the same time; little of it by one, in order.

use super::Blocks;
use crate::error::Result;
use crate::store::threads;
use lanefs_device::{AlignedBuf, BlockDevice};
use std::sync::{Mutex, PoisonError};

/// Bytes that are copied at a time.
const PIECE: u64 = 1 << 20;
/// Bytes from which on several threads copy, and how many.
const MUCH: u64 = 32 << 20;
const THREADS: usize = 4;

/// A run of blocks, and where it goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunCopy {
    pub(super) from: u64,
    pub(super) len: u32,
    pub(super) to: u64,
}

/// Bytes of the device: where they are, where they go, and how many.
type Piece = (u64, u64, u64);

impl Blocks {
    /// Copies all runs. None of the targets is a source.
    ///
    /// # Errors
    /// The device's. Any of the runs may have been copied.
    pub(super) fn copy(&self, runs: &[RunCopy]) -> Result<()> {
        let bytes: u64 = runs.iter().map(|run| self.offset(run.len.into())).sum();
        let pieces = Mutex::new(Some(runs.iter().flat_map(|run| self.pieces(run))));
        if bytes < MUCH {
            return self.copy_pieces(&pieces);
        }
        threads::together(THREADS, "lanefs-copy", || self.copy_pieces(&pieces))
    }

    fn pieces(&self, run: &RunCopy) -> impl Iterator<Item = Piece> + use<> {
        let (from, to, len) = (self.offset(run.from), self.offset(run.to), self.offset(run.len.into()));
        (0..len).step_by(PIECE as usize).map(move |at| (from + at, to + at, PIECE.min(len - at)))
    }

    /// Copies one piece after the other, until none is left or one fails here or elsewhere.
    fn copy_pieces(&self, pieces: &Mutex<Option<impl Iterator<Item = Piece>>>) -> Result<()> {
        let mut memory = AlignedBuf::zeroed(0);
        loop {
            let next =
                pieces.lock().unwrap_or_else(PoisonError::into_inner).as_mut().and_then(Iterator::next);
            let Some((from, to, len)) = next else { return Ok(()) };
            if (memory.len() as u64) < len {
                memory = AlignedBuf::zeroed(len as usize);
            }
            let copied = self.copy_piece(&mut memory[..len as usize], from, to);
            if copied.is_err() {
                *pieces.lock().unwrap_or_else(PoisonError::into_inner) = None;
                return copied;
            }
        }
    }

    /// Copies a piece. Of a large one the system begins writeback.
    fn copy_piece(&self, bytes: &mut [u8], from: u64, to: u64) -> Result<()> {
        let large = bytes.len() as u64 == PIECE;
        if !(large && self.device.read_if_cached(bytes, from)) {
            self.device.read_at(bytes, from)?;
        }
        self.device.write_at(bytes, to)?;
        if large {
            self.device.start_writeback(to, PIECE);
        }
        Ok(())
    }
}
