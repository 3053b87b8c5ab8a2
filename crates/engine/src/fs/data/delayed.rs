//! Delayed allocation: space for dirty blocks that are not allocated yet.
//!
//! A block that becomes dirty in a hole gets a claim, for itself and for blocks of the map, so that
//! its writeback finds space. With `nodelalloc` its block is chosen at once, in core. When pages
//! are written out, the claim moves into the plan ([`WritePlan`](super::plan::WritePlan)). For
//! pages that the plan could not write, it comes back as chosen blocks.
//!
//! Invariants:
//! - A dirty block has a claim or a chosen block if and only if it lies in a hole. A thread that
//!   maps blocks in another way writes the range out first.
//! - The claim for the map is enough for the tree as it is at writeback. So a direct write that may
//!   add nodes also claims for pages that wait ([`Content::claim_for_growth`]).
//! - Marking an unwritten block as written may split an extent. So a dirty block over one claims
//!   blocks for the map, from the reserved blocks if there are no others.
//!
//! Hazards:
//! - [`Content::claim_for_growth`] does not count pages in writeback, and the few nodes that a
//!   punch or a shift adds must fit into the spare part of a claim.
//! - A claim counts blocks of the whole volume. The map of a file without extents reaches those
//!   below 2^32: where none of them is free, writeback finds no space for its pages.
//! - Where the map cannot be read when pages are dropped, and a block is written again before it
//!   can, one claim is kept until the inode leaves memory.

use super::content::Content;
use crate::error::Result;
use crate::fs::file::delayed::join;
use crate::store::alloc::{self, Spot};
use crate::store::map::{self, Mapping, TreeWidth};
use lanefs_format::Inode;
use std::mem;
use std::ops::Range;

impl Content<'_> {
    /// Claims space for `runs` before they become dirty: data and map for holes, and the map alone
    /// for unwritten blocks.
    ///
    /// # Errors
    /// [`Error::NoSpace`](crate::Error::NoSpace), or
    /// [`Error::FileTooBig`](crate::Error::FileTooBig) if i_blocks could not count them: nothing is
    /// claimed. A damaged map.
    pub(super) fn claim(self, runs: impl Iterator<Item = Range<u32>> + Clone) -> Result<()> {
        let Unready { holes, unwritten, first } = self.unready(runs.clone())?;
        if first.is_none() {
            return Ok(());
        }
        let width = {
            let inode = self.node.state();
            let width = map::tree_width(self.fs(), &inode);
            let all = self.file.delayed().blocks_with(holes, unwritten, width);
            map::check_sectors(self.fs(), &inode, all)?;
            width
        };
        if unwritten > 0 {
            let mut delayed = self.file.delayed();
            let more = delayed.map_lack(0, unwritten, width);
            delayed.claim_for_map(self.fs(), more)?;
            delayed.unwritten += unwritten;
        }
        self.claim_holes(runs, holes, width).inspect_err(|_| {
            let mut delayed = self.file.delayed();
            delayed.no_longer_unwritten(unwritten);
            delayed.put_back(None);
        })
    }

    /// Claims what blocks that are dirty already will need in addition, because another change may
    /// add `nodes` to the map: each of these may be full when the dirty blocks are written out.
    /// `inode` is the file's, before that change.
    ///
    /// # Errors
    /// [`Error::NoSpace`](crate::Error::NoSpace): nothing is claimed.
    pub(super) fn claim_for_growth(self, inode: &Inode, nodes: u64) -> Result<()> {
        let width = map::tree_width(self.fs(), inode).map(|width| width.with(nodes));
        let mut delayed = self.file.delayed();
        let more = delayed.map_lack(0, 0, width);
        delayed.claim_for_map(self.fs(), more)
    }
}

impl Content<'_> {
    /// Claims space for the holes of `runs`, which have `len` blocks.
    fn claim_holes(
        self,
        runs: impl Iterator<Item = Range<u32>> + Clone,
        len: u64,
        width: Option<TreeWidth>,
    ) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        if self.fs().options.modes.delalloc {
            let mut delayed = self.file.delayed();
            let more = delayed.map_lack(len, 0, width);
            let mut all = alloc::claim(self.fs(), len + more)?;
            join(&mut delayed.map, all.split(more));
            join(&mut delayed.data, all);
            return Ok(());
        }
        let choose = |run, unwritten| if unwritten { Ok(()) } else { self.choose(run) };
        self.each_unready(runs.clone(), choose).inspect_err(|_| {
            let mut delayed = self.file.delayed();
            for run in runs {
                drop(delayed.forget_chosen(run));
            }
        })
    }
}

/// Blocks that need a claim before they become dirty.
#[derive(Debug, Default)]
pub(super) struct Unready {
    /// How many lie in holes.
    pub(super) holes: u64,
    /// How many are unwritten.
    pub(super) unwritten: u64,
    /// The first of all.
    pub(super) first: Option<u32>,
}

impl Content<'_> {
    /// Counts the blocks of `runs`, which are in order, that need a claim.
    pub(super) fn unready(self, runs: impl Iterator<Item = Range<u32>>) -> Result<Unready> {
        let mut unready = Unready::default();
        self.each_unready(runs, |run, unwritten| {
            unready.first.get_or_insert(run.start);
            let count = if unwritten { &mut unready.unwritten } else { &mut unready.holes };
            *count += u64::from(run.end - run.start);
            Ok(())
        })?;
        Ok(unready)
    }

    /// Calls `f` with the parts of `runs` that need a claim, in order, and with whether they are
    /// unwritten blocks or lie in a hole.
    fn each_unready(
        self,
        runs: impl Iterator<Item = Range<u32>>,
        mut f: impl FnMut(Range<u32>, bool) -> Result<()>,
    ) -> Result<()> {
        for run in runs {
            let mut lblk = run.start;
            while lblk < run.end {
                let mapping = self.mapping(lblk)?;
                let part = lblk..lblk + mapping.len().min(run.end - lblk);
                lblk = part.end;
                match mapping {
                    Mapping::Hole { .. } => f(part, false)?,
                    Mapping::Mapped { unwritten: true, .. } => f(part, true)?,
                    Mapping::Mapped { .. } => {}
                }
            }
        }
        Ok(())
    }

    fn choose(self, hole: Range<u32>) -> Result<()> {
        let fs = self.fs();
        let mut lblk = hole.start;
        while lblk < hole.end {
            // The inode's lock comes before the claims' lock.
            let (width, reach) = {
                let inode = self.node.state();
                (map::tree_width(self.fs(), &inode), map::reach(&inode))
            };
            let mapped = self.goal_behind(lblk);
            let mut delayed = self.file.delayed();
            let more = delayed.map_lack(u64::from(hole.end - lblk), 0, width);
            if more > 0 {
                let claim = alloc::claim(fs, more)?;
                join(&mut delayed.map, claim);
            }
            let spot = Spot {
                ino: self.node.ino,
                lblk,
                want: hole.end - lblk,
                hole: lblk..hole.end,
                goal: delayed.chosen_before(lblk).or(mapped),
                size: self.blocks_to(self.file.size()).max(hole.end),
                reach,
            };
            let run = alloc::reserve_at(fs, &self.file.alloc, &spot, None)?;
            let len = run.len();
            delayed.chosen.insert(lblk, run);
            lblk += len;
        }
        Ok(())
    }

    /// Returns the block behind the one that the logical block before `lblk` is mapped to.
    fn goal_behind(self, lblk: u32) -> Option<u64> {
        let before = lblk.checked_sub(1)?;
        match self.map(before) {
            Ok(Mapping::Mapped { block, .. }) => Some(block + 1),
            _ => None,
        }
    }

    /// Releases the claims of dirty blocks that were dropped, before their map changes, and of
    /// those for which an earlier call could not. The caller holds the writeback lock.
    ///
    /// # Errors
    /// A map that cannot be read: the next call tries again.
    pub(super) fn give_up(self, dropped: &[Range<u32>]) -> Result<()> {
        let dropped = {
            let mut delayed = self.file.delayed();
            let mut all = mem::take(&mut delayed.dropped);
            all.extend(dropped.iter().flat_map(|run| delayed.forget_chosen(run.clone())));
            all
        };
        // The inode's lock comes before the claims' lock.
        let unready = self.unready(dropped.iter().cloned());
        let mut delayed = self.file.delayed();
        match unready {
            Ok(Unready { holes, unwritten, .. }) => {
                delayed.no_longer_unwritten(unwritten);
                drop(delayed.take_data(holes));
                delayed.put_back(None);
                Ok(())
            }
            Err(e) => {
                delayed.dropped = dropped;
                Err(e)
            }
        }
    }
}
