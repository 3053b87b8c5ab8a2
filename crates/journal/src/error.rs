//! What can go wrong in the journal.

use crate::Tid;
use lanefs_device::DeviceError;
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
        /// What was asked.
        asked: u32,
        /// The most that a transaction has.
        max: u32,
    },
    /// A handle touched more blocks than it had credits, and the transaction had none to lend.
    #[error("transaction {tid} has no credit left for block {block}")]
    OutOfCredits {
        /// The transaction.
        tid: Tid,
        /// The block that was one too many.
        block: u64,
    },
}

impl From<DeviceError> for JournalError {
    fn from(e: DeviceError) -> Self {
        Self::Device(Arc::new(e))
    }
}
