//! The threads of a journal: one commits when time is up or a starter waits, one checkpoints.
//!
//! Both sleep without a timeout while there is nothing to do.

use crate::Tid;
use lanefs_sync::time::Instant;
use lanefs_sync::{Condvar, Mutex};

/// What the threads are asked for.
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
    /// Asks for a commit of `tid` soon.
    pub(crate) fn want_commit(&self, tid: Tid) {
        let mut wanted = self.wanted.lock();
        // A sleeper may have been late to ask for an older one.
        if wanted.commit.is_none_or(|known| tid.after(known)) {
            wanted.commit = Some(tid);
        }
        drop(wanted);
        self.commit.notify_one();
    }

    /// Says that the running transaction has something to commit when its time is up.
    pub(crate) fn has_become_dirty(&self) {
        drop(self.wanted.lock());
        self.commit.notify_one();
    }

    /// Asks for a checkpoint soon.
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

    /// Waits until somebody wants a commit or `deadline` has passed, and commits; until stopped.
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

    /// Waits until somebody wants a checkpoint, and makes it; until stopped.
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
