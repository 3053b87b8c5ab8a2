//! Walks the map of a file, extent tree or indirect blocks, and hands out its runs in order.
//!
//! A [`Visit`] decides whether to go below a block of the map. If it declines blocks that were
//! visited before, a cycle is not walked twice.

use crate::CheckError;
use crate::finding::Structure;
use crate::io::{Io, le32};
use crate::rule::Rule;
use lanefs_format::extent::{self, At, Bounds, Entry, Extent, MAX_BLOCKS, NodeRef};
use lanefs_format::{Inode, InodeFlags, Layout};

/// Pointers in `i_block` that lead to data at once.
const DIRECT: usize = 12;
/// Root of an extent tree, or of an indirect map, in messages.
const ROOT: u64 = 0;

/// A receiver of the runs and errors of a map.
pub(crate) trait Visit {
    /// Visits a block of the map itself, inside the volume. Returns whether to read it and go
    /// below.
    fn node(&mut self, block: u64) -> bool;
    /// Takes a run of blocks, inside the volume. An indirect map has runs of any length.
    fn data(&mut self, run: Extent);
    /// Takes a rule that the map breaks. The entries below it are not visited.
    fn broken(&mut self, structure: Structure, rule: Rule);
}

/// The map of one inode.
#[derive(Debug)]
pub(crate) struct MapWalk<'a> {
    pub(crate) io: &'a Io,
    pub(crate) layout: &'a Layout,
    pub(crate) inode: &'a Inode,
    /// What checksums of the nodes are made with.
    pub(crate) seed: Option<u32>,
}

impl MapWalk<'_> {
    /// Walks the map of the inode, which has one.
    ///
    /// # Errors
    /// The device's failure; a broken rule goes to `visit`.
    pub(crate) fn walk(&self, visit: &mut dyn Visit) -> Result<(), CheckError> {
        let inode = self.inode;
        if inode.flags.contains(InodeFlags::EXTENTS) {
            let bounds = Bounds::root(self.layout.first_data_block()..self.layout.blocks_count());
            return self.extents(&inode.i_block, ROOT, &bounds, visit).map(drop);
        }
        let mut run = RunOfPointers::default();
        for i in 0..DIRECT {
            self.pointer(le32(&inode.i_block, i * 4), ROOT, &mut run, visit);
        }
        for level in 1..=3 {
            let block = le32(&inode.i_block, (DIRECT + level - 1) * 4);
            self.indirect(block, ROOT, level, &mut run, visit)?;
        }
        run.finish(visit);
        Ok(())
    }

    /// Walks a node of an extent tree. Returns its first logical block.
    fn extents(
        &self,
        bytes: &[u8],
        block: u64,
        bounds: &Bounds,
        visit: &mut dyn Visit,
    ) -> Result<Option<u32>, CheckError> {
        let ino = self.inode.ino;
        let structure = Structure::ExtentTree { ino, block };
        let checked =
            NodeRef::new(bytes, At { ino, block }).and_then(|node| node.check(bounds).map(|()| node));
        let node = match checked {
            Ok(node) => node,
            Err(error) => {
                visit.broken(structure, error.into());
                return Ok(None);
            }
        };
        let bound = usize::from(extent::max_entries(bytes.len()));
        if usize::from(node.eh_max) + 2 < bound {
            visit.broken(structure, Rule::EhMax { found: node.eh_max, bound });
        }
        for (n, entry) in node.entries.iter().enumerate() {
            if node.eh_depth == 0 {
                visit.data(entry.extent());
                continue;
            }
            let child = entry.index().ei_leaf;
            if !visit.node(child) {
                continue;
            }
            let bytes = self.io.block(child)?;
            if let Some(seed) = self.seed
                && let Err(error) = extent::verify_checksum(&bytes, seed, At { ino, block: child })
            {
                visit.broken(Structure::ExtentTree { ino, block: child }, error.into());
                continue;
            }
            let below = bounds.child(node.eh_depth, node.entries, n);
            let first = self.extents(&bytes, child, &below, visit)?;
            if let Some(first) = first.filter(|first| *first != entry.key()) {
                visit.broken(structure, Rule::IndexStart { entry: n, found: entry.key(), child: first });
            }
        }
        Ok(node.entries.first().map(Entry::key))
    }

    /// Walks an indirect block `level` levels above the data.
    fn indirect(
        &self,
        block: u32,
        from: u64,
        level: usize,
        run: &mut RunOfPointers,
        visit: &mut dyn Visit,
    ) -> Result<(), CheckError> {
        let per_block = u64::from(self.layout.block_size() / 4);
        let below = per_block.pow(level as u32);
        if block == 0 {
            run.skip(below, visit);
            return Ok(());
        }
        let block = u64::from(block);
        if let Err(rule) = self.allowed(run.lblk, block) {
            visit.broken(Structure::IndirectMap { ino: self.inode.ino, block: from }, rule);
            run.skip(below, visit);
            return Ok(());
        }
        if !visit.node(block) {
            run.skip(below, visit);
            return Ok(());
        }
        let bytes = self.io.block(block)?;
        for at in (0..bytes.len()).step_by(4) {
            let child = le32(&bytes, at);
            if level == 1 {
                self.pointer(child, block, run, visit);
            } else {
                self.indirect(child, block, level - 1, run, visit)?;
            }
        }
        Ok(())
    }

    /// Takes a pointer to data.
    fn pointer(&self, block: u32, from: u64, run: &mut RunOfPointers, visit: &mut dyn Visit) {
        if block == 0 {
            return run.skip(1, visit);
        }
        match self.allowed(run.lblk, block.into()) {
            Ok(()) => run.push(block.into(), visit),
            Err(rule) => {
                visit.broken(Structure::IndirectMap { ino: self.inode.ino, block: from }, rule);
                run.skip(1, visit);
            }
        }
    }

    /// Checks that a block which is not 0 may be mapped at `lblk`, or lie above it.
    fn allowed(&self, lblk: u64, block: u64) -> Result<(), Rule> {
        let (first, end) = (self.layout.first_data_block(), self.layout.blocks_count());
        let max = u64::from(MAX_BLOCKS) - 1;
        if lblk > max {
            Err(Rule::BeyondMax { lblk, max })
        } else if (first..end).contains(&block) {
            Ok(())
        } else {
            Err(Rule::BlockAddress { lblk, block, first, end })
        }
    }
}

/// Pointers of an indirect map that follow each other, gathered to runs.
#[derive(Debug, Default)]
struct RunOfPointers {
    /// The next logical block.
    lblk: u64,
    start: u64,
    len: u64,
}

impl RunOfPointers {
    fn push(&mut self, block: u64, visit: &mut dyn Visit) {
        if self.len > 0 && (self.start + self.len != block || self.len >= 1 << 20) {
            self.finish(visit);
        }
        if self.len == 0 {
            self.start = block;
        }
        self.len += 1;
        self.lblk += 1;
    }

    fn skip(&mut self, blocks: u64, visit: &mut dyn Visit) {
        self.finish(visit);
        self.lblk += blocks;
    }

    fn finish(&mut self, visit: &mut dyn Visit) {
        let len = std::mem::take(&mut self.len);
        let Ok(ee_block) = u32::try_from(self.lblk - len) else { return };
        if len > 0 {
            visit.data(Extent { ee_block, len: len as u32, unwritten: false, ee_start: self.start });
        }
    }
}
