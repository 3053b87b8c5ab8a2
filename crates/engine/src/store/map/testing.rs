//! Blocks in memory that count space, credits and owners, for the tests of the maps.

use super::{ChangeBlocks, ReadBlocks};
use crate::error::{Error, Result};
use crate::store::alloc::Reach;
use crate::store::txn::{BlockKind, Mark};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Blocks of a group.
const GROUP: u64 = 64;

/// A volume of map blocks. Blocks from [`Mem::nodes_from`] on are handed out here, those below are
/// data.
pub(crate) struct Mem {
    block_size: usize,
    nodes_from: u64,
    /// Blocks that hold a part of a map.
    pub(crate) nodes: BTreeMap<u64, Vec<u8>>,
    /// Those, and blocks taken for the purpose.
    pub(crate) used: BTreeSet<u64>,
    /// Data blocks given back.
    pub(crate) freed: BTreeSet<u64>,
    taken: u64,
    /// Blocks that can still be taken.
    pub(crate) space: usize,
    touched: BTreeSet<u64>,
    credits: usize,
    changes: Mark,
}

impl Mem {
    pub(crate) fn new(block_size: usize, nodes_from: u64, space: usize) -> Self {
        Self {
            block_size,
            nodes_from,
            nodes: BTreeMap::new(),
            used: BTreeSet::new(),
            freed: BTreeSet::new(),
            taken: 0,
            space,
            touched: BTreeSet::new(),
            credits: 0,
            changes: Mark::default(),
        }
    }

    /// A new transaction with `credits`.
    pub(crate) fn begin(&mut self, credits: u32) {
        self.touched.clear();
        self.credits = credits as usize;
    }

    fn touch(&mut self, block: u64) {
        self.changes = self.changes.next();
        self.touched.insert(block);
        assert!(self.touched.len() <= self.credits, "{} credits were not enough", self.credits);
    }

    /// Bitmap and descriptor.
    fn touch_group(&mut self, block: u64) {
        self.touch((1 << 50) | (block / GROUP));
        self.touch((1 << 51) | (block / GROUP / 16));
    }
}

impl ReadBlocks for Mem {
    fn block_size(&self) -> usize {
        self.block_size
    }

    fn limits(&self) -> Range<u64> {
        1..1 << 47
    }

    fn view_among<R>(
        &self,
        block: u64,
        _: u8,
        _: impl FnOnce() -> Vec<u64>,
        verify: impl FnOnce(&[u8]) -> Result<()>,
        f: impl FnOnce(&[u8]) -> Result<R>,
    ) -> Result<R> {
        let bytes = &self.nodes[&block];
        verify(bytes)?;
        f(bytes)
    }
}

impl ChangeBlocks for Mem {
    type Held = ();

    fn change(
        &mut self,
        block: u64,
        _: u8,
        fresh: bool,
        f: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        assert!(self.used.contains(&block));
        assert_eq!(self.nodes.contains_key(&block), !fresh);
        self.touch(block);
        f(self.nodes.entry(block).or_insert_with(|| vec![0; self.block_size]))
    }

    fn alloc(&mut self, _: u64, _: Reach) -> Result<u64> {
        if self.space == 0 {
            return Err(Error::NoSpace);
        }
        self.space -= 1;
        // Each in a group of its own: the worst for credits.
        let block = self.nodes_from + self.taken * GROUP;
        self.taken += 1;
        self.touch_group(block);
        assert!(self.used.insert(block));
        Ok(block)
    }

    fn put_back(&mut self, block: u64) -> Result<()> {
        self.free(block, 1, BlockKind::Data)
    }

    fn free(&mut self, start: u64, len: u32, kind: BlockKind) -> Result<()> {
        self.touch_group(start);
        assert_eq!(start / GROUP, (start + u64::from(len) - 1) / GROUP, "one group at a time");
        for block in start..start + u64::from(len) {
            if block >= self.nodes_from {
                assert!(self.used.remove(&block), "node {block} freed twice");
                assert_eq!(self.nodes.remove(&block).is_some(), kind == BlockKind::Metadata);
                self.space += 1;
            } else {
                assert_eq!(kind, BlockKind::Data);
                assert!(self.freed.insert(block), "block {block} freed twice");
            }
        }
        Ok(())
    }

    fn hold_for_free(&self, block: u64) -> Result<()> {
        if self.used.contains(&block) { Ok(()) } else { Err(Error::NotFound) }
    }

    fn group_start(&self, block: u64) -> u64 {
        block - block % GROUP
    }

    fn run_of(&self, _: BlockKind) -> u32 {
        u32::MAX
    }

    fn room(&mut self, credits: u32) -> Result<bool> {
        Ok(self.touched.len() + credits as usize <= self.credits)
    }

    fn mark(&self) -> Mark {
        self.changes
    }

    fn undone(&mut self, mark: Mark) {
        self.changes = mark;
    }
}

/// Seven blocks of any content: what a damaged map leads to. Each is freed only once.
pub(crate) struct Wild {
    block_size: usize,
    nodes: BTreeMap<u64, Vec<u8>>,
    freed: BTreeSet<u64>,
    /// The block that is taken, again and again; `None` for a full volume.
    taken: Option<u64>,
    /// Whether every third block counts as verified already: under another parent.
    trusts: bool,
}

impl Wild {
    pub(crate) fn new(block_size: usize, nodes: BTreeMap<u64, Vec<u8>>) -> Self {
        Self { block_size, nodes, freed: BTreeSet::new(), taken: None, trusts: false }
    }

    pub(crate) fn taking(self, block: u64) -> Self {
        Self { taken: Some(block), ..self }
    }

    pub(crate) fn trusting(self) -> Self {
        Self { trusts: true, ..self }
    }
}

impl ReadBlocks for Wild {
    fn block_size(&self) -> usize {
        self.block_size
    }

    fn limits(&self) -> Range<u64> {
        1..8
    }

    fn view_among<R>(
        &self,
        block: u64,
        _: u8,
        _: impl FnOnce() -> Vec<u64>,
        verify: impl FnOnce(&[u8]) -> Result<()>,
        f: impl FnOnce(&[u8]) -> Result<R>,
    ) -> Result<R> {
        let bytes = &self.nodes[&block];
        if !self.trusts || !block.is_multiple_of(3) {
            verify(bytes)?;
        }
        f(bytes)
    }
}

impl ChangeBlocks for Wild {
    type Held = ();

    fn change(&mut self, block: u64, _: u8, _: bool, f: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<()> {
        f(self.nodes.get_mut(&block).unwrap())
    }

    fn alloc(&mut self, _: u64, _: Reach) -> Result<u64> {
        self.taken.ok_or(Error::NoSpace)
    }

    fn put_back(&mut self, block: u64) -> Result<()> {
        self.free(block, 1, BlockKind::Data)
    }

    fn free(&mut self, start: u64, len: u32, _: BlockKind) -> Result<()> {
        let mut run = start..start + u64::from(len);
        match run.all(|block| self.limits().contains(&block) && self.freed.insert(block)) {
            true => Ok(()),
            false => Err(Error::NotFound),
        }
    }

    fn hold_for_free(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn group_start(&self, block: u64) -> u64 {
        block & !3
    }

    fn run_of(&self, _: BlockKind) -> u32 {
        u32::MAX
    }

    fn mark(&self) -> Mark {
        Mark::default()
    }

    fn undone(&mut self, _: Mark) {}

    fn room(&mut self, _: u32) -> Result<bool> {
        Ok(true)
    }
}
