//! Little-endian integers at an offset of a byte slice.
//!
//! Reading beyond the end gives zero and writing there does nothing: that is what a field means
//! that a short descriptor or a small inode does not have. Callers check lengths where a missing
//! field would be an error.

pub(crate) fn u16_at(b: &[u8], at: usize) -> u16 {
    b.get(at..).and_then(|b| b.first_chunk()).map_or(0, |c| u16::from_le_bytes(*c))
}

pub(crate) fn u32_at(b: &[u8], at: usize) -> u32 {
    b.get(at..).and_then(|b| b.first_chunk()).map_or(0, |c| u32::from_le_bytes(*c))
}

pub(crate) fn put(b: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(dst) = b.get_mut(at..).and_then(|b| b.get_mut(..bytes.len())) {
        dst.copy_from_slice(bytes);
    }
}

pub(crate) fn put_u16(b: &mut [u8], at: usize, v: u16) {
    put(b, at, &v.to_le_bytes());
}

pub(crate) fn put_u32(b: &mut [u8], at: usize, v: u32) {
    put(b, at, &v.to_le_bytes());
}

/// Joins the low and the high half of a split 64-bit field.
pub(crate) fn join(lo: u32, hi: u32) -> u64 {
    u64::from(hi) << 32 | u64::from(lo)
}
