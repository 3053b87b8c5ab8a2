//! Random numbers of a session, all made of its seed.

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): small, and the same on every machine.
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    /// Begins with `seed`.
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number less than `end`; 0 if `end` is.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// Returns true once in `every` times; never if that is 0.
    pub(super) fn once_in(&mut self, every: u64) -> bool {
        every > 0 && self.below(every) == 0
    }

    /// Returns one of `all`, which is not empty.
    pub(super) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}
