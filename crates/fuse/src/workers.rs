//! How many threads wait for requests.
//!
//! The kernel wakes those who wait in turn: many waiting ones make each request find a cold thread. So few wait at a time;
//! who takes a request that may last sees to it that somebody else waits, and who comes back finds whether he is wanted
//! or rests. A thread is made only when all are at work.

use parking_lot::{Condvar, Mutex};

/// Threads that wait for a request at a time.
const WAITING: usize = 2;

/// The threads of a mount.
#[derive(Debug)]
pub(crate) struct Workers {
    most: usize,
    state: Mutex<State>,
    wanted: Condvar,
}

#[derive(Debug, Default)]
struct State {
    all: usize,
    waiting: usize,
    resting: usize,
    /// Calls to resting threads that none has answered yet.
    calls: usize,
    ended: bool,
}

/// What a thread that took a request does first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    /// Nothing.
    Nothing,
    /// Makes another thread: it is counted already.
    MakeThread,
}

impl Workers {
    /// How many there are, and how many of them are at work.
    pub(crate) fn count(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.all, state.all.saturating_sub(state.waiting).saturating_sub(state.resting))
    }

    /// Of `most` threads at most, the first of which counts as there.
    pub(crate) fn new(most: usize) -> Self {
        let state = State { all: 1, ..State::default() };
        Self { most: most.max(1), state: Mutex::new(state), wanted: Condvar::new() }
    }

    /// Returns when the caller is to wait for a request; `false` at the end.
    pub(crate) fn begin(&self) -> bool {
        let mut state = self.state.lock();
        while state.waiting >= WAITING && !state.ended {
            state.resting += 1;
            self.wanted.wait(&mut state);
            state.resting -= 1;
            if state.calls > 0 {
                state.calls -= 1;
                break;
            }
        }
        state.waiting += 1;
        !state.ended
    }

    /// The caller has a request, which may be `slow`.
    pub(crate) fn took(&self, slow: bool) -> First {
        let mut state = self.state.lock();
        state.waiting -= 1;
        if !slow || state.waiting > 0 || state.ended {
            return First::Nothing;
        }
        if state.resting > state.calls {
            state.calls += 1;
            self.wanted.notify_one();
        } else if state.calls == 0 && state.all < self.most {
            state.all += 1;
            return First::MakeThread;
        }
        First::Nothing
    }

    /// A thread that was counted could not be made.
    pub(crate) fn not_made(&self) {
        self.state.lock().all -= 1;
    }

    /// The mount is gone: all end.
    pub(crate) fn end(&self) {
        self.state.lock().ended = true;
        self.wanted.notify_all();
    }
}
