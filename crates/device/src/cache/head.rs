//! The first bytes of the base as this process knows them: as they were at the open, with its own
//! writes since. A base whose first bytes are others has been changed by another host.

use crate::identity::{BaseIdentity, HEAD, MAGIC};
use crate::{AlignedBuf, BlockDevice, Result, WriteOp};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a superblock: `s_state` with its bit for a volume that was closed, and
/// `s_feature_incompat` with that for a journal to be recovered.
const STATE: (usize, u8) = (1024 + 0x3a, 1);
const INCOMPAT: (usize, u8) = (1024 + 0x60, 4);

/// Returns whether `head` begins an ext4 volume that is open for writing, or was not closed.
fn is_unclosed(head: &[u8]) -> bool {
    let has = |(at, bit): (usize, u8)| head.get(at).is_some_and(|byte| byte & bit != 0);
    head.get(MAGIC.0..MAGIC.0 + 2) == Some(&MAGIC.1) && (!has(STATE) || has(INCOMPAT))
}

/// The first bytes of a base.
#[derive(Debug)]
pub(super) struct KnownHead {
    /// The size of the base at the open.
    size: u64,
    /// `None` after a discard of some of them.
    bytes: Mutex<Option<AlignedBuf>>,
}

impl KnownHead {
    /// Reads them past the caches of this host.
    pub(super) fn read(base: &dyn BlockDevice) -> Result<Self> {
        let size = base.size();
        let mut bytes = AlignedBuf::zeroed(HEAD.min(usize::try_from(size).unwrap_or(HEAD)));
        base.read_shared(&mut bytes, 0)?;
        Ok(Self { size, bytes: Mutex::new(Some(bytes)) })
    }

    fn lock(&self) -> MutexGuard<'_, Option<AlignedBuf>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the identity that the base has if no other host has changed it.
    pub(super) fn identity(&self) -> Option<BaseIdentity> {
        self.lock().as_ref().map(|bytes| BaseIdentity::of(self.size, bytes))
    }

    /// Returns whether they are those of a volume that another host has open for writing, or had
    /// when it died: it writes blocks that the superblock does not tell of.
    pub(super) fn is_unclosed(&self) -> bool {
        self.lock().as_ref().is_some_and(|bytes| is_unclosed(bytes))
    }

    /// Notes writes that have succeeded.
    pub(super) fn write(&self, ops: &[WriteOp<'_>]) {
        for op in ops.iter().filter(|op| op.offset < HEAD as u64) {
            let mut at = op.offset as usize;
            for piece in op.data {
                self.change(at, piece.len(), |bytes, n| bytes.copy_from_slice(&piece[..n]));
                at += piece.len();
            }
        }
    }

    /// Notes that a range reads as zeros.
    pub(super) fn zero(&self, offset: u64, len: u64) {
        if offset < HEAD as u64 {
            self.change(offset as usize, len.min(HEAD as u64) as usize, |bytes, _| bytes.fill(0));
        }
    }

    /// Notes that the content of a range is not known any more.
    pub(super) fn lose(&self, offset: u64, len: u64) {
        if offset < HEAD as u64 && len > 0 {
            *self.lock() = None;
        }
    }

    /// Calls `change` with those bytes of a range that are here, and their number.
    fn change(&self, at: usize, len: usize, change: impl FnOnce(&mut [u8], usize)) {
        if let Some(bytes) = self.lock().as_mut()
            && at < bytes.len()
        {
            let n = len.min(bytes.len() - at);
            change(&mut bytes[at..at + n], n);
        }
    }
}
