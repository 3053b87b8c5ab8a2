//! A commit block: the end of a transaction.

use super::checksum::crc;
use super::{BlockType, Checksum, Header, Layout, get_u32, get_u64, put_u32, put_u64};
use std::time::Duration;

const CHKSUM_TYPE: usize = 0xC;
const CHKSUM_SIZE: usize = 0xD;
const COMMIT_SEC: usize = 0x30;
const COMMIT_NSEC: usize = 0x38;

/// `h_chksum_type` of compat CHECKSUM: crc32.
const CRC32: u8 = 1;
const CRC32_SIZE: u8 = 4;

/// The result of the check of a commit block's checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitCheck {
    /// Right, or there is none.
    Good,
    /// Right for the head of the block, with old bytes behind: the write of the block was torn.
    GoodButTorn,
    /// Wrong.
    Bad,
}

/// A commit block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// `h_sequence`.
    pub sequence: u32,
    /// `h_commit_sec`, `h_commit_nsec`: since 1970.
    pub time: Duration,
}

impl Commit {
    /// Length in bytes; zeros follow. A device that writes as many bytes whole does not tear it.
    pub const LEN: usize = 0x3C;

    /// Where `h_chksum` lies.
    pub(crate) const CHKSUM: usize = 0x10;

    /// Returns the time in a commit block.
    pub fn time(block: &[u8]) -> Duration {
        let nanos = get_u32(block, COMMIT_NSEC).unwrap_or(0).min(999_999_999);
        Duration::new(get_u64(block, COMMIT_SEC).unwrap_or(0), nanos)
    }

    /// Verifies a commit block. `transaction` is the crc32 of the transaction's descriptors and
    /// copies, which only V1 looks at.
    pub fn check(layout: &Layout, block: &[u8], transaction: u32) -> CommitCheck {
        let found = get_u32(block, Self::CHKSUM).unwrap_or(0);
        let byte = |at: usize| block.get(at).copied().unwrap_or(0);
        match layout.checksum {
            Checksum::None => CommitCheck::Good,
            Checksum::V1 => {
                let kind = (byte(CHKSUM_TYPE), byte(CHKSUM_SIZE));
                let made = kind == (CRC32, CRC32_SIZE) && found == transaction;
                let unused = kind == (0, 0) && found == 0;
                if made || unused { CommitCheck::Good } else { CommitCheck::Bad }
            }
            Checksum::V2 | Checksum::V3 => {
                let is_good = |block: &[u8]| layout.checksum_error(BlockType::Commit, block) == 0;
                if is_good(block) {
                    return CommitCheck::Good;
                }
                let mut head = block.to_vec();
                if let Some(rest) = head.get_mut(Self::LEN..) {
                    rest.fill(0);
                }
                if is_good(&head) { CommitCheck::GoodButTorn } else { CommitCheck::Bad }
            }
        }
    }

    /// Fills `block`. `transaction` as in [`check`](Self::check).
    pub fn write(&self, layout: &Layout, block: &mut [u8], transaction: u32) {
        block.fill(0);
        Header::put(block, BlockType::Commit, self.sequence);
        put_u64(block, COMMIT_SEC, self.time.as_secs());
        put_u32(block, COMMIT_NSEC, self.time.subsec_nanos());
        match layout.checksum {
            Checksum::None => {}
            Checksum::V1 => {
                super::put(block, CHKSUM_TYPE, &[CRC32, CRC32_SIZE]);
                put_u32(block, Self::CHKSUM, transaction);
            }
            Checksum::V2 | Checksum::V3 => put_u32(block, Self::CHKSUM, crc(layout.seed, block)),
        }
    }
}
