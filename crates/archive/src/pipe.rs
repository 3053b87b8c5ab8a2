//! The pipe from the thread that reads a tree to the thread that writes it.
//!
//! Pieces travel in batches, so that the two threads wake each other a few times a megabyte and
//! not a few times a file. Batches and their number are bounded: the memory in flight is too.

use crate::member::Member;
use crate::path::clean;
use crate::places::PATH_MAX;
use crate::{Action, Cause, Error, Place};
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
    /// So many more bytes of layers were checked.
    Checked(u64),
    /// The reader had to stop.
    Failed(Error),
}

impl Piece {
    /// Returns a member of an archive with a clean path, or why its path cannot be had.
    pub(crate) fn of(mut member: Member) -> Self {
        let cleaned = match member.path.len() {
            0..=PATH_MAX => clean(&member.path).ok_or(Cause::ParentInPath),
            len => Err(Cause::PathTooLong(len)),
        };
        match cleaned {
            Ok(path) => {
                member.path = path;
                Self::Member(member)
            }
            Err(cause) => {
                let place = Place::Member(shortened(&member.path).to_vec());
                Self::Skipped(Error::new(Action::Import, place, cause))
            }
        }
    }

    /// Returns about how many bytes of memory it takes.
    pub(crate) fn memory(&self) -> usize {
        match self {
            Self::Layer(label) => label.len(),
            Self::Data { bytes, .. } => bytes.len(),
            Self::Member(member) => member.memory(),
            Self::Skipped(error) | Self::Failed(error) => error.memory(),
            Self::Checked(_) => 0,
        }
    }
}

/// Returns a path for an error: only its end if it is too long.
fn shortened(path: &[u8]) -> &[u8] {
    const MOST: usize = 4096;
    match path.len() {
        0..=MOST => path,
        len => &path[len - 255..],
    }
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
        self.bytes += piece.memory();
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
