//! What many files want of their inodes at the same time, in few handles.
//!
//! Data that is on the device waits for its map. Whoever comes when nobody leads takes all that wait, runs
//! them under one handle, and tells each how it went; then one of those who came meanwhile leads. So 2048
//! threads that sync do not ask for 2048 worst cases of credits at once, which is what stalls them all: they would
//! wait for each other's unused credits.
//!
//! Who syncs waits here for the commit too, which the leader sees to when it has handed the lead on: one sleep for both.
//!
//! A leader holds no lock that another's work takes: inodes are locked one at a time, under the handle. One that panics
//! ends the journal, and those whose work it had taken are told ([`Turn`]).

use super::plan::Work;
use crate::error::{Error, Result};
use crate::inode::Node;
use crate::txn::credits;
use crate::volume::{Fs, Writeback};
use lanefs_journal::{JournalError, Tid};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::Ordering;

/// The work that waits, of one volume.
#[derive(Debug, Default)]
pub(crate) struct Combiner {
    queue: Mutex<Queue>,
    /// A leader waits until so many wait, and then panics.
    #[cfg(test)]
    pub(super) panics_among: std::sync::atomic::AtomicUsize,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Arc<Job>>,
    led: bool,
}

/// A job that has run, and how that went.
type Outcome = (Arc<Job>, Work, Result<()>);

/// One file's work, and the thread that waits for it.
#[derive(Debug)]
struct Job {
    node: Arc<Node>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
enum State {
    Waiting(Work),
    /// Its thread is to lead: the work waits in the queue still.
    Lead(Work),
    Running,
    Done(Work, Result<()>),
}

impl Job {
    fn take(&self) -> Option<Work> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, State::Running) {
            State::Waiting(work) | State::Lead(work) => Some(work),
            other => {
                *state = other;
                None
            }
        }
    }

    fn finish(&self, work: Work, outcome: Result<()>) {
        *self.state.lock() = State::Done(work, outcome);
        self.changed.notify_one();
    }

    /// The work of a leader that panicked is not done, as far as anybody knows.
    fn give_up(&self) {
        let mut state = self.state.lock();
        if matches!(*state, State::Running) {
            let lost = JournalError::Aborted(PANIC.into());
            *state = State::Done(Work::default(), Err(lost.into()));
            self.changed.notify_one();
        }
    }

    /// Asks the waiting thread to lead.
    fn ask_to_lead(&self) {
        let mut state = self.state.lock();
        *state = match std::mem::replace(&mut *state, State::Running) {
            State::Waiting(work) => State::Lead(work),
            other => other,
        };
        self.changed.notify_one();
    }

    /// Waits for the outcome; `None` if this thread is to lead.
    fn wait(&self) -> Option<(Work, Result<()>)> {
        let mut state = self.state.lock();
        loop {
            match std::mem::replace(&mut *state, State::Running) {
                State::Done(work, outcome) => return Some((work, outcome)),
                lead @ State::Lead(_) => {
                    *state = lead;
                    return None;
                }
                other => *state = other,
            }
            self.changed.wait(&mut state);
        }
    }
}

const PANIC: &str = "a panic while inodes were told of what was written";

/// One round of a leader. Dropped before its end it lets nobody wait for ever.
struct Turn<'t> {
    fs: &'t Fs,
    own: &'t Arc<Job>,
    /// Whose work it has taken.
    jobs: Vec<Arc<Job>>,
    /// The lead is not handed on yet.
    leads: bool,
}

impl Turn<'_> {
    fn end(mut self) {
        self.jobs.clear();
        self.leads = false;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.jobs.is_empty() && !self.leads {
            return;
        }
        self.fs.journal.abort(PANIC);
        self.jobs.iter().for_each(|job| job.give_up());
        if self.leads {
            // This thread will not lead again.
            self.fs.combiner.queue.lock().jobs.retain(|job| !Arc::ptr_eq(job, self.own));
            self.fs.hand_on(true);
        }
    }
}

impl Fs {
    /// Runs `work` on the inode of `node` under a handle, with that of others; the work comes back with what is
    /// left of its claim.
    pub(super) fn combine(&self, node: &Node, work: Work) -> (Work, Result<()>) {
        // The old ways have a handle for each.
        let old = self.options.modes.writeback != Writeback::MapAfter;
        let Some(node) = node.shared().filter(|_| !old) else { return self.run_alone(node, work) };
        let job = Arc::new(Job { node, state: Mutex::new(State::Waiting(work)), changed: Condvar::new() });
        let leads = {
            let mut queue = self.combiner.queue.lock();
            queue.jobs.push_back(Arc::clone(&job));
            !std::mem::replace(&mut queue.led, true)
        };
        if !leads && let Some(done) = job.wait() {
            return done;
        }
        self.lead(&job);
        loop {
            // Led by this thread, it is done; the loop is for the type.
            if let Some(done) = job.wait() {
                return done;
            }
            self.lead(&job);
        }
    }

    /// Runs what waits, `own` with it, and hands the lead on.
    fn lead(&self, own: &Arc<Job>) {
        let most = self.journal.max_credits() / 4;
        loop {
            let mut turn = Turn { fs: self, own, jobs: Vec::new(), leads: true };
            let mut asked = credits::SUPER;
            let mut batch: Vec<(Arc<Job>, Work)> = Vec::new();
            #[cfg(test)]
            while self.combiner.queue.lock().jobs.len() < self.combiner.panics_among.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            {
                let mut queue = self.combiner.queue.lock();
                while let Some(job) = queue.jobs.front() {
                    let Some(work) = job.take() else {
                        queue.jobs.pop_front();
                        continue;
                    };
                    let more = work.credits() + credits::INODE;
                    if !batch.is_empty() && asked + more > most {
                        *job.state.lock() = State::Waiting(work);
                        break;
                    }
                    asked += more;
                    if let Some(job) = queue.jobs.pop_front() {
                        turn.jobs.push(Arc::clone(&job));
                        batch.push((job, work));
                    }
                }
            }
            let (tid, done) = self.run_batch(batch, asked);
            let own_done = done.iter().any(|(job, ..)| Arc::ptr_eq(job, own));
            let (synced, told): (Vec<_>, Vec<_>) =
                done.into_iter().partition(|(_, work, _)| work.is_synced());
            for (job, work, outcome) in told {
                job.finish(work, outcome);
            }
            let goes_on = self.hand_on(own_done);
            turn.leads = goes_on;
            // Others lead meanwhile; what they do belongs to the next transaction.
            if let Some(tid) = tid.filter(|_| !synced.is_empty()) {
                let committed = self.journal.commit(tid);
                for (job, work, outcome) in synced {
                    let outcome = outcome.and_then(|()| committed.clone().map_err(Error::from));
                    job.finish(work, outcome);
                }
            } else {
                for (job, work, outcome) in synced {
                    job.finish(work, outcome);
                }
            }
            turn.end();
            if !goes_on {
                return;
            }
        }
    }

    /// Whether this thread is to go on leading: not if `done`, and not if nobody waits.
    fn hand_on(&self, done: bool) -> bool {
        let mut queue = self.combiner.queue.lock();
        match queue.jobs.front() {
            None => {
                queue.led = false;
                false
            }
            Some(next) if done => {
                next.ask_to_lead();
                false
            }
            Some(_) => true,
        }
    }

    /// Runs all of `batch` under one handle; its transaction, if there was one, and how each went.
    fn run_batch(&self, batch: Vec<(Arc<Job>, Work)>, credits: u32) -> (Option<Tid>, Vec<Outcome>) {
        match self.start(credits) {
            Ok(mut txn) => {
                #[cfg(test)]
                assert_eq!(self.combiner.panics_among.load(Ordering::Relaxed), 0, "on purpose");
                let run = |(job, mut work): (Arc<Job>, Work)| {
                    let outcome = work.run(&mut txn, &job.node);
                    (job, work, outcome)
                };
                let done = batch.into_iter().map(run).collect();
                (Some(txn.tid()), done)
            }
            // Each is told by an attempt of its own.
            Err(_) => {
                let run = |(job, work): (Arc<Job>, Work)| {
                    let (work, outcome) = self.run_alone(&job.node, work);
                    (job, work, outcome)
                };
                (None, batch.into_iter().map(run).collect())
            }
        }
    }

    /// Runs `work` under a handle of its own.
    pub(super) fn run_alone(&self, node: &Node, mut work: Work) -> (Work, Result<()>) {
        let outcome = self
            .start(work.credits() + credits::INODE + credits::SUPER)
            .and_then(|mut txn| work.run(&mut txn, node));
        (work, outcome)
    }
}
