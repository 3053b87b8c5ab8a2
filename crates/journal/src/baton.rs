//! Leader election: of the threads that wait for a commit or a flush, one at a time performs it.
//!
//! A thread that finds no leader takes the baton and becomes the leader; later threads sleep. At
//! the end of its round the leader hands the baton to the first waiter that is not yet satisfied,
//! and then wakes the satisfied waiters. The others sleep on, so each waiter is woken once. Before
//! a round, the leader may wait a moment for the threads of the last round ([`BatonTurn::gather`]).
//!
//! A thread that wants the baton itself, for work of its own ([`Baton::take`]), is never satisfied
//! by another thread's round: it becomes the leader in order of arrival.
//!
//! Invariant: the leader publishes its result (an atomic) before it passes the baton. Waiters check
//! it under the baton's lock, so no waiter can miss it.

use crate::signal::Signal;
use lanefs_sync::time::Instant;
use lanefs_sync::{Arc, Mutex};
use std::time::Duration;

/// The shortest time for which a leader gathers: a shorter wait costs more than it saves.
const MIN_PATIENCE: Duration = Duration::from_micros(25);

/// The most that one round adds to the mean cost.
const MAX_COST: Duration = Duration::from_millis(20);

/// The baton of one kind of work. `W` identifies what a thread waits for.
#[derive(Debug)]
pub(crate) struct Baton<W>(Mutex<BatonState<W>>);

#[derive(Debug)]
struct BatonState<W> {
    carried: bool,
    /// Threads that took part in the last round: the leader and its waiters.
    crowd: usize,
    /// When the baton was last passed.
    passed: Option<Instant>,
    /// The mean cost of recent rounds: the part that does not depend on the number of threads.
    cost: Duration,
    /// The leader's signal while it gathers the threads of the last round.
    gathering: Option<Arc<Signal<()>>>,
    /// In order of arrival.
    waiting: Vec<Waiter<W>>,
}

#[derive(Debug)]
struct Waiter<W> {
    wants: Wants<W>,
    signal: Arc<Signal<Woken>>,
}

/// What a thread waits for.
#[derive(Debug, Clone, Copy)]
enum Wants<W> {
    Work(W),
    /// The end of the running round.
    Pass,
    /// To be the leader.
    Turn,
}

#[derive(Debug, Clone, Copy)]
enum Woken {
    /// The work may be done: the waiter checks again.
    Look,
    /// The waiter is the leader now.
    Carry,
}

/// The leader's hold on the baton. Dropping it, as a panic does, makes all waiters check again.
#[derive(Debug)]
pub(crate) struct BatonTurn<'a, W> {
    baton: &'a Baton<W>,
    passed: bool,
}

impl<W> Default for Baton<W> {
    fn default() -> Self {
        Self(Mutex::new(BatonState {
            carried: false,
            crowd: 0,
            passed: None,
            cost: Duration::ZERO,
            gathering: None,
            waiting: Vec::new(),
        }))
    }
}

impl<W: Copy> Baton<W> {
    /// Waits until the work that the caller `wants` may be done (returns `None`, and the caller
    /// checks again) or until the caller is the leader (returns its turn).
    pub(crate) fn wait(&self, wants: W, is_done: impl FnOnce() -> bool) -> Option<BatonTurn<'_, W>> {
        self.wait_as(Wants::Work(wants), is_done)
    }

    /// Waits until the caller is the leader, in order of arrival. Returns `None` if the work
    /// `has_ended`, or if a leader panicked: the caller checks again.
    pub(crate) fn take(&self, has_ended: impl FnOnce() -> bool) -> Option<BatonTurn<'_, W>> {
        self.wait_as(Wants::Turn, has_ended)
    }

    fn wait_as(&self, wants: Wants<W>, is_done: impl FnOnce() -> bool) -> Option<BatonTurn<'_, W>> {
        let mut state = self.0.lock();
        if is_done() {
            return None;
        }
        if !state.carried {
            state.carried = true;
            return Some(BatonTurn { baton: self, passed: false });
        }
        let signal = state.queue(wants);
        drop(state);
        match signal.wait() {
            Woken::Look => None,
            Woken::Carry => Some(BatonTurn { baton: self, passed: false }),
        }
    }

    /// Returns whether there is a leader.
    pub(crate) fn is_carried(&self) -> bool {
        self.0.lock().carried
    }

    /// Waits until the current leader, if there is one, has passed the baton.
    pub(crate) fn wait_for_pass(&self) {
        let mut state = self.0.lock();
        if state.carried {
            let signal = state.queue(Wants::Pass);
            drop(state);
            signal.wait();
        }
    }

    /// Returns how many threads wait.
    #[cfg(test)]
    pub(crate) fn waiters(&self) -> usize {
        self.0.lock().waiting.len()
    }

    /// Makes the next leader gather until so many threads take part, as if as many had shared a
    /// costly round.
    #[cfg(test)]
    pub(crate) fn expect_crowd(&self, crowd: usize) {
        let mut state = self.0.lock();
        (state.crowd, state.cost) = (crowd, Duration::from_secs(36_000));
        state.passed = Some(Instant::now());
    }

    /// Wakes all waiters, which check again.
    pub(crate) fn wake_all(&self) {
        let waiting = std::mem::take(&mut self.0.lock().waiting);
        wake(waiting);
    }
}

impl<W> BatonState<W> {
    fn queue(&mut self, wants: Wants<W>) -> Arc<Signal<Woken>> {
        let signal = Arc::new(Signal::new());
        self.waiting.push(Waiter { wants, signal: Arc::clone(&signal) });
        if self.waiting.len() + 1 >= self.crowd
            && let Some(gathering) = self.gathering.take()
        {
            gathering.send(());
        }
        signal
    }
}

impl<W: Copy> BatonTurn<'_, W> {
    /// Waits a moment for the threads that took part in the last round, if some have not returned:
    /// at most a quarter of the mean fixed cost of a round, counted from the end of the last round.
    /// Threads often return at once, one fsync after another. Without the wait, the first of them
    /// would work for itself alone, and the rest would wait for the next round.
    pub(crate) fn gather(&self) {
        let mut state = self.baton.0.lock();
        let patience = state.cost / 4;
        let deadline = state.passed.and_then(|passed| passed.checked_add(patience));
        let Some(deadline) = deadline.filter(|_| patience >= MIN_PATIENCE) else { return };
        if state.waiting.len() + 1 >= state.crowd {
            return;
        }
        let signal = Arc::new(Signal::new());
        state.gathering = Some(Arc::clone(&signal));
        drop(state);
        if signal.wait_until(deadline).is_none() {
            self.baton.0.lock().gathering = None;
        }
    }

    /// Hands the baton to the first waiter whose work is not done or that wants the turn itself.
    /// Wakes the waiters for whose work `is_done` holds. `cost` is the part of the round that does
    /// not grow with the number of threads.
    pub(crate) fn pass(mut self, cost: Option<Duration>, is_done: impl Fn(W) -> bool) {
        self.passed = true;
        let mut state = self.baton.0.lock();
        state.crowd = state.waiting.len() + 1;
        state.passed = Some(Instant::now());
        if let Some(cost) = cost {
            // One slow round changes the mean only a little.
            state.cost = (state.cost * 7 + cost.min(MAX_COST)) / 8;
        }
        let is_over = |waiter: &Waiter<W>| match waiter.wants {
            Wants::Work(work) => is_done(work),
            Wants::Pass => true,
            Wants::Turn => false,
        };
        let (done, mut rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut state.waiting).into_iter().partition(is_over);
        let next = if rest.is_empty() { None } else { Some(rest.remove(0)) };
        state.waiting = rest;
        state.carried = next.is_some();
        drop(state);
        if let Some(next) = next {
            next.signal.send(Woken::Carry);
        }
        wake(done);
    }
}

impl<W> Drop for BatonTurn<'_, W> {
    fn drop(&mut self) {
        if !self.passed {
            let mut state = self.baton.0.lock();
            state.carried = false;
            let waiting = std::mem::take(&mut state.waiting);
            drop(state);
            wake(waiting);
        }
    }
}

fn wake<W>(waiting: Vec<Waiter<W>>) {
    for waiter in waiting {
        waiter.signal.send(Woken::Look);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanefs_sync::atomic::{AtomicU64, Ordering};
    use lanefs_sync::{model, thread};

    /// A number that only the leader increments.
    #[derive(Default)]
    struct Work {
        baton: Baton<u64>,
        done: AtomicU64,
    }

    impl Work {
        fn reach(&self, goal: u64) {
            let is_done = |goal| self.done.load(Ordering::Acquire) >= goal;
            while !is_done(goal) {
                if let Some(turn) = self.baton.wait(goal, || is_done(goal)) {
                    let before = self.done.load(Ordering::Relaxed);
                    thread::yield_now();
                    self.done.store(before + 1, Ordering::Release);
                    turn.pass(None, is_done);
                }
            }
        }
    }

    #[test]
    fn all_get_there_and_one_at_a_time_works() {
        model(|| {
            let work = Arc::new(Work::default());
            let others: Vec<_> = [1, 2]
                .map(|goal| {
                    let work = Arc::clone(&work);
                    thread::spawn(move || work.reach(goal))
                })
                .into();
            work.reach(1);
            others.into_iter().for_each(|other| other.join().unwrap());
            assert_eq!(work.done.load(Ordering::Relaxed), 2);
            assert!(!work.baton.0.lock().carried && work.baton.0.lock().waiting.is_empty());
        });
    }

    #[test]
    fn a_leader_that_gathers_is_told_when_all_are_here() {
        model(|| {
            let work = Arc::new(Work::default());
            work.baton.expect_crowd(2);
            let first = work.baton.wait(1, || false).unwrap();
            let other = {
                let work = Arc::clone(&work);
                thread::spawn(move || work.reach(1))
            };
            // Time does not pass in a model: only the other can end this.
            first.gather();
            assert_eq!(work.baton.0.lock().waiting.len(), 1);
            work.done.store(1, Ordering::Release);
            first.pass(None, |goal| goal <= 1);
            other.join().unwrap();
            assert_eq!(work.done.load(Ordering::Relaxed), 1);
        });
    }

    #[test]
    fn a_waiter_for_a_pass_is_woken_by_one() {
        model(|| {
            let work = Arc::new(Work::default());
            let other = {
                let work = Arc::clone(&work);
                thread::spawn(move || work.reach(1))
            };
            work.baton.wait_for_pass();
            other.join().unwrap();
        });
    }

    /// A close is not kept waiting by threads that commit without a pause.
    #[test]
    fn a_thread_that_wants_the_turn_has_it_in_order() {
        model(|| {
            let work = Arc::new(Work::default());
            let wait_for = |waiters| {
                while work.baton.waiters() < waiters {
                    thread::yield_now();
                }
            };
            let first = work.baton.wait(1, || false).unwrap();
            let second = {
                let work = Arc::clone(&work);
                thread::spawn(move || {
                    let turn = work.baton.take(|| false).expect("no turn");
                    work.done.store(1, Ordering::Relaxed);
                    turn.pass(None, |goal| goal <= 1);
                })
            };
            wait_for(1);
            let third = {
                let work = Arc::clone(&work);
                thread::spawn(move || {
                    let turn = work.baton.wait(2, || false).expect("not done");
                    assert_eq!(work.done.load(Ordering::Relaxed), 1);
                    turn.pass(None, |_| true);
                })
            };
            wait_for(2);
            first.pass(None, |goal| goal <= 1);
            second.join().unwrap();
            third.join().unwrap();
            assert!(!work.baton.is_carried());
        });
    }

    /// A thread that waits to close a journal is not left asleep when that aborts.
    #[test]
    fn a_thread_that_wants_the_turn_is_woken_by_an_end() {
        model(|| {
            let work = Arc::new(Work::default());
            let turn = work.baton.wait(1, || false).unwrap();
            let other = {
                let work = Arc::clone(&work);
                thread::spawn(move || {
                    let has_ended = || work.done.load(Ordering::Acquire) > 0;
                    assert!(work.baton.take(has_ended).is_none());
                    assert!(has_ended());
                })
            };
            work.done.store(1, Ordering::Release);
            work.baton.wake_all();
            turn.pass(None, |_| true);
            other.join().unwrap();
        });
    }

    #[test]
    fn a_dropped_baton_can_be_taken_up() {
        model(|| {
            let work = Arc::new(Work::default());
            let other = {
                let work = Arc::clone(&work);
                thread::spawn(move || work.reach(1))
            };
            drop(work.baton.wait(1, || false));
            other.join().unwrap();
            assert_eq!(work.done.load(Ordering::Relaxed), 1);
        });
    }
}
