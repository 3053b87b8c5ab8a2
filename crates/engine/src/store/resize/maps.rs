//! The maps of files, read and rewritten as they lie on the device.
//!
//! A run that moves whole leaves its extent's length, and a node or an indirect block its content
//! but for the numbers in it. So the map keeps its shape. A tree whose extents are split is made
//! anew ([`build_tree`]).

use super::Blocks;
use crate::error::{Corrupt, Error, Result};
use lanefs_format::extent::{
    At, Bounds, Entry, Extent, Index, Node, NodeRef, ROOT_SIZE, max_entries, set_checksum, verify_checksum,
};
use lanefs_format::{Inode, InodeContext, InodeFlags};

/// The pointers of `i_block` to data, before those to indirect blocks.
const DIRECT: usize = 12;

/// The receiver of the blocks of a map, in a [`MapWalk`].
pub(super) trait Visitor {
    /// Returns the place of a run of blocks that content lies in, from now on. Content of an
    /// unwritten run is of no worth.
    fn data(&mut self, start: u64, len: u32, unwritten: bool) -> Result<u64>;

    /// Returns an extent as it is from now on.
    fn extent(&mut self, extent: Extent) -> Result<Extent> {
        let ee_start = self.data(extent.ee_start, extent.len, extent.unwritten)?;
        Ok(Extent { ee_start, ..extent })
    }

    /// Returns the place of a block of the map from now on.
    fn node(&mut self, block: u64) -> Result<u64>;

    /// Gets a block of the map whose content or place has changed.
    fn changed(&mut self, from: u64, to: u64, content: Vec<u8>) -> Result<()>;
}

/// All extents and blocks of a map.
#[derive(Debug, Default)]
pub(super) struct WholeMap {
    /// The extents of a tree, in order.
    pub(super) extents: Vec<Extent>,
    /// The runs that content lies in, in order.
    pub(super) runs: Vec<(u64, u32)>,
    /// The blocks of the map.
    pub(super) nodes: Vec<u64>,
}

impl Visitor for WholeMap {
    fn data(&mut self, start: u64, len: u32, _unwritten: bool) -> Result<u64> {
        self.runs.push((start, len));
        Ok(start)
    }

    fn extent(&mut self, extent: Extent) -> Result<Extent> {
        self.extents.push(extent);
        self.runs.push((extent.ee_start, extent.len));
        Ok(extent)
    }

    fn node(&mut self, block: u64) -> Result<u64> {
        self.nodes.push(block);
        Ok(block)
    }

    fn changed(&mut self, _from: u64, _to: u64, _content: Vec<u8>) -> Result<()> {
        Ok(())
    }
}

/// A file whose map is walked.
pub(super) struct MapWalk<'a, V> {
    pub(super) device: &'a Blocks,
    pub(super) ctx: &'a InodeContext,
    pub(super) ino: u32,
    /// Blocks of the volume.
    pub(super) blocks: u64,
    /// Blocks that maps may still show, all of their nodes included: a damaged map may name a block
    /// more than once, or itself.
    pub(super) left: &'a mut u64,
    pub(super) visitor: &'a mut V,
}

impl<V: Visitor> MapWalk<'_, V> {
    /// Shows all runs of the file to the visitor. Returns whether `i_block` has changed.
    ///
    /// # Errors
    /// A damaged map; the device's.
    pub(super) fn file(&mut self, inode: &mut Inode) -> Result<bool> {
        let mapped = inode.is_regular()
            || inode.is_dir()
            || inode.is_symlink() && inode.fast_symlink(self.ctx).is_none();
        if !mapped {
            return Ok(false);
        }
        let seed = inode.seed(&self.ctx.csum);
        let mut map = inode.i_block;
        let changed = match inode.flags.contains(InodeFlags::EXTENTS) {
            true => {
                let at = At { ino: inode.ino, block: 0 };
                self.tree(&mut map, at, seed, &Bounds::root(0..self.blocks))?
            }
            false => self.table(&mut map)?,
        };
        inode.i_block = map;
        Ok(changed)
    }

    /// Shows a node of an extent tree to the visitor, with all below it. Returns whether it has
    /// changed.
    fn tree(&mut self, bytes: &mut [u8], at: At, seed: Option<u32>, bounds: &Bounds) -> Result<bool> {
        let mut node = NodeRef::new(bytes, at)?.to_node();
        NodeRef::new(bytes, at)?.check(bounds)?;
        let before = node.entries.clone();
        for (n, entry) in node.entries.iter_mut().enumerate() {
            *entry = match node.eh_depth {
                0 => self.extent(entry.extent())?.into(),
                depth => self.child(entry.index(), at.ino, seed, &bounds.child(depth, &before, n))?.into(),
            };
        }
        let changed = node.entries != before;
        if changed {
            node.encode(bytes, at)?;
        }
        Ok(changed)
    }

    fn extent(&mut self, extent: Extent) -> Result<Extent> {
        self.check(extent.ee_start, extent.len)?;
        self.visitor.extent(extent)
    }

    fn child(&mut self, index: Index, ino: u32, seed: Option<u32>, bounds: &Bounds) -> Result<Index> {
        let from = index.ei_leaf;
        self.check(from, 1)?;
        let mut bytes = self.device.read(from)?;
        let at = At { ino, block: from };
        if let Some(seed) = seed {
            verify_checksum(&bytes, seed, at)?;
        }
        let changed = self.tree(&mut bytes, at, seed, bounds)?;
        let to = self.visitor.node(from)?;
        if changed || to != from {
            if let Some(seed) = seed {
                set_checksum(&mut bytes, seed, at)?;
            }
            self.visitor.changed(from, to, bytes)?;
        }
        Ok(Index { ei_leaf: to, ..index })
    }

    /// Shows the pointers of an inode without an extent tree to the visitor. Returns whether one
    /// has changed.
    fn table(&mut self, i_block: &mut [u8]) -> Result<bool> {
        let mut changed = false;
        for (n, word) in i_block.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            changed |= self.pointer(word, (n + 1).saturating_sub(DIRECT) as u32)?;
        }
        Ok(changed)
    }

    /// Shows a pointer to the visitor, to data or to an indirect block of `level`. Returns whether
    /// it has changed.
    fn pointer(&mut self, word: &mut [u8; 4], level: u32) -> Result<bool> {
        let from = u64::from(u32::from_le_bytes(*word));
        if from == 0 {
            return Ok(false);
        }
        self.check(from, 1)?;
        let to = match level {
            0 => self.visitor.data(from, 1, false)?,
            _ => {
                let mut bytes = self.device.read(from)?;
                let mut changed = false;
                for word in bytes.as_chunks_mut::<4>().0 {
                    changed |= self.pointer(word, level - 1)?;
                }
                let to = self.visitor.node(from)?;
                if changed || to != from {
                    self.visitor.changed(from, to, bytes)?;
                }
                to
            }
        };
        *word = (to as u32).to_le_bytes();
        Ok(to != from)
    }

    /// Checks that a file can have these blocks at all, before any of them is read.
    fn check(&mut self, start: u64, len: u32) -> Result<()> {
        match start.checked_add(u64::from(len)) {
            Some(end) if len > 0 && start > 0 && end <= self.blocks => {}
            _ => return Err(Corrupt::BlockOutside { block: start, blocks: self.blocks }.into()),
        }
        let rule = "has, with those before it, more blocks than are in use";
        let repeated = Corrupt::SpecialInode { ino: self.ino, role: "file", rule };
        *self.left = self.left.checked_sub(u64::from(len)).ok_or(repeated)?;
        Ok(())
    }
}

/// Returns how many blocks a tree of so many extents has that [`build_tree`] makes.
pub(super) fn tree_blocks(extents: usize, block_size: u32) -> usize {
    let (root, room) = (max_entries(ROOT_SIZE), max_entries(block_size as usize));
    let (mut sum, mut level) = (0, extents);
    while level > usize::from(root) {
        level = level.div_ceil(usize::from(room));
        sum += level;
    }
    sum
}

/// The `i_block` of a map that was made anew, and the map's blocks.
pub(super) type BuiltMap = ([u8; ROOT_SIZE], Vec<(u64, Vec<u8>)>);

/// Makes the tree of `extents`, as full as it can be, with its blocks in `places`.
///
/// # Errors
/// Fewer places than [`tree_blocks`].
pub(super) fn build_tree(
    extents: &[Extent],
    places: &[u64],
    (ino, seed): (u32, Option<u32>),
    block_size: u32,
) -> Result<BuiltMap> {
    let (root, room) = (max_entries(ROOT_SIZE), max_entries(block_size as usize));
    let mut level: Vec<Entry> = extents.iter().map(|&extent| extent.into()).collect();
    let (mut eh_depth, mut blocks, mut places) = (0, Vec::new(), places.iter());
    while level.len() > usize::from(root) {
        let mut above = Vec::new();
        for entries in level.chunks(room.into()) {
            let at = At { ino, block: *places.next().ok_or(Error::NoSpace)? };
            let mut bytes = vec![0; block_size as usize];
            Node { eh_depth, eh_max: room, entries: entries.to_vec() }.encode(&mut bytes, at)?;
            if let Some(seed) = seed {
                set_checksum(&mut bytes, seed, at)?;
            }
            let ei_block = entries.first().map_or(0, Entry::key);
            above.push(Index { ei_block, ei_leaf: at.block }.into());
            blocks.push((at.block, bytes));
        }
        (level, eh_depth) = (above, eh_depth + 1);
    }
    let mut i_block = [0; ROOT_SIZE];
    Node { eh_depth, eh_max: root, entries: level }.encode(&mut i_block, At { ino, block: 0 })?;
    Ok((i_block, blocks))
}

/// Makes the table of indirect blocks for a file without holes whose blocks are `data`. Each
/// indirect block lies where `place` says.
///
/// # Errors
/// The errors of `place`.
pub(super) fn build_table(
    data: impl Iterator<Item = u64>,
    block_size: u32,
    place: &mut dyn FnMut() -> Result<u64>,
) -> Result<BuiltMap> {
    let (mut data, mut blocks, mut i_block) = (data.peekable(), Vec::new(), [0; ROOT_SIZE]);
    for (n, word) in i_block.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let level = (n + 1).saturating_sub(DIRECT) as u32;
        *word = build_pointer(&mut data, level, block_size, place, &mut blocks)?;
    }
    Ok((i_block, blocks))
}

fn build_pointer(
    data: &mut std::iter::Peekable<impl Iterator<Item = u64>>,
    level: u32,
    block_size: u32,
    place: &mut dyn FnMut() -> Result<u64>,
    blocks: &mut Vec<(u64, Vec<u8>)>,
) -> Result<[u8; 4]> {
    if level == 0 {
        return Ok((data.next().unwrap_or(0) as u32).to_le_bytes());
    }
    if data.peek().is_none() {
        return Ok([0; 4]);
    }
    let at = place()?;
    let mut bytes = vec![0; block_size as usize];
    for word in bytes.as_chunks_mut::<4>().0 {
        *word = build_pointer(data, level - 1, block_size, place, blocks)?;
    }
    blocks.push((at, bytes));
    Ok((at as u32).to_le_bytes())
}
