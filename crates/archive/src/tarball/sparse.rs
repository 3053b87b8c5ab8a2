//! Maps of sparse members: which ranges of the file the archive holds, in order.

use super::RECORD;
use crate::member::Ranges;

/// Ranges of a map that are accepted. A map is kept in memory.
pub(super) const RANGES_MAX: usize = 1 << 20;

/// Why a map is refused.
const OVERLONG: &str = "a sparse map of more than a million ranges";
const MALFORMED: &str = "a sparse map that is malformed";

/// Checks that ranges ascend, lie within `size` and hold `packed` bytes. Empty ranges go.
pub(super) fn check(mut map: Ranges, size: u64, packed: u64) -> Result<Ranges, &'static str> {
    let (mut end, mut sum) = (0u64, 0u64);
    for &(offset, len) in &map {
        if offset < end {
            return Err("a sparse map whose ranges do not ascend");
        }
        end = offset.checked_add(len).ok_or(MALFORMED)?;
        sum += len;
    }
    if end > size {
        return Err("a sparse map that passes the end of its file");
    }
    if sum != packed {
        return Err("a sparse map that does not cover the member's data");
    }
    map.retain(|(_, len)| *len != 0);
    map.shrink_to_fit();
    Ok(map)
}

/// Adds ranges to a map, up to the bound.
pub(super) fn extend(map: &mut Ranges, more: Ranges) -> Result<(), &'static str> {
    if map.len() + more.len() > RANGES_MAX {
        return Err(OVERLONG);
    }
    map.extend(more);
    Ok(())
}

/// Forms 0.0 and 0.1: numbers in the pax header, offsets and lengths by turns.
pub(super) fn from_numbers(numbers: &[u64]) -> Result<Ranges, &'static str> {
    match numbers.as_chunks::<2>() {
        (pairs, _) if pairs.len() > RANGES_MAX => Err(OVERLONG),
        (pairs, []) => Ok(pairs.iter().map(|&[offset, len]| (offset, len)).collect()),
        _ => Err(MALFORMED),
    }
}

/// Form 1.0: the map stands before the data, as lines of digits in whole records: the number of
/// ranges, then offset and length of each.
#[derive(Debug, Default)]
pub(super) struct MapParser {
    count: Option<usize>,
    number: Option<u64>,
    numbers: Vec<u64>,
}

impl MapParser {
    /// Takes a record; the map when it is complete.
    pub(super) fn feed(&mut self, record: &[u8; RECORD]) -> Result<Option<Ranges>, &'static str> {
        for byte in record {
            match (byte, self.number, self.count) {
                (b'0'..=b'9', n, _) => {
                    let n =
                        n.unwrap_or(0).checked_mul(10).and_then(|n| n.checked_add(u64::from(byte - b'0')));
                    self.number = Some(n.ok_or(MALFORMED)?);
                }
                (b'\n', Some(n), None) => {
                    let n = usize::try_from(n).ok().filter(|n| *n <= RANGES_MAX).ok_or(OVERLONG)?;
                    (self.count, self.number) = (Some(n), None);
                }
                (b'\n', Some(n), Some(_)) => {
                    self.numbers.push(n);
                    self.number = None;
                }
                _ => return Err(MALFORMED),
            }
            if self.count.is_some_and(|count| self.numbers.len() == 2 * count) {
                return from_numbers(&self.numbers).map(Some);
            }
        }
        Ok(None)
    }
}

/// Returns a map in form 1.0, padded to whole records.
pub(super) fn encode(map: &[(u64, u64)]) -> Vec<u8> {
    let mut out = format!("{}\n", map.len()).into_bytes();
    for (offset, len) in map {
        out.extend(format!("{offset}\n{len}\n").into_bytes());
    }
    out.resize(out.len().next_multiple_of(RECORD), 0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_over_several_records() {
        let map: Ranges = (0..200).map(|i| (i * 10_000_000_000, 4096)).collect();
        let bytes = encode(&map);
        assert!(bytes.len() > RECORD && bytes.len().is_multiple_of(RECORD));
        let mut parser = MapParser::default();
        let (records, []) = bytes.as_chunks::<RECORD>() else { panic!("whole records") };
        let (last, head) = records.split_last().unwrap();
        assert!(head.iter().all(|r| parser.feed(r) == Ok(None)));
        assert_eq!(parser.feed(last), Ok(Some(map)));
        let mut none = [0; RECORD];
        none[..2].copy_from_slice(b"0\n");
        assert_eq!(MapParser::default().feed(&none), Ok(Some(Vec::new())));
        assert_eq!(MapParser::default().feed(&[0; RECORD]), Err(MALFORMED));
    }

    #[test]
    fn maps_are_checked() {
        assert_eq!(check(vec![(0, 5), (5, 0), (9, 1)], 10, 6), Ok(vec![(0, 5), (9, 1)]));
        assert!(check(vec![(5, 5), (9, 1)], 10, 6).is_err());
        assert!(check(vec![(5, 6)], 10, 6).is_err());
        assert!(check(vec![(5, 5)], 10, 6).is_err());
        assert!(check(vec![(u64::MAX, 2)], 10, 2).is_err());
    }
}
