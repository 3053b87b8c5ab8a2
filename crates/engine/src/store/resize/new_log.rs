//! A log that lies behind the new end gets another place.
//!
//! The log of a closed volume is empty, so a new one is made in free blocks. One transaction has
//! all that changes with it, and is committed in the *new* log. A write in place of one block, that
//! of the journal's inode, then makes the new log the volume's.
//!
//! 1. The new place: zeros, the log's superblock, the blocks of the map. The transaction.
//! 2. The superblock with its copy of the new map, and a flush. If 3 leaves the journal's inode
//!    torn, the log is found by that copy.
//! 3. The journal's inode, and a flush.
//! 4. The checkpoint of the transaction. The backups follow with the next change of size.
//!
//! Invariants:
//! - The journal's inode leads to the old log, which is empty and whose bitmaps are in place, or to
//!   the new one, whose transaction has all that differs.
//! - The two may share blocks, but not the first one, which tells that the old log is empty.

use super::Resizing;
use super::maps::{BuiltMap, build_table, build_tree, tree_blocks};
use super::moves::FreeSpace;
use super::relocate::Batch;
use super::step::check_credits;
use super::step::encode_super;
use super::usage::Usage;
use crate::error::{Error, ResizeError, Result};
use crate::store::Survey;
use lanefs_format::extent::{Extent, MAX_LEN};
use lanefs_format::{Inode, InodeFlags};
use lanefs_journal::{Journal, LogConfig, LogRun};
use std::ops::Range;

/// A place for the log.
#[derive(Debug, Default)]
pub(super) struct NewLog {
    /// All of it, by logical block.
    extents: Vec<Extent>,
    /// The blocks of its map.
    nodes: Vec<u64>,
    /// The blocks that the old log has not.
    taken: Vec<Range<u64>>,
    /// The blocks that the new log has not.
    pub(super) freed: Vec<Range<u64>>,
}

impl NewLog {
    /// Plans a place before `end` for a log that reaches behind it: one run, or else as many blocks
    /// of the old log as can stay.
    ///
    /// # Errors
    /// [`ResizeError::NoRoomForLog`]; a journal's inode that cannot be read.
    pub(super) fn plan(
        volume: &Resizing,
        usage: &Usage,
        end: u64,
        room: &mut FreeSpace,
    ) -> Result<Option<Self>> {
        let Some(log) = &volume.log else { return Ok(None) };
        let blocks_of = |run: &LogRun| run.physical..run.physical + u64::from(run.len);
        let nodes = usage.log_nodes.iter().map(|&block| block..block + 1);
        if !log.runs.iter().map(blocks_of).chain(nodes.clone()).any(|run| run.end > end) {
            return Ok(None);
        }
        let len: u32 = log.runs.iter().map(|run| run.len).sum();
        let none = || Error::from(ResizeError::NoRoomForLog { blocks: end, len });
        let mut new = Self { freed: nodes.collect(), ..Self::default() };
        match room.take(len) {
            Some(start) => {
                new.put(0, start, len);
                new.freed.extend(log.runs.iter().map(blocks_of));
            }
            None => log.runs.iter().try_for_each(|run| new.keep(run, end, room).ok_or_else(none))?,
        }
        let inode = volume.log_inode()?;
        let size = volume.superblock.block_size();
        let need = if inode.flags.contains(InodeFlags::EXTENTS) {
            tree_blocks(new.extents.len(), size)
        } else {
            build_table(new.blocks(), size, &mut || Ok(0))?.1.len()
        };
        for _ in 0..need {
            let block = room.take(1).ok_or_else(none)?;
            new.nodes.push(block);
            new.taken.push(block..block + 1);
        }
        Ok(Some(new))
    }

    /// Appends a run of new blocks.
    fn put(&mut self, logical: u32, start: u64, len: u32) {
        self.taken.push(start..start + u64::from(len));
        self.append(logical, start, len);
    }

    fn append(&mut self, logical: u32, start: u64, len: u32) {
        for done in (0..len).step_by(MAX_LEN as usize) {
            let next = Extent {
                ee_block: logical + done,
                len: MAX_LEN.min(len - done),
                unwritten: false,
                ee_start: start + u64::from(done),
            };
            match self.extents.last_mut().and_then(|last| Some((last.join(&next)?, last))) {
                Some((both, last)) => *last = both,
                None => self.extents.push(next),
            }
        }
    }

    /// Keeps the part of a run of the old log that lies before `end`, without the log's first
    /// block, and appends others for the rest. `None` if there is no room.
    fn keep(&mut self, run: &LogRun, end: u64, room: &mut FreeSpace) -> Option<()> {
        let head = u32::from(run.logical == 0);
        let until = end.saturating_sub(run.physical).min(run.len.into()) as u32;
        for (from, to, stays) in [(0, head, false), (head, until, true), (until.max(head), run.len, false)] {
            let (logical, start) = (run.logical + from, run.physical + u64::from(from));
            if from >= to {
                continue;
            }
            if stays {
                self.append(logical, start, to - from);
                continue;
            }
            self.freed.push(start..run.physical + u64::from(to));
            let mut at = logical;
            for (place, len) in room.take_pieces(to - from)? {
                self.put(at, place, len);
                at += len;
            }
        }
        Some(())
    }

    /// Returns all blocks in the order of the log.
    fn blocks(&self) -> impl Iterator<Item = u64> + '_ {
        self.extents.iter().flat_map(|run| run.ee_start..run.ee_start + u64::from(run.len))
    }

    /// Returns the changes of the bitmaps.
    fn batch(&self) -> Batch {
        let mut batch = Batch::default();
        (batch.taken, batch.freed) = (self.taken.clone(), self.freed.clone());
        batch
    }

    /// Checks that the move fits into a transaction of `max` blocks.
    ///
    /// # Errors
    /// [`ResizeError::LogTooSmall`].
    pub(super) fn check_credits(&self, volume: &Resizing, max: u32) -> Result<()> {
        let mut batch = self.batch();
        batch.note_groups(&volume.superblock.layout())?;
        // And the block with the journal's inode.
        check_credits(batch.cost() + 1, max)
    }

    fn runs(&self) -> Vec<LogRun> {
        let run = |e: &Extent| LogRun { logical: e.ee_block, physical: e.ee_start, len: e.len };
        self.extents.iter().map(run).collect()
    }

    /// Makes the map of the journal's inode.
    fn map(&self, volume: &Resizing, inode: &Inode) -> Result<BuiltMap> {
        let (sb, size) = (&volume.superblock, volume.superblock.block_size());
        if inode.flags.contains(InodeFlags::EXTENTS) {
            return build_tree(&self.extents, &self.nodes, (inode.ino, inode.seed(&sb.checksummer())), size);
        }
        let mut places = self.nodes.iter().copied();
        build_table(self.blocks(), size, &mut || places.next().ok_or(Error::NoSpace))
    }
}

impl Resizing {
    fn log_inode(&self) -> Result<Inode> {
        let ino = self.superblock.raw().s_journal_inum.get();
        let (block, at) = self.slot_of(ino)?;
        let bytes = self.device.read(block)?;
        Ok(Inode::parse(bytes.get(at).unwrap_or_default(), ino, &self.superblock.inode_context())?)
    }

    /// Gives the log its new place. The caller has [checked](NewLog::check_credits) that a
    /// transaction has room for the move.
    ///
    /// # Errors
    /// Errors of the journal and the device. After a recovery the log is in its old place or in the
    /// new one.
    pub(super) fn move_log(&mut self, new: &NewLog) -> Result<()> {
        let groups = self.groups.clone();
        let state = self.begin()?;
        self.unfinished = false;
        let switched = self.switch_log(new);
        if self.unfinished {
            return switched.map(drop);
        }
        let outcome = match switched {
            Ok(journal) => {
                // If this fails, the log in its new place is not empty: the volume still needs
                // recovery.
                if let Some(journal) = journal {
                    journal.close()?;
                }
                Ok(())
            }
            Err(e) => {
                self.groups = groups;
                Err(e)
            }
        };
        let closed = self.finish(state);
        outcome.and(closed)
    }

    /// Makes the new place that of the log, and returns the journal there.
    ///
    /// # Errors
    /// Those of [`move_log`](Self::move_log). The log is in its old place, unless the volume is
    /// `unfinished`.
    fn switch_log(&mut self, new: &NewLog) -> Result<Option<Journal>> {
        let (Some(log), Some(first)) = (self.log.clone(), new.blocks().next()) else { return Ok(None) };
        let mut inode = self.log_inode()?;
        let (i_block, nodes) = new.map(self, &inode)?;
        let sectors = u64::from(self.device.size / 512);
        inode.i_block = i_block;
        inode.blocks = (new.blocks().count() as u64 + nodes.len() as u64) * sectors;
        let (inode_block, at) = self.slot_of(inode.ino)?;
        let mut table = self.device.read(inode_block)?;
        let ctx = self.superblock.inode_context();
        inode.encode(table.get_mut(at).unwrap_or_default(), &ctx)?;

        let mut batch = new.batch();
        batch.logged.insert(inode_block, table.clone());
        let (mut logged, mut superblock) = self.with_bitmaps(batch)?;
        superblock.set_journal_backup(&inode.i_block, inode.size);
        let (block, bytes) = encode_super(&self.device, &superblock)?;
        logged.insert(block, bytes);

        for run in &new.taken {
            self.device.zero(run.clone(), u64::MAX)?;
        }
        for (block, content) in &nodes {
            self.device.write(*block, content)?;
        }
        let old_first = log.runs.first().map_or(0, |run| run.physical);
        let config = LogConfig { runs: new.runs(), ..log };
        // Now, because behind the switch nothing may fail.
        let zones = Survey::read(&*self.device.device, &self.superblock, Some(&config), true)?.zones;
        self.device.write(first, &self.device.read(old_first)?)?;
        let journal = self.open_journal(Some(&config))?;
        self.commit(&journal, &logged)?;

        self.unfinished = true;
        self.superblock.set_journal_backup(&inode.i_block, inode.size);
        self.write_super()?;
        self.device.write(inode_block, &table)?;
        self.device.device.flush()?;
        journal.checkpoint()?;
        (self.superblock, self.zones, self.log) = (superblock, zones, Some(config));
        self.unfinished = false;
        Ok(Some(journal))
    }
}
