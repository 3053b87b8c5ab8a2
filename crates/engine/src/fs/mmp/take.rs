//! Claims a volume at open, by ext4's protocol with one wait more. Behind a clean block too the
//! host waits, for longer than a rival may take from its read of `clean` to its write ([`WINDOW`]):
//! the later write decides. The kernel does not wait there, and if its claim falls into this host's
//! window, the block shows it at its next update only. So the superblock, which each mount writes,
//! must not change meanwhile. A torn block counts as that of a dead holder.

use super::block::BlockContent;
use super::holder::now_in_seconds;
use super::{HostClock, MmpBlock, Waiting};
use crate::error::{Error, MmpError, MmpHolder, Result};
use lanefs_device::AlignedBuf;
use lanefs_format::mmp::{check_interval, takeover_wait};
use lanefs_format::{Mmp, MmpState, SUPERBLOCK_OFFSET, Superblock};
use std::time::Duration;

/// The longest time from the read of a clean block until the own sequence is durable.
const WINDOW: Duration = Duration::from_millis(900);
/// The wait behind such a write: longer than the window of any other host.
const CLEAN_WAIT: Duration = Duration::from_secs(1);
/// The longest time between two looks while an open waits.
pub(super) const STEP: Duration = Duration::from_secs(1);
/// How often an open begins anew because a host has just closed the volume.
const ROUNDS: u32 = 3;

/// A wait of an open for a host that may use the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MmpWait {
    /// The host that has not closed the volume, if one is known.
    pub holder: Option<MmpHolder>,
    /// How long the open waits at most, before it fails or succeeds.
    pub longest: Duration,
}

/// What a claim needs.
#[derive(Debug)]
pub(super) struct Taking<'a> {
    pub(super) block: &'a MmpBlock,
    pub(super) clock: &'a HostClock,
    pub(super) waiting: &'a Waiting,
    /// Seconds between two updates.
    pub(super) interval: u16,
    pub(super) nodename: Vec<u8>,
    pub(super) bdevname: Vec<u8>,
    /// The time of all updates, in place of the system's, in seconds since 1970.
    pub(super) fixed_time: Option<u64>,
}

/// A volume that was taken.
#[derive(Debug)]
pub(super) struct Took {
    /// The block as this host has written it.
    pub(super) mmp: Mmp,
    /// When the last look at it began, by the clock.
    pub(super) looked: Duration,
    /// The bytes of the block before.
    pub(super) before: AlignedBuf,
}

/// Refuses a volume that e2fsck has, or of a sequence that means nothing.
///
/// # Errors
/// [`MmpError::Fsck`], [`MmpError::UnknownSequence`].
fn refuse_others(seen: &Mmp) -> Result<()> {
    let holder = MmpHolder::new(seen);
    match seen.state() {
        MmpState::Fsck => Err(MmpError::Fsck(holder).into()),
        MmpState::Unknown => Err(MmpError::UnknownSequence { seq: seen.seq, holder }.into()),
        MmpState::Clean | MmpState::Held => Ok(()),
    }
}

impl Taking<'_> {
    /// Takes the volume, or waits until it is known that another host has it.
    ///
    /// # Errors
    /// [`MmpError`]; a damaged block; the device's.
    pub(super) fn run(&self) -> Result<Took> {
        let mut last = Error::from(MmpError::Raced);
        for _ in 0..ROUNDS {
            let superblock = self.superblock()?;
            let began = self.clock.now();
            let (before, content) = self.block.read_any(self.clock)?;
            let (seen, state) = match content {
                BlockContent::Whole(seen) => (seen.clone(), seen.state()),
                // By a power cut: its writer was the holder.
                BlockContent::Torn(seen, _) => (seen, MmpState::Held),
                BlockContent::Damaged(why) => return Err(why.into()),
            };
            let holder = MmpHolder::new(&seen);
            match state {
                MmpState::Fsck | MmpState::Unknown => refuse_others(&seen)?,
                // A host has closed the volume between the two reads.
                MmpState::Clean if !self.is_unchanged(&superblock)? => {}
                MmpState::Clean => return self.claim(began, &superblock, before),
                MmpState::Held => {
                    let wait = takeover_wait(self.interval, seen.check_interval);
                    self.tell(Some(holder), wait * 2);
                    match self.watch(&before, wait)? {
                        Ok(_) => return self.claim_behind(wait, &superblock, before),
                        Err(BlockContent::Whole(now)) if now.state() != MmpState::Clean => {
                            return Err(MmpError::InUse(MmpHolder::new(&now)).into());
                        }
                        Err(BlockContent::Whole(_)) => {}
                        Err(BlockContent::Torn(_, why) | BlockContent::Damaged(why)) => last = why.into(),
                    }
                }
            }
        }
        Err(last)
    }

    /// Takes a volume that a lock keeps from all other hosts, without a wait: one that is held too.
    /// A block that is none is not written over. A host that lost the volume without its knowledge
    /// finds this sequence on its next connection, and repeats no write.
    ///
    /// # Errors
    /// [`MmpError`] of a volume that e2fsck has, or of an unknown sequence; a damaged block; the
    /// device's.
    pub(super) fn run_alone(&self) -> Result<Took> {
        let looked = self.clock.now();
        let (before, content) = self.block.read_any(self.clock)?;
        match content {
            BlockContent::Damaged(why) => return Err(why.into()),
            BlockContent::Whole(seen) => refuse_others(&seen)?,
            BlockContent::Torn(..) => {}
        }
        let (mmp, _) = self.write_own(&before)?;
        Ok(Took { mmp, looked, before })
    }

    /// Claims a volume that was clean at `began`.
    fn claim(&self, began: Duration, superblock: &[u8], before: AlignedBuf) -> Result<Took> {
        let (mmp, bytes) = self.write_own(&before)?;
        let wait = match self.clock.now().saturating_sub(began) <= WINDOW {
            true => CLEAN_WAIT,
            false => {
                let wait = takeover_wait(self.interval, mmp.check_interval);
                self.tell(None, wait);
                wait
            }
        };
        let looked = self.defend(&bytes, wait, superblock)?;
        Ok(Took { mmp, looked, before })
    }

    /// Claims a volume whose block has not changed for `wait`.
    fn claim_behind(&self, wait: Duration, superblock: &[u8], before: AlignedBuf) -> Result<Took> {
        let (mmp, bytes) = self.write_own(&before)?;
        let looked = self.defend(&bytes, wait, superblock)?;
        Ok(Took { mmp, looked, before })
    }

    /// Waits whether the own block stays. Returns when the last look at it began.
    fn defend(&self, own: &[u8], wait: Duration, superblock: &[u8]) -> Result<Duration> {
        match self.watch(own, wait)? {
            Err(BlockContent::Whole(now)) => Err(MmpError::InUse(MmpHolder::new(&now)).into()),
            Err(BlockContent::Torn(_, why) | BlockContent::Damaged(why)) => Err(why.into()),
            Ok(_) if !self.is_unchanged(superblock)? => Err(MmpError::Raced.into()),
            Ok(looked) => Ok(looked),
        }
    }

    /// Looks at the block for `wait`, and once more at its end. Returns when the last look began,
    /// or what the block is now in place of `expected`.
    fn watch(&self, expected: &[u8], wait: Duration) -> Result<std::result::Result<Duration, BlockContent>> {
        let end = self.clock.now() + wait;
        loop {
            self.clock.sleep(end.saturating_sub(self.clock.now()).min(STEP));
            let looked = self.clock.now();
            if *self.block.read_bytes()? != *expected {
                let (now, content) = self.block.read_any(self.clock)?;
                // Unless only the first read was wrong.
                if *now != *expected {
                    return Ok(Err(content));
                }
            }
            if looked >= end {
                return Ok(Ok(looked));
            }
        }
    }

    /// Writes a sequence of this host over `before`, durably. Returns the block, and its bytes.
    fn write_own(&self, before: &AlignedBuf) -> Result<(Mmp, AlignedBuf)> {
        let own = Mmp {
            seq: self.clock.first_sequence(),
            time: self.fixed_time.unwrap_or_else(now_in_seconds),
            nodename: self.nodename.clone(),
            bdevname: self.bdevname.clone(),
            check_interval: check_interval(self.interval),
        };
        self.block.write_over(before, &own)
    }

    /// Reads the superblock past all caches.
    fn superblock(&self) -> Result<AlignedBuf> {
        let mut bytes = AlignedBuf::zeroed(4096);
        self.block.device.read_shared(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// Returns whether the superblock is what it was.
    ///
    /// # Errors
    /// The device's; a superblock that is read wrongly.
    fn is_unchanged(&self, before: &[u8]) -> Result<bool> {
        if *self.superblock()? == *before {
            return Ok(true);
        }
        let now = self.superblock()?;
        Superblock::parse(now.get(SUPERBLOCK_OFFSET as usize..).unwrap_or_default())?;
        Ok(*now == *before)
    }

    fn tell(&self, holder: Option<MmpHolder>, longest: Duration) {
        if let Some(told) = &self.waiting.0 {
            told(&MmpWait { holder, longest });
        }
    }
}
