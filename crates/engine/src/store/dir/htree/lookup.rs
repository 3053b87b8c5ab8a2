//! Walks an index from the root to a leaf, and on to the next leaf.

use crate::error::DirError;
use crate::error::Result;
use crate::store::dir::block::Dir;
use crate::store::dir::walk::Walk;
use crate::store::dir::{Lookup, Slot, find_dot, find_in_leaf};
use lanefs_format::htree::{DxEntry, DxKind, DxRootInfo, DxView};
use lanefs_journal::Buffer;

/// An index block on the path, and the entry taken there.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) buffer: Buffer,
    pub(super) kind: DxKind,
    pub(super) at: usize,
    pub(super) lblk: u32,
    /// The hash where the next block of this level starts, if there is one.
    high: Option<u32>,
}

/// A leaf and the path to it.
#[derive(Debug)]
pub(in crate::store::dir) struct IndexPath {
    /// From the root down; at least one.
    pub(super) frames: Vec<Frame>,
    /// Block of the directory.
    pub(in crate::store::dir) leaf: u32,
    /// The index entry's hash; its bit 0 says that the leaf before may hold the same hash.
    pub(in crate::store::dir) low: u32,
    /// The hash of the next leaf's entry, if there is one.
    pub(in crate::store::dir) high: Option<u32>,
    pub(in crate::store::dir) info: DxRootInfo,
}

/// Which entry to take in a block.
#[derive(Debug, Clone, Copy)]
enum Pick {
    First,
    Hash(u32),
}

impl IndexPath {
    /// Walks to the first leaf that may hold `hash`, below the root that [`Dir::root`] gave.
    pub(in crate::store::dir) fn to(
        dir: &Dir<'_>,
        root: Buffer,
        info: DxRootInfo,
        hash: u32,
    ) -> Result<Self> {
        let mut path = Self { frames: Vec::with_capacity(3), leaf: 0, low: 0, high: None, info };
        path.descend(dir, root, 0, Pick::Hash(hash))?;
        Ok(path)
    }

    /// Returns whether the next leaf may hold `hash` too.
    pub(in crate::store::dir) fn goes_on(&self, hash: u32) -> bool {
        self.high == Some(hash | 1)
    }

    /// Moves to the next leaf; `false` behind the last one. A damaged index may lead to one leaf
    /// many times: a caller that reads the leaves does so in a [`Walk`].
    pub(in crate::store::dir) fn next(&mut self, dir: &Dir<'_>) -> Result<bool> {
        while let Some(frame) = self.frames.last_mut() {
            let (entry, next) = {
                let bytes = frame.buffer.read();
                let view = DxView::new(&bytes, frame.kind);
                (view.get(frame.at + 1), view.get(frame.at + 2))
            };
            let Some(entry) = entry else {
                self.frames.pop();
                continue;
            };
            frame.at += 1;
            self.low = entry.hash;
            self.high = next.map(|e| e.hash).or(frame.high);
            self.enter(dir, entry, Pick::First)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Descends through `entry`, the one taken in the last frame.
    fn enter(&mut self, dir: &Dir<'_>, entry: DxEntry, pick: Pick) -> Result<()> {
        if entry.block >= dir.blocks {
            let (ino, value, bound) = (dir.inode.ino, entry.block, dir.blocks);
            let (lblk, entry) = self.frames.last().map_or((0, 0), |frame| (frame.lblk, frame.at));
            return Err(DirError::IndexBlock { ino, lblk, entry, value, bound }.into());
        }
        if self.frames.len() > usize::from(self.info.indirect_levels) {
            self.leaf = entry.block;
            return Ok(());
        }
        let node = dir.node(entry.block)?;
        self.descend(dir, node, entry.block, pick)
    }

    fn descend(&mut self, dir: &Dir<'_>, buffer: Buffer, lblk: u32, pick: Pick) -> Result<()> {
        let kind = if self.frames.is_empty() { DxKind::Root } else { DxKind::Node };
        let high = self.high;
        let (at, entry) = {
            let bytes = buffer.read();
            let view = DxView::new(&bytes, kind);
            self.check_range(dir, lblk, &view)?;
            let at = match pick {
                Pick::First => 0,
                Pick::Hash(hash) => view.search(hash),
            };
            let entry = view.get(at).unwrap_or(DxEntry { hash: 0, block: u32::MAX });
            if at > 0 {
                self.low = entry.hash;
            }
            if let Some(next) = view.get(at + 1) {
                self.high = Some(next.hash);
            }
            (at, entry)
        };
        self.frames.push(Frame { buffer, kind, at, lblk, high });
        self.enter(dir, entry, pick)
    }

    /// Checks that a node's hashes lie in the range that its parent gives it.
    fn check_range(&self, dir: &Dir<'_>, lblk: u32, view: &DxView<'_>) -> Result<()> {
        let (Some(first), Some(last)) = (view.get(1), view.get(view.count().saturating_sub(1))) else {
            return Ok(());
        };
        let (low, high) = (self.low, self.high.unwrap_or(u32::MAX));
        if first.hash < low || last.hash > high {
            let (first, last) = (first.hash, last.hash);
            return Err(DirError::IndexRange { ino: dir.inode.ino, lblk, first, last, low, high }.into());
        }
        Ok(())
    }
}

/// Looks up `name` in the leaves that may hold its hash.
pub(in crate::store::dir) fn find(dir: &Dir<'_>, name: &[u8]) -> Result<Lookup> {
    if let Some(dot) = find_dot(dir, name)? {
        return Ok(Lookup::Found(dot));
    }
    let (root, info) = dir.root()?;
    let hash = dir.params().hasher.with_version(info.hash_version).hash(name).major;
    let mut path = IndexPath::to(dir, root, info, hash)?;
    let (mut walk, mut room) = (Walk::new(dir), None);
    loop {
        if let Some(found) = find_in_leaf(&mut walk, path.leaf, name, &mut room)? {
            return Ok(Lookup::Found(found));
        }
        if !path.goes_on(hash) || !path.next(dir)? {
            return Ok(Lookup::Vacant(Slot { room }));
        }
    }
}
