//! Paths that come from an archive, or go into one.

use lanefs::Dir;
use std::ffi::OsStr;

/// Returns `path` without empty and `.` components; `None` if it holds `..` or NUL, which no member
/// may.
pub(crate) fn clean(path: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(path.len());
    for part in path.split(|b| *b == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return None,
            part if part.contains(&0) => return None,
            part => {
                if !out.is_empty() {
                    out.push(b'/');
                }
                out.extend(part);
            }
        }
    }
    Some(out)
}

/// Returns a path's directory and last name.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// Returns a path of a tree as messages name it.
pub(crate) fn shown(path: &[u8]) -> &[u8] {
    if path.is_empty() { b"." } else { path }
}

/// Returns whether this is the directory of the volume itself for what a check finds.
pub(crate) fn is_lost_found(dir: &Dir, name: &OsStr) -> bool {
    const ROOT: u32 = 2;
    dir.metadata().ino() == ROOT && name == "lost+found"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside() {
        for (path, cleaned) in [
            ("./a//b/", Some("a/b")),
            ("/etc", Some("etc")),
            ("./", Some("")),
            ("a/../b", None),
            ("..", None),
            ("..a/b..", Some("..a/b..")),
        ] {
            assert_eq!(clean(path.as_bytes()), cleaned.map(|c| c.as_bytes().to_vec()), "{path}");
        }
        assert_eq!(clean(b"a\0b"), None);
    }
}
