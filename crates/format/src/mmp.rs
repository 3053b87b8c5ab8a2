//! The block of multiple-mount protection (MMP): the host and device that use the volume, and a
//! sequence number that the user of the volume keeps changing.
//!
//! The block is read and written past the journal. [`check_interval`] and [`takeover_wait`] are the
//! times that every implementation of ext4 derives from it.

use crate::checksum::{Checksummer, ext4_chksum};
use crate::le::{join, u16_at, u32_at};
use crate::{FormatError, Result};
use std::time::Duration;

const EXT4_MMP_MAGIC: u32 = 0x004D_4D50;
const CHECKSUM: usize = 1020;
const NODENAME: usize = 64;
const BDEVNAME: usize = 32;

/// `mmp_seq`: the volume is not in use.
pub const EXT4_MMP_SEQ_CLEAN: u32 = 0xFF4D_4D50;
/// `mmp_seq`: e2fsck uses the volume.
pub const EXT4_MMP_SEQ_FSCK: u32 = 0xE24D_4D50;
/// `mmp_seq`: the last number that a user of the volume counts to. It begins at 1 again.
pub const EXT4_MMP_SEQ_MAX: u32 = 0xE24D_4D4F;

/// `s_mmp_update_interval` where the superblock has 0, in seconds.
pub const EXT4_MMP_UPDATE_INTERVAL: u16 = 5;
/// The longest `s_mmp_update_interval` in seconds.
pub const EXT4_MMP_MAX_UPDATE_INTERVAL: u16 = 300;
/// The least `mmp_check_interval` in seconds.
pub const EXT4_MMP_MIN_CHECK_INTERVAL: u16 = 5;
/// The longest `mmp_check_interval` in seconds.
pub const EXT4_MMP_MAX_CHECK_INTERVAL: u16 = 300;

/// A checked MMP block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mmp {
    /// `mmp_seq`: changes while the volume is in use.
    pub seq: u32,
    /// `mmp_time`: seconds since 1970 of the last change.
    pub time: u64,
    /// `mmp_nodename`: the host, up to its first zero byte. At most 64 bytes are encoded.
    pub nodename: Vec<u8>,
    /// `mmp_bdevname`: the device there, up to its first zero byte. At most 32 bytes are encoded.
    pub bdevname: Vec<u8>,
    /// `mmp_check_interval` in seconds.
    pub check_interval: u16,
}

/// What `mmp_seq` says of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MmpState {
    /// No host uses the volume.
    Clean,
    /// A host uses the volume, or has not closed it.
    Held,
    /// e2fsck uses the volume, or was stopped.
    Fsck,
    /// A number without a meaning.
    Unknown,
}

impl Mmp {
    /// Bytes of the structure. The rest of its block has no meaning.
    pub const LEN: usize = 1024;

    /// Checks the MMP block, read from `block`.
    ///
    /// # Errors
    /// [`FormatError::MmpMagic`], [`FormatError::MmpChecksum`], [`FormatError::Truncated`].
    pub fn parse(bytes: &[u8], block: u64, csum: &Checksummer) -> Result<Self> {
        let Some(b) = bytes.get(..Self::LEN) else {
            let (len, need) = (bytes.len(), Self::LEN);
            return Err(FormatError::Truncated { what: "MMP block", len, need });
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
            nodename: text(16, NODENAME),
            bdevname: text(80, BDEVNAME),
            check_interval: u16_at(b, 112),
        })
    }

    /// Encodes the structure, with its checksum.
    pub fn encode(&self, csum: &Checksummer) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..4].copy_from_slice(&EXT4_MMP_MAGIC.to_le_bytes());
        b[4..8].copy_from_slice(&self.seq.to_le_bytes());
        b[8..16].copy_from_slice(&self.time.to_le_bytes());
        for (at, len, text) in [(16, NODENAME, &self.nodename), (80, BDEVNAME, &self.bdevname)] {
            let text = &text[..text.len().min(len)];
            b[at..at + text.len()].copy_from_slice(text);
        }
        b[112..114].copy_from_slice(&self.check_interval.to_le_bytes());
        if let Some(seed) = csum.fs_seed() {
            let sum = ext4_chksum(seed, &b[..CHECKSUM]);
            b[CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
        }
        b
    }

    /// Returns what the sequence says.
    pub fn state(&self) -> MmpState {
        match self.seq {
            EXT4_MMP_SEQ_CLEAN => MmpState::Clean,
            EXT4_MMP_SEQ_FSCK => MmpState::Fsck,
            seq if seq <= EXT4_MMP_SEQ_MAX => MmpState::Held,
            _ => MmpState::Unknown,
        }
    }
}

/// Returns the seconds between two updates of a volume whose `s_mmp_update_interval` is `stored`.
pub fn update_interval(stored: u16) -> u16 {
    match stored {
        0 => EXT4_MMP_UPDATE_INTERVAL,
        stored => stored.min(EXT4_MMP_MAX_UPDATE_INTERVAL),
    }
}

/// Returns the `mmp_check_interval` that a host which needs `seconds` from one update to the next
/// writes: twice that, from 5 to 300.
pub fn check_interval(seconds: u16) -> u16 {
    seconds.saturating_mul(2).clamp(EXT4_MMP_MIN_CHECK_INTERVAL, EXT4_MMP_MAX_CHECK_INTERVAL)
}

/// Returns how long a host has to see the same sequence before it may take the volume, and then its
/// own: `stored` is `s_mmp_update_interval`, `check` is `mmp_check_interval` of the block. At most
/// six minutes, whatever the block says.
pub fn takeover_wait(stored: u16, check: u16) -> Duration {
    let check = check.max(stored).clamp(EXT4_MMP_MIN_CHECK_INTERVAL, EXT4_MMP_MAX_CHECK_INTERVAL);
    Duration::from_secs(u64::from(check * 2 + 1).min(u64::from(check) + 60))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Superblock;
    use crate::testing::mke2fs;

    #[test]
    fn reads_and_writes_the_block_of_mke2fs() {
        for features in ["mmp", "mmp,^metadata_csum", "mmp,metadata_csum_seed"] {
            let image = mke2fs("40M", &["-t", "ext4", "-b", "4096", "-O", features]);
            let bytes = image.bytes();
            let sb = Superblock::parse(&bytes[1024..]).unwrap();
            let (block, interval) = sb.mmp().unwrap();
            assert_eq!(interval, EXT4_MMP_UPDATE_INTERVAL);
            let mut b = bytes[block as usize * 4096..][..4096].to_vec();
            let csum = sb.checksummer();
            let mmp = Mmp::parse(&b, block, &csum).unwrap();
            assert_eq!((mmp.seq, mmp.state()), (EXT4_MMP_SEQ_CLEAN, MmpState::Clean));
            assert!(mmp.encode(&csum) == b[..Mmp::LEN], "{features}");
            b[200] ^= 1;
            if csum.fs_seed().is_some() {
                assert!(matches!(Mmp::parse(&b, block, &csum), Err(FormatError::MmpChecksum { .. })));
            }
        }
    }

    #[test]
    fn names_that_are_too_long_are_cut() {
        let long = Mmp {
            seq: 1,
            time: u64::MAX,
            nodename: vec![b'n'; 100],
            bdevname: vec![b'd'; 100],
            check_interval: u16::MAX,
        };
        let read = Mmp::parse(&long.encode(&Checksummer::NONE), 0, &Checksummer::NONE).unwrap();
        assert_eq!((read.nodename.len(), read.bdevname.len()), (64, 32));
        assert_eq!((read.time, read.check_interval, read.state()), (u64::MAX, u16::MAX, MmpState::Held));
    }

    /// The numbers of the kernel and of e2fsprogs.
    #[test]
    fn intervals() {
        assert_eq!([0, 1, 5, 999].map(update_interval), [5, 1, 5, 300]);
        assert_eq!([1, 2, 3, 5, 200].map(check_interval), [5, 5, 6, 10, 300]);
        let waits = [(1, 5), (5, 5), (5, 10), (100, 5), (5, u16::MAX)];
        let waits = waits.map(|(stored, check)| takeover_wait(stored, check).as_secs());
        assert_eq!(waits, [11, 11, 21, 160, 360]);
    }

    #[test]
    fn states() {
        let mmp = |seq| Mmp { seq, time: 0, nodename: vec![], bdevname: vec![], check_interval: 5 };
        for (seq, state) in [
            (0, MmpState::Held),
            (EXT4_MMP_SEQ_MAX, MmpState::Held),
            (EXT4_MMP_SEQ_FSCK, MmpState::Fsck),
            (EXT4_MMP_SEQ_FSCK + 1, MmpState::Unknown),
            (EXT4_MMP_SEQ_CLEAN, MmpState::Clean),
            (u32::MAX, MmpState::Unknown),
        ] {
            assert_eq!(mmp(seq).state(), state, "{seq:#x}");
        }
    }
}
