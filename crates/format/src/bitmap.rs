//! Bits of a block or inode bitmap: bit `n` is bit `n % 8` of byte `n / 8`, set means in use.
//!
//! Searches go by words of 64 bits. Positions are clamped to the length of the slice, so that no
//! call can reach outside of it.

use crate::{FormatError, Result};
use std::ops::Range;

/// Returns the 64 bits from bit `word * 64` on; bytes beyond the end are zero.
fn word(map: &[u8], word: usize) -> u64 {
    let Some(rest) = map.get(word.saturating_mul(8)..) else { return 0 };
    match rest.first_chunk::<8>() {
        Some(bytes) => u64::from_le_bytes(*bytes),
        None => rest.iter().rev().fold(0, |w, &b| w << 8 | u64::from(b)),
    }
}

fn find(map: &[u8], range: Range<usize>, flip: u64) -> Option<usize> {
    let end = range.end.min(map.len().saturating_mul(8));
    let mut at = range.start;
    while at < end {
        let bits = (word(map, at / 64) ^ flip) >> (at % 64);
        if bits != 0 {
            let hit = at + bits.trailing_zeros() as usize;
            return (hit < end).then_some(hit);
        }
        at = (at / 64 + 1) * 64;
    }
    None
}

/// Returns whether bit `n` is set; bits beyond the end are not.
pub fn test(map: &[u8], n: usize) -> bool {
    map.get(n / 8).is_some_and(|b| b >> (n % 8) & 1 == 1)
}

/// Returns the first clear bit in `range`.
pub fn next_zero(map: &[u8], range: Range<usize>) -> Option<usize> {
    find(map, range, !0)
}

/// Returns the first set bit in `range`.
pub fn next_set(map: &[u8], range: Range<usize>) -> Option<usize> {
    find(map, range, 0)
}

/// Returns the first run of clear bits in `range`, cut at `max` bits: at least one bit long.
pub fn next_run(map: &[u8], range: Range<usize>, max: usize) -> Option<Range<usize>> {
    let end = range.end.min(map.len().saturating_mul(8));
    let start = next_zero(map, range.start..end)?;
    let limit = end.min(start.saturating_add(max.max(1)));
    Some(start..next_set(map, start..limit).unwrap_or(limit))
}

/// Returns the number of set bits in `range`.
pub fn count_set(map: &[u8], range: Range<usize>) -> usize {
    let end = range.end.min(map.len().saturating_mul(8));
    let (mut at, mut count) = (range.start, 0);
    while at < end {
        let n = (64 - at % 64).min(end - at);
        let mask = if n == 64 { !0 } else { (1 << n) - 1 };
        count += (word(map, at / 64) >> (at % 64) & mask).count_ones() as usize;
        at += n;
    }
    count
}

/// Sets all bits of `range`.
///
/// # Errors
/// [`FormatError::BitmapRange`] if the range is not inside the slice; nothing is changed then.
pub fn set(map: &mut [u8], range: Range<usize>) -> Result<()> {
    fill(map, range, true)
}

/// Clears all bits of `range`.
///
/// # Errors
/// The errors of [`set`].
pub fn clear(map: &mut [u8], range: Range<usize>) -> Result<()> {
    fill(map, range, false)
}

fn fill(map: &mut [u8], range: Range<usize>, value: bool) -> Result<()> {
    let bits = map.len().saturating_mul(8);
    if range.start > range.end || range.end > bits {
        return Err(FormatError::BitmapRange { start: range.start, end: range.end, bits });
    }
    let mut at = range.start;
    while at < range.end {
        let n = (8 - at % 8).min(range.end - at);
        if n == 8 {
            let whole = (range.end - at) / 8;
            if let Some(bytes) = map.get_mut(at / 8..at / 8 + whole) {
                bytes.fill(if value { 0xFF } else { 0 });
            }
            at += whole * 8;
            continue;
        }
        let mask = (((1u16 << n) - 1) << (at % 8)) as u8;
        if let Some(byte) = map.get_mut(at / 8) {
            *byte = if value { *byte | mask } else { *byte & !mask };
        }
        at += n;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every range of a bitmap that is no multiple of a word, against one bit at a time.
    #[test]
    fn agrees_with_one_bit_at_a_time() {
        let mut map = vec![0u8; 27];
        let mut x = 12345u32;
        for b in &mut map {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *b = (x >> 16) as u8 & (x >> 24) as u8;
        }
        map[8..18].fill(0xFF);
        for start in 0..216 {
            for end in start..=216 {
                let range = start..end;
                assert_eq!(next_zero(&map, range.clone()), range.clone().find(|&n| !test(&map, n)));
                assert_eq!(next_set(&map, range.clone()), range.clone().find(|&n| test(&map, n)));
                assert_eq!(count_set(&map, range.clone()), range.clone().filter(|&n| test(&map, n)).count());
                let run = range.clone().find(|&n| !test(&map, n)).map(|first| {
                    first..(first..end.min(first + 5)).find(|&n| test(&map, n)).unwrap_or(end.min(first + 5))
                });
                assert_eq!(next_run(&map, range.clone(), 5), run, "{range:?}");
                let mut filled = map.clone();
                set(&mut filled, range.clone()).unwrap();
                clear(&mut filled, start..(start + end) / 2).unwrap();
                for n in 0..216 {
                    let want = if (start..(start + end) / 2).contains(&n) {
                        false
                    } else {
                        range.contains(&n) || test(&map, n)
                    };
                    assert_eq!(test(&filled, n), want);
                }
            }
        }
    }

    #[test]
    fn nothing_reaches_outside() {
        let mut map = [0xF0u8; 2];
        assert_eq!(next_zero(&map, 12..usize::MAX), None);
        assert_eq!(next_set(&map, 99..200), None);
        assert_eq!(count_set(&map, 0..usize::MAX), 8);
        assert_eq!(set(&mut map, 8..17), Err(FormatError::BitmapRange { start: 8, end: 17, bits: 16 }));
    }
}
