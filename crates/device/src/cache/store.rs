//! The file of a cache.
//!
//! ```text
//!  0        4096                          a multiple of 4096
//!  | header | an entry of 8 bytes a block | block 0 | block 1 | ...
//! ```
//!
//! Each block of the base has its own place; the file is sparse. An entry is the checksum of the
//! block's number and bytes, 0 for none. So it tells whatever a cut or another process has left of
//! a block. Past the bound on the file's allocation, whole regions are punched out in turn, with
//! the page of their entries. A region that was used since the last round is passed over once.

use super::BLOCK;
use crate::checksum::checksum;
use crate::errno::EFBIG;
use crate::identity::BaseIdentity;
use crate::{DeviceError, Op, Result};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

const MAGIC: [u8; 8] = *b"LANEFSCA";
const VERSION: u32 = 2;
const HEADER: usize = 4096;
const ENTRY_LEN: u64 = 8;
/// The greatest base: the store takes a byte of memory for each region, and a server may lie about
/// its size.
const MOST: u64 = 64 << 40;
/// What is evicted at once, in bytes: the blocks whose entries are one page of the file.
const REGION: u64 = ENTRIES_LEN / ENTRY_LEN * BLOCK;
/// The entries of a region, in bytes. Each region's begin at a multiple of it.
const ENTRIES_LEN: u64 = 4096;
const _: () = assert!((HEADER as u64).is_multiple_of(ENTRIES_LEN));
/// Bytes of entries that are cleared by one write; for more, a hole is made.
const ZEROS: usize = 64 << 10;
/// Bytes that are stored before the allocation is looked at again.
const UNCHECKED: u64 = 1 << 20;

/// The file of a cache, open and locked.
#[derive(Debug)]
pub(super) struct Store {
    file: File,
    blocks: u64,
    owner: u32,
    /// The most bytes that the file may take.
    limit: u64,
    stored: AtomicU64,
    /// The regions that were used since the last round of eviction.
    used: Box<[AtomicBool]>,
    /// The region that is looked at next; held by the thread that evicts.
    hand: Mutex<u64>,
    /// The file system can make no holes: nothing is stored past the bound.
    is_full: AtomicBool,
}

/// The state of the header of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It is a cache of that base.
    Same,
    /// It is new, of another base, was left by a writer, or is damaged.
    Other,
}

fn encode(identity: &BaseIdentity, is_written: bool) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    let fields: [&[u8]; 6] = [
        &MAGIC,
        &VERSION.to_le_bytes(),
        &u32::from(is_written).to_le_bytes(),
        &identity.size.to_le_bytes(),
        &identity.sums_bytes(),
        &identity.uuid,
    ];
    let fields = fields.concat();
    bytes[..fields.len()].copy_from_slice(&fields);
    let sum = crc32c::crc32c(&bytes[..HEADER - 4]);
    bytes[HEADER - 4..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Returns whether a file has the mark of a writer.
pub(super) fn is_marked(file: &File) -> bool {
    let mut bytes = [0; 16];
    let marked = [&MAGIC[..], &VERSION.to_le_bytes(), &1u32.to_le_bytes()].concat();
    file.read_exact_at(&mut bytes, 0).is_ok() && bytes[..] == marked
}

fn data_of(blocks: u64) -> u64 {
    (HEADER as u64 + blocks * ENTRY_LEN).next_multiple_of(BLOCK)
}

/// Returns the entry of a block with this content.
fn entry_of(block: u64, bytes: &[u8]) -> u64 {
    checksum(block, bytes).max(1)
}

impl Store {
    /// Takes over a file that is locked, for a base of that size.
    pub(super) fn new(path: &Path, file: File, size: u64, limit: u64) -> Result<Self> {
        let too_large = || DeviceError::at_path(Op::Open, path, EFBIG, "the volume is too large for a cache");
        if size > MOST {
            return Err(too_large());
        }
        let blocks = size.div_ceil(BLOCK);
        let fits = blocks.checked_mul(BLOCK + ENTRY_LEN).and_then(|len| len.checked_add(2 * HEADER as u64));
        fits.filter(|len| i64::try_from(*len).is_ok()).ok_or_else(too_large)?;
        let owner = file.metadata().map_err(|e| DeviceError::new(Op::Open, 0, 0, e))?.uid();
        let regions = size.div_ceil(REGION);
        let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.subsec_nanos());
        Ok(Self {
            file,
            blocks,
            owner,
            limit,
            stored: AtomicU64::new(0),
            used: (0..regions).map(|_| AtomicBool::new(false)).collect(),
            hand: Mutex::new(u64::from(seed) % regions.max(1)),
            is_full: AtomicBool::new(false),
        })
    }

    pub(super) fn owner(&self) -> u32 {
        self.owner
    }

    /// Returns whether the file is a cache of that base.
    pub(super) fn state(&self, identity: &BaseIdentity) -> State {
        let mut header = [0; HEADER];
        let read = self.file.read_exact_at(&mut header, 0);
        match read.is_ok() && header == encode(identity, false) {
            true => State::Same,
            false => State::Other,
        }
    }

    /// Empties the file, and makes it a cache of that base.
    pub(super) fn reset(&self, identity: &BaseIdentity) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.set_len(data_of(self.blocks) + self.blocks * BLOCK)?;
        self.file.write_all_at(&encode(identity, false), 0)
    }

    /// Marks the file as that of a writer, durably.
    pub(super) fn mark(&self, identity: &BaseIdentity) -> io::Result<()> {
        self.file.write_all_at(&encode(identity, true), 0)?;
        self.file.sync_data()
    }

    /// Takes the mark of a writer off: the base is flushed, and is the one of this identity.
    pub(super) fn close(&self, identity: &BaseIdentity) -> io::Result<()> {
        self.file.sync_data()?;
        self.file.write_all_at(&encode(identity, false), 0)?;
        self.file.sync_data()
    }

    /// Fills `buf` with the blocks from `first` on, and returns those that the cache has not.
    pub(super) fn read(&self, first: u64, buf: &mut [u8]) -> Vec<u64> {
        let blocks = first..first + buf.len() as u64 / BLOCK;
        let Some(entries) = self.entries(blocks.clone()) else { return blocks.collect() };
        if entries.iter().all(|entry| *entry == 0) {
            return blocks.collect();
        }
        let read = self.file.read_exact_at(buf, data_of(self.blocks) + first * BLOCK);
        let mut missing = Vec::new();
        for ((block, entry), bytes) in blocks.zip(entries).zip(buf.chunks_exact(BLOCK as usize)) {
            if read.is_err() || entry != entry_of(block, bytes) {
                missing.push(block);
            } else if let Some(used) = self.used.get((block * BLOCK / REGION) as usize) {
                used.store(true, Ordering::Relaxed);
            }
        }
        missing
    }

    /// Returns the entries of blocks, `None` if there are none for all of them.
    fn entries(&self, blocks: Range<u64>) -> Option<Vec<u64>> {
        if blocks.end > self.blocks {
            return None;
        }
        let mut bytes = vec![0; ((blocks.end - blocks.start) * ENTRY_LEN) as usize];
        self.file.read_exact_at(&mut bytes, HEADER as u64 + blocks.start * ENTRY_LEN).ok()?;
        let (entries, _) = bytes.as_chunks();
        Some(entries.iter().map(|entry| u64::from_le_bytes(*entry)).collect())
    }

    /// Stores blocks from `first` on. The last may be the end of the base, with zeros behind it.
    pub(super) fn write(&self, first: u64, bytes: &[u8]) {
        let blocks = first..first + (bytes.len() as u64).div_ceil(BLOCK);
        if blocks.end > self.blocks || self.is_full.load(Ordering::Relaxed) {
            return;
        }
        let entries = blocks.zip(bytes.chunks(BLOCK as usize)).flat_map(|(block, bytes)| {
            let mut whole = [0; BLOCK as usize];
            whole[..bytes.len()].copy_from_slice(bytes);
            entry_of(block, &whole).to_le_bytes()
        });
        let entries: Vec<u8> = entries.collect();
        // A disk that is full, or fails, costs the cache alone.
        let _ = self
            .file
            .write_all_at(bytes, data_of(self.blocks) + first * BLOCK)
            .and_then(|()| self.file.write_all_at(&entries, HEADER as u64 + first * ENTRY_LEN));
        self.stored.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    }

    /// Forgets blocks. Entries that are in a hole stay there: nothing evicts a page without blocks.
    pub(super) fn forget(&self, blocks: Range<u64>) -> io::Result<()> {
        let mut at = HEADER as u64 + blocks.start * ENTRY_LEN;
        let end = HEADER as u64 + blocks.end.min(self.blocks) * ENTRY_LEN;
        let len = end.saturating_sub(at);
        if len > ZEROS as u64 {
            if self.punch(at, len).is_ok() {
                return Ok(());
            }
        } else if self.entries(blocks).is_some_and(|entries| entries.iter().all(|entry| *entry == 0)) {
            return Ok(());
        }
        let zeros = vec![0; len.min(ZEROS as u64) as usize];
        while at < end {
            let n = (end - at).min(zeros.len() as u64);
            self.file.write_all_at(&zeros[..n as usize], at)?;
            at += n;
        }
        Ok(())
    }

    /// Returns the bytes that the file takes.
    pub(super) fn allocated(&self) -> u64 {
        self.file.metadata().map_or(0, |meta| meta.blocks() * 512)
    }

    /// Gives space back if the file takes more than it may. A thread that finds another at work
    /// goes on.
    pub(super) fn evict(&self) {
        if self.stored.load(Ordering::Relaxed) < UNCHECKED.min(self.limit / 8) {
            return;
        }
        self.stored.store(0, Ordering::Relaxed);
        if self.allocated() <= self.limit {
            return;
        }
        let mut hand = match self.hand.try_lock() {
            Ok(hand) => hand,
            Err(std::sync::TryLockError::Poisoned(hand)) => PoisonError::into_inner(hand),
            Err(std::sync::TryLockError::WouldBlock) => return,
        };
        let regions = self.used.len() as u64;
        // Twice around: in the first round all may have been used.
        for _ in 0..2 * regions {
            if self.allocated() <= self.limit / 8 * 7 {
                return;
            }
            let Some(region) = self.next_data(*hand).or_else(|| self.next_data(0)) else { return };
            *hand = (region + 1) % regions.max(1);
            let was_used = self.used.get(region as usize).is_some_and(|u| u.swap(false, Ordering::Relaxed));
            if !was_used && self.give_back(region).is_err() {
                self.is_full.store(true, Ordering::Relaxed);
                return;
            }
        }
    }

    /// Returns the first region from `region` on that has data.
    fn next_data(&self, region: u64) -> Option<u64> {
        let data = data_of(self.blocks);
        let found = seek(&self.file, SeekFrom::Data(data + region * REGION)).ok()?;
        Some(found.checked_sub(data)? / REGION)
    }

    /// Gives the entries and the blocks of a region back.
    fn give_back(&self, region: u64) -> io::Result<()> {
        self.punch(HEADER as u64 + region * ENTRIES_LEN, ENTRIES_LEN)?;
        let start = region * REGION;
        let len = (self.blocks * BLOCK).saturating_sub(start).min(REGION);
        if len == 0 { Ok(()) } else { self.punch(data_of(self.blocks) + start, len) }
    }

    /// Makes a hole of a range of the file.
    fn punch(&self, start: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.file, flags, start, len)?)
    }
}
