//! The hash tree of fs-verity, which vouches for one file.
//!
//! It is a tree as dm-verity has it: the top level first, and the root hash is the digest of the
//! top block, or of the only block of data. The differences: there is no superblock, the salt is
//! padded with zeros to a block of the hash function, and an empty file has a root hash of zeros.

use crate::hash::{Algorithm, Salted};
use crate::header::levels;
use crate::level::Level;
use std::ops::Range;
use std::thread;

/// Bytes of data that are read at a time.
const PIECE: usize = 4 << 20;
/// Bytes of data from which on all processors hash them.
const PARALLEL: usize = 1 << 20;
/// Bytes of digests of a level that are written at a time.
const WRITTEN: usize = 64 << 10;

/// The shape of a file's tree, and how its digests are made.
#[derive(Debug, Clone)]
pub struct FileTree {
    algorithm: Algorithm,
    salted: Salted,
    block_size: u32,
    data_size: u64,
    /// From the bottom.
    levels: Vec<Level>,
}

impl FileTree {
    /// Returns the tree of `data_size` bytes. `block_size` is a power of two of at least two
    /// digests.
    pub fn new(algorithm: Algorithm, block_size: u32, salt: &[u8], data_size: u64) -> Self {
        let mut padded = salt.to_vec();
        padded.resize(salt.len().next_multiple_of(algorithm.input_size()), 0);
        let per_block = u64::from(block_size) / algorithm.digest_size() as u64;
        let blocks = data_size.div_ceil(block_size.into());
        let levels = levels(blocks, per_block, block_size.into(), 0);
        Self { algorithm, salted: Salted::new(algorithm, &padded), block_size, data_size, levels }
    }

    /// Returns the hash algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the bytes of a block of data, and of one of the tree.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Returns the bytes of the tree.
    pub fn size(&self) -> u64 {
        self.levels.first().map_or(0, |level| level.start + level.blocks * u64::from(self.block_size))
    }

    /// Returns how many levels the tree has: 0 where the root hash is that of the only block.
    pub fn depth(&self) -> usize {
        self.levels.len()
    }

    /// Returns which blocks of level `level` have the digests of `below`, blocks of the level below
    /// or of the data, as blocks of the tree; the first of them has the digest of a block that is a
    /// multiple of [`per_block`](Self::per_block).
    pub fn above(&self, level: usize, below: &Range<u64>) -> Range<u64> {
        let first = self.levels.get(level).map_or(0, |level| level.start / u64::from(self.block_size));
        first + below.start / self.per_block()..first + below.end.div_ceil(self.per_block())
    }

    /// Returns the number in its level of block `block` of the tree, which is of level `level`.
    pub fn in_level(&self, level: usize, block: u64) -> u64 {
        let first = self.levels.get(level).map_or(0, |level| level.start / u64::from(self.block_size));
        block.saturating_sub(first)
    }

    /// Returns how many digests a block of the tree has.
    pub fn per_block(&self) -> u64 {
        u64::from(self.block_size) / self.algorithm.digest_size() as u64
    }

    /// Returns the digests of whole blocks, one behind the other. Many blocks are hashed by all
    /// processors.
    pub fn digests(&self, blocks: &[u8]) -> Vec<u8> {
        let (block, digest) = (self.block_size as usize, self.algorithm.digest_size());
        let count = blocks.len() / block;
        let mut digests = vec![0; count * digest];
        let threads = match blocks.len() < PARALLEL {
            true => 1,
            false => thread::available_parallelism().map_or(1, usize::from),
        };
        let share = count.div_ceil(threads).max(1);
        let mut shares = blocks.chunks(share * block).zip(digests.chunks_mut(share * digest));
        thread::scope(|scope| {
            let own = shares.next();
            for (blocks, digests) in shares {
                scope.spawn(move || self.salted.digest_each(blocks, block, digests));
            }
            if let Some((blocks, digests)) = own {
                self.salted.digest_each(blocks, block, digests);
            }
        });
        digests
    }

    /// Makes the tree and returns the root hash. `read` fills a buffer with the data from a byte
    /// on; `write` takes whole blocks of the tree and their first byte in it, always in the same
    /// order.
    ///
    /// # Errors
    /// The errors of `read` and `write`.
    pub fn make<E>(
        &self,
        mut read: impl FnMut(&mut [u8], u64) -> Result<(), E>,
        mut write: impl FnMut(&[u8], u64) -> Result<(), E>,
    ) -> Result<Vec<u8>, E> {
        let block = self.block_size as usize;
        if self.data_size == 0 {
            return Ok(vec![0; self.algorithm.digest_size()]);
        }
        let mut making = Making { tree: self, levels: vec![Pending::default(); self.depth() + 1] };
        let whole = usize::try_from(self.data_size).unwrap_or(PIECE).min(PIECE);
        let mut piece = vec![0; whole.next_multiple_of(block)];
        let mut at = 0;
        while at < self.data_size {
            let len = (self.data_size - at).min(PIECE as u64) as usize;
            read(&mut piece[..len], at)?;
            let padded = len.next_multiple_of(block);
            piece[len..padded].fill(0);
            making.push(0, &self.digests(&piece[..padded]), &mut write)?;
            at += len as u64;
        }
        for level in 0..self.depth() {
            making.flush(level, true, &mut write)?;
        }
        Ok(making.levels.pop().map(|root| root.digests).unwrap_or_default())
    }
}

/// The digests of a level that are not written.
#[derive(Debug, Clone, Default)]
struct Pending {
    digests: Vec<u8>,
    /// Bytes of the level that are written.
    written: u64,
}

/// A tree that is being made, with what each level lacks; behind the last is the root hash.
struct Making<'t> {
    tree: &'t FileTree,
    levels: Vec<Pending>,
}

impl Making<'_> {
    fn push<E>(
        &mut self,
        level: usize,
        digests: &[u8],
        write: &mut impl FnMut(&[u8], u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let pending = &mut self.levels[level].digests;
        pending.extend_from_slice(digests);
        match level < self.tree.depth() && pending.len() >= WRITTEN.max(self.tree.block_size as usize) {
            true => self.flush(level, false, write),
            false => Ok(()),
        }
    }

    /// Writes the whole blocks of a level, or with `all` the last one too.
    fn flush<E>(
        &mut self,
        level: usize,
        all: bool,
        write: &mut impl FnMut(&[u8], u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let block = self.tree.block_size as usize;
        let pending = &mut self.levels[level];
        if all {
            pending.digests.resize(pending.digests.len().next_multiple_of(block), 0);
        }
        let rest = pending.digests.split_off(pending.digests.len() / block * block);
        let blocks = std::mem::replace(&mut pending.digests, rest);
        if blocks.is_empty() {
            return Ok(());
        }
        let at = self.tree.levels[level].start + pending.written;
        pending.written += blocks.len() as u64;
        write(&blocks, at)?;
        self.push(level + 1, &self.tree.digests(&blocks), write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    /// Makes the tree of `size` bytes of 7, by small pieces of the closure's choice.
    fn made(tree: &FileTree) -> (Vec<u8>, Vec<u8>) {
        let mut stored = vec![0xEE; tree.size() as usize];
        let read = |buf: &mut [u8], _| -> Result<(), Infallible> {
            buf.fill(7);
            Ok(())
        };
        let write = |bytes: &[u8], at: u64| -> Result<(), Infallible> {
            stored[at as usize..][..bytes.len()].copy_from_slice(bytes);
            Ok(())
        };
        let Ok(root) = tree.make(read, write);
        (root, stored)
    }

    #[test]
    fn every_digest_is_that_of_the_block_below() {
        for (algorithm, block_size, size) in [
            (Algorithm::Sha256, 1024, 1),
            (Algorithm::Sha256, 1024, 1025),
            (Algorithm::Sha512, 1024, 40_000),
            (Algorithm::Sha256, 1024, 9 << 20),
            (Algorithm::Sha256, 4096, (128 << 12) + 1),
            (Algorithm::Sha512, 4096, 5 << 20),
        ] {
            let tree = FileTree::new(algorithm, block_size, b"salt", size);
            let (root, stored) = made(&tree);
            let mut below = vec![7; size as usize];
            below.resize(below.len().next_multiple_of(block_size as usize), 0);
            for level in 0..tree.depth() {
                let all = 0..below.len() as u64 / u64::from(block_size);
                let above = tree.above(level, &all);
                let bytes = &stored[(above.start * u64::from(block_size)) as usize
                    ..(above.end * u64::from(block_size)) as usize];
                let digests = tree.digests(&below);
                assert_eq!(bytes[..digests.len()], digests);
                assert!(bytes[digests.len()..].iter().all(|byte| *byte == 0));
                assert_eq!(tree.in_level(level, above.end - 1) + 1, above.end - above.start);
                below = bytes.to_vec();
            }
            assert_eq!(root, tree.digests(&below), "{algorithm:?} {block_size} {size}");
        }
        assert_eq!(made(&FileTree::new(Algorithm::Sha256, 4096, &[], 0)), (vec![0; 32], vec![]));
    }

    #[test]
    fn threads_change_no_digest() {
        let tree = FileTree::new(Algorithm::Sha256, 1024, &[], 3 << 20);
        let data: Vec<u8> = (0..3 << 20).map(|at: u32| (at / 1000) as u8).collect();
        let alone: Vec<u8> = data.chunks(1024).flat_map(|block| tree.digests(block)).collect();
        assert_eq!(tree.digests(&data), alone);
    }
}
