//! Requests to an export that survive the loss of its connections.
//!
//! A thread whose request meets a lost connection makes a new one, or waits for the thread that
//! does. It first asks the device's guard whether this host may still write ([`RepeatGuard`]), and
//! writes again what was not flushed. Then each thread sends again what was not answered.
//!
//! The device fails for good, with the first reason, when
//! - no connection comes about in the time that `reconnect=` gives, or one request is lost with its
//!   connection again and again for as long;
//! - the server breaks the protocol;
//! - the export is another than before: smaller, read-only, or without FLUSH or FUA;
//! - what was acknowledged cannot be written again;
//! - its guard refuses.

use super::error::NbdError;
use super::handshake::Agreed;
use super::job::{Data, Job};
use super::request::{Command, FUA, Request, pieces};
use super::session::{Connector, Session};
use super::unflushed::{Kept, Unflushed};
use super::wire::ExportFlags;
use crate::RepeatGuard;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The most bytes of one request with content: of a longer one the server works on several parts at
/// once.
const CUT: u64 = 256 << 10;
/// The first pause between two tries to connect, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The least time that a try to connect has.
const LEAST_TIME: Duration = Duration::from_millis(500);

/// How the connections are.
#[derive(Debug)]
struct State {
    session: Arc<Session>,
    /// A thread makes new connections.
    reconnecting: bool,
    /// Why the device has failed for good.
    failed: Option<NbdError>,
}

/// An export that is open.
#[derive(Debug)]
pub(crate) struct Client {
    pub(super) connector: Connector,
    pub(crate) agreed: Agreed,
    state: Mutex<State>,
    changed: Condvar,
    pub(super) unflushed: Unflushed,
    /// Flags of every write: FUA where the server has no flush.
    pub(super) write_flags: u16,
    /// Asked on each new connection before anything is written.
    guard: Mutex<Option<RepeatGuard>>,
    /// Held by the thread that flushes.
    flushing: Mutex<()>,
    /// A flush has failed: what was written since the one before may be lost.
    flush_failed: AtomicBool,
}

impl Client {
    /// Opens the export.
    ///
    /// # Errors
    /// A loss; what the server refuses, or gets wrong; an export that cannot be written to as the
    /// connector wants it.
    pub(crate) fn open(connector: Connector) -> Result<Self, NbdError> {
        let (session, agreed) = connector.open(0, connector.url.timeout)?;
        let write_flags = match () {
            () if connector.read_only => 0,
            () if agreed.flags.has(ExportFlags::READ_ONLY) => return Err(NbdError::ReadOnly),
            () if agreed.flags.has(ExportFlags::FLUSH) => 0,
            () if agreed.flags.has(ExportFlags::FUA) => FUA,
            () => return Err(NbdError::NoFlush),
        };
        let state = State { session: Arc::new(session), reconnecting: false, failed: None };
        let unflushed = Unflushed::new(connector.url.unflushed);
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let (guard, flushing, flush_failed) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        Ok(Self { connector, agreed, state, changed, unflushed, write_flags, guard, flushing, flush_failed })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs all jobs, on a new connection where one is lost.
    ///
    /// # Errors
    /// The first failure that the server tells of a job; why the device has failed for good.
    pub(crate) fn run(&self, jobs: &mut [Job<'_>]) -> Result<(), NbdError> {
        let mut left = jobs.len();
        let mut lost_since = None;
        let mut pause = FIRST_PAUSE;
        while jobs.iter().any(|job| !job.done) {
            let session = self.session()?;
            let Err(why) = session.run(jobs) else { break };
            let mut still = 0;
            for job in jobs.iter_mut().filter(|job| !job.done) {
                // What came of its answer is not the answer.
                job.failed = None;
                still += 1;
            }
            // A server that takes every connection, and never this request.
            match lost_since {
                Some(since) if still == left && why.is_loss() => self.pause(since, &mut pause, &why)?,
                _ => (lost_since, pause) = (Some(Instant::now()), FIRST_PAUSE),
            }
            left = still;
            self.leave(&session, why)?;
        }
        jobs.iter().find_map(|job| job.failed.clone()).map_or(Ok(()), Err)
    }

    /// Waits before a request is sent again that was lost before, each time for longer.
    ///
    /// # Errors
    /// Why the device has failed: the request has been lost for as long as `reconnect=` gives.
    fn pause(&self, since: Instant, pause: &mut Duration, why: &NbdError) -> Result<(), NbdError> {
        if since.elapsed() > self.connector.url.reconnect {
            return Err(self.fail(self.gave_up(why.clone())));
        }
        std::thread::sleep(*pause);
        *pause = (*pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }

    fn gave_up(&self, last: NbdError) -> NbdError {
        NbdError::GaveUp { seconds: self.connector.url.reconnect.as_secs(), last: Box::new(last) }
    }

    /// Returns the connections, once there are some.
    ///
    /// # Errors
    /// Why the device has failed for good.
    pub(super) fn session(&self) -> Result<Arc<Session>, NbdError> {
        let mut state = self.state();
        loop {
            match &state.failed {
                Some(why) => return Err(why.clone()),
                None if !state.reconnecting => return Ok(Arc::clone(&state.session)),
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Fails the device for good. Returns the reason, or the one before.
    fn fail(&self, why: NbdError) -> NbdError {
        let mut state = self.state();
        let first = state.failed.get_or_insert(why).clone();
        state.reconnecting = false;
        let session = Arc::clone(&state.session);
        drop(state);
        session.end(&first);
        self.changed.notify_all();
        first
    }

    /// Replaces the connections of a session in which one was lost.
    ///
    /// # Errors
    /// Why the device has failed: the server broke a rule, or no connection is made again.
    pub(super) fn leave(&self, session: &Session, why: NbdError) -> Result<(), NbdError> {
        match why.is_loss() {
            false => Err(self.fail(why)),
            true if self.connector.url.reconnect.is_zero() => Err(self.fail(self.gave_up(why))),
            true => self.reconnect(session, why),
        }
    }

    /// Replaces connections that are lost, unless another thread has done so or does.
    fn reconnect(&self, lost: &Session, why: NbdError) -> Result<(), NbdError> {
        {
            let mut state = self.state();
            if state.reconnecting || state.failed.is_some() || state.session.generation != lost.generation {
                // `session` waits for it.
                return Ok(());
            }
            state.reconnecting = true;
        }
        lost.end(&why);
        let began = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            let tried = began.elapsed();
            let last = match self.try_again(lost.generation + 1, began) {
                Ok(session) => {
                    let mut state = self.state();
                    state.session = Arc::new(session);
                    state.reconnecting = false;
                    drop(state);
                    self.changed.notify_all();
                    return Ok(());
                }
                Err(why) if may_pass(&why) => why,
                Err(why) => return Err(self.fail(why)),
            };
            // By when the try began: a process that was stopped meanwhile tries once more.
            if tried + pause > self.connector.url.reconnect {
                return Err(self.fail(self.gave_up(last)));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Connects once more, and writes again what was not flushed.
    fn try_again(&self, generation: u64, began: Instant) -> Result<Session, NbdError> {
        let Connector { url, .. } = &self.connector;
        let rest = url.reconnect.saturating_sub(began.elapsed());
        let timeout = url.timeout.min(rest).max(LEAST_TIME);
        let (session, agreed) = self.connector.open(generation, timeout)?;
        self.connector.check_same(&self.agreed, &agreed)?;
        self.ask_guard(&session)?;
        let writes = self.unflushed.to_repeat();
        let mut jobs: Vec<Job<'_>> = writes.iter().map(|write| job_of(write, self.write_flags)).collect();
        session.run(&mut jobs)?;
        for job in &mut jobs {
            if let Some(why) = job.failed.take() {
                self.repeat_as_content(&session, job.request, why)?;
            }
        }
        Ok(session)
    }

    /// Writes zeros again as content, where the server has no other way now. Any other write that
    /// the server has `refused` cannot be written again.
    ///
    /// # Errors
    /// [`NbdError::Replay`], of the `refused` request and the reason; a loss.
    fn repeat_as_content(&self, session: &Session, refused: Request, why: NbdError) -> Result<(), NbdError> {
        let Request { command, offset, len, .. } = refused;
        let failed = |why| Err(NbdError::Replay { offset, len: len.into(), why: Box::new(why) });
        if command != Command::WriteZeroes || !why.is_unsupported() {
            return failed(why);
        }
        let zeros = Arc::new(vec![0; self.cut().min(len.into()) as usize]);
        let of_zeros = |(offset, len): (u64, u32)| {
            let is_whole = len as usize == zeros.len();
            let bytes = if is_whole { Arc::clone(&zeros) } else { Arc::new(vec![0; len as usize]) };
            job_of(&Kept { offset, len, bytes: Some(bytes) }, self.write_flags)
        };
        let mut jobs: Vec<Job<'_>> = pieces(offset, len.into(), self.cut()).map(of_zeros).collect();
        session.run(&mut jobs)?;
        jobs.iter_mut().find_map(|job| job.failed.take()).map_or(Ok(()), failed)
    }

    /// Returns the most bytes of a request with content.
    pub(crate) fn cut(&self) -> u64 {
        CUT.min(self.agreed.max_block.into())
    }

    /// Sets what is asked on each new connection before anything is written.
    pub(crate) fn set_guard(&self, guard: RepeatGuard) {
        *self.guard.lock().unwrap_or_else(PoisonError::into_inner) = Some(guard);
    }

    /// Asks the guard, on a connection on which nothing was written yet.
    fn ask_guard(&self, session: &Session) -> Result<(), NbdError> {
        let guard = self.guard.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(RepeatGuard { offset, len, check }) = guard else { return Ok(()) };
        let block = u64::from(self.agreed.min_block);
        let start = offset / block * block;
        let end = (offset + len as u64).next_multiple_of(block);
        let mut bytes = vec![0; (end - start) as usize];
        let request = Request { command: Command::Read, flags: 0, offset: start, len: bytes.len() as u32 };
        let mut jobs = [Job::new(request, Data::In(&mut bytes))];
        session.run(&mut jobs)?;
        if let Some(why) = jobs[0].failed.take() {
            return Err(NbdError::Fenced { why: why.to_string() });
        }
        let skip = (offset - start) as usize;
        check(&bytes[skip..skip + len]).map_err(|why| NbdError::Fenced { why })
    }

    /// Runs those of entered writes, from the number `first` on, that are not done, and notes what
    /// became of them.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub(super) fn end_writes(&self, first: u64, jobs: &mut [Job<'_>]) -> Result<(), NbdError> {
        let ran = self.run(jobs);
        let done = jobs.iter().map(|job| job.done && job.failed.is_none());
        self.unflushed.answered(first, done, self.write_flags & FUA != 0);
        ran
    }

    /// Returns memory for the content of a write.
    pub(crate) fn buffer(&self, len: usize) -> Vec<u8> {
        self.unflushed.buffer(len)
    }

    /// Makes durable what was answered before. With FUA each write is durable already.
    ///
    /// # Errors
    /// As [`run`](Self::run); [`NbdError::FlushFailed`] after a flush that the server has failed.
    pub(crate) fn flush(&self) -> Result<(), NbdError> {
        // One at a time: a server may tell only one of two of its failed write.
        let _alone = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = &self.state().failed {
            return Err(why.clone());
        }
        if self.flush_failed.load(Ordering::Acquire) {
            return Err(NbdError::FlushFailed);
        }
        if self.write_flags & FUA != 0 {
            return Ok(());
        }
        let mark = self.unflushed.mark();
        let request = Request { command: Command::Flush, flags: 0, offset: 0, len: 0 };
        let flushed = self.run(&mut [Job::new(request, Data::None)]);
        if flushed.is_err() {
            self.flush_failed.store(true, Ordering::Release);
        }
        flushed?;
        self.unflushed.flushed(mark);
        Ok(())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.state().session.disconnect();
    }
}

/// Returns whether a later try may go better: a server that starts may not have the export yet.
fn may_pass(why: &NbdError) -> bool {
    why.is_loss() || matches!(why, NbdError::NoExport { .. } | NbdError::OptionRefused { .. })
}

pub(super) fn job_of(write: &Kept, flags: u16) -> Job<'static> {
    let (command, data) = match &write.bytes {
        Some(bytes) => (Command::Write, Data::Out(Arc::clone(bytes))),
        None => (Command::WriteZeroes, Data::None),
    };
    Job::new(Request { command, flags, offset: write.offset, len: write.len }, data)
}
