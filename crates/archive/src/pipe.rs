//! The pipe from the thread that reads a tree to the thread that writes it.
//!
//! Items travel in batches, so that the two threads wake each other a few times a megabyte and
//! not a few times a file. The memory of all items that were sent and are not done with is
//! bounded, unless one item alone has more.

use crate::excerpt::Excerpt;
use crate::member::Member;
use crate::path::clean;
use crate::places::PATH_MAX;
use crate::{Action, Cause, Error, Place};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The greatest number of data bytes in an item of a folder or a volume.
pub(crate) const PIECE: usize = 256 << 10;
/// Bytes or items that fill a batch, and batches in flight.
const BATCH_BYTES: usize = 1 << 20;
const BATCH_PIECES: usize = 128;
const BATCHES: usize = 8;
/// Bytes in flight.
const IN_FLIGHT: usize = 8 << 20;

/// A part of a tree.
#[derive(Debug)]
pub(crate) enum PipeItem {
    /// A layer begins: its name in errors. Its members lie on top of everything before it.
    Layer(String),
    /// The next member.
    Member(Member),
    /// Data of the last member, from `offset` on. Ranges come in their order.
    Data { offset: u64, bytes: Vec<u8> },
    /// Data of the last member that was not read. Ranges come in their order.
    Unread { offset: u64, content: Excerpt },
    /// A name that could not be read. The tree goes on without it.
    Skipped(Error),
    /// The rest of the last member's data could not be read. An import goes on without the member;
    /// an archive ends in error.
    Incomplete(Error),
    /// So many more bytes of layers were checked.
    Checked(u64),
    /// The reader had to stop.
    Failed(Error),
}

impl PipeItem {
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
            Self::Unread { content, .. } => content.memory(),
            Self::Member(member) => member.memory(),
            Self::Skipped(error) | Self::Incomplete(error) | Self::Failed(error) => error.memory(),
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

/// Items, and the bytes of memory that they take.
type Batch = (Vec<PipeItem>, usize);

/// The bytes in flight.
#[derive(Debug, Default)]
struct Budget {
    state: Mutex<InFlight>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct InFlight {
    bytes: usize,
    /// The receiver is gone: nothing will be freed any more.
    gone: bool,
}

impl Budget {
    fn lock(&self) -> MutexGuard<'_, InFlight> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until so many bytes may be sent.
    fn take(&self, bytes: usize) {
        let mut state = self.lock();
        while state.bytes > 0 && state.bytes + bytes > IN_FLIGHT && !state.gone {
            state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.bytes += bytes;
    }

    fn free(&self, bytes: usize, gone: bool) {
        let mut state = self.lock();
        state.bytes = state.bytes.saturating_sub(bytes);
        state.gone |= gone;
        drop(state);
        self.freed.notify_one();
    }
}

/// The reader's end. What it holds is sent when it is dropped.
#[derive(Debug)]
pub(crate) struct Outlet {
    batches: SyncSender<Batch>,
    budget: Arc<Budget>,
    batch: Vec<PipeItem>,
    bytes: usize,
}

/// The writer's end.
#[derive(Debug)]
pub(crate) struct Inlet {
    batches: Receiver<Batch>,
    budget: Arc<Budget>,
    /// Bytes of the batch that was received last, which is done with when the next is asked for.
    bytes: usize,
}

/// Returns both ends of a new pipe.
pub(crate) fn pipe() -> (Outlet, Inlet) {
    let (sender, receiver) = sync_channel(BATCHES);
    let budget = Arc::new(Budget::default());
    let outlet = Outlet { batches: sender, budget: Arc::clone(&budget), batch: Vec::new(), bytes: 0 };
    (outlet, Inlet { batches: receiver, budget, bytes: 0 })
}

impl Outlet {
    /// Sends an item, sooner or later.
    pub(crate) fn push(&mut self, item: PipeItem) -> Result<(), Gone> {
        self.bytes += item.memory();
        self.batch.push(item);
        if self.bytes >= BATCH_BYTES || self.batch.len() >= BATCH_PIECES { self.flush() } else { Ok(()) }
    }

    /// Sends what was pushed and not sent yet.
    pub(crate) fn flush(&mut self) -> Result<(), Gone> {
        let bytes = std::mem::take(&mut self.bytes);
        self.budget.take(bytes);
        self.batches.send((std::mem::take(&mut self.batch), bytes)).map_err(|_| Gone)
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        // The last batch of a reader whose other side went away has nowhere to go.
        let _ = self.flush();
    }
}

impl Inlet {
    /// Waits for the next batch. The one before is done with.
    ///
    /// # Errors
    /// None came so soon, or none will come any more.
    pub(crate) fn recv_timeout(&mut self, timeout: Duration) -> Result<Vec<PipeItem>, RecvTimeoutError> {
        self.budget.free(std::mem::take(&mut self.bytes), false);
        let (items, bytes) = self.batches.recv_timeout(timeout)?;
        self.bytes = bytes;
        Ok(items)
    }
}

impl Iterator for Inlet {
    type Item = Vec<PipeItem>;

    fn next(&mut self) -> Option<Vec<PipeItem>> {
        self.budget.free(std::mem::take(&mut self.bytes), false);
        let (items, bytes) = self.batches.recv().ok()?;
        self.bytes = bytes;
        Some(items)
    }
}

impl Drop for Inlet {
    fn drop(&mut self) {
        self.budget.free(0, true);
    }
}
