//! Writing out in the background: what has been dirty for long, and all when there is much of it.
//!
//! One thread for a volume, which knows it weakly and only while it works. [`Flusher::pause`] waits until it
//! does not, so that whoever lets go of a volume is the last to have it.

use super::Fs;
use crate::error::{Error, Result};
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The shortest sleep.
const LEAST: Duration = Duration::from_millis(10);

/// The thread's reins.
#[derive(Debug, Default)]
pub(crate) struct Flusher {
    reins: Arc<Reins>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Reins {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stop: bool,
    paused: bool,
    wanted: bool,
    working: bool,
}

impl Flusher {
    /// Starts the thread.
    pub(super) fn start(&self, fs: &Arc<Fs>) -> Result<()> {
        let (reins, fs) = (Arc::clone(&self.reins), Arc::downgrade(fs));
        let thread = thread::Builder::new().name("lanefs-flush".into()).spawn(move || run(&reins, &fs));
        *self.thread.lock() =
            Some(thread.map_err(|e| Error::NotSupported(format!("a thread for writing out: {e}")))?);
        Ok(())
    }

    /// There is much to write out.
    pub(crate) fn wake(&self) {
        let mut state = self.reins.state.lock();
        if !state.wanted {
            state.wanted = true;
            self.reins.changed.notify_all();
        }
    }

    /// Whether it is to end its round soon.
    pub(crate) fn is_wanted_back(&self) -> bool {
        let state = self.reins.state.lock();
        state.stop || state.paused
    }

    /// Returns when it does nothing, and lets it begin nothing more.
    pub(crate) fn pause(&self) {
        let mut state = self.reins.state.lock();
        state.paused = true;
        while state.working {
            self.reins.changed.wait(&mut state);
        }
    }

    /// Lets it begin again.
    pub(crate) fn resume(&self) {
        self.reins.state.lock().paused = false;
    }

    /// Ends the thread, unless it is the caller.
    pub(super) fn stop(&self) {
        self.reins.state.lock().stop = true;
        self.reins.changed.notify_all();
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

fn run(reins: &Reins, fs: &Weak<Fs>) {
    let (mut jobs, mut pause) = (None, Duration::ZERO);
    loop {
        {
            let mut state = reins.state.lock();
            state.working = false;
            reins.changed.notify_all();
            if (!state.wanted || state.paused) && !state.stop {
                reins.changed.wait_for(&mut state, pause.max(LEAST));
            }
            if state.stop {
                return;
            }
            if state.paused {
                continue;
            }
            state.working = true;
            state.wanted = false;
        }
        let Some(fs) = fs.upgrade() else { return };
        pause = fs.background_round(jobs.get_or_insert_with(|| fs.background_jobs()));
        // The volume goes before the thread says that it does nothing.
        drop(fs);
    }
}
