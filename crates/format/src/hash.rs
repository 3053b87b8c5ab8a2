//! Hashes of names, by which an htree directory is sorted.
//!
//! Three functions, each in two forms: whether the bytes of a name count as signed or unsigned
//! `char` was left to the machine that made the first volumes, and `s_flags` now records it.
//! The low bit of a hash is always clear: an index entry uses it to say "the leaf before this
//! one holds names of the same hash".
//!
//! Source: kernel documentation `filesystems/ext4/directory`, "Hash Tree Directories"; half-MD4
//! is MD4 (RFC 1320) with eight words to a block, TEA is Wheeler and Needham's cipher, 16 rounds.

/// The hash that the end of a directory has, shifted as hashes are; no name gets it.
const EOF_HASH: u32 = 0x7fff_ffff << 1;

/// Function that an index is sorted by, as `dx_root_info.hash_version` and
/// `s_def_hash_version` store it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashVersion {
    /// The first one; it has no minor hash.
    Legacy,
    /// MD4 with half of its block; the default.
    HalfMd4,
    /// The Tiny Encryption Algorithm.
    Tea,
}

impl HashVersion {
    /// Decodes a stored version. 3 to 5 are the unsigned forms of 0 to 2, which only memory should
    /// hold; 6 is SipHash, of directories both encrypted and case-folded.
    pub fn from_raw(raw: u8) -> Option<Self> {
        match raw {
            0 => Some(Self::Legacy),
            1 => Some(Self::HalfMd4),
            2 => Some(Self::Tea),
            _ => None,
        }
    }

    /// Returns the number that is stored.
    pub fn to_raw(self) -> u8 {
        match self {
            Self::Legacy => 0,
            Self::HalfMd4 => 1,
            Self::Tea => 2,
        }
    }
}

/// A name's place in an htree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameHash {
    /// What the index is sorted by; bit 0 is clear, and it is at most 0xffff_fffc.
    pub major: u32,
    /// Orders names of one major hash. Not stored anywhere; 0 with [`HashVersion::Legacy`].
    pub minor: u32,
}

/// A hash function with its volume's parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameHasher {
    version: HashVersion,
    unsigned: bool,
    seed: [u32; 4],
}

impl NameHasher {
    /// Returns the hash of these parameters: `unsigned` as in `s_flags`; `seed` is `s_hash_seed`,
    /// where all zeros mean MD4's own start.
    pub fn new(version: HashVersion, unsigned: bool, seed: [u32; 4]) -> Self {
        let seed = if seed == [0; 4] { [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476] } else { seed };
        Self { version, unsigned, seed }
    }

    /// Returns the hash function.
    pub fn version(&self) -> HashVersion {
        self.version
    }

    /// Returns the same parameters with another function: an index names its own.
    #[must_use]
    pub fn with_version(self, version: HashVersion) -> Self {
        Self { version, ..self }
    }

    /// Hashes `name`.
    pub fn hash(&self, name: &[u8]) -> NameHash {
        let (raw, minor) = match self.version {
            HashVersion::Legacy => (self.legacy(name), 0),
            HashVersion::HalfMd4 => self.half_md4(name),
            HashVersion::Tea => self.tea(name),
        };
        let major = raw & !1;
        NameHash { major: if major == EOF_HASH { EOF_HASH - 2 } else { major }, minor }
    }

    /// Returns one byte as the `int` that C would make of it.
    fn widen(&self, byte: u8) -> u32 {
        if self.unsigned { u32::from(byte) } else { i32::from(byte.cast_signed()).cast_unsigned() }
    }

    fn legacy(&self, name: &[u8]) -> u32 {
        let (mut last, mut before) = (0x12a3_fe2d_u32, 0x37ab_e8f9_u32);
        for &byte in name {
            let mut next = before.wrapping_add(last ^ self.widen(byte).wrapping_mul(7_152_373));
            if next & 0x8000_0000 != 0 {
                next = next.wrapping_sub(0x7fff_ffff);
            }
            (before, last) = (last, next);
        }
        last << 1
    }

    fn half_md4(&self, name: &[u8]) -> (u32, u32) {
        let mut state = self.seed;
        let mut rest = name;
        while !rest.is_empty() {
            half_md4_block(&mut state, &self.words::<8>(rest));
            rest = rest.get(32..).unwrap_or_default();
        }
        (state[1], state[2])
    }

    fn tea(&self, name: &[u8]) -> (u32, u32) {
        let mut state = self.seed;
        let mut rest = name;
        while !rest.is_empty() {
            tea_block(&mut state, &self.words::<4>(rest));
            rest = rest.get(16..).unwrap_or_default();
        }
        (state[0], state[1])
    }

    /// Returns the first `4 * N` bytes of `rest` as big-endian words. Missing bytes are filled with
    /// the length of `rest`, so that names that differ in trailing zeros differ in hash.
    fn words<const N: usize>(&self, rest: &[u8]) -> [u32; N] {
        let pad = (rest.len() as u32 & 0xff).wrapping_mul(0x0101_0101);
        let mut words = [pad; N];
        for (word, bytes) in words.iter_mut().zip(rest.chunks(4)) {
            // The sum, not the bits: a negative byte borrows from the ones above it.
            *word = bytes.iter().fold(pad, |word, &b| (word << 8).wrapping_add(self.widen(b)));
        }
        words
    }
}

fn half_md4_block(state: &mut [u32; 4], words: &[u32; 8]) {
    let start = *state;
    round(state, words, [0, 1, 2, 3, 4, 5, 6, 7], 0, [3, 7, 11, 19], |x, y, z| z ^ (x & (y ^ z)));
    round(state, words, [1, 3, 5, 7, 0, 2, 4, 6], 0x5a82_7999, [3, 5, 9, 13], |x, y, z| {
        (x & y).wrapping_add((x ^ y) & z)
    });
    round(state, words, [3, 7, 2, 6, 1, 5, 0, 4], 0x6ed9_eba1, [3, 9, 11, 15], |x, y, z| x ^ y ^ z);
    for (state, start) in state.iter_mut().zip(start) {
        *state = state.wrapping_add(start);
    }
}

/// Runs eight steps. Each changes one word of the state from the other three, in the order a, d, c,
/// b.
#[inline(always)]
fn round(
    v: &mut [u32; 4],
    words: &[u32; 8],
    order: [usize; 8],
    constant: u32,
    shifts: [u32; 4],
    mix: impl Fn(u32, u32, u32) -> u32,
) {
    for (i, word) in order.into_iter().enumerate() {
        let at = (4 - i % 4) % 4;
        let mixed = mix(v[(at + 1) % 4], v[(at + 2) % 4], v[(at + 3) % 4]);
        let sum = v[at].wrapping_add(mixed).wrapping_add(words[word]).wrapping_add(constant);
        v[at] = sum.rotate_left(shifts[i % 4]);
    }
}

fn tea_block(state: &mut [u32; 4], key: &[u32; 4]) {
    const DELTA: u32 = 0x9e37_79b9;
    let mix = |v: u32, sum: u32, k0: u32, k1: u32| {
        (v << 4).wrapping_add(k0) ^ v.wrapping_add(sum) ^ (v >> 5).wrapping_add(k1)
    };
    let (mut low, mut high, mut sum) = (state[0], state[1], 0_u32);
    for _ in 0..16 {
        sum = sum.wrapping_add(DELTA);
        low = low.wrapping_add(mix(high, sum, key[0], key[1]));
        high = high.wrapping_add(mix(low, sum, key[2], key[3]));
    }
    state[0] = state[0].wrapping_add(low);
    state[1] = state[1].wrapping_add(high);
}

#[cfg(test)]
mod tests;
