//! What an argument names: a path inside a volume (`VOLUME:/path`), a path on this host, or a
//! standard stream (`-`).
//!
//! A volume's own name may hold `:/`, so the longest prefix that is a file or a block device wins;
//! where none is, the last `:/` splits, so that the message names what the user most likely meant.
//! The URL of an export of a server ends at its first `:/` behind the scheme: in a URL `%3A` is a
//! `:`. A path of the host that exists as written is a path of the host.

use crate::failure::{Failure, Res};
use crate::quote::quoted;
use lanefs_archive::content::{self, Content};
use lanefs_device::VolumeUrl;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// A volume's name: a file, a block device, or a URL such as `mem:1G`.
pub(crate) type VolumeName = OsString;

/// A parsed argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Location {
    /// `-`
    Stdio,
    /// A path outside of any volume.
    Host(PathBuf),
    /// A path inside a volume; the path starts with `/`.
    Volume { volume: VolumeName, path: PathBuf },
}

impl Location {
    /// Reads an argument that may name any of the three.
    pub(crate) fn parse(arg: &OsStr) -> Self {
        if arg == "-" {
            return Self::Stdio;
        }
        let bytes = arg.as_bytes();
        let splits: Vec<usize> = (1..bytes.len().saturating_sub(1))
            .filter(|&at| &bytes[at..at + 2] == b":/" && !is_scheme(&bytes[..at], &bytes[at..]))
            .collect();
        let Some(&last) = splits.last() else { return Self::Host(arg.into()) };
        if Path::new(arg).symlink_metadata().is_ok() {
            return Self::Host(arg.into());
        }
        let at = match splits.first() {
            Some(&first) if VolumeUrl::names_server(arg) || VolumeUrl::is_stacked(arg) => {
                // In a stack, the first behind the last file or folder that it names.
                splits.iter().find(|&&at| is_complete(&bytes[..at])).copied().unwrap_or(first)
            }
            _ => splits.iter().rev().find(|&&at| holds_volume(&bytes[..at])).copied().unwrap_or(last),
        };
        Self::Volume {
            volume: OsStr::from_bytes(&bytes[..at]).into(),
            path: PathBuf::from(OsStr::from_bytes(&bytes[at + 1..])),
        }
    }

    /// Reads an argument where only a volume makes sense: a bare volume is its root.
    pub(crate) fn parse_inside(arg: &OsStr) -> Self {
        match Self::parse(arg) {
            Self::Host(path) => Self::Volume { volume: path.into(), path: "/".into() },
            other => other,
        }
    }

    /// Returns the volume and the path in it. `arg` is the argument, and `form` what has to follow
    /// the volume in it, for the message.
    pub(crate) fn in_volume(self, arg: &OsStr, form: &str) -> Res<(VolumeName, PathBuf)> {
        match self {
            Self::Volume { volume, path } => Ok((volume, path)),
            _ => Err(not_inside(arg, form)),
        }
    }
}

/// Says that an argument names no path inside a volume.
pub(crate) fn not_inside(arg: &OsStr, form: &str) -> Failure {
    Failure::new(format!("{} is not inside a volume: write VOLUME:{form}", quoted(arg.as_bytes())))
}

/// Returns the volume that an argument names as a whole: `x.img`, or `x.img:/` just as well.
pub(crate) fn whole_volume(arg: &OsStr) -> VolumeName {
    match Location::parse(arg) {
        Location::Volume { volume, path } if path.as_os_str().as_bytes().iter().all(|b| *b == b'/') => volume,
        _ => arg.into(),
    }
}

/// Returns what `VOLUME:name` was most likely meant to be, `VOLUME:/name`. `None` for what exists
/// as written, and where nothing before a colon is an ext4 volume.
pub(crate) fn forgotten_slash(arg: &OsStr) -> Option<OsString> {
    let bytes = arg.as_bytes();
    if Path::new(arg).symlink_metadata().is_ok() {
        return None;
    }
    let colons = bytes.iter().enumerate().filter(|(at, b)| **b == b':' && *at > 0).map(|(at, _)| at);
    let at = colons.into_iter().find(|at| {
        let name = &bytes[..*at];
        let name = name.strip_prefix(b"pmem:").unwrap_or(name);
        content::of_path(Path::new(OsStr::from_bytes(name))) == Some(Content::Ext)
    })?;
    (bytes.get(at + 1) != Some(&b'/'))
        .then(|| OsString::from_vec([&bytes[..at], b":/", &bytes[at + 1..]].concat()))
}

/// Returns whether the `:/` behind `before` belongs to a scheme: that of `nbd://host/export`,
/// `rbd:/` and `pmem:/dev/shm/v` separates no path, also in `overlay:base=nbd://host/export`.
fn is_scheme(before: &[u8], from: &[u8]) -> bool {
    let scheme = match VolumeUrl::is_stacked(OsStr::from_bytes(before)) || before == b"cached" {
        true => before.rsplit(|b| matches!(b, b':' | b'=')).next().unwrap_or_default(),
        false => before,
    };
    let is_server = || matches!(scheme, b"nbd" | b"nbds" | b"nbd+unix" | b"nbds+unix");
    matches!(scheme, b"pmem" | b"rbd" | b"cached") || from.starts_with(b"://") && is_server()
}

/// Returns whether a name ends where the name of a volume may end: that of a stack has all that its
/// devices need.
fn is_complete(name: &[u8]) -> bool {
    let name = OsStr::from_bytes(name);
    !VolumeUrl::is_stacked(name) || VolumeUrl::parse(name).is_ok()
}

/// Returns whether the name leads to a file or device, or a part of one.
fn holds_volume(name: &[u8]) -> bool {
    let path = VolumeUrl::parse(OsStr::from_bytes(name)).ok().and_then(|url| url.path());
    path.and_then(|path| path.metadata().ok()).is_some_and(|m| m.is_file() || m.file_type().is_block_device())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inside(volume: impl AsRef<OsStr>, path: &str) -> Location {
        Location::Volume { volume: volume.as_ref().into(), path: path.into() }
    }

    fn parse(arg: impl AsRef<OsStr>) -> Location {
        Location::parse(arg.as_ref())
    }

    #[test]
    fn splits_at_colon_slash() {
        assert_eq!(parse("x.img:/"), inside("x.img", "/"));
        assert_eq!(parse("x.img:/a/b"), inside("x.img", "/a/b"));
        assert_eq!(parse("mem:64M:/a"), inside("mem:64M", "/a"));
        assert_eq!(parse("nbd://host/e:/a"), inside("nbd://host/e", "/a"));
        assert_eq!(parse("nbd://host:10/e@2:/a:/b"), inside("nbd://host:10/e@2", "/a:/b"));
        assert_eq!(parse("nbd+unix:///e?socket=/s:/a"), inside("nbd+unix:///e?socket=/s", "/a"));
        assert_eq!(parse("nbds+unix:///e?socket=/s@1:/"), inside("nbds+unix:///e?socket=/s@1", "/"));
        assert_eq!(parse("rbd:p/i@s?conf=/c:/a:/b"), inside("rbd:p/i@s?conf=/c", "/a:/b"));
        assert_eq!(parse("rbd:p/n/i:/"), inside("rbd:p/n/i", "/"));
        for stack in [
            "overlay:base=nbd://host:10/e@2,top=/t",
            "overlay:base=/d/v.img@root,top=t",
            "overlay:base=cached:nbd+unix:///e?socket=/s,dir=/c,top=/t",
            "overlay:base=rbd:p/i@s?conf=/c,top=/t",
            "overlay:base=pmem:/d/v,top=/t",
            "cached:/d/v.img,dir=/c",
            "cached:nbds://h/e,dir=/c,size=1G",
        ] {
            assert_eq!(parse(format!("{stack}:/a:/b")), inside(stack, "/a:/b"));
            assert_eq!(parse(stack), Location::Host(stack.into()));
        }
        assert_eq!(parse("rbd:/p/i"), Location::Host("rbd:/p/i".into()));
        assert_eq!(parse("nbd://[::1]/e"), Location::Host("nbd://[::1]/e".into()));
        assert_eq!(whole_volume("nbd://host/:/".as_ref()), "nbd://host/");
        assert_eq!(parse("pmem:/dev/shm/v:/a"), inside("pmem:/dev/shm/v", "/a"));
        assert_eq!(parse("pmem:v:/a"), inside("pmem:v", "/a"));
        assert_eq!(whole_volume("pmem:/dev/shm/v".as_ref()), "pmem:/dev/shm/v");
        assert_eq!(parse("plain"), Location::Host("plain".into()));
        assert_eq!(parse("C:relative"), Location::Host("C:relative".into()));
        assert_eq!(parse(":/x"), Location::Host(":/x".into()));
        assert_eq!(parse("-"), Location::Stdio);
    }

    #[test]
    fn the_longest_file_wins_and_else_the_last_split() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let odd = dir.path().join("a:");
        std::fs::create_dir(&odd).expect("mkdir");
        let volume = odd.join("v.img");
        std::fs::write(&volume, "").expect("write");
        let arg = |tail: &str| {
            let mut arg = volume.clone().into_os_string();
            arg.push(tail);
            arg
        };
        assert_eq!(parse(arg(":/x:/y")), inside(&volume, "/x:/y"));
        let part = |tail: &str| parse(arg(&format!("@root{tail}")));
        assert_eq!(part(":/x/c:/y"), inside(arg("@root"), "/x/c:/y"));
        assert_eq!(part(":/"), inside(arg("@root"), "/"));
        let mapped = |name: OsString| ["pmem:".as_ref(), &*name].into_iter().collect::<OsString>();
        assert_eq!(parse(mapped(arg(":/x:/y"))), inside(mapped(volume.clone().into()), "/x:/y"));
        assert_eq!(parse(&volume), Location::Host(volume.clone()));
        assert_eq!(parse("no:/such:/file"), inside("no:/such", "/file"));
    }

    #[test]
    fn a_whole_volume_may_end_in_its_root() {
        assert_eq!(whole_volume("x.img:/".as_ref()), "x.img");
        assert_eq!(whole_volume("x.img".as_ref()), "x.img");
    }
}
