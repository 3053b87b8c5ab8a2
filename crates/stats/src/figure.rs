//! Numbers as tables show them.

/// Returns a number with three significant digits, thousands by letter.
#[must_use]
pub fn figure(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        0.0 => 0,
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.9995 => 2,
        _ => 4,
    };
    format!("{scaled:.digits$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures() {
        let shown = [0.0, 0.12345, 1.234, 12.34, 123.4, 1234.0, 12_345.0, 1.2e7].map(figure);
        assert_eq!(shown, ["0", "0.1235", "1.23", "12.3", "123", "1234", "12.3k", "12.0M"]);
    }
}
