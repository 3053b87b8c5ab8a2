//! A set of numbers that lie close together, of inodes or of files: a bitmap in chunks, so that ten
//! million of them take two megabytes.

use std::collections::BTreeMap;

/// Numbers of a chunk.
const CHUNK: u64 = 4096;

#[derive(Debug, Default)]
pub(super) struct NumberSet(BTreeMap<u64, Box<[u64; (CHUNK / 64) as usize]>>);

/// Returns the chunk of a number, its word there, and its bit.
fn place(number: u64) -> (u64, usize, u64) {
    (number / CHUNK, (number % CHUNK / 64) as usize, 1 << (number % 64))
}

impl NumberSet {
    /// Returns whether the number was not in the set.
    pub(super) fn insert(&mut self, number: u64) -> bool {
        let (chunk, word, bit) = place(number);
        let words = self.0.entry(chunk).or_insert_with(|| Box::new([0; (CHUNK / 64) as usize]));
        let new = words[word] & bit == 0;
        words[word] |= bit;
        new
    }

    pub(super) fn remove(&mut self, number: u64) {
        let (chunk, word, bit) = place(number);
        if let Some(words) = self.0.get_mut(&chunk) {
            words[word] &= !bit;
        }
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        let (chunk, word, bit) = place(number);
        self.0.get(&chunk).is_some_and(|words| words[word] & bit != 0)
    }

    /// Returns whether nothing was ever put in.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_and_go() {
        let mut set = NumberSet::default();
        assert!(set.is_empty());
        let numbers = [0, 1, 63, 64, 4095, 4096, u64::from(u32::MAX), u64::MAX];
        assert!(numbers.iter().all(|n| set.insert(*n)));
        assert!(numbers.iter().all(|n| !set.insert(*n) && set.contains(*n)));
        set.remove(64);
        set.remove(5 * CHUNK);
        assert!(!set.contains(64) && !set.contains(65) && set.contains(63) && set.insert(64));
    }
}
