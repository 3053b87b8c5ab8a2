//! A claim that is held: looked at, renewed, and lost. [`Holder::check`] is the fence's question.
//! It reads the clock and one atomic number; after [`Times::fresh`] one thread reads the block, and
//! the others wait for it only after [`Times::trust`]. A look counts from the moment before its
//! read was sent: a host that was stopped while it read, and woke with what was true then, looks
//! again.

use super::block::BlockContent;
use super::{HostClock, MmpBlock, Times};
use crate::error::{Error, MmpError, Result};
use crate::fs::admission::{Admission, Admitted};
use lanefs_device::{AlignedBuf, RepeatGuard};
use lanefs_format::{Checksummer, Mmp, mmp};
use lanefs_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use lanefs_sync::time::realtime;
use lanefs_sync::{Mutex, OnceLock};
use std::sync::Arc;
use std::time::Duration;

/// How often the block is read that takes too long to be read.
const LOOKS: u32 = 4;

/// A claim of this host.
#[derive(Debug)]
pub(crate) struct Holder {
    block: MmpBlock,
    clock: HostClock,
    times: Times,
    /// No thread renews the claim: a write does, where an update is due.
    renews_by_writes: bool,
    /// The time of all updates, in place of the system's, in seconds since 1970.
    fixed_time: Option<u64>,
    /// Nanoseconds of the clock at which the last look began that found the volume this host's.
    seen: AtomicU64,
    /// Nanoseconds of the clock until which no look is needed: 0 for a lost claim.
    fresh_until: AtomicU64,
    own: Arc<OwnSequences>,
    /// The writes that pass the fence.
    writes: Admission,
    /// One has passed it.
    has_written: AtomicBool,
    lost: OnceLock<MmpError>,
    state: Mutex<HolderState>,
}

/// The state that a look or an update locks, while it reads and writes the block.
#[derive(Debug)]
struct HolderState {
    /// The block as it was last written.
    mmp: Mmp,
    /// When the last update began, by the clock.
    updated: Duration,
    /// How long it took.
    took: Duration,
    /// The claim was given back.
    ended: bool,
}

/// What was written to the block by this claim.
#[derive(Debug)]
struct OwnSequences {
    number: u64,
    csum: Checksummer,
    nodename: Vec<u8>,
    first: u32,
    last: AtomicU32,
    /// What the block was given back with.
    given_back: OnceLock<AlignedBuf>,
    /// The volume has no protection any more: the block is of no concern, unless another host
    /// claims it.
    dissolved: AtomicBool,
    /// All writes of this claim are durable, and none follows: there is nothing to repeat. Stays
    /// false behind a failed flush and for a lost claim, since the device may outlive the claim.
    all_durable: AtomicBool,
}

impl OwnSequences {
    /// Returns whether this claim has written the block. After a server that lost its last writes
    /// it may be an older one.
    fn contain(&self, seen: &Mmp) -> bool {
        let last = self.last.load(Ordering::Acquire);
        (self.first..=last).contains(&seen.seq) && seen.nodename == self.nodename
    }

    /// Checks that the block is this host's. One that is torn may be: its server was killed in the
    /// middle of an update, which this host repeats.
    fn check(&self, content: &BlockContent) -> std::result::Result<(), MmpError> {
        match content {
            BlockContent::Whole(seen) | BlockContent::Torn(seen, _) if self.contain(seen) => Ok(()),
            BlockContent::Whole(seen) => Err(MmpError::fenced(seen)),
            BlockContent::Torn(_, why) | BlockContent::Damaged(why) => {
                Err(MmpError::FencedByDamage { why: why.to_string() })
            }
        }
    }

    /// Checks the bytes of the block as they are on a new connection.
    fn check_bytes(&self, bytes: &[u8]) -> std::result::Result<(), MmpError> {
        if self.all_durable.load(Ordering::Acquire) {
            return Ok(());
        }
        let is_given_back = self.given_back.get().is_some_and(|given| given[..] == *bytes);
        if is_given_back {
            return Ok(());
        }
        let content = BlockContent::new(self.number, &self.csum, bytes);
        // Behind the end of the protection the block may hold anything but another host's claim.
        if self.dissolved.load(Ordering::Acquire) && !matches!(content, BlockContent::Whole(_)) {
            return Ok(());
        }
        self.check(&content)
    }
}

impl Holder {
    /// Returns the holder of a claim that `looked`, by the clock, found to be `mmp`. The device
    /// asks it from now on before it repeats writes.
    pub(super) fn new(
        block: MmpBlock,
        (clock, times): (HostClock, Times),
        (mmp, looked): (Mmp, Duration),
        renews_by_writes: bool,
        fixed_time: Option<u64>,
    ) -> Self {
        let own = Arc::new(OwnSequences {
            number: block.number,
            csum: block.csum,
            nodename: mmp.nodename.clone(),
            first: mmp.seq,
            last: AtomicU32::new(mmp.seq),
            given_back: OnceLock::new(),
            dissolved: AtomicBool::new(false),
            all_durable: AtomicBool::new(false),
        });
        let asked = Arc::clone(&own);
        block.device.guard_repeats(RepeatGuard {
            offset: block.offset(),
            len: block.size,
            check: Arc::new(move |bytes| asked.check_bytes(bytes).map_err(|why| why.to_string())),
        });
        let state = HolderState { mmp, updated: looked, took: Duration::ZERO, ended: false };
        let holder = Self {
            block,
            clock,
            times,
            renews_by_writes,
            fixed_time,
            seen: AtomicU64::new(0),
            fresh_until: AtomicU64::new(0),
            own,
            writes: Admission::default(),
            has_written: AtomicBool::new(false),
            lost: OnceLock::new(),
            state: Mutex::new(state),
        };
        holder.saw(looked);
        holder
    }

    /// Lets a write pass the fence, after a [`check`](Self::check). The claim is given back only
    /// when the write has dropped what this returns.
    ///
    /// # Errors
    /// Those of [`check`](Self::check).
    pub(super) fn enter(&self) -> Result<Admitted<'_>> {
        let write = self.writes.enter().ok_or(Error::Closed)?;
        self.check()?;
        // Not written each time: all threads share the line.
        if !self.has_written.load(Ordering::Relaxed) {
            self.has_written.store(true, Ordering::Relaxed);
        }
        Ok(write)
    }

    /// Returns whether a write has passed the fence. Exact once writes are
    /// [refused](Self::refuse_writes).
    pub(super) fn has_written(&self) -> bool {
        self.has_written.load(Ordering::Relaxed)
    }

    /// Refuses writes at the fence from now on, and waits for those that have passed it: a write
    /// behind the end of the claim would reach the volume of the next host. A claim that was lost
    /// or dissolved is not given back, and waits for none.
    ///
    /// Holds no lock while it waits: a write inside may need a look, and the claim is renewed.
    pub(super) fn refuse_writes(&self) {
        if self.lost.get().is_none() && !self.state.lock().ended {
            self.writes.refuse();
        }
    }

    /// Checks that the volume is still this host's. Reads the block if that was not done lately.
    ///
    /// # Errors
    /// [`MmpError::Fenced`] and its like, for good; the device's; [`Error::Closed`].
    pub(super) fn check(&self) -> Result<()> {
        let now = nanos(self.clock.now());
        if now < self.fresh_until.load(Ordering::Acquire) { Ok(()) } else { self.look(now) }
    }

    /// Returns why the claim is lost, if it is.
    pub(super) fn lost(&self) -> Option<&MmpError> {
        self.lost.get()
    }

    fn look(&self, now: u64) -> Result<()> {
        let trust = nanos(self.times.trust);
        let is_trusted = |now: u64| now < self.seen.load(Ordering::Acquire).saturating_add(trust);
        self.check_lost()?;
        let mut state = match self.state.try_lock() {
            Some(state) => state,
            None if is_trusted(now) => return Ok(()),
            None => self.state.lock(),
        };
        if nanos(self.clock.now()) < self.fresh_until.load(Ordering::Acquire) {
            return Ok(());
        }
        self.check_lost()?;
        if state.ended {
            return Err(Error::Closed);
        }
        let due = state.updated + self.times.update;
        let looked = match self.renews_by_writes && self.clock.now() >= due {
            true => self.update(&mut state),
            false => self.verify().map(drop),
        };
        // What cannot be read now is read by the next write, unless that took too long.
        let is_trusted = is_trusted(nanos(self.clock.now()));
        if is_trusted && self.lost.get().is_none() { Ok(()) } else { looked }
    }

    fn check_lost(&self) -> Result<()> {
        self.lost.get().map_or(Ok(()), |why| Err(why.clone().into()))
    }

    /// Reads the block. Returns when, by the clock. The caller has the lock.
    fn verify(&self) -> Result<Duration> {
        for _ in 0..LOOKS {
            let began = self.clock.now();
            let (_, content) = self.block.read_any(&self.clock)?;
            self.own.check(&content).map_err(|why| self.lose(why))?;
            if self.clock.now().saturating_sub(began) < self.times.trust / 2 {
                self.saw(began);
                return Ok(began);
            }
        }
        Err(MmpError::Slow { seconds: self.times.trust.as_secs() / 2 }.into())
    }

    /// Writes the next sequence over this host's own.
    fn update(&self, state: &mut HolderState) -> Result<()> {
        state.updated = self.clock.now();
        let looked = self.verify()?;
        let began = self.clock.now();
        let interval = (self.times.update + state.took).as_secs();
        let mmp = &mut state.mmp;
        mmp.seq += 1;
        mmp.time = self.fixed_time.unwrap_or_else(now_in_seconds);
        mmp.check_interval = mmp::check_interval(u16::try_from(interval).unwrap_or(u16::MAX));
        // Before the block has it: the device may ask on a new connection.
        self.own.last.store(mmp.seq, Ordering::Release);
        self.block.write(mmp)?;
        let ended = self.clock.now();
        state.took = ended.saturating_sub(state.updated);
        if ended.saturating_sub(looked) >= self.times.wait {
            // It may have overwritten the claim of a host that has begun to write.
            return Err(self.lose(MmpError::Late { seconds: ended.saturating_sub(looked).as_secs() }));
        }
        self.saw(began);
        Ok(())
    }

    /// Notes that the volume was this host's at `began`. The caller has the lock.
    fn saw(&self, began: Duration) {
        self.seen.store(nanos(began), Ordering::Release);
        self.fresh_until.store(nanos(began + self.times.fresh), Ordering::Release);
    }

    /// Notes that the claim is lost. Returns the first reason. The caller has the lock.
    fn lose(&self, why: MmpError) -> Error {
        let _ = self.lost.set(why.clone());
        self.fresh_until.store(0, Ordering::Release);
        self.lost.get().cloned().unwrap_or(why).into()
    }

    /// Returns the time until the next update is due.
    pub(super) fn until_update(&self) -> Duration {
        (self.state.lock().updated + self.times.update).saturating_sub(self.clock.now())
    }

    /// Updates the block. Returns false if the claim was lost or given back.
    pub(super) fn renew(&self) -> bool {
        let mut state = self.state.lock();
        if state.ended || self.lost.get().is_some() {
            return false;
        }
        // A write that needs a look tells of a device that has failed.
        let _ = self.update(&mut state);
        self.lost.get().is_none()
    }

    /// Gives the claim back: writes the block that `bytes` returns of the last one, if the block is
    /// still this host's, and flushes. Does nothing the second time.
    ///
    /// Flushes first: a write that the device may have to repeat would reach the volume of the next
    /// host. The caller [has waited](Self::refuse_writes) for writes under way.
    ///
    /// # Errors
    /// The device's. [`MmpError::Fenced`] and its like.
    pub(super) fn end(&self, bytes: impl FnOnce(&MmpBlock, Mmp) -> AlignedBuf) -> Result<()> {
        let mut state = self.state.lock();
        if state.ended {
            return Ok(());
        }
        state.ended = true;
        self.check_lost()?;
        let looked = self.verify();
        self.fresh_until.store(0, Ordering::Release);
        self.seen.store(0, Ordering::Release);
        looked?;
        self.block.device.flush()?;
        let mut mmp = state.mmp.clone();
        mmp.time = self.fixed_time.unwrap_or_else(now_in_seconds);
        let bytes = bytes(&self.block, mmp);
        // Before the block has them: the device may ask on a new connection.
        self.block.write_bytes(self.own.given_back.get_or_init(|| bytes))?;
        self.block.device.flush()?;
        self.note_all_durable();
        Ok(())
    }

    /// Lets the device go on after the loss of a connection, whatever the block is: all writes of
    /// this claim are durable, and none follows.
    pub(super) fn note_all_durable(&self) {
        self.own.all_durable.store(true, Ordering::Release);
    }

    /// Ends the claim of a volume that has no protection any more: the block is not written again,
    /// and nothing is fenced.
    pub(super) fn dissolve(&self) {
        let mut state = self.state.lock();
        if self.lost.get().is_none() && !state.ended {
            state.ended = true;
            self.own.dissolved.store(true, Ordering::Release);
            self.fresh_until.store(u64::MAX, Ordering::Release);
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the seconds since 1970.
pub(super) fn now_in_seconds() -> u64 {
    realtime() / 1_000_000_000
}
