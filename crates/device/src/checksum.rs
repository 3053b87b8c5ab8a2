//! A checksum for contents that may hold a crc32c of their own.
//!
//! crc32c over a structure that ends with its crc32c, as a superblock of ext4 or a block of a
//! directory does, is the same for every content. This one is not linear.

/// Returns the checksum of bytes. A change of one word always changes it.
pub(crate) fn checksum(seed: u64, bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let add = |sum: u64, word: u64| (sum ^ word).wrapping_mul(FACTOR).rotate_left(29);
    let (words, rest) = bytes.as_chunks();
    let sum = words.iter().fold(seed, |sum, word| add(sum, u64::from_le_bytes(*word)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let sum = add(add(sum, u64::from_le_bytes(last)), bytes.len() as u64);
    sum ^ sum >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two structures whose last four bytes are the crc32c of the rest.
    #[test]
    fn a_checksum_within_does_not_hide_a_change() {
        let with_sum = |byte: u8| {
            let mut bytes = vec![byte; 1020];
            bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
            bytes
        };
        let (one, other) = (with_sum(1), with_sum(2));
        assert_eq!(crc32c::crc32c(&one), crc32c::crc32c(&other), "why crc32c is not used");
        assert_ne!(checksum(0, &one), checksum(0, &other));
        assert_ne!(checksum(0, &one), checksum(1, &one));
        assert_ne!(checksum(0, &[0; 8]), checksum(0, &[0; 9]));
    }
}
