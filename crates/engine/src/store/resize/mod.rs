//! Changes the size of a volume.
//!
//! A [`Resizing`] has a closed volume for itself, with an empty log. An open volume grows by the
//! same steps, each while no other handle is open ([`online`]). Each [`step`] of a growth is one
//! transaction from a sound volume to a larger one. A volume shrinks ([`shrink`]) in one, after
//! others that move the log ([`new_log`]), inodes ([`renumber`]) and blocks of files ([`moves`]).
//!
//! A step is written in this order:
//! 1. what lies behind the old end, in place;
//! 2. the transaction: superblock, descriptors, bitmaps and the resize inode, all below the old
//!    end. Its commit block follows a flush that covers 1;
//! 3. the backups, in place, and a flush;
//! 4. the checkpoint, before a transaction refers to what lies behind the old end.
//!
//! Invariant: the superblock on the medium is never newer than the backups, unless the log holds a
//! copy of it. So a torn superblock has the log's copy, or a backup that agrees with it.
//! [`renew_copies`] keeps this for a resize that was cut between 2 and 3.

mod copies;
mod copy_runs;
mod maps;
mod moves;
mod new_log;
mod online;
mod place;
mod plan;
mod relocate;
mod renumber;
mod reserve;
mod shape;
mod shrink;
mod source;
mod step;
mod usage;

use super::zones::{Survey, Zones};
use super::{log_place, read_super, write_super};
use crate::error::{Error, ResizeError, Result};
use lanefs_device::{AlignedBuf, BlockDevice};
use lanefs_format::{GroupDesc, State, Superblock, Timestamp};
use lanefs_journal::{Journal, LogConfig, Options};
use lanefs_sync::time::realtime;
use place::Taken;
use source::read_groups;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use step::ResizeStep;

/// Blocks that the journal may have in memory: room for the largest transaction of any log.
const CACHE_BLOCKS: usize = 1 << 20;

/// A device, read and written by blocks past the journal.
#[derive(Debug)]
pub(super) struct Blocks {
    device: Arc<dyn BlockDevice>,
    size: u32,
}

impl Blocks {
    fn offset(&self, block: u64) -> u64 {
        block.saturating_mul(u64::from(self.size))
    }

    fn read(&self, block: u64) -> Result<Vec<u8>> {
        self.read_run(block, 1)
    }

    fn read_run(&self, block: u64, len: u32) -> Result<Vec<u8>> {
        let mut bytes = AlignedBuf::zeroed(self.size as usize * len as usize);
        self.device.read_at(&mut bytes, self.offset(block))?;
        Ok(bytes.to_vec())
    }

    fn write(&self, block: u64, content: &[u8]) -> Result<()> {
        let mut bytes = AlignedBuf::zeroed(content.len());
        bytes.copy_from_slice(content);
        Ok(self.device.write_at(&bytes, self.offset(block))?)
    }

    /// Zeroes blocks, but for those from byte `zeros_from` on, which are zero.
    fn zero(&self, blocks: Range<u64>, zeros_from: u64) -> Result<()> {
        let (start, end) = (self.offset(blocks.start), self.offset(blocks.end).min(zeros_from));
        if start < end {
            self.device.write_zeroes(start, end - start)?;
        }
        Ok(())
    }
}

/// A closed volume whose size is being changed.
#[derive(Debug)]
pub(crate) struct Resizing {
    device: Blocks,
    superblock: Superblock,
    groups: Vec<GroupDesc>,
    /// The bitmaps and inode tables.
    fixed: Taken,
    /// All structures that no file can own, the log too.
    zones: Arc<Zones>,
    log: Option<LogConfig>,
    clock: Option<Timestamp>,
    /// Whether a transaction has begun and is not in place, with the backups.
    unfinished: bool,
}

impl Resizing {
    /// Takes the volume on `device`, which was opened and closed before: its log is empty. Nothing
    /// is written. Changes get the time `clock`, or that of the system.
    ///
    /// # Errors
    /// [`ResizeError::Unsound`]; descriptors that cannot be read.
    pub(crate) fn new(device: Arc<dyn BlockDevice>, clock: Option<Timestamp>) -> Result<Self> {
        let superblock = read_super(&*device)?;
        let state = superblock.state();
        if !state.contains(State::VALID_FS) || state.contains(State::ERROR_FS) {
            return Err(ResizeError::Unsound { state: state.bits() }.into());
        }
        let log = log_place::find(&device, &superblock)?;
        let zones = Survey::read(&*device, &superblock, log.as_ref(), true)?.zones;
        let device = Blocks { device, size: superblock.block_size() };
        let groups = read_groups(&device, &superblock)?;
        let fixed = shrink::fixed(&superblock, &groups);
        Ok(Self { device, superblock, groups, fixed, zones, log, clock, unfinished: false })
    }

    /// Returns the superblock, up to date.
    pub(crate) fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Returns the size of the device in bytes.
    pub(crate) fn device_size(&self) -> u64 {
        self.device.device.size()
    }

    /// Returns the size that [`grow`](Self::grow) gives the volume if it is asked for `blocks`: a
    /// last group without room for its own structures is left away.
    ///
    /// # Errors
    /// A size that block or inode numbers do not reach.
    pub(crate) fn fit(&self, blocks: u64) -> Result<u64> {
        shape::fit(&self.superblock, blocks)
    }

    /// Grows the volume to `blocks` blocks, as [`fit`](Self::fit) rounds it. The device's bytes
    /// from `zeros_from` on are known to be zero.
    ///
    /// # Errors
    /// [`ResizeError`], with nothing changed; errors of the journal and the device, which leave a
    /// volume that has its old size, its new one, or one between them after recovery.
    pub(crate) fn grow(&mut self, blocks: u64, zeros_from: u64) -> Result<()> {
        let blocks = self.fit(blocks)?;
        let (block_size, size) = (self.device.size, self.device.device.size());
        if blocks.saturating_mul(u64::from(block_size)) > size {
            return Err(ResizeError::BeyondDevice { blocks, block_size, device: size }.into());
        }
        if blocks <= self.superblock.blocks_count() {
            return Ok(());
        }
        if let Some(block) = self.top_of_reserve()? {
            self.zones.check(&self.superblock.layout(), block, 1)?;
        }
        self.under_journal(|volume, journal| {
            while volume.superblock.blocks_count() < blocks {
                let of = (&volume.superblock, &*volume.groups);
                let step = plan::plan(&volume.device, of, blocks, journal.max_credits())?;
                step.write_new_groups(&volume.device, zeros_from)?;
                volume.take(journal, step)?;
            }
            Ok(())
        })
    }

    /// Runs a change of the volume with its journal open. A change that fails between transactions
    /// has left a volume that can be closed; any other failure leaves one that recovery, or without
    /// a journal a check, has to look after.
    fn under_journal(&mut self, change: impl FnOnce(&mut Self, &Journal) -> Result<()>) -> Result<()> {
        let state = self.begin()?;
        let journal = self.open_journal(self.log.as_ref())?;
        self.unfinished = false;
        let outcome = change(self, &journal);
        if self.unfinished {
            return outcome;
        }
        let closed = journal.close().map_err(Error::from).and_then(|()| self.finish(state));
        outcome.and(closed)
    }

    /// Commits a step, and makes its result the volume.
    fn take(&mut self, journal: &Journal, step: ResizeStep) -> Result<()> {
        self.unfinished = true;
        self.commit(journal, &step.logged)?;
        let layout = step.superblock.layout();
        if !(1..layout.group_count()).any(|group| layout.has_super(group)) {
            // The backups behind the new end stand in for a torn superblock. They must lead to the
            // log, which may have moved.
            copies::write(&self.device, &self.superblock, &self.groups)?;
        }
        (self.superblock, self.groups) = (step.superblock, step.groups);
        self.fixed = shrink::fixed(&self.superblock, &self.groups);
        copies::write(&self.device, &self.superblock, &self.groups)?;
        self.device.device.flush()?;
        journal.checkpoint()?;
        self.unfinished = false;
        let (device, log) = (&*self.device.device, self.log.as_ref());
        self.zones = Survey::read(device, &self.superblock, log, true)?.zones;
        Ok(())
    }

    /// Commits the new content of blocks as one transaction.
    fn commit(&self, journal: &Journal, logged: &BTreeMap<u64, Vec<u8>>) -> Result<()> {
        let handle = journal.start(logged.len() as u32)?;
        for (&block, content) in logged {
            let buffer = handle.create(block)?;
            handle.write(&buffer)?.copy_from_slice(content);
        }
        let tid = handle.tid();
        drop(handle);
        Ok(journal.commit(tid)?)
    }

    /// Opens the journal whose log is `log`. Writes nothing yet.
    fn open_journal(&self, log: Option<&LogConfig>) -> Result<Journal> {
        Ok(Journal::open(
            Arc::clone(&self.device.device),
            Options {
                cache_blocks: CACHE_BLOCKS,
                log: log.cloned(),
                commit_interval: Duration::ZERO,
                threads: false,
                clock: self.clock.map(|t| Duration::new(t.sec.max(0).unsigned_abs(), t.nsec)),
                ..Options::new(self.device.size)
            },
        )?)
    }

    /// Marks the volume as in use. Returns its state from before.
    fn begin(&mut self) -> Result<State> {
        let state = self.superblock.state();
        match self.log {
            Some(_) => self.superblock.set_recover(true),
            None => self.superblock.set_state(state - State::VALID_FS),
        }
        self.write_super()?;
        Ok(state)
    }

    /// Marks the volume as closed, in the state that it had before.
    fn finish(&mut self, state: State) -> Result<()> {
        self.superblock.set_recover(false);
        self.superblock.set_state(state);
        self.write_super()
    }

    fn write_super(&mut self) -> Result<()> {
        let now = self.clock.map_or_else(|| realtime() / 1_000_000_000, |clock| clock.sec.max(0) as u64);
        self.superblock.set_wtime(now);
        write_super(&*self.device.device, &self.superblock)?;
        Ok(self.device.device.flush()?)
    }
}

/// Returns the bytes that growth gives the volume of `sb` if it is asked for `size` bytes: whole
/// blocks, and no last group that is too short for its own structures.
///
/// # Errors
/// A size that block or inode numbers do not reach.
pub(crate) fn fit(sb: &Superblock, size: u64) -> Result<u64> {
    let block_size = u64::from(sb.block_size());
    Ok(shape::fit(sb, size / block_size)? * block_size)
}

/// Writes the backups of the volume that recovery made on `recovered` to `device`, before the log
/// is replayed there, if the volume on `device` has another shape: its resize was cut.
///
/// # Errors
/// The device's; descriptors that cannot be read.
pub(crate) fn renew_copies(
    device: &Arc<dyn BlockDevice>,
    before: &Superblock,
    recovered: &Arc<dyn BlockDevice>,
    superblock: &Superblock,
) -> Result<()> {
    if before.same_volume(superblock) {
        return Ok(());
    }
    let blocks =
        |device: &Arc<dyn BlockDevice>| Blocks { device: Arc::clone(device), size: superblock.block_size() };
    let groups = read_groups(&blocks(recovered), superblock)?;
    copies::write(&blocks(device), superblock, &groups)?;
    Ok(device.flush()?)
}
