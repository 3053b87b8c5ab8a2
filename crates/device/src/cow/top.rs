//! The top of an overlay: the blocks that were written, and the map that says which those are.
//!
//! ```text
//!  0        4096     8192           8192 + units * 8192             a multiple of 4096
//!  | header | header | unit 0 | unit 0 | unit 1 | unit 1 | ... | block 0 | block 1 | ...
//! ```
//!
//! Each block of the base has its own place, so the map needs no addresses, and the file is sparse.
//!
//! Invariants:
//! - A bit is on the medium only if a flush of the block's bytes has succeeded before it was
//!   written.
//! - A slot is overwritten only after a flush that made the other slot durable. After a failed
//!   flush nothing is flushed any more.

use super::UNIT;
use super::header::{Header, Slot};
use super::map::{Map, is_unit, units_of};
use super::{BLOCK, refused};
use crate::errno::{EINVAL, EIO, ESTALE, EUCLEAN, kind};
use crate::identity::BaseIdentity;
use crate::{AlignedBuf, BlockDevice, DeviceError, Op, Result};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Slots of the header and of each unit.
const SLOTS: u64 = 2;
/// Bytes that a cut does not tear, on any device.
const SECTOR: usize = 512;
/// Bytes of the map that are read at once.
const READ: u64 = 1 << 20;

/// The greatest base: the map takes memory for all of it, and a server may lie about its size.
const MOST: u64 = 64 << 40;

/// Returns the size of a top over a base of `size` bytes, `None` if the base is too large.
pub(super) fn size_of(size: u64) -> Option<u64> {
    if size > MOST {
        return None;
    }
    let blocks = size.div_ceil(BLOCK);
    data_of(blocks).checked_add(blocks.checked_mul(BLOCK)?)
}

/// Returns the first byte of the blocks.
fn data_of(blocks: u64) -> u64 {
    (SLOTS + units_of(blocks) * SLOTS) * UNIT as u64
}

/// A top that is open.
#[derive(Debug)]
pub(super) struct Top {
    pub(super) device: Arc<dyn BlockDevice>,
    pub(super) map: Map,
    data: u64,
    /// Locked by a flush of the map, and by a change of the header.
    header: Mutex<Header>,
    /// The changes of the map that are durable.
    durable: AtomicU64,
    /// A flush has failed.
    has_failed: AtomicBool,
}

/// Reads the header of a top, `None` if none was ever written.
pub(super) fn read_header(device: &dyn BlockDevice) -> Result<Option<Header>> {
    let refuse = |errno, why: String| Err(refused(device, errno, why));
    let head = UNIT as u64 * SLOTS;
    if device.size() < head {
        return refuse(EINVAL, format!("is no top of an overlay: it has {} bytes", device.size()));
    }
    let mut bytes = AlignedBuf::zeroed(head as usize);
    device.read_at(&mut bytes, 0)?;
    let (first, second) = bytes.split_at(UNIT);
    match (Header::parse(first), Header::parse(second)) {
        (Slot::Zeros, Slot::Zeros) => Ok(None),
        (Slot::Valid(first), Slot::Valid(second)) if second.generation > first.generation => {
            Ok(Some(*second))
        }
        (Slot::Valid(header), _) | (_, Slot::Valid(header)) => Ok(Some(*header)),
        (Slot::Invalid(why), _) | (_, Slot::Invalid(why)) => {
            refuse(EUCLEAN, format!("is no top of an overlay, or is damaged: it {why}"))
        }
    }
}

impl Top {
    /// Opens a top over the base of this identity and name. A top without a header gets one, if it
    /// can be written; one for reading maps nothing.
    ///
    /// # Errors
    /// A top of another base (ESTALE), of another size, or damaged (EUCLEAN); a file that is to be
    /// a new top, and holds something else (EINVAL); the device's.
    pub(super) fn open(device: Arc<dyn BlockDevice>, base: BaseIdentity, name: &str) -> Result<Self> {
        let blocks = base.size.div_ceil(BLOCK);
        let size = size_of(base.size).unwrap_or(u64::MAX);
        let header = match read_header(&*device) {
            Err(e) if e.errno() == EUCLEAN && was_being_made(&*device, blocks, size)? => None,
            header => header?,
        };
        if let Some(header) = &header {
            check_base(&*device, header, &base, name)?;
        }
        if device.size() < size {
            let own = device.size();
            let why = format!("is damaged: a top of this base has {size} bytes, and it has {own}");
            return Err(refused(&*device, EUCLEAN, why));
        }
        let is_new = header.is_none();
        let header = header.unwrap_or(Header {
            generation: 0,
            epoch: 1,
            is_committing: false,
            base,
            after: base,
            name: name.to_owned(),
        });
        let (map, data) = (Map::new(blocks), data_of(blocks));
        let (durable, has_failed) = (AtomicU64::new(0), AtomicBool::new(false));
        let top = Self { device, map, data, header: Mutex::new(header), durable, has_failed };
        if !is_new {
            top.load_map(units_of(blocks))?;
        } else if !top.device.read_only() {
            top.clear_map()?;
            top.change_header(|_| {})?;
        }
        top.durable.store(top.map.changes(), Ordering::Relaxed);
        Ok(top)
    }

    fn load_map(&self, units: u64) -> Result<()> {
        let epoch = self.lock().epoch;
        let pair = UNIT as u64 * SLOTS;
        let mut bytes = AlignedBuf::zeroed((units * pair).min(READ) as usize);
        let mut number = 0;
        while number < units {
            let n = (units - number).min(READ / pair);
            let bytes = &mut bytes[..(n * pair) as usize];
            self.device.read_at(bytes, pair * (number + 1))?;
            for (at, pair) in (number..).zip(bytes.chunks_exact(pair as usize)) {
                let (first, second) = pair.split_at(UNIT);
                let loaded = self.map.load(at, [first, second], epoch);
                loaded.map_err(|why| refused(&*self.device, EUCLEAN, format!("is damaged: {why}")))?;
            }
            number += n;
        }
        Ok(())
    }

    /// Makes the map of a new top zeros, durably: a file that is used again may have units that are
    /// valid. A file that holds something else was named by mistake, and keeps all that it has.
    fn clear_map(&self) -> Result<()> {
        let mut was_used = false;
        self.each_piece_of_map(|_, piece| {
            for slot in piece.chunks(UNIT).filter(|slot| has_content(slot)) {
                if !is_unit(slot) {
                    let why = "is no top of an overlay: it holds zeros, and something else behind them";
                    return Err(refused(&*self.device, EINVAL, why));
                }
                was_used = true;
            }
            Ok(())
        })?;
        if was_used {
            // A cut leaves each slot with the sector that says that it is one, or without content.
            self.clear_slots(SECTOR..UNIT)?;
            self.device.flush()?;
            self.clear_slots(0..UNIT)?;
        }
        self.device.flush()
    }

    /// Makes these bytes of each slot of the map zeros. The others are written anew.
    fn clear_slots(&self, bytes: Range<usize>) -> Result<()> {
        self.each_piece_of_map(|at, piece| {
            // A hole stays one.
            if !has_content(piece) {
                return Ok(());
            }
            for slot in piece.chunks_mut(UNIT) {
                slot[bytes.clone()].fill(0);
            }
            self.device.write_at(piece, at)
        })
    }

    /// Calls `f` for each piece of the map on the medium, with its first byte and its content.
    fn each_piece_of_map(&self, mut f: impl FnMut(u64, &mut [u8]) -> Result<()>) -> Result<()> {
        let mut at = SLOTS * UNIT as u64;
        let mut bytes = AlignedBuf::zeroed((self.data - at).min(READ) as usize);
        while at < self.data {
            let n = (self.data - at).min(READ);
            let piece = &mut bytes[..n as usize];
            self.device.read_at(piece, at)?;
            f(at, piece)?;
            at += n;
        }
        Ok(())
    }

    /// Returns where a byte of the base is, if the top has its block.
    pub(super) fn place(&self, offset: u64) -> u64 {
        self.data + offset
    }

    fn lock(&self) -> MutexGuard<'_, Header> {
        self.header.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes what was written durable: the bytes of the blocks first, then the map.
    pub(super) fn flush(&self) -> Result<()> {
        if self.durable.load(Ordering::Acquire) == self.map.changes() {
            return self.unless_failed(|| self.device.flush());
        }
        let header = self.lock();
        self.unless_failed(|| self.flush_map(header.epoch))
    }

    /// Runs `make_durable`, and nothing once it has failed: it is not known which slots are
    /// durable.
    fn unless_failed(&self, make_durable: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.has_failed.load(Ordering::Acquire) {
            let why = "an earlier flush of the top of the overlay has failed";
            return Err(DeviceError::new(Op::Flush, 0, 0, io::Error::new(kind(EIO), why)));
        }
        make_durable().inspect_err(|_| self.has_failed.store(true, Ordering::Release))
    }

    fn flush_map(&self, epoch: u64) -> Result<()> {
        let changes = self.map.changes();
        // As they are now: bits that are set from here on may be of bytes that are not flushed.
        let dirty = self.map.take_dirty(epoch);
        self.device.flush()?;
        if !dirty.is_empty() {
            for unit in &dirty {
                let slot = (unit.number + 1) * SLOTS + unit.slot;
                self.device.write_at(&unit.bytes, slot * UNIT as u64)?;
            }
            self.device.flush()?;
        }
        self.durable.store(changes, Ordering::Release);
        Ok(())
    }

    /// Changes the header, and makes it durable.
    pub(super) fn change_header(&self, change: impl FnOnce(&mut Header)) -> Result<()> {
        let mut locked = self.lock();
        let mut header = locked.clone();
        change(&mut header);
        header.generation += 1;
        let at = (header.generation % SLOTS) * UNIT as u64;
        self.unless_failed(|| {
            self.device.write_at(&header.encode(), at)?;
            self.device.flush()
        })?;
        *locked = header;
        Ok(())
    }
}

fn has_content(bytes: &[u8]) -> bool {
    bytes.iter().any(|byte| *byte != 0)
}

/// Returns whether a top whose header cannot be read was cut while it was made: it has the room,
/// and zeros where nothing is written before the first header is durable.
fn was_being_made(device: &dyn BlockDevice, blocks: u64, size: u64) -> Result<bool> {
    if device.size() < size {
        return Ok(false);
    }
    let unit = UNIT as u64;
    let mut bytes = AlignedBuf::zeroed(UNIT);
    for at in [0].into_iter().chain((SLOTS * unit..data_of(blocks)).step_by(UNIT)) {
        device.read_at(&mut bytes, at)?;
        if has_content(&bytes) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Checks that a top is one of this base. While a commit changes the base, each of its first
/// sectors is as it was before or as it will be.
fn check_base(device: &dyn BlockDevice, header: &Header, base: &BaseIdentity, name: &str) -> Result<()> {
    let is_same = match header.is_committing {
        false => header.base == *base,
        true => header.base.may_become(&header.after, base),
    };
    if is_same {
        return Ok(());
    }
    let (of, own) = (&header.name, header.base);
    let why = format!(
        "is the top of another base, or its base has changed: of '{of}' ({own}), not '{name}' ({base})"
    );
    Err(refused(device, ESTALE, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemDevice;
    use crate::cow::CowDevice;

    /// The end of the header's slots, and of those of the only unit of the map.
    const MAP_END: usize = 4 * UNIT;

    /// The sectors that were written between two flushes: where, and what.
    type Unflushed = Vec<(usize, Vec<u8>)>;

    /// A device that notes what is written.
    #[derive(Debug)]
    struct Noted {
        below: Arc<MemDevice>,
        steps: Mutex<Vec<Unflushed>>,
    }

    impl BlockDevice for Noted {
        crate::forward_to!(below: size read_only read_at discard);

        fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
            let sectors = data.chunks(SECTOR).enumerate();
            let sectors = sectors.map(|(i, sector)| (offset as usize + i * SECTOR, sector.to_vec()));
            self.steps.lock().unwrap().last_mut().unwrap().extend(sectors);
            self.below.write_at(data, offset)
        }

        fn flush(&self) -> Result<()> {
            self.steps.lock().unwrap().push(Vec::new());
            self.below.flush()
        }
    }

    fn write(image: &mut [u8], (at, sector): &(usize, Vec<u8>)) {
        image[*at..][..sector.len()].copy_from_slice(sector);
    }

    /// A device whose next flush fails if it is told so.
    #[derive(Debug)]
    struct FailsOnce {
        below: MemDevice,
        next: AtomicBool,
    }

    impl BlockDevice for FailsOnce {
        crate::forward_to!(below: size read_only read_at write_at discard);

        fn flush(&self) -> Result<()> {
            match self.next.swap(false, Ordering::Relaxed) {
                true => Err(DeviceError::new(Op::Flush, 0, 0, kind(EIO).into())),
                false => Ok(()),
            }
        }
    }

    /// Also where the map has nothing new.
    #[test]
    fn nothing_is_flushed_behind_a_flush_that_failed() {
        let below = MemDevice::new(CowDevice::top_size(1 << 20).unwrap() as usize);
        let top = Arc::new(FailsOnce { below, next: AtomicBool::new(false) });
        let device = CowDevice::new(Arc::new(MemDevice::new(1 << 20)), top.clone(), "base").unwrap();
        device.write_at(&[1; 100], 0).unwrap();
        device.flush().unwrap();
        device.write_at(&[2; 100], 0).unwrap();
        top.next.store(true, Ordering::Relaxed);
        assert_eq!([(); 2].map(|()| device.flush().is_err()), [true; 2]);
    }

    /// A cut leaves any of the sectors that were not flushed as they were.
    #[test]
    fn a_cut_while_an_older_map_is_cleared_leaves_a_new_top() {
        const BASE: usize = 16 << 20;
        let below = Arc::new(MemDevice::new(BASE));
        let above = Arc::new(MemDevice::new(CowDevice::top_size(BASE as u64).unwrap() as usize));
        let device = CowDevice::new(below.clone(), above.clone(), "base").unwrap();
        // Bits of the last one are in the second sector of their unit.
        for block in [0, 4000, 4095] {
            device.write_at(&[1; 100], block * BLOCK).unwrap();
            device.flush().unwrap();
        }
        drop(device);
        above.write_at(&[0; SLOTS as usize * UNIT], 0).unwrap();
        let mut image = above.to_bytes()[..MAP_END].to_vec();
        let noted = Arc::new(Noted { below: above.clone(), steps: Mutex::new(vec![Vec::new()]) });
        drop(CowDevice::new(below.clone(), noted.clone(), "base").unwrap());
        let steps = std::mem::take(&mut *noted.steps.lock().unwrap());
        assert!(steps.iter().map(Vec::len).sum::<usize>() > 2 * UNIT / SECTOR, "the map and the header");
        for (number, step) in steps.iter().enumerate() {
            // One sector alone is written, or all but one. Behind the last: none, or all.
            for one in 0..=step.len() {
                for alone in [true, false] {
                    let mut cut = image.clone();
                    let written = step.iter().enumerate().filter(|(i, _)| (*i == one) == alone);
                    written.for_each(|(_, sector)| write(&mut cut, sector));
                    above.write_at(&cut, 0).unwrap();
                    let device = CowDevice::new(below.clone(), above.clone(), "base").unwrap();
                    assert_eq!(device.own_bytes(), 0, "step {number}, sector {one}, {alone}");
                }
            }
            step.iter().for_each(|sector| write(&mut image, sector));
        }
    }
}
