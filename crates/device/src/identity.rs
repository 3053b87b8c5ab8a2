//! What tells one base of an overlay or a cache from another.
//!
//! Every program that writes to an ext4 volume changes its superblock (`s_wtime`, `s_mnt_count`,
//! its checksum), and the superblock lies in the first 4096 bytes of the volume. So the size and a
//! checksum of these bytes tell whether a base is the one that it was.
//!
//! Hazard: a program that changes blocks of a volume past its file system, such as `dd`, leaves
//! the identity as it was.

use crate::checksum::checksum;
use crate::{AlignedBuf, BlockDevice, Result};
use std::fmt;

/// Bytes at the start of a base that the checksum covers.
const HEAD: usize = 4096;
/// `s_magic` and `s_uuid` on a volume.
const MAGIC: (usize, [u8; 2]) = (1024 + 0x38, [0x53, 0xef]);
const UUID: usize = 1024 + 0x68;

/// The identity of the device below an overlay or a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BaseIdentity {
    /// Size in bytes.
    pub(crate) size: u64,
    /// Checksum of the first bytes.
    pub(crate) sum: u64,
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
        Self { size, sum: checksum(0, head), uuid }
    }
}

impl fmt::Display for BaseIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, sum, uuid } = self;
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
