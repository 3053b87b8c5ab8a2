//! The journal superblock: block 0 of the log.

use super::checksum::crc;
use super::{BlockType, Checksum, Compat, Header, Incompat, Jbd2Error, Layout, get_u32, put, put_u32};
use std::fmt;

const BLOCKTYPE: usize = 0x4;
const BLOCKSIZE: usize = 0xC;
const MAXLEN: usize = 0x10;
const FIRST: usize = 0x14;
const SEQUENCE: usize = 0x18;
const START: usize = 0x1C;
const ERRNO: usize = 0x20;
const FEATURE_COMPAT: usize = 0x24;
const FEATURE_INCOMPAT: usize = 0x28;
const FEATURE_RO_COMPAT: usize = 0x2C;
const UUID: usize = 0x30;
const NR_USERS: usize = 0x40;
const CHECKSUM_TYPE: usize = 0x50;
const NUM_FC_BLKS: usize = 0x54;
const HEAD: usize = 0x58;
const CHECKSUM: usize = 0xFC;

/// crc32c in `s_checksum_type`.
const CRC32C: u8 = 4;
/// Fast-commit blocks where `s_num_fc_blks` is 0.
const DEFAULT_FC_BLKS: u32 = 256;

/// A checked journal superblock (`journal_superblock_t`). Fields that nothing here knows are kept.
#[derive(Clone, PartialEq, Eq)]
pub struct Superblock {
    pub(super) raw: [u8; Self::LEN],
}

impl Superblock {
    /// Length in bytes; the rest of its block is unused.
    pub const LEN: usize = 1024;

    /// Checks the bytes of a journal superblock for a file system with blocks of `block_size`
    /// bytes, whose journal has `blocks` blocks.
    ///
    /// # Errors
    /// The first violated rule.
    pub fn parse(bytes: &[u8], block_size: u32, blocks: u64) -> Result<Self, Jbd2Error> {
        let sb = Self::parse_unsummed(bytes, block_size, blocks)?;
        if sb.has_checksum() {
            let found = sb.raw[CHECKSUM_TYPE];
            if found != CRC32C {
                return Err(Jbd2Error::ChecksumType { found });
            }
            let (found, computed) = (sb.get(CHECKSUM), sb.computed_checksum());
            if found != computed {
                return Err(Jbd2Error::SuperblockChecksum { found, computed });
            }
        }
        Ok(sb)
    }

    /// Checks a journal superblock that [`parse`](Self::parse) refused for its checksum or the type
    /// of that, by all other rules. For a write that was torn: the caller has evidence besides.
    ///
    /// # Errors
    /// The first violated rule; the bytes have no checksum.
    pub fn parse_torn(bytes: &[u8], block_size: u32, blocks: u64) -> Result<Self, Jbd2Error> {
        let mut sb = Self::parse_unsummed(bytes, block_size, blocks)?;
        let found = sb.raw[CHECKSUM_TYPE];
        if !sb.has_checksum() || found != CRC32C && found != 0 {
            return Err(Jbd2Error::ChecksumType { found });
        }
        sb.raw[CHECKSUM_TYPE] = CRC32C;
        Ok(sb)
    }

    fn parse_unsummed(bytes: &[u8], block_size: u32, blocks: u64) -> Result<Self, Jbd2Error> {
        let raw = bytes.get(..Self::LEN).and_then(|b| <[u8; Self::LEN]>::try_from(b).ok());
        let raw = raw.ok_or(Jbd2Error::SuperblockLength { len: bytes.len() })?;
        let sb = Self { raw };
        let Some(header) = Header::parse(&raw) else {
            return Err(Jbd2Error::SuperblockMagic { found: sb.get(0) });
        };
        if !matches!(header.block_type, Some(BlockType::SuperblockV1 | BlockType::SuperblockV2)) {
            return Err(Jbd2Error::SuperblockType { found: sb.get(BLOCKTYPE) });
        }
        sb.check_features()?;
        sb.check_geometry(block_size, blocks)?;
        Ok(sb)
    }

    fn check_features(&self) -> Result<(), Jbd2Error> {
        let (compat, incompat) = (self.compat(), self.incompat());
        let unknown = (incompat - Incompat::all()).bits();
        let ro_compat = if self.is_v2() { self.get(FEATURE_RO_COMPAT) } else { 0 };
        if unknown != 0 || ro_compat != 0 {
            return Err(Jbd2Error::UnknownFeatures { incompat: unknown, ro_compat });
        }
        let kinds = [
            compat.contains(Compat::CHECKSUM),
            incompat.contains(Incompat::CSUM_V2),
            incompat.contains(Incompat::CSUM_V3),
        ];
        if kinds.iter().filter(|&&on| on).count() > 1 {
            return Err(Jbd2Error::ChecksumFeatures { compat: compat.bits(), incompat: incompat.bits() });
        }
        Ok(())
    }

    fn check_geometry(&self, block_size: u32, blocks: u64) -> Result<(), Jbd2Error> {
        let found = self.get(BLOCKSIZE);
        if found != block_size {
            return Err(Jbd2Error::BlockSize { found, expected: block_size });
        }
        let maxlen = self.maxlen();
        if u64::from(maxlen) > blocks || maxlen < 2 {
            return Err(Jbd2Error::MaxLen { maxlen, blocks });
        }
        let fast = self.fast_commit_blocks();
        if fast >= maxlen {
            return Err(Jbd2Error::FastCommitBlocks { fast, maxlen });
        }
        let (first, end, start) = (self.first(), self.end(), self.start());
        if first == 0 || first >= end {
            return Err(Jbd2Error::First { first, end });
        }
        if start != 0 && !(first..end).contains(&start) {
            return Err(Jbd2Error::Start { start, first, end });
        }
        Ok(())
    }

    /// Returns a new, empty log of `maxlen` blocks, version 2, no features; the first transaction
    /// is 1.
    pub fn new(block_size: u32, maxlen: u32, uuid: [u8; 16]) -> Self {
        let mut sb = Self { raw: [0; Self::LEN] };
        Header::put(&mut sb.raw, BlockType::SuperblockV2, 0);
        sb.set(BLOCKSIZE, block_size);
        sb.set(MAXLEN, maxlen);
        sb.set(FIRST, 1);
        sb.set(SEQUENCE, 1);
        sb.set(NR_USERS, 1);
        put(&mut sb.raw, UUID, &uuid);
        sb
    }

    /// Encodes the superblock, with a fresh checksum if the log has checksums.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = self.raw;
        if self.has_checksum() {
            put_u32(&mut bytes, CHECKSUM, self.computed_checksum());
        }
        bytes
    }

    fn get(&self, at: usize) -> u32 {
        get_u32(&self.raw, at).unwrap_or(0)
    }

    fn set(&mut self, at: usize, value: u32) {
        put_u32(&mut self.raw, at, value);
    }

    fn computed_checksum(&self) -> u32 {
        let mut bytes = self.raw;
        put_u32(&mut bytes, CHECKSUM, 0);
        crc(!0, &bytes)
    }

    fn has_checksum(&self) -> bool {
        self.incompat().intersects(Incompat::CSUM_V2 | Incompat::CSUM_V3)
    }

    /// Returns whether there are feature bits (version 2).
    pub fn is_v2(&self) -> bool {
        self.get(BLOCKTYPE) == BlockType::SuperblockV2.number()
    }

    /// Makes a version 1 superblock version 2: what lies behind its fields becomes zero.
    fn upgrade(&mut self) {
        if !self.is_v2() {
            self.raw[FEATURE_COMPAT..].fill(0);
            self.set(BLOCKTYPE, BlockType::SuperblockV2.number());
            self.set(NR_USERS, 1);
        }
    }

    /// Returns `s_maxlen`: blocks of the log with its superblock and fast-commit area.
    pub fn maxlen(&self) -> u32 {
        self.get(MAXLEN)
    }

    /// Returns `s_first`: the first block of the ring.
    pub fn first(&self) -> u32 {
        self.get(FIRST)
    }

    /// Returns the block behind the last of the ring.
    pub fn end(&self) -> u32 {
        self.maxlen().saturating_sub(self.fast_commit_blocks())
    }

    /// Returns how many blocks at the end of the log belong to fast commits; 0 without that
    /// feature.
    pub fn fast_commit_blocks(&self) -> u32 {
        if !self.incompat().contains(Incompat::FAST_COMMIT) {
            return 0;
        }
        match self.get(NUM_FC_BLKS) {
            0 => DEFAULT_FC_BLKS,
            n => n,
        }
    }

    /// Returns `s_sequence`: the first transaction that the log may hold.
    pub fn sequence(&self) -> u32 {
        self.get(SEQUENCE)
    }

    /// Returns `s_start`: where transaction `s_sequence` starts; 0: the log is empty.
    pub fn start(&self) -> u32 {
        self.get(START)
    }

    /// Sets `s_sequence` and `s_start`.
    pub fn set_tail(&mut self, sequence: u32, start: u32) {
        self.set(SEQUENCE, sequence);
        self.set(START, start);
    }

    /// Returns `s_head`: where an empty log goes on, if the value lies inside the ring.
    pub fn head(&self) -> Option<u32> {
        let head = if self.is_v2() { self.get(HEAD) } else { 0 };
        (self.first()..self.end()).contains(&head).then_some(head)
    }

    /// Sets `s_head`.
    pub fn set_head(&mut self, head: u32) {
        if self.is_v2() {
            self.set(HEAD, head);
        }
    }

    /// Returns `s_errno`: the error (negative errno) that aborted the journal before, 0 for none.
    pub fn errno(&self) -> i32 {
        self.get(ERRNO) as i32
    }

    /// Sets `s_errno`.
    pub fn set_errno(&mut self, errno: i32) {
        self.set(ERRNO, errno as u32);
    }

    /// Returns `s_feature_compat`.
    pub fn compat(&self) -> Compat {
        Compat::from_bits_retain(if self.is_v2() { self.get(FEATURE_COMPAT) } else { 0 })
    }

    /// Returns `s_feature_incompat`.
    pub fn incompat(&self) -> Incompat {
        Incompat::from_bits_retain(if self.is_v2() { self.get(FEATURE_INCOMPAT) } else { 0 })
    }

    /// Sets both feature words. A version 1 superblock, which has none, becomes version 2.
    pub fn set_features(&mut self, compat: Compat, incompat: Incompat) {
        self.upgrade();
        self.set(FEATURE_COMPAT, compat.bits());
        self.set(FEATURE_INCOMPAT, incompat.bits());
        self.raw[CHECKSUM_TYPE] = if self.has_checksum() { CRC32C } else { 0 };
        self.set(CHECKSUM, 0);
    }

    /// Returns `s_uuid`.
    pub fn uuid(&self) -> [u8; 16] {
        let mut uuid = [0; 16];
        if self.is_v2() {
            uuid.copy_from_slice(&self.raw[UUID..UUID + 16]);
        }
        uuid
    }

    /// Returns the layout of the blocks of this log.
    pub fn layout(&self) -> Layout {
        let incompat = self.incompat();
        let checksum = if incompat.contains(Incompat::CSUM_V3) {
            Checksum::V3
        } else if incompat.contains(Incompat::CSUM_V2) {
            Checksum::V2
        } else if self.compat().contains(Compat::CHECKSUM) {
            Checksum::V1
        } else {
            Checksum::None
        };
        Layout::new(checksum, incompat.contains(Incompat::BIT64), self.uuid())
    }
}

impl fmt::Debug for Superblock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Superblock")
            .field("maxlen", &self.maxlen())
            .field("first", &self.first())
            .field("sequence", &self.sequence())
            .field("start", &self.start())
            .field("errno", &self.errno())
            .field("compat", &self.compat())
            .field("incompat", &self.incompat())
            .finish_non_exhaustive()
    }
}
