//! The pass over all inode tables: each inode by itself.

use crate::finding::Structure;
use crate::io::le32;
use crate::rule::Rule;
use crate::{Check, CheckError};
use lanefs_format::{
    Compat, EXT4_JOURNAL_INO, EXT4_RESIZE_INO, EXT4_ROOT_INO, FileType, GroupFlags, Incompat, Inode,
    InodeFlags, InodeUse, RoCompat,
};

/// The inode of bad blocks: it has a map, and nothing else.
const EXT4_BAD_INO: u32 = 1;
/// The inodes of the quota files of users and groups.
const EXT4_USR_QUOTA_INO: u32 = 3;
const EXT4_GRP_QUOTA_INO: u32 = 4;
/// The inode of a boot loader, which may have any content.
const EXT4_BOOT_LOADER_INO: u32 = 5;
/// Bytes of an inode table that are read at a time.
const CHUNK: usize = 1 << 20;
/// `i_size_high`.
const SIZE_HIGH: usize = 0x6C;
/// `obso_faddr`, of no use since ext2's first years.
const OBSO_FADDR: usize = 0x70;
/// `l_i_blocks_high`, 16 bits.
const BLOCKS_HIGH: usize = 0x74;

impl Check {
    /// Reads the table of each group as far as it was ever used.
    pub(crate) fn check_inodes(&mut self) -> Result<(), CheckError> {
        let size = usize::from(self.layout.inode_size());
        let block_size = self.layout.block_size() as usize;
        let mut buf = self.io.chunk(self.layout.inode_table_blocks().into(), CHUNK);
        for group in 0..self.layout.group_count() {
            let used = self.used_inodes(group);
            let Some(desc) = self.groups.get(&group).copied() else { continue };
            let per_chunk = (buf.len() / block_size) as u32 * self.layout.inodes_per_block();
            for first in (0..used).step_by(per_chunk as usize) {
                let count = per_chunk.min(used - first);
                let blocks = count.div_ceil(self.layout.inodes_per_block());
                let block = desc.inode_table + u64::from(first / self.layout.inodes_per_block());
                let bytes = &mut buf[..blocks as usize * block_size];
                self.io.read(block, bytes)?;
                for (index, slot) in (first..first + count).zip(bytes.chunks_exact(size)) {
                    let ino = group * self.layout.inodes_per_group() + index + 1;
                    self.check_slot(ino, slot)?;
                }
            }
        }
        if self.large_file && !self.sb.has_ro(RoCompat::LARGE_FILE) {
            let (feature, what) = ("large_file", "a file of 2 GiB or more");
            self.findings.add(Structure::Superblock, Rule::NeedsFeature { feature, what });
        }
        Ok(())
    }

    /// Returns how many inodes at the start of a group's table were ever used.
    pub(crate) fn used_inodes(&self, group: u32) -> u32 {
        let all = self.layout.inodes_per_group();
        match self.groups.get(&group) {
            Some(_) if !self.has_uninit() => all,
            Some(desc) if desc.flags.contains(GroupFlags::INODE_UNINIT) => 0,
            Some(desc) => all.saturating_sub(desc.itable_unused),
            None => 0,
        }
    }

    fn check_slot(&mut self, ino: u32, slot: &[u8]) -> Result<(), CheckError> {
        // An inode that was never in use has no checksum.
        if slot.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let inode = match Inode::parse(slot, ino, &self.inode_ctx) {
            Ok(inode) => inode,
            Err(e) => {
                self.findings.add(Structure::Inode { ino }, e);
                self.note_damaged(ino, slot);
                return Ok(());
            }
        };
        if ino < self.sb.first_ino() && ino != EXT4_ROOT_INO {
            return self.check_reserved(&inode);
        }
        if inode.links_count == 0 && !self.orphans.contains(&ino) {
            if inode.mode != 0 && inode.dtime == 0 {
                self.findings.add(Structure::Inode { ino }, Rule::DeletedWithoutTime);
            }
            return Ok(());
        }
        self.note(&inode);
        if le32(slot, OBSO_FADDR) != 0 {
            let found = le32(slot, OBSO_FADDR);
            self.findings.add(Structure::Inode { ino }, Rule::FragmentAddress { found });
        }
        let found = le32(slot, SIZE_HIGH);
        if found != 0 && !inode.is_regular() && !self.sb.has_in(Incompat::LARGEDIR) {
            self.findings.add(Structure::Inode { ino }, Rule::SizeHigh { found });
        }
        let found = le32(slot, BLOCKS_HIGH) & 0xFFFF;
        if found != 0 && !self.sb.has_ro(RoCompat::HUGE_FILE) {
            self.findings.add(Structure::Inode { ino }, Rule::BlocksHigh { found });
        }
        self.check_in_use(&inode)
    }

    fn note(&mut self, inode: &Inode) {
        self.inodes_in_use += 1;
        if let Some(note) = self.inodes.get_mut(inode.ino) {
            note.in_use = true;
            note.file_type = FileType::from_mode(inode.mode);
            note.links = inode.links_count;
            note.holds_value = inode.flags.contains(InodeFlags::EA_INODE);
            note.indexed = inode.flags.contains(InodeFlags::INDEX);
        }
    }

    /// Notes an inode that does not parse, so that its names do not count as wrong too.
    fn note_damaged(&mut self, ino: u32, slot: &[u8]) {
        let Ok(fields) = InodeUse::of(slot) else { return };
        if fields.links == 0 && !self.orphans.contains(&ino) {
            return;
        }
        if let Some(note) = self.inodes.get_mut(ino) {
            note.in_use = true;
            note.file_type = FileType::from_mode(fields.mode);
            note.links = fields.links;
        }
    }

    /// Checks an inode below `s_first_ino` that is not the root.
    fn check_reserved(&mut self, inode: &Inode) -> Result<(), CheckError> {
        let ino = inode.ino;
        if let Some(note) = self.inodes.get_mut(ino) {
            note.file_type = FileType::from_mode(inode.mode);
            note.links = inode.links_count;
        }
        if self.has_use(ino) {
            self.inodes_in_use += 1;
            if ino != EXT4_RESIZE_INO {
                return self.check_in_use(inode);
            }
            self.note_size(inode);
            return Ok(());
        }
        match ino {
            EXT4_BAD_INO => self.check_bad_inode(inode),
            EXT4_BOOT_LOADER_INO if inode.mode != 0 && !inode.is_dir() => self.check_contents(inode),
            _ => self.check_unused(inode),
        }
    }

    /// Checks the inode of bad blocks.
    fn check_bad_inode(&mut self, inode: &Inode) -> Result<(), CheckError> {
        // e2fsck looks at the low 16 bits of owner and group.
        let is_owned = (inode.uid | inode.gid) & 0xFFFF != 0;
        let is_file = inode.mode != 0 || inode.links_count != 0 || inode.file_acl != 0;
        if is_owned || is_file || inode.flags.contains(InodeFlags::INLINE_DATA) {
            self.findings.add(Structure::Inode { ino: inode.ino }, Rule::BadBlocksInode);
        }
        self.check_contents(inode)
    }

    /// Checks a reserved inode that nothing uses.
    fn check_unused(&mut self, inode: &Inode) -> Result<(), CheckError> {
        let structure = Structure::Inode { ino: inode.ino };
        if inode.mode != 0 {
            self.findings.add(structure, Rule::ReservedInUse { mode: inode.mode });
        }
        match inode.ino {
            EXT4_USR_QUOTA_INO | EXT4_GRP_QUOTA_INO | EXT4_JOURNAL_INO => {
                if inode.links_count != 0 || inode.blocks != 0 || le32(&inode.i_block, 0) != 0 {
                    self.findings.add(structure, Rule::ReservedNotClear);
                }
                Ok(())
            }
            _ if inode.mode == 0 => self.check_without_map(inode),
            _ => Ok(()),
        }
    }

    /// Returns whether the superblock gives an inode a special use.
    pub(crate) fn has_use(&self, ino: u32) -> bool {
        let raw = self.sb.raw();
        let quota = self.sb.has_ro(RoCompat::QUOTA);
        ino == EXT4_RESIZE_INO && self.sb.has(Compat::RESIZE_INODE)
            || ino == raw.s_journal_inum.get() && self.sb.has(Compat::HAS_JOURNAL)
            || quota && [raw.s_usr_quota_inum, raw.s_grp_quota_inum].iter().any(|n| n.get() == ino)
            || ino == raw.s_orphan_file_inum.get() && self.sb.has(Compat::ORPHAN_FILE)
            || quota && ino == raw.s_prj_quota_inum.get()
    }

    fn check_in_use(&mut self, inode: &Inode) -> Result<(), CheckError> {
        let ino = inode.ino;
        let structure = Structure::Inode { ino };
        // An inode that the superblock names is in use, whatever its times say.
        if inode.dtime != 0 && !self.orphans.contains(&ino) && !self.has_use(ino) {
            self.findings.add(structure, Rule::DeletionTime { dtime: inode.dtime });
        }
        if (1..4).contains(&inode.extra_isize) {
            self.findings.add(structure, Rule::ExtraIsizeSmall { found: inode.extra_isize });
        }
        let Some(file_type) = FileType::from_mode(inode.mode) else {
            self.findings.add(structure, Rule::NoType { mode: inode.mode });
            return Ok(());
        };
        self.check_flags(inode, file_type);
        self.check_contents(inode)
    }

    /// Checks flags against the type and the features.
    fn check_flags(&mut self, inode: &Inode, file_type: FileType) {
        let structure = Structure::Inode { ino: inode.ino };
        let flags = inode.flags;
        let mut add = |rule| self.findings.add(structure, rule);
        let needs = [
            (InodeFlags::IMAGIC, "IMAGIC", "imagic_inodes", self.sb.has(Compat::IMAGIC_INODES)),
            (InodeFlags::EXTENTS, "EXTENTS", "extent", self.sb.has_in(Incompat::EXTENTS)),
            (InodeFlags::INLINE_DATA, "INLINE_DATA", "inline_data", self.sb.has_in(Incompat::INLINE_DATA)),
            (InodeFlags::ENCRYPT, "ENCRYPT", "encrypt", self.sb.has_in(Incompat::ENCRYPT)),
            (InodeFlags::CASEFOLD, "CASEFOLD", "casefold", self.sb.has_in(Incompat::CASEFOLD)),
            (InodeFlags::HUGE_FILE, "HUGE_FILE", "huge_file", self.sb.has_ro(RoCompat::HUGE_FILE)),
        ];
        for (_, flag, feature, _) in needs.into_iter().filter(|n| flags.contains(n.0) && !n.3) {
            add(Rule::FlagNeedsFeature { flag, feature });
        }
        if flags.contains(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA) {
            add(Rule::FlagPair { flag: "EXTENTS", other: "INLINE_DATA" });
        }
        let special = !matches!(file_type, FileType::Regular | FileType::Directory | FileType::Symlink);
        let fixed = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
        let (never, what) = match file_type {
            FileType::Regular | FileType::Directory => (InodeFlags::empty(), "a file or a directory"),
            FileType::Symlink => (fixed, "a symlink"),
            _ => (fixed | InodeFlags::EXTENTS | InodeFlags::INLINE_DATA, "a device, a FIFO or a socket"),
        };
        if flags.intersects(never) {
            add(Rule::FlagsNotOfType { flags: (flags & never).bits(), what });
        }
        if special && inode.size != 0 {
            let why = "a device, a FIFO or a socket has";
            add(Rule::Size { found: inode.size, why, bound: 0 });
        }
        let of_directories = flags & (InodeFlags::INDEX | InodeFlags::CASEFOLD);
        if !of_directories.is_empty() && file_type != FileType::Directory {
            let what = "a file that is no directory";
            add(Rule::FlagsNotOfType { flags: of_directories.bits(), what });
        }
    }
}
