//! Members into a stream.

use super::header::{self, NewHeader, OCTAL_8, OCTAL_12};
use super::{RECORD, TarError, pax, sparse};
use crate::acl_text;
use crate::member::{Kind, Member};
use lanefs_format::acl::Acl;
use std::io::Write;

/// Archives are a multiple of this: twenty records.
const BLOCKING: u64 = 20 * RECORD as u64;

/// Writes an archive front to back.
#[derive(Debug)]
pub(crate) struct TarWriter<W> {
    stream: W,
    at: u64,
    /// Bytes of data that the current member still wants.
    left: u64,
}

impl<W: Write> TarWriter<W> {
    /// Returns a writer at the start of an archive.
    pub(crate) fn new(stream: W) -> Self {
        Self { stream, at: 0, left: 0 }
    }

    /// Begins a member; the data of a file's ranges must follow by [`data`](Self::data).
    /// `false`, and nothing written, for a socket: tar has none.
    pub(crate) fn member(&mut self, member: &Member) -> Result<bool, TarError> {
        self.finish_member()?;
        let (typeflag, link, device) = match &member.kind {
            Kind::File { .. } => (b'0', &[][..], (0, 0)),
            Kind::Dir => (b'5', &[][..], (0, 0)),
            Kind::HardLink(target) => (b'1', target.as_slice(), (0, 0)),
            Kind::Symlink(target) => (b'2', target.as_slice(), (0, 0)),
            Kind::CharDevice(major, minor) => (b'3', &[][..], (*major, *minor)),
            Kind::BlockDevice(major, minor) => (b'4', &[][..], (*major, *minor)),
            Kind::Fifo => (b'6', &[][..], (0, 0)),
            Kind::Socket => return Ok(false),
        };
        let mut path = if member.path.is_empty() { b".".to_vec() } else { member.path.clone() };
        if member.kind == Kind::Dir {
            path.push(b'/');
        }
        let mut records = Vec::new();
        let content = MemberContent::new(member, &path, &mut records);
        let (prefix, name) = match split(&content.path) {
            Some(parts) => parts,
            None => {
                pax::push(&mut records, b"path", &content.path);
                (&[][..], &content.path[..header::NAME.len()])
            }
        };
        let head = NewHeader {
            prefix,
            name,
            mode: member.mode,
            uid: member.uid,
            gid: member.gid,
            size: content.size,
            mtime: member.mtime.sec,
            typeflag,
            link,
            device,
        };
        push_large(&mut records, &head, member.mtime.nsec);
        // A hard link has the attributes of the file that it names.
        if !matches!(member.kind, Kind::HardLink(_)) {
            member.xattrs.iter().for_each(|(name, value)| push_xattr(&mut records, name, value));
        }
        self.extended(&path, &records, &head)?;
        self.put(&head.encode())?;
        self.left = content.size;
        self.data(&content.map)?;
        Ok(true)
    }

    /// Writes the extended header of the member at `path`, if it has any records.
    fn extended(&mut self, path: &[u8], records: &[u8], of: &NewHeader<'_>) -> Result<(), TarError> {
        if records.is_empty() {
            return Ok(());
        }
        let path = beside(path, b"PaxHeaders");
        let name = &path[..path.len().min(header::NAME.len())];
        let size = records.len() as u64;
        let head = NewHeader { prefix: b"", name, mode: 0o644, size, typeflag: b'x', link: b"", ..*of };
        self.put(&head.encode())?;
        self.put(records)?;
        self.pad()
    }

    /// Writes the next bytes of the current file's ranges, one range after the other.
    pub(crate) fn data(&mut self, bytes: &[u8]) -> Result<(), TarError> {
        self.put(bytes)?;
        match self.left.checked_sub(bytes.len() as u64) {
            Some(left) => self.left = left,
            None => return Err(TarError::Broken { at: self.at, rule: "more data than the member's size" }),
        }
        Ok(())
    }

    fn finish_member(&mut self) -> Result<(), TarError> {
        if self.left != 0 {
            return Err(TarError::Broken { at: self.at, rule: "less data than the member's size" });
        }
        self.pad()
    }

    /// Ends the archive and gives the stream back, flushed.
    pub(crate) fn finish(mut self) -> Result<W, TarError> {
        self.finish_member()?;
        let end = (self.at + 2 * RECORD as u64).next_multiple_of(BLOCKING);
        while self.at < end {
            self.put(&[0; RECORD])?;
        }
        self.stream.flush()?;
        Ok(self.stream)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), TarError> {
        self.stream.write_all(bytes)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn pad(&mut self) -> Result<(), TarError> {
        let n = self.at.next_multiple_of(RECORD as u64) - self.at;
        self.put(&[0; RECORD][..n as usize])
    }
}

/// The bytes behind a member's header, and the path in it.
struct MemberContent {
    path: Vec<u8>,
    /// Length of the map and of the ranges of data.
    size: u64,
    /// The map of a sparse file, as GNU tar's format 1.0 has it; empty for all others.
    map: Vec<u8>,
}

impl MemberContent {
    /// Returns the content of the member at `path`, and adds the records of a sparse file.
    fn new(member: &Member, path: &[u8], records: &mut Vec<u8>) -> Self {
        let Kind::File { size: real, data } = &member.kind else {
            return Self { path: path.to_vec(), size: 0, map: Vec::new() };
        };
        let size = data.iter().map(|(_, len)| len).sum();
        if size == *real {
            return Self { path: path.to_vec(), size, map: Vec::new() };
        }
        // The map's end is the file's, so that readers that only know the map get the size right.
        let mut ranges = data.clone();
        if ranges.last().is_none_or(|(offset, len)| offset + len != *real) {
            ranges.push((*real, 0));
        }
        let map = sparse::encode(&ranges);
        pax::push(records, b"GNU.sparse.major", b"1");
        pax::push(records, b"GNU.sparse.minor", b"0");
        pax::push(records, b"GNU.sparse.name", path);
        pax::push(records, b"GNU.sparse.realsize", real.to_string().as_bytes());
        Self { path: beside(path, b"GNUSparseFile.0"), size: size + map.len() as u64, map }
    }
}

/// Adds a record for each value that the fields of `head` cannot hold.
fn push_large(records: &mut Vec<u8>, head: &NewHeader<'_>, nsec: u32) {
    if head.link.len() > header::NAME.len() {
        pax::push(records, b"linkpath", head.link);
    }
    if head.size > OCTAL_12 {
        pax::push(records, b"size", head.size.to_string().as_bytes());
    }
    for (key, id) in [(&b"uid"[..], head.uid), (b"gid", head.gid)] {
        if u64::from(id) > OCTAL_8 {
            pax::push(records, key, id.to_string().as_bytes());
        }
    }
    let in_header = u64::try_from(head.mtime).is_ok_and(|sec| sec <= OCTAL_12);
    if nsec != 0 || !in_header {
        pax::push(records, b"mtime", pax::format_time(head.mtime, nsec).as_bytes());
    }
    let (major, minor) = head.device;
    if u64::from(major) > OCTAL_8 || u64::from(minor) > OCTAL_8 {
        pax::push(records, b"SCHILY.devmajor", major.to_string().as_bytes());
        pax::push(records, b"SCHILY.devminor", minor.to_string().as_bytes());
    }
}

/// Adds the record of an attribute: ACLs as text, because that is what other programs read;
/// everything else as it is.
fn push_xattr(records: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    let acl_key: &[u8] = match name {
        b"system.posix_acl_access" => b"SCHILY.acl.access",
        b"system.posix_acl_default" => b"SCHILY.acl.default",
        _ => b"",
    };
    match Acl::from_xattr(value) {
        Ok(acl) if !acl_key.is_empty() => pax::push(records, acl_key, acl_text::format(&acl).as_bytes()),
        _ => {
            // A key ends at its first '=': names are written as GNU tar writes them.
            let mut key = b"SCHILY.xattr.".to_vec();
            for byte in name {
                match byte {
                    b'=' => key.extend(b"%3D"),
                    b'%' => key.extend(b"%25"),
                    _ => key.push(*byte),
                }
            }
            pax::push(records, &key, value);
        }
    }
}

/// Returns `a/b/DIR/c` for `a/b/c`.
fn beside(path: &[u8], dir: &[u8]) -> Vec<u8> {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    match path.iter().rposition(|b| *b == b'/') {
        Some(at) => [&path[..=at], dir, b"/", &path[at + 1..]].concat(),
        None => [dir, b"/", path].concat(),
    }
}

/// Returns prefix and name as ustar splits a path; `None` if it does not fit.
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    if path.len() <= header::NAME.len() {
        return Some((&[], path));
    }
    let body = path.strip_suffix(b"/").unwrap_or(path);
    let slash = |at: &usize| body[*at] == b'/' && *at <= header::PREFIX.len();
    let at = (1..body.len()).find(|at| slash(at) && path.len() - at - 1 <= header::NAME.len())?;
    Some((&path[..at], &path[at + 1..]))
}
