//! The hash tree of a file with fs-verity, once its descriptor is read.
//!
//! Blocks of the tree are cached as pages of a file of their own, which no program sees: they count
//! as the volume's pages and are evicted as those are.
//!
//! Invariant: a block of the tree that is cached has the digest that the block above it says, up to
//! the root hash.

use super::cache::{FileCache, PageCache};
use lanefs_format::verity::{VerityDescriptor, VerityHash};
use lanefs_sync::Mutex;
use lanefs_verity::{Algorithm, FileTree};
use std::ops::Range;
use std::sync::Arc;

/// The hash tree of a file.
#[derive(Debug)]
pub(crate) struct Verity {
    pub(crate) descriptor: VerityDescriptor,
    pub(crate) tree: FileTree,
    /// The first byte of the tree in the file.
    pub(crate) start: u64,
    /// Block `n` of it begins with block `n` of the tree.
    pub(crate) blocks: Arc<FileCache>,
    /// The hole that was verified last, in blocks of the volume: callers ask for parts of it.
    hole: Mutex<Range<u32>>,
}

impl Verity {
    pub(crate) fn new(cache: &Arc<PageCache>, ino: u32, descriptor: VerityDescriptor, start: u64) -> Self {
        let (tree, blocks) = (tree_of(&descriptor), FileCache::new(cache, ino));
        Self { tree, descriptor, start, blocks, hole: Mutex::new(0..0) }
    }

    /// Returns whether `hole` is a part of the one that was verified last.
    pub(crate) fn is_known_hole(&self, hole: &Range<u32>) -> bool {
        let known = self.hole.lock();
        known.start <= hole.start && hole.end <= known.end
    }

    /// Notes that a hole was verified.
    pub(crate) fn know_hole(&self, hole: Range<u32>) {
        *self.hole.lock() = hole;
    }
}

/// Returns the shape of the tree that a descriptor is for.
pub(crate) fn tree_of(descriptor: &VerityDescriptor) -> FileTree {
    let VerityDescriptor { block_size, data_size, salt, .. } = descriptor;
    FileTree::new(algorithm(descriptor.hash), *block_size, salt, *data_size)
}

/// Returns the hash function of an algorithm.
pub(crate) fn algorithm(hash: VerityHash) -> Algorithm {
    match hash {
        VerityHash::Sha256 => Algorithm::Sha256,
        VerityHash::Sha512 => Algorithm::Sha512,
    }
}
