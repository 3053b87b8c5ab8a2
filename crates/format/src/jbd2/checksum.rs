//! The checksums of a log, and the features that decide the layout of its blocks.

use super::{BlockType, Commit, TAIL_LEN, get_u32, put_u32};

/// The kind of checksums that a log carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksum {
    /// None.
    None,
    /// Compat CHECKSUM: crc32 over a transaction's descriptors and copies, in its commit block.
    V1,
    /// CSUM_V2: crc32c everywhere, tags keep the low half.
    V2,
    /// CSUM_V3: crc32c everywhere.
    V3,
}

/// The layout of the blocks of one log: from the features and UUID of its superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// The checksums.
    pub checksum: Checksum,
    /// Block numbers of tags and revokes have 64 bits.
    pub is_64bit: bool,
    /// `s_uuid`.
    pub uuid: [u8; 16],
    pub(crate) seed: u32,
}

/// Returns the crc32c with the raw register, as the kernel chains it.
pub(crate) fn crc(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

impl Layout {
    /// Returns the layout for these features.
    pub fn new(checksum: Checksum, is_64bit: bool, uuid: [u8; 16]) -> Self {
        Self { checksum, is_64bit, uuid, seed: crc(!0, &uuid) }
    }

    /// Returns whether every block carries a crc32c.
    pub fn has_tails(&self) -> bool {
        matches!(self.checksum, Checksum::V2 | Checksum::V3)
    }

    /// Returns how many bytes the checksum takes at the end of descriptor and revoke blocks.
    pub(crate) fn tail_len(&self) -> usize {
        if self.has_tails() { TAIL_LEN } else { 0 }
    }

    /// Returns the length of a tag without the UUID that may follow. 10 and 14 with V2: a slip of
    /// the kernel that became the format.
    pub(crate) fn tag_len(&self) -> usize {
        match self.checksum {
            Checksum::V3 => 16,
            Checksum::V2 => 10 + if self.is_64bit { 4 } else { 0 },
            _ => 8 + if self.is_64bit { 4 } else { 0 },
        }
    }

    /// Returns how many tags a descriptor block holds.
    pub fn tags_per_block(&self, block_size: usize) -> usize {
        // The first tag is followed by the UUID, and room for one more is always left.
        let room = block_size.saturating_sub(super::HEADER_LEN + self.tail_len() + 16);
        room / self.tag_len()
    }

    /// Returns how many revoke records a revoke block holds.
    pub fn revokes_per_block(&self, block_size: usize) -> usize {
        let room = block_size.saturating_sub(super::revoke::REVOKE_HEADER_LEN + self.tail_len());
        room / if self.is_64bit { 8 } else { 4 }
    }

    /// Returns the checksum of a copy, as it lies in the log (escaped), for its tag. 0 without V2
    /// and V3.
    pub fn copy_checksum(&self, sequence: u32, copy: &[u8]) -> u32 {
        let whole = || crc(crc(self.seed, &sequence.to_be_bytes()), copy);
        match self.checksum {
            Checksum::V3 => whole(),
            Checksum::V2 => whole() & 0xFFFF,
            _ => 0,
        }
    }

    /// Returns whether the checksum at the end of a descriptor or revoke block is right. True
    /// without V2 and V3.
    pub fn verify_tail(&self, block: &[u8]) -> bool {
        self.checksum_error(BlockType::Descriptor, block) == 0
    }

    /// Returns the checksum in a descriptor, revoke or commit block XOR the right one: 0 if it is
    /// right, and without V2 and V3.
    ///
    /// A crc is linear, and all these blocks have the same length. So every sound block that was
    /// written under one other UUID has the same error. That of a damaged block is any number.
    pub fn checksum_error(&self, block_type: BlockType, block: &[u8]) -> u32 {
        if !self.has_tails() {
            return 0;
        }
        let at = match block_type {
            BlockType::Commit => Commit::CHKSUM,
            _ => block.len().saturating_sub(TAIL_LEN),
        };
        let (Some(found), Some((head, rest))) = (get_u32(block, at), block.split_at_checked(at)) else {
            return u32::MAX;
        };
        let behind = rest.get(4..).unwrap_or_default();
        found ^ crc(crc(crc(self.seed, head), &[0; 4]), behind)
    }

    /// Makes the checksum at the end of a descriptor or revoke block.
    pub(crate) fn seal_tail(&self, block: &mut [u8]) {
        if self.has_tails() {
            let at = block.len() - TAIL_LEN;
            put_u32(block, at, 0);
            put_u32(block, at, crc(self.seed, block));
        }
    }
}

/// The running crc32 of compat CHECKSUM: polynomial 0x04c11db7, most significant bit first, all
/// ones at the start, nothing at the end. Over descriptor blocks and copies in the order of the
/// log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crc32Be(u32);

impl Default for Crc32Be {
    fn default() -> Self {
        Self(!0)
    }
}

const CRC32_BE: [u32; 256] = {
    let mut table = [0u32; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc << 1) ^ if crc >> 31 == 1 { 0x04C1_1DB7 } else { 0 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

impl Crc32Be {
    /// Goes on over `block`.
    pub fn update(&mut self, block: &[u8]) {
        self.0 = block.iter().fold(self.0, |crc, &b| {
            let index = (crc >> 24) as u8 ^ b;
            (crc << 8) ^ CRC32_BE[usize::from(index)]
        });
    }

    /// Returns the sum so far.
    pub fn value(self) -> u32 {
        self.0
    }
}
