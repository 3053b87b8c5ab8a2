//! What a handle has to do to a file's map, and when: before or after the data is written.
//!
//! A plan finds the blocks of a range, in the map or reserved in core for its holes. Then its data is
//! written and its handle maps it, in the order that the volume's mode says ([`Writeback`]). Whoever
//! plans has the range locked, or the file's writing out: nobody else maps it meanwhile.

use super::{max_size, set_size};
use crate::alloc::{self, BlockKind, Reserved};
use crate::error::{Error, Result};
use crate::inode::Node;
use crate::map::{self, Mapping};
use crate::txn::{Txn, credits};
use crate::volume::{IVersion, Overwrite, Writeback};
use lanefs_format::{Inode, InodeFlags};
use lanefs_journal::{JournalError, Pending};
use std::mem;
use std::ops::Range;

/// Blocks of the volume for blocks of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    /// The first block.
    pub(super) block: u64,
    /// How many.
    pub(super) blocks: u32,
    /// They hold nothing of the file yet: to be written whole.
    pub(super) fresh: bool,
}

#[derive(Debug)]
enum Change {
    Insert(u32, Reserved),
    Convert(Range<u32>),
}

/// The changes of one handle.
#[derive(Debug, Default)]
pub(super) struct Plan {
    changes: Vec<Change>,
    /// Blocks kept for the map, so that data does not take the last one.
    margin: Vec<Reserved>,
    credits: u32,
    /// Where the next hole's blocks would best lie.
    goal: Option<u64>,
}

impl Plan {
    /// Finds blocks for `lblk` and up to `blocks` that follow.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: what was planned so far still holds.
    pub(super) fn place(&mut self, node: &Node, lblk: u32, blocks: u32) -> Result<Piece> {
        let fs = &*node.fs;
        let state = node.state();
        let mapping = map::lookup(fs, node.ino, &state, lblk)?;
        let len = mapping.len().min(blocks);
        let piece = match mapping {
            Mapping::Mapped { block, unwritten, .. } => {
                if unwritten {
                    self.add(node, &state, Change::Convert(lblk..lblk + len), len);
                }
                Piece { block, blocks: len, fresh: unwritten }
            }
            Mapping::Hole { .. } => {
                let near = match self.goal {
                    Some(goal) => goal,
                    None => map::goal(fs, node.ino, &state, lblk)?,
                };
                let run = self.reserve(node, &state, lblk, near, len.min(map::max_run(fs, &state)))?;
                let piece = Piece { block: run.start(), blocks: run.len(), fresh: true };
                self.add(node, &state, Change::Insert(lblk, run), piece.blocks);
                piece
            }
        };
        self.goal = Some(piece.block + u64::from(piece.blocks));
        Ok(piece)
    }

    /// Whether a handle could not do much more than this.
    pub(super) fn is_full(&self, node: &Node) -> bool {
        self.credits > node.fs.journal.max_credits() / 4
    }

    fn add(&mut self, node: &Node, inode: &Inode, change: Change, blocks: u32) {
        // The tree may grow by a level on the way.
        self.credits += map::insert_credits(&node.fs, inode, blocks) + 4 + credits::RUN;
        self.changes.push(change);
    }

    /// Reserves as many of `want` blocks as leave enough for the map.
    fn reserve(
        &mut self,
        node: &Node,
        inode: &Inode,
        lblk: u32,
        goal: u64,
        mut want: u32,
    ) -> Result<Reserved> {
        let fs = &*node.fs;
        loop {
            let run = alloc::reserve(fs, goal, want)?;
            let need = map::insert_blocks(fs, node.ino, inode, lblk, run.len(), self.changes.len())?;
            match self.keep_margin(node, run.start() + u64::from(run.len()), need) {
                Ok(()) => return Ok(run),
                Err(Error::NoSpace) if run.len() > 1 => want = run.len().saturating_sub(need as u32).max(1),
                Err(e) => return Err(e),
            }
        }
    }

    fn keep_margin(&mut self, node: &Node, goal: u64, blocks: usize) -> Result<()> {
        let (had, mut left) = (self.margin.len(), blocks as u32);
        while left > 0 {
            match alloc::reserve(&node.fs, goal, left) {
                Ok(run) => {
                    left -= run.len();
                    self.margin.push(run);
                }
                Err(e) => {
                    self.margin.truncate(had);
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    /// Writes the data and maps it; i_disksize moves up to `end`.
    ///
    /// # Errors
    /// The device's, the journal's, [`Error::NoSpace`] for the map.
    pub(super) fn carry_out(
        mut self,
        node: &Node,
        end: u64,
        write: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let fs = &*node.fs;
        let changes = mem::take(&mut self.changes);
        if changes.is_empty() {
            write()?;
            let grows = end > node.state().size;
            let modes = &fs.options.modes;
            let journals = modes.overwrite == Overwrite::Journal || modes.i_version == IVersion::Always;
            return if grows || journals { self.map(node, changes, end, false, None) } else { Ok(()) };
        }
        let mapped_first = match fs.options.modes.writeback {
            Writeback::DioreadNolock if !node.state().flags.contains(InodeFlags::EXTENTS) => {
                Writeback::DioreadLock
            }
            mode => mode,
        };
        match mapped_first {
            Writeback::MapAfter => {
                write()?;
                self.map(node, changes, end, false, None)
            }
            Writeback::DioreadLock => {
                let pending = Pending::new();
                self.map(node, changes, end, false, Some(&pending))?;
                let written = write();
                pending
                    .done(written.as_ref().copied().map_err(|e| JournalError::Aborted(e.to_string().into())));
                written
            }
            Writeback::DioreadNolock => {
                let ranges = changes.iter().map(Change::range).collect::<Vec<_>>();
                let credits = self.credits;
                self.map(node, changes, 0, true, None)?;
                write()?;
                let second = Self { credits, ..Self::default() };
                second.map(node, ranges.into_iter().map(Change::Convert).collect(), end, false, None)
            }
        }
    }

    /// Runs the handle.
    fn map(
        mut self,
        node: &Node,
        changes: Vec<Change>,
        end: u64,
        unwritten: bool,
        pending: Option<&Pending>,
    ) -> Result<()> {
        let fs = &*node.fs;
        let mut txn = fs.start(self.credits + credits::INODE + credits::SUPER)?;
        // The map takes its blocks from what is kept here.
        self.margin.clear();
        if let Some(pending) = pending {
            txn.order_after(pending)?;
        }
        node.update_map(&mut txn, |txn, inode| {
            for change in changes {
                let last = change.range().end;
                change.apply(txn, node.ino, inode, unwritten)?;
                // As far as is mapped, for the next change may fail.
                let mapped = end.min(u64::from(last) * u64::from(fs.block_size));
                grow(txn, inode, mapped)?;
            }
            grow(txn, inode, end)
        })
    }
}

fn grow(txn: &Txn<'_>, inode: &mut Inode, end: u64) -> Result<()> {
    debug_assert!(end <= max_size(txn.fs(), inode));
    if end > inode.size { set_size(txn, inode, end) } else { Ok(()) }
}

impl Change {
    fn range(&self) -> Range<u32> {
        match self {
            Self::Insert(lblk, run) => *lblk..lblk + run.len(),
            Self::Convert(range) => range.clone(),
        }
    }

    fn apply(self, txn: &mut Txn<'_>, ino: u32, inode: &mut Inode, unwritten: bool) -> Result<()> {
        match self {
            // Unwritten already, if that is what is wanted.
            Self::Convert(_) if unwritten => Ok(()),
            Self::Convert(range) => map::convert(txn, ino, inode, range, false),
            Self::Insert(lblk, reserved) => {
                let (start, len) = (reserved.start(), reserved.len());
                txn.take_reserved(reserved)?;
                if let Err(e) = map::insert(txn, ino, inode, lblk, start, len, unwritten) {
                    txn.free(start, len, BlockKind::Data)?;
                    return Err(e);
                }
                Ok(())
            }
        }
    }
}
