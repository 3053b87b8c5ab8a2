//! The threads that change the content of files, which a close of the volume refuses and waits for.
//!
//! The handle of a change of metadata is either committed by a close, or refused by the journal. A
//! change of content is made in memory first, and a close that has passed the file would not write
//! it out. So each such change is [entered](Writers::enter) while it is made. A close first
//! [refuses](Writers::refuse) new ones and waits for the others, and then writes files out.
//!
//! Invariant: a thread enters with the bytes of the file locked, and waits for no lock of bytes
//! before it leaves. A caller may hold such a lock for as long as it likes (`File::map`), and may
//! be the thread that closes the volume.

use lanefs_stats::{LANES, lane};
use lanefs_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use lanefs_sync::order::{Level, Note};
use lanefs_sync::{Condvar, Mutex};

/// A count on cache lines of its own: two, because processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Lane(AtomicUsize);

/// The threads that are inside. Each counts in its lane, so that they share no cache line.
#[derive(Debug, Default)]
pub(crate) struct Writers {
    refused: AtomicBool,
    inside: [Lane; LANES],
    leaving: Mutex<()>,
    left: Condvar,
}

/// A thread that is inside.
#[derive(Debug)]
pub(crate) struct Writer<'w> {
    writers: &'w Writers,
    lane: &'w Lane,
    _note: Note,
}

impl Writers {
    /// Lets the caller begin a change; `None` once they are refused.
    pub(super) fn enter(&self) -> Option<Writer<'_>> {
        let lane = &self.inside[lane()];
        // Counted before it looks: this thread sees the refusal, or the close sees this thread.
        lane.0.fetch_add(1, Ordering::SeqCst);
        let writer = Writer { writers: self, lane, _note: Note::new(Level::Writers, 0) };
        (!self.are_refused()).then_some(writer)
    }

    pub(super) fn are_refused(&self) -> bool {
        self.refused.load(Ordering::SeqCst)
    }

    /// Refuses all changes from now on, and waits for those that have begun.
    pub(super) fn refuse(&self) {
        self.refused.store(true, Ordering::SeqCst);
        let mut leaving = self.leaving.lock();
        // A thread that is refused counts for a moment too. No lane that was empty once gets a
        // thread that stays, so lanes that are empty one after the other are all empty.
        while self.inside.iter().map(|lane| lane.0.load(Ordering::SeqCst)).sum::<usize>() > 0 {
            self.left.wait(&mut leaving);
        }
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.lane.0.fetch_sub(1, Ordering::SeqCst);
        if self.writers.are_refused() {
            let _leaving = self.writers.leaving.lock();
            self.writers.left.notify_all();
        }
    }
}
