//! The checksums of ext4: crc32c as `metadata_csum` uses it, crc16 as `uninit_bg` does.
//!
//! ext4 feeds crc32c a seed and keeps the raw register: no inversion before or after. The seed of
//! a volume is the crc of its UUID (or `s_checksum_seed`); the seed of everything that belongs to
//! an inode adds the inode's number and generation, so that a block that strayed from one file to
//! another is noticed.

/// Returns the crc32c of `bytes`, continued from `seed`, as the kernel's function of this name
/// does.
pub fn ext4_chksum(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// Returns the crc16 (polynomial 0x8005, reflected) of `bytes`, continued from `crc`.
pub fn crc16(crc: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(crc, |crc, &byte| {
        (0..8).fold(crc ^ u16::from(byte), |crc, _| (crc >> 1) ^ if crc & 1 == 1 { 0xA001 } else { 0 })
    })
}

/// Offset of `bg_checksum` in a group descriptor.
pub(crate) const BG_CHECKSUM: usize = 0x1E;

/// The checksum algorithm and seed of one volume. Cheap to copy; from
/// [`Superblock::checksummer`](crate::Superblock::checksummer).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checksummer {
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    None,
    GdtCsum { uuid: [u8; 16] },
    MetadataCsum { seed: u32 },
}

impl Checksummer {
    /// No structure carries a checksum.
    pub const NONE: Self = Self { kind: Kind::None };

    /// Returns a checksummer for group descriptors only (`uninit_bg`).
    pub fn gdt_csum(uuid: [u8; 16]) -> Self {
        Self { kind: Kind::GdtCsum { uuid } }
    }

    /// Returns a checksummer for every metadata block; `seed` is the volume's.
    pub fn metadata_csum(seed: u32) -> Self {
        Self { kind: Kind::MetadataCsum { seed } }
    }

    /// Returns the volume's seed, `None` without `metadata_csum`.
    pub fn fs_seed(&self) -> Option<u32> {
        match self.kind {
            Kind::MetadataCsum { seed } => Some(seed),
            _ => None,
        }
    }

    /// Returns the seed for an inode and all blocks that belong to it, `None` without
    /// `metadata_csum`.
    pub fn inode_seed(&self, ino: u32, generation: u32) -> Option<u32> {
        let seed = ext4_chksum(self.fs_seed()?, &ino.to_le_bytes());
        Some(ext4_chksum(seed, &generation.to_le_bytes()))
    }

    /// Returns `bg_checksum` of the descriptor `desc` of `group`, `None` if the volume has none.
    pub fn group_desc(&self, group: u32, desc: &[u8]) -> Option<u16> {
        let (head, rest) = desc.split_at_checked(BG_CHECKSUM)?;
        let tail = rest.get(2..)?;
        match self.kind {
            Kind::None => None,
            Kind::GdtCsum { uuid } => {
                let crc = crc16(crc16(!0, &uuid), &group.to_le_bytes());
                Some(crc16(crc16(crc, head), tail))
            }
            Kind::MetadataCsum { seed } => {
                let crc = ext4_chksum(ext4_chksum(seed, &group.to_le_bytes()), head);
                Some(ext4_chksum(ext4_chksum(crc, &[0; 2]), tail) as u16)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_values_of_the_catalogue() {
        assert_eq!(!ext4_chksum(!0, b"123456789"), 0xE306_9283);
        assert_eq!(crc16(0, b"123456789"), 0xBB3D);
        assert_eq!(crc16(!0, b"123456789"), 0x4B37);
    }

    #[test]
    fn checksums_continue() {
        assert_eq!(ext4_chksum(ext4_chksum(7, b"ab"), b"c"), ext4_chksum(7, b"abc"));
    }
}
