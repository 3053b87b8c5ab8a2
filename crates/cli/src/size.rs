//! Sizes as people write and read them.

/// Reads `2G`, `512M`, `100k`, `4096`: powers of 1024, as mke2fs and truncate have them; `kB`,
/// `MB`, ... are powers of 1000.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| format!("'{text}' is not a size: try 512M or 2G"))?;
    let (power, base) = match unit {
        "" | "B" => (0, 1024),
        _ => {
            let power = match unit.as_bytes()[0].to_ascii_uppercase() {
                b'K' => 1,
                b'M' => 2,
                b'G' => 3,
                b'T' => 4,
                b'P' => 5,
                b'E' => 6,
                _ => return Err(format!("'{unit}' is not a unit of size: K, M, G, T")),
            };
            match &unit[1..] {
                "" | "iB" => (power, 1024),
                "B" => (power, 1000),
                _ => return Err(format!("'{unit}' is not a unit of size: K, M, G, T")),
            }
        }
    };
    u64::pow(base, power).checked_mul(number).ok_or_else(|| format!("'{text}' is larger than 2^64 bytes"))
}

/// Formats bytes as `ls -h` and `df -h` do: up to 9.9 with one digit, rounded up, powers of 1024.
pub(crate) fn human(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    let mut unit = 0;
    let mut scale: u128 = 1;
    while unit + 1 < UNITS.len() && u128::from(bytes) >= scale * 1024 {
        scale *= 1024;
        unit += 1;
    }
    if unit == 0 {
        return bytes.to_string();
    }
    let tenths = (u128::from(bytes) * 10).div_ceil(scale);
    match tenths {
        0..100 => format!("{}.{}{}", tenths / 10, tenths % 10, UNITS[unit]),
        // Rounding up can reach the next unit: 1023.5K is 1.0M.
        10231.. if unit + 1 < UNITS.len() => format!("1.0{}", UNITS[unit + 1]),
        _ => format!("{}{}", tenths.div_ceil(10), UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_units() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("2G"), Ok(2 << 30));
        assert_eq!(parse("1m"), Ok(1 << 20));
        assert_eq!(parse("15TiB"), Ok(15 << 40));
        assert_eq!(parse("1kB"), Ok(1000));
        for bad in ["", "G", "1X", "1.5G", "-1", "16E", "1GG", "1é"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn writes_as_ls_does() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10 * 1024, "10K"),
            (10 * 1024 + 1, "11K"),
            (1024 * 1024 - 1, "1.0M"),
            (1 << 20, "1.0M"),
            (15 << 40, "15T"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(human(bytes), text, "{bytes}");
        }
    }
}
