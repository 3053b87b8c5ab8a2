//! The extent tree of a file: lookup, insertion, removal, conversion.
//!
//! The tree is a B+-tree whose root is in the inode. Every change works on a [`Tree`]: it descends
//! to one leaf, changes the leaf's entries in memory, and puts them back. On the way up this
//! splits, frees, adds or collapses nodes.
//!
//! Invariants:
//! - A parent's entry starts where its child's first entry does.
//! - No leaf below the root is left empty.
//! - A change that finds no space for a node has changed nothing.
//!
//! Locking: the caller holds the inode's `state` lock, exclusively for changes.

mod lookup;
mod node;
#[cfg(test)]
mod tests;
mod tree;

pub(crate) use lookup::{lookup, splits};
pub(crate) use tree::{Tree, insert_credits, remove_credits};

/// Bytes of nodes that are read at once, at most.
const AHEAD: usize = 128 << 10;

/// The inode of a tree.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner {
    /// The inode.
    pub(crate) ino: u32,
    /// The seed of its nodes' checksums; `None` on a volume without checksums.
    pub(crate) seed: Option<u32>,
}
