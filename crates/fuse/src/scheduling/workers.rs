//! How many threads wait for requests at a time, and which of them takes the next one.
//!
//! Hazard: a request that no thread takes hangs its program. The state has one lock, and each
//! change that may leave the connection without a waiting thread calls another one.

use super::follow::{Following, Preference};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::thread::Pid;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Threads that wait for a request at a time.
const WAITING: usize = 2;
/// Threads that serve the kernel's writeback, in large requests, at a time: enough to keep a device
/// busy, and more would make it slower.
const BULK: usize = 4;
/// Shared buffers for large content: as many as threads can have it at a time.
pub(crate) const BUFFERS: usize = BULK + WAITING;
/// Time between two looks of the watching thread.
const WATCH: Duration = Duration::from_millis(1);
/// The same while the kernel's writeback has all of its threads: a slow device takes longer.
const PATIENT_WATCH: Duration = Duration::from_millis(100);
/// Consecutive looks that find no request taken, after which nothing is watched any longer.
const QUIET: u32 = 8;
/// One thread in so many is left to other users than the one whose requests have all others.
const LEFT: usize = 8;

/// The threads of a mount.
///
/// The kernel wakes waiting threads in turn: with many of them, each request finds a cold thread.
/// So at most [`WAITING`] threads wait. A thread that takes a request which may last has another
/// thread wait, if none does. A thread that comes back waits if it is wanted, and rests if not. A
/// thread is made only when all threads are at work.
///
/// A short request wakes no thread to wait. But it lasts where its change waits for a commit or for
/// the device. So when short requests leave no thread waiting, another thread watches, as below: if
/// no thread has come back since its last look, it waits for requests itself.
///
/// Nor does a request of the kernel's writeback, once [`BULK`] threads serve such requests. They
/// may wait for bytes that a call has locked. So another thread watches: if no thread has come back
/// for [`PATIENT_WATCH`], it waits for requests itself, and each further such request wakes another
/// thread, until one of them is done.
///
/// A thread that follows a program (see [`Follow`](super::Follow)) waits alone, and hands
/// over only before a long request. Another thread watches it, once a millisecond. If the lone
/// thread has not come back since the last look, and it serves a request or one is queued, then it
/// is held up: by a processor that other programs keep busy, or by a device. The watching thread
/// ends its time alone at once, so that requests of other programs wait no longer than that. The
/// time alone ends also when no requests come; then no thread wakes up.
#[derive(Debug)]
pub(crate) struct Workers {
    most: usize,
    following: Following,
    /// Threads with a request that is [`Cost::Bulk`].
    bulk: AtomicUsize,
    state: Mutex<WorkersState>,
    wanted: Condvar,
    /// Where the watching thread waits.
    alone_ends: Condvar,
}

#[derive(Debug, Default)]
struct WorkersState {
    all: usize,
    waiting: usize,
    resting: usize,
    /// Calls to resting threads that none has answered yet.
    calls: usize,
    alone: Option<Pid>,
    /// How often threads have come back for a request.
    turns: u64,
    /// The next thread that is there is to watch, if another one waits.
    wants_watch: bool,
    /// It watches for [`Cost::Bulk`] requests that last, even if no thread waits.
    patient: bool,
    watched: bool,
    /// Requests that are [`Cost::Bulk`] were found to last, and none has ended since.
    bulk_lasts: bool,
    /// The watching thread is to wait for requests instead.
    called_back: bool,
    ended: bool,
}

/// The time that a request may last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cost {
    /// No longer than to wake another thread.
    Short,
    /// Mostly as short, but it may have to wait for the device.
    MayWait,
    /// Longer.
    Long,
    /// Longer, and many of them come together. It ends without any other request.
    Bulk,
}

/// The way in which a thread waits for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitTurn {
    /// As one of several threads.
    Together,
    /// As the only thread.
    Alone,
}

/// The first duty of a thread that took a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    /// Nothing.
    Nothing,
    /// Makes another thread: it is counted already.
    MakeThread,
}

impl Workers {
    /// Returns how many threads there are, and how many of them are at work.
    pub(crate) fn count(&self) -> (usize, usize) {
        let state = self.state.lock();
        let at_rest = state.waiting + state.resting + usize::from(state.watched);
        (state.all, state.all.saturating_sub(at_rest))
    }

    /// Returns the state of a mount with at most `most` threads. The first one is counted already.
    pub(crate) fn new(most: usize, following: Following) -> Self {
        let state = WorkersState { all: 1, ..WorkersState::default() };
        let (wanted, alone_ends) = (Condvar::new(), Condvar::new());
        let (most, bulk) = (most.max(1), AtomicUsize::new(0));
        Self { most, following, bulk, state: Mutex::new(state), wanted, alone_ends }
    }

    /// Returns how many threads the requests of one user may have.
    pub(crate) fn most_of_one(&self) -> usize {
        self.most - self.most / LEFT
    }

    /// Returns how many of these are kept for requests that look at names and attributes: some from
    /// 16 threads on.
    pub(crate) fn kept_of_one(&self) -> usize {
        self.most / (2 * LEFT)
    }

    /// Returns how many threads the requests may have that no program waits for: from 16 on they
    /// leave half of what a user leaves.
    pub(crate) fn most_of_nobody(&self) -> usize {
        (self.most / (2 * LEFT)).max(1)
    }

    /// Notes that a [`Cost::Bulk`] request is done.
    pub(crate) fn bulk_ends(&self) {
        self.bulk.fetch_sub(1, Ordering::Relaxed);
        self.state.lock().bulk_lasts = false;
    }

    /// Returns whether a [`Cost::Bulk`] request is in flight, so that more are likely to come.
    pub(crate) fn is_bulk(&self) -> bool {
        self.bulk.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn following(&self) -> &Following {
        &self.following
    }

    /// Blocks until the caller, thread `me`, is to wait for a request. Returns `None` when the
    /// mount has ended. `lies_there` tells whether a request is queued.
    pub(crate) fn begin(&self, me: Pid, lies_there: impl Fn() -> bool) -> Option<WaitTurn> {
        let mut state = self.state.lock();
        let turn = loop {
            if state.ended {
                return None;
            }
            if state.alone == Some(me) {
                break WaitTurn::Alone;
            }
            match state.alone {
                Some(_) if !state.watched => self.watch(&mut state, &lies_there),
                None if state.wants_watch && (state.waiting > 0 || state.patient) && !state.watched => {
                    self.watch(&mut state, &lies_there);
                }
                None if state.waiting < WAITING => break WaitTurn::Together,
                _ => {
                    state.resting += 1;
                    self.wanted.wait(&mut state);
                    state.resting -= 1;
                    if state.calls > 0 {
                        state.calls -= 1;
                        if state.alone.is_none() && !state.wants_watch {
                            break WaitTurn::Together;
                        }
                    }
                }
            }
        };
        state.turns += 1;
        state.waiting += 1;
        Some(turn)
    }

    /// Watches the lone thread, or all if none is alone. Returns when no thread is alone any more,
    /// when all are held up, or when it is quiet.
    fn watch(&self, state: &mut MutexGuard<'_, WorkersState>, lies_there: impl Fn() -> bool) {
        (state.watched, state.wants_watch) = (true, false);
        let (mut seen, mut quiet) = (None, 0);
        while !state.ended && !state.called_back {
            let now = (state.alone, state.turns);
            match seen {
                Some((Some(_), _)) if state.alone.is_none() => break,
                Some(last) if last == now => {
                    quiet += 1;
                    let held_up = state.waiting == 0 || state.alone.is_some() && lies_there();
                    if held_up || quiet > QUIET {
                        state.bulk_lasts = held_up && state.patient;
                        self.end_alone(state, held_up);
                        break;
                    }
                }
                _ => (seen, quiet) = (Some(now), 0),
            }
            let time = if state.patient { PATIENT_WATCH } else { WATCH };
            self.alone_ends.wait_for(state, time);
        }
        (state.watched, state.patient, state.called_back) = (false, false, false);
    }

    /// Ends the time alone of the lone thread, if there is one.
    fn end_alone(&self, state: &mut WorkersState, held_up: bool) {
        let Some(alone) = state.alone.take() else { return };
        if held_up {
            self.following.crowded();
        }
        self.following.release(alone);
    }

    /// Notes that thread `me` has taken a request, how long it may last, and whether the thread
    /// prefers to be alone. Returns what the thread does first.
    pub(crate) fn took(&self, me: Pid, cost: Cost, preference: Preference) -> First {
        let mut state = self.state.lock();
        state.waiting -= 1;
        let others = if cost == Cost::Bulk { self.bulk.fetch_add(1, Ordering::Relaxed) } else { 0 };
        if state.alone == Some(me) && (preference == Preference::Together || cost >= Cost::Long) {
            state.alone = None;
            self.alone_ends.notify_one();
        } else if preference == Preference::Alone
            && state.alone.is_none()
            && self.most > 1
            && cost < Cost::Long
        {
            state.alone = Some(me);
            if std::mem::take(&mut state.patient) {
                self.alone_ends.notify_one();
            }
            // A watching thread is woken or made in the same way as a waiting one.
            return self.call(&mut state);
        }
        match (state.alone, cost) {
            (Some(_), _) => First::Nothing,
            (None, Cost::Short) if state.waiting > 0 || state.watched && !state.patient => First::Nothing,
            (None, Cost::Short) => {
                // Two threads serve, and a third one watches.
                state.wants_watch = state.wants_watch || self.has_another(&state);
                self.call(&mut state)
            }
            (None, Cost::Bulk) if others + 1 >= BULK && !state.bulk_lasts => {
                if state.waiting > 0 || state.watched || !self.has_another(&state) {
                    return First::Nothing;
                }
                let first = self.call(&mut state);
                (state.wants_watch, state.patient) = (true, true);
                first
            }
            (None, _) => self.call(&mut state),
        }
    }

    /// Returns whether there is a thread that has nothing to do, or may be made.
    fn has_another(&self, state: &WorkersState) -> bool {
        state.resting > 0 || state.all < self.most
    }

    /// Returns whether thread `me` is the only one that takes requests.
    pub(crate) fn is_alone(&self, me: Pid) -> bool {
        self.state.lock().alone == Some(me)
    }

    /// Makes another thread wait for requests, or watch, if none does: wakes a resting thread, or
    /// returns that the caller makes one.
    fn call(&self, state: &mut WorkersState) -> First {
        if state.waiting > 0 || state.ended {
            return First::Nothing;
        }
        state.patient = false;
        if state.watched {
            if state.alone.is_none() {
                state.called_back = true;
                self.alone_ends.notify_one();
            }
        } else if state.resting > state.calls {
            state.calls += 1;
            self.wanted.notify_one();
        } else if state.calls == 0 && state.all < self.most {
            state.all += 1;
            return First::MakeThread;
        }
        First::Nothing
    }

    /// Takes back the count of a thread that could not be made.
    pub(crate) fn not_made(&self) {
        let mut state = self.state.lock();
        state.all -= 1;
        // It may have been the thread that was to watch.
        (state.alone, state.wants_watch, state.patient) = (None, false, false);
    }

    /// Ends all threads: the mount is gone.
    pub(crate) fn end(&self) {
        self.state.lock().ended = true;
        self.wanted.notify_all();
        self.alone_ends.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::gettid;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    fn alone() -> Workers {
        let workers = Workers::new(4, Following::none());
        assert_eq!(workers.begin(gettid(), || false), Some(WaitTurn::Together));
        // No thread is there yet to watch.
        assert_eq!(workers.took(gettid(), Cost::Short, Preference::Alone), First::MakeThread);
        workers
    }

    #[test]
    fn a_thread_that_is_held_up_is_alone_no_longer() {
        let workers = alone();
        thread::scope(|scope| {
            // This thread watches. It then takes the next request, since the first thread never
            // comes back for it.
            let turn = scope.spawn(|| workers.begin(gettid(), || false)).join().unwrap();
            assert_eq!(turn, Some(WaitTurn::Together));
        });
        assert_eq!(workers.begin(gettid(), || false), Some(WaitTurn::Together));
    }

    #[test]
    fn a_thread_that_waits_in_vain_is_alone_no_longer() {
        let workers = alone();
        assert_eq!(workers.begin(gettid(), || false), Some(WaitTurn::Alone));
        thread::scope(|scope| {
            let turn = scope.spawn(|| workers.begin(gettid(), || false)).join().unwrap();
            assert_eq!(turn, Some(WaitTurn::Together));
        });
    }

    #[test]
    fn a_thread_that_leaves_a_request_is_alone_no_longer_at_once() {
        for (lies, looks) in [(true, 1), (false, QUIET as usize + 1)] {
            let workers = alone();
            assert_eq!(workers.begin(gettid(), || false), Some(WaitTurn::Alone));
            let looked = AtomicUsize::new(0);
            let look = || {
                looked.fetch_add(1, Ordering::Relaxed);
                lies
            };
            thread::scope(|scope| _ = scope.spawn(|| workers.begin(gettid(), look)));
            assert_eq!(looked.into_inner(), looks);
        }
    }

    #[test]
    fn alone_it_hands_over_what_is_long_and_nothing_else() {
        let workers = alone();
        assert_eq!(workers.begin(gettid(), || false), Some(WaitTurn::Alone));
        assert_eq!(workers.took(gettid(), Cost::MayWait, Preference::Same), First::Nothing);
        assert_eq!(workers.begin(gettid(), || false), Some(WaitTurn::Alone));
        // The watching thread is still being made.
        assert_eq!(workers.took(gettid(), Cost::Long, Preference::Same), First::MakeThread);
        assert_eq!(workers.begin(gettid(), || false), Some(WaitTurn::Together));
    }

    /// Short requests that last: as many threads as there are wait in turn.
    #[test]
    fn short_requests_that_last_leave_a_thread_waiting() {
        let workers = Workers::new(4, Following::none());
        for n in 1..=4 {
            // Each is the thread that was made for the last request.
            let made = if n < 4 { First::MakeThread } else { First::Nothing };
            assert_eq!(workers.begin(gettid(), || false), Some(WaitTurn::Together), "{n}");
            assert_eq!(workers.took(gettid(), Cost::Short, Preference::Same), made, "{n}");
        }
    }

    /// Has a thread watch while two serve short requests, runs `then`, and checks that the watching
    /// thread waits for requests afterwards.
    fn watched(then: impl FnOnce(&Workers)) {
        let workers = Workers::new(4, Following::none());
        workers.begin(gettid(), || false).unwrap();
        assert_eq!(workers.took(gettid(), Cost::Short, Preference::Same), First::MakeThread);
        workers.begin(gettid(), || false).unwrap();
        thread::scope(|scope| {
            let watching = scope.spawn(|| workers.begin(gettid(), || false));
            while !workers.state.lock().watched {
                thread::yield_now();
            }
            then(&workers);
            assert_eq!(watching.join().unwrap(), Some(WaitTurn::Together));
        });
    }

    #[test]
    fn a_thread_that_watches_waits_when_none_comes_back() {
        watched(|workers| {
            let take = || workers.took(gettid(), Cost::Short, Preference::Same);
            // It watches as long as threads come back, and no other thread is called.
            for _ in 0..50 {
                assert_eq!(take(), First::Nothing);
                workers.begin(gettid(), || false).unwrap();
            }
            assert_eq!(take(), First::Nothing);
        });
    }

    #[test]
    fn a_thread_that_watches_is_called_for_what_lasts() {
        watched(|workers| {
            assert_eq!(workers.took(gettid(), Cost::Long, Preference::Same), First::Nothing);
            let state = workers.state.lock();
            assert!(state.called_back || state.waiting > 0);
        });
    }

    /// Has [`BULK`] threads serve the kernel's writeback, and another one made, which is to watch.
    fn crowded() -> Workers {
        let workers = Workers::new(64, Following::none());
        for _ in 0..BULK {
            assert_eq!(workers.begin(gettid(), || false), Some(WaitTurn::Together));
            assert_eq!(workers.took(gettid(), Cost::Bulk, Preference::Same), First::MakeThread);
        }
        assert!(workers.is_bulk() && workers.state.lock().patient);
        workers
    }

    #[test]
    fn few_write_what_the_kernel_had_cached_and_others_go_on() {
        let workers = crowded();
        let begin = || workers.begin(gettid(), || false);
        let take = |cost| workers.took(gettid(), cost, Preference::Same);
        thread::scope(|scope| {
            let watching = scope.spawn(begin);
            while !workers.state.lock().watched {
                thread::yield_now();
            }
            // As long as threads come back, they alone take more.
            for _ in 0..50 {
                workers.bulk_ends();
                assert_eq!(begin(), Some(WaitTurn::Together));
                assert_eq!(take(Cost::Bulk), First::Nothing);
            }
            workers.bulk_ends();
            assert_eq!(begin(), Some(WaitTurn::Together));
            assert_eq!(take(Cost::Long), First::Nothing);
            assert_eq!(watching.join().unwrap(), Some(WaitTurn::Together));
        });
        (1..BULK).for_each(|_| workers.bulk_ends());
        assert!(!workers.is_bulk());
    }

    /// The kernel's writeback waits for bytes that a call has locked.
    #[test]
    fn writeback_that_lasts_leaves_a_thread_waiting() {
        let workers = crowded();
        for _ in 0..2 * BULK {
            assert_eq!(workers.begin(gettid(), || false), Some(WaitTurn::Together));
            assert_eq!(workers.took(gettid(), Cost::Bulk, Preference::Same), First::MakeThread);
        }
        assert!(workers.state.lock().bulk_lasts);
        workers.bulk_ends();
        assert!(!workers.state.lock().bulk_lasts, "few write again");
    }

    #[test]
    fn the_requests_of_one_user_leave_threads_to_others() {
        let of_one = |most| Workers::new(most, Following::none()).most_of_one();
        assert_eq!([1, 2, 7, 8, 64].map(of_one), [1, 2, 7, 7, 56]);
        let kept = |most| Workers::new(most, Following::none()).kept_of_one();
        assert_eq!([1, 8, 15, 16, 64].map(kept), [0, 0, 0, 1, 4]);
        let of_nobody = |most| Workers::new(most, Following::none()).most_of_nobody();
        assert_eq!([1, 8, 15, 16, 64].map(of_nobody), [1, 1, 1, 1, 4]);
    }

    #[test]
    fn nobody_is_alone_without_a_second_thread() {
        let workers = Workers::new(1, Following::none());
        assert_eq!(workers.begin(gettid(), || false), Some(WaitTurn::Together));
        assert_eq!(workers.took(gettid(), Cost::Short, Preference::Alone), First::Nothing);
        assert!(!workers.is_alone(gettid()));
        assert_eq!(workers.begin(gettid(), || false), Some(WaitTurn::Together));
        // Nor with one that could not be made.
        let workers = alone();
        workers.not_made();
        assert_eq!(workers.begin(gettid(), || false), Some(WaitTurn::Together));
    }
}
