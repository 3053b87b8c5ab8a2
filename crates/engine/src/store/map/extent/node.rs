//! Reads and writes node blocks: checks after a load, checksums before a handle ends.

use super::Owner;
use crate::error::Result;
use crate::store::kind;
use crate::store::map::{ChangeBlocks, ReadBlocks};
use lanefs_format::extent::{At, Bounds, Node, NodeRef, set_checksum, verify_checksum};

/// Runs `f` on the node in `block`. Checks its checksum and entries once after each load, and its
/// depth and logical range, which depend on the parent, each time.
pub(super) fn view<R>(
    blocks: &impl ReadBlocks,
    owner: Owner,
    block: u64,
    bounds: &Bounds,
    f: impl FnOnce(&NodeRef<'_>) -> R,
) -> Result<R> {
    view_among(blocks, owner, block, bounds, Vec::new, f)
}

/// Runs `f` as [`view`] does. If the node is not in memory, the blocks that `among` returns are
/// read with it.
pub(super) fn view_among<R>(
    blocks: &impl ReadBlocks,
    owner: Owner,
    block: u64,
    bounds: &Bounds,
    among: impl FnOnce() -> Vec<u64>,
    f: impl FnOnce(&NodeRef<'_>) -> R,
) -> Result<R> {
    let at = At { ino: owner.ino, block };
    let verify = |bytes: &[u8]| {
        let node = NodeRef::new(bytes, at)?;
        if let Some(seed) = owner.seed {
            verify_checksum(bytes, seed, at)?;
        }
        Ok(node.check(bounds)?)
    };
    blocks.view_among(block, kind::EXTENT_NODE, among, verify, |bytes| {
        let node = NodeRef::new(bytes, at)?;
        node.check_edges(bounds)?;
        Ok(f(&node))
    })
}

/// Writes `node` over the block; `fresh` if the block was just allocated.
pub(super) fn store(
    blocks: &mut impl ChangeBlocks,
    owner: Owner,
    block: u64,
    node: &Node,
    fresh: bool,
) -> Result<()> {
    let at = At { ino: owner.ino, block };
    blocks.change(block, kind::EXTENT_NODE, fresh, |bytes| {
        node.encode(bytes, at)?;
        match owner.seed {
            Some(seed) => Ok(set_checksum(bytes, seed, at)?),
            None => Ok(()),
        }
    })
}
