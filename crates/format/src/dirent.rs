//! Directory entries, and the blocks that hold them.
//!
//! A directory block is a chain of entries that covers it whole: `rec_len` leads from one to the
//! next, an entry with inode 0 is free space, and the slack behind a name belongs to its entry.
//! With `metadata_csum` the last 12 bytes look like a free entry and carry the checksum. After
//! [`verify_block`], [`entries`] meets no error.
//!
//! ```text
//! 0        4        6         7          8
//! inode    rec_len  name_len  file_type  name, padded to a multiple of 4
//! ```
//!
//! Source: kernel documentation `filesystems/ext4/directory`, "Linear (Classic) Directories".

use crate::le::{put, put_u16, put_u32, u16_at, u32_at};
use crate::{FileType, ext4_chksum};

/// Bytes of an entry before its name.
pub const HEADER_LEN: usize = 8;
/// The shortest entry: a name of 1 to 4 bytes.
pub const MIN_REC_LEN: usize = 12;
/// The longest name, in bytes.
pub const NAME_MAX: usize = 255;
/// Bytes of the checksum tail.
pub const TAIL_LEN: usize = 12;

const TAIL_FILE_TYPE: u8 = 0xde;

/// A rule of directory blocks that a block breaks. Offsets and lengths are bytes in the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum DirentError {
    #[error("block of {len} bytes, the volume's have {bound}")]
    BlockLen { len: usize, bound: usize },
    #[error("entry at {offset} is cut off by the end at {bound}")]
    Truncated { offset: usize, bound: usize },
    #[error("entry at {offset}: rec_len {rec_len} is below {bound}")]
    RecLenTooSmall { offset: usize, rec_len: usize, bound: usize },
    #[error("entry at {offset}: rec_len {rec_len} is not a multiple of 4")]
    RecLenUnaligned { offset: usize, rec_len: usize },
    #[error("entry at {offset}: rec_len {rec_len} reaches over the end at {bound}")]
    RecLenOverrun { offset: usize, rec_len: usize, bound: usize },
    #[error("entry at {offset}: rec_len {rec_len} leaves no room for an entry before the end at {bound}")]
    TooCloseToEnd { offset: usize, rec_len: usize, bound: usize },
    #[error("entry at {offset}: name_len {name_len} does not fit in rec_len {rec_len}")]
    NameOverrun { offset: usize, name_len: usize, rec_len: usize },
    #[error("entry at {offset}: inode {inode} is beyond the volume's {bound}")]
    InodeOutOfRange { offset: usize, inode: u32, bound: u32 },
    #[error("entry at {offset}: inode {inode} has an empty name")]
    NameEmpty { offset: usize, inode: u32 },
    #[error("entry at {offset}: the name of inode {inode} has byte {byte:#04x} in it")]
    NameByte { offset: usize, inode: u32, byte: u8 },
    #[error("no checksum tail at {offset}")]
    TailMissing { offset: usize },
    #[error("checksum is {found:#010x}, the bytes give {expected:#010x}")]
    Checksum { found: u32, expected: u32 },
    #[error("no room for {need} bytes in the entry at {offset}, which has {room}")]
    NoRoom { offset: usize, need: usize, room: usize },
    #[error("a name of {len} bytes, at most {bound}")]
    NameLen { len: usize, bound: usize },
}

/// The properties of a volume on which the layout of its directory blocks depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirLayout {
    /// Bytes of a block.
    pub block_size: usize,
    /// `s_inodes_count`: no entry names a higher inode.
    pub inodes_count: u32,
    /// Blocks end in a checksum (`metadata_csum`).
    pub checksums: bool,
    /// Entries carry a type (`filetype`).
    pub file_types: bool,
}

impl DirLayout {
    /// Returns where entries end: at the tail, or at the end of the block.
    pub fn end(&self) -> usize {
        self.block_size - if self.checksums { TAIL_LEN } else { 0 }
    }

    /// Decodes a stored `rec_len` into bytes. 64 KiB does not fit in its 16 bits and has codes of
    /// its own.
    #[inline]
    pub fn decode_rec_len(&self, raw: u16) -> usize {
        if self.block_size < 1 << 16 {
            usize::from(raw)
        } else if raw == 0 || raw == u16::MAX {
            self.block_size
        } else {
            usize::from(raw & !3) | usize::from(raw & 3) << 16
        }
    }

    /// Encodes `len`, a multiple of 4 up to the block size, as it is stored.
    #[inline]
    pub fn encode_rec_len(&self, len: usize) -> u16 {
        u16::try_from(len).unwrap_or(u16::MAX)
    }
}

/// Returns the least number of bytes that an entry takes for a name of `name_len` bytes.
#[inline]
pub const fn rec_len(name_len: usize) -> usize {
    (HEADER_LEN + name_len + 3) & !3
}

/// One entry of a block; a free one has inode 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dirent<'a> {
    /// Byte in the block.
    pub offset: usize,
    /// The inode, 0 where the entry is free space.
    pub inode: u32,
    /// Bytes to the next entry.
    pub rec_len: usize,
    /// The recorded type: `None` without `filetype`, or for a number that is none of the format's.
    pub file_type: Option<FileType>,
    /// The name; without meaning in a free entry.
    pub name: &'a [u8],
}

impl<'a> Dirent<'a> {
    /// Parses the entry at `offset` of `block`, and checks every rule.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn parse(block: &'a [u8], offset: usize, layout: &DirLayout) -> Result<Self, DirentError> {
        let entry = Self::parse_bounds(block, offset, layout)?;
        entry.check_content(layout)?;
        Ok(entry)
    }

    /// Parses as [`parse`](Self::parse) does, and checks only the rules that keep readers inside
    /// the block: for blocks that are known to be good.
    ///
    /// # Errors
    /// The rule that it breaks.
    #[inline]
    pub fn parse_bounds(block: &'a [u8], offset: usize, layout: &DirLayout) -> Result<Self, DirentError> {
        let bound = layout.end();
        let Some((head, tail)) = block.get(offset..bound).and_then(|b| b.split_first_chunk::<HEADER_LEN>())
        else {
            return Err(DirentError::Truncated { offset, bound });
        };
        let [i0, i1, i2, i3, r0, r1, name_len, file_type] = *head;
        let inode = u32::from_le_bytes([i0, i1, i2, i3]);
        let rec_len = layout.decode_rec_len(u16::from_le_bytes([r0, r1]));
        let name_len = usize::from(name_len);
        let next = offset + rec_len;
        if rec_len < MIN_REC_LEN {
            return Err(DirentError::RecLenTooSmall { offset, rec_len, bound: MIN_REC_LEN });
        }
        if !rec_len.is_multiple_of(4) {
            return Err(DirentError::RecLenUnaligned { offset, rec_len });
        }
        if next > bound {
            return Err(DirentError::RecLenOverrun { offset, rec_len, bound });
        }
        if next + MIN_REC_LEN > bound && next != bound {
            return Err(DirentError::TooCloseToEnd { offset, rec_len, bound });
        }
        let name = match tail.get(..name_len) {
            Some(name) if self::rec_len(name_len) <= rec_len => name,
            _ => return Err(DirentError::NameOverrun { offset, name_len, rec_len }),
        };
        let file_type = if layout.file_types { FileType::from_dirent_type(file_type) } else { None };
        Ok(Self { offset, inode, rec_len, file_type, name })
    }

    fn check_content(&self, layout: &DirLayout) -> Result<(), DirentError> {
        let Self { offset, inode, name, .. } = *self;
        if inode > layout.inodes_count {
            return Err(DirentError::InodeOutOfRange { offset, inode, bound: layout.inodes_count });
        }
        if inode == 0 {
            return Ok(());
        }
        if name.is_empty() {
            return Err(DirentError::NameEmpty { offset, inode });
        }
        match name.iter().find(|&&byte| byte == 0 || byte == b'/') {
            Some(&byte) => Err(DirentError::NameByte { offset, inode, byte }),
            None => Ok(()),
        }
    }

    /// Returns how many bytes of the entry its own name does not need.
    #[inline]
    pub fn slack(&self) -> usize {
        if self.inode == 0 { self.rec_len } else { self.rec_len - rec_len(self.name.len()) }
    }

    /// Returns where the next entry starts.
    #[inline]
    pub fn next(&self) -> usize {
        self.offset + self.rec_len
    }
}

/// Returns all entries of a block in order, free ones too. Ends after the first error.
pub fn entries<'a>(block: &'a [u8], layout: &DirLayout) -> Entries<'a> {
    Entries { block, at: 0, layout: *layout }
}

/// Iterator of [`entries`].
#[derive(Debug, Clone)]
pub struct Entries<'a> {
    block: &'a [u8],
    at: usize,
    layout: DirLayout,
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Dirent<'a>, DirentError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.layout.end() {
            return None;
        }
        let entry = Dirent::parse_bounds(self.block, self.at, &self.layout);
        self.at = entry.as_ref().map_or(usize::MAX, Dirent::next);
        Some(entry)
    }
}

/// Checks a whole block: its checksum (`seed` is the inode's, see
/// [`Inode::seed`](crate::Inode::seed)) and every entry.
///
/// # Errors
/// The first rule that is broken.
pub fn verify_block(block: &[u8], layout: &DirLayout, seed: Option<u32>) -> Result<(), DirentError> {
    verify_checksum(block, layout, seed)?;
    let mut at = 0;
    while at < layout.end() {
        at = Dirent::parse(block, at, layout)?.next();
    }
    Ok(())
}

/// Checks the tail of a block and the checksum in it, where the volume has one.
///
/// # Errors
/// A block of another length, no tail, or a wrong checksum.
pub fn verify_checksum(block: &[u8], layout: &DirLayout, seed: Option<u32>) -> Result<(), DirentError> {
    if block.len() != layout.block_size {
        return Err(DirentError::BlockLen { len: block.len(), bound: layout.block_size });
    }
    if layout.checksums {
        let at = layout.end();
        let is_tail = u32_at(block, at) == 0
            && usize::from(u16_at(block, at + 4)) == TAIL_LEN
            && u16_at(block, at + 6) == u16::from(TAIL_FILE_TYPE) << 8;
        if !is_tail {
            return Err(DirentError::TailMissing { offset: at });
        }
        let (found, expected) = (u32_at(block, at + 8), checksum(block, layout, seed));
        if found != expected {
            return Err(DirentError::Checksum { found, expected });
        }
    }
    Ok(())
}

/// Writes an entry, which spans its `rec_len` bytes.
///
/// # Errors
/// A name or an entry that does not fit; nothing is written.
pub fn write_entry(block: &mut [u8], layout: &DirLayout, entry: &Dirent<'_>) -> Result<(), DirentError> {
    let Dirent { offset, inode, rec_len, file_type, name } = *entry;
    let Ok(name_len) = u8::try_from(name.len()) else {
        return Err(DirentError::NameLen { len: name.len(), bound: NAME_MAX });
    };
    let need = self::rec_len(name.len());
    let room = layout.end().min(block.len()).saturating_sub(offset);
    if need > rec_len || rec_len > room {
        return Err(DirentError::NoRoom { offset, need, room: rec_len.min(room) });
    }
    put_u32(block, offset, inode);
    put_u16(block, offset + 4, layout.encode_rec_len(rec_len));
    put(block, offset + 6, &[name_len, raw_type(layout, file_type)]);
    put(block, offset + HEADER_LEN, name);
    let padding = need - HEADER_LEN - name.len();
    put(block, offset + HEADER_LEN + name.len(), &[0; 3][..padding.min(3)]);
    Ok(())
}

/// Changes only the length of the entry at `offset`.
pub fn write_rec_len(block: &mut [u8], layout: &DirLayout, offset: usize, rec_len: usize) {
    put_u16(block, offset + 4, layout.encode_rec_len(rec_len));
}

/// Makes the entry at `offset` lead to another inode; its name stays.
pub fn write_inode(
    block: &mut [u8],
    layout: &DirLayout,
    offset: usize,
    inode: u32,
    file_type: Option<FileType>,
) {
    put_u32(block, offset, inode);
    put(block, offset + 7, &[raw_type(layout, file_type)]);
}

fn raw_type(layout: &DirLayout, file_type: Option<FileType>) -> u8 {
    if layout.file_types { file_type.map_or(0, FileType::dirent_type) } else { 0 }
}

/// Makes the entry at `offset` free space of `rec_len` bytes, and wipes the `used` bytes that
/// a name had taken.
pub fn write_free(block: &mut [u8], layout: &DirLayout, offset: usize, rec_len: usize, used: usize) {
    if let Some(old) = block.get_mut(offset..offset.saturating_add(used.max(HEADER_LEN))) {
        old.fill(0);
    }
    write_rec_len(block, layout, offset, rec_len);
}

/// Makes `block` one free entry, with its tail but no checksum yet.
pub fn init_block(block: &mut [u8], layout: &DirLayout) {
    block.fill(0);
    write_rec_len(block, layout, 0, layout.end());
    init_tail(block, layout);
}

/// Writes the tail, where the volume has one; its checksum is [`seal`]'s.
pub fn init_tail(block: &mut [u8], layout: &DirLayout) {
    if layout.checksums {
        let at = layout.end();
        put(block, at, &[0; TAIL_LEN]);
        put_u16(block, at + 4, TAIL_LEN as u16);
        put(block, at + 7, &[TAIL_FILE_TYPE]);
    }
}

/// Makes the checksum anew, where the volume has one.
pub fn seal(block: &mut [u8], layout: &DirLayout, seed: Option<u32>) {
    if layout.checksums {
        let sum = checksum(block, layout, seed);
        put_u32(block, layout.end() + 8, sum);
    }
}

fn checksum(block: &[u8], layout: &DirLayout, seed: Option<u32>) -> u32 {
    ext4_chksum(seed.unwrap_or_default(), block.get(..layout.end()).unwrap_or_default())
}

#[cfg(test)]
mod tests;
