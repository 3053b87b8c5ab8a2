//! The extent tree of a file: lookup, insertion, removal, conversion.
//!
//! The tree is a B+-tree whose root is in the inode. Every change works on a [`Tree`]: descend to
//! one leaf, change its entries in memory, and put them back, which splits, frees, grows or
//! collapses nodes on the way up.
//!
//! Invariants: a parent's entry starts where its child's first entry does; no leaf below the
//! root is left empty; a change that finds no space for a node has changed nothing.
//!
//! Locking: whoever calls holds the inode's `state` lock, exclusively for changes.

mod lookup;
mod node;
#[cfg(test)]
mod tests;
mod tree;

pub(crate) use lookup::{lookup, splits};
pub(crate) use tree::{Tree, insert_credits, remove_credits};

/// Whose tree it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner {
    /// The inode.
    pub(crate) ino: u32,
    /// What the checksums of its nodes start from; `None` on a volume without.
    pub(crate) seed: Option<u32>,
}
