//! Plans what moves when a volume becomes smaller.
//!
//! A [`Moves`] is planned as a whole before anything is written: every run behind the end gets a
//! free run of the same length, or, if there is none, several that are shorter. Files then move in
//! batches. The copies of a batch are written to blocks that are free, and one transaction changes
//! the maps and the bitmaps of all its files. So a crash leaves each file with its old blocks or
//! its new ones.

use super::Resizing;
use super::maps::tree_blocks;
use super::renumber::Numbers;
use super::usage::{FreeRuns, Holds, MapSize, Run, Sharers, Usage};
use crate::error::{ResizeError, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The new places of runs behind the end: by the first block of each piece, its length and place.
pub(super) type Targets = BTreeMap<u64, (u32, u64)>;

/// The free runs before an end, by length and then place.
#[derive(Debug)]
pub(super) struct FreeSpace {
    end: u64,
    by_len: BTreeSet<(u64, u64)>,
}

impl FreeSpace {
    pub(super) fn new(free: &FreeRuns, end: u64) -> Self {
        let runs = free.range(..end).map(|(&start, &len)| (len.min(end - start), start));
        Self { end, by_len: runs.collect() }
    }

    /// Takes `len` blocks of the shortest run that has so many.
    pub(super) fn take(&mut self, len: u32) -> Option<u64> {
        let wanted = u64::from(len);
        let &(room, start) = self.by_len.range((wanted, 0)..).next()?;
        self.by_len.remove(&(room, start));
        if room > wanted {
            self.by_len.insert((room - wanted, start + wanted));
        }
        Some(start)
    }

    /// Takes `len` blocks, in one run or in several, the longest first.
    pub(super) fn take_pieces(&mut self, len: u32) -> Option<Vec<(u64, u32)>> {
        let (mut pieces, mut left) = (Vec::new(), len);
        while left > 0 {
            match self.take(left) {
                Some(start) => {
                    pieces.push((start, left));
                    left = 0;
                }
                None => {
                    // Shorter than what is left, which is a u32.
                    let (room, start) = self.by_len.pop_last()?;
                    pieces.push((start, room as u32));
                    left -= room as u32;
                }
            }
        }
        Some(pieces)
    }

    /// Adds the part of a run that lies before the end.
    pub(super) fn add(&mut self, run: Range<u64>) {
        let len = run.end.min(self.end).saturating_sub(run.start);
        if len > 0 {
            self.by_len.insert((len, run.start));
        }
    }
}

/// A planned relocation.
#[derive(Debug, Default)]
pub(super) struct Moves {
    pub(super) targets: Targets,
    /// The inodes whose maps change, with the blocks of those trees that are made anew.
    pub(super) files: BTreeMap<u32, Option<Vec<u64>>>,
    pub(super) xattrs: Sharers,
}

impl Moves {
    /// Plans to empty the blocks from `end` on.
    ///
    /// # Errors
    /// [`ResizeError::NoRun`].
    pub(super) fn plan(volume: &Resizing, usage: &Usage, end: u64, room: &mut FreeSpace) -> Result<Self> {
        let mut moves = Self::default();
        let mut extents: BTreeMap<u32, usize> = BTreeMap::new();
        for run in usage.runs.iter().filter(|run| run.end() > end) {
            let has_new_tree = extents.contains_key(&run.ino);
            if run.holds == Holds::Node && has_new_tree {
                continue;
            }
            let pieces = moves.target(run, room);
            let pieces = pieces.ok_or(ResizeError::NoRun { blocks: end, len: run.len })?;
            if run.holds == Holds::Attributes {
                let inos = usage.xattrs.get(&run.start).cloned().unwrap_or_default();
                moves.xattrs.insert(run.start, inos);
                continue;
            }
            moves.files.entry(run.ino).or_default();
            if pieces > 1 {
                let size = usage.files.get(&run.ino).map_or(0, |size: &MapSize| size.extents);
                *extents.entry(run.ino).or_insert(size) += pieces - 1;
            }
        }
        for (ino, extents) in extents {
            let need = tree_blocks(extents, volume.superblock.block_size());
            let places: Option<Vec<u64>> = (0..need).map(|_| room.take(1)).collect();
            let places = places.ok_or(ResizeError::NoRun { blocks: end, len: 1 })?;
            moves.files.insert(ino, Some(places));
        }
        Ok(moves)
    }

    /// Takes over new numbers of inodes.
    pub(super) fn renumber(&mut self, numbers: &Numbers) {
        let new = |ino: u32| numbers.get(&ino).copied().unwrap_or(ino);
        self.files =
            std::mem::take(&mut self.files).into_iter().map(|(ino, tree)| (new(ino), tree)).collect();
        for ino in self.xattrs.values_mut().flatten() {
            *ino = new(*ino);
        }
    }

    /// Gives a run its new place. Returns the number of pieces.
    fn target(&mut self, run: &Run, room: &mut FreeSpace) -> Option<usize> {
        let pieces = room.take_pieces(run.len)?;
        let mut at = run.start;
        for &(to, len) in &pieces {
            self.targets.insert(at, (len, to));
            at += u64::from(len);
        }
        Some(pieces.len())
    }
}
