//! A file as `--json` gives it: the same fields from ls, tree and stat.

use crate::mode;
use crate::quote::JsonName;
use crate::side::{Meta, Side};
use serde::Serialize;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// One file.
#[derive(Debug, Serialize)]
pub(crate) struct Entry {
    /// The path inside the volume.
    path: String,
    #[serde(flatten)]
    name: JsonName,
    inode: u64,
    #[serde(rename = "type")]
    kind: &'static str,
    /// Permission bits, octal.
    mode: String,
    links: u64,
    uid: u32,
    gid: u32,
    /// Bytes.
    size: u64,
    /// Of 512 bytes.
    blocks: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<(u32, u32)>,
    accessed: String,
    modified: String,
    changed: String,
    /// i_version.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    born: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

impl Entry {
    pub(crate) fn new(side: &dyn Side, path: &Path, meta: &Meta) -> Self {
        let target = meta.is_symlink().then(|| side.read_link(path).ok()).flatten();
        Self {
            path: path.to_string_lossy().into_owned(),
            name: JsonName::new(path.file_name().map_or(b"/".as_slice(), |n| n.as_bytes())),
            inode: meta.ino,
            kind: mode::kind(meta.mode),
            mode: format!("{:04o}", meta.mode & 0o7777),
            links: meta.nlink,
            uid: meta.uid,
            gid: meta.gid,
            size: meta.size,
            blocks: meta.blocks,
            device: meta.is_device().then_some(meta.rdev),
            accessed: meta.atime.iso(),
            modified: meta.mtime.iso(),
            changed: meta.ctime.iso(),
            version: meta.version,
            born: meta.btime.map(|t| t.iso()),
            target: target.map(|t| t.to_string_lossy().into_owned()),
        }
    }
}
