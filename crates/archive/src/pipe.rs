//! The pipe from the thread that reads a tree to the thread that writes it.
//!
//! Pieces travel in batches, so that the two threads wake each other a few times a megabyte and
//! not a few times a file. Batches and their number are bounded: the memory in flight is too.

use crate::Error;
use crate::member::Member;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// The greatest number of data bytes in a piece.
pub(crate) const PIECE: usize = 256 << 10;
/// Bytes or pieces that fill a batch, and batches in flight.
const BATCH_BYTES: usize = 1 << 20;
const BATCH_PIECES: usize = 128;
const BATCHES: usize = 8;

/// A part of a tree.
#[derive(Debug)]
pub(crate) enum Piece {
    /// A layer begins: its name in errors. Its members lie on top of everything before it.
    Layer(String),
    /// The next member.
    Member(Member),
    /// Data of the last member, from `offset` on. Ranges come in their order.
    Data { offset: u64, bytes: Vec<u8> },
    /// A name that could not be read. The tree goes on without it.
    Skipped(Error),
    /// The reader had to stop.
    Failed(Error),
}

/// The other side went away.
#[derive(Debug)]
pub(crate) struct Gone;

/// The reader's end. What it holds is sent when it is dropped.
#[derive(Debug)]
pub(crate) struct Outlet {
    batches: SyncSender<Vec<Piece>>,
    batch: Vec<Piece>,
    bytes: usize,
}

/// Both ends.
pub(crate) fn pipe() -> (Outlet, Receiver<Vec<Piece>>) {
    let (batches, receiver) = sync_channel(BATCHES);
    (Outlet { batches, batch: Vec::new(), bytes: 0 }, receiver)
}

impl Outlet {
    /// Sends a piece, sooner or later.
    pub(crate) fn push(&mut self, piece: Piece) -> Result<(), Gone> {
        self.bytes += match &piece {
            Piece::Layer(label) => label.len(),
            Piece::Data { bytes, .. } => bytes.len(),
            Piece::Member(member) => member.memory(),
            Piece::Skipped(error) | Piece::Failed(error) => error.memory(),
        };
        self.batch.push(piece);
        if self.bytes >= BATCH_BYTES || self.batch.len() >= BATCH_PIECES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Gone> {
        self.bytes = 0;
        self.batches.send(std::mem::take(&mut self.batch)).map_err(|_| Gone)
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        // The last batch of a reader whose other side went away has nowhere to go.
        let _ = self.flush();
    }
}
