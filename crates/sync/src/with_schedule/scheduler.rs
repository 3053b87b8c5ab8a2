//! The scheduler: runs the threads of a session, which are threads of the system, one at a time.
//!
//! A thread runs until it reaches a scheduling point. There the [`Policy`] of the session chooses
//! the next thread. The stopping thread unparks the chosen one, and parks until it is chosen again.
//! Time is a number. It advances a little at each point, and jumps to a deadline if every thread
//! waits or the seed says so.
//!
//! Invariants:
//! - Only the thread `running` executes anything but the hand-over.
//! - The state of a session depends only on its seed and its program, so a seed replays it.
//!
//! Hazard: the threads of a session that is given up (a deadlock, or no end) stay parked for ever.
//! A thread that stopped in the middle of an operation cannot be unwound.

use super::random::Random;
use std::cell::RefCell;
use std::fmt::Write as _;
use std::panic::Location;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The event that a blocked thread waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    /// A lock or a condition variable at this address.
    Place(usize),
    /// The end of a thread.
    End(usize),
    /// Only for time to pass.
    Time,
}

/// A wait of one thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wait {
    pub(super) key: Key,
    pub(super) what: &'static str,
    pub(super) at: &'static Location<'static>,
    pub(super) until: Option<u64>,
}

/// The reason why a session ended before its program did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// A thread panicked: its name and what it said.
    Panic(String),
    /// Every thread waits, or only timers run: what each of them waits for.
    Deadlock(String),
    /// So many steps, and no end.
    Endless(String),
}

/// The way in which the next thread is chosen.
#[derive(Debug)]
enum Policy {
    /// At one point of so many, any other thread.
    Random { every: u64 },
    /// Always the one with the highest priority. At each of these points, in descending order, the
    /// running thread becomes the last (PCT: Burckhardt et al., ASPLOS 2010).
    Priorities { changes: Vec<u64> },
}

#[derive(Debug)]
enum Status {
    Runnable,
    Blocked(Wait),
    Ended,
}

#[derive(Debug)]
struct Thread {
    name: String,
    status: Status,
    priority: i64,
    timed_out: bool,
    handle: Option<std::thread::Thread>,
}

#[derive(Debug)]
struct SessionState {
    random: Random,
    policy: Policy,
    threads: Vec<Thread>,
    /// Nanoseconds.
    now: u64,
    /// Time moves to a deadline once in so many points.
    leap_every: u64,
    /// No preemption while this is not zero.
    calm: u32,
    points: u64,
    /// Points at which a preemption was possible.
    open_points: u64,
    switches: u64,
    /// The lowest priority that was given.
    lowest: i64,
    /// How often in a row nothing but a deadline made a thread go on.
    idle: u32,
    failure: Option<Failure>,
    over: bool,
}

/// Nanoseconds by which time moves at each point.
const TICK: u64 = 500;

/// The first moment, in nanoseconds: far enough from zero that programs can subtract.
pub(super) const BEGINNING: u64 = 1 << 50;

/// A leap that outlasts every timer of the engine.
const FAR: u64 = 60_000_000_000;

/// A session in which only timers run for so many deadlines hangs.
const MOST_IDLE: u32 = 2_000;

/// The most points of a session.
const MOST_POINTS: u64 = 3_000_000;

/// One session.
#[derive(Debug)]
pub(super) struct Scheduler {
    running: AtomicUsize,
    state: Mutex<SessionState>,
    ended: Condvar,
}

thread_local! {
    /// The session that this thread belongs to, and its number there.
    static ME: RefCell<Option<(Arc<Scheduler>, usize)>> = const { RefCell::new(None) };
}

/// Calls `f` with the session of this thread and the thread's number. Returns `None` outside of a
/// session.
pub(super) fn with<R>(f: impl FnOnce(&Arc<Scheduler>, usize) -> R) -> Option<R> {
    ME.try_with(|me| me.borrow().as_ref().map(|(session, number)| f(session, *number))).ok().flatten()
}

/// Lets the scheduler choose which thread goes on.
pub(super) fn point() {
    with(|session, me| session.point(me, false));
}

/// Lets another thread go on, if there is one.
pub(super) fn yield_now() {
    if with(|session, me| session.point(me, true)).is_none() {
        std::thread::yield_now();
    }
}

/// Makes all threads runnable that wait for `key`.
pub(super) fn wake_all(key: Key) {
    with(|session, _| session.state().wake_all(key));
}

impl SessionState {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let policy = match random.below(2) {
            0 => Policy::Random { every: random.one_of(&[2, 4, 10, 30, 100]) },
            _ => {
                let end = 1 << (4 + random.below(11));
                let mut changes: Vec<u64> = (0..1 + random.below(5)).map(|_| random.below(end)).collect();
                changes.sort_unstable_by(|a, b| b.cmp(a));
                Policy::Priorities { changes }
            }
        };
        let leap_every = random.one_of(&[0, 30, 300, 3000]);
        Self {
            random,
            policy,
            threads: Vec::new(),
            now: BEGINNING,
            leap_every,
            calm: 0,
            points: 0,
            open_points: 0,
            switches: 0,
            lowest: 0,
            idle: 0,
            failure: None,
            over: false,
        }
    }

    fn add(&mut self, name: String) -> usize {
        let priority = 1 + self.random.below(1 << 40) as i64;
        let status = Status::Runnable;
        self.threads.push(Thread { name, status, priority, timed_out: false, handle: None });
        self.threads.len() - 1
    }

    fn runnable(&self) -> impl Iterator<Item = usize> {
        let is = |thread: &Thread| matches!(thread.status, Status::Runnable);
        self.threads.iter().enumerate().filter(move |(_, thread)| is(thread)).map(|(number, _)| number)
    }

    fn one_of_runnable(&mut self, but: Option<usize>) -> Option<usize> {
        let count = self.runnable().filter(|number| Some(*number) != but).count() as u64;
        let at = self.random.below(count) as usize;
        self.runnable().filter(|number| Some(*number) != but).nth(at)
    }

    fn highest(&self) -> Option<usize> {
        self.runnable().max_by_key(|number| self.threads[*number].priority)
    }

    fn make_last(&mut self, number: usize) {
        self.lowest -= 1;
        self.threads[number].priority = self.lowest;
    }

    /// Chooses the thread that goes on at a point of `me`.
    fn preempt(&mut self, me: usize, yields: bool) -> usize {
        let open_points = self.open_points;
        match &mut self.policy {
            Policy::Random { every } => {
                let every = if yields { 1 } else { *every };
                match self.random.once_in(every) {
                    true => self.one_of_runnable(Some(me)).unwrap_or(me),
                    false => me,
                }
            }
            Policy::Priorities { changes } => {
                let mut last = yields;
                while changes.last().is_some_and(|change| *change <= open_points) {
                    changes.pop();
                    last = true;
                }
                if last {
                    self.make_last(me);
                }
                self.highest().unwrap_or(me)
            }
        }
    }

    /// Chooses the thread that goes on when the running one cannot. `None` if there is none.
    fn next(&mut self) -> Option<usize> {
        let found = match self.policy {
            Policy::Random { .. } => self.one_of_runnable(None),
            Policy::Priorities { .. } => self.highest(),
        };
        if found.is_some() {
            self.idle = 0;
            return found;
        }
        self.idle += 1;
        let (number, until) = self.first_deadline().filter(|_| self.idle < MOST_IDLE)?;
        self.now = self.now.max(until);
        self.time_out(number);
        Some(number)
    }

    fn first_deadline(&self) -> Option<(usize, u64)> {
        let deadline = |(number, thread): (usize, &Thread)| match thread.status {
            Status::Blocked(Wait { until: Some(until), .. }) => Some((number, until)),
            _ => None,
        };
        self.threads.iter().enumerate().filter_map(deadline).min_by_key(|(_, until)| *until)
    }

    fn time_out(&mut self, number: usize) {
        let thread = &mut self.threads[number];
        (thread.status, thread.timed_out) = (Status::Runnable, true);
    }

    /// Moves time by a tick, or by the seed far ahead, and ends the waits whose time has come.
    fn pass_time(&mut self) {
        self.now += TICK;
        if self.random.once_in(self.leap_every)
            && let Some((_, until)) = self.first_deadline()
        {
            let far = if self.random.once_in(4) { self.now + FAR } else { until };
            self.now = self.now.max(far);
        }
        while let Some((number, _)) = self.first_deadline().filter(|(_, until)| *until <= self.now) {
            self.time_out(number);
        }
    }

    fn waiters(&self, key: Key) -> Vec<usize> {
        let waits = |thread: &Thread| matches!(&thread.status, Status::Blocked(wait) if wait.key == key);
        (0..self.threads.len()).filter(|number| waits(&self.threads[*number])).collect()
    }

    fn wake(&mut self, number: usize) {
        let thread = &mut self.threads[number];
        (thread.status, thread.timed_out) = (Status::Runnable, false);
    }

    pub(super) fn wake_all(&mut self, key: Key) {
        for number in self.waiters(key) {
            self.wake(number);
        }
    }

    /// Describes what each thread does, for a report.
    fn describe(&self) -> String {
        let mut text = String::new();
        for (number, thread) in self.threads.iter().enumerate() {
            let _ = write!(text, "\n  thread {number} ({}): ", thread.name);
            let _ = match &thread.status {
                Status::Runnable => write!(text, "can run"),
                Status::Ended => write!(text, "has ended"),
                Status::Blocked(Wait { key: Key::End(other), at, .. }) => {
                    write!(text, "waits for the end of thread {other}, at {at}")
                }
                Status::Blocked(Wait { what, at, until, .. }) => {
                    let timed = if until.is_some() { " for a time" } else { "" };
                    write!(text, "waits for a {what}{timed}, at {at}")
                }
            };
        }
        text
    }
}

impl Scheduler {
    /// Makes a session, with its first thread.
    pub(super) fn new(seed: u64) -> Arc<Self> {
        let mut state = SessionState::new(seed);
        state.add("main".into());
        Arc::new(Self { running: AtomicUsize::new(0), state: Mutex::new(state), ended: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn point(&self, me: usize, yields: bool) {
        let mut state = self.state();
        state.points += 1;
        if state.points > MOST_POINTS {
            let text = format!("no end after {MOST_POINTS} points:{}", state.describe());
            self.give_up(state, Failure::Endless(text));
        }
        if state.calm > 0 && !yields {
            state.now += TICK;
            return;
        }
        state.open_points += 1;
        state.pass_time();
        let next = state.preempt(me, yields);
        self.hand_over(state, me, next);
    }

    /// Blocks this thread. Returns whether its time ran out.
    pub(super) fn block(&self, me: usize, wait: Wait) -> bool {
        let mut state = self.state();
        state.threads[me].status = Status::Blocked(wait);
        let Some(next) = state.next() else {
            let text = format!("deadlock:{}", state.describe());
            self.give_up(state, Failure::Deadlock(text));
        };
        self.hand_over(state, me, next);
        self.state().threads[me].timed_out
    }

    fn hand_over(&self, mut state: MutexGuard<'_, SessionState>, me: usize, next: usize) {
        if next == me {
            return;
        }
        state.switches += 1;
        let handle = state.threads[next].handle.clone();
        self.running.store(next, Ordering::Release);
        drop(state);
        if let Some(handle) = handle {
            handle.unpark();
        }
        self.wait_for_turn(me);
    }

    /// Parks until this thread is the running one.
    pub(super) fn wait_for_turn(&self, me: usize) {
        while self.running.load(Ordering::Acquire) != me {
            std::thread::park();
        }
    }

    /// Ends the session with a failure. Its threads stay where they are.
    fn give_up(&self, mut state: MutexGuard<'_, SessionState>, failure: Failure) -> ! {
        state.failure.get_or_insert(failure);
        state.over = true;
        drop(state);
        self.ended.notify_all();
        loop {
            std::thread::park();
        }
    }

    /// Makes one thread runnable that waits for `key`, any of them.
    pub(super) fn wake_one(&self, key: Key) {
        let mut state = self.state();
        let waiters = state.waiters(key);
        if !waiters.is_empty() {
            let number = state.random.one_of(&waiters);
            state.wake(number);
        }
    }

    /// Adds a thread, which can run from then on. Returns its number.
    pub(super) fn add(&self, name: String) -> usize {
        self.state().add(name)
    }

    /// Takes a thread out that could not be started.
    pub(super) fn not_started(&self, number: usize) {
        self.state().threads[number].status = Status::Ended;
    }

    pub(super) fn has_ended(&self, number: usize) -> bool {
        matches!(self.state().threads[number].status, Status::Ended)
    }

    /// Enters the session as thread `number`, once it is its turn.
    pub(super) fn enter(self: &Arc<Self>, number: usize) {
        ME.with(|me| *me.borrow_mut() = Some((Arc::clone(self), number)));
        // A thread that chose this one before has stored its number in `running` by then.
        self.state().threads[number].handle = Some(std::thread::current());
        self.wait_for_turn(number);
    }

    /// Leaves the session: another thread goes on.
    pub(super) fn leave(&self, number: usize, panicked: Option<String>) {
        ME.with(|me| *me.borrow_mut() = None);
        let mut state = self.state();
        if let Some(said) = panicked {
            let text = format!("thread {number} ({}): {said}", state.threads[number].name);
            state.failure.get_or_insert(Failure::Panic(text));
        }
        state.threads[number].status = Status::Ended;
        state.wake_all(Key::End(number));
        let next = state.next();
        let handle = next.and_then(|next| state.threads[next].handle.clone());
        if let Some(next) = next {
            self.running.store(next, Ordering::Release);
        } else {
            if state.threads.iter().any(|thread| matches!(thread.status, Status::Blocked(_))) {
                let text = format!("deadlock:{}", state.describe());
                state.failure.get_or_insert(Failure::Deadlock(text));
            }
            state.over = true;
            self.ended.notify_all();
        }
        drop(state);
        if let Some(handle) = handle {
            handle.unpark();
        }
    }

    /// Waits until the session is over. Returns its points, its switches, and what went wrong.
    pub(super) fn wait_for_end(&self) -> (u64, u64, Option<Failure>) {
        let mut state = self.state();
        while !state.over {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        (state.points, state.switches, state.failure.clone())
    }

    pub(super) fn now(&self) -> u64 {
        self.state().now
    }

    pub(super) fn points(&self) -> u64 {
        self.state().points
    }

    pub(super) fn below(&self, end: u64) -> u64 {
        self.state().random.below(end)
    }

    /// Changes how many callers want no preemption.
    pub(super) fn calm(&self, by: i32) {
        let mut state = self.state();
        state.calm = state.calm.saturating_add_signed(by);
    }
}

/// Returns the moment `patience` from now; far away if that is no number.
pub(super) fn after(now: u64, patience: Duration) -> u64 {
    now.saturating_add(u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX))
}
