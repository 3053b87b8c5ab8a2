//! What names of volumes share: sizes, percent encoding, and the parameters behind `?`.

use std::path::Path;
use std::time::Duration;

/// The parameters that have paths of this host.
const PATHS: [&str; 3] = ["socket=", "conf=", "tls-certificates="];

/// Calls `set` with the name and the decoded value of each parameter of a query.
///
/// # Errors
/// A parameter that is there twice, a value that cannot be decoded, and the errors of `set`.
pub(crate) fn each_parameter(
    query: Option<&str>,
    mut set: impl FnMut(&str, &str) -> Result<(), String>,
) -> Result<(), String> {
    let mut seen = Vec::new();
    for pair in query.into_iter().flat_map(|query| query.split('&')) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if seen.contains(&name) {
            return Err(format!("has the parameter {name} twice"));
        }
        seen.push(name);
        // Without the value: it may be a secret that was given by mistake.
        let bad = |_| format!("the value of {name} is not percent-encoded UTF-8");
        set(name, &decode(value).map_err(bad)?)?;
    }
    Ok(())
}

/// Reads a number of seconds from 1 on.
pub(crate) fn seconds(name: &str, value: &str) -> Result<Duration, String> {
    match value.parse::<u32>() {
        Ok(seconds) if seconds > 0 => Ok(Duration::from_secs(seconds.into())),
        _ => Err(format!("{name} is a number of seconds: {name}=30")),
    }
}

/// Reads a number of bytes, or of a unit: K, M, G, T (powers of 1024).
pub(crate) fn parse_size(text: &[u8]) -> Option<u64> {
    let unit = match text.last()?.to_ascii_uppercase() {
        b'0'..=b'9' => 0,
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        b'T' => 40,
        _ => return None,
    };
    let digits = &text[..text.len() - usize::from(unit > 0)];
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    number.checked_mul(1 << unit)
}

/// Adds `offset=` or `size=` to the bytes that the volume is.
pub(crate) fn add_range(
    range: &mut Option<(u64, Option<u64>)>,
    name: &str,
    value: &str,
) -> Result<(), String> {
    let is_offset = name == "offset";
    let bytes = match parse_size(value.as_bytes()) {
        Some(bytes) if bytes.is_multiple_of(512) && (is_offset || bytes > 0) => bytes,
        _ => return Err("needs a range in units of 512 bytes: offset=1M&size=4G".to_owned()),
    };
    let (offset, size) = range.unwrap_or((0, None));
    *range = Some(if is_offset { (bytes, size) } else { (offset, Some(bytes)) });
    Ok(())
}

/// Returns the URL of a remote volume as a process in another directory finds it, and finds it
/// again: the paths in it are absolute, and it breaks no lock. Everything else is as written.
///
/// # Errors
/// The system's, if the current directory cannot be told.
pub fn absolute_url(url: &str) -> std::io::Result<String> {
    let Some((before, query)) = url.split_once('?') else { return Ok(url.into()) };
    let mut pairs = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.starts_with("break-lock")) {
        let path = PATHS.iter().find_map(|name| Some((name, pair.strip_prefix(name)?)));
        match path {
            Some((name, path)) if !path.starts_with(['/', '%']) => {
                let here = std::env::current_dir()?;
                pairs.push(format!("{name}{}/{path}", encode(&here)));
            }
            _ => pairs.push(pair.into()),
        }
    }
    Ok(if pairs.is_empty() { before.into() } else { format!("{before}?{}", pairs.join("&")) })
}

/// Undoes percent encoding.
pub(crate) fn decode(text: &str) -> Result<String, String> {
    let bad = || format!("{text:?} is not percent-encoded UTF-8: % and two hexadecimal digits");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else { return Err(bad()) };
        bytes.push((high * 16 + low) as u8);
    }
    String::from_utf8(bytes).map_err(|_| bad())
}

/// Encodes a path for the value of a parameter.
fn encode(path: &Path) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    for c in path.to_string_lossy().chars() {
        match c {
            '%' | '&' | '@' | ':' | '?' | '#' | '+' | ' ' => {
                let _ = write!(text, "%{:02X}", u32::from(c));
            }
            _ => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_absolute() {
        let here = std::env::current_dir().unwrap();
        let want = format!("nbd+unix:///x?timeout=1&socket={}/s", encode(&here));
        assert_eq!(absolute_url("nbd+unix:///x?timeout=1&socket=s").unwrap(), want);
        for same in ["nbd://h/x", "nbd+unix:///x?socket=/s"] {
            assert_eq!(absolute_url(same).unwrap(), same);
        }
        let rbd = "rbd:p/i?break-lock=yes&conf=c";
        assert_eq!(absolute_url(rbd).unwrap(), format!("rbd:p/i?conf={}/c", encode(&here)));
        let tls = absolute_url("nbds://h/x?tls-certificates=d").unwrap();
        assert_eq!(tls, format!("nbds://h/x?tls-certificates={}/d", encode(&here)));
        assert_eq!(absolute_url("rbd:p/i?break-lock").unwrap(), "rbd:p/i");
    }
}
