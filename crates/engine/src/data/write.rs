//! Writing: the data first, then one handle that maps it.
//!
//! A call is cut into batches. A batch looks at the map as it stands, reserves blocks for holes,
//! and writes all its data; then its handle takes the reserved blocks, inserts or converts, and moves
//! i_size. Where space runs out in the middle, what was written before stays, as a short write would.

use super::{io, max_size, place, set_size, touch, zero_tail};
use crate::alloc::{self, BlockKind, Claim, Reserved};
use crate::error::{Error, Result};
use crate::inode::Node;
use crate::map::{self, Mapping};
use crate::txn::credits;
use crate::volume::Fs;
use lanefs_format::{Inode, InodeFlags};
use std::mem;
use std::ops::Range;

/// Bytes of a batch: a multiple of every block size.
const BATCH: u64 = 8 << 20;

/// Writes all of `bytes` at `offset`. What lies between the old end and `offset` reads as zeros.
///
/// # Errors
/// [`Error::FileTooBig`], [`Error::NotPermitted`]: nothing is written. [`Error::NoSpace`], or the
/// device's: a part may be.
pub(crate) fn write(node: &Node, offset: u64, bytes: &[u8]) -> Result<()> {
    let _data = node.lock();
    write_locked(node, offset, bytes)
}

/// Writes all of `bytes` at the end; where that was.
///
/// # Errors
/// As [`write`].
pub(crate) fn append(node: &Node, bytes: &[u8]) -> Result<u64> {
    let _data = node.lock();
    let end = node.state().size;
    write_locked(node, end, bytes)?;
    Ok(end)
}

fn write_locked(node: &Node, offset: u64, mut bytes: &[u8]) -> Result<()> {
    let fs = &*node.fs;
    fs.check_writable()?;
    if bytes.is_empty() {
        return Ok(());
    }
    let inode = node.state().clone();
    if inode.flags.contains(InodeFlags::IMMUTABLE) {
        return Err(Error::NotPermitted("the inode is immutable"));
    }
    if inode.flags.contains(InodeFlags::APPEND) && offset != inode.size {
        return Err(Error::NotPermitted("the inode is append-only"));
    }
    let end = offset.checked_add(bytes.len() as u64).ok_or(Error::FileTooBig)?;
    if end > max_size(fs, &inode) {
        return Err(Error::FileTooBig);
    }
    zero_tail(fs, node.ino, &inode, inode.size, offset)?;
    let mut batch = Batch::new(node, inode);
    let mut at = offset;
    while !bytes.is_empty() {
        let n = bytes.len().min((BATCH - at % BATCH) as usize);
        let (now, later) = bytes.split_at(n);
        batch.add(at, now)?;
        batch.submit()?;
        (at, bytes) = (at + n as u64, later);
    }
    Ok(())
}

/// What a batch's handle has to do to the map.
enum Change {
    Insert(u32, Reserved),
    Convert(Range<u32>),
}

struct Batch<'n, 'b> {
    node: &'n Node,
    fs: &'n Fs,
    /// The inode as the batch began.
    inode: Inode,
    writes: Vec<io::Write<'b>>,
    changes: Vec<Change>,
    /// Blocks claimed for the map, so that data does not take the last one.
    margin: Vec<Claim>,
    credits: u32,
    /// The end of what the batch has written.
    end: u64,
}

impl<'n, 'b> Batch<'n, 'b> {
    fn new(node: &'n Node, inode: Inode) -> Self {
        let (writes, changes, margin) = (Vec::new(), Vec::new(), Vec::new());
        Self { node, fs: &node.fs, inode, writes, changes, margin, credits: 0, end: 0 }
    }

    /// Plans the write of `bytes` at `at`; submits what is planned when a handle could not take more.
    fn add(&mut self, mut at: u64, mut bytes: &'b [u8]) -> Result<()> {
        let fs = self.fs;
        let size = fs.block_size as usize;
        let mut goal = None;
        while !bytes.is_empty() {
            let (lblk, inner) = place(fs, at)?;
            let mapping = map::lookup(fs, self.node.ino, &self.inode, lblk)?;
            // At most a batch's blocks.
            let wanted = (inner + bytes.len()).div_ceil(size) as u32;
            let mut blocks = mapping.len().min(wanted);
            let (first, whole) = match mapping {
                Mapping::Mapped { block, unwritten, .. } => {
                    if unwritten {
                        self.plan(Change::Convert(lblk..lblk + blocks), blocks);
                    }
                    (block, unwritten)
                }
                Mapping::Hole { .. } => {
                    let near = match goal {
                        Some(goal) => goal,
                        None => map::goal(fs, self.node.ino, &self.inode, lblk)?,
                    };
                    let run = self.reserve(lblk, near, blocks.min(map::max_run(fs, &self.inode)))?;
                    blocks = run.len();
                    let first = run.start();
                    self.plan(Change::Insert(lblk, run), blocks);
                    (first, true)
                }
            };
            goal = Some(first + u64::from(blocks));
            let n = bytes.len().min(blocks as usize * size - inner);
            let (body, later) = bytes.split_at(n);
            let offset = fs.byte_of(first);
            // Blocks that held nothing are written whole.
            self.writes.push(match whole {
                true => io::Write { offset, head: inner, body, tail: blocks as usize * size - inner - n },
                false => io::Write { offset: offset + inner as u64, head: 0, body, tail: 0 },
            });
            (at, bytes) = (at + n as u64, later);
            self.end = at;
            if self.credits > fs.journal.max_credits() / 4 {
                self.submit()?;
            }
        }
        Ok(())
    }

    fn plan(&mut self, change: Change, blocks: u32) {
        // The tree may grow by a level on the way.
        self.credits += map::insert_credits(self.fs, &self.inode, blocks) + 4 + credits::RUN;
        self.changes.push(change);
    }

    /// Reserves blocks for `lblk`; if there are none, once more when those that were freed of late are
    /// free.
    fn reserve(&mut self, lblk: u32, goal: u64, want: u32) -> Result<Reserved> {
        match self.try_reserve(lblk, goal, want) {
            Err(Error::NoSpace) => {
                self.submit()?;
                self.fs.journal.sync()?;
                self.try_reserve(lblk, goal, want)
            }
            reserved => reserved,
        }
    }

    /// Reserves as many of `want` blocks as leave enough for the map.
    fn try_reserve(&mut self, lblk: u32, goal: u64, mut want: u32) -> Result<Reserved> {
        let (fs, before) = (self.fs, self.changes.len());
        loop {
            let run = alloc::reserve(fs, goal, want)?;
            let need = map::insert_blocks(fs, self.node.ino, &self.inode, lblk, run.len(), before)?;
            match alloc::claim(fs, need as u64) {
                Ok(claim) => {
                    self.margin.push(claim);
                    return Ok(run);
                }
                Err(Error::NoSpace) if run.len() > 1 => {
                    want = run.len().saturating_sub(need as u32).max(1);
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Writes the data, then maps it.
    fn submit(&mut self) -> Result<()> {
        if self.writes.is_empty() {
            return Ok(());
        }
        io::write(self.fs, &self.writes)?;
        self.writes.clear();
        let (ino, end) = (self.node.ino, self.end);
        let (changes, margin) = (mem::take(&mut self.changes), mem::take(&mut self.margin));
        let mut txn = self.fs.start(mem::take(&mut self.credits) + credits::INODE + credits::SUPER)?;
        self.node.update(&mut txn, |txn, inode| {
            let fs = txn.fs();
            touch(fs, inode);
            margin.into_iter().for_each(|claim| txn.spend(claim));
            for change in changes {
                let last = match change {
                    Change::Convert(range) => {
                        map::convert(txn, ino, inode, range.clone(), false)?;
                        range.end
                    }
                    Change::Insert(lblk, reserved) => {
                        let (start, len) = (reserved.start(), reserved.len());
                        txn.take_reserved(reserved)?;
                        if let Err(e) = map::insert(txn, ino, inode, lblk, start, len, false) {
                            txn.free(start, len, BlockKind::Data)?;
                            return Err(e);
                        }
                        lblk + len
                    }
                };
                // As far as is mapped, for the next change may fail.
                let mapped = end.min(u64::from(last) * u64::from(fs.block_size));
                set_size(txn, inode, inode.size.max(mapped))?;
            }
            set_size(txn, inode, inode.size.max(end))
        })?;
        drop(txn);
        self.inode = self.node.state().clone();
        Ok(())
    }
}
