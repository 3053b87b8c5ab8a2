//! The first pass: finds the complete transactions and their copies and revokes.

use super::window::Window;
use crate::log::{LogMap, Ring};
use crate::{JournalError, Result, Tid};
use lanefs_device::{AlignedBuf, BlockDevice};
use lanefs_format::jbd2::{self, BlockType, Checksum, Commit, CommitCheck, Crc32Be, Header, Layout, Tag};
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
    /// The first block whose checksum is wrong.
    damaged: Option<u32>,
}

struct Scanner<'a> {
    layout: &'a Layout,
    ring: Ring,
    window: Window<'a>,
    at: u32,
    /// Blocks of the ring that have not been passed.
    left: u32,
    last_commit: Duration,
}

impl Scan {
    /// Walks the log from `start`, which lies inside `ring`.
    pub(super) fn run(
        device: &dyn BlockDevice,
        map: &LogMap,
        ring: Ring,
        layout: &Layout,
        start: u32,
        first: Tid,
    ) -> Result<Self> {
        let mut scan =
            Self { copies: Vec::new(), revokes: Vec::new(), transactions: 0, end: first, head: start };
        let window = Window::new(device, map, ring);
        let (at, left, last_commit) = (start, ring.len(), Duration::ZERO);
        let mut scanner = Scanner { layout, ring, window, at, left, last_commit };
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
                Some(BlockType::Commit) => {
                    return Ok(self.commit(&open, tid, at, &block)?.then_some(open));
                }
                _ => return Ok(None),
            }
        }
    }

    fn verify(&self, open: &mut Open, at: u32, block: &[u8]) {
        if !self.layout.verify_tail(block) {
            open.damaged.get_or_insert(at);
        }
    }

    /// Reads a descriptor. Returns `false` if the copies run around the ring, so that this is no
    /// transaction.
    fn descriptor(&mut self, open: &mut Open, tid: Tid, at: u32, block: &[u8]) -> Result<bool> {
        self.verify(open, at, block);
        open.crc.update(if self.layout.checksum == Checksum::V1 { block } else { &[] });
        for tag in jbd2::parse_tags(self.layout, block) {
            let Ok(tag) = tag else {
                open.damaged.get_or_insert(at);
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

    /// Returns whether this commit block ends a whole transaction.
    fn commit(&mut self, open: &Open, tid: Tid, at: u32, block: &[u8]) -> Result<bool> {
        let time = Commit::time(block);
        let stale = time < self.last_commit;
        if let Some(log_block) = open.damaged {
            return if stale { Ok(false) } else { Err(JournalError::DamagedTransaction { tid, log_block }) };
        }
        if Commit::check(self.layout, block, open.crc.value()) == CommitCheck::Bad {
            return if !stale && self.is_next(tid.next())? {
                Err(JournalError::DamagedTransaction { tid, log_block: at })
            } else {
                Ok(false)
            };
        }
        self.last_commit = time;
        Ok(true)
    }

    /// Returns whether the next block belongs to transaction `tid`.
    fn is_next(&mut self, tid: Tid) -> Result<bool> {
        if self.left == 0 {
            return Ok(false);
        }
        let header = Header::parse(&self.window.read(self.at, self.left)?);
        Ok(header.is_some_and(|header| header.sequence == tid.0))
    }
}
