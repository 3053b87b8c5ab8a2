//! The scheduling of one thread that serves a queue, as it and the watching thread see it.

use crate::scheduling::{Following, is_runnable};
use rustix::thread::{Pid, gettid};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Looks that find a thread waiting for its next request, after which it stands back no longer.
const QUIET: u32 = 8;
/// Requests after which a thread is bound again: a broker may have released it late.
const TERM: u64 = 1024;
/// How long after a thread was held up it takes SCHED_IDLE only while it answers.
const CROWDED: Duration = Duration::from_millis(250);

/// A thread of a queue.
#[derive(Debug)]
pub(crate) struct Station {
    queue: u16,
    thread: Pid,
    /// Twice the requests that were taken. Odd while one is served.
    turns: AtomicU64,
    /// The thread is bound to the processor of its queue, under SCHED_IDLE.
    stands_back: AtomicBool,
    began: Instant,
    /// Microseconds after `began`. Until then other programs hold up the thread.
    crowded_until: AtomicU64,
}

/// What the watching thread saw of a thread.
#[derive(Debug, Default)]
pub(super) struct Seen {
    turns: u64,
    looks: u32,
}

/// The state of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// It waits, and needs no look before its next request.
    Idle,
    /// It takes requests.
    Active,
    /// It serves one request since the last look.
    Lasts,
}

impl Station {
    /// Returns the station of the calling thread.
    pub(super) fn new(queue: u16) -> Self {
        Self {
            queue,
            thread: gettid(),
            turns: AtomicU64::new(0),
            stands_back: AtomicBool::new(false),
            began: Instant::now(),
            crowded_until: AtomicU64::new(0),
        }
    }

    pub(crate) fn queue(&self) -> u16 {
        self.queue
    }

    pub(super) fn is_serving(&self) -> bool {
        self.turns.load(Ordering::Relaxed) % 2 == 1
    }

    pub(super) fn took(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn gave(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// Has the calling thread stand back, before it answers. Returns whether it does: if not, it
    /// may do so just for the answer.
    pub(crate) fn stand_back(&self, following: &Following) -> bool {
        let term_ends = self.turns.load(Ordering::Relaxed) % TERM == 1;
        if self.stands_back.load(Ordering::Relaxed) && !term_ends {
            return true;
        }
        let now = self.began.elapsed().as_micros() as u64;
        let stands_back = now >= self.crowded_until.load(Ordering::Relaxed) && following.stand_at(self.queue);
        self.stands_back.store(stands_back, Ordering::Relaxed);
        stands_back
    }

    /// Schedules the calling thread as all others: its request may last.
    pub(crate) fn step_forward(&self, following: &Following) {
        if self.stands_back.swap(false, Ordering::Relaxed) {
            following.release_caller();
        }
    }

    /// Looks at the thread, and releases it if it is held up, or quiet.
    pub(super) fn look(&self, seen: &mut Seen, following: &Following) -> Look {
        let turns = self.turns.load(Ordering::Relaxed);
        if turns != seen.turns {
            *seen = Seen { turns, looks: 0 };
            return Look::Active;
        }
        seen.looks = seen.looks.saturating_add(1);
        let serves = turns % 2 == 1;
        if self.stands_back.load(Ordering::Relaxed) {
            let held_up = serves || is_runnable(self.thread);
            if held_up {
                let until = (self.began.elapsed() + CROWDED).as_micros() as u64;
                self.crowded_until.store(until, Ordering::Relaxed);
            }
            if held_up || seen.looks > QUIET {
                self.stands_back.store(false, Ordering::Relaxed);
                following.release(self.thread);
            }
            return if serves { Look::Lasts } else { Look::Active };
        }
        match serves {
            true => Look::Lasts,
            false if seen.looks <= QUIET => Look::Active,
            false => Look::Idle,
        }
    }
}
