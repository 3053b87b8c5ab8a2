//! Records of a pax extended header: `LENGTH KEY=VALUE\n`, the length counting itself.

/// Key and value.
type Record<'a> = (&'a [u8], &'a [u8]);

/// Returns the records of a header in their order, `None` for one that is malformed, which is the
/// last. They are not collected: a header may have millions of them.
pub(super) fn parse(mut bytes: &[u8]) -> impl Iterator<Item = Option<Record<'_>>> {
    std::iter::from_fn(move || {
        // Some programs pad with zeros.
        if bytes.iter().all(|b| *b == 0) {
            return None;
        }
        let first = split_first(bytes);
        bytes = first.map_or(&[], |(_, rest)| rest);
        Some(first.map(|(record, _)| record))
    })
}

/// Splits the first record off.
fn split_first(bytes: &[u8]) -> Option<(Record<'_>, &[u8])> {
    let blank = bytes.iter().take(20).position(|b| *b == b' ')?;
    let len: usize = std::str::from_utf8(&bytes[..blank]).ok()?.parse().ok()?;
    let record = bytes.get(blank + 1..len)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|b| *b == b'=')?;
    Some(((&record[..equals], &record[equals + 1..]), bytes.get(len..)?))
}

/// Appends a record.
pub(super) fn push(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    while rest + len.to_string().len() != len {
        len = rest + len.to_string().len();
    }
    out.extend(len.to_string().as_bytes());
    out.push(b' ');
    out.extend(key);
    out.push(b'=');
    out.extend(value);
    out.push(b'\n');
}

/// Returns a time as pax writes it: seconds with a fraction, perhaps negative.
pub(super) fn parse_time(text: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let (negative, digits) = whole.strip_prefix('-').map_or((false, whole), |digits| (true, digits));
    let magnitude: i64 = digits.parse().ok().filter(|_| digits.bytes().all(|b| b.is_ascii_digit()))?;
    if !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let nsec: u32 = format!("{:0<9.9}", fraction).parse().ok()?;
    match (negative, nsec) {
        (false, _) => Some((magnitude, nsec)),
        (true, 0) => Some((-magnitude, 0)),
        (true, _) => Some(((-magnitude).checked_sub(1)?, 1_000_000_000 - nsec)),
    }
}

/// Returns the shortest form that [`parse_time`] reads back.
pub(super) fn format_time(sec: i64, nsec: u32) -> String {
    let (sign, sec, nsec) = match (sec < 0, nsec) {
        (true, 1..) => ("-", sec.saturating_add(1).unsigned_abs(), 1_000_000_000 - nsec),
        (true, 0) => ("-", sec.unsigned_abs(), 0),
        (false, _) => ("", sec.unsigned_abs(), nsec),
    };
    if nsec == 0 {
        return format!("{sign}{sec}");
    }
    format!("{sign}{sec}.{nsec:09}").trim_end_matches('0').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_counts_itself() {
        for len in [0, 1, 85, 86, 87, 88, 984, 985, 986, 987, 9980] {
            let value = vec![b'v'; len];
            let mut out = Vec::new();
            push(&mut out, b"comment", &value);
            push(&mut out, b"k", b"a=b\nc");
            let records: Option<Vec<_>> = parse(&out).collect();
            assert_eq!(records.unwrap(), [(&b"comment"[..], &value[..]), (b"k", b"a=b\nc")]);
        }
        assert_eq!(parse(b"6 a=b\n\0\0").count(), 1);
        for bad in [&b"5 a=b\n"[..], b"99 a=b\n", b"x a=b\n", b"6 aab\n", b"0 ", b"-1 a=b\n", b"2 a=b\n"] {
            assert_eq!(parse(bad).last(), Some(None), "{bad:?}");
        }
    }

    #[test]
    fn times() {
        for (text, time) in [
            ("0", (0, 0)),
            ("1.5", (1, 500_000_000)),
            ("1700000000.123456789", (1_700_000_000, 123_456_789)),
            ("-1", (-1, 0)),
            ("-0.25", (-1, 750_000_000)),
            ("-2.000000001", (-3, 999_999_999)),
        ] {
            assert_eq!(parse_time(text.as_bytes()), Some(time), "{text}");
            assert_eq!(format_time(time.0, time.1), text);
        }
        assert_eq!(parse_time(b"1.1234567899"), Some((1, 123_456_789)));
        for bad in ["", "x", "1.x", "--1", "+1", "99999999999999999999", "1."] {
            let found = parse_time(bad.as_bytes());
            assert!(found.is_none() || bad == "1.", "{bad} {found:?}");
        }
    }
}
