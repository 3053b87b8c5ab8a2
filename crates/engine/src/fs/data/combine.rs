//! Group commit: batches the inode updates of many files into few journal handles.
//!
//! The first thread to arrive becomes the leader. It takes the queued jobs, writes their pages in
//! one batch, waits until no other leader's handle is open, and hands the lead to the thread at the
//! front of the queue. Then it applies the updates under one handle, commits for jobs that sync,
//! and reports each result. So thousands of threads that sync do not reserve as many worst cases of
//! credits, and each sleeps for the device once. A thread that syncs alone may leave its pages to
//! the commit (`leaves_to_commit`).
//!
//! Invariants:
//! - A job is in the first batch that begins behind it, or in a later one for each [`MOST_JOBS`]
//!   jobs or [`MOST_BYTES`] of pages in front of it. Jobs leave the queue in order of arrival.
//! - At most [`LEADERS`] batches have begun and have not had their turn at the handle. A batch that
//!   has had it waits for the commit under way and one more. The tests of these bounds, under
//!   errors and panics too, are in `tests/rounds.rs`.
//! - A leader holds no lock that a follower's work takes: inodes are locked one at a time, under
//!   the handle.
//! - A leader that panics ends the journal, and each thread whose work it had taken gets an error
//!   ([`LeaderRound`]).

use super::cache::Bytes;
use super::io;
use super::plan::Work;
use crate::error::{Error, Result};
use crate::fs::inode::CachedInode;
use crate::fs::{Fs, WritebackMode};
use crate::store::alloc;
use crate::store::txn::credits;
use lanefs_journal::{JournalError, Tid};
#[cfg(test)]
use lanefs_sync::atomic::Ordering;
use lanefs_sync::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;

/// The queued jobs of one volume.
#[derive(Debug, Default)]
pub(crate) struct Combiner {
    queue: Mutex<Queue>,
    /// Held by the leader whose handle is open: the credits of two at once could close the running
    /// transaction to both. A later batch may overtake one that waits for it, until the lock goes
    /// to the longest waiter, as it does every half millisecond on average.
    pub(super) handle: Mutex<()>,
    /// A leader waits until so many jobs are queued.
    #[cfg(test)]
    pub(super) gathers: lanefs_sync::atomic::AtomicUsize,
    /// A leader panics once its handle is open.
    #[cfg(test)]
    pub(super) panics: lanefs_sync::atomic::AtomicBool,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Arc<SyncJob>>,
    /// Threads that lead, or were asked to lead.
    leaders: usize,
    #[cfg(test)]
    seen: seen::Seen,
}

impl Queue {
    /// Asks the thread at the front to lead, unless it has been asked before. The caller wakes it
    /// when the queue is unlocked: the queue is the first thing that it locks.
    #[must_use]
    fn call_leader(&mut self) -> Option<Arc<SyncJob>> {
        let asked = self.jobs.front().filter(|job| job.ask_to_lead()).cloned();
        self.leaders += usize::from(asked.is_some());
        #[cfg(test)]
        self.note_leaders();
        asked
    }
}

/// A job that has run, and its result.
type Outcome = (Arc<SyncJob>, Work, Result<()>);

/// One file's work, and the thread that waits for its result.
#[derive(Debug)]
struct SyncJob {
    node: Arc<CachedInode>,
    /// The waiting thread may not take the blocks reserved for root, nor may its leader for it.
    keeps_reserved: bool,
    state: Mutex<JobState>,
    changed: Condvar,
    /// The number of the last batch that may take it.
    #[cfg(test)]
    due: lanefs_sync::atomic::AtomicUsize,
}

#[derive(Debug)]
enum JobState {
    Waiting(Work),
    /// The waiting thread is asked to lead. Its work is still in the queue.
    Lead(Work),
    Running,
    Done(Work, Result<()>),
}

/// Reports to each job how its work went, and wakes all of the waiting threads. The scheduler is
/// fair among them; if they woke each other, each link of the chain would wait for a processor, and
/// the last thread for the sum of all links.
fn finish(jobs: Vec<Outcome>) {
    for (job, work, outcome) in jobs {
        *job.state.lock() = JobState::Done(work, outcome);
        job.changed.notify_one();
    }
}

/// Wakes a thread that was asked to lead.
fn wake(asked: Option<Arc<SyncJob>>) {
    if let Some(job) = asked {
        job.changed.notify_one();
    }
}

impl SyncJob {
    /// Takes the work, unless a leader has it already. Also returns whether the waiting thread was
    /// asked to lead and has not begun to.
    fn take(&self) -> Option<(Work, bool)> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, JobState::Running) {
            JobState::Waiting(work) => Some((work, false)),
            JobState::Lead(work) => Some((work, true)),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Reports an error for work of a leader that panicked: no thread knows whether it was done.
    fn give_up(&self) {
        let mut state = self.state.lock();
        if matches!(*state, JobState::Running) {
            let lost = JournalError::Aborted(PANIC.into());
            *state = JobState::Done(Work::default(), Err(lost.into()));
            self.changed.notify_one();
        }
    }

    /// Asks the waiting thread to lead, without waking it; `false` if it has been asked already.
    fn ask_to_lead(&self) -> bool {
        let mut state = self.state.lock();
        let (asked, next) = match std::mem::replace(&mut *state, JobState::Running) {
            JobState::Waiting(work) => (true, JobState::Lead(work)),
            other => (false, other),
        };
        *state = next;
        asked
    }

    /// Waits for the outcome; `None` if this thread is to lead.
    fn wait(&self) -> Option<(Work, Result<()>)> {
        let mut state = self.state.lock();
        loop {
            match std::mem::replace(&mut *state, JobState::Running) {
                JobState::Done(work, outcome) => return Some((work, outcome)),
                JobState::Lead(work) => {
                    *state = JobState::Waiting(work);
                    return None;
                }
                other => *state = other,
            }
            self.changed.wait(&mut state);
        }
    }
}

/// Jobs that a leader takes at most. With larger batches, the device would be idle while threads
/// compute, and the other way round.
pub(super) const MOST_JOBS: usize = 256;
/// Bytes of pages after which a leader takes no more jobs.
const MOST_BYTES: usize = 32 << 20;
/// Threads that lead at the same time.
pub(super) const LEADERS: usize = 2;
/// Jobs that wait when another thread is asked to lead, while one does. Both then lead on while any
/// job waits.
const SECOND_BATCH: usize = 4;
/// The most bytes of pages of one job that a commit writes itself: about as many as its log has.
const LEFT_TO_COMMIT: usize = 256 << 10;

/// Returns the credits that `work` may need.
fn need(work: &Work) -> u32 {
    work.credits() + credits::INODE + credits::SUPER
}

const PANIC: &str = "a panic while inodes were told of what was written";

/// One round of a leader. Dropped before its end, by a panic, it ends the journal and fails every
/// job that it had taken, so that no thread waits for ever.
struct LeaderRound<'t> {
    fs: &'t Fs,
    own: &'t Arc<SyncJob>,
    /// The jobs whose work it has taken.
    jobs: Vec<Arc<SyncJob>>,
    /// This thread has not handed the lead on yet.
    leads: bool,
}

impl Drop for LeaderRound<'_> {
    fn drop(&mut self) {
        if self.jobs.is_empty() && !self.leads {
            return;
        }
        self.fs.journal.abort(PANIC);
        self.jobs.iter().for_each(|job| job.give_up());
        if self.leads {
            // This thread will not lead again.
            self.fs.combiner.queue.lock().jobs.retain(|job| !Arc::ptr_eq(job, self.own));
            self.fs.hand_on();
        }
    }
}

impl Fs {
    /// Runs `work` on the inode of `node`, under one handle with the work of other threads. Returns
    /// the work with the unused part of its claim.
    pub(super) fn combine(&self, node: &CachedInode, work: Work) -> (Work, Result<()>) {
        // In the older writeback modes, each job has a handle of its own.
        let old = self.options.modes.writeback != WritebackMode::MapAfter;
        let Some(node) = node.shared().filter(|_| !old) else { return self.run_alone(node, work) };
        let job = Arc::new(SyncJob {
            node,
            keeps_reserved: alloc::keeps_reserved(),
            state: Mutex::new(JobState::Waiting(work)),
            changed: Condvar::new(),
            #[cfg(test)]
            due: lanefs_sync::atomic::AtomicUsize::new(0),
        });
        let mut queue = self.combiner.queue.lock();
        #[cfg(test)]
        queue.note_job(&job);
        queue.jobs.push_back(Arc::clone(&job));
        // The thread at the front of the queue: this one, if no thread leads.
        let few = queue.leaders == 0 || queue.leaders < LEADERS && queue.jobs.len() >= SECOND_BATCH;
        let asked = if few { queue.call_leader() } else { None };
        drop(queue);
        wake(asked);
        loop {
            match job.wait() {
                Some(done) => return done,
                None => self.lead(&job),
            }
        }
    }

    /// Runs the jobs at the front of the queue, with `own` unless another leader has taken it, and
    /// hands the lead on meanwhile. A thread leads at most one batch without `own`: no leader finds
    /// that job in the queue again.
    fn lead(&self, own: &Arc<SyncJob>) {
        let mut turn = LeaderRound { fs: self, own, jobs: Vec::new(), leads: true };
        #[cfg(test)]
        while self.combiner.queue.lock().jobs.len() < self.combiner.gathers.load(Ordering::Relaxed) {
            lanefs_sync::thread::yield_now();
        }
        let mut batch = self.take_batch();
        turn.jobs.extend(batch.iter().map(|(job, _)| Arc::clone(job)));
        let written = match &batch[..] {
            // Its commit writes them, as this thread has nothing else to do meanwhile.
            [(_, only)] if self.leaves_to_commit(only) => Ok(()),
            _ => self.write_pages(batch.iter_mut().map(|(job, work)| (&*job.node, work))),
        };
        // The lead is kept until then: jobs that come meanwhile are one batch, and not one each.
        let handle = (written.is_ok() && !batch.is_empty()).then(|| self.combiner.handle.lock());
        self.hand_on();
        turn.leads = false;
        let (tid, done) = match written {
            Ok(()) => self.run_batch(batch),
            Err(e) => (None, self.refuse(batch, own, e)),
        };
        drop(handle);
        let (synced, told): (Vec<_>, Vec<_>) = done.into_iter().partition(|(_, work, _)| work.is_synced());
        finish(told);
        let committed = match tid.filter(|_| !synced.is_empty()) {
            Some(tid) => self.journal.commit(tid),
            None => Ok(()),
        };
        let told = |(job, work, outcome): Outcome| {
            (job, work, outcome.and_then(|()| committed.clone().map_err(Error::from)))
        };
        finish(synced.into_iter().map(told).collect());
        turn.jobs.clear();
    }

    /// Takes the jobs of one round from the queue.
    fn take_batch(&self) -> Vec<(Arc<SyncJob>, Work)> {
        let mut queue = self.combiner.queue.lock();
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < MOST_JOBS && bytes < MOST_BYTES {
            let Some(job) = queue.jobs.pop_front() else { break };
            let Some((work, asked)) = job.take() else { continue };
            // Its thread need not lead any more.
            queue.leaders -= usize::from(asked);
            bytes += work.bytes();
            batch.push((job, work));
        }
        #[cfg(test)]
        queue.note_batch(&batch);
        batch
    }

    /// Hands the lead to the thread at the front of the queue.
    fn hand_on(&self) {
        let mut queue = self.combiner.queue.lock();
        queue.leaders -= 1;
        let asked = queue.call_leader();
        drop(queue);
        wake(asked);
    }

    /// Returns whether the commit of `work` writes its pages too, in the batch of its log blocks:
    /// the flush before the commit block covers both. Not while a commit is under way: this work
    /// waits for it in any case, and its pages are written meanwhile.
    fn leaves_to_commit(&self, work: &Work) -> bool {
        let straight = |(offset, pieces): &(u64, Vec<Bytes>)| {
            pieces.iter().all(|piece| io::is_straight(self, *offset, piece))
        };
        let is_small = work.is_synced() && work.bytes() <= LEFT_TO_COMMIT;
        !self.dax && is_small && !self.journal.is_committing() && work.pages().iter().all(straight)
    }

    /// Writes the pages of all `works`, and drops them.
    fn write_pages<'w>(&self, works: impl Iterator<Item = (&'w CachedInode, &'w mut Work)>) -> Result<()> {
        let mut works: Vec<_> = works.collect();
        let written = io::write_pieces(self, works.iter().flat_map(|(_, work)| work.pages()));
        for (node, work) in &mut works {
            if work.let_go() && written.is_ok() {
                // Before the commit, so that the commit's flush covers these pages.
                node.file().wrote(self);
            }
        }
        written
    }

    /// Fails every job of `batch`, because pages could not be written and the journal has ended.
    /// `own` gets that error, the other jobs get an error that says so.
    fn refuse(&self, batch: Vec<(Arc<SyncJob>, Work)>, own: &Arc<SyncJob>, why: Error) -> Vec<Outcome> {
        let mut why = Some(why);
        let told = |(job, work): (Arc<SyncJob>, Work)| {
            let ended = || JournalError::Aborted("content could not be written".into()).into();
            let own = if Arc::ptr_eq(&job, own) { why.take() } else { None };
            let error = own.unwrap_or_else(ended);
            (job, work, Err(error))
        };
        batch.into_iter().map(told).collect()
    }

    /// Runs all of `batch` under one handle. Returns its transaction, if it started, and each
    /// result. The caller holds the lock of the handle.
    fn run_batch(&self, batch: Vec<(Arc<SyncJob>, Work)>) -> (Option<Tid>, Vec<Outcome>) {
        // Each job may change many blocks, but most change few, and often the same ones. So the
        // handle reserves a few credits for each job, and enough for the worst case of the next
        // one.
        let few = 2 * u32::try_from(batch.len()).unwrap_or(u32::MAX / 2);
        let most = batch.iter().map(|(_, work)| need(work)).max().unwrap_or(0);
        if batch.is_empty() {
            return (None, Vec::new());
        }
        let mut batch = Some(batch);
        let ran = self.transact(few.min(self.journal.max_credits() / 4) + most, |txn| {
            #[cfg(test)]
            assert!(!self.combiner.panics.load(Ordering::Relaxed), "on purpose");
            let run = |(job, mut work): (Arc<SyncJob>, Work)| {
                let run = || txn.ensure(need(&work)).and_then(|()| work.run_with_pages(txn, &job.node));
                let outcome = alloc::keeping_reserved(job.keeps_reserved, run);
                (job, work, txn.settle(outcome))
            };
            let done = batch.take().unwrap_or_default().into_iter().map(run).collect();
            Ok((txn.tid(), done))
        });
        match ran {
            Ok((tid, done)) => (Some(tid), done),
            // The handle did not start: each job runs alone, and gets its own result.
            Err(_) => {
                let run = |(job, work): (Arc<SyncJob>, Work)| {
                    let run = || self.run_alone(&job.node, work);
                    let (work, outcome) = alloc::keeping_reserved(job.keeps_reserved, run);
                    (job, work, outcome)
                };
                (None, batch.unwrap_or_default().into_iter().map(run).collect())
            }
        }
    }

    /// Runs `work` under a handle of its own.
    pub(super) fn run_alone(&self, node: &CachedInode, mut work: Work) -> (Work, Result<()>) {
        let outcome = self
            .write_pages(std::iter::once((node, &mut work)))
            .and_then(|()| self.transact(need(&work), |txn| work.run(txn, node)));
        (work, outcome)
    }
}

#[cfg(test)]
mod seen {
    //! What tests count of the batches.

    use super::*;

    /// Counts since the volume was opened.
    #[derive(Debug, Default, Clone, Copy)]
    pub(in crate::fs::data) struct Seen {
        /// Jobs that came.
        pub(in crate::fs::data) jobs: usize,
        /// Batches that began, without those that found no job.
        pub(in crate::fs::data) batches: usize,
        /// Jobs that a later batch took than the head of the file promises.
        pub(in crate::fs::data) late: usize,
        /// The most threads that led, or were asked to lead, at the same time.
        pub(in crate::fs::data) leaders: usize,
    }

    impl Combiner {
        /// Returns what was counted so far.
        pub(in crate::fs::data) fn seen(&self) -> Seen {
            self.queue.lock().seen
        }

        /// Returns whether no job is queued and no thread leads.
        pub(in crate::fs::data) fn is_idle(&self) -> bool {
            let queue = self.queue.lock();
            queue.jobs.is_empty() && queue.leaders == 0
        }
    }

    impl Queue {
        /// Notes a job that comes behind those of the queue, whose pages are less than
        /// [`MOST_BYTES`].
        pub(super) fn note_job(&mut self, job: &SyncJob) {
            self.seen.jobs += 1;
            let due = self.seen.batches + 1 + self.jobs.len() / MOST_JOBS;
            job.due.store(due, Ordering::Relaxed);
        }

        /// Notes that another thread may lead.
        pub(super) fn note_leaders(&mut self) {
            self.seen.leaders = self.seen.leaders.max(self.leaders);
        }

        /// Notes a batch that begins.
        pub(super) fn note_batch(&mut self, batch: &[(Arc<SyncJob>, Work)]) {
            self.seen.batches += usize::from(!batch.is_empty());
            let now = self.seen.batches;
            self.seen.late += batch.iter().filter(|(job, _)| job.due.load(Ordering::Relaxed) < now).count();
        }
    }
}
