//! Delayed allocation: space for dirty blocks that are not allocated yet.
//!
//! A block that becomes dirty in a hole gets a claim, for itself and for blocks of the map, so that
//! its writeback finds space. With `nodelalloc` its block is chosen at once, in core. When pages
//! are written out, the claim moves into the plan ([`Plan`](super::plan::Plan)). For pages that the
//! plan could not write, it comes back, as chosen blocks.
//!
//! Invariants:
//! - A dirty block has a claim or a chosen block if and only if it lies in a hole. A thread that
//!   maps blocks in another way writes the range out first.
//! - The claim for the map is enough for the tree as it is when the pages are written out. So a
//!   direct write that may add nodes to the tree also claims for pages that wait
//!   ([`Content::claim_for_growth`]).
//! - A dirty block over an unwritten one is allocated, but marking it as written may split an
//!   extent. So blocks for the map are claimed for it too, from the reserved blocks if there are no
//!   others.
//!
//! Hazard: [`Content::claim_for_growth`] does not count pages in writeback, and the few nodes that
//! a punch or a shift adds must fit into the spare part of a claim.

use super::content::Content;
use crate::error::Result;
use crate::fs::Fs;
use crate::store::alloc::{self, Claim, Reserved, Spot};
use crate::store::map::{self, Mapping, TreeWidth};
use lanefs_format::Inode;
use std::collections::BTreeMap;
use std::ops::Range;

/// The claims of one file.
#[derive(Debug, Default)]
pub(super) struct Delayed {
    data: Option<Claim>,
    /// Blocks for the map.
    map: Option<Claim>,
    /// Chosen blocks, by their first logical block.
    chosen: BTreeMap<u32, Reserved>,
    /// Dirty blocks over unwritten ones.
    unwritten: u64,
}

/// Returns how many blocks the map may need for `data` more blocks, in the worst case that no two
/// are adjacent. Each full node of a tree of `width` is split by the first block that it takes; its
/// halves, with the smallest block size, take 32 more before they are split. A map without a tree
/// may need indirect blocks of two levels for each block.
fn map_blocks(data: u64, width: Option<TreeWidth>) -> u64 {
    match (data, width) {
        (0, _) => 0,
        (data, Some(width)) => 6 + data / 32 + width.splits(data),
        (data, None) => 3 + 2 * data,
    }
}

/// Returns how many blocks the map may need to mark `unwritten` blocks as written: each splits an
/// extent in three.
fn parting_blocks(unwritten: u64, width: Option<TreeWidth>) -> u64 {
    if unwritten == 0 { 0 } else { 6 + unwritten / 16 + width.map_or(0, |width| width.splits(unwritten)) }
}

fn blocks(claim: &Option<Claim>) -> u64 {
    claim.as_ref().map_or(0, Claim::blocks)
}

/// Adds `more` to `claim`.
pub(super) fn join(claim: &mut Option<Claim>, more: Claim) {
    match claim {
        Some(claim) => claim.join(more),
        None => *claim = Some(more),
    }
}

impl Delayed {
    /// Returns how many blocks the file will get for dirty pages in holes.
    pub(super) fn data_blocks(&self) -> u64 {
        blocks(&self.data) + self.chosen_blocks()
    }

    /// Takes the claim for `data` blocks.
    pub(super) fn take_data(&mut self, data: u64) -> Option<Claim> {
        self.data.as_mut().map(|claim| claim.split(data))
    }

    /// Puts back the unspent part of the claim for data.
    pub(super) fn put_back_data(&mut self, claim: Option<Claim>) {
        if let Some(claim) = claim {
            join(&mut self.data, claim);
        }
    }

    /// Returns how many blocks for the map must still be claimed for all dirty blocks, with `data`
    /// more in holes and `unwritten` more over unwritten blocks.
    fn map_lack(&self, data: u64, unwritten: u64, width: Option<TreeWidth>) -> u64 {
        let holes = map_blocks(self.data_blocks() + data, width);
        (holes + parting_blocks(self.unwritten + unwritten, width)).saturating_sub(blocks(&self.map))
    }

    /// Claims `more` blocks for the map, also reserved ones.
    ///
    /// # Errors
    /// [`Error::NoSpace`](crate::Error::NoSpace): nothing is claimed.
    fn claim_for_map(&mut self, fs: &Fs, more: u64) -> Result<()> {
        if more > 0 {
            let claim = alloc::claim_for_map(fs, more)?;
            join(&mut self.map, claim);
        }
        Ok(())
    }

    /// Moves into `claim` the blocks claimed to map `data` blocks and to mark `unwritten` ones as
    /// written.
    pub(super) fn take_map(
        &mut self,
        claim: &mut Option<Claim>,
        data: u64,
        unwritten: u64,
        width: Option<TreeWidth>,
    ) {
        let need = map_blocks(data, width) + parting_blocks(unwritten, width);
        let more = need.saturating_sub(blocks(claim));
        if let Some(own) = &mut self.map {
            join(claim, own.split(more));
        }
    }

    /// Puts back the unspent part of the claim for the map. Releases all of it once no dirty block
    /// needs it.
    pub(super) fn put_back(&mut self, map: Option<Claim>) {
        if let Some(claim) = map {
            join(&mut self.map, claim);
        }
        if blocks(&self.data) == 0 && self.chosen.is_empty() && self.unwritten == 0 {
            self.map = None;
        }
    }

    /// Stops counting `len` dirty blocks over unwritten ones.
    pub(super) fn no_longer_unwritten(&mut self, len: u64) {
        self.unwritten = self.unwritten.saturating_sub(len);
    }

    /// Counts `len` dirty blocks over unwritten ones again, because they could not be written out.
    pub(super) fn unwritten_again(&mut self, len: u64) {
        self.unwritten += len;
    }

    /// Puts back the blocks chosen for `lblk` and those behind it, which are still dirty.
    pub(super) fn give_back(&mut self, lblk: u32, run: Reserved) {
        if run.len() != 0 {
            self.chosen.insert(lblk, run);
        }
    }

    /// Returns how many of `len` blocks from `lblk` on come before the first with a chosen block.
    /// `lblk` itself has none.
    pub(super) fn unchosen(&self, lblk: u32, len: u32) -> u32 {
        self.chosen.range(lblk..).next().map_or(len, |(next, _)| len.min(next - lblk))
    }

    /// Returns the block behind the one that was chosen for the logical block before `lblk`.
    fn chosen_before(&self, lblk: u32) -> Option<u64> {
        let (at, run) = self.chosen.range(..lblk).next_back()?;
        (at + run.len() == lblk).then(|| run.start() + u64::from(run.len()))
    }

    fn chosen_blocks(&self) -> u64 {
        self.chosen.values().map(|run| u64::from(run.len())).sum()
    }

    /// Releases the blocks that were chosen in `hole`. Returns how many.
    fn forget_chosen(&mut self, hole: Range<u32>) -> u32 {
        let mut gone = 0;
        let mut at = hole.start;
        while at < hole.end {
            match self.take_chosen(at, hole.end - at) {
                Some(run) => {
                    (at, gone) = (at + run.len(), gone + run.len());
                }
                None => {
                    let next = self.chosen.range(at..).next();
                    at = next.map_or(hole.end, |(lblk, _)| *lblk).max(at + 1);
                }
            }
        }
        gone
    }

    /// Takes the blocks that were chosen for `lblk` and up to `len` logical blocks.
    pub(super) fn take_chosen(&mut self, lblk: u32, len: u32) -> Option<Reserved> {
        let first = *self.chosen.range(..=lblk).next_back()?.0;
        let mut run = self.chosen.remove(&first)?;
        let before = lblk - first;
        if before >= run.len() {
            self.chosen.insert(first, run);
            return None;
        }
        let mut rest = match before {
            0 => run,
            _ => {
                let rest = run.split_off(before);
                self.chosen.insert(first, run);
                rest
            }
        };
        if rest.len() > len {
            let later = rest.split_off(len);
            self.chosen.insert(lblk + len, later);
        }
        Some(rest)
    }
}

impl Content<'_> {
    /// Claims space for `runs` before they become dirty: data and map for holes, and the map alone
    /// for unwritten blocks.
    ///
    /// # Errors
    /// [`Error::NoSpace`](crate::Error::NoSpace): nothing is claimed. A damaged map.
    pub(super) fn claim(self, runs: &[Range<u32>]) -> Result<()> {
        let Unready { holes, unwritten } = self.unready(runs)?;
        if !unwritten.is_empty() {
            let len = count(&unwritten);
            let width = map::tree_width(self.fs(), &self.node.state());
            let mut delayed = self.file.delayed();
            let more = delayed.map_lack(0, len, width);
            delayed.claim_for_map(self.fs(), more)?;
            delayed.unwritten += len;
        }
        self.claim_holes(&holes).inspect_err(|_| {
            let mut delayed = self.file.delayed();
            delayed.no_longer_unwritten(count(&unwritten));
            delayed.put_back(None);
        })
    }

    /// Claims what blocks that are dirty already will need in addition, because another change may
    /// add
    /// `nodes` to the map: each of these may be full when the dirty blocks are written out. `inode`
    /// is the file's, before that change.
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

fn count(runs: &[Range<u32>]) -> u64 {
    runs.iter().map(|run| u64::from(run.end - run.start)).sum()
}

impl Content<'_> {
    fn claim_holes(self, holes: &[Range<u32>]) -> Result<()> {
        let len = count(holes);
        if len == 0 {
            return Ok(());
        }
        if self.fs().options.modes.delalloc {
            let width = map::tree_width(self.fs(), &self.node.state());
            let mut delayed = self.file.delayed();
            let more = delayed.map_lack(len, 0, width);
            let mut all = alloc::claim(self.fs(), len + more)?;
            join(&mut delayed.map, all.split(more));
            join(&mut delayed.data, all);
            return Ok(());
        }
        holes.iter().try_for_each(|hole| self.choose(hole.clone())).inspect_err(|_| {
            let mut delayed = self.file.delayed();
            for hole in holes {
                delayed.forget_chosen(hole.clone());
            }
        })
    }
}

/// Blocks that need a claim before they become dirty.
#[derive(Debug, Default)]
pub(super) struct Unready {
    pub(super) holes: Vec<Range<u32>>,
    pub(super) unwritten: Vec<Range<u32>>,
}

impl Content<'_> {
    /// Returns the blocks of `runs` that need a claim.
    pub(super) fn unready(self, runs: &[Range<u32>]) -> Result<Unready> {
        let mut unready = Unready::default();
        for run in runs {
            let mut lblk = run.start;
            while lblk < run.end {
                let mapping = self.mapping(lblk)?;
                let len = mapping.len().min(run.end - lblk);
                match mapping {
                    Mapping::Hole { .. } => unready.holes.push(lblk..lblk + len),
                    Mapping::Mapped { unwritten: true, .. } => unready.unwritten.push(lblk..lblk + len),
                    Mapping::Mapped { .. } => {}
                }
                lblk += len;
            }
        }
        Ok(unready)
    }

    fn choose(self, hole: Range<u32>) -> Result<()> {
        let fs = self.fs();
        let mut lblk = hole.start;
        while lblk < hole.end {
            // The inode's lock comes before the claims' lock.
            let width = map::tree_width(self.fs(), &self.node.state());
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

    /// Releases the claims of dirty blocks that were dropped, before their map changes.
    pub(super) fn give_up(self, dropped: &[Range<u32>]) -> Result<()> {
        let Unready { holes, unwritten } = self.unready(dropped)?;
        let mut delayed = self.file.delayed();
        delayed.no_longer_unwritten(count(&unwritten));
        for hole in holes {
            let chosen = delayed.forget_chosen(hole.clone());
            drop(delayed.take_data(u64::from(hole.end - hole.start - chosen)));
        }
        delayed.put_back(None);
        Ok(())
    }
}
