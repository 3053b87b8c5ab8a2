//! The claims of one file's dirty pages: see `data/delayed.rs` for how they are used.

use crate::error::Result;
use crate::fs::Fs;
use crate::store::alloc::{self, Reserved};
use crate::store::map::TreeWidth;
use crate::store::space::Claim;
use std::collections::BTreeMap;
use std::ops::Range;

/// The claims of one file.
#[derive(Debug, Default)]
pub(crate) struct Delayed {
    pub(crate) data: Option<Claim>,
    /// Blocks for the map.
    pub(crate) map: Option<Claim>,
    /// Chosen blocks, by their first logical block.
    pub(crate) chosen: BTreeMap<u32, Reserved>,
    /// Dirty blocks over unwritten ones.
    pub(crate) unwritten: u64,
    /// Blocks that were dirty and were dropped, without chosen blocks. Their claims are released
    /// when the map can be read, which tells them apart.
    pub(crate) dropped: Vec<Range<u32>>,
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
pub(crate) fn join(claim: &mut Option<Claim>, more: Claim) {
    match claim {
        Some(claim) => claim.join(more),
        None => *claim = Some(more),
    }
}

impl Delayed {
    /// Returns how many blocks the file will get for dirty pages in holes.
    pub(crate) fn data_blocks(&self) -> u64 {
        blocks(&self.data) + self.chosen_blocks()
    }

    /// Takes the claim for `data` blocks.
    pub(crate) fn take_data(&mut self, data: u64) -> Option<Claim> {
        self.data.as_mut().map(|claim| claim.split(data))
    }

    /// Puts back the unspent part of the claim for data.
    pub(crate) fn put_back_data(&mut self, claim: Option<Claim>) {
        if let Some(claim) = claim {
            join(&mut self.data, claim);
        }
    }

    /// Returns how many blocks for the map must still be claimed for all dirty blocks, with `data`
    /// more in holes and `unwritten` more over unwritten blocks.
    pub(crate) fn map_lack(&self, data: u64, unwritten: u64, width: Option<TreeWidth>) -> u64 {
        let holes = map_blocks(self.data_blocks() + data, width);
        (holes + parting_blocks(self.unwritten + unwritten, width)).saturating_sub(blocks(&self.map))
    }

    /// Returns all blocks that the file may get for its dirty pages, for its map too, with `data`
    /// more in holes and `unwritten` more over unwritten blocks.
    pub(crate) fn blocks_with(&self, data: u64, unwritten: u64, width: Option<TreeWidth>) -> u64 {
        self.data_blocks() + data + blocks(&self.map) + self.map_lack(data, unwritten, width)
    }

    /// Claims `more` blocks for the map, also reserved ones.
    ///
    /// # Errors
    /// [`Error::NoSpace`](crate::Error::NoSpace): nothing is claimed.
    pub(crate) fn claim_for_map(&mut self, fs: &Fs, more: u64) -> Result<()> {
        if more > 0 {
            let claim = alloc::claim_for_map(fs, more)?;
            join(&mut self.map, claim);
        }
        Ok(())
    }

    /// Moves into `claim` the blocks claimed to map `data` blocks and to mark `unwritten` ones as
    /// written.
    pub(crate) fn take_map(
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
    pub(crate) fn put_back(&mut self, map: Option<Claim>) {
        if let Some(claim) = map {
            join(&mut self.map, claim);
        }
        if blocks(&self.data) == 0 && self.chosen.is_empty() && self.unwritten == 0 {
            self.map = None;
        }
    }

    /// Stops counting `len` dirty blocks over unwritten ones.
    pub(crate) fn no_longer_unwritten(&mut self, len: u64) {
        self.unwritten = self.unwritten.saturating_sub(len);
    }

    /// Counts `len` dirty blocks over unwritten ones again, because they could not be written out.
    pub(crate) fn unwritten_again(&mut self, len: u64) {
        self.unwritten += len;
    }

    /// Puts back the blocks chosen for `lblk` and those behind it, which are still dirty.
    pub(crate) fn give_back(&mut self, lblk: u32, run: Reserved) {
        if run.len() != 0 {
            self.chosen.insert(lblk, run);
        }
    }

    /// Returns how many of `len` blocks from `lblk` on come before the first with a chosen block.
    /// `lblk` itself has none.
    pub(crate) fn unchosen(&self, lblk: u32, len: u32) -> u32 {
        self.chosen.range(lblk..).next().map_or(len, |(next, _)| len.min(next - lblk))
    }

    /// Returns the block behind the one that was chosen for the logical block before `lblk`.
    pub(crate) fn chosen_before(&self, lblk: u32) -> Option<u64> {
        let (at, run) = self.chosen.range(..lblk).next_back()?;
        (at + run.len() == lblk).then(|| run.start() + u64::from(run.len()))
    }

    pub(crate) fn chosen_blocks(&self) -> u64 {
        self.chosen.values().map(|run| u64::from(run.len())).sum()
    }

    /// Releases the blocks that were chosen in `run`. Returns the runs without chosen blocks.
    pub(crate) fn forget_chosen(&mut self, run: Range<u32>) -> Vec<Range<u32>> {
        let mut unchosen = Vec::new();
        let mut at = run.start;
        while at < run.end {
            at += match self.take_chosen(at, run.end - at) {
                Some(chosen) => chosen.len(),
                None => {
                    let len = self.unchosen(at, run.end - at).max(1);
                    unchosen.push(at..at + len);
                    len
                }
            };
        }
        unchosen
    }

    /// Takes the blocks that were chosen for `lblk` and up to `len` logical blocks.
    pub(crate) fn take_chosen(&mut self, lblk: u32, len: u32) -> Option<Reserved> {
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
