//! The flusher: one thread for each volume, which writes out pages that are old or too many.
//!
//! The thread has only a weak reference to the volume, and upgrades it while it works.
//! [`Flusher::pause`] waits until the thread has dropped the reference, so that the caller drops
//! the last one. While nothing is dirty the thread sleeps without a timeout.
//!
//! Invariant: no work is missed. The flusher sets `stir`, then looks for work, then sleeps. A
//! thread that makes work does so first, and then checks `stir`. So at least one of the two sees
//! the other.

use super::Fs;
use crate::error::{Error, Result};
use lanefs_sync::atomic::{AtomicBool, Ordering};
use lanefs_sync::thread::{self, JoinHandle};
use lanefs_sync::time::Instant;
use lanefs_sync::{Condvar, Mutex};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The shortest sleep.
const LEAST: Duration = Duration::from_millis(10);

/// How long the flusher waits for more work once there is some.
const GATHER: Duration = Duration::from_secs(1);

/// The flusher's thread, and its control.
#[derive(Debug, Default)]
pub(crate) struct Flusher {
    control: Arc<Control>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Control {
    state: Mutex<FlusherState>,
    changed: Condvar,
    /// The flusher asks to be woken when there is something to do.
    stir: AtomicBool,
}

#[derive(Debug, Default)]
struct FlusherState {
    stop: bool,
    paused: bool,
    wanted: bool,
    working: bool,
    stirred: bool,
}

impl Control {
    fn stir(&self) {
        if self.stir.load(Ordering::SeqCst) && self.stir.swap(false, Ordering::SeqCst) {
            self.state.lock().stirred = true;
            self.changed.notify_all();
        }
    }
}

impl Flusher {
    /// Starts the thread.
    pub(super) fn start(&self, fs: &Arc<Fs>) -> Result<()> {
        let (control, fs) = (Arc::clone(&self.control), Arc::downgrade(fs));
        let thread = thread::Builder::new().name("lanefs-flush".into()).spawn(move || run(&control, &fs));
        *self.thread.lock() = Some(thread.map_err(Error::Thread)?);
        Ok(())
    }

    /// Wakes the flusher at once: there is much to write out.
    pub(crate) fn wake(&self) {
        let mut state = self.control.state.lock();
        if !state.wanted {
            state.wanted = true;
            self.control.changed.notify_all();
        }
    }

    /// Wakes the flusher if it sleeps without a timeout. The caller has made work before.
    pub(crate) fn stir(&self) {
        self.control.stir();
    }

    /// Returns what [`stir`](Self::stir) does, for callers that do not know the volume.
    pub(super) fn stirrer(&self) -> impl Fn() + Send + Sync + 'static {
        let control = Arc::clone(&self.control);
        move || control.stir()
    }

    /// Returns whether the flusher is to end its round soon.
    pub(crate) fn is_wanted_back(&self) -> bool {
        let state = self.control.state.lock();
        state.stop || state.paused
    }

    /// Waits until the flusher is idle, and keeps it from beginning a round.
    pub(crate) fn pause(&self) {
        let mut state = self.control.state.lock();
        state.paused = true;
        while state.working {
            self.control.changed.wait(&mut state);
        }
    }

    /// Lets the flusher begin rounds again.
    pub(crate) fn resume(&self) {
        self.control.state.lock().paused = false;
    }

    /// Ends the thread. Waits for it, unless it is the caller.
    pub(super) fn stop(&self) {
        self.control.state.lock().stop = true;
        self.control.changed.notify_all();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread.filter(|t| t.thread().id() != thread::current().id()) {
            // A panic in it was reported where it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A round of the flusher. When it ends, by a panic too, threads that wait for that are woken.
struct Round<'c>(&'c Control);

impl Drop for Round<'_> {
    fn drop(&mut self) {
        self.0.state.lock().working = false;
        self.0.changed.notify_all();
    }
}

fn run(control: &Control, fs: &Weak<Fs>) {
    let (mut jobs, mut pause) = (None, Some(Duration::ZERO));
    loop {
        {
            let mut state = control.state.lock();
            if pause.is_none() {
                while !state.stirred && !state.wanted && !state.stop {
                    control.changed.wait(&mut state);
                }
            }
            let until = Instant::now() + pause.unwrap_or(GATHER).max(LEAST);
            while (!state.wanted || state.paused) && !state.stop {
                if control.changed.wait_until(&mut state, until).timed_out() {
                    break;
                }
            }
            if state.stop {
                return;
            }
            if state.paused {
                pause = Some(LEAST);
                continue;
            }
            state.working = true;
            (state.wanted, state.stirred) = (false, false);
        }
        let _round = Round(control);
        let Some(fs) = fs.upgrade() else { return };
        control.stir.store(true, Ordering::SeqCst);
        pause = fs.background_round(jobs.get_or_insert_with(|| fs.background_jobs()));
        // The reference to the volume goes before the thread reports that it is idle.
        drop(fs);
    }
}
