//! The block of multiple-mount protection (MMP): the host and device that use the volume, and a
//! sequence number that the user of the volume keeps changing.

use crate::checksum::{Checksummer, ext4_chksum};
use crate::le::{join, u16_at, u32_at};
use crate::{FormatError, Result};

const EXT4_MMP_MAGIC: u32 = 0x004D_4D50;
const CHECKSUM: usize = 1020;

/// `mmp_seq`: the volume is not in use.
pub const EXT4_MMP_SEQ_CLEAN: u32 = 0xFF4D_4D50;
/// `mmp_seq`: e2fsck uses the volume.
pub const EXT4_MMP_SEQ_FSCK: u32 = 0xE24D_4D50;

/// A checked MMP block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mmp {
    /// `mmp_seq`: changes while the volume is in use.
    pub seq: u32,
    /// `mmp_time`: seconds since 1970 of the last change.
    pub time: u64,
    /// `mmp_nodename`: the host, up to its first zero byte.
    pub nodename: Vec<u8>,
    /// `mmp_bdevname`: the device there, up to its first zero byte.
    pub bdevname: Vec<u8>,
    /// `mmp_check_interval` in seconds.
    pub check_interval: u16,
}

impl Mmp {
    /// Checks the MMP block, read from `block`.
    ///
    /// # Errors
    /// [`FormatError::MmpMagic`], [`FormatError::MmpChecksum`], [`FormatError::Truncated`].
    pub fn parse(bytes: &[u8], block: u64, csum: &Checksummer) -> Result<Self> {
        let Some(b) = bytes.get(..1024) else {
            return Err(FormatError::Truncated { what: "MMP block", len: bytes.len(), need: 1024 });
        };
        let found = u32_at(b, 0);
        if found != EXT4_MMP_MAGIC {
            return Err(FormatError::MmpMagic { block, found });
        }
        if let Some(seed) = csum.fs_seed() {
            let (found, expected) = (u32_at(b, CHECKSUM), ext4_chksum(seed, &b[..CHECKSUM]));
            if found != expected {
                return Err(FormatError::MmpChecksum { block, found, expected });
            }
        }
        let text = |at: usize, len| b[at..at + len].split(|&c| c == 0).next().unwrap_or_default().to_vec();
        Ok(Self {
            seq: u32_at(b, 4),
            time: join(u32_at(b, 8), u32_at(b, 12)),
            nodename: text(16, 64),
            bdevname: text(80, 32),
            check_interval: u16_at(b, 112),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Superblock;
    use crate::testing::mke2fs;

    #[test]
    fn reads_the_block_of_mke2fs() {
        let image = mke2fs("40M", &["-t", "ext4", "-b", "4096", "-O", "mmp"]);
        let bytes = image.bytes();
        let sb = Superblock::parse(&bytes[1024..]).unwrap();
        let block = sb.raw().s_mmp_block.get();
        let mut b = bytes[block as usize * 4096..][..4096].to_vec();
        let mmp = Mmp::parse(&b, block, &sb.checksummer()).unwrap();
        assert_eq!(mmp.seq, EXT4_MMP_SEQ_CLEAN);
        b[200] ^= 1;
        assert!(matches!(Mmp::parse(&b, block, &sb.checksummer()), Err(FormatError::MmpChecksum { .. })));
    }
}
