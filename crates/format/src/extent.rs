//! Nodes of the extent tree: the 60 bytes in `i_block` and the blocks below them.
//!
//! A node is a 12-byte header, up to `eh_max` entries of 12 bytes, and, in a block, a checksum
//! behind the last possible entry. Leaves (`eh_depth` 0) hold [`Extent`]s, the others [`Index`]es;
//! in both the first field is the logical block, by which entries are sorted.
//!
//! Invariants that [`NodeRef::check`] verifies: entries are sorted, do not overlap, lie inside the
//! logical range that the parent gives, and point inside the volume. The logical block `u32::MAX`
//! does not exist, so that an exclusive end always fits in 32 bits.
//!
//! Hazard: the checksum lies at `12 + 12 * eh_max`, so a node that is rewritten keeps its `eh_max`.

use crate::ext4_chksum;
use std::fmt;
use std::ops::Range;
use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `eh_magic` of every node.
pub const MAGIC: u16 = 0xF30A;
/// Deepest tree: `eh_depth` of a root.
pub const MAX_DEPTH: u16 = 5;
/// Longest written extent, in blocks.
pub const MAX_LEN: u32 = 1 << 15;
/// Longest unwritten extent, in blocks: `ee_len` counts on from [`MAX_LEN`] for those.
pub const MAX_UNWRITTEN_LEN: u32 = MAX_LEN - 1;
/// Exclusive end of the logical blocks of a file.
pub const MAX_BLOCKS: u32 = u32::MAX;
/// Bytes of the root in `i_block`.
pub const ROOT_SIZE: usize = 60;

/// Entries that one change of a node adds at most, before they are joined: a conversion makes four
/// of one.
const ADDED: usize = 3;

const HEADER_SIZE: usize = 12;
const ENTRY_SIZE: usize = 12;

/// The place of a node, for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At {
    /// The inode that owns the tree.
    pub ino: u32,
    /// The node's block; 0 is the root in the inode.
    pub block: u64,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.block {
            0 => write!(f, "extent root of inode {}", self.ino),
            block => write!(f, "extent block {block} of inode {}", self.ino),
        }
    }
}

/// A rule of the extent tree that a volume violates.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each message names its fields")]
pub enum ExtentError {
    #[error("{at}: {len} bytes do not hold a header")]
    Short { at: At, len: usize },
    #[error("{at}: eh_magic is {value:#06x}, not 0xf30a")]
    Magic { at: At, value: u16 },
    #[error("{at}: eh_max is {value}, but 1 to {bound} entries have room")]
    Max { at: At, value: u16, bound: usize },
    #[error("{at}: eh_entries is {value}, eh_max {bound}")]
    Entries { at: At, value: u16, bound: u16 },
    #[error("{at}: eh_depth is {value}, the deepest is {bound}")]
    Depth { at: At, value: u16, bound: u16 },
    #[error("{at}: eh_depth is {value}, but the parent's makes it {expected}")]
    DepthStep { at: At, value: u16, expected: u16 },
    #[error("{at}: an index node without entries")]
    EmptyIndex { at: At },
    #[error("{at}: entry {entry} has ee_len 0")]
    EmptyExtent { at: At, entry: usize },
    #[error("{at}: entry {entry} starts at logical block {block}, before {bound}")]
    Order { at: At, entry: usize, block: u32, bound: u32 },
    #[error("{at}: entry {entry} ends at logical block {end}, the node's range at {bound}")]
    Range { at: At, entry: usize, end: u64, bound: u32 },
    #[error("{at}: entry {entry} points to blocks {start}+{len}, outside of {bound:?}")]
    Physical { at: At, entry: usize, start: u64, len: u32, bound: Range<u64> },
    #[error("inode {ino}: logical blocks {block}+{len} are to be mapped, but some are already")]
    Mapped { ino: u32, block: u32, len: u32 },
    #[error("inode {ino}: block {block} is a node of the extent tree, and is mapped by it")]
    OwnNode { ino: u32, block: u64 },
    #[error("inode {ino}: logical blocks {block}+{len} do not lie in one extent")]
    NotMapped { ino: u32, block: u32, len: u32 },
    #[error("{at}: checksum is {value:#010x}, computed {computed:#010x}")]
    Checksum { at: At, value: u32, computed: u32 },
}

/// Result of reading a node.
pub type Result<T> = std::result::Result<T, ExtentError>;

/// A run of logical blocks and the run of blocks of the volume that holds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First logical block.
    pub ee_block: u32,
    /// Blocks: 1 to [`MAX_LEN`], or [`MAX_UNWRITTEN_LEN`] if unwritten; 0 only on a damaged volume.
    pub len: u32,
    /// Allocated, but reads as zeros.
    pub unwritten: bool,
    /// First block of the volume, 48 bits.
    pub ee_start: u64,
}

impl Extent {
    /// Returns the logical block behind the last, in a type wide enough that it never wraps.
    pub fn end(&self) -> u64 {
        u64::from(self.ee_block) + u64::from(self.len)
    }

    /// Returns the length of the longest extent in this one's state.
    pub fn max_len(&self) -> u32 {
        if self.unwritten { MAX_UNWRITTEN_LEN } else { MAX_LEN }
    }

    /// Returns the extent that covers `self` and then `next`, if one can.
    pub fn join(&self, next: &Self) -> Option<Self> {
        let len = self.len + next.len;
        (self.unwritten == next.unwritten
            && self.end() == u64::from(next.ee_block)
            && self.ee_start + u64::from(self.len) == next.ee_start
            && len <= self.max_len())
        .then_some(Self { len, ..*self })
    }

    /// Returns the part of this extent inside `range` of logical blocks, if there is one.
    pub fn part(&self, range: Range<u32>) -> Option<Self> {
        let from = range.start.max(self.ee_block);
        let to = u64::from(range.end).min(self.end());
        let len = u32::try_from(to.checked_sub(u64::from(from))?).ok().filter(|len| *len > 0)?;
        Some(Self { ee_block: from, len, ee_start: self.ee_start + u64::from(from - self.ee_block), ..*self })
    }
}

/// A child node and the first logical block below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Index {
    /// First logical block.
    pub ei_block: u32,
    /// The child's block, 48 bits.
    pub ei_leaf: u64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawHeader {
    eh_magic: U16,
    eh_entries: U16,
    eh_max: U16,
    eh_depth: U16,
    eh_generation: U32,
}

/// One entry in its form on disk: an extent or an index, by the node's depth.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Entry {
    key: U32,
    rest: [U16; 4],
}

impl Entry {
    /// Returns the first logical block: `ee_block` or `ei_block`.
    pub fn key(&self) -> u32 {
        self.key.get()
    }

    /// Decodes the entry of a leaf.
    pub fn extent(&self) -> Extent {
        let [ee_len, hi, lo0, lo1] = self.rest.map(U16::get);
        let len = u32::from(ee_len);
        let unwritten = len > MAX_LEN;
        Extent {
            ee_block: self.key(),
            len: if unwritten { len - MAX_LEN } else { len },
            unwritten,
            ee_start: join48(hi, lo1, lo0),
        }
    }

    /// Decodes the entry of an index node.
    pub fn index(&self) -> Index {
        let [lo0, lo1, hi, _unused] = self.rest.map(U16::get);
        Index { ei_block: self.key(), ei_leaf: join48(hi, lo1, lo0) }
    }
}

fn join48(hi: u16, mid: u16, lo: u16) -> u64 {
    u64::from(hi) << 32 | u64::from(mid) << 16 | u64::from(lo)
}

fn split48(block: u64) -> [U16; 3] {
    [32, 16, 0].map(|shift| U16::new((block >> shift & 0xffff) as u16))
}

impl From<Extent> for Entry {
    fn from(e: Extent) -> Self {
        let [hi, lo1, lo0] = split48(e.ee_start);
        let len = if e.unwritten { e.len + MAX_LEN } else { e.len };
        Self { key: U32::new(e.ee_block), rest: [U16::new(len as u16), hi, lo0, lo1] }
    }
}

impl From<Index> for Entry {
    fn from(i: Index) -> Self {
        let [hi, lo1, lo0] = split48(i.ei_leaf);
        Self { key: U32::new(i.ei_block), rest: [lo0, lo1, hi, U16::new(0)] }
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry({:?} or {:?})", self.extent(), self.index())
    }
}

/// Returns how many entries have room in a node of `size` bytes.
pub const fn max_entries(size: usize) -> u16 {
    let n = size.saturating_sub(HEADER_SIZE) / ENTRY_SIZE;
    if n > u16::MAX as usize { u16::MAX } else { n as u16 }
}

/// The bounds that a node's place in the tree and the volume impose on it.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// `eh_depth`; `None` for a root.
    pub depth: Option<u16>,
    /// Logical blocks that the parent leaves to it.
    pub logical: Range<u32>,
    /// Blocks of the volume.
    pub blocks: Range<u64>,
}

impl Bounds {
    /// Returns the bounds of a root.
    pub fn root(blocks: Range<u64>) -> Self {
        Self { depth: None, logical: 0..MAX_BLOCKS, blocks }
    }

    /// Returns the bounds of the child at entry `n` of an index node of depth `eh_depth` inside
    /// these.
    pub fn child(&self, eh_depth: u16, entries: &[Entry], n: usize) -> Self {
        let key = |n: usize| entries.get(n).map(Entry::key);
        let (from, to) = (self.logical.start, self.logical.end);
        Self {
            depth: Some(eh_depth.saturating_sub(1)),
            logical: key(n).unwrap_or(to).max(from)..key(n + 1).unwrap_or(to).min(to),
            blocks: self.blocks.clone(),
        }
    }
}

/// A node whose header is sound and whose entries lie inside its bytes.
#[derive(Debug, Clone, Copy)]
pub struct NodeRef<'a> {
    at: At,
    /// Levels below this one.
    pub eh_depth: u16,
    /// Entries that have room.
    pub eh_max: u16,
    /// The entries.
    pub entries: &'a [Entry],
}

impl<'a> NodeRef<'a> {
    /// Reads the header of the node that fills `bytes` (a root's 60, or a block).
    ///
    /// # Errors
    /// A header that violates a rule.
    pub fn new(bytes: &'a [u8], at: At) -> Result<Self> {
        let short = || ExtentError::Short { at, len: bytes.len() };
        let (header, rest) = RawHeader::ref_from_prefix(bytes).map_err(|_| short())?;
        let [eh_magic, eh_entries, eh_max, eh_depth] =
            [header.eh_magic, header.eh_entries, header.eh_max, header.eh_depth].map(U16::get);
        let bound = usize::from(max_entries(bytes.len()));
        if eh_magic != MAGIC {
            return Err(ExtentError::Magic { at, value: eh_magic });
        }
        if eh_max == 0 || usize::from(eh_max) > bound {
            return Err(ExtentError::Max { at, value: eh_max, bound });
        }
        if eh_entries > eh_max {
            return Err(ExtentError::Entries { at, value: eh_entries, bound: eh_max });
        }
        if eh_depth > MAX_DEPTH {
            return Err(ExtentError::Depth { at, value: eh_depth, bound: MAX_DEPTH });
        }
        let (entries, _) =
            <[Entry]>::ref_from_prefix_with_elems(rest, usize::from(eh_entries)).map_err(|_| short())?;
        Ok(Self { at, eh_depth, eh_max, entries })
    }

    /// Checks depth, emptiness and the logical range: the checks that a descent needs for a node
    /// whose entries were [checked](Self::check) when its block was loaded.
    ///
    /// # Errors
    /// A depth that is not the parent's less one, an index without entries, or a first or last
    /// entry outside the parent's range.
    pub fn check_edges(&self, bounds: &Bounds) -> Result<()> {
        let (at, value) = (self.at, self.eh_depth);
        if let Some(expected) = bounds.depth.filter(|d| *d != value) {
            return Err(ExtentError::DepthStep { at, value, expected });
        }
        let Some((first, last)) = self.entries.first().zip(self.entries.last()) else {
            return if value == 0 { Ok(()) } else { Err(ExtentError::EmptyIndex { at }) };
        };
        let (from, to) = (bounds.logical.start, bounds.logical.end);
        if first.key() < from {
            return Err(ExtentError::Order { at, entry: 0, block: first.key(), bound: from });
        }
        let end = if value == 0 { last.extent().end() } else { u64::from(last.key()) + 1 };
        if end > u64::from(to) {
            return Err(ExtentError::Range { at, entry: self.entries.len() - 1, end, bound: to });
        }
        Ok(())
    }

    /// Checks every entry.
    ///
    /// # Errors
    /// The first rule that is violated.
    pub fn check(&self, bounds: &Bounds) -> Result<()> {
        self.check_edges(bounds)?;
        let at = self.at;
        let mut bound = bounds.logical.start;
        for (n, entry) in self.entries.iter().enumerate() {
            let (end, start, len) = if self.eh_depth == 0 {
                let e = entry.extent();
                if e.len == 0 {
                    return Err(ExtentError::EmptyExtent { at, entry: n });
                }
                (e.end(), e.ee_start, e.len)
            } else {
                (u64::from(entry.key()) + 1, entry.index().ei_leaf, 1)
            };
            if entry.key() < bound {
                return Err(ExtentError::Order { at, entry: n, block: entry.key(), bound });
            }
            bound = match u32::try_from(end) {
                Ok(end) if end <= bounds.logical.end => end,
                _ => return Err(ExtentError::Range { at, entry: n, end, bound: bounds.logical.end }),
            };
            if start < bounds.blocks.start || start + u64::from(len) > bounds.blocks.end {
                let bound = bounds.blocks.clone();
                return Err(ExtentError::Physical { at, entry: n, start, len, bound });
            }
        }
        Ok(())
    }

    /// Returns a copy that can be changed, with room for the entries that one change adds.
    pub fn to_node(&self) -> Node {
        let mut entries = Vec::with_capacity(self.entries.len() + ADDED);
        entries.extend_from_slice(self.entries);
        Node { eh_depth: self.eh_depth, eh_max: self.eh_max, entries }
    }
}

/// Returns the last of the sorted `entries` that starts at or before `lblk`.
pub fn find(entries: &[Entry], lblk: u32) -> Option<usize> {
    entries.partition_point(|e| e.key() <= lblk).checked_sub(1)
}

/// A node in memory. `entries` may be longer than `eh_max` until it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Levels below this one.
    pub eh_depth: u16,
    /// Entries that have room where it is stored.
    pub eh_max: u16,
    /// The entries, sorted.
    pub entries: Vec<Entry>,
}

impl Node {
    /// Returns a node without entries for `size` bytes.
    pub fn new(eh_depth: u16, size: usize) -> Self {
        Self { eh_depth, eh_max: max_entries(size), entries: Vec::new() }
    }

    /// Writes the node over the head of `bytes`, with zeros where entries have room and are not.
    ///
    /// # Errors
    /// More entries than `eh_max`, or an `eh_max` that `bytes` do not hold.
    pub fn encode(&self, bytes: &mut [u8], at: At) -> Result<()> {
        let bound = usize::from(max_entries(bytes.len()));
        if self.eh_max == 0 || usize::from(self.eh_max) > bound {
            return Err(ExtentError::Max { at, value: self.eh_max, bound });
        }
        let count = u16::try_from(self.entries.len()).unwrap_or(u16::MAX);
        if count > self.eh_max {
            return Err(ExtentError::Entries { at, value: count, bound: self.eh_max });
        }
        let short = ExtentError::Short { at, len: bytes.len() };
        let Ok((header, rest)) = RawHeader::mut_from_prefix(bytes) else { return Err(short) };
        header.eh_magic = U16::new(MAGIC);
        header.eh_entries = U16::new(count);
        header.eh_max = U16::new(self.eh_max);
        header.eh_depth = U16::new(self.eh_depth);
        let Ok((room, _)) = <[Entry]>::mut_from_prefix_with_elems(rest, usize::from(self.eh_max)) else {
            return Err(short);
        };
        let (used, unused) = room.split_at_mut(self.entries.len());
        used.copy_from_slice(&self.entries);
        unused.as_mut_bytes().fill(0);
        Ok(())
    }
}

/// Returns an empty root, the `i_block` of a new file.
pub fn empty_root() -> [u8; ROOT_SIZE] {
    let mut bytes = [0; ROOT_SIZE];
    let node = Node::new(0, ROOT_SIZE);
    // An empty node of this size always has room.
    let encoded = node.encode(&mut bytes, At { ino: 0, block: 0 });
    debug_assert!(encoded.is_ok());
    bytes
}

/// Splits a node block at its checksum, which lies behind the last of `eh_max` entries.
fn tail(bytes: &[u8]) -> Option<(&[u8], &[u8; 4])> {
    let (header, _) = RawHeader::ref_from_prefix(bytes).ok()?;
    let offset = HEADER_SIZE + ENTRY_SIZE * usize::from(header.eh_max.get());
    let (body, rest) = bytes.split_at_checked(offset)?;
    Some((body, rest.first_chunk()?))
}

/// Checks the checksum of the node block `bytes`. `seed` is the owning inode's.
///
/// # Errors
/// The two sums, if they differ.
pub fn verify_checksum(bytes: &[u8], seed: u32, at: At) -> Result<()> {
    let Some((body, sum)) = tail(bytes) else { return Err(ExtentError::Short { at, len: bytes.len() }) };
    let (value, computed) = (u32::from_le_bytes(*sum), ext4_chksum(seed, body));
    if value == computed { Ok(()) } else { Err(ExtentError::Checksum { at, value, computed }) }
}

/// Makes the checksum of the node block `bytes` anew. `seed` is the owning inode's.
///
/// # Errors
/// An `eh_max` that leaves no room for it.
pub fn set_checksum(bytes: &mut [u8], seed: u32, at: At) -> Result<()> {
    let short = ExtentError::Short { at, len: bytes.len() };
    let Some((body, _)) = tail(bytes) else { return Err(short) };
    let (offset, sum) = (body.len(), ext4_chksum(seed, body));
    match bytes.get_mut(offset..offset + 4) {
        Some(to) => to.copy_from_slice(&sum.to_le_bytes()),
        None => return Err(short),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: At = At { ino: 12, block: 7 };

    fn leaf(extents: &[(u32, u32, u64)]) -> Node {
        let e = |&(ee_block, len, ee_start)| Extent { ee_block, len, unwritten: false, ee_start }.into();
        Node { entries: extents.iter().map(e).collect(), ..Node::new(0, 1024) }
    }

    fn check(node: &Node, logical: Range<u32>) -> Result<()> {
        let mut bytes = vec![0; 1024];
        node.encode(&mut bytes, AT)?;
        NodeRef::new(&bytes, AT)?.check(&Bounds { depth: Some(0), logical, blocks: 1..1000 })
    }

    #[test]
    fn capacities_of_the_block_sizes() {
        assert_eq!([60, 1024, 2048, 4096, 65536].map(max_entries), [4, 84, 169, 340, 5460]);
    }

    /// Bytes laid out by hand: 0-7 at 1153, and 100-32866 at 0x1_2345_6789, unwritten.
    #[test]
    fn entries_lie_as_the_format_says() {
        let mut root = empty_root();
        assert_eq!(root[..12], [0x0a, 0xf3, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
        root[2] = 2;
        root[12..24].copy_from_slice(&[0, 0, 0, 0, 8, 0, 0, 0, 0x81, 0x04, 0, 0]);
        root[24..36].copy_from_slice(&[100, 0, 0, 0, 0xff, 0xff, 1, 0, 0x89, 0x67, 0x45, 0x23]);
        let node = NodeRef::new(&root, At { ino: 12, block: 0 }).unwrap().to_node();
        let written = Extent { ee_block: 0, len: 8, unwritten: false, ee_start: 1153 };
        let unwritten = Extent { ee_block: 100, len: 32767, unwritten: true, ee_start: 0x1_2345_6789 };
        assert_eq!(node.entries.iter().map(Entry::extent).collect::<Vec<_>>(), [written, unwritten]);
        let mut again = empty_root();
        node.encode(&mut again, AT).unwrap();
        assert_eq!(again, root);
        let index = Index { ei_block: 9, ei_leaf: 0xABCD_1234_5678 };
        let bytes = [9, 0, 0, 0, 0x78, 0x56, 0x34, 0x12, 0xcd, 0xab, 0, 0];
        assert_eq!(Entry::from(index).as_bytes(), bytes);
        assert_eq!(Entry::from(index).index(), index);
        // 32768 is the longest written extent, not an unwritten one of length 0.
        let longest = Extent { len: MAX_LEN, ..written };
        assert_eq!(Entry::from(longest).extent(), longest);
    }

    #[test]
    fn each_broken_rule_has_its_error() {
        let good = leaf(&[(5, 3, 10), (8, 2, 20)]);
        check(&good, 5..10).unwrap();
        let order = check(&leaf(&[(5, 3, 10), (7, 1, 20)]), 0..100).unwrap_err();
        assert_eq!(order, ExtentError::Order { at: AT, entry: 1, block: 7, bound: 8 });
        let low = check(&good, 6..100).unwrap_err();
        assert_eq!(low, ExtentError::Order { at: AT, entry: 0, block: 5, bound: 6 });
        let high = check(&good, 0..9).unwrap_err();
        assert_eq!(high, ExtentError::Range { at: AT, entry: 1, end: 10, bound: 9 });
        let wrap = check(&leaf(&[(u32::MAX - 1, 2, 10)]), 0..MAX_BLOCKS).unwrap_err();
        assert!(matches!(wrap, ExtentError::Range { end: 0x1_0000_0000, .. }));
        let outside = check(&leaf(&[(5, 3, 998)]), 0..100).unwrap_err();
        assert!(matches!(outside, ExtentError::Physical { start: 998, len: 3, .. }));
        assert!(matches!(check(&leaf(&[(5, 3, 0)]), 0..100), Err(ExtentError::Physical { start: 0, .. })));
        assert!(matches!(check(&leaf(&[(5, 0, 9)]), 0..100), Err(ExtentError::EmptyExtent { entry: 0, .. })));
        let index = Node { eh_depth: 2, ..leaf(&[]) };
        assert!(matches!(check(&index, 0..100), Err(ExtentError::DepthStep { value: 2, expected: 0, .. })));

        let mut bytes = vec![0; 1024];
        good.encode(&mut bytes, AT).unwrap();
        let header = |at: usize, value: u16| {
            let mut bytes = bytes.clone();
            bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
            NodeRef::new(&bytes, AT).map(|_| ()).unwrap_err()
        };
        assert_eq!(header(0, 0xF30B), ExtentError::Magic { at: AT, value: 0xF30B });
        assert_eq!(header(2, 85), ExtentError::Entries { at: AT, value: 85, bound: 84 });
        assert_eq!(header(4, 85), ExtentError::Max { at: AT, value: 85, bound: 84 });
        assert_eq!(header(4, 0), ExtentError::Max { at: AT, value: 0, bound: 84 });
        assert_eq!(header(6, 6), ExtentError::Depth { at: AT, value: 6, bound: 5 });
        assert!(matches!(NodeRef::new(&bytes[..11], AT), Err(ExtentError::Short { len: 11, .. })));
    }

    #[test]
    fn a_checksum_covers_every_byte_before_it() {
        let mut bytes = vec![0; 1024];
        leaf(&[(5, 3, 10)]).encode(&mut bytes, AT).unwrap();
        set_checksum(&mut bytes, 77, AT).unwrap();
        verify_checksum(&bytes, 77, AT).unwrap();
        assert!(verify_checksum(&bytes, 78, AT).is_err());
        for n in 12..1024 {
            bytes[n] ^= 1;
            assert!(verify_checksum(&bytes, 77, AT).is_err(), "byte {n}");
            bytes[n] ^= 1;
        }
    }

    #[test]
    fn parts_and_joins() {
        let e = |ee_block, len, ee_start| Extent { ee_block, len, unwritten: false, ee_start };
        let whole = e(10, 10, 100);
        assert_eq!(whole.part(0..12), Some(e(10, 2, 100)));
        assert_eq!(whole.part(12..14), Some(e(12, 2, 102)));
        assert_eq!(whole.part(20..30), None);
        assert_eq!(whole.part(0..10), None);
        assert_eq!(whole.join(&e(20, 5, 110)), Some(e(10, 15, 100)));
        assert_eq!(whole.join(&e(20, 5, 111)), None);
        assert_eq!(whole.join(&e(21, 5, 110)), None);
        assert_eq!(whole.join(&Extent { unwritten: true, ..e(20, 5, 110) }), None);
        assert_eq!(e(0, MAX_LEN - 1, 100).join(&e(MAX_LEN - 1, 2, 100 + u64::from(MAX_LEN) - 1)), None);
    }
}
