//! Reads the members of a tar stream.
//!
//! Hazard: the archive is not trusted. Headers, names, attributes and maps of sparse files before a
//! member are bounded; sizes are checked before they are added. The path of a member is given as
//! the archive has it: the caller refuses what leads elsewhere.

use super::header::{Header, sparse_entries};
use super::sparse::{self, MapParser};
use super::{RECORD, TarError, pax};
use crate::acl_text;
use crate::member::{Kind, Member, Ranges, Xattrs};
use lanefs_format::Timestamp;
use std::collections::BTreeMap;
use std::io::{BufRead, ErrorKind};

/// Bytes of the pax headers and long names before one member that are accepted; attributes of
/// 64 KiB are among them.
const EXTENDED_MAX: u64 = 16 << 20;
/// Bytes that global headers may add to every member after them.
const GLOBAL_MAX: usize = 64 << 10;
/// Bytes of all names of a file's attributes, each with its NUL: what Linux can list
/// (XATTR_LIST_MAX).
const XATTR_NAMES_MAX: usize = 64 << 10;

const TRUNCATED: &str = "the archive ends inside a member";

/// Reads an archive front to back.
#[derive(Debug)]
pub(crate) struct TarReader<R> {
    stream: R,
    /// Bytes consumed.
    at: u64,
    /// Bytes of the current member's data not yet read, without padding.
    left: u64,
    padding: u64,
    /// Records of the last global header.
    global: Extended,
}

/// What pax records and GNU's long names say of the next member.
#[derive(Debug, Clone, Default)]
struct Extended {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u32>,
    gid: Option<u32>,
    mtime: Option<Timestamp>,
    device: (Option<u32>, Option<u32>),
    /// Sorted, so that one of several thousand is found and replaced at once.
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Bytes of the names of `xattrs`.
    xattr_names: usize,
    sparse: Sparse,
}

#[derive(Debug, Clone, Default)]
struct Sparse {
    name: Option<Vec<u8>>,
    version: (Option<u64>, Option<u64>),
    size: Option<u64>,
    numbers: Vec<u64>,
}

impl<R: BufRead> TarReader<R> {
    /// Returns a reader at the start of an archive.
    pub(crate) fn new(stream: R) -> Self {
        Self { stream, at: 0, left: 0, padding: 0, global: Extended::default() }
    }

    /// Returns the next member, `None` at the end. Skips the rest of the last member's data.
    ///
    /// The path is as the archive has it.
    pub(crate) fn next(&mut self) -> Result<Option<Member>, TarError> {
        self.skip()?;
        let mut extended = self.global.clone();
        // Bytes of extended headers that may still come before the member.
        let mut budget = EXTENDED_MAX;
        loop {
            let start = self.at;
            let broken = |rule| TarError::Broken { at: start, rule };
            let Some(record) = self.record_or_end()? else { return Ok(None) };
            let header = Header(record);
            if header.is_end() {
                return Ok(None);
            }
            if !header.checksum_is_good() {
                return Err(broken(if start == 0 {
                    "this is not a tar archive"
                } else {
                    "a header with a wrong checksum"
                }));
            }
            let size = header
                .size()
                .and_then(|n| u64::try_from(n).ok())
                .ok_or(broken("a size that is no number"))?;
            match header.typeflag() {
                b'L' => extended.path = Some(self.text(start, size, &mut budget)?),
                b'K' => extended.link = Some(self.text(start, size, &mut budget)?),
                b'x' | b'X' => {
                    extended.read(&self.extended(start, size, &mut budget)?).map_err(broken)?;
                }
                b'g' => {
                    let records = self.extended(start, size, &mut budget)?;
                    self.global.read(&records).map_err(broken)?;
                    if self.global.memory() > GLOBAL_MAX {
                        return Err(broken("global headers that leave more than 64 KiB for each member"));
                    }
                    extended = self.global.clone();
                }
                // A volume's label has no file.
                b'V' => self.start_data(start, size)?,
                _ => return self.member(start, &header, size, extended).map(Some),
            }
            self.skip()?;
        }
    }

    /// Passes on the next bytes of the current member's data, holes left out: at most `most`, and
    /// none at its end. Returns how many.
    pub(super) fn take(&mut self, most: usize, mut to: impl FnMut(&[u8])) -> Result<usize, TarError> {
        let most = most.min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if most == 0 {
            return Ok(0);
        }
        let there = loop {
            match self.stream.fill_buf() {
                // Asked for again, because a loop cannot lend what it may not return.
                Ok(_) => break self.stream.fill_buf()?,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        };
        let n = there.len().min(most);
        if n == 0 {
            return Err(TarError::Broken { at: self.at, rule: TRUNCATED });
        }
        to(&there[..n]);
        self.stream.consume(n);
        self.at += n as u64;
        self.left -= n as u64;
        Ok(n)
    }

    /// Returns the offset in the archive of what is read next.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Passes over what is left of the current member's data without reading it: `seek` moves the
    /// stream by so many bytes.
    pub(crate) fn pass_over(
        &mut self,
        seek: impl FnOnce(&mut R, u64) -> std::io::Result<()>,
    ) -> Result<(), TarError> {
        let by = std::mem::take(&mut self.left).saturating_add(std::mem::take(&mut self.padding));
        self.at = self.at.saturating_add(by);
        Ok(seek(&mut self.stream, by)?)
    }

    /// Checks, after data was passed over, that the archive has `len` bytes or more up to here.
    pub(crate) fn check_end(&self, len: u64) -> Result<(), TarError> {
        if self.at > len { Err(TarError::Broken { at: len, rule: TRUNCATED }) } else { Ok(()) }
    }

    /// Returns the next `len` bytes of the current member's data.
    pub(crate) fn read_exact(&mut self, len: usize) -> Result<Vec<u8>, TarError> {
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let (left, at) = (len - bytes.len(), self.at);
            if self.take(left, |piece| bytes.extend_from_slice(piece))? == 0 {
                return Err(TarError::Broken { at, rule: "a member with less data than it should have" });
            }
        }
        Ok(bytes)
    }

    fn start_data(&mut self, start: u64, size: u64) -> Result<(), TarError> {
        // Half of what 64 bits hold, so that no sum with another size or a padding overflows.
        if i64::try_from(size).is_err() {
            return Err(TarError::Broken { at: start, rule: "a size of more than 63 bits" });
        }
        self.left = size;
        self.padding = size.next_multiple_of(RECORD as u64) - size;
        Ok(())
    }

    fn skip(&mut self) -> Result<(), TarError> {
        self.left = self.left.saturating_add(self.padding);
        self.padding = 0;
        while self.take(usize::MAX, |_| {})? != 0 {}
        Ok(())
    }

    /// Reads a whole record. Returns `None` if the stream ends before it.
    fn record_or_end(&mut self) -> Result<Option<[u8; RECORD]>, TarError> {
        let mut record = [0; RECORD];
        let mut filled = 0;
        while filled < RECORD {
            match self.stream.read(&mut record[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(TarError::Broken { at: self.at, rule: TRUNCATED }),
                Ok(n) => {
                    filled += n;
                    self.at += n as u64;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(Some(record))
    }

    fn record(&mut self) -> Result<[u8; RECORD], TarError> {
        self.record_or_end()?.ok_or(TarError::Broken { at: self.at, rule: TRUNCATED })
    }

    /// Reads all data of an extended header. The result grows as bytes arrive, so that a lie about
    /// the size costs nothing.
    fn extended(&mut self, start: u64, size: u64, budget: &mut u64) -> Result<Vec<u8>, TarError> {
        let rule = "extended headers of more than 16 MiB for one member";
        *budget = budget.checked_sub(size).ok_or(TarError::Broken { at: start, rule })?;
        self.start_data(start, size)?;
        let mut bytes = Vec::new();
        while self.take(usize::MAX, |piece| bytes.extend_from_slice(piece))? != 0 {}
        Ok(bytes)
    }

    fn text(&mut self, start: u64, size: u64, budget: &mut u64) -> Result<Vec<u8>, TarError> {
        let mut bytes = self.extended(start, size, budget)?;
        bytes.truncate(bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len()));
        bytes.shrink_to_fit();
        Ok(bytes)
    }

    fn member(
        &mut self,
        start: u64,
        header: &Header,
        size: u64,
        extended: Extended,
    ) -> Result<Member, TarError> {
        let broken = |rule| TarError::Broken { at: start, rule };
        let id = |given: Option<u32>, found: Option<i64>| {
            given
                .or_else(|| u32::try_from(found?).ok())
                .ok_or(broken("an owner that is no number of 32 bits"))
        };
        let link = extended.link.unwrap_or_else(|| header.linkname());
        let path = extended.sparse.name.clone().or(extended.path).unwrap_or_else(|| header.name());
        let numbers = || -> Option<(u32, u32)> {
            let (major, minor) = header.device()?;
            let pick = |given: Option<u32>, found| given.or_else(|| u32::try_from(found).ok());
            Some((pick(extended.device.0, major)?, pick(extended.device.1, minor)?))
        };
        let device = numbers().ok_or(broken("a device number that is no number"));
        let mut packed = extended.size.unwrap_or(size);
        let kind = match header.typeflag() {
            b'0' | 0 | b'7' if path.ends_with(b"/") => Kind::Dir,
            b'0' | 0 | b'7' => {
                let (size, data, rest) = self.file_data(start, packed, extended.sparse)?;
                packed = rest;
                Kind::File { size, data }
            }
            b'S' => {
                let (mut map, mut more, real) =
                    header.gnu_sparse().ok_or(broken("a sparse map that is malformed"))?;
                while more {
                    let record = self.record()?;
                    let entries =
                        sparse_entries(&record[..504]).ok_or(broken("a sparse map that is malformed"))?;
                    sparse::extend(&mut map, entries).map_err(broken)?;
                    more = record[504] != 0;
                }
                Kind::File { size: real, data: sparse::check(map, real, packed).map_err(broken)? }
            }
            b'1' => Kind::HardLink(link),
            b'2' => Kind::Symlink(link),
            b'3' => device.map(|(major, minor)| Kind::CharDevice(major, minor))?,
            b'4' => device.map(|(major, minor)| Kind::BlockDevice(major, minor))?,
            b'5' | b'D' => Kind::Dir,
            b'6' => Kind::Fifo,
            b'M' => return Err(broken("a member that goes on from another volume of the archive")),
            _ => return Err(broken("a member of a kind that is not known")),
        };
        let is_header_alone = is_header_alone(header.typeflag(), &kind);
        self.start_data(start, if is_header_alone { 0 } else { packed })?;
        let xattrs: Xattrs = extended.xattrs.into_iter().collect();
        let sec = || header.mtime().ok_or(broken("a time that is no number"));
        Ok(Member {
            path,
            kind,
            mode: header.mode().ok_or(broken("a mode that is no number"))? as u16 & 0o7777,
            uid: id(extended.uid, header.uid())?,
            gid: id(extended.gid, header.gid())?,
            mtime: match extended.mtime {
                Some(time) => time,
                None => Timestamp { sec: sec()?, nsec: 0 },
            },
            xattrs,
        })
    }

    /// Returns size and ranges of a plain or pax sparse file whose data begins now, and the bytes
    /// of it that follow.
    fn file_data(&mut self, start: u64, packed: u64, sparse: Sparse) -> Result<(u64, Ranges, u64), TarError> {
        let broken = |rule| TarError::Broken { at: start, rule };
        let Some(real) = sparse.size else {
            let whole = if packed == 0 { Vec::new() } else { vec![(0, packed)] };
            return Ok((packed, whole, packed));
        };
        let (map, rest) = match sparse.version {
            (Some(1), Some(0)) => {
                let (mut parser, mut rest) = (MapParser::default(), packed);
                loop {
                    rest = rest
                        .checked_sub(RECORD as u64)
                        .ok_or(broken("a sparse map that passes its member"))?;
                    if let Some(map) = parser.feed(&self.record()?).map_err(broken)? {
                        break (map, rest);
                    }
                }
            }
            (None | Some(0), _) => (sparse::from_numbers(&sparse.numbers).map_err(broken)?, packed),
            _ => return Err(broken("a sparse file in a form that is not known")),
        };
        Ok((real, sparse::check(map, real, rest).map_err(broken)?, rest))
    }
}

/// Returns whether no data follows a header of this type, whatever size it has. All readers have to
/// agree where the next header is, and that of Go, which unpacks images, ignores the size. A hard
/// link's may be that of its file. V7 archives have directories as files named with a slash.
fn is_header_alone(typeflag: u8, kind: &Kind) -> bool {
    matches!(typeflag, b'1'..=b'6') || typeflag == 0 && *kind == Kind::Dir
}

impl Extended {
    /// Takes over the records of a pax header.
    fn read(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        for record in pax::parse(bytes) {
            let (key, value) = record.ok_or("a pax header that is malformed")?;
            self.set(key, value).ok_or("a pax header with a value that is malformed")?;
        }
        if self.xattr_names > XATTR_NAMES_MAX {
            return Err("attributes whose names take more than 64 KiB");
        }
        Ok(())
    }

    /// Returns about how many bytes of memory it takes.
    fn memory(&self) -> usize {
        let texts = [&self.path, &self.link, &self.sparse.name].into_iter().flatten();
        let values: usize = self.xattrs.values().map(Vec::len).sum();
        texts.map(Vec::len).sum::<usize>() + values + self.xattr_names + 8 * self.sparse.numbers.len()
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        if value.is_empty() && self.unset(key) {
            return Some(());
        }
        let number = || std::str::from_utf8(value).ok()?.parse::<u64>().ok();
        let small = || number().and_then(|n| u32::try_from(n).ok());
        match key {
            b"path" => self.path = Some(value.to_vec()),
            b"linkpath" => self.link = Some(value.to_vec()),
            b"size" => self.size = Some(number()?),
            b"uid" => self.uid = Some(small()?),
            b"gid" => self.gid = Some(small()?),
            b"mtime" => {
                let (sec, nsec) = pax::parse_time(value)?;
                self.mtime = Some(Timestamp { sec, nsec });
            }
            b"SCHILY.devmajor" => self.device.0 = Some(small()?),
            b"SCHILY.devminor" => self.device.1 = Some(small()?),
            b"SCHILY.acl.access" => self.acl(b"system.posix_acl_access", key, value),
            b"SCHILY.acl.default" => self.acl(b"system.posix_acl_default", key, value),
            b"RHT.security.selinux" => self.xattr(b"security.selinux", value.to_vec()),
            b"GNU.sparse.name" => self.sparse.name = Some(value.to_vec()),
            b"GNU.sparse.major" => self.sparse.version.0 = Some(number()?),
            b"GNU.sparse.minor" => self.sparse.version.1 = Some(number()?),
            b"GNU.sparse.size" | b"GNU.sparse.realsize" => self.sparse.size = Some(number()?),
            b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => self.sparse.numbers.push(number()?),
            b"GNU.sparse.map" => {
                let text = std::str::from_utf8(value).ok()?;
                let numbers = text.split(',').filter(|n| !n.is_empty()).map(|n| n.parse().ok());
                // One range more than are accepted, and no more of them.
                self.sparse.numbers = numbers.take(2 * sparse::RANGES_MAX + 2).collect::<Option<_>>()?;
            }
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    self.xattr(&schily_decoded(name), value.to_vec());
                } else if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
                    self.xattr(&percent_decoded(name), base64_decoded(value)?);
                }
            }
        }
        Some(())
    }

    /// Takes back what earlier records said for `key`: POSIX gives an empty value that meaning, and
    /// the field of the header counts again. Returns false for a key whose value may be empty.
    fn unset(&mut self, key: &[u8]) -> bool {
        match key {
            b"path" => self.path = None,
            b"linkpath" => self.link = None,
            b"size" => self.size = None,
            b"uid" => self.uid = None,
            b"gid" => self.gid = None,
            b"mtime" => self.mtime = None,
            b"SCHILY.devmajor" => self.device.0 = None,
            b"SCHILY.devminor" => self.device.1 = None,
            _ => return false,
        }
        true
    }

    /// Takes an ACL as an attribute. An ACL that cannot be parsed, for example because it names a
    /// user unknown here, stays under its key: a volume cannot store such an attribute, and the
    /// import reports it.
    fn acl(&mut self, name: &[u8], key: &[u8], text: &[u8]) {
        match acl_text::parse(text) {
            Some(acl) => self.xattr(name, acl.to_xattr()),
            None => self.xattr(key, text.to_vec()),
        }
    }

    /// Notes an attribute. A later record of the same attribute takes the place of an earlier one.
    fn xattr(&mut self, name: &[u8], value: Vec<u8>) {
        if self.xattrs.insert(name.to_vec(), value).is_none() {
            self.xattr_names += name.len() + 1;
        }
    }
}

/// Undoes the encoding of GNU tar, which has two codes. Other programs write names as they are.
fn schily_decoded(name: &[u8]) -> Vec<u8> {
    decoded(name, |code| match code {
        b"25" => Some(b'%'),
        b"3D" => Some(b'='),
        _ => None,
    })
}

fn percent_decoded(text: &[u8]) -> Vec<u8> {
    decoded(text, |code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok())
}

/// Replaces each '%' and the two bytes behind it by what `byte_of` has for these two.
fn decoded(text: &[u8], byte_of: impl Fn(&[u8]) -> Option<u8>) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), text);
    while let Some((&first, tail)) = rest.split_first() {
        rest = match tail.get(..2).and_then(&byte_of).filter(|_| first == b'%') {
            Some(byte) => {
                out.push(byte);
                tail.get(2..).unwrap_or_default()
            }
            None => {
                out.push(first);
                tail
            }
        };
    }
    out
}

fn base64_decoded(text: &[u8]) -> Option<Vec<u8>> {
    let (mut out, mut bits, mut have) = (Vec::new(), 0u32, 0);
    for byte in text.iter().filter(|b| !matches!(b, b'=' | b'\n')) {
        let six = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 & 0xFFFF | u32::from(six);
        have += 6;
        if have >= 8 {
            have -= 8;
            out.push((bits >> have) as u8);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_attributes() {
        assert_eq!(percent_decoded(b"user.a%3db%"), b"user.a=b%");
        assert_eq!(base64_decoded(b"aGVsbG8gd29ybGQ=").unwrap(), b"hello world");
        assert_eq!(base64_decoded(b"/+8").unwrap(), [0xFF, 0xEF]);
        assert_eq!(base64_decoded(b"a b"), None);
    }
}
