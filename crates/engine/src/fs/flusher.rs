//! Writing out in the background: what has been dirty for long, and all when there is much of it.
//!
//! One thread for a volume, which knows it weakly and only while it works. [`Flusher::pause`] waits
//! until it does not, so that whoever lets go of a volume is the last to have it.
//!
//! While nothing is dirty it sleeps without a timeout. It says that it wants to be stirred, looks
//! whether there is anything to do, and sleeps if not; who makes something to do looks behind that
//! whether it wants to be stirred. So one of them sees the other.

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

/// How long it lets things come together once there is something to do.
const GATHER: Duration = Duration::from_secs(1);

/// The thread that writes out, and its control.
#[derive(Debug, Default)]
pub(crate) struct Flusher {
    control: Arc<Control>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Control {
    state: Mutex<State>,
    changed: Condvar,
    /// It wants to be told when there comes to be something to do.
    stir: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
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
        *self.thread.lock() =
            Some(thread.map_err(|e| Error::NotSupported(format!("a thread for writing out: {e}")))?);
        Ok(())
    }

    /// There is much to write out.
    pub(crate) fn wake(&self) {
        let mut state = self.control.state.lock();
        if !state.wanted {
            state.wanted = true;
            self.control.changed.notify_all();
        }
    }

    /// There is something to do, by and by. Called behind what makes it so.
    pub(crate) fn stir(&self) {
        self.control.stir();
    }

    /// Returns what [`stir`](Self::stir) does, for callers that do not know the volume.
    pub(super) fn stirrer(&self) -> impl Fn() + Send + Sync + 'static {
        let control = Arc::clone(&self.control);
        move || control.stir()
    }

    /// Whether it is to end its round soon.
    pub(crate) fn is_wanted_back(&self) -> bool {
        let state = self.control.state.lock();
        state.stop || state.paused
    }

    /// Returns when it does nothing, and lets it begin nothing more.
    pub(crate) fn pause(&self) {
        let mut state = self.control.state.lock();
        state.paused = true;
        while state.working {
            self.control.changed.wait(&mut state);
        }
    }

    /// Lets it begin again.
    pub(crate) fn resume(&self) {
        self.control.state.lock().paused = false;
    }

    /// Ends the thread, unless it is the caller.
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

fn run(control: &Control, fs: &Weak<Fs>) {
    let (mut jobs, mut pause) = (None, Some(Duration::ZERO));
    loop {
        {
            let mut state = control.state.lock();
            state.working = false;
            control.changed.notify_all();
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
        let Some(fs) = fs.upgrade() else { return };
        control.stir.store(true, Ordering::SeqCst);
        pause = fs.background_round(jobs.get_or_insert_with(|| fs.background_jobs()));
        // The volume goes before the thread says that it does nothing.
        drop(fs);
    }
}
