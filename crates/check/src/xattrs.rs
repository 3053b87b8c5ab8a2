//! Extended attributes: in the inode and in blocks that inodes share.

use crate::finding::Structure;
use crate::io::le32;
use crate::rule::Rule;
use crate::{Check, CheckError};
use lanefs_format::xattr::{self, Attr, BlockHeader, Name, Value};
use lanefs_format::{Compat, Inode};

/// Bytes of an entry before its name.
const ENTRY_HEADER: usize = 16;
/// The attribute that holds inline data beyond `i_block`.
const SYSTEM_DATA: Name<'static> = Name { index: xattr::index::SYSTEM, rest: b"data" };

/// A block of attributes: what it says of its users, and how many there are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct XattrUse {
    /// `h_refcount`; `None` if the block is damaged.
    refcount: Option<u32>,
    counted: u32,
    /// Blocks that each user counts for values in inodes of their own.
    values: u64,
}

impl Check {
    /// Checks the attributes in an inode. Returns the value of `system.data`, if it has one, and
    /// the blocks that the inode counts for values in inodes of their own.
    pub(crate) fn check_xattr_area(&mut self, inode: &Inode) -> (Option<Vec<u8>>, u64) {
        if inode.xattr_area.is_empty() {
            return (None, 0);
        }
        let structure = Structure::XattrInode { ino: inode.ino };
        let attrs = match xattr::parse_inode(&inode.xattr_area) {
            Ok(attrs) => attrs,
            Err(e) => {
                self.findings.add(structure, e);
                return (None, 0);
            }
        };
        let values = self.check_attrs(structure, &inode.xattr_area, xattr::INODE_HEADER, &attrs);
        let data = attrs.iter().find_map(|attr| match attr.value {
            Value::Bytes(bytes) if attr.name == SYSTEM_DATA => Some(bytes.to_vec()),
            _ => None,
        });
        (data, values)
    }

    /// Claims and checks the block of attributes of an inode. Returns the blocks that it takes.
    pub(crate) fn claim_xattr_block(&mut self, inode: &Inode) -> Result<u64, CheckError> {
        let block = inode.file_acl;
        if block == 0 {
            return Ok(0);
        }
        let structure = Structure::Inode { ino: inode.ino };
        if !self.sb.has(Compat::EXT_ATTR) {
            let (feature, what) = ("ext_attr", "i_file_acl");
            self.findings.add(structure, Rule::NeedsFeature { feature, what });
        }
        if self.layout.check_blocks(block, 1).is_err() {
            let (first, end) = (self.layout.first_data_block(), self.layout.blocks_count());
            self.findings.add(structure, Rule::XattrAddress { block, first, end });
            return Ok(0);
        }
        let found = match self.xattr_blocks.get(&block) {
            Some(&found) => XattrUse { counted: found.counted.saturating_add(1), ..found },
            None => {
                let (refcount, values) = self.check_xattr_block(inode.ino, block)?.unzip();
                XattrUse { refcount, counted: 1, values: values.unwrap_or(0) }
            }
        };
        self.xattr_blocks.insert(block, found);
        Ok(found.values + (1 << self.layout.cluster_bits()))
    }

    /// Claims and checks a block at its first use. Returns its `h_refcount`, and the blocks of
    /// values in inodes of their own.
    fn check_xattr_block(&mut self, ino: u32, block: u64) -> Result<Option<(u32, u64)>, CheckError> {
        if let Some(conflict) = self.blocks.claim(block, 1) {
            let rule = Rule::ClaimedTwice { block: conflict.block, count: conflict.count };
            self.findings.add(Structure::Inode { ino }, rule);
            return Ok(None);
        }
        let bytes = self.io.block(block)?;
        let structure = Structure::XattrBlock { block };
        let checked = match self.csum.fs_seed() {
            Some(seed) => xattr::verify_block(&bytes, block, seed),
            None => Ok(()),
        };
        let parsed = checked.and_then(|()| Ok((BlockHeader::parse(&bytes)?, xattr::parse_block(&bytes)?)));
        let (header, attrs) = match parsed {
            Ok(parsed) => parsed,
            Err(e) => {
                self.findings.add(structure, e);
                return Ok(None);
            }
        };
        let values = self.check_attrs(structure, &bytes, xattr::BLOCK_HEADER, &attrs);
        if attrs.iter().any(|attr| attr.hash == 0) {
            self.findings.add(structure, Rule::XattrNoHash);
        }
        Ok(Some((header.refcount, values)))
    }

    /// Checks what the codec lets pass: indexes, values that overlap, places of empty values.
    /// Returns the blocks of values in inodes of their own.
    fn check_attrs(&mut self, structure: Structure, area: &[u8], first: usize, attrs: &[Attr<'_>]) -> u64 {
        let mut values: Vec<(usize, usize)> = Vec::new();
        let (mut blocks, mut at) = (0, first);
        for attr in attrs {
            let start = (le32(area, at) >> 16) as usize;
            at += (ENTRY_HEADER + attr.name.rest.len()).next_multiple_of(4);
            if attr.name.index == 0 {
                self.findings.add(structure, Rule::XattrNameIndex { index: attr.name.index });
            }
            match attr.value {
                Value::Bytes([]) if start > area.len() => {
                    self.findings.add(structure, Rule::XattrEmptyValue { start, end: area.len() });
                }
                Value::Bytes([]) => {}
                Value::Bytes(bytes) => {
                    let start = bytes.as_ptr().addr() - area.as_ptr().addr();
                    values.push((start, start + bytes.len().next_multiple_of(4)));
                }
                Value::Inode { ino, size } => {
                    self.value_inodes.push((structure, ino));
                    let bits = self.layout.cluster_bits();
                    let clusters = u64::from(size).div_ceil(u64::from(self.layout.block_size()) << bits);
                    blocks += clusters << bits;
                }
            }
        }
        values.sort_unstable();
        for pair in values.windows(2).filter(|pair| pair[0].1 > pair[1].0) {
            self.findings.add(structure, Rule::XattrValues { start: pair[1].0 });
        }
        blocks
    }

    /// Holds the users of each block and of each inode for a value against what these say.
    pub(crate) fn check_xattr_uses(&mut self) -> Result<(), CheckError> {
        for (&block, found) in &self.xattr_blocks {
            let counted = found.counted;
            if let Some(found) = found.refcount.filter(|refcount| *refcount != counted) {
                self.findings.add(Structure::XattrBlock { block }, Rule::XattrRefcount { found, counted });
            }
        }
        let mut values = std::mem::take(&mut self.value_inodes);
        for &(structure, ino) in &values {
            match self.inodes.get_mut(ino) {
                Some(note) if note.holds_value => note.entries = note.entries.saturating_add(1),
                _ => self.findings.add(structure, Rule::XattrValueInode { ino }),
            }
        }
        values.sort_unstable_by_key(|value| value.1);
        values.dedup_by_key(|value| value.1);
        values.into_iter().try_for_each(|(_, ino)| self.check_value_users(ino))
    }

    /// Holds the users of an inode for a value against what it says: the high half of their count
    /// is its `i_ctime`, the low one its `l_i_version`. Values of Lustre have no count, and two
    /// times that are the same.
    fn check_value_users(&mut self, ino: u32) -> Result<(), CheckError> {
        let note = self.inodes.get(ino);
        let inode = if note.holds_value { self.read_inode(ino)? } else { None };
        let Some(inode) = inode else { return Ok(()) };
        let [high, hash] = [inode.ctime, inode.atime].map(|time| time.sec as u32);
        let found = u64::from(high) << 32 | u64::from(inode.version as u32);
        if found != u64::from(note.entries) && high != hash {
            let rule = Rule::XattrValueRefcount { found, counted: note.entries };
            self.findings.add(Structure::Inode { ino }, rule);
        }
        Ok(())
    }
}
