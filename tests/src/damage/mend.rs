//! Checksums made anew over whatever the structures hold now.

use super::anatomy::{Anatomy, Region, RegionKind, be32, le16, le32};
use lanefs_format::ext4_chksum;

fn put_le16(bytes: &mut [u8], at: usize, value: u32) {
    if let Some(slot) = bytes.get_mut(at..at + 2) {
        slot.copy_from_slice(&(value as u16).to_le_bytes());
    }
}

fn put_le32(bytes: &mut [u8], at: usize, value: u32) {
    if let Some(slot) = bytes.get_mut(at..at + 4) {
        slot.copy_from_slice(&value.to_le_bytes());
    }
}

fn put_be32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

fn mend_inode(inode: &mut [u8], seed: u32) {
    let high = inode.len() > 128 && le16(inode, 0x80) >= 4;
    put_le16(inode, 0x7c, 0);
    if high {
        put_le16(inode, 0x82, 0);
    }
    let csum = ext4_chksum(seed, inode);
    put_le16(inode, 0x7c, csum);
    if high {
        put_le16(inode, 0x82, csum >> 16);
    }
}

impl Anatomy {
    /// Mends all that has a checksum. Bitmaps come before the descriptors that hold theirs, a
    /// journal's data before its descriptors.
    pub(super) fn mend(&self, bytes: &mut [u8]) {
        for region in self.regions.iter().filter(|r| r.kind >= RegionKind::JournalSuper) {
            self.mend_journal(bytes, region);
        }
        for region in self.regions.iter().filter(|r| r.kind == RegionKind::JournalDescriptor) {
            self.mend_journal(bytes, region);
        }
        if !self.metadata_csum {
            return;
        }
        let sb = &bytes[1024..2048];
        let has_seed = le32(sb, 0x60) & 0x2000 != 0;
        let seed = if has_seed { le32(sb, 0x270) } else { ext4_chksum(!0, &sb[0x68..0x78]) };
        for region in &self.regions {
            self.mend_one(bytes, region, seed);
        }
        for region in self.regions.iter().filter(|r| r.kind == RegionKind::Desc) {
            let (at, end) = (region.at, region.at + region.len);
            put_le16(bytes, at + 0x1e, 0);
            let csum = ext4_chksum(ext4_chksum(seed, &region.owner.to_le_bytes()), &bytes[at..end]);
            put_le16(bytes, at + 0x1e, csum);
        }
    }

    fn mend_one(&self, bytes: &mut [u8], region: &Region, seed: u32) {
        let Region { at, len, owner, .. } = *region;
        let bs = self.block_size;
        let of_inode = |bytes: &[u8]| {
            let seed = ext4_chksum(seed, &owner.to_le_bytes());
            ext4_chksum(seed, &bytes[self.inode_at(owner) + 0x64..][..4])
        };
        match region.kind {
            RegionKind::Super => {
                let csum = ext4_chksum(!0, &bytes[at..at + 0x3fc]);
                put_le32(bytes, at + 0x3fc, csum);
            }
            RegionKind::BlockBitmap | RegionKind::InodeBitmap => {
                self.mend_bitmap(bytes, region, seed);
            }
            // One that was never in use has no checksum.
            RegionKind::Inode if bytes[at..at + len].iter().all(|b| *b == 0) => {}
            RegionKind::Inode => {
                let seed = of_inode(bytes);
                mend_inode(&mut bytes[at..at + len], seed);
            }
            RegionKind::DirBlock => {
                let csum = ext4_chksum(of_inode(bytes), &bytes[at..at + bs - 12]);
                put_le32(bytes, at + bs - 4, csum);
            }
            RegionKind::DxRoot | RegionKind::DxNode => {
                let head = if region.kind == RegionKind::DxRoot { 32 } else { 8 };
                let past = |n: u16| head + 8 * usize::from(n);
                let (tail, end) = (past(le16(bytes, at + head)), past(le16(bytes, at + head + 2)));
                if end <= bs && tail + 8 <= bs {
                    let csum = ext4_chksum(of_inode(bytes), &bytes[at..at + end]);
                    let csum = ext4_chksum(csum, &bytes[at + tail..at + tail + 4]);
                    put_le32(bytes, at + tail + 4, ext4_chksum(csum, &[0; 4]));
                }
            }
            RegionKind::ExtentNode => {
                let tail = 12 + 12 * usize::from(le16(bytes, at + 4));
                if tail + 4 <= bs {
                    let csum = ext4_chksum(of_inode(bytes), &bytes[at..at + tail]);
                    put_le32(bytes, at + tail, csum);
                }
            }
            RegionKind::Xattr => {
                put_le32(bytes, at + 0x10, 0);
                let seed = ext4_chksum(seed, &((at / bs) as u64).to_le_bytes());
                let csum = ext4_chksum(seed, &bytes[at..at + bs]);
                put_le32(bytes, at + 0x10, csum);
            }
            RegionKind::Mmp => {
                let csum = ext4_chksum(seed, &bytes[at..at + 1020]);
                put_le32(bytes, at + 1020, csum);
            }
            RegionKind::Orphan => {
                let seed = ext4_chksum(of_inode(bytes), &((at / bs) as u64).to_le_bytes());
                let csum = ext4_chksum(seed, &bytes[at..at + bs - 8]);
                put_le32(bytes, at + bs - 4, csum);
            }
            _ => {}
        }
    }

    fn mend_bitmap(&self, bytes: &mut [u8], region: &Region, seed: u32) {
        let blocks = region.kind == RegionKind::BlockBitmap;
        let bits = if blocks { self.clusters_per_group } else { self.inodes_per_group };
        let csum = ext4_chksum(seed, &bytes[region.at..region.at + bits / 8]);
        let desc = self.first_desc + region.owner as usize * self.desc_size;
        let low = if blocks { 0x18 } else { 0x1a };
        put_le16(bytes, desc + low, csum);
        if self.desc_size >= 64 {
            put_le16(bytes, desc + low + 0x20, csum >> 16);
        }
    }

    fn mend_journal(&self, bytes: &mut [u8], region: &Region) {
        let Region { at, len, .. } = *region;
        let Some(sb) = self.regions.iter().find(|r| r.kind == RegionKind::JournalSuper) else { return };
        let features = be32(bytes, sb.at + 0x28);
        let (v2, v3) = (features & 0x8 != 0, features & 0x10 != 0);
        if !v2 && !v3 {
            return;
        }
        let seed = ext4_chksum(!0, &bytes[sb.at + 0x30..sb.at + 0x40]);
        let field = match region.kind {
            RegionKind::JournalSuper => {
                put_be32(bytes, at + 0xfc, 0);
                let csum = ext4_chksum(!0, &bytes[at..at + 1024]);
                return put_be32(bytes, at + 0xfc, csum);
            }
            RegionKind::JournalData => {
                let seed = ext4_chksum(seed, &region.owner.to_be_bytes());
                let csum = ext4_chksum(seed, &bytes[at..at + len]);
                if v3 {
                    put_be32(bytes, region.tag + 12, csum);
                } else {
                    bytes[region.tag + 4..region.tag + 6].copy_from_slice(&(csum as u16).to_be_bytes());
                }
                return;
            }
            RegionKind::JournalCommit => at + 0x10,
            _ => at + len - 4,
        };
        put_be32(bytes, field, 0);
        let csum = ext4_chksum(seed, &bytes[at..at + len]);
        put_be32(bytes, field, csum);
    }
}

#[cfg(test)]
mod tests {
    use crate::{RegionKind, Victim, e2fsck_clean, mke2fs};

    /// Checksums that are made anew over an undamaged volume are those that it had.
    #[test]
    fn mending_what_is_whole_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("volume");
        for args in [
            ["-t", "ext4", "-b", "1024", "-O", "orphan_file,metadata_csum_seed"].as_slice(),
            &["-t", "ext4", "-b", "4096", "-O", "^64bit,mmp"],
        ] {
            mke2fs(&path, 8 << 20, args);
            let victim = Victim::new(std::fs::read(&path).unwrap());
            assert!(victim.damaged(&[], true) == victim.bytes(), "{args:?}");
        }
    }

    /// Damage is there after mending, and no checksum speaks of it.
    #[test]
    fn damage_gets_past_the_checksums() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("volume");
        mke2fs(&path, 8 << 20, &["-t", "ext4", "-b", "1024"]);
        e2fsck_clean(&path);
        let victim = Victim::new(std::fs::read(&path).unwrap());
        let root = victim.regions().iter().filter(|r| r.kind == RegionKind::Inode).position(|r| r.owner == 2);
        // i_links_count of the root, one more or less: step 1 of the value.
        let kind = victim.anatomy.kinds().iter().position(|k| *k == RegionKind::Inode).unwrap();
        let script = [kind as u8, root.unwrap() as u8, 0, 0x1a, 0, 0, 77, 0, 0];
        std::fs::write(&path, victim.damaged(&script, true)).unwrap();
        let (code, said) = crate::e2fsck(&path, &["-fn"]);
        assert!(code == 4 && said.contains("ref count is 77") && !said.contains("checksum"), "{said}");
        std::fs::write(&path, victim.damaged(&script, false)).unwrap();
        assert!(crate::e2fsck(&path, &["-fn"]).1.contains("checksum"));
    }
}
