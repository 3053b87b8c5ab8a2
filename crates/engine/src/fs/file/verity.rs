//! The hash tree of a file with fs-verity, once its descriptor is read.
//!
//! Blocks of the tree are cached as pages of a file of their own, which no program sees: they count
//! as the volume's pages and are evicted as those are.
//!
//! Invariant: a block of the tree that is cached has the digest that the block above it says, up to
//! the root hash.

use super::cache::{FileCache, PageCache};
use lanefs_format::verity::{VerityDescriptor, VerityHash};
use lanefs_verity::{Algorithm, FileTree};
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
}

impl Verity {
    pub(crate) fn new(cache: &Arc<PageCache>, ino: u32, descriptor: VerityDescriptor, start: u64) -> Self {
        Self { tree: tree_of(&descriptor), descriptor, start, blocks: FileCache::new(cache, ino) }
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
