//! What tells one base of an overlay or a cache from another.
//!
//! Every program that writes to an ext4 volume changes its superblock (`s_wtime`, `s_mnt_count`,
//! its checksum), and the superblock lies in the first 4096 bytes of the volume. So the size and
//! checksums of these bytes tell whether a base is the one that it was. Each sector of 512 bytes
//! has its own checksum: a write that was cut leaves some of them old and some new.
//!
//! Hazard: a program that changes blocks of a volume past its file system, such as `dd`, leaves
//! the identity as it was.

use crate::checksum::checksum;
use crate::{AlignedBuf, BlockDevice, Result};
use std::fmt;

/// Bytes at the start of a base that the checksums cover.
pub(crate) const HEAD: usize = SECTORS * SECTOR;
const SECTOR: usize = 512;
const SECTORS: usize = 8;
/// Bytes of the checksums.
pub(crate) const HEAD_SUMS: usize = SECTORS * 8;
/// `s_magic` and `s_uuid` on a volume.
pub(crate) const MAGIC: (usize, [u8; 2]) = (1024 + 0x38, [0x53, 0xef]);
const UUID: usize = 1024 + 0x68;

/// The identity of the device below an overlay or a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BaseIdentity {
    /// Size in bytes.
    pub(crate) size: u64,
    /// Checksum of each of the first sectors, 0 for one behind the end.
    pub(crate) sums: [u64; SECTORS],
    /// `s_uuid`, zeros for a device without an ext4 volume.
    pub(crate) uuid: [u8; 16],
}

impl BaseIdentity {
    /// Reads the identity of a device, past the caches of this host.
    pub(crate) fn read(device: &dyn BlockDevice) -> Result<Self> {
        let size = device.size();
        let mut head = AlignedBuf::zeroed(HEAD.min(usize::try_from(size).unwrap_or(HEAD)));
        device.read_shared(&mut head, 0)?;
        Ok(Self::of(size, &head))
    }

    /// Returns the identity of a device of `size` bytes that begins with `head`.
    pub(crate) fn of(size: u64, head: &[u8]) -> Self {
        let magic = head.get(MAGIC.0..MAGIC.0 + 2);
        let uuid = head.get(UUID..UUID + 16).filter(|_| magic == Some(&MAGIC.1));
        let uuid = uuid.and_then(|uuid| uuid.try_into().ok()).unwrap_or_default();
        let mut sums = [0; SECTORS];
        for (sum, sector) in sums.iter_mut().zip(head.chunks(SECTOR)) {
            *sum = checksum(0, sector);
        }
        Self { size, sums, uuid }
    }

    /// Returns whether a device may be this one while its first sectors become those of `after`:
    /// each is as it was, or as it will be.
    pub(crate) fn may_become(&self, after: &Self, now: &Self) -> bool {
        let sums = self.sums.iter().zip(&after.sums).zip(&now.sums);
        self.size == now.size && sums.into_iter().all(|((before, after), now)| [before, after].contains(&now))
    }

    /// Returns the bytes of the checksums.
    pub(crate) fn sums_bytes(&self) -> [u8; HEAD_SUMS] {
        let mut bytes = [0; HEAD_SUMS];
        for (bytes, sum) in bytes.chunks_exact_mut(8).zip(self.sums) {
            bytes.copy_from_slice(&sum.to_le_bytes());
        }
        bytes
    }

    /// Returns the checksums of such bytes.
    pub(crate) fn sums_of(bytes: &[u8; HEAD_SUMS]) -> [u64; SECTORS] {
        let (words, _) = bytes.as_chunks();
        std::array::from_fn(|at| u64::from_le_bytes(words[at]))
    }
}

impl fmt::Display for BaseIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, uuid, .. } = self;
        let sum = checksum(0, &self.sums_bytes());
        write!(f, "{size} bytes, ")?;
        if *uuid != [0; 16] {
            write!(f, "UUID {}, ", Hex(uuid))?;
        }
        write!(f, "superblock {sum:016x}")
    }
}

/// A UUID as text.
struct Hex<'a>(&'a [u8; 16]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            let dash = if matches!(at, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}
