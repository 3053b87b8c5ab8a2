//! Randomness that can be replayed.

use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};

/// A seed that prints itself if the test that holds it fails.
#[derive(Debug)]
pub struct Seed {
    var: &'static str,
    value: u64,
}

/// The seed of a run that names none: such a run judges a change, not the day's
/// luck.
const DEFAULT: u64 = 0x001a_9ef5;

/// Reads the seed of the environment variable `var`: decimal, hexadecimal after `0x`, or `random`
/// for a new one, as campaigns want. The same one every time if it is not set.
///
/// Keep the result to the end of the test: dropped by a panic, it prints how to replay.
///
/// # Panics
/// If the variable is set to something else than a number: a test that was asked for one seed must
/// not run with another.
#[expect(clippy::panic, reason = "for tests only")]
pub fn seed_from_env(var: &'static str) -> Seed {
    let value = match std::env::var(var) {
        Ok(text) if text == "random" => rand::rng().next_u64(),
        Ok(text) => parse(&text).unwrap_or_else(|| panic!("{var}={text} is not a number")),
        Err(_) => DEFAULT,
    };
    Seed { var, value }
}

fn parse(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

impl Seed {
    /// Returns the number.
    pub fn value(&self) -> u64 {
        self.value
    }

    /// Returns a generator of its own for each `stream`: what one draws does not shift the others.
    pub fn rng(&self, stream: u64) -> StdRng {
        rng(&[self.value, stream])
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay with {}={:#x}", self.var, self.value);
        }
    }
}

/// Returns a generator that depends on every one of `keys`.
pub(crate) fn rng(keys: &[u64]) -> StdRng {
    // The finalizer of splitmix64, folded over the keys.
    let mixed = keys.iter().fold(0_u64, |acc, key| {
        let mut z = (acc ^ key).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    });
    StdRng::seed_from_u64(mixed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_numbers() {
        let draw = |value, stream| Seed { var: "X", value }.rng(stream).next_u64();
        assert_eq!(draw(5, 1), draw(5, 1));
        assert_ne!(draw(5, 1), draw(5, 2));
        assert_ne!(draw(5, 1), draw(6, 1));
        assert_ne!(rng(&[1, 2]).next_u64(), rng(&[2, 1]).next_u64());
    }

    #[test]
    fn what_is_printed_can_be_read() {
        assert_eq!(parse(&format!("{:#x}", u64::MAX)), Some(u64::MAX));
        assert_eq!(parse("17"), Some(17));
        assert_eq!(parse("0xzz"), None);
    }
}
