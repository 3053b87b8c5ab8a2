//! The map of a top file: which blocks the top has, a bit each.
//!
//! On the medium the map lies in units of 4096 bytes. Each unit has two slots, which are written
//! alternately, with an epoch, a generation and a checksum. So a torn write leaves the unit as it
//! was before. A unit of an older epoch than that of the header maps nothing.

use super::header::Fields;
use super::{BLOCK, UNIT};
use crate::AlignedBuf;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

const MAGIC: u32 = u32::from_le_bytes(*b"LFOM");
/// Bytes before the bits: magic, checksum, epoch, generation, number, and 4 that are zero.
const HEAD: usize = 32;
/// What the checksum covers, from here on.
const SUMMED: usize = 8;
/// Words of bits in a unit.
const WORDS: usize = (UNIT - HEAD) / 8;
/// Blocks that a unit tells of.
const BLOCKS: u64 = WORDS as u64 * 64;

/// The map in memory.
#[derive(Debug)]
pub(super) struct Map {
    blocks: u64,
    units: Box<[MapUnit]>,
    /// Counts changes. Locked while one is made: a thread that sees a bit and then flushes must
    /// find its unit dirty and its change counted.
    changes: Mutex<u64>,
}

#[derive(Debug, Default)]
struct MapUnit {
    /// `None` until a bit is set.
    bits: OnceLock<Box<[AtomicU64; WORDS]>>,
    /// Counts the writes of the unit: the slot is its lowest bit.
    generation: AtomicU64,
    dirty: AtomicBool,
}

/// A dirty unit, as it has to be written.
pub(super) struct DirtyUnit {
    pub(super) number: u64,
    pub(super) slot: u64,
    pub(super) bytes: AlignedBuf,
}

/// Returns how many units the map of `blocks` blocks has.
pub(super) fn units_of(blocks: u64) -> u64 {
    blocks.div_ceil(BLOCKS)
}

impl Map {
    /// Returns a map of `blocks` blocks that maps none.
    pub(super) fn new(blocks: u64) -> Self {
        let units = (0..units_of(blocks)).map(|_| MapUnit::default()).collect();
        Self { blocks, units, changes: Mutex::default() }
    }

    /// Takes over a unit of the given epoch from its two slots.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn load(&self, number: u64, slots: [&[u8]; 2], epoch: u64) -> Result<(), String> {
        let parsed = slots.map(|slot| parse(slot, number));
        let newest = match &parsed {
            [Ok(first), Ok(second)] => first.as_ref().max_by_age(second.as_ref()),
            [Ok(one), Err(_)] | [Err(_), Ok(one)] => one.as_ref(),
            [Err(why), Err(_)] => return Err(format!("unit {number} of its map {why}, in both slots")),
        };
        let Some(found) = newest.filter(|found| found.epoch == epoch) else {
            return match newest.filter(|found| found.epoch > epoch) {
                Some(found) => {
                    let newer = found.epoch;
                    Err(format!("unit {number} of its map is of epoch {newer}, its header of {epoch}"))
                }
                None => Ok(()),
            };
        };
        let Some(unit) = self.units.get(number as usize) else { return Ok(()) };
        unit.generation.store(found.generation, Ordering::Relaxed);
        let (words, _) = found.bits.as_chunks();
        let first = number * BLOCKS;
        let bits = unit.bits();
        for (at, (word, bytes)) in bits.iter().zip(words).enumerate() {
            let value = u64::from_le_bytes(*bytes);
            let start = first + at as u64 * 64;
            let beyond = if start >= self.blocks { u64::MAX } else { mask_from(self.blocks - start) };
            if value & beyond != 0 {
                return Err(format!("unit {number} of its map has blocks behind the last, {}", self.blocks));
            }
            word.store(value, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns whether the top has a block.
    pub(super) fn has(&self, block: u64) -> bool {
        let (unit, word, bit) = place(block);
        let bits = self.units.get(unit).and_then(|unit| unit.bits.get());
        bits.is_some_and(|bits| bits[word].load(Ordering::Acquire) & bit != 0)
    }

    /// Notes that the top has these blocks: their bytes have been written to it.
    pub(super) fn add(&self, blocks: Range<u64>) {
        if blocks.clone().all(|block| self.has(block)) {
            return;
        }
        let mut changes = self.lock_changes();
        for block in blocks {
            let (unit, word, bit) = place(block);
            let Some(unit) = self.units.get(unit) else { return };
            let before = unit.bits()[word].fetch_or(bit, Ordering::AcqRel);
            if before & bit == 0 {
                unit.dirty.store(true, Ordering::Release);
            }
        }
        *changes += 1;
    }

    fn lock_changes(&self) -> MutexGuard<'_, u64> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how often it has changed. Waits for a change that is being made.
    pub(super) fn changes(&self) -> u64 {
        *self.lock_changes()
    }

    /// Returns the units that have changed since the last call, as they are now.
    pub(super) fn take_dirty(&self, epoch: u64) -> Vec<DirtyUnit> {
        let mut dirty = Vec::new();
        for (number, unit) in (0..).zip(&self.units) {
            if unit.dirty.swap(false, Ordering::AcqRel) {
                let generation = unit.generation.fetch_add(1, Ordering::Relaxed) + 1;
                dirty.push(DirtyUnit {
                    number,
                    slot: generation & 1,
                    bytes: unit.encode(number, epoch, generation),
                });
            }
        }
        dirty
    }

    /// Returns the runs of blocks that the top has.
    pub(super) fn runs(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            at = self.next(at, true)?;
            let start = at;
            at = self.next(at, false).unwrap_or(self.blocks);
            Some(start..at)
        })
    }

    /// Returns the first block from `from` on that the top has, or that it has not.
    fn next(&self, mut from: u64, wanted: bool) -> Option<u64> {
        while from < self.blocks {
            let (unit, ..) = place(from);
            if self.units[unit].bits.get().is_none() {
                if !wanted {
                    return Some(from);
                }
                from = (unit as u64 + 1) * BLOCKS;
            } else if self.has(from) == wanted {
                return Some(from);
            } else {
                from += 1;
            }
        }
        None
    }

    /// Returns how many blocks the top has.
    pub(super) fn count(&self) -> u64 {
        let words = self.units.iter().filter_map(|unit| unit.bits.get()).flat_map(|bits| bits.iter());
        words.map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum()
    }
}

impl MapUnit {
    fn bits(&self) -> &[AtomicU64; WORDS] {
        self.bits.get_or_init(|| Box::new([const { AtomicU64::new(0) }; WORDS]))
    }

    fn encode(&self, number: u64, epoch: u64, generation: u64) -> AlignedBuf {
        let mut bytes = AlignedBuf::zeroed(UNIT);
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..16].copy_from_slice(&epoch.to_le_bytes());
        bytes[16..24].copy_from_slice(&generation.to_le_bytes());
        bytes[24..28].copy_from_slice(&(number as u32).to_le_bytes());
        for (word, bytes) in self.bits().iter().zip(bytes[HEAD..].chunks_exact_mut(8)) {
            bytes.copy_from_slice(&word.load(Ordering::Acquire).to_le_bytes());
        }
        let sum = crc32c::crc32c(&bytes[SUMMED..]);
        bytes[4..8].copy_from_slice(&sum.to_le_bytes());
        bytes
    }
}

/// A slot that is whole.
struct Found<'a> {
    epoch: u64,
    generation: u64,
    bits: &'a [u8],
}

trait MaxByAge<'a> {
    fn max_by_age(self, other: Self) -> Self;
}

impl<'a> MaxByAge<'a> for Option<&'a Found<'a>> {
    fn max_by_age(self, other: Self) -> Self {
        [self, other].into_iter().flatten().max_by_key(|found| (found.epoch, found.generation))
    }
}

/// Returns whether a slot begins as a unit does, whatever its other bytes are.
pub(super) fn is_unit(slot: &[u8]) -> bool {
    slot.starts_with(&MAGIC.to_le_bytes())
}

/// Reads a slot of the unit `number`: `None` if it was never written.
fn parse(bytes: &[u8], number: u64) -> Result<Option<Found<'_>>, &'static str> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let mut fields = Fields(bytes);
    match (fields.u32(), fields.u32()) {
        (Some(MAGIC), Some(sum)) if crc32c::crc32c(fields.0) == sum => {}
        _ => return Err("has a wrong checksum"),
    }
    let (Some(epoch), Some(generation), Some(own), Some(0)) =
        (fields.u64(), fields.u64(), fields.u32(), fields.u32())
    else {
        return Err("has impossible values");
    };
    if u64::from(own) != number || generation == u64::MAX {
        return Err("has impossible values");
    }
    Ok(Some(Found { epoch, generation, bits: fields.0 }))
}

/// Returns where the bit of a block is: unit, word, and the bit in it.
fn place(block: u64) -> (usize, usize, u64) {
    let within = block % BLOCKS;
    ((block / BLOCKS) as usize, (within / 64) as usize, 1 << (within % 64))
}

/// Returns a word whose bits from `bit` on are set.
fn mask_from(bit: u64) -> u64 {
    if bit >= 64 { 0 } else { u64::MAX << bit }
}

/// Returns the blocks that a range of bytes touches.
pub(super) fn blocks_of(offset: u64, len: u64) -> Range<u64> {
    let end = offset.saturating_add(len);
    if len == 0 { 0..0 } else { offset / BLOCK..end.div_ceil(BLOCK) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SOME: u64 = BLOCKS + 100;

    #[test]
    fn runs_and_units() {
        let map = Map::new(SOME);
        assert_eq!(units_of(SOME), 2);
        map.add(3..5);
        map.add(BLOCKS - 1..BLOCKS + 2);
        map.add(SOME - 1..SOME);
        assert_eq!(map.runs().collect::<Vec<_>>(), [3..5, BLOCKS - 1..BLOCKS + 2, SOME - 1..SOME]);
        assert_eq!((map.count(), map.changes()), (6, 3));
        assert!(map.has(4) && !map.has(5) && !map.has(SOME));
        let dirty = map.take_dirty(1);
        assert_eq!(dirty.iter().map(|unit| (unit.number, unit.slot)).collect::<Vec<_>>(), [(0, 1), (1, 1)]);
        assert!(map.take_dirty(1).is_empty());
        let zeros = [0; UNIT];
        let again = Map::new(SOME);
        for unit in &dirty {
            again.load(unit.number, [&zeros, &unit.bytes], 1).unwrap();
        }
        assert!(again.runs().eq(map.runs()));
        // Of another epoch.
        let other = Map::new(SOME);
        other.load(0, [&zeros, &dirty[0].bytes], 2).unwrap();
        assert_eq!(other.count(), 0);
        assert!(other.load(0, [&zeros, &dirty[0].bytes], 0).is_err());
        assert!(other.load(1, [&zeros, &dirty[0].bytes], 1).is_ok(), "the other slot was never written");
        assert!(Map::new(SOME - 1).load(1, [&zeros, &dirty[1].bytes], 1).is_err(), "a block too many");
    }

    #[test]
    fn a_count_waits_for_a_change_that_is_being_made() {
        let map = Map::new(SOME);
        std::thread::scope(|scope| {
            let mut changes = map.lock_changes();
            // The first half of `add`, in another thread.
            map.units[0].bits()[0].fetch_or(1, Ordering::AcqRel);
            let flusher = scope.spawn(|| {
                map.add(0..1);
                map.changes()
            });
            std::thread::sleep(std::time::Duration::from_millis(20));
            *changes += 1;
            drop(changes);
            assert_eq!(flusher.join().unwrap(), 1);
        });
    }

    #[test]
    fn a_torn_slot_leaves_the_other() {
        let map = Map::new(SOME);
        map.add(1..2);
        let first = map.take_dirty(1).remove(0);
        map.add(2..3);
        map.add(30_000..30_001);
        let second = map.take_dirty(1).remove(0);
        let mut torn = second.bytes.clone();
        torn[512..].fill(0);
        let again = Map::new(SOME);
        again.load(0, [&torn, &first.bytes], 1).unwrap();
        assert_eq!((again.runs().next(), again.count()), (Some(1..2), 1));
        let again = Map::new(SOME);
        again.load(0, [&second.bytes, &first.bytes], 1).unwrap();
        assert_eq!(again.runs().collect::<Vec<_>>(), [1..3, 30_000..30_001]);
        assert!(Map::new(SOME).load(0, [&torn, &torn], 1).is_err());
    }

    proptest! {
        /// Any bytes under a checksum that is right: an error, or bits of blocks that exist.
        #[test]
        fn hostile_units(mut bytes in prop::collection::vec(any::<u8>(), UNIT), few in any::<bool>()) {
            bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
            if few {
                bytes[8..HEAD + 100 * 8].fill(0);
                bytes[24] = 1;
                bytes[HEAD + 13..].fill(0);
            }
            let sum = crc32c::crc32c(&bytes[SUMMED..]);
            bytes[4..8].copy_from_slice(&sum.to_le_bytes());
            let map = Map::new(SOME);
            if map.load(1, [&bytes, &[0; UNIT]], 0).is_ok() {
                prop_assert!(map.runs().all(|run| run.end <= SOME));
            }
        }
    }
}
