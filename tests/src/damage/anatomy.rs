//! Where the structures of a good volume lie: a reader of its own, that trusts every byte.

use std::ops::Range;

/// The kind of a structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum RegionKind {
    Super,
    Desc,
    BlockBitmap,
    InodeBitmap,
    Inode,
    ExtentNode,
    Indirect,
    DirBlock,
    DxRoot,
    DxNode,
    Xattr,
    Orphan,
    Mmp,
    JournalSuper,
    JournalDescriptor,
    JournalCommit,
    JournalRevoke,
    JournalData,
}

/// A structure of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// What it is.
    pub kind: RegionKind,
    /// Its first byte on the volume.
    pub at: usize,
    /// Its bytes.
    pub len: usize,
    /// The group, the inode that it belongs to, or 0.
    pub owner: u32,
    /// Of a journal's data block: the tag that describes it, within the volume; else 0.
    pub tag: usize,
}

#[derive(Debug)]
pub(super) struct Anatomy {
    pub(super) block_size: usize,
    pub(super) inode_size: usize,
    pub(super) desc_size: usize,
    pub(super) clusters_per_group: usize,
    pub(super) inodes_per_group: usize,
    pub(super) metadata_csum: bool,
    pub(super) first_desc: usize,
    /// First byte of each group's inode table.
    pub(super) tables: Vec<usize>,
    pub(super) regions: Vec<Region>,
}

pub(super) fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(super) fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

pub(super) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

const EXTENTS_FL: u32 = 0x8_0000;
const INDEX_FL: u32 = 0x1000;
/// The content is in the inode, which then has no map.
const INLINE_DATA_FL: u32 = 0x1000_0000;
/// Its map leads to the copies of descriptors to come.
const RESIZE_INO: u32 = 7;

impl Anatomy {
    pub(super) fn of(bytes: &[u8]) -> Self {
        let sb = &bytes[1024..2048];
        assert_eq!(le16(sb, 0x38), 0xef53, "not a volume");
        let block_size = 1024 << le32(sb, 0x18);
        let bit64 = le32(sb, 0x60) & 0x80 != 0;
        let mut this = Self {
            block_size,
            inode_size: le16(sb, 0x58).into(),
            desc_size: if bit64 { le16(sb, 0xfe).into() } else { 32 },
            clusters_per_group: le32(sb, 0x24) as usize,
            inodes_per_group: le32(sb, 0x28) as usize,
            metadata_csum: le32(sb, 0x64) & 0x400 != 0,
            // Behind the block of the superblock, whatever s_first_data_block is (0 with bigalloc).
            first_desc: (1024 / block_size + 1) * block_size,
            tables: Vec::new(),
            regions: Vec::new(),
        };
        this.add(RegionKind::Super, 1024, 1024, 0);
        if le32(sb, 0x60) & 0x100 != 0 {
            this.add(RegionKind::Mmp, le32(sb, 0x168) as usize * block_size, 1024, 0);
        }
        let blocks = le32(sb, 4) - le32(sb, 0x14);
        let groups = blocks.div_ceil(le32(sb, 0x20));
        let (journal, orphans) = (le32(sb, 0xe0), le32(sb, 0x280));
        for group in 0..groups {
            this.group(bytes, group);
        }
        for ino in 1..=le32(sb, 0) {
            let at = this.inode_at(ino);
            let in_use = le16(bytes, at) != 0;
            // Some free ones too: an allocator meets them.
            if in_use || ino % 64 == 13 {
                this.add(RegionKind::Inode, at, this.inode_size, ino);
            }
            if in_use {
                this.inode(bytes, ino, ino == journal, ino == orphans);
            }
        }
        this
    }

    /// The kinds that there are, in order.
    pub(super) fn kinds(&self) -> Vec<RegionKind> {
        let mut kinds: Vec<_> = self.regions.iter().map(|r| r.kind).collect();
        kinds.sort();
        kinds.dedup();
        kinds
    }

    fn add(&mut self, kind: RegionKind, at: usize, len: usize, owner: u32) {
        self.regions.push(Region { kind, at, len, owner, tag: 0 });
    }

    fn group(&mut self, bytes: &[u8], group: u32) {
        let at = self.first_desc + group as usize * self.desc_size;
        let bs = self.block_size;
        self.add(RegionKind::Desc, at, self.desc_size, group);
        // A bitmap that was never written is nothing but its flag.
        let flags = le16(bytes, at + 0x12);
        if flags & 2 == 0 {
            self.add(RegionKind::BlockBitmap, le32(bytes, at) as usize * bs, bs, group);
        }
        if flags & 1 == 0 {
            self.add(RegionKind::InodeBitmap, le32(bytes, at + 4) as usize * bs, bs, group);
        }
        self.tables.push(le32(bytes, at + 8) as usize * bs);
    }

    pub(super) fn inode_at(&self, ino: u32) -> usize {
        let i = ino as usize - 1;
        self.tables[i / self.inodes_per_group] + i % self.inodes_per_group * self.inode_size
    }

    fn inode(&mut self, bytes: &[u8], ino: u32, journal: bool, orphans: bool) {
        let at = self.inode_at(ino);
        let inode = &bytes[at..at + self.inode_size];
        let acl = le32(inode, 0x68) as usize;
        if acl != 0 {
            let at = acl * self.block_size;
            if !self.regions.iter().any(|r| r.at == at && r.kind == RegionKind::Xattr) {
                self.add(RegionKind::Xattr, at, self.block_size, 0);
            }
        }
        let mut blocks = Vec::new();
        let flags = le32(inode, 0x20);
        let may_map = ino != RESIZE_INO && flags & INLINE_DATA_FL == 0;
        let is_mapped = [0x4000, 0x8000].contains(&(le16(inode, 0) & 0xf000)) && may_map;
        if flags & EXTENTS_FL != 0 {
            self.extents(bytes, ino, at + 0x28..at + 0x64, &mut blocks);
        } else if is_mapped {
            let map = at + 0x28;
            self.pointers(bytes, ino, map..map + 48, 0, &mut blocks);
            for level in 1..=3 {
                let pointer = map + 44 + level * 4;
                self.pointers(bytes, ino, pointer..pointer + 4, level, &mut blocks);
            }
        }
        if journal {
            self.journal(bytes, &blocks);
        } else if orphans {
            for block in blocks {
                self.add(RegionKind::Orphan, block * self.block_size, self.block_size, ino);
            }
        } else if le16(inode, 0) & 0xf000 == 0x4000 {
            let indexed = flags & INDEX_FL != 0;
            for (i, block) in blocks.into_iter().enumerate() {
                let at = block * self.block_size;
                let whole = le32(bytes, at) == 0 && usize::from(le16(bytes, at + 4)) == self.block_size;
                let kind = match (indexed, i) {
                    (true, 0) => RegionKind::DxRoot,
                    (true, _) if whole => RegionKind::DxNode,
                    _ => RegionKind::DirBlock,
                };
                self.add(kind, at, self.block_size, ino);
            }
        }
    }

    /// Follows numbers of blocks that lie `level` levels above the data; blocks in the order of the
    /// file.
    fn pointers(
        &mut self,
        bytes: &[u8],
        ino: u32,
        numbers: Range<usize>,
        level: usize,
        blocks: &mut Vec<usize>,
    ) {
        for at in numbers.step_by(4) {
            match (le32(bytes, at) as usize, level) {
                (0, _) => {}
                (block, 0) => blocks.push(block),
                (block, _) => {
                    let child = block * self.block_size;
                    self.add(RegionKind::Indirect, child, self.block_size, ino);
                    self.pointers(bytes, ino, child..child + self.block_size, level - 1, blocks);
                }
            }
        }
    }

    /// Follows an extent node; blocks in the order of the file.
    fn extents(&mut self, bytes: &[u8], ino: u32, node: Range<usize>, blocks: &mut Vec<usize>) {
        let entries = usize::from(le16(bytes, node.start + 2));
        let depth = le16(bytes, node.start + 6);
        for i in 0..entries {
            let at = node.start + 12 + i * 12;
            if depth == 0 {
                let start = le32(bytes, at + 8) as usize;
                blocks.extend(start..start + usize::from(le16(bytes, at + 4) & 0x7fff));
            } else {
                let child = le32(bytes, at + 4) as usize * self.block_size;
                self.add(RegionKind::ExtentNode, child, self.block_size, ino);
                self.extents(bytes, ino, child..child + self.block_size, blocks);
            }
        }
    }

    fn journal(&mut self, bytes: &[u8], blocks: &[usize]) {
        let bs = self.block_size;
        self.add(RegionKind::JournalSuper, blocks[0] * bs, 1024, 0);
        let features = be32(bytes, blocks[0] * bs + 0x28);
        let mut i = 1;
        while let Some(block) = blocks.get(i) {
            let at = block * bs;
            i += 1;
            if be32(bytes, at) != 0xc03b_3998 {
                continue;
            }
            match be32(bytes, at + 4) {
                1 => {
                    self.add(RegionKind::JournalDescriptor, at, bs, 0);
                    for tag in tags(bytes, at, bs, features) {
                        let Some(data) = blocks.get(i) else { break };
                        i += 1;
                        let kind = RegionKind::JournalData;
                        self.regions.push(Region {
                            kind,
                            at: data * bs,
                            len: bs,
                            owner: be32(bytes, at + 8),
                            tag,
                        });
                    }
                }
                2 => self.add(RegionKind::JournalCommit, at, bs, 0),
                5 => self.add(RegionKind::JournalRevoke, at, bs, 0),
                _ => {}
            }
        }
    }
}

/// Where the tags of a descriptor block lie on the volume.
fn tags(bytes: &[u8], at: usize, block_size: usize, features: u32) -> Vec<usize> {
    let (v2, v3, bit64) = (features & 0x8 != 0, features & 0x10 != 0, features & 0x2 != 0);
    let size = if v3 { 16 } else { 8 + if bit64 { 4 } else { 0 } + if v2 { 2 } else { 0 } };
    let end = at + block_size - if v2 || v3 { 4 } else { 0 };
    let mut found = Vec::new();
    let mut tag = at + 12;
    while tag + size <= end {
        found.push(tag);
        let flags = if v3 { be32(bytes, tag + 4) } else { be32(bytes, tag + 4) & 0xffff };
        tag += size + if flags & 2 != 0 { 0 } else { 16 };
        if flags & 8 != 0 {
            break;
        }
    }
    found
}
