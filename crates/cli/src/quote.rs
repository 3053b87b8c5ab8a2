//! Quotes names for a terminal or a log: a name comes from an untrusted volume and must not control
//! the terminal.
//!
//! The forms are those of GNU ls: `shell-escape` where a shell could read the name back, with
//! everything that does not print as `$'\033'`. Beyond GNU, the characters that reorder a line
//! (bidirectional controls) are escaped as well.

use lanefs_device::without_password;
use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Returns whether a character may reach a terminal as it is.
fn prints(c: char) -> bool {
    !c.is_control()
        && !matches!(c,
            '\u{061c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// A piece of a name: text that prints, or bytes that do not.
enum QuotePiece<'a> {
    Text(&'a str),
    Bytes(Vec<u8>),
}

fn pieces(name: &[u8]) -> Vec<QuotePiece<'_>> {
    let mut pieces = Vec::new();
    let add = |bytes: &[u8], pieces: &mut Vec<QuotePiece<'_>>| match pieces.last_mut() {
        Some(QuotePiece::Bytes(before)) => before.extend_from_slice(bytes),
        _ => pieces.push(QuotePiece::Bytes(bytes.to_vec())),
    };
    for chunk in name.utf8_chunks() {
        let mut rest = chunk.valid();
        while !rest.is_empty() {
            let good = rest.find(|c| !prints(c)).unwrap_or(rest.len());
            let (text, tail) = rest.split_at(good);
            let bad = tail.find(prints).unwrap_or(tail.len());
            let (bytes, tail) = tail.split_at(bad);
            if !text.is_empty() {
                pieces.push(QuotePiece::Text(text));
            }
            if !bytes.is_empty() {
                add(bytes.as_bytes(), &mut pieces);
            }
            rest = tail;
        }
        if !chunk.invalid().is_empty() {
            add(chunk.invalid(), &mut pieces);
        }
    }
    pieces
}

fn escape(bytes: &[u8], to: &mut String) {
    for &b in bytes {
        match b {
            b'\n' => to.push_str("\\n"),
            b'\t' => to.push_str("\\t"),
            b'\r' => to.push_str("\\r"),
            0x07 => to.push_str("\\a"),
            0x08 => to.push_str("\\b"),
            0x0b => to.push_str("\\v"),
            0x0c => to.push_str("\\f"),
            _ => to.push_str(&format!("\\{b:03o}")),
        }
    }
}

/// Returns whether a shell would not read `name` as one plain word.
fn needs_quotes(name: &str) -> bool {
    name.is_empty()
        || name.starts_with(['#', '~'])
        || name.contains([
            ' ', '!', '"', '$', '&', '\'', '(', ')', '*', ';', '<', '=', '>', '?', '[', '\\', '^', '`', '|',
        ])
        || name == "{"
        || name == "}"
}

fn shell(name: &[u8], always: bool) -> String {
    if let Ok(text) = std::str::from_utf8(name)
        && text.chars().all(prints)
    {
        return match () {
            () if !always && !needs_quotes(text) => text.into(),
            () if !text.contains('\'') => format!("'{text}'"),
            () if !text.contains(['"', '$', '`', '\\', '!']) => format!("\"{text}\""),
            () => format!("'{}'", text.replace('\'', "'\\''")),
        };
    }
    // As GNU ls: text in '...', the rest in $'...', each closed before the next is opened.
    let mut out = String::from("'");
    let mut after_bytes = false;
    for piece in pieces(name) {
        match piece {
            QuotePiece::Text(text) => {
                out.push_str(if after_bytes { "''" } else { "" });
                out.push_str(&text.replace('\'', "'\\''"));
                after_bytes = false;
            }
            QuotePiece::Bytes(bytes) => {
                out.push_str("'$'");
                escape(&bytes, &mut out);
                after_bytes = true;
            }
        }
    }
    out.push('\'');
    out
}

/// Returns a name in a message: always in quotes. A password in a URL is not shown.
pub(crate) fn quoted(name: impl AsRef<[u8]>) -> String {
    shell(without_password(OsStr::from_bytes(name.as_ref())).as_bytes(), true)
}

/// Returns what a volume holds, a path in it or the target of a link, in a message: always in
/// quotes, and whole. The name of a volume that is open has no password: no server takes one.
pub(crate) fn quoted_content(content: impl AsRef<[u8]>) -> String {
    shell(content.as_ref(), true)
}

/// Returns a name in a listing on a terminal: in quotes only where a shell needs them.
pub(crate) fn listed(name: &[u8]) -> String {
    shell(name, false)
}

/// Returns a name without quotes, for text where quotes would disturb. Bytes that do not print
/// become `\NNN`.
pub(crate) fn escaped(name: &[u8]) -> String {
    let mut out = String::new();
    for piece in pieces(name) {
        match piece {
            QuotePiece::Text(text) => out.push_str(text),
            QuotePiece::Bytes(bytes) => escape(&bytes, &mut out),
        }
    }
    out
}

/// A name for JSON, which knows text only: as it is, or else with its bytes beside it.
#[derive(Debug, serde::Serialize)]
pub(crate) struct JsonName {
    /// The name; bytes that are not UTF-8 became U+FFFD.
    name: String,
    /// The bytes in hexadecimal, only if the name is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    name_bytes: Option<String>,
}

impl JsonName {
    pub(crate) fn new(name: &[u8]) -> Self {
        match String::from_utf8_lossy(name) {
            Cow::Borrowed(text) => Self { name: text.into(), name_bytes: None },
            Cow::Owned(text) => Self { name: text, name_bytes: Some(hex(name)) },
        }
    }
}

/// Formats bytes in lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_names_stay_plain() {
        assert_eq!(listed(b"a.txt"), "a.txt");
        assert_eq!(listed("grüße".as_bytes()), "grüße");
        assert_eq!(quoted(b"a.txt"), "'a.txt'");
    }

    #[test]
    fn only_the_name_of_a_volume_is_masked() {
        let name = "nbd://host/disk?key=secret";
        assert_eq!(quoted(name), "'nbd://host/disk?key=***'");
        assert_eq!(quoted_content(name), "'nbd://host/disk?key=secret'");
        assert_eq!(quoted_content("a\x1b"), "'a'$'\\033'");
    }

    #[test]
    fn what_a_shell_would_split_is_quoted() {
        assert_eq!(listed(b"a b"), "'a b'");
        assert_eq!(listed(b"it's"), "\"it's\"");
        assert_eq!(listed(b"it's $5"), "'it'\\''s $5'");
        assert_eq!(listed(b""), "''");
    }

    #[test]
    fn nothing_that_drives_a_terminal_passes() {
        let hostile = b"x\x1b]0;owned\x07\ny\xff\xc2\x9b31m\xe2\x80\xae";
        for text in [quoted(hostile), listed(hostile), escaped(hostile)] {
            assert!(!text.contains(|c: char| c.is_control() || c == '\u{202e}'), "{text:?}");
        }
        assert_eq!(listed(b"a\nb"), "'a'$'\\n''b'");
        assert_eq!(listed(b"\xff"), "''$'\\377'");
    }

    /// bash reads a quoted name back.
    #[test]
    fn a_shell_reads_the_name_back() {
        for name in [
            &b"a\x1b[31mb\n"[..],
            b"it's \"$x\" `y` \\",
            b"\xfe\xff",
            b"~",
            b"a'\n'b",
            "é\u{202e}".as_bytes(),
        ] {
            let out = std::process::Command::new("bash")
                .args(["-c", &format!("printf %s {}", listed(name))])
                .output()
                .expect("bash");
            assert_eq!(out.stdout, name, "{}", listed(name));
        }
    }

    /// GNU ls is the judge of the form.
    #[test]
    fn quotes_as_ls_does() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for name in [
            &b"plain"[..],
            b"a b",
            b"it's",
            b"it's $5",
            b"a\x1b[31mb\n",
            b"\xfe\xff",
            b"x\x07\xff\ny'z",
            b"~a",
            b"a#b",
            b"{a",
        ] {
            std::fs::write(dir.path().join(OsStr::from_bytes(name)), "").expect("write");
            let out = std::process::Command::new("ls")
                .args(["--quoting-style=shell-escape", "-1"])
                .env("LC_ALL", "C.UTF-8")
                .current_dir(dir.path())
                .output()
                .expect("ls");
            assert_eq!(listed(name) + "\n", String::from_utf8_lossy(&out.stdout));
            std::fs::remove_file(dir.path().join(OsStr::from_bytes(name))).expect("rm");
        }
    }

    #[test]
    fn json_keeps_the_bytes() {
        let name = JsonName::new(b"a\xff");
        assert_eq!(name.name_bytes.as_deref(), Some("61ff"));
        assert_eq!(JsonName::new(b"a").name_bytes, None);
    }
}
