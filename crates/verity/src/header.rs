//! The superblock of a hash area, version 1, and the places of the levels behind it.
//!
//! The fields are those of `struct verity_sb` of cryptsetup. Nothing of one that is read is
//! trusted: [`Header::read`] returns sizes and counts that the rest of the crate can compute with.

use crate::error::{Result, VerityError};
use crate::hash::Algorithm;
use crate::level::Level;
use lanefs_device::BlockDevice;

const SIGNATURE: &[u8; 8] = b"verity\0\0";
const SIZE: usize = 512;
/// The longest salt.
const MOST_SALT: usize = 256;
/// The most data blocks: with these no place of a block overflows.
const MOST_BLOCKS: u64 = 1 << 44;

/// A dm-verity superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The hash algorithm.
    pub algorithm: Algorithm,
    /// The UUID of the hash area.
    pub uuid: [u8; 16],
    /// At most 256 bytes, hashed before each block.
    pub salt: Vec<u8>,
    /// A power of two, from 512 to 4096 bytes.
    pub data_block_size: u32,
    /// A power of two, from 512 to 4096 bytes.
    pub hash_block_size: u32,
    /// How many data blocks the tree vouches for.
    pub data_blocks: u64,
}

impl Default for Header {
    /// Returns SHA-256, blocks of 4096 bytes, no salt, no data.
    fn default() -> Self {
        Self {
            algorithm: Algorithm::default(),
            uuid: [0; 16],
            salt: Vec::new(),
            data_block_size: 4096,
            hash_block_size: 4096,
            data_blocks: 0,
        }
    }
}

impl Header {
    /// Reads the superblock at `offset`.
    ///
    /// # Errors
    /// [`VerityError::NoSuperblock`], and a field with a value that is not known.
    pub fn read(device: &dyn BlockDevice, offset: u64) -> Result<Self> {
        let mut bytes = [0; SIZE];
        if offset.checked_add(SIZE as u64).is_none_or(|end| end > device.size()) {
            return Err(VerityError::NoSuperblock(offset));
        }
        device.read_at(&mut bytes, offset)?;
        if &bytes[..8] != SIGNATURE {
            return Err(VerityError::NoSuperblock(offset));
        }
        let u32_at = |at: usize| u32::from_le_bytes(field(&bytes, at));
        let known = |field, value: u32, bound, is: bool| match is {
            true => Ok(value),
            false => Err(VerityError::Field { field, value: value.to_string(), bound }),
        };
        known("version", u32_at(8), "1", u32_at(8) == 1)?;
        known("hash_type", u32_at(12), "1", u32_at(12) == 1)?;
        let name = bytes[32..64].split(|byte| *byte == 0).next().unwrap_or_default();
        let name = String::from_utf8_lossy(name).into_owned();
        let algorithm = Algorithm::by_name(&name).ok_or(VerityError::Field {
            field: "algorithm",
            value: format!("{name:?}"),
            bound: "sha256 or sha512",
        })?;
        let salt = usize::from(u16::from_le_bytes(field(&bytes, 80)));
        known("salt_size", salt as u32, "at most 256", salt <= MOST_SALT)?;
        let header = Self {
            algorithm,
            uuid: field(&bytes, 16),
            salt: bytes[88..88 + salt].to_vec(),
            data_block_size: u32_at(64),
            hash_block_size: u32_at(68),
            data_blocks: u64::from_le_bytes(field(&bytes, 72)),
        };
        header.check()?;
        Ok(header)
    }

    /// Returns the superblock's bytes.
    pub(crate) fn to_bytes(&self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, SIGNATURE);
        put(8, &1_u32.to_le_bytes());
        put(12, &1_u32.to_le_bytes());
        put(16, &self.uuid);
        put(32, self.algorithm.name().as_bytes());
        put(64, &self.data_block_size.to_le_bytes());
        put(68, &self.hash_block_size.to_le_bytes());
        put(72, &self.data_blocks.to_le_bytes());
        put(80, &(self.salt.len() as u16).to_le_bytes());
        put(88, &self.salt);
        bytes
    }

    /// Checks that its fields have values that are known.
    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |field, value, bound| Err(VerityError::Field { field, value, bound });
        let sizes = [("data_block_size", self.data_block_size), ("hash_block_size", self.hash_block_size)];
        for (field, size) in sizes {
            if !size.is_power_of_two() || !(512..=4096).contains(&size) {
                return wrong(field, size.to_string(), "a power of two from 512 to 4096");
            }
        }
        if !(1..=MOST_BLOCKS).contains(&self.data_blocks) {
            return wrong("data_blocks", self.data_blocks.to_string(), "1 to 2^44");
        }
        if self.salt.len() > MOST_SALT {
            return wrong("salt_size", self.salt.len().to_string(), "at most 256");
        }
        Ok(())
    }

    /// Returns the bytes of data.
    pub fn data_size(&self) -> u64 {
        self.data_blocks.saturating_mul(self.data_block_size.into())
    }

    /// Returns how many digests a block of the tree has.
    pub(crate) fn digests_per_block(&self) -> u64 {
        self.hash_block_size as u64 / self.algorithm.digest_size() as u64
    }

    /// Returns the levels of the tree from the bottom, with places for a superblock at `offset`.
    pub(crate) fn levels(&self, offset: u64) -> Result<Vec<Level>> {
        self.check()?;
        let size = u64::from(self.hash_block_size);
        let start = (offset + SIZE as u64).next_multiple_of(size);
        Ok(levels(self.data_blocks, self.digests_per_block(), size, start))
    }

    /// Returns the size in bytes of a hash area that begins at byte 0.
    ///
    /// # Errors
    /// A field with a value that is not known.
    pub fn area_size(&self) -> Result<u64> {
        let size = u64::from(self.hash_block_size);
        let bottom = self.levels(0)?.first().map(|level| level.start + level.blocks * size);
        Ok(bottom.unwrap_or(size))
    }
}

/// Returns the levels of the tree of so many blocks, from the bottom; the top lies at byte `at`.
pub(crate) fn levels(mut blocks: u64, per_block: u64, size: u64, mut at: u64) -> Vec<Level> {
    let mut counts = Vec::new();
    while blocks > 1 {
        blocks = blocks.div_ceil(per_block);
        counts.push(blocks);
    }
    let mut levels = Vec::with_capacity(counts.len());
    for &blocks in counts.iter().rev() {
        levels.push(Level { start: at, blocks });
        at += blocks * size;
    }
    levels.reverse();
    levels
}

fn field<const N: usize>(bytes: &[u8; SIZE], at: usize) -> [u8; N] {
    std::array::from_fn(|byte| bytes[at + byte])
}
