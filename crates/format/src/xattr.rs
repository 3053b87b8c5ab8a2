//! Extended attributes: the entries in an inode's spare room and in an attribute block.
//!
//! Both places hold the same list of entries. Names grow from the front, values from the back, and
//! four zero bytes end the names. A change parses, edits the list and lays it out anew.
//!
//! ```text
//! inode  [magic 4][entry]...[0000]    free   [value]...[value]   offsets from the first entry
//! block  [header 32][entry]...[0000]  free   [value]...[value]   offsets from the block
//! entry  e_name_len 1, e_name_index 1, e_value_offs 2, e_value_inum 4, e_value_size 4, e_hash 4,
//!        e_name, padding to 4
//! ```
//!
//! Invariants:
//! - In a block the entries are sorted by index, length of the name, name.
//! - A value never overlaps a name or leaves its area. It may overlap another value, as the kernel
//!   accepts it.

use crate::ext4_chksum;
use crate::le::{put, put_u16, put_u32, u16_at, u32_at};

/// `h_magic` of a block and of the area in an inode.
pub const EXT4_XATTR_MAGIC: u32 = 0xEA02_0000;
/// The most inodes that share one block.
pub const EXT4_XATTR_REFCOUNT_MAX: u32 = 1024;
/// Longest name in bytes, its prefix counted.
pub const XATTR_NAME_MAX: usize = 255;
/// Largest value in bytes that a program may set.
pub const XATTR_SIZE_MAX: usize = 65536;
/// Largest value in bytes that the format allows (in an inode of its own).
pub const EXT4_XATTR_SIZE_MAX: u32 = 1 << 24;

/// Bytes of the header of a block.
pub const BLOCK_HEADER: usize = 32;
/// Bytes of the header of the area in an inode.
pub const INODE_HEADER: usize = 4;

const ENTRY_HEADER: usize = 16;
const H_REFCOUNT: usize = 4;
const H_BLOCKS: usize = 8;
const H_HASH: usize = 12;
const H_CHECKSUM: usize = 16;

/// Values of `e_name_index`: which prefix the stored name has lost.
pub mod index {
    /// `user.`
    pub const USER: u8 = 1;
    /// `system.posix_acl_access`; nothing is left of the name.
    pub const POSIX_ACL_ACCESS: u8 = 2;
    /// `system.posix_acl_default`; nothing is left of the name.
    pub const POSIX_ACL_DEFAULT: u8 = 3;
    /// `trusted.`
    pub const TRUSTED: u8 = 4;
    /// `security.`
    pub const SECURITY: u8 = 6;
    /// `system.`: the file system's own, such as the data of an inline file. Hidden from programs.
    pub const SYSTEM: u8 = 7;
    /// `gnu.`: those of the Hurd, such as `gnu.translator`.
    pub const HURD: u8 = 10;
}

const PREFIXES: [(u8, &[u8]); 4] = [
    (index::USER, b"user."),
    (index::TRUSTED, b"trusted."),
    (index::SECURITY, b"security."),
    (index::HURD, b"gnu."),
];
const WHOLE: [(u8, &[u8]); 2] = [
    (index::POSIX_ACL_ACCESS, b"system.posix_acl_access"),
    (index::POSIX_ACL_DEFAULT, b"system.posix_acl_default"),
];

/// A rule of the format that an attribute area breaks. Offsets are bytes from the area's start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum XattrFormatError {
    #[error("{len} bytes are too few for a header of {need}")]
    Truncated { len: usize, need: usize },
    #[error("h_magic is {found:#010x}, not 0xea020000")]
    Magic { found: u32 },
    #[error("h_blocks is {value}, must be 1")]
    Blocks { value: u32 },
    #[error("h_refcount is 0 in a block that is in use")]
    Refcount,
    #[error("h_checksum is {found:#010x}, the bytes give {expected:#010x}")]
    Checksum { found: u32, expected: u32 },
    #[error("the entry at {offset} passes the end at {end}")]
    EntryRange { offset: usize, end: usize },
    #[error("the name of the entry at {offset} holds a zero byte")]
    NameZero { offset: usize },
    #[error("the entry at {offset} has a value of {size} bytes, at most {max}")]
    ValueSize { offset: usize, size: u32, max: u32 },
    #[error("the entry at {offset} has its value at {start}..{end}, outside {min}..{max}")]
    ValueRange { offset: usize, start: usize, end: usize, min: usize, max: usize },
    #[error("the entry at {offset} has e_hash {found:#010x}, name and value give {expected:#010x}")]
    Hash { offset: usize, found: u32, expected: u32 },
}

/// The defects of an attribute name that a program gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Longer than [`XATTR_NAME_MAX`], or empty (`ERANGE`).
    #[error("a name of {0} bytes; 1 to 255 are possible")]
    Length(usize),
    /// Nothing behind the prefix, or a zero byte (`EINVAL`).
    #[error("a name without a part behind its prefix, or with a zero byte in it")]
    Invalid,
    /// A prefix that ext4 has no index for (`EOPNOTSUPP`).
    #[error("a prefix that ext4 does not store")]
    Prefix,
}

/// A name as it is stored: index of the prefix and the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name<'a> {
    /// One of [`index`].
    pub index: u8,
    /// The bytes behind the prefix.
    pub rest: &'a [u8],
}

impl<'a> Name<'a> {
    /// The access ACL's.
    pub const ACL_ACCESS: Name<'static> = Name { index: index::POSIX_ACL_ACCESS, rest: b"" };
    /// The default ACL's.
    pub const ACL_DEFAULT: Name<'static> = Name { index: index::POSIX_ACL_DEFAULT, rest: b"" };

    /// Splits a whole name such as `user.comment`.
    ///
    /// # Errors
    /// A name that the kernel refuses as well.
    pub fn parse(full: &'a [u8]) -> Result<Self, NameError> {
        if full.is_empty() || full.len() > XATTR_NAME_MAX {
            return Err(NameError::Length(full.len()));
        }
        if full.contains(&0) {
            return Err(NameError::Invalid);
        }
        if let Some(&(index, _)) = WHOLE.iter().find(|(_, name)| *name == full) {
            return Ok(Self { index, rest: b"" });
        }
        for (index, prefix) in PREFIXES {
            match full.strip_prefix(prefix) {
                Some(b"") => return Err(NameError::Invalid),
                Some(rest) => return Ok(Self { index, rest }),
                None => {}
            }
        }
        Err(NameError::Prefix)
    }

    /// Returns the whole name, `None` for an index that programs do not see.
    pub fn full(&self) -> Option<Vec<u8>> {
        if let Some((_, name)) = WHOLE.iter().find(|(index, _)| *index == self.index) {
            return self.rest.is_empty().then(|| name.to_vec());
        }
        let (_, prefix) = PREFIXES.iter().find(|(index, _)| *index == self.index)?;
        Some([prefix, self.rest].concat())
    }
}

/// The place of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// In the same area.
    Bytes(&'a [u8]),
    /// The data of inode `e_value_inum`, `size` bytes long (feature `ea_inode`).
    Inode {
        /// `e_value_inum`.
        ino: u32,
        /// `e_value_size`.
        size: u32,
    },
}

/// One attribute.
#[derive(Debug, Clone, Copy)]
pub struct Attr<'a> {
    /// Its name.
    pub name: Name<'a>,
    /// Its value.
    pub value: Value<'a>,
    /// `e_hash` as it was read. It is written only for a value in an inode of its own.
    pub hash: u32,
}

impl<'a> Attr<'a> {
    /// Returns an attribute with its value beside it.
    pub fn new(name: Name<'a>, value: &'a [u8]) -> Self {
        Self { name, value: Value::Bytes(value), hash: 0 }
    }

    /// Returns whether name and value are the same; `e_hash` is derived and not compared.
    pub fn same(&self, other: &Attr<'_>) -> bool {
        self.name.index == other.name.index
            && self.name.rest == other.name.rest
            && match (self.value, other.value) {
                (Value::Bytes(a), Value::Bytes(b)) => a == b,
                (Value::Inode { ino: a, size: n }, Value::Inode { ino: b, size: m }) => (a, n) == (b, m),
                _ => false,
            }
    }

    fn size_of_entry(&self) -> usize {
        (ENTRY_HEADER + self.name.rest.len()).next_multiple_of(4)
    }

    fn size_of_value(&self) -> usize {
        match self.value {
            Value::Bytes(bytes) => bytes.len().next_multiple_of(4),
            Value::Inode { .. } => 0,
        }
    }

    /// Returns the key by which the entries of a block are sorted.
    fn order(&self) -> (u8, usize, &'a [u8]) {
        (self.name.index, self.name.rest.len(), self.name.rest)
    }
}

/// Returns `e_hash` of a name and its value. Volumes exist whose names were hashed as signed bytes.
fn entry_hash(name: &[u8], value: &[u8], signed: bool) -> u32 {
    let hash = name.iter().fold(0u32, |hash, &byte| {
        let byte = if signed { i32::from(byte.cast_signed()).cast_unsigned() } else { u32::from(byte) };
        hash.rotate_left(5) ^ byte
    });
    value.chunks(4).fold(hash, |hash, chunk| {
        let mut word = [0; 4];
        put(&mut word, 0, chunk);
        hash.rotate_left(16) ^ u32::from_le_bytes(word)
    })
}

/// Returns how many bytes `attrs` need behind a header: entries, the end mark, values.
fn size_of(attrs: &[Attr<'_>]) -> usize {
    attrs.iter().map(|a| a.size_of_entry() + a.size_of_value()).sum::<usize>() + 4
}

/// Returns whether `attrs` fit into an area of `len` bytes with a header of `header` bytes.
pub fn fits(attrs: &[Attr<'_>], len: usize, header: usize) -> bool {
    size_of(attrs).checked_add(header).is_some_and(|need| need <= len)
}

/// Parses the entries of `area` from `first` on, whose value offsets count from `base`.
fn entries(area: &[u8], first: usize, base: usize) -> Result<Vec<Attr<'_>>, XattrFormatError> {
    let end = area.len();
    let mut found: Vec<(usize, Attr<'_>)> = Vec::new();
    let mut at = first;
    let names_end = loop {
        let beyond = XattrFormatError::EntryRange { offset: at, end };
        // The end mark is four zero bytes; an area too short for it has no end.
        let rest = area.get(at..).filter(|rest| rest.len() >= 4).ok_or(beyond.clone())?;
        if u32_at(rest, 0) == 0 {
            break at + 4;
        }
        let name_len = usize::from(rest.first().copied().unwrap_or(0));
        let name = rest.get(ENTRY_HEADER..ENTRY_HEADER + name_len).ok_or(beyond)?;
        if name.contains(&0) {
            return Err(XattrFormatError::NameZero { offset: at });
        }
        let name = Name { index: rest.get(1).copied().unwrap_or(0), rest: name };
        let attr = Attr { name, value: Value::Bytes(&[]), hash: u32_at(rest, 12) };
        found.push((at, attr));
        at += attr.size_of_entry();
    };
    found.into_iter().map(|(offset, attr)| value_of(area, base, names_end, offset, attr)).collect()
}

/// Fills in the value of `attr`, whose entry is at `offset`.
fn value_of<'a>(
    area: &'a [u8],
    base: usize,
    names_end: usize,
    offset: usize,
    attr: Attr<'a>,
) -> Result<Attr<'a>, XattrFormatError> {
    let (inum, size) = (u32_at(area, offset + 4), u32_at(area, offset + 8));
    if size > EXT4_XATTR_SIZE_MAX {
        return Err(XattrFormatError::ValueSize { offset, size, max: EXT4_XATTR_SIZE_MAX });
    }
    if inum != 0 {
        return Ok(Attr { value: Value::Inode { ino: inum, size }, ..attr });
    }
    let bytes: &[u8] = if size == 0 {
        &[]
    } else {
        let start = base + usize::from(u16_at(area, offset + 2));
        let end = start + size as usize;
        let range = XattrFormatError::ValueRange { offset, start, end, min: names_end, max: area.len() };
        if start < names_end || end.next_multiple_of(4) > area.len() {
            return Err(range);
        }
        area.get(start..end).ok_or(range)?
    };
    let expected = entry_hash(attr.name.rest, bytes, false);
    if attr.hash != 0 && attr.hash != expected && attr.hash != entry_hash(attr.name.rest, bytes, true) {
        return Err(XattrFormatError::Hash { offset, found: attr.hash, expected });
    }
    Ok(Attr { value: Value::Bytes(bytes), ..attr })
}

/// Lays `attrs` out in `area` behind its header, everything else zero. They must fit.
/// Returns the hash of the whole, 0 if an entry has none.
fn lay_out(area: &mut [u8], first: usize, base: usize, attrs: &[Attr<'_>], hashes: bool) -> u32 {
    if let Some(rest) = area.get_mut(first..) {
        rest.fill(0);
    }
    let (mut at, mut value_at) = (first, area.len());
    let (mut whole, mut shareable) = (0u32, true);
    for attr in attrs {
        let (inum, size, hash) = match attr.value {
            Value::Bytes(bytes) => {
                value_at = value_at.saturating_sub(attr.size_of_value());
                put(area, value_at, bytes);
                let hash = if hashes { entry_hash(attr.name.rest, bytes, false) } else { 0 };
                (0, bytes.len() as u32, hash)
            }
            Value::Inode { ino, size } => (ino, size, attr.hash),
        };
        let offs = if inum == 0 && size != 0 { value_at.saturating_sub(base) } else { 0 };
        put(area, at, &[attr.name.rest.len() as u8, attr.name.index]);
        put_u16(area, at + 2, offs as u16);
        put_u32(area, at + 4, inum);
        put_u32(area, at + 8, size);
        put_u32(area, at + 12, hash);
        put(area, at + ENTRY_HEADER, attr.name.rest);
        at += attr.size_of_entry();
        shareable &= hash != 0;
        whole = whole.rotate_left(16) ^ hash;
    }
    if shareable { whole } else { 0 }
}

/// Parses the attributes in an inode's area: the bytes from the end of its extra fields to its own
/// end. Empty if the area has no magic.
///
/// # Errors
/// A rule that the area breaks.
pub fn parse_inode(area: &[u8]) -> Result<Vec<Attr<'_>>, XattrFormatError> {
    if area.len() < INODE_HEADER + 4 || u32_at(area, 0) != EXT4_XATTR_MAGIC {
        return Ok(Vec::new());
    }
    entries(area, INODE_HEADER, INODE_HEADER)
}

/// Lays `attrs` out in an inode's area; no attributes leave it all zero.
/// False, and nothing changed, if they do not fit.
///
/// Entries in an inode carry no hash: that is what the kernel writes.
pub fn encode_inode(area: &mut [u8], attrs: &[Attr<'_>]) -> bool {
    if attrs.is_empty() {
        area.fill(0);
        return true;
    }
    if !fits(attrs, area.len(), INODE_HEADER) {
        return false;
    }
    put_u32(area, 0, EXT4_XATTR_MAGIC);
    lay_out(area, INODE_HEADER, INODE_HEADER, attrs, false);
    true
}

/// The header of an attribute block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHeader {
    /// `h_refcount`: inodes that use the block, at least 1.
    pub refcount: u32,
    /// `h_hash`: hash of all attributes; 0 if the block must not be shared.
    pub hash: u32,
}

impl BlockHeader {
    /// Parses the header of a block.
    ///
    /// # Errors
    /// A rule that it breaks.
    pub fn parse(block: &[u8]) -> Result<Self, XattrFormatError> {
        if block.len() < BLOCK_HEADER {
            return Err(XattrFormatError::Truncated { len: block.len(), need: BLOCK_HEADER });
        }
        let (magic, blocks) = (u32_at(block, 0), u32_at(block, H_BLOCKS));
        if magic != EXT4_XATTR_MAGIC {
            return Err(XattrFormatError::Magic { found: magic });
        }
        if blocks != 1 {
            return Err(XattrFormatError::Blocks { value: blocks });
        }
        let header = Self { refcount: u32_at(block, H_REFCOUNT), hash: u32_at(block, H_HASH) };
        if header.refcount == 0 {
            return Err(XattrFormatError::Refcount);
        }
        Ok(header)
    }
}

/// Returns the checksum of an attribute block at block `nr`, by the volume's seed.
fn block_checksum(block: &[u8], nr: u64, seed: u32) -> u32 {
    let crc = ext4_chksum(seed, &nr.to_le_bytes());
    let (head, rest) = block.split_at_checked(H_CHECKSUM).unwrap_or((block, &[]));
    let crc = ext4_chksum(ext4_chksum(crc, head), &[0; 4]);
    ext4_chksum(crc, rest.get(4..).unwrap_or(&[]))
}

/// Verifies `h_checksum` of block `nr`; `seed` is the volume's.
///
/// # Errors
/// [`XattrFormatError::Checksum`].
pub fn verify_block(block: &[u8], nr: u64, seed: u32) -> Result<(), XattrFormatError> {
    let (found, expected) = (u32_at(block, H_CHECKSUM), block_checksum(block, nr, seed));
    if found == expected { Ok(()) } else { Err(XattrFormatError::Checksum { found, expected }) }
}

/// Parses the attributes of a block, in their order.
///
/// # Errors
/// A rule that the block breaks; its checksum is the work of [`verify_block`].
pub fn parse_block(block: &[u8]) -> Result<Vec<Attr<'_>>, XattrFormatError> {
    BlockHeader::parse(block)?;
    entries(block, BLOCK_HEADER, 0)
}

/// Lays `attrs` out in `block`, sorts them, sets `h_refcount` to 1 and `h_hash`, and leaves
/// `h_checksum` zero: [`seal_block`] follows when the block's number is known.
/// False, and nothing changed, if they do not fit.
pub fn encode_block(block: &mut [u8], attrs: &mut [Attr<'_>]) -> bool {
    if !fits(attrs, block.len(), BLOCK_HEADER) {
        return false;
    }
    attrs.sort_by_key(Attr::order);
    put(block, 0, &[0; BLOCK_HEADER]);
    let hash = lay_out(block, BLOCK_HEADER, 0, attrs, true);
    put_u32(block, 0, EXT4_XATTR_MAGIC);
    put_u32(block, H_REFCOUNT, 1);
    put_u32(block, H_BLOCKS, 1);
    put_u32(block, H_HASH, hash);
    true
}

/// Sets `h_refcount`; [`seal_block`] must follow.
pub fn set_refcount(block: &mut [u8], refcount: u32) {
    put_u32(block, H_REFCOUNT, refcount);
}

/// Makes `h_checksum` of block `nr`, zero without a seed.
pub fn seal_block(block: &mut [u8], nr: u64, seed: Option<u32>) {
    let sum = seed.map_or(0, |seed| block_checksum(block, nr, seed));
    put_u32(block, H_CHECKSUM, sum);
}

#[cfg(test)]
mod tests;
