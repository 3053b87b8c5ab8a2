//! Lookup in the tree: one descent, which examines nodes in place.
//!
//! A caller that goes through a file in order looks up the first block of each node's range. So a
//! lookup of that block reads the nodes behind it too, and a lookup of another reads one node.

use super::{AHEAD, Owner, node};
use crate::error::{Error, Result};
use crate::store::map::{Mapping, ReadBlocks};
use lanefs_format::extent::{At, Bounds, MAX_BLOCKS, NodeRef, find};

/// What a node has for a logical block.
enum Step {
    Child { block: u64, bounds: Bounds },
    Found(Mapping),
}

/// Looks up the mapping of `lblk` in the tree with this root.
pub(crate) fn lookup(blocks: &impl ReadBlocks, owner: Owner, root: &[u8], lblk: u32) -> Result<Mapping> {
    if lblk == MAX_BLOCKS {
        return Err(Error::FileTooBig);
    }
    let bounds = Bounds::root(blocks.limits());
    let top = NodeRef::new(root, At { ino: owner.ino, block: 0 })?;
    top.check(&bounds)?;
    let mut step = look(&top, &bounds, lblk);
    // The node above, if it is not the root.
    let mut above: Option<(u64, Bounds)> = None;
    // Every child's depth is its parent's less one, so this ends.
    loop {
        let (block, bounds) = match step {
            Step::Found(mapping) => return Ok(mapping),
            Step::Child { block, bounds } => (block, bounds),
        };
        let most = AHEAD / blocks.block_size().max(1);
        let ahead = || match &above {
            _ if bounds.logical.start != lblk => Vec::new(),
            None => children(&top, lblk, most),
            Some((block, bounds)) => {
                let behind = node::view(blocks, owner, *block, bounds, |node| children(node, lblk, most));
                behind.unwrap_or_default()
            }
        };
        step = node::view_among(blocks, owner, block, &bounds, ahead, |node| look(node, &bounds, lblk))?;
        above = Some((block, bounds));
    }
}

/// Returns the child in which `lblk` lies and those behind it, `most` at most.
fn children(node: &NodeRef<'_>, lblk: u32, most: usize) -> Vec<u64> {
    let behind = node.entries.iter().skip(find(node.entries, lblk).unwrap_or(0));
    behind.take(most).map(|entry| entry.index().ei_leaf).collect()
}

/// Returns how many nodes `entries` more entries at `lblk` add to the tree: one for each full node
/// from the leaf up.
pub(crate) fn splits(
    blocks: &impl ReadBlocks,
    owner: Owner,
    root: &[u8],
    lblk: u32,
    entries: usize,
) -> Result<usize> {
    let bounds = Bounds::root(blocks.limits());
    let top = NodeRef::new(root, At { ino: owner.ino, block: 0 })?;
    top.check(&bounds)?;
    // A block before the first key goes into the first child too.
    let look = |node: &NodeRef<'_>, bounds: &Bounds| {
        let at = find(node.entries, lblk).unwrap_or(0);
        let child = node.entries.get(at).filter(|_| node.eh_depth > 0).map(|entry| entry.index().ei_leaf);
        let full = node.entries.len() + entries > usize::from(node.eh_max);
        (child.map(|block| (block, bounds.child(node.eh_depth, node.entries, at))), full)
    };
    let (mut child, full) = look(&top, &bounds);
    let mut splits = usize::from(full);
    while let Some((block, bounds)) = child {
        let full;
        (child, full) = node::view(blocks, owner, block, &bounds, |node| look(node, &bounds))?;
        splits = if full { splits + 1 } else { 0 };
    }
    Ok(splits)
}

fn look(node: &NodeRef<'_>, bounds: &Bounds, lblk: u32) -> Step {
    let at = find(node.entries, lblk);
    let entry = at.and_then(|n| node.entries.get(n));
    match entry {
        Some(entry) if node.eh_depth > 0 => Step::Child {
            block: entry.index().ei_leaf,
            bounds: bounds.child(node.eh_depth, node.entries, at.unwrap_or(0)),
        },
        Some(entry) if entry.extent().end() > u64::from(lblk) => {
            let e = entry.extent();
            let skip = lblk - e.ee_block;
            Step::Found(Mapping::Mapped {
                block: e.ee_start + u64::from(skip),
                len: e.len - skip,
                unwritten: e.unwritten,
            })
        }
        _ => {
            let next = node.entries.get(at.map_or(0, |n| n + 1)).map_or(bounds.logical.end, |e| e.key());
            let last = entry.map_or(bounds.logical.start.into(), |e| e.extent().end());
            let before = u64::from(lblk).saturating_sub(last) as u32;
            Step::Found(Mapping::Hole { before, len: next.saturating_sub(lblk).max(1) })
        }
    }
}
