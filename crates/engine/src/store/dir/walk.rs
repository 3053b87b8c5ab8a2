//! A walk through the leaves of a directory: it reads no block twice.
//!
//! Entries of a damaged index, and runs of a damaged map, may lead to one block over and over. So a
//! walk remembers the blocks of the volume that it has read, as runs, and refuses to return to one.

use super::block::Dir;
use crate::error::{DirError, Result};
use lanefs_journal::Buffer;
use std::collections::BTreeMap;
use std::ops::Range;

/// A walk through the leaves of a directory.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    pub(super) dir: Dir<'a>,
    visited: Visited,
}

impl<'a> Walk<'a> {
    pub(super) fn new(dir: &Dir<'a>) -> Self {
        Self { dir: *dir, visited: Visited::default() }
    }

    /// Notes that the walk has come to `leaf`, block `lblk` of the directory. Returns `leaf`.
    ///
    /// # Errors
    /// [`DirError::Repeat`] if the walk was there before.
    pub(super) fn enter(&mut self, lblk: u32, leaf: Buffer) -> Result<Buffer> {
        let block = leaf.block();
        match self.visited.insert(block) {
            true => Ok(leaf),
            false => Err(DirError::Repeat { ino: self.dir.inode.ino, lblk, block }.into()),
        }
    }
}

/// A set of blocks. Blocks that are added in ascending order without a gap take no memory of their
/// own.
#[derive(Debug, Default)]
struct Visited {
    /// Runs of blocks, but for the newest: where each starts and ends. They do not overlap.
    runs: BTreeMap<u64, u64>,
    /// The run that the last block was added to.
    newest: Range<u64>,
    /// Where the next run behind the newest starts.
    bound: u64,
}

impl Visited {
    /// Adds a block. Returns whether it is new.
    fn insert(&mut self, block: u64) -> bool {
        if block == self.newest.end && block < self.bound {
            self.newest.end += 1;
            return true;
        }
        if !self.newest.is_empty() {
            self.runs.insert(self.newest.start, self.newest.end);
        }
        let is_new = self.runs.range(..=block).next_back().is_none_or(|(_, end)| *end <= block);
        if is_new {
            self.bound = self.runs.range(block..).next().map_or(u64::MAX, |(start, _)| *start);
            self.newest = block..block + 1;
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::Visited;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    use std::collections::BTreeSet;

    #[test]
    fn a_set_of_runs_is_a_set() {
        let mut rng = StdRng::seed_from_u64(1);
        for _ in 0..1000 {
            let (mut visited, mut model) = (Visited::default(), BTreeSet::new());
            let mut at: u64 = rng.random_range(0..20);
            for _ in 0..60 {
                assert_eq!(visited.insert(at), model.insert(at), "{at}: {visited:?}");
                at = if rng.random_bool(0.7) { at + 1 } else { rng.random_range(0..60) };
            }
        }
    }

    #[test]
    fn one_run_takes_no_memory() {
        let mut visited = Visited::default();
        assert!((7..100_000).all(|block| visited.insert(block)));
        assert!(visited.runs.is_empty() && !visited.insert(99_999));
    }
}
