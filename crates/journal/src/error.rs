//! The errors of the journal.

use crate::{LogRun, Tid};
use lanefs_device::DeviceError;
use lanefs_format::jbd2::Jbd2Error;
use std::sync::Arc;

/// Result of a journal operation.
pub type Result<T> = std::result::Result<T, JournalError>;

/// A failure of the journal or of the device below it.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The device failed.
    #[error(transparent)]
    Device(Arc<DeviceError>),
    /// An earlier failure stopped the journal for good; nothing can be changed any more.
    #[error("the journal has been aborted: {0}")]
    Aborted(Arc<str>),
    /// The journal has been closed.
    #[error("the journal is closed")]
    Closed,
    /// A thread of the journal could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(Arc<std::io::Error>),
    /// A change was asked of a journal that was opened read-only.
    #[error("the journal is open read-only")]
    ReadOnly,
    /// A block number that the device does not have.
    #[error("block {block} is outside of the volume ({blocks} blocks)")]
    BlockOutOfRange {
        /// The block.
        block: u64,
        /// Blocks of the volume.
        blocks: u64,
    },
    /// More credits in one piece than a transaction can have.
    #[error("{asked} credits asked of a journal whose transactions have {max}")]
    TooManyCredits {
        /// The credits asked for.
        asked: u32,
        /// The most that a transaction has.
        max: u32,
    },
    /// The journal's blocks break a rule of jbd2's format.
    #[error(transparent)]
    Format(#[from] Jbd2Error),
    /// A piece of the log that leaves a hole or lies outside of the volume.
    #[error("the log's blocks {}+{} at {}: expected log block {expected}, the volume has {blocks} blocks", run.logical, run.len, run.physical)]
    LogRun {
        /// The piece.
        run: LogRun,
        /// The log block that should come.
        expected: u32,
        /// Blocks of the volume.
        blocks: u64,
    },
    /// A block of the log that the journal inode does not have.
    #[error("log block {block} is outside of the journal ({blocks} blocks)")]
    LogBlock {
        /// The log block.
        block: u32,
        /// Blocks of the journal.
        blocks: u64,
    },
    /// A log too small for even one transaction.
    #[error("the log has {blocks} blocks, at least {min} are needed")]
    LogTooSmall {
        /// Blocks of the ring.
        blocks: u32,
        /// The least that is enough.
        min: u32,
    },
    /// The log has transactions that have to be recovered before it can be used.
    #[error("the log has not been recovered (s_start is {start})")]
    NotRecovered {
        /// `s_start`.
        start: u32,
    },
    /// A transaction in the log whose blocks are damaged, though it was committed.
    #[error("transaction {tid} of the log is damaged (log block {log_block}: wrong checksum)")]
    DamagedTransaction {
        /// The transaction.
        tid: Tid,
        /// The block of the log whose checksum is wrong.
        log_block: u32,
    },
    /// The commit block at the end of the log is damaged. On memory the kernel and older versions
    /// of this crate can tear it, and there it is dropped; a volume that memory wrote may have been
    /// opened by another name.
    #[error(
        "the last transaction {tid} of the log is damaged (log block {log_block}: wrong checksum); if memory wrote it, open it as pmem:FILE"
    )]
    DamagedLastCommit {
        /// The transaction.
        tid: Tid,
        /// The commit block's block of the log.
        log_block: u32,
    },
    /// A copy in the log is damaged, though its transaction was committed.
    #[error(
        "transaction {tid} of the log is damaged (log block {log_block}, a copy of block {block}: wrong checksum)"
    )]
    DamagedCopy {
        /// The transaction.
        tid: Tid,
        /// The copy's block of the log.
        log_block: u32,
        /// The block that the copy is of.
        block: u64,
    },
    /// A copy in the log that belongs outside of the volume, or into the log itself.
    #[error(
        "transaction {tid} of the log writes block {block}, which is no metadata of a volume of {blocks} blocks"
    )]
    TagTarget {
        /// The transaction.
        tid: Tid,
        /// The block in the tag.
        block: u64,
        /// Blocks of the volume.
        blocks: u64,
    },
    /// The log holds fast commits.
    #[error(
        "the log holds fast commits after transaction {tid} (feature fast_commit), which are not supported"
    )]
    FastCommit {
        /// The transaction that they belong to.
        tid: Tid,
    },
    /// A handle touched more blocks than it had credits, and the transaction had none to lend.
    /// The journal has been aborted.
    #[error("transaction {tid} has no credit left for block {block}")]
    OutOfCredits {
        /// The transaction.
        tid: Tid,
        /// The block that was one too many.
        block: u64,
    },
    /// A transaction that would be written over others which the log still has to keep. No handle
    /// gets credits for so much; nothing was written, and the journal has been aborted.
    #[error("transaction {tid} takes {need} blocks of the log, which has {free} of {blocks} free")]
    LogOverrun {
        /// The transaction.
        tid: Tid,
        /// Blocks that it takes.
        need: u32,
        /// Blocks of the log that hold nothing.
        free: u32,
        /// Blocks of the ring.
        blocks: u32,
    },
}

impl From<DeviceError> for JournalError {
    fn from(e: DeviceError) -> Self {
        Self::Device(Arc::new(e))
    }
}
