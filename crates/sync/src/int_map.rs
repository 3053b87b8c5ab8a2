//! Hash maps whose keys are numbers of blocks and inodes.
//!
//! The hash of the standard library costs more than the rest of such a look-up. This one is two multiplications'
//! halves, folded. The numbers come from volumes, which may have been made to collide; so a secret that each process
//! draws anew is mixed in.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;

/// A map from numbers.
pub type IntMap<K, V> = HashMap<K, V, IntState>;

/// A set of numbers.
pub type IntSet<K> = HashSet<K, IntState>;

/// The secret of the process, for [`IntMap`] and [`IntSet`].
#[derive(Debug, Clone, Copy)]
pub struct IntState {
    secret: [u64; 2],
}

impl Default for IntState {
    fn default() -> Self {
        static SECRET: OnceLock<[u64; 2]> = OnceLock::new();
        let draw = || {
            let random = RandomState::new();
            // Odd, so that the multiplication loses nothing.
            [random.hash_one(0_u64), random.hash_one(1_u64) | 1]
        };
        Self { secret: *SECRET.get_or_init(draw) }
    }
}

impl BuildHasher for IntState {
    type Hasher = IntHasher;

    fn build_hasher(&self) -> IntHasher {
        IntHasher { secret: self.secret, hash: 0 }
    }
}

/// Hashes one number.
#[derive(Debug)]
pub struct IntHasher {
    secret: [u64; 2],
    hash: u64,
}

impl Hasher for IntHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = self.hash.rotate_left(32) ^ number ^ self.secret[0];
        let product = u128::from(mixed) * u128::from(self.secret[1]);
        self.hash = (product >> 64) as u64 ^ product as u64;
    }

    fn finish(&self) -> u64 {
        self.hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers as volumes have them: in a row, and at the same place in each group.
    #[test]
    fn numbers_spread() {
        for step in [1_u64, 16, 64, 8192, 32768, 1 << 20, 1 << 32] {
            let state = IntState::default();
            let (mut low, mut high) = ([0_u32; 256], [0_u32; 128]);
            for i in 0..65_536_u64 {
                let hash = state.hash_one(i.wrapping_mul(step));
                // A table takes the low bits for the place and the upper seven to tell what lies there.
                low[(hash % 256) as usize] += 1;
                high[(hash >> 57) as usize] += 1;
            }
            // Of 256 and of 512 each, by chance up to half as many again.
            assert!(low.iter().all(|n| (100..500).contains(n)), "step {step}: {low:?}");
            assert!(high.iter().all(|n| (200..1000).contains(n)), "step {step}: {high:?}");
        }
    }

    #[test]
    fn maps_find_what_they_were_given() {
        let map: IntMap<u64, u64> = (0..10_000).map(|n| (n * n, n)).collect();
        assert!((0..10_000).all(|n| map.get(&(n * n)) == Some(&n)));
        let set: IntSet<u32> = (0..1000).collect();
        assert!(set.contains(&999) && !set.contains(&1000));
    }
}
