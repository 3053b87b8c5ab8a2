//! The header of a top file. It is written alternately to two slots, so a torn write leaves the
//! other one valid. The valid slot with the higher generation counts.

use super::UNIT;
use crate::AlignedBuf;
use crate::identity::{BaseIdentity, HEAD_SUMS};

const MAGIC: [u8; 8] = *b"LANEFSOV";
const VERSION: u32 = 2;
/// Where the checksum is, and what it covers from there on.
const SUM: usize = 12;
const SUMMED: usize = SUM + 4;
/// The longest name of a base that is kept.
const LONGEST_NAME: usize = 2048;

/// A header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    /// Counts the writes of the header: the slot is its lowest bit.
    pub(super) generation: u64,
    /// Counts the emptyings of the top. A unit of the map of an older epoch maps nothing.
    pub(super) epoch: u64,
    /// A commit has begun, and the base may have a part of what the top has.
    pub(super) is_committing: bool,
    /// The base that the top belongs to; as it was when the commit began.
    pub(super) base: BaseIdentity,
    /// The base as it is behind the commit that has begun.
    pub(super) after: BaseIdentity,
    /// The name of the base, as a process in any directory finds it; empty if it is too long.
    pub(super) name: String,
}

/// The content of a slot.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// It was never written.
    Zeros,
    /// It is torn, or no header at all.
    Invalid(&'static str),
    Valid(Box<Header>),
}

impl Header {
    /// Returns the bytes of a slot.
    pub(super) fn encode(&self) -> AlignedBuf {
        let name = if self.name.len() <= LONGEST_NAME { self.name.as_bytes() } else { &[] };
        let mut bytes = AlignedBuf::zeroed(UNIT);
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&MAGIC);
        put(&VERSION.to_le_bytes());
        put(&[0; 4]);
        put(&self.generation.to_le_bytes());
        put(&self.epoch.to_le_bytes());
        put(&(UNIT as u32).to_le_bytes());
        put(&u32::from(self.is_committing).to_le_bytes());
        put(&self.base.size.to_le_bytes());
        for base in [&self.base, &self.after] {
            put(&base.sums_bytes());
            put(&base.uuid);
        }
        put(&(name.len() as u32).to_le_bytes());
        put(name);
        let sum = crc32c::crc32c(&bytes[SUMMED..]);
        bytes[SUM..SUMMED].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads a slot.
    pub(super) fn parse(bytes: &[u8]) -> Slot {
        if bytes.iter().all(|byte| *byte == 0) {
            return Slot::Zeros;
        }
        let mut fields = Fields(bytes);
        match (fields.take(), fields.u32(), fields.u32()) {
            (Some(MAGIC), Some(VERSION), Some(sum)) if crc32c::crc32c(fields.0) == sum => {}
            (Some(MAGIC), Some(VERSION), _) => return Slot::Invalid("has a wrong checksum"),
            (Some(MAGIC), ..) => return Slot::Invalid("is of a version that is not known here"),
            _ => return Slot::Invalid("has no header of an overlay"),
        }
        let header = Self::parse_fields(fields).map(Box::new);
        header.map_or(Slot::Invalid("has a header with impossible values"), Slot::Valid)
    }

    fn parse_fields(mut fields: Fields<'_>) -> Option<Self> {
        let (generation, epoch) = (fields.u64()?, fields.u64()?);
        let block_size = fields.u32()?;
        let is_committing = match fields.u32()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let size = fields.u64()?;
        let mut identity = || {
            let sums = BaseIdentity::sums_of(&fields.take::<HEAD_SUMS>()?);
            Some(BaseIdentity { size, sums, uuid: fields.take()? })
        };
        let (base, after) = (identity()?, identity()?);
        let len = usize::try_from(fields.u32()?).ok()?;
        let name = fields.0.get(..len).filter(|_| len <= LONGEST_NAME)?;
        let name = std::str::from_utf8(name).ok()?.to_owned();
        // One more of each must be possible.
        let counts = generation < u64::MAX && epoch < u64::MAX;
        (counts && block_size as usize == UNIT).then_some(Self {
            generation,
            epoch,
            is_committing,
            base,
            after,
            name,
        })
    }
}

/// Fields of a structure, one behind the other.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header() -> Header {
        let base = BaseIdentity { size: 1 << 30, sums: [77; 8], uuid: [3; 16] };
        Header {
            generation: 5,
            epoch: 2,
            is_committing: true,
            base,
            after: BaseIdentity { sums: [78; 8], ..base },
            name: "nbd://h/e@2".into(),
        }
    }

    #[test]
    fn a_header_is_read_as_it_was_written() {
        assert_eq!(Header::parse(&header().encode()), Slot::Valid(header().into()));
        assert_eq!(Header::parse(&[0; UNIT]), Slot::Zeros);
        let long = Header { name: "x".repeat(5000), ..header() };
        assert_eq!(
            Header::parse(&long.encode()),
            Slot::Valid(Header { name: String::new(), ..header() }.into())
        );
    }

    proptest! {
        /// Any change of a byte is noticed, and nothing panics.
        #[test]
        fn a_changed_byte_makes_it_invalid(at in 0..UNIT, bits in 1u8..) {
            let mut bytes = header().encode();
            bytes[at] ^= bits;
            let is_invalid = matches!(Header::parse(&bytes), Slot::Invalid(_));
            prop_assert!(is_invalid);
        }

        /// Fields of any value, under a checksum that is right.
        #[test]
        fn hostile_fields(fields in prop::collection::vec(any::<u8>(), UNIT - SUMMED), len in any::<u32>()) {
            let mut bytes = header().encode();
            bytes[SUMMED..].copy_from_slice(&fields);
            bytes[208..212].copy_from_slice(&len.to_le_bytes());
            let sum = crc32c::crc32c(&bytes[SUMMED..]);
            bytes[SUM..SUMMED].copy_from_slice(&sum.to_le_bytes());
            let _ = Header::parse(&bytes);
        }
    }
}
