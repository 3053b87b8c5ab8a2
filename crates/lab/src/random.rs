//! Random numbers for loops that measure something else.

/// A small generator: the loops must not measure the generator.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns a generator that differs for each thread.
    pub fn new(seed: u64) -> Self {
        Self((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Returns the next number.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}
