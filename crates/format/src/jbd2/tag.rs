//! A tag of a descriptor block: where one copy belongs.

use super::{Checksum, Layout, get_u32, put, put_u32};
use bitflags::bitflags;

bitflags! {
    /// `t_flags`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct TagFlags: u32 {
        /// The copy's first four bytes were the magic.
        const ESCAPE = 0x1;
        /// No UUID follows the tag.
        const SAME_UUID = 0x2;
        /// Void; nothing writes it.
        const DELETED = 0x4;
        /// The last of its descriptor.
        const LAST_TAG = 0x8;
    }
}

/// The tag of one copy: where it belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    /// The block of the volume that the copy is of.
    pub block: u64,
    /// `t_flags`.
    pub flags: TagFlags,
    /// `t_checksum`, its low half with V2, 0 without checksums.
    pub checksum: u32,
}

impl Tag {
    /// Returns whether `copy`, as it lies in the log, has the checksum of the tag.
    pub fn verify(&self, layout: &Layout, sequence: u32, copy: &[u8]) -> bool {
        !layout.has_tails() || layout.copy_checksum(sequence, copy) == self.checksum
    }

    /// Parses the tag at `at`; `None` beyond the end of `body`.
    pub(crate) fn parse(layout: &Layout, body: &[u8], at: usize) -> Option<Self> {
        let tag = body.get(at..at.checked_add(layout.tag_len())?)?;
        let low = u64::from(get_u32(tag, 0)?);
        let word = get_u32(tag, 4)?;
        let high = if layout.is_64bit { u64::from(get_u32(tag, 8)?) << 32 } else { 0 };
        let (flags, checksum) = match layout.checksum {
            Checksum::V3 => (word, get_u32(tag, 12)?),
            Checksum::V2 => (word & 0xFFFF, word >> 16),
            _ => (word & 0xFFFF, 0),
        };
        Some(Self { block: high | low, flags: TagFlags::from_bits_retain(flags), checksum })
    }

    /// Writes the tag at `at` and returns where the next goes.
    pub(crate) fn put(&self, layout: &Layout, block: &mut [u8], at: usize) -> usize {
        let len = layout.tag_len();
        put_u32(block, at, self.block as u32);
        match layout.checksum {
            Checksum::V3 => {
                put_u32(block, at + 4, self.flags.bits());
                put_u32(block, at + 12, self.checksum);
            }
            _ => put_u32(block, at + 4, self.checksum << 16 | self.flags.bits() & 0xFFFF),
        }
        if layout.is_64bit {
            put_u32(block, at + 8, (self.block >> 32) as u32);
        }
        if self.flags.contains(TagFlags::SAME_UUID) {
            return at + len;
        }
        put(block, at + len, &layout.uuid);
        at + len + 16
    }
}
