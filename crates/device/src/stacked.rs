//! Names of devices over devices: `overlay:base=URL,top=FILE` and `cached:URL,dir=DIR,size=10G`.
//!
//! The name of the device below is any name of a volume, so a stack has any order. What belongs to
//! a device stands behind the name of the device below, and is read from the end: a comma in that
//! name needs no escape.

use crate::medium::Medium;
use crate::os_name::OsStrExt;
use crate::parameters::parse_size;
use crate::scheme::{CACHED, OVERLAY, is_stacked};
use std::ffi::OsStr;
use std::path::Path;

/// The devices that a name may stack.
const DEEPEST: usize = 8;
/// The bound of a cache that names none.
const CACHE_SIZE: u64 = 10 << 30;

/// Parses the name of a device over another one. Returns with it the name of the medium under all
/// of them.
///
/// # Errors
/// The second half of a message for users.
pub(crate) fn parse(name: &OsStr) -> Result<(Medium<'_>, &OsStr), String> {
    let medium = parse_one(name)?;
    let (mut depth, mut below) = (1, below_of(&medium));
    while let Some(name) = below {
        if !is_stacked(name.as_bytes()) {
            return Ok((medium, name));
        }
        if depth == DEEPEST {
            return Err(format!("stacks more than {DEEPEST} devices"));
        }
        depth += 1;
        below = below_of(&parse_one(name)?);
    }
    Ok((medium, name))
}

fn below_of<'a>(medium: &Medium<'a>) -> Option<&'a OsStr> {
    match medium {
        Medium::Overlay { base, .. } => Some(base),
        Medium::Cached { below, .. } => Some(below),
        _ => None,
    }
}

/// Parses the name of the uppermost device alone.
pub(crate) fn parse_one(name: &OsStr) -> Result<Medium<'_>, String> {
    let bytes = name.as_bytes();
    if let Some(rest) = bytes.strip_prefix(OVERLAY) {
        let bad = || "needs a base and a file for what is written: overlay:base=URL,top=FILE".to_owned();
        let rest = rest.strip_prefix(b"base=").ok_or_else(bad)?;
        let at = last(rest, b",top=").ok_or_else(bad)?;
        let (base, top) = (&rest[..at], &rest[at + b",top=".len()..]);
        if base.is_empty() || top.is_empty() {
            return Err(bad());
        }
        return Ok(Medium::Overlay { base: OsStr::from_bytes(base), top: Path::new(OsStr::from_bytes(top)) });
    }
    let mut rest = bytes.strip_prefix(CACHED).unwrap_or_default();
    let (mut dir, mut size) = (None, None);
    // From the end on. What is there twice, or is no size in front of a folder, belongs to the
    // device below.
    loop {
        match (last(rest, b",dir="), last(rest, b",size=")) {
            (Some(at), other) if other.is_none_or(|other| other < at) => {
                if dir.is_some() {
                    break;
                }
                dir = Some(&rest[at + b",dir=".len()..]);
                rest = &rest[..at];
            }
            (_, Some(at)) if size.is_none() => {
                let value = parse_size(&rest[at + b",size=".len()..]);
                if value.is_none() && dir.is_some() {
                    break;
                }
                let value = value.filter(|size| *size >= 1 << 20);
                size = Some(value.ok_or("needs a size of 1M or more: size=10G")?);
                rest = &rest[..at];
            }
            _ => break,
        }
    }
    match dir.filter(|dir| !dir.is_empty() && !rest.is_empty()) {
        Some(dir) => Ok(Medium::Cached {
            below: OsStr::from_bytes(rest),
            dir: Path::new(OsStr::from_bytes(dir)),
            size: size.unwrap_or(CACHE_SIZE),
        }),
        None => Err("needs a volume and a folder: cached:URL,dir=DIR,size=10G".into()),
    }
}

fn last(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).rposition(|window| window == wanted)
}

/// Returns the devices that a name stacks, the uppermost first; the last is the name of a medium.
///
/// # Examples
/// ```
/// use lanefs_device::layers;
///
/// let name = "overlay:base=cached:nbd://host/disk,dir=/cache,top=mine.top";
/// let all: Vec<_> = layers(name.as_ref()).collect();
/// assert_eq!(all[1], "cached:nbd://host/disk,dir=/cache");
/// assert_eq!(all[2], "nbd://host/disk");
/// ```
pub fn layers(name: &OsStr) -> impl Iterator<Item = &OsStr> {
    std::iter::successors(Some(name), |name| next(name)).take(DEEPEST + 1)
}

/// Returns the name of the device below.
fn next(name: &OsStr) -> Option<&OsStr> {
    let medium = if is_stacked(name.as_bytes()) { parse_one(name).ok()? } else { return None };
    below_of(&medium)
}

/// Returns the name of the medium under all devices that a name stacks.
pub fn innermost(name: &OsStr) -> &OsStr {
    layers(name).last().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let parse = |name: &'static str| match crate::VolumeUrl::parse(name.as_ref()) {
            Ok(url) => Ok(url.medium),
            Err(e) => Err(e.to_string()),
        };
        let overlay = |base: &'static str, top: &'static str| Medium::Overlay {
            base: base.as_ref(),
            top: top.as_ref(),
        };
        let cached = |below: &'static str, dir: &'static str, size| Medium::Cached {
            below: below.as_ref(),
            dir: dir.as_ref(),
            size,
        };
        for (name, medium) in [
            ("overlay:base=a@2,top=b", overlay("a@2", "b")),
            ("overlay:base=a,b,top=c,d", overlay("a,b", "c,d")),
            ("overlay:base=overlay:base=x,top=y,top=z", overlay("overlay:base=x,top=y", "z")),
            ("cached:nbd://h/e,dir=/c", cached("nbd://h/e", "/c", 10 << 30)),
            ("cached:nbd://h/e,size=2G,dir=/c", cached("nbd://h/e", "/c", 2 << 30)),
            ("cached:a,b,dir=/c,d,size=1M", cached("a,b", "/c,d", 1 << 20)),
            ("cached:cached:a,dir=b,dir=c", cached("cached:a,dir=b", "c", 10 << 30)),
            ("cached:cached:a,size=2G,dir=b,dir=c", cached("cached:a,size=2G,dir=b", "c", 10 << 30)),
            ("cached:cached:a,dir=b,size=2G,dir=c,size=3G", cached("cached:a,dir=b,size=2G", "c", 3 << 30)),
            ("cached:a,size=x,dir=c", cached("a,size=x", "c", 10 << 30)),
            ("cached:a,size=1G,size=2G,dir=c", cached("a,size=1G", "c", 2 << 30)),
        ] {
            assert_eq!(parse(name), Ok(medium), "{name}");
        }
        for (name, why) in [
            ("overlay:", "a base and a file"),
            ("overlay:a,top=b", "a base and a file"),
            ("overlay:base=a", "a base and a file"),
            ("overlay:base=,top=b", "a base and a file"),
            ("overlay:base=a,top=", "a base and a file"),
            ("overlay:base=mem:x,top=b", "mem:x: needs a size"),
            ("cached:a", "a volume and a folder"),
            ("cached:,dir=a", "a volume and a folder"),
            ("cached:a,dir=b,size=1", "1M or more"),
        ] {
            let said = parse(name).unwrap_err();
            assert!(said.contains(why), "{name}: {said}");
        }
        let deep = "overlay:base=".repeat(5000) + "x" + &",top=y".repeat(5000);
        assert!(super::parse(deep.as_ref()).unwrap_err().contains("more than 8"));
    }

    #[test]
    fn the_medium_below() {
        assert_eq!(innermost("overlay:base=cached:a,dir=b,top=c".as_ref()), "a");
        assert_eq!(innermost("a".as_ref()), "a");
    }
}
