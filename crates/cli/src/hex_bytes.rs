//! Arguments that are bytes in hexadecimal.

/// Bytes that were written in hexadecimal.
#[derive(Debug, Clone)]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

/// Reads such an argument; `-` is no bytes.
pub(crate) fn bytes(text: &str) -> Result<Bytes, String> {
    if text == "-" {
        return Ok(Bytes(Vec::new()));
    }
    let pairs = text.as_bytes().chunks(2).map(|pair| {
        let is_hex = pair.len() == 2 && pair.iter().all(u8::is_ascii_hexdigit);
        let pair = std::str::from_utf8(pair).ok().filter(|_| is_hex)?;
        u8::from_str_radix(pair, 16).ok()
    });
    let bytes: Option<Vec<u8>> = pairs.collect();
    bytes.filter(|bytes| !bytes.is_empty()).map(Bytes).ok_or_else(|| "not pairs of hexadecimal digits".into())
}
