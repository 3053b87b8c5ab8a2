//! Writes transactions to the log, and the tail to its superblock.
//!
//! Invariants:
//! - A transaction takes no more blocks than were set aside for its credits, so it always fits.
//! - The checkpoint moves the tail only over transactions whose blocks are durable in place.
//! - A cut tears no commit block, not on memory either ([`writes_head_last`]).

use super::{LogMap, Ring};
use crate::buffer::Content;
use crate::transaction::Snapshot;
use crate::{JournalError, LogConfig, Result, Tid};
use lanefs_device::{AlignedBuf, BlockDevice, WriteOp};
use lanefs_format::jbd2::{
    self, Checksum, Commit, Compat, Crc32Be, Descriptor, Incompat, Layout, RevokeBlock, Superblock,
};
use lanefs_sync::Mutex;
use lanefs_sync::time::realtime;
use std::time::Duration;

/// The kernel's least size of a log.
const MIN_BLOCKS: u32 = 1024;

/// Bytes of a commit block without which it is none: two words of memory, each of which is wrong
/// until it is written.
const COMMIT_HEAD: usize = 16;

/// Returns whether a commit block is written in two steps. Memory writes 8 bytes whole, and so
/// tears the fields of a block. Its block is written with the log blocks but for its head, which
/// holds magic, type and number. The flush that follows makes the rest durable. Only then comes the
/// head: whatever a cut leaves of it, the block is complete or no commit block of this transaction.
fn writes_head_last(device: &dyn BlockDevice) -> bool {
    device.atomic_write() < Commit::LEN && device.alignment() <= COMMIT_HEAD
}

/// An open log.
#[derive(Debug)]
pub(crate) struct LogWriter {
    map: LogMap,
    ring: Ring,
    layout: Layout,
    tags_per_block: u32,
    revokes_per_block: u32,
    /// Credits that handles may take beyond a transaction's limit; their space is set aside.
    pub(crate) slack: u32,
    /// The time since 1970 for commit blocks, instead of the system's.
    pub(crate) clock: Option<Duration>,
    /// Held while the superblock is being written.
    sb: Mutex<Superblock>,
}

/// A block on its way to the log.
enum LogBlock {
    Made(AlignedBuf),
    Copy(Content),
}

impl LogBlock {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Made(block) => block,
            Self::Copy(content) => content,
        }
    }
}

impl LogWriter {
    /// Opens an empty log: the writer, its first transaction, and where that goes. The features
    /// that the file system asks for are set in memory, and written with the first transaction.
    pub(crate) fn open(
        device: &dyn BlockDevice,
        block_size: u32,
        config: &LogConfig,
    ) -> Result<(Self, Tid, u32)> {
        let map = LogMap::new(device, block_size, config)?;
        let mut sb = map.read_superblock(device)?;
        if sb.start() != 0 {
            return Err(JournalError::NotRecovered { start: sb.start() });
        }
        set_features(&mut sb, config);
        let ring = Ring::new(&sb);
        if sb.maxlen() < MIN_BLOCKS || ring.len() < MIN_BLOCKS / 2 {
            return Err(JournalError::LogTooSmall { blocks: ring.len(), min: MIN_BLOCKS });
        }
        let layout = sb.layout();
        let (first, head) = (Tid(sb.sequence()).next(), sb.head().unwrap_or(ring.first()));
        let mut writer = Self {
            tags_per_block: layout.tags_per_block(block_size as usize).max(1) as u32,
            revokes_per_block: layout.revokes_per_block(block_size as usize).max(1) as u32,
            slack: 0,
            clock: None,
            map,
            ring,
            layout,
            sb: Mutex::new(sb),
        };
        writer.slack = writer.blocks_for(ring.len() / 4) / 16 + 16;
        Ok((writer, first, head))
    }

    /// Returns the number of blocks of the ring.
    pub(crate) fn len(&self) -> u32 {
        self.ring.len()
    }

    /// Returns the most credits that one transaction gets.
    pub(crate) fn max_credits(&self) -> u32 {
        self.credits_for(self.len() / 4)
    }

    pub(crate) fn revokes_per_block(&self) -> u32 {
        self.revokes_per_block
    }

    /// Returns how many copies fit into `space` blocks of log, with their descriptors and the
    /// commit block.
    fn blocks_for(&self, space: u32) -> u32 {
        let tags = u64::from(self.tags_per_block);
        let groups = u64::from(space.saturating_sub(2)) * tags / (tags + 1);
        groups as u32
    }

    /// Returns how many credits can be given for `space` blocks of log.
    pub(crate) fn credits_for(&self, space: u32) -> u32 {
        self.blocks_for(space).saturating_sub(self.slack)
    }

    /// Returns how many blocks of log a transaction takes.
    pub(crate) fn size_of(&self, blocks: usize, revokes: usize) -> u32 {
        let blocks = blocks as u64;
        let descriptors = blocks.div_ceil(u64::from(self.tags_per_block));
        let revokes = (revokes as u64).div_ceil(u64::from(self.revokes_per_block));
        u32::try_from(blocks + descriptors + revokes + 1).unwrap_or(u32::MAX)
    }

    /// Returns the position `n` blocks after `at`.
    pub(crate) fn advance(&self, at: u32, n: u32) -> u32 {
        self.ring.advance(at, n)
    }

    /// Writes a transaction without its commit block, or without the head of that, from `head`, and
    /// `data` in the same batch. Returns the position of the commit block and the checksum that it
    /// carries. The writes are not durable before a flush.
    pub(crate) fn write(
        &self,
        device: &dyn BlockDevice,
        txn: &Snapshot,
        data: &[WriteOp<'_>],
        head: u32,
    ) -> Result<(u32, Crc32Be)> {
        self.prepare_superblock(device, txn, head)?;
        let mut crc = Crc32Be::default();
        let mut blocks = Vec::with_capacity(self.size_of(txn.blocks.len(), txn.revokes.len()) as usize);
        self.add_revokes(&mut blocks, txn);
        for group in txn.blocks.chunks(self.tags_per_block as usize) {
            self.add_group(&mut blocks, &mut crc, txn.tid, group);
        }
        let commit_at = self.ring.advance(head, blocks.len() as u32);
        if writes_head_last(device) {
            let mut commit = self.commit_block(txn.tid, crc);
            self.clear_stale_head(device, commit_at, &commit)?;
            if let Some(head) = commit.get_mut(..COMMIT_HEAD) {
                head.fill(0);
            }
            blocks.push(LogBlock::Made(commit));
        }
        self.write_blocks(device, head, &blocks, data)?;
        Ok((commit_at, crc))
    }

    /// Clears the head of `commit`, durably, if it stands at `at` already: an earlier volume has
    /// left it, whose log was not zeroed. With it the block would be complete before the flush.
    fn clear_stale_head(&self, device: &dyn BlockDevice, at: u32, commit: &[u8]) -> Result<()> {
        let offset = self.map.locate(at, 1)?.0;
        let mut head = AlignedBuf::zeroed(COMMIT_HEAD);
        // One that cannot be read may be such a head.
        let is_read = device.read_at(&mut head, offset).is_ok();
        if is_read && head.get(..jbd2::HEADER_LEN) != commit.get(..jbd2::HEADER_LEN) {
            return Ok(());
        }
        head.fill(0);
        device.write_at(&head, offset)?;
        Ok(device.flush()?)
    }

    fn commit_block(&self, tid: Tid, crc: Crc32Be) -> AlignedBuf {
        let now = || Duration::from_nanos(realtime());
        let time = self.clock.unwrap_or_else(now);
        let mut block = self.block();
        Commit { sequence: tid.0, time }.write(&self.layout, &mut block, crc.value());
        block
    }

    /// Writes the commit block, or its head. The caller has flushed before, and flushes again.
    pub(crate) fn write_commit(
        &self,
        device: &dyn BlockDevice,
        tid: Tid,
        at: u32,
        crc: Crc32Be,
    ) -> Result<()> {
        let block = self.commit_block(tid, crc);
        let head = block.get(..COMMIT_HEAD).filter(|_| writes_head_last(device));
        Ok(device.write_at(head.unwrap_or(&block), self.map.locate(at, 1)?.0)?)
    }

    /// Writes that the log starts with transaction `tid` at block `start`. The caller flushes.
    pub(crate) fn write_tail(&self, device: &dyn BlockDevice, tid: Tid, start: u32) -> Result<()> {
        let mut sb = self.sb.lock();
        sb.set_tail(tid.0, start);
        self.map.write_superblock(device, &sb)
    }

    /// Writes that the log is empty, if it is not yet known to be. The caller flushes.
    pub(crate) fn write_empty(&self, device: &dyn BlockDevice, next: Tid, head: u32) -> Result<()> {
        let mut sb = self.sb.lock();
        if sb.start() == 0 {
            return Ok(());
        }
        sb.set_tail(next.0, 0);
        sb.set_head(head);
        self.map.write_superblock(device, &sb)
    }

    /// Notes an error of the file system in the log, so that the next to open it knows.
    pub(crate) fn write_errno(&self, device: &dyn BlockDevice, errno: i32) -> Result<()> {
        let mut sb = self.sb.lock();
        sb.set_errno(errno);
        self.map.write_superblock(device, &sb)
    }

    /// Prepares the superblock of the log: an empty log gets its start with its first transaction,
    /// revokes need their feature.
    fn prepare_superblock(&self, device: &dyn BlockDevice, txn: &Snapshot, head: u32) -> Result<()> {
        let mut sb = self.sb.lock();
        let revoke = !txn.revokes.is_empty() && !sb.incompat().contains(Incompat::REVOKE);
        if sb.start() != 0 && !revoke {
            return Ok(());
        }
        if revoke {
            let (compat, incompat) = (sb.compat(), sb.incompat());
            sb.set_features(compat, incompat | Incompat::REVOKE);
        }
        if sb.start() == 0 {
            sb.set_tail(txn.tid.0, head);
        }
        self.map.write_superblock(device, &sb)
    }

    fn block(&self) -> AlignedBuf {
        AlignedBuf::zeroed(self.map.block_size())
    }

    fn add_revokes(&self, blocks: &mut Vec<LogBlock>, txn: &Snapshot) {
        let make = |revokes: &[u64]| {
            let mut block = self.block();
            RevokeBlock::write(&self.layout, &mut block, txn.tid.0, revokes);
            LogBlock::Made(block)
        };
        blocks.extend(txn.revokes.chunks(self.revokes_per_block as usize).map(make));
    }

    fn add_group(&self, blocks: &mut Vec<LogBlock>, crc: &mut Crc32Be, tid: Tid, group: &[(u64, Content)]) {
        let mut made = self.block();
        let mut descriptor = Descriptor::new(&self.layout, &mut made, tid.0);
        let from = blocks.len();
        for (home, content) in group {
            let escaped = jbd2::needs_escape(content);
            let copy = if escaped {
                let mut copy = AlignedBuf::clone(content);
                jbd2::escape(&mut copy);
                LogBlock::Made(copy)
            } else {
                LogBlock::Copy(Content::clone(content))
            };
            descriptor.push(*home, copy.bytes(), escaped);
            blocks.push(copy);
        }
        descriptor.finish();
        // In the log it comes before its copies.
        blocks.insert(from, LogBlock::Made(made));
        if self.layout.checksum == Checksum::V1 {
            blocks.iter().skip(from).for_each(|block| crc.update(block.bytes()));
        }
    }

    /// Writes blocks from `at` on, around the ring, in as few pieces as the log has, with `others`.
    fn write_blocks<'d>(
        &self,
        device: &dyn BlockDevice,
        mut at: u32,
        blocks: &'d [LogBlock],
        others: &[WriteOp<'d>],
    ) -> Result<()> {
        let bytes: Vec<&[u8]> = blocks.iter().map(LogBlock::bytes).collect();
        let mut rest = &bytes[..];
        // The log seldom has more pieces than two, around its end.
        let mut ops = Vec::with_capacity(others.len() + 2);
        ops.extend_from_slice(others);
        while !rest.is_empty() {
            let before_wrap = self.ring.contiguous(at, rest.len() as u32);
            let (offset, n) = self.map.locate(at, before_wrap)?;
            let (data, behind) = rest.split_at(n as usize);
            ops.push(WriteOp { offset, data });
            at = self.ring.advance(at, n);
            rest = behind;
        }
        Ok(device.write_batch(&ops)?)
    }
}

/// Sets the features that the kernel sets when it mounts: v3 checksums with metadata_csum, wide
/// numbers with 64bit. Checksums of another version stay.
fn set_features(sb: &mut Superblock, config: &LogConfig) {
    if !config.metadata_csum && !config.is_64bit {
        return;
    }
    let (compat, mut incompat) = (sb.compat(), sb.incompat());
    let has_checksums =
        compat.contains(Compat::CHECKSUM) || incompat.intersects(Incompat::CSUM_V2 | Incompat::CSUM_V3);
    incompat.set(
        Incompat::CSUM_V3,
        incompat.contains(Incompat::CSUM_V3) || config.metadata_csum && !has_checksums,
    );
    incompat.set(Incompat::BIT64, incompat.contains(Incompat::BIT64) || config.is_64bit);
    sb.set_features(compat, incompat);
}
