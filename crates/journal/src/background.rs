//! The background threads of a journal: one commits, the other checkpoints.
//!
//! The first commits when the commit interval has passed or a handle waits for credits.
//!
//! Both sleep without a timeout while there is nothing to do. A journal opened without threads runs
//! the requests in the threads that wait for room.

use crate::Tid;
use lanefs_sync::time::Instant;
use lanefs_sync::{Condvar, Mutex};

/// Requests to the background threads.
#[derive(Debug, Default)]
pub(crate) struct Background {
    wanted: Mutex<Wanted>,
    commit: Condvar,
    checkpoint: Condvar,
}

#[derive(Debug, Default)]
struct Wanted {
    commit: Option<Tid>,
    checkpoint: bool,
    stop: bool,
}

impl Background {
    /// Requests a commit of `tid`. Does not wait for it.
    pub(crate) fn want_commit(&self, tid: Tid) {
        let mut wanted = self.wanted.lock();
        // Another thread's request for an older transaction may arrive late.
        if wanted.commit.is_none_or(|known| tid.after(known)) {
            wanted.commit = Some(tid);
        }
        drop(wanted);
        self.commit.notify_one();
    }

    /// Wakes the commit thread to compute its deadline: the running transaction has its first
    /// change.
    pub(crate) fn has_become_dirty(&self) {
        drop(self.wanted.lock());
        self.commit.notify_one();
    }

    /// Requests a checkpoint. Does not wait for it.
    pub(crate) fn want_checkpoint(&self) {
        self.wanted.lock().checkpoint = true;
        self.checkpoint.notify_one();
    }

    /// Ends both threads.
    pub(crate) fn stop(&self) {
        self.wanted.lock().stop = true;
        self.commit.notify_all();
        self.checkpoint.notify_all();
    }

    /// Runs the commit thread until [`stop`](Self::stop): waits for a request or for `deadline`,
    /// and calls `commit`.
    pub(crate) fn run_commits(&self, deadline: impl Fn() -> Option<Instant>, commit: impl Fn(Option<Tid>)) {
        let mut wanted = self.wanted.lock();
        while !wanted.stop {
            let tid = wanted.commit.take();
            let due = deadline();
            if tid.is_some() || due.is_some_and(|due| due <= Instant::now()) {
                drop(wanted);
                commit(tid);
                wanted = self.wanted.lock();
            } else if let Some(due) = due {
                self.commit.wait_until(&mut wanted, due);
            } else {
                self.commit.wait(&mut wanted);
            }
        }
    }

    /// Returns whether a commit or a checkpoint is requested.
    pub(crate) fn has_requests(&self) -> bool {
        let wanted = self.wanted.lock();
        wanted.commit.is_some() || wanted.checkpoint
    }

    /// Runs what is requested, and what that requests, in the calling thread: for a journal without
    /// threads.
    pub(crate) fn run_requests(&self, commit: impl Fn(Tid), checkpoint: impl Fn()) {
        loop {
            let mut wanted = self.wanted.lock();
            let (tid, due) = (wanted.commit.take(), std::mem::take(&mut wanted.checkpoint));
            drop(wanted);
            if tid.is_none() && !due {
                return;
            }
            tid.into_iter().for_each(&commit);
            if due {
                checkpoint();
            }
        }
    }

    /// Runs the checkpoint thread until [`stop`](Self::stop): waits for a request, and calls
    /// `checkpoint`.
    pub(crate) fn run_checkpoints(&self, checkpoint: impl Fn()) {
        let mut wanted = self.wanted.lock();
        while !wanted.stop {
            if std::mem::take(&mut wanted.checkpoint) {
                drop(wanted);
                checkpoint();
                wanted = self.wanted.lock();
            } else {
                self.checkpoint.wait(&mut wanted);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_want_does_not_hide_a_newer() {
        let background = Background::default();
        for tid in [Tid(u32::MAX), Tid(1), Tid(u32::MAX)] {
            background.want_commit(tid);
        }
        assert_eq!(background.wanted.lock().commit, Some(Tid(1)));
    }
}
