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
use crate::errno::{EINVAL, EIO, ESTALE, EUCLEAN};
use crate::identity::BaseIdentity;
use crate::{AlignedBuf, BlockDevice, DeviceError, Op, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Slots of the header and of each unit.
const SLOTS: u64 = 2;
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
    flushing: Mutex<Flushing>,
    /// The changes of the map that are durable.
    durable: AtomicU64,
}

/// What a flush and a change of the header have to themselves.
#[derive(Debug)]
struct Flushing {
    header: Header,
    has_failed: bool,
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
        let flushing = Mutex::new(Flushing { header, has_failed: false });
        let (map, data) = (Map::new(blocks), data_of(blocks));
        let top = Self { device, map, data, flushing, durable: AtomicU64::new(0) };
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
        let epoch = self.lock().header.epoch;
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
            self.each_piece_of_map(|at, piece| {
                // A hole stays one.
                if !has_content(piece) {
                    return Ok(());
                }
                piece.fill(0);
                self.device.write_at(piece, at)
            })?;
        }
        self.device.flush()
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

    fn lock(&self) -> MutexGuard<'_, Flushing> {
        self.flushing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes what was written durable: the bytes of the blocks first, then the map.
    pub(super) fn flush(&self) -> Result<()> {
        if self.durable.load(Ordering::Acquire) == self.map.changes() {
            return self.device.flush();
        }
        let mut flushing = self.lock();
        flushing.check()?;
        let done = self.flush_map(flushing.header.epoch);
        flushing.has_failed |= done.is_err();
        done
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
        let mut flushing = self.lock();
        flushing.check()?;
        let mut header = flushing.header.clone();
        change(&mut header);
        header.generation += 1;
        let at = (header.generation % SLOTS) * UNIT as u64;
        let done = self.device.write_at(&header.encode(), at).and_then(|()| self.device.flush());
        flushing.has_failed |= done.is_err();
        flushing.header = header;
        done
    }
}

impl Flushing {
    /// Refuses to go on after a failure: it is not known which slots are durable.
    fn check(&self) -> Result<()> {
        if !self.has_failed {
            return Ok(());
        }
        let why = "an earlier flush of the top of the overlay has failed";
        Err(DeviceError::new(Op::Flush, 0, 0, std::io::Error::new(crate::errno::kind(EIO), why)))
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
