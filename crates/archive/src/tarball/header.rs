//! The 512 bytes before a member.
//!
//! ```text
//! name 0+100  mode 100+8  uid 108+8  gid 116+8  size 124+12  mtime 136+12  chksum 148+8  typeflag
//! 156 linkname 157+100  magic 257+8  uname 265+32  gname 297+32  devmajor 329+8  devminor 337+8
//! prefix 345+155 (ustar)  |  sparse 386+96  isextended 482  realsize 483+12 (GNU)
//! ```

use super::RECORD;
use crate::member::Ranges;
use std::ops::Range;

pub(super) const NAME: Range<usize> = 0..100;
const MODE: Range<usize> = 100..108;
const UID: Range<usize> = 108..116;
const GID: Range<usize> = 116..124;
const SIZE: Range<usize> = 124..136;
const MTIME: Range<usize> = 136..148;
const CHKSUM: Range<usize> = 148..156;
const TYPEFLAG: usize = 156;
const LINKNAME: Range<usize> = 157..257;
const MAGIC: Range<usize> = 257..265;
const DEVMAJOR: Range<usize> = 329..337;
const DEVMINOR: Range<usize> = 337..345;
pub(super) const PREFIX: Range<usize> = 345..500;
const GNU_SPARSE: Range<usize> = 386..482;
const GNU_IS_EXTENDED: usize = 482;
const GNU_REALSIZE: Range<usize> = 483..495;

/// Largest number in a field of 8 bytes as octal digits.
pub(super) const OCTAL_8: u64 = 0o7_777_777;
/// Largest number in a field of 12 bytes as octal digits.
pub(super) const OCTAL_12: u64 = 0o77_777_777_777;

/// A header as it came.
#[derive(Debug, Clone)]
pub(super) struct Header(pub(super) [u8; RECORD]);

impl Header {
    fn field(&self, range: Range<usize>) -> &[u8] {
        &self.0[range]
    }

    /// Returns the bytes of a text field up to its first NUL.
    fn text(&self, range: Range<usize>) -> Vec<u8> {
        self.field(range).split(|b| *b == 0).next().unwrap_or_default().to_vec()
    }

    /// Returns whether this is the record of zeros that ends an archive.
    pub(super) fn is_end(&self) -> bool {
        self.0 == [0; RECORD]
    }

    /// Returns whether `chksum` is right. Old programs added up signed bytes.
    pub(super) fn checksum_is_good(&self) -> bool {
        let found = number(self.field(CHKSUM));
        let sum = |add: fn(u8) -> i64| -> i64 {
            let bytes = self.0.iter().enumerate();
            bytes.map(|(i, b)| add(if CHKSUM.contains(&i) { b' ' } else { *b })).sum()
        };
        let unsigned = sum(i64::from);
        let signed = sum(|b| i64::from(b.cast_signed()));
        found == Some(unsigned) || found == Some(signed)
    }

    pub(super) fn typeflag(&self) -> u8 {
        self.0[TYPEFLAG]
    }

    /// Returns the member's name, its ustar prefix in front.
    pub(super) fn name(&self) -> Vec<u8> {
        let name = self.text(NAME);
        let prefix = if self.field(MAGIC).starts_with(b"ustar\0") { self.text(PREFIX) } else { Vec::new() };
        if prefix.is_empty() { name } else { [prefix.as_slice(), b"/", name.as_slice()].concat() }
    }

    pub(super) fn linkname(&self) -> Vec<u8> {
        self.text(LINKNAME)
    }

    pub(super) fn mode(&self) -> Option<i64> {
        number(self.field(MODE))
    }

    pub(super) fn uid(&self) -> Option<i64> {
        number(self.field(UID))
    }

    pub(super) fn gid(&self) -> Option<i64> {
        number(self.field(GID))
    }

    pub(super) fn size(&self) -> Option<i64> {
        number(self.field(SIZE))
    }

    pub(super) fn mtime(&self) -> Option<i64> {
        number(self.field(MTIME))
    }

    /// Returns the major and minor number. Old headers have none.
    pub(super) fn device(&self) -> Option<(i64, i64)> {
        if !self.field(MAGIC).starts_with(b"ustar") {
            return Some((0, 0));
        }
        Some((number(self.field(DEVMAJOR))?, number(self.field(DEVMINOR))?))
    }

    /// Returns the head of an old GNU sparse map: up to four entries, whether records of more
    /// follow, and the size of the file with its holes.
    pub(super) fn gnu_sparse(&self) -> Option<(Ranges, bool, u64)> {
        let real = u64::try_from(number(self.field(GNU_REALSIZE))?).ok()?;
        Some((sparse_entries(self.field(GNU_SPARSE))?, self.0[GNU_IS_EXTENDED] != 0, real))
    }
}

/// Returns whether a header with a right checksum begins.
pub(crate) fn is_header(head: &[u8]) -> bool {
    head.first_chunk().is_some_and(|record| {
        let header = Header(*record);
        // The bytes of something else may add up to nothing, as signed ones.
        number(header.field(CHKSUM)) > Some(0) && header.checksum_is_good()
    })
}

/// Returns the entries of an old GNU sparse map: offset and length, 12 bytes each, up to an empty
/// one.
pub(super) fn sparse_entries(bytes: &[u8]) -> Option<Ranges> {
    let used = bytes.chunks_exact(24).take_while(|entry| entry[0] != 0);
    used.map(|entry| {
        let (offset, len) = entry.split_at(12);
        Some((u64::try_from(number(offset)?).ok()?, u64::try_from(number(len)?).ok()?))
    })
    .collect()
}

/// Returns a number: octal digits with blanks around them, or base 256 if the first bit is set.
/// An empty field is 0.
fn number(field: &[u8]) -> Option<i64> {
    match field.first() {
        Some(first) if first & 0x80 != 0 => {
            // The bit after the mark is the sign.
            let start: i64 = if first & 0x40 != 0 { -1 } else { 0 };
            let head = i64::from(first & 0x3F) | if start < 0 { !0x3F } else { 0 };
            field[1..].iter().try_fold(head, |n, b| n.checked_mul(256)?.checked_add(i64::from(*b)))
        }
        _ => {
            let text = field.split(|b| *b == 0).next()?.trim_ascii();
            text.iter().try_fold(0i64, |n, b| match b {
                b'0'..=b'7' => n.checked_mul(8)?.checked_add(i64::from(b - b'0')),
                _ => None,
            })
        }
    }
}

/// A header to be written. Numbers that do not fit are cut: the caller has them in a pax header.
#[derive(Debug)]
pub(super) struct NewHeader<'a> {
    pub(super) prefix: &'a [u8],
    pub(super) name: &'a [u8],
    pub(super) mode: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) size: u64,
    pub(super) mtime: i64,
    pub(super) typeflag: u8,
    pub(super) link: &'a [u8],
    pub(super) device: (u32, u32),
}

impl NewHeader<'_> {
    pub(super) fn encode(&self) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        let mut text = |range: Range<usize>, text: &[u8]| {
            let len = text.len().min(range.len());
            bytes[range.start..range.start + len].copy_from_slice(&text[..len]);
        };
        let octal = |n: u64, max: u64, digits: usize| format!("{:0digits$o}", n.min(max)).into_bytes();
        text(NAME, self.name);
        text(PREFIX, self.prefix);
        text(LINKNAME, self.link);
        text(MAGIC, b"ustar\x0000");
        text(MODE, &octal(u64::from(self.mode), OCTAL_8, 7));
        text(UID, &octal(u64::from(self.uid), OCTAL_8, 7));
        text(GID, &octal(u64::from(self.gid), OCTAL_8, 7));
        text(SIZE, &octal(self.size, OCTAL_12, 11));
        text(MTIME, &octal(u64::try_from(self.mtime).unwrap_or(0), OCTAL_12, 11));
        text(DEVMAJOR, &octal(u64::from(self.device.0), OCTAL_8, 7));
        text(DEVMINOR, &octal(u64::from(self.device.1), OCTAL_8, 7));
        text(TYPEFLAG..TYPEFLAG + 1, &[self.typeflag]);
        text(CHKSUM, b"        ");
        let sum: u64 = bytes.iter().map(|b| u64::from(*b)).sum();
        bytes[CHKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_told_by_their_checksums() {
        let new = NewHeader {
            prefix: b"",
            name: b"BZh91AY",
            mode: 0o644,
            uid: 0,
            gid: 0,
            size: 1,
            mtime: 0,
            typeflag: b'0',
            link: b"",
            device: (0, 0),
        };
        let mut bytes = new.encode();
        assert!(is_header(&bytes) && is_header(&[&bytes[..], b"more"].concat()));
        assert!(!is_header(&bytes[..511]) && !is_header(&[0; 512]));
        bytes[0] += 1;
        assert!(!is_header(&bytes));
        // As signed bytes they add up to 0, with the blanks of the field.
        let mut bytes = [0; 512];
        (bytes[0], bytes[1]) = (0x80, 0x80);
        assert!(!is_header(&bytes));
    }

    #[test]
    fn numbers() {
        assert_eq!(number(b"0000644\0"), Some(0o644));
        assert_eq!(number(b"   644 \0"), Some(0o644));
        assert_eq!(number(b"\0\0\0\0\0\0\0\0"), Some(0));
        assert_eq!(number(b"12x\0"), None);
        assert_eq!(number(b"\x80\0\0\0\xFF\xFF\xFF\xFE"), Some(0xFFFF_FFFE));
        assert_eq!(number(b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFE"), Some(-2));
        assert_eq!(number(b"\x80\0\0\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"), None, "more than 63 bits");
    }
}
