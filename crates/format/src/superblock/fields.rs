//! The fields of a superblock: read, and set if a mounted volume changes them.
//!
//! Invariant: a setter leaves the superblock consistent. [`encode`](Superblock::encode) makes the
//! checksum.

use super::{HashFlags, RawSuperblock, State, Superblock};
use crate::checksum::{Checksummer, ext4_chksum};
use crate::le::join;
use crate::{Compat, Features, FileType, Incompat, Inode, InodeFlags, Layout, RoCompat, Unsupported, extent};
use zerocopy::IntoBytes;

/// `s_creator_os` of a volume for the Hurd.
const EXT4_OS_HURD: u32 = 1;

impl Superblock {
    /// Returns the raw fields, for fields without a method of their own.
    pub fn raw(&self) -> &RawSuperblock {
        &self.raw
    }

    /// Returns the feature bits.
    pub fn features(&self) -> Features {
        let r = &self.raw;
        Features::from_words([
            r.s_feature_compat.get(),
            r.s_feature_incompat.get(),
            r.s_feature_ro_compat.get(),
        ])
    }

    /// Returns whether all these `compat` bits are set.
    pub fn has(&self, bits: Compat) -> bool {
        self.features().compat.contains(bits)
    }

    /// Returns whether all these `incompat` bits are set.
    pub fn has_in(&self, bits: Incompat) -> bool {
        self.features().incompat.contains(bits)
    }

    /// Returns whether all these `ro_compat` bits are set.
    pub fn has_ro(&self, bits: RoCompat) -> bool {
        self.features().ro_compat.contains(bits)
    }

    /// Returns the obstacles to reading and writing the volume, by name: feature bits; a journal on
    /// another device (`external journal`), without which the volume can be read if that journal is
    /// empty; and `inodes of the Hurd`, which cannot be written.
    pub fn unsupported(&self) -> Unsupported {
        let mut unsupported = self.features().unsupported();
        if self.has(Compat::HAS_JOURNAL) && self.raw.s_journal_inum == 0 {
            let list = match self.has_in(Incompat::RECOVER) {
                true => &mut unsupported.unreadable,
                false => &mut unsupported.unwritable,
            };
            list.push("external journal".to_owned());
        }
        if self.raw.s_creator_os == EXT4_OS_HURD {
            // They have a translator and the high half of a mode where `Inode::encode` writes the
            // version and the high half of i_file_acl.
            unsupported.unwritable.push("inodes of the Hurd".to_owned());
        }
        unsupported
    }

    /// Returns the seed and algorithm of the volume's checksums.
    pub fn checksummer(&self) -> Checksummer {
        let uuid = self.raw.s_uuid;
        if self.has_ro(RoCompat::METADATA_CSUM) {
            Checksummer::metadata_csum(match self.has_in(Incompat::CSUM_SEED) {
                true => self.raw.s_checksum_seed.get(),
                false => ext4_chksum(!0, &uuid),
            })
        } else if self.has_ro(RoCompat::GDT_CSUM) {
            Checksummer::gdt_csum(uuid)
        } else {
            Checksummer::NONE
        }
    }

    /// Returns the places of all structures.
    pub fn layout(&self) -> Layout {
        Layout::new(self)
    }

    /// Returns the number of bytes in a block: 1024 to 65536.
    pub fn block_size(&self) -> u32 {
        1024 << self.raw.s_log_block_size.get()
    }

    /// Returns the number of blocks of the volume.
    pub fn blocks_count(&self) -> u64 {
        self.wide(self.raw.s_blocks_count_lo.get(), self.raw.s_blocks_count_hi.get())
    }

    /// Returns how many blocks only privileged users may take.
    pub fn reserved_blocks_count(&self) -> u64 {
        self.wide(self.raw.s_r_blocks_count_lo.get(), self.raw.s_r_blocks_count_hi.get())
    }

    /// Returns the number of free blocks, with `bigalloc` too.
    pub fn free_blocks_count(&self) -> u64 {
        self.wide(self.raw.s_free_blocks_count_lo.get(), self.raw.s_free_blocks_count_hi.get())
    }

    fn wide(&self, lo: u32, hi: u32) -> u64 {
        join(lo, if self.has_in(Incompat::BIT64) { hi } else { 0 })
    }

    /// Returns the number of inodes of the volume.
    pub fn inodes_count(&self) -> u32 {
        self.raw.s_inodes_count.get()
    }

    /// Returns the number of free inodes.
    pub fn free_inodes_count(&self) -> u32 {
        self.raw.s_free_inodes_count.get()
    }

    /// Returns the number of bytes in an inode: 128 in revision 0.
    pub fn inode_size(&self) -> u16 {
        if self.raw.s_rev_level == 0 { 128 } else { self.raw.s_inode_size.get() }
    }

    /// Returns the first inode that is not reserved.
    pub fn first_ino(&self) -> u32 {
        if self.raw.s_rev_level == 0 { 11 } else { self.raw.s_first_ino.get() }
    }

    /// Returns the number of bytes in a group descriptor: 32 without `64bit`.
    pub fn desc_size(&self) -> u16 {
        if self.has_in(Incompat::BIT64) { self.raw.s_desc_size.get() } else { 32 }
    }

    /// Returns `s_state`.
    pub fn state(&self) -> State {
        State::from_bits_retain(self.raw.s_state.get())
    }

    /// Returns `s_flags`.
    pub fn flags(&self) -> HashFlags {
        HashFlags::from_bits_retain(self.raw.s_flags.get())
    }

    /// Returns `s_hash_seed` as the directory hash takes it.
    pub fn hash_seed(&self) -> [u32; 4] {
        self.raw.s_hash_seed.map(|w| w.get())
    }

    /// Returns `s_volume_name` up to its first zero byte.
    pub fn label(&self) -> &[u8] {
        let name = &self.raw.s_volume_name;
        name.split(|&b| b == 0).next().unwrap_or(name)
    }

    /// Returns the first inode of the orphan list, 0 if it is empty.
    pub fn last_orphan(&self) -> u32 {
        self.raw.s_last_orphan.get()
    }

    /// Returns the times of the last mount, the last write, the making and the last check, in
    /// seconds since 1970.
    pub fn times(&self) -> [u64; 4] {
        let r = &self.raw;
        [
            join(r.s_mtime.get(), r.s_mtime_hi.into()),
            join(r.s_wtime.get(), r.s_wtime_hi.into()),
            join(r.s_mkfs_time.get(), r.s_mkfs_time_hi.into()),
            join(r.s_lastcheck.get(), r.s_lastcheck_hi.into()),
        ]
    }

    /// Sets the free blocks (clusters), at most all.
    pub fn set_free_blocks_count(&mut self, n: u64) {
        let n = n.min(self.blocks_count());
        self.raw.s_free_blocks_count_lo = (n as u32).into();
        if self.has_in(Incompat::BIT64) {
            self.raw.s_free_blocks_count_hi = ((n >> 32) as u32).into();
        }
    }

    /// Sets the free inodes, at most all.
    pub fn set_free_inodes_count(&mut self, n: u32) {
        self.raw.s_free_inodes_count = n.min(self.inodes_count()).into();
    }

    /// Sets `s_state`.
    pub fn set_state(&mut self, state: State) {
        self.raw.s_state = state.bits().into();
    }

    /// Sets the head of the orphan list.
    pub fn set_last_orphan(&mut self, ino: u32) {
        self.raw.s_last_orphan = ino.into();
    }

    /// Sets or clears `needs_recovery`.
    pub fn set_recover(&mut self, on: bool) {
        let mut bits = self.features().incompat;
        bits.set(Incompat::RECOVER, on);
        self.raw.s_feature_incompat = bits.bits().into();
    }

    /// Sets or clears `orphan_present`.
    pub fn set_orphan_present(&mut self, on: bool) {
        self.set_ro(RoCompat::ORPHAN_PRESENT, on);
    }

    /// Sets `large_file`, which the first file of 2 GiB needs.
    pub fn set_large_file(&mut self) {
        self.set_ro(RoCompat::LARGE_FILE, true);
    }

    /// Sets `verity`, which the first file with a hash tree needs.
    pub fn set_verity(&mut self) {
        self.set_ro(RoCompat::VERITY, true);
    }

    /// Sets `ext_attr`, which the first extended attribute needs.
    pub fn set_ext_attr(&mut self) {
        self.make_dynamic();
        self.raw.s_feature_compat = (self.features().compat | Compat::EXT_ATTR).bits().into();
    }

    fn set_ro(&mut self, bit: RoCompat, on: bool) {
        if on {
            self.make_dynamic();
        }
        let mut bits = self.features().ro_compat;
        bits.set(bit, on);
        self.raw.s_feature_ro_compat = bits.bits().into();
    }

    /// Moves a volume of revision 0, which has no features, to revision 1.
    fn make_dynamic(&mut self) {
        if self.raw.s_rev_level == 0 {
            self.raw.s_first_ino = self.first_ino().into();
            self.raw.s_inode_size = self.inode_size().into();
            self.raw.s_rev_level = 1.into();
        }
    }

    /// Sets the time of the last mount, in seconds since 1970 (40 bits are kept).
    pub fn set_mtime(&mut self, time: u64) {
        (self.raw.s_mtime, self.raw.s_mtime_hi) = split_time(time);
    }

    /// Sets the time of the last write, in seconds since 1970 (40 bits are kept).
    pub fn set_wtime(&mut self, time: u64) {
        (self.raw.s_wtime, self.raw.s_wtime_hi) = split_time(time);
    }

    /// Sets the number of mounts since the last check.
    pub fn set_mnt_count(&mut self, n: u16) {
        self.raw.s_mnt_count = n.into();
    }

    /// Sets the kibibytes that were ever written.
    pub fn set_kbytes_written(&mut self, n: u64) {
        self.raw.s_kbytes_written = n.into();
    }

    /// Sets the volume's name; cut at 16 bytes.
    pub fn set_label(&mut self, name: &[u8]) {
        self.raw.s_volume_name = [0; 16];
        copy_cut(&mut self.raw.s_volume_name, name);
    }

    /// Sets the copy of the journal inode's `i_block` and size that recovers a lost journal inode.
    pub fn set_journal_backup(&mut self, i_block: &[u8; 60], size: u64) {
        self.raw.s_jnl_backup_type = 1;
        let words: &mut [zerocopy::little_endian::U32; 17] = &mut self.raw.s_jnl_blocks;
        for (word, bytes) in words.iter_mut().zip(i_block.chunks_exact(4)) {
            *word = crate::le::u32_at(bytes, 0).into();
        }
        words[15] = ((size >> 32) as u32).into();
        words[16] = (size as u32).into();
    }

    /// Returns the backup of the journal's inode that
    /// [`set_journal_backup`](Self::set_journal_backup) stored: a file with that map and size, and
    /// no other field of the inode. `None` if there is no backup.
    pub fn journal_backup(&self) -> Option<Inode> {
        if self.raw.s_jnl_backup_type != 1 {
            return None;
        }
        let words = &self.raw.s_jnl_blocks;
        let (ino, mode) = (self.raw.s_journal_inum.get(), FileType::Regular.mode_bits() | 0o600);
        let mut inode = Inode::new(ino, mode, &self.inode_context());
        for (bytes, word) in inode.i_block.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(word.as_bytes());
        }
        inode.size = join(words[16].get(), words[15].get());
        inode.links_count = 1;
        // Which kind of map it is was not kept. Only a tree begins with the magic number and the
        // room of a root.
        let head = (words[0].get() as u16, words[1].get() as u16);
        let is_tree = head == (extent::MAGIC, extent::max_entries(extent::ROOT_SIZE));
        inode.flags.set(InodeFlags::EXTENTS, is_tree);
        Some(inode)
    }
}

fn split_time(time: u64) -> (zerocopy::little_endian::U32, u8) {
    ((time as u32).into(), (time >> 32) as u8)
}

pub(super) fn copy_cut(dst: &mut [u8], src: &[u8]) {
    let n = dst.len().min(src.len());
    dst[..n].copy_from_slice(&src[..n]);
}
