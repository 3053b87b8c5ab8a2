//! The index of an htree directory: its root in block 0 and the nodes below.
//!
//! Both hold pairs of a hash and a block of the directory, sorted ([`DxEntry`]). An entry leads to
//! the names from its hash up to the next entry's. The first entry has no hash: its place holds the
//! counts, and it starts where its parent's entry does.
//!
//! ```text
//! root                                              node
//!  0  "." entry, rec_len 12                          0  free entry, rec_len the whole block
//! 12  ".." entry, rec_len the rest of the block      8  limit, count, block of entry 0
//! 24  0, hash_version, info_length 8,               16  hash, block; ...
//!     indirect_levels, unused_flags
//! 32  limit, count, block of entry 0
//! 40  hash, block; ...
//! ```
//!
//! A reader without index support sees a root as a block of the two dots, and a node as free space.
//! With `metadata_csum` 8 bytes behind entry `limit` end in a checksum. Source: kernel
//! documentation `filesystems/ext4/directory`, "Hash Tree Directories".

use crate::dirent::{self, DirLayout, Dirent};
use crate::hash::HashVersion;
use crate::le::{put, put_u16, put_u32, u16_at, u32_at};
use crate::{FileType, ext4_chksum};

/// Bytes of an index entry, and of the checksum tail.
const ENTRY_LEN: usize = 8;
const ROOT_INFO: usize = 24;
const ROOT_ENTRIES: usize = 32;
const NODE_ENTRIES: usize = 8;
/// Byte of the root's `hash_version`.
const HASH_VERSION: usize = ROOT_INFO + 4;
/// The `hash_version` of SipHash.
const DX_HASH_SIPHASH: u8 = 6;
/// Byte of the root's ".." entry.
pub const DOTDOT: usize = 12;
/// Block numbers of an index have 28 bits; the rest is reserved.
const BLOCK_MASK: u32 = 0x0fff_ffff;

/// A rule of index blocks that a block breaks. Offsets and lengths are bytes in the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum HtreeError {
    #[error("block of {len} bytes, the volume's have {bound}")]
    BlockLen { len: usize, bound: usize },
    #[error("the entry at {offset} is not the \"{name}\" that an index root starts with")]
    RootDot { offset: usize, name: &'static str },
    #[error("entry at {offset}: rec_len {value} must be {bound} in an index block")]
    RecLen { offset: usize, value: usize, bound: usize },
    #[error("entry at {offset}: inode {inode} in an index block must lie in {min}..={max}")]
    Inode { offset: usize, inode: u32, min: u32, max: u32 },
    #[error("reserved_zero at {offset} is {value:#x}, must be 0")]
    ReservedZero { offset: usize, value: u32 },
    #[error("hash_version at {offset} is {value}, only 0 to 2 are known")]
    HashVersion { offset: usize, value: u8 },
    #[error("hash_version at {offset} is {value}, must be {bound} where names are encrypted and case-folded")]
    NotSipHash { offset: usize, value: u8, bound: u8 },
    #[error("info_length at {offset} is {value}, must be 8")]
    InfoLength { offset: usize, value: u8 },
    #[error("indirect_levels at {offset} is {value}, at most {bound}")]
    IndirectLevels { offset: usize, value: u8, bound: u8 },
    #[error("unused_flags at {offset} is {value:#x}, must be 0")]
    UnusedFlags { offset: usize, value: u8 },
    #[error("limit at {offset} is {value}, the block has room for {bound}")]
    Limit { offset: usize, value: usize, bound: usize },
    #[error("count at {offset} is {value}, must be between 1 and {bound}")]
    Count { offset: usize, value: usize, bound: usize },
    #[error("index entry {entry}: hash {hash:#010x} is not above {bound:#010x}, the one before")]
    HashOrder { entry: usize, hash: u32, bound: u32 },
    #[error("index entry {entry}: block 0 is the root")]
    BlockZero { entry: usize },
    #[error("checksum is {found:#010x}, the bytes give {expected:#010x}")]
    Checksum { found: u32, expected: u32 },
    #[error("no index entry {entry} among {count}, limit {limit}")]
    NoEntry { entry: usize, count: usize, limit: usize },
}

/// One index entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DxEntry {
    /// The lowest hash below it; bit 0 set if the leaf before may hold the same. 0 for entry 0.
    pub hash: u32,
    /// Logical block of the directory.
    pub block: u32,
}

/// The root's fields about the whole index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DxRootInfo {
    /// The function that the index is sorted by.
    pub hash_version: HashVersion,
    /// Levels of nodes between root and leaves.
    pub indirect_levels: u8,
    /// The directory itself, from ".".
    pub own: u32,
    /// Its parent, from "..".
    pub parent: u32,
}

/// The kind of an index block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DxKind {
    /// Block 0.
    Root,
    /// Any other.
    Node,
}

impl DxKind {
    /// Returns the byte where the entries start.
    pub fn entries_offset(self) -> usize {
        match self {
            Self::Root => ROOT_ENTRIES,
            Self::Node => NODE_ENTRIES,
        }
    }

    /// Returns how many entries fit.
    pub fn limit(self, layout: &DirLayout) -> usize {
        let tail = usize::from(layout.checksums);
        layout.block_size.saturating_sub(self.entries_offset()) / ENTRY_LEN - tail
    }
}

/// The entries of an index block that has been [verified](verify_root).
#[derive(Debug, Clone, Copy)]
pub struct DxView<'a> {
    block: &'a [u8],
    kind: DxKind,
}

impl<'a> DxView<'a> {
    /// Looks at `block` as an index block of `kind`. Verify it first; a block that breaks the
    /// rules gives wrong answers, no more.
    pub fn new(block: &'a [u8], kind: DxKind) -> Self {
        Self { block, kind }
    }

    /// Returns the number of entries in use.
    pub fn count(&self) -> usize {
        usize::from(u16_at(self.block, self.kind.entries_offset() + 2))
    }

    /// Returns how many entries fit.
    pub fn limit(&self) -> usize {
        usize::from(u16_at(self.block, self.kind.entries_offset()))
    }

    /// Returns entry `i`, if there is one.
    pub fn get(&self, i: usize) -> Option<DxEntry> {
        (i < self.count()).then(|| self.at(i))
    }

    fn at(&self, i: usize) -> DxEntry {
        let at = self.kind.entries_offset() + i * ENTRY_LEN;
        DxEntry {
            hash: if i == 0 { 0 } else { u32_at(self.block, at) },
            block: u32_at(self.block, at + 4) & BLOCK_MASK,
        }
    }

    /// Returns the last entry whose hash is not above `hash`: the first block that can hold it.
    pub fn search(&self, hash: u32) -> usize {
        let (mut low, mut high) = (1, self.count());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.at(middle).hash > hash {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low - 1
    }
}

/// Checks a root: dots, info, counts, order and checksum. `max_levels` is 1, or 2 with `large_dir`.
///
/// # Errors
/// The first rule that is broken.
pub fn verify_root(
    block: &[u8],
    layout: &DirLayout,
    max_levels: u8,
    seed: Option<u32>,
) -> Result<DxRootInfo, HtreeError> {
    let known =
        |value| HashVersion::from_raw(value).ok_or(HtreeError::HashVersion { offset: HASH_VERSION, value });
    let (hash_version, indirect_levels) = verify_any_root(block, layout, max_levels, seed, known)?;
    Ok(DxRootInfo { hash_version, indirect_levels, own: u32_at(block, 0), parent: u32_at(block, DOTDOT) })
}

/// Checks the root of a directory that is both encrypted and case-folded, as [`verify_root`] does.
/// It is sorted by SipHash, whose key the volume does not have. Returns the levels of nodes between
/// root and leaves.
///
/// # Errors
/// The first rule that is broken.
pub fn verify_siphash_root(
    block: &[u8],
    layout: &DirLayout,
    max_levels: u8,
    seed: Option<u32>,
) -> Result<u8, HtreeError> {
    let siphash = |value| match value {
        DX_HASH_SIPHASH => Ok(()),
        _ => Err(HtreeError::NotSipHash { offset: HASH_VERSION, value, bound: DX_HASH_SIPHASH }),
    };
    verify_any_root(block, layout, max_levels, seed, siphash).map(|((), levels)| levels)
}

/// Checks a root. Returns what `version` makes of its `hash_version`, and its `indirect_levels`.
fn verify_any_root<T>(
    block: &[u8],
    layout: &DirLayout,
    max_levels: u8,
    seed: Option<u32>,
    version: impl FnOnce(u8) -> Result<T, HtreeError>,
) -> Result<(T, u8), HtreeError> {
    check_len(block, layout)?;
    check_dot(block, layout, 0, ".", DOTDOT)?;
    check_dot(block, layout, DOTDOT, "..", layout.block_size - DOTDOT)?;
    let reserved = u32_at(block, ROOT_INFO);
    if reserved != 0 {
        return Err(HtreeError::ReservedZero { offset: ROOT_INFO, value: reserved });
    }
    let [hash_version, length, levels, flags] = u32_at(block, HASH_VERSION).to_le_bytes();
    let hash = version(hash_version)?;
    if length != 8 {
        return Err(HtreeError::InfoLength { offset: ROOT_INFO + 5, value: length });
    }
    if levels > max_levels {
        return Err(HtreeError::IndirectLevels { offset: ROOT_INFO + 6, value: levels, bound: max_levels });
    }
    if flags != 0 {
        return Err(HtreeError::UnusedFlags { offset: ROOT_INFO + 7, value: flags });
    }
    verify_entries(block, layout, DxKind::Root, seed)?;
    Ok((hash, levels))
}

/// Checks a node: its fake entry, counts, order and checksum.
///
/// # Errors
/// The first rule that is broken.
pub fn verify_node(block: &[u8], layout: &DirLayout, seed: Option<u32>) -> Result<(), HtreeError> {
    check_len(block, layout)?;
    let inode = u32_at(block, 0);
    if inode != 0 {
        return Err(HtreeError::Inode { offset: 0, inode, min: 0, max: 0 });
    }
    check_rec_len(block, layout, 0, layout.block_size)?;
    verify_entries(block, layout, DxKind::Node, seed)
}

/// Returns a verified root's fields about its index; `None` if the block is not a root.
pub fn root_info(block: &[u8]) -> Option<DxRootInfo> {
    let [version, _, indirect_levels, _] = u32_at(block, HASH_VERSION).to_le_bytes();
    let hash_version = HashVersion::from_raw(version)?;
    Some(DxRootInfo { hash_version, indirect_levels, own: u32_at(block, 0), parent: u32_at(block, DOTDOT) })
}

fn check_len(block: &[u8], layout: &DirLayout) -> Result<(), HtreeError> {
    if block.len() != layout.block_size {
        return Err(HtreeError::BlockLen { len: block.len(), bound: layout.block_size });
    }
    Ok(())
}

fn check_rec_len(block: &[u8], layout: &DirLayout, offset: usize, bound: usize) -> Result<(), HtreeError> {
    let value = layout.decode_rec_len(u16_at(block, offset + 4));
    if value != bound {
        return Err(HtreeError::RecLen { offset, value, bound });
    }
    Ok(())
}

fn check_dot(
    block: &[u8],
    layout: &DirLayout,
    offset: usize,
    name: &'static str,
    rec_len: usize,
) -> Result<(), HtreeError> {
    let named = block.get(offset + dirent::HEADER_LEN..).is_some_and(|b| b.starts_with(name.as_bytes()));
    if !named || block.get(offset + 6).is_none_or(|&len| usize::from(len) != name.len()) {
        return Err(HtreeError::RootDot { offset, name });
    }
    check_rec_len(block, layout, offset, rec_len)?;
    let inode = u32_at(block, offset);
    if inode == 0 || inode > layout.inodes_count {
        return Err(HtreeError::Inode { offset, inode, min: 1, max: layout.inodes_count });
    }
    Ok(())
}

fn verify_entries(
    block: &[u8],
    layout: &DirLayout,
    kind: DxKind,
    seed: Option<u32>,
) -> Result<(), HtreeError> {
    let view = DxView::new(block, kind);
    let (offset, count, limit, bound) =
        (kind.entries_offset(), view.count(), view.limit(), kind.limit(layout));
    if limit != bound {
        return Err(HtreeError::Limit { offset, value: limit, bound });
    }
    if count == 0 || count > limit {
        return Err(HtreeError::Count { offset: offset + 2, value: count, bound: limit });
    }
    if layout.checksums {
        let found = u32_at(block, tail(kind, limit) + 4);
        let expected = checksum(block, kind, seed);
        if found != expected {
            return Err(HtreeError::Checksum { found, expected });
        }
    }
    let mut last = 0;
    for i in 0..count {
        let DxEntry { hash, block } = view.at(i);
        if block == 0 {
            return Err(HtreeError::BlockZero { entry: i });
        }
        // Equal only where one hash goes on over more than two leaves.
        if i > 0 && (hash < last || hash == last && hash & 1 == 0) {
            return Err(HtreeError::HashOrder { entry: i, hash, bound: last });
        }
        last = hash;
    }
    Ok(())
}

/// Returns the byte of the tail: right behind the last entry that fits.
fn tail(kind: DxKind, limit: usize) -> usize {
    kind.entries_offset() + limit * ENTRY_LEN
}

/// Sums everything up to the last entry in use, then the tail with its checksum as zero.
fn checksum(block: &[u8], kind: DxKind, seed: Option<u32>) -> u32 {
    let view = DxView::new(block, kind);
    let used = kind.entries_offset() + view.count() * ENTRY_LEN;
    let sum = ext4_chksum(seed.unwrap_or_default(), block.get(..used).unwrap_or_default());
    let sum = ext4_chksum(sum, &u32_at(block, tail(kind, view.limit())).to_le_bytes());
    ext4_chksum(sum, &[0; 4])
}

/// Makes `block` a root with one entry.
pub fn init_root(block: &mut [u8], layout: &DirLayout, info: DxRootInfo, first: u32) {
    block.fill(0);
    let rest = layout.block_size - DOTDOT;
    let file_type = Some(FileType::Directory);
    let dot = Dirent { offset: 0, inode: info.own, rec_len: DOTDOT, file_type, name: b"." };
    let dotdot = Dirent { offset: DOTDOT, inode: info.parent, rec_len: rest, file_type, name: b".." };
    put_dot(block, layout, &dot);
    put_dot(block, layout, &dotdot);
    put(block, HASH_VERSION, &[info.hash_version.to_raw(), 8, info.indirect_levels, 0]);
    init_entries(block, layout, DxKind::Root, first);
}

fn put_dot(block: &mut [u8], layout: &DirLayout, dot: &Dirent<'_>) {
    let Dirent { offset, inode, rec_len, file_type, name } = *dot;
    // Not `write_entry`: ".." of a root spans the tail too.
    dirent::write_rec_len(block, layout, offset, rec_len);
    put(block, offset + 6, &[name.len() as u8]);
    put(block, offset + dirent::HEADER_LEN, name);
    dirent::write_inode(block, layout, offset, inode, file_type);
}

/// Makes `block` a node with one entry.
pub fn init_node(block: &mut [u8], layout: &DirLayout, first: u32) {
    block.fill(0);
    dirent::write_rec_len(block, layout, 0, layout.block_size);
    init_entries(block, layout, DxKind::Node, first);
}

fn init_entries(block: &mut [u8], layout: &DirLayout, kind: DxKind, first: u32) {
    let at = kind.entries_offset();
    put_u16(block, at, kind.limit(layout) as u16);
    put_u16(block, at + 2, 1);
    put_u32(block, at + 4, first);
}

/// Sets the levels of nodes between root and leaves.
pub fn set_indirect_levels(block: &mut [u8], levels: u8) {
    put(block, ROOT_INFO + 6, &[levels]);
}

/// Inserts an entry as number `at` (1 to count), after which the later ones move up.
///
/// # Errors
/// The block is full, or there is no such place; nothing is written.
pub fn insert(block: &mut [u8], kind: DxKind, at: usize, entry: DxEntry) -> Result<(), HtreeError> {
    let view = DxView::new(block, kind);
    let (count, limit) = (view.count(), view.limit());
    let start = kind.entries_offset() + at * ENTRY_LEN;
    let end = kind.entries_offset() + count * ENTRY_LEN;
    if at == 0 || at > count || count >= limit || end + ENTRY_LEN > block.len() {
        return Err(HtreeError::NoEntry { entry: at, count, limit });
    }
    block.copy_within(start..end, start + ENTRY_LEN);
    put_u32(block, start, entry.hash);
    put_u32(block, start + 4, entry.block);
    put_u16(block, kind.entries_offset() + 2, count as u16 + 1);
    Ok(())
}

/// Returns the entries `from..` of `src`, to be [appended](extend) elsewhere.
///
/// # Errors
/// There is no entry `from`.
pub fn entries_from(src: &[u8], kind: DxKind, from: usize) -> Result<Vec<DxEntry>, HtreeError> {
    let view = DxView::new(src, kind);
    let count = view.count();
    if from >= count {
        return Err(HtreeError::NoEntry { entry: from, count, limit: view.limit() });
    }
    Ok((from..count).map(|i| view.at(i)).collect())
}

/// Appends `entries` to those of a block.
///
/// # Errors
/// They do not fit; nothing is written.
pub fn extend(block: &mut [u8], kind: DxKind, entries: &[DxEntry]) -> Result<(), HtreeError> {
    let view = DxView::new(block, kind);
    let (count, limit) = (view.count(), view.limit());
    if count + entries.len() > limit {
        return Err(HtreeError::NoEntry { entry: count + entries.len(), count, limit });
    }
    for (i, entry) in entries.iter().enumerate() {
        let at = kind.entries_offset() + (count + i) * ENTRY_LEN;
        put_u32(block, at, entry.hash);
        put_u32(block, at + 4, entry.block);
    }
    put_u16(block, kind.entries_offset() + 2, (count + entries.len()) as u16);
    Ok(())
}

/// Drops the entries from number `count` on; 1 at least stays.
pub fn truncate(block: &mut [u8], kind: DxKind, count: usize) {
    let old = DxView::new(block, kind).count();
    if (1..old).contains(&count) {
        put_u16(block, kind.entries_offset() + 2, count as u16);
    }
}

/// Makes entry 0 lead to `first`.
pub fn set_first(block: &mut [u8], kind: DxKind, first: u32) {
    put_u32(block, kind.entries_offset() + 4, first);
}

/// Makes the checksum anew, where the volume has one.
pub fn seal(block: &mut [u8], layout: &DirLayout, kind: DxKind, seed: Option<u32>) {
    if layout.checksums {
        let at = tail(kind, kind.limit(layout));
        let sum = checksum(block, kind, seed);
        put_u32(block, at + 4, sum);
    }
}

#[cfg(test)]
mod tests;
