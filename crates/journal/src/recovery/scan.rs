//! The first pass: finds the complete transactions and their copies and revokes.

use super::window::Window;
use crate::log::{LogMap, Ring};
use crate::{JournalError, Result, Tid};
use lanefs_device::{AlignedBuf, BlockDevice};
use lanefs_format::jbd2::{
    self, BlockType, Checksum, Commit, CommitCheck, Crc32Be, Header, Incompat, Layout, Superblock, Tag,
};
use std::time::Duration;

/// A copy of a metadata block in the log.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoggedCopy {
    pub(super) tid: Tid,
    /// Its block of the log.
    pub(super) at: u32,
    pub(super) tag: Tag,
}

/// The committed part of a log.
#[derive(Debug)]
pub(super) struct Scan {
    /// All copies in the order of the log.
    pub(super) copies: Vec<LoggedCopy>,
    /// All revoke blocks in the order of the log.
    pub(super) revokes: Vec<(u32, Tid)>,
    pub(super) transactions: u32,
    /// The first transaction that is not committed.
    pub(super) end: Tid,
    /// The block behind the last commit.
    pub(super) head: u32,
}

/// A transaction whose commit has not been seen yet.
#[derive(Default)]
struct Open {
    copies: Vec<LoggedCopy>,
    revokes: Vec<(u32, Tid)>,
    crc: Crc32Be,
    /// The first block whose checksum is wrong, and its [error](Layout::checksum_error).
    damaged: Option<(u32, u32)>,
}

struct Scanner<'a> {
    layout: &'a Layout,
    ring: Ring,
    window: Window<'a>,
    at: u32,
    /// Blocks of the ring that have not been passed.
    left: u32,
    last_commit: Duration,
    /// A commit block may be durable before what it covers (`JBD2_FEATURE_INCOMPAT_ASYNC_COMMIT`).
    is_async: bool,
    /// A cut of the device that opens the volume can leave a commit block whose checksum is wrong,
    /// if another program than this wrote the log. Which device it was on is not recorded.
    can_tear: bool,
}

impl Scan {
    /// Walks the log from `s_start`.
    pub(super) fn run(device: &dyn BlockDevice, map: &LogMap, sb: &Superblock) -> Result<Self> {
        let (ring, start, first) = (Ring::new(sb), sb.start(), Tid(sb.sequence()));
        let mut scan =
            Self { copies: Vec::new(), revokes: Vec::new(), transactions: 0, end: first, head: start };
        let is_async = sb.incompat().contains(Incompat::ASYNC_COMMIT);
        let mut scanner = Scanner {
            layout: &sb.layout(),
            ring,
            window: Window::new(device, map, ring),
            at: start,
            left: ring.len(),
            last_commit: Duration::ZERO,
            is_async,
            can_tear: is_async || device.atomic_write() < Commit::LEN,
        };
        while let Some(mut open) = scanner.transaction(scan.end)? {
            scan.copies.append(&mut open.copies);
            scan.revokes.append(&mut open.revokes);
            scan.transactions += 1;
            scan.end = scan.end.next();
            scan.head = scanner.at;
        }
        Ok(scan)
    }
}

impl Scanner<'_> {
    /// Returns the next block of the log, `None` if all have been passed.
    fn next(&mut self) -> Result<Option<(u32, AlignedBuf)>> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        let at = self.at;
        let block = self.window.read(at, self.left)?;
        self.left = left;
        self.at = self.ring.advance(at, 1);
        Ok(Some((at, block)))
    }

    /// Passes over one block without reading it.
    fn skip(&mut self) -> Option<u32> {
        self.left = self.left.checked_sub(1)?;
        let at = self.at;
        self.at = self.ring.advance(at, 1);
        Some(at)
    }

    /// Reads transaction `tid` if it is here and committed.
    fn transaction(&mut self, tid: Tid) -> Result<Option<Open>> {
        let Some((open, at, block)) = self.up_to_commit(tid)? else { return Ok(None) };
        Ok(self.commit(&open, tid, at, &block)?.then_some(open))
    }

    /// Reads transaction `tid` up to its commit block, which it returns with its place. `None` if
    /// the log ends before that.
    fn up_to_commit(&mut self, tid: Tid) -> Result<Option<(Open, u32, AlignedBuf)>> {
        let mut open = Open::default();
        loop {
            let Some((at, block)) = self.next()? else { return Ok(None) };
            let Some(header) = Header::parse(&block) else { return Ok(None) };
            if header.sequence != tid.0 {
                return Ok(None);
            }
            match header.block_type {
                Some(BlockType::Descriptor) => {
                    if !self.descriptor(&mut open, tid, at, &block)? {
                        return Ok(None);
                    }
                }
                Some(BlockType::Revoke) => {
                    self.verify(&mut open, at, &block);
                    open.revokes.push((at, tid));
                }
                Some(BlockType::Commit) => return Ok(Some((open, at, block))),
                _ => return Ok(None),
            }
        }
    }

    /// Verifies the tail, which descriptor and revoke blocks have alike.
    fn verify(&self, open: &mut Open, at: u32, block: &[u8]) {
        let error = self.layout.checksum_error(BlockType::Descriptor, block);
        if error != 0 {
            open.damaged.get_or_insert((at, error));
        }
    }

    /// Reads a descriptor. Returns `false` if the copies run around the ring, so that this is no
    /// transaction.
    fn descriptor(&mut self, open: &mut Open, tid: Tid, at: u32, block: &[u8]) -> Result<bool> {
        self.verify(open, at, block);
        open.crc.update(if self.layout.checksum == Checksum::V1 { block } else { &[] });
        for tag in jbd2::parse_tags(self.layout, block) {
            let Ok(tag) = tag else {
                open.damaged.get_or_insert((at, 0));
                break;
            };
            let copy_at = if self.layout.checksum == Checksum::V1 {
                let Some((copy_at, copy)) = self.next()? else { return Ok(false) };
                open.crc.update(&copy);
                copy_at
            } else {
                let Some(copy_at) = self.skip() else { return Ok(false) };
                copy_at
            };
            open.copies.push(LoggedCopy { tid, at: copy_at, tag });
        }
        Ok(true)
    }

    /// Returns whether this commit block ends a whole transaction. If not, the log ends here, and
    /// the scanner may have moved on.
    ///
    /// A commit block of an earlier life of the log has an earlier time or another UUID. The UUID
    /// is part of every checksum, so two blocks of that life have the same
    /// [error](Layout::checksum_error). The first tag has a UUID too, but the kernel writes zeros.
    fn commit(&mut self, open: &Open, tid: Tid, at: u32, block: &[u8]) -> Result<bool> {
        let time = Commit::time(block);
        let is_bad = Commit::check(self.layout, block, open.crc.value()) == CommitCheck::Bad;
        if !is_bad && open.damaged.is_none() {
            self.last_commit = time;
            return Ok(true);
        }
        if time < self.last_commit {
            return Ok(false);
        }
        let error = self.layout.checksum_error(BlockType::Commit, block);
        let is_of_another_volume = |other: u32| is_bad && error != 0 && other == error;
        // The block to report, and the checksum error of another block than this one.
        let witness = match open.damaged {
            Some(damaged) => Some(damaged),
            None => self.error_of_next(tid.next())?.map(|other| (at, other)),
        };
        let Some((log_block, other)) = witness else {
            let damage = JournalError::DamagedLastCommit { tid, log_block: at };
            return if self.can_tear { Ok(false) } else { Err(damage) };
        };
        // As in jbd2, only a commit block of the next transaction tells that this one was durable.
        if is_of_another_volume(other) || self.is_async && self.up_to_commit(tid.next())?.is_none() {
            return Ok(false);
        }
        Err(JournalError::DamagedTransaction { tid, log_block })
    }

    /// Returns the [error](Layout::checksum_error) of the next block if it belongs to transaction
    /// `tid`.
    fn error_of_next(&mut self, tid: Tid) -> Result<Option<u32>> {
        if self.left == 0 {
            return Ok(None);
        }
        let block = self.window.read(self.at, self.left)?;
        let header = Header::parse(&block).filter(|header| header.sequence == tid.0);
        let error = |kind| self.layout.checksum_error(kind, &block);
        Ok(header.map(|header| header.block_type.map_or(0, error)))
    }
}
