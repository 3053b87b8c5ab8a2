//! How many distinct states were seen, in little memory.
//!
//! Linear counting: a bit for each hash. The share of bits that are still clear tells how many
//! distinct hashes came; with 2^27 bits a million of them is counted to within a few in a thousand.

use std::io;
use std::path::Path;

const BITS: u64 = 1 << 27;

/// A set of hashes of which only the size can be asked.
#[derive(Debug)]
pub(super) struct Distinct(Vec<u64>);

impl Default for Distinct {
    fn default() -> Self {
        Self(vec![0; (BITS / 64) as usize])
    }
}

impl Distinct {
    /// Takes a hash in.
    pub(super) fn insert(&mut self, hash: u64) {
        // The low bits alone are as good as all.
        let bit = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - BITS.ilog2());
        self.0[(bit / 64) as usize] |= 1 << (bit % 64);
    }

    /// About how many different hashes were taken in.
    pub(super) fn estimate(&self) -> u64 {
        let set: u64 = self.0.iter().map(|word| u64::from(word.count_ones())).sum();
        let clear = (BITS - set).max(1) as f64 / BITS as f64;
        (-(BITS as f64) * clear.ln()).round() as u64
    }

    /// Reads what [`save`](Self::save) has written; nothing, if there is no such file.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn load(path: &Path) -> io::Result<Self> {
        let mut distinct = Self::default();
        if path.exists() {
            let bytes = std::fs::read(path)?;
            for (word, bytes) in distinct.0.iter_mut().zip(bytes.chunks_exact(8)) {
                *word = bytes.try_into().map_or(0, u64::from_le_bytes);
            }
        }
        Ok(distinct)
    }

    /// Writes it to a file.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn save(&self, path: &Path) -> io::Result<()> {
        let bytes: Vec<u8> = self.0.iter().flat_map(|word| word.to_le_bytes()).collect();
        std::fs::write(path, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_each_hash_once() {
        let mut distinct = Distinct::default();
        for i in 0..100_000_u64 {
            distinct.insert(i % 50_000);
        }
        let estimate = distinct.estimate();
        assert!((49_900..=50_100).contains(&estimate), "{estimate}");
    }
}
