//! Many wait for something that one of them has to do: commits, flushes.
//!
//! Whoever finds nobody at it takes the baton and does it; the others sleep. When it is done, all
//! who have what they want are woken, and the first of the rest gets the baton, before anybody else
//! is woken: it can begin at once, while the others still wake up. Those whose wish is not yet
//! fulfilled sleep on. Thousands may wait; each of them is woken once.
//!
//! Those who were woken often come again at once, each for itself: an fsync after the next. Whoever
//! finds the baton first can wait for them a moment ([`Turn::gather`]); otherwise it would work for
//! itself alone, with all the others waiting for the next round. It waits no longer than a quarter
//! of what a round costs whoever takes part, counted from the end of the last.
//!
//! What "done" means is published by the caller (an atomic), before it passes the baton; waiters
//! look at it under the baton's lock, so that none can miss it.

use crate::signal::Signal;
use lanefs_sync::time::Instant;
use lanefs_sync::{Arc, Mutex};
use std::time::Duration;

/// Nobody waits for others if that cannot be this long: it would cost more than it saves.
const MIN_PATIENCE: Duration = Duration::from_micros(25);

/// What a round counts at most.
const MAX_COST: Duration = Duration::from_millis(20);

/// `W`: what a thread waits for.
#[derive(Debug)]
pub(crate) struct Baton<W>(Mutex<State<W>>);

#[derive(Debug)]
struct State<W> {
    carried: bool,
    /// How many took part when the baton was last passed: who carried it and who waited.
    crowd: usize,
    /// When that was.
    passed: Option<Instant>,
    /// What a round costs, for many as for one: the mean of the last ones.
    cost: Duration,
    /// Who carries the baton waits for the crowd.
    gathering: Option<Arc<Signal<()>>>,
    /// In the order in which they came.
    waiting: Vec<Waiter<W>>,
}

#[derive(Debug)]
struct Waiter<W> {
    /// `None`: that the baton is passed.
    wants: Option<W>,
    signal: Arc<Signal<Woken>>,
}

#[derive(Debug, Clone, Copy)]
enum Woken {
    /// It may be done: look.
    Look,
    /// The baton is yours.
    Carry,
}

/// The baton in hand. Dropping it, as a panic does, tells all to look again.
#[derive(Debug)]
pub(crate) struct Turn<'a, W> {
    baton: &'a Baton<W>,
    passed: bool,
}

impl<W> Default for Baton<W> {
    fn default() -> Self {
        Self(Mutex::new(State {
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
    /// Waits until what the caller `wants` may be done, or it is up to the caller to do it. `None`:
    /// look again.
    pub(crate) fn wait(&self, wants: W, is_done: impl FnOnce() -> bool) -> Option<Turn<'_, W>> {
        let mut state = self.0.lock();
        if is_done() {
            return None;
        }
        if !state.carried {
            state.carried = true;
            return Some(Turn { baton: self, passed: false });
        }
        let signal = state.queue(Some(wants));
        drop(state);
        match signal.wait() {
            Woken::Look => None,
            Woken::Carry => Some(Turn { baton: self, passed: false }),
        }
    }

    /// Waits until who carries the baton now, if anybody does, has passed it.
    pub(crate) fn wait_for_pass(&self) {
        let mut state = self.0.lock();
        if state.carried {
            let signal = state.queue(None);
            drop(state);
            signal.wait();
        }
    }

    /// Tells all who wait to look.
    pub(crate) fn wake_all(&self) {
        let waiting = std::mem::take(&mut self.0.lock().waiting);
        wake(waiting);
    }
}

impl<W> State<W> {
    fn queue(&mut self, wants: Option<W>) -> Arc<Signal<Woken>> {
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

impl<W: Copy> Turn<'_, W> {
    /// Waits a moment for those who took part the last time, if they are not here.
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

    /// Wakes those whose wish `is_done`, and gives the baton to the first of the others. `cost` is
    /// what of the round does not grow with those who take part.
    pub(crate) fn pass(mut self, cost: Option<Duration>, is_done: impl Fn(W) -> bool) {
        self.passed = true;
        let mut state = self.baton.0.lock();
        state.crowd = state.waiting.len() + 1;
        state.passed = Some(Instant::now());
        if let Some(cost) = cost {
            // One that was held up does not count much.
            state.cost = (state.cost * 7 + cost.min(MAX_COST)) / 8;
        }
        let (done, mut rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut state.waiting).into_iter().partition(|w| w.wants.is_none_or(&is_done));
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

impl<W> Drop for Turn<'_, W> {
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

    /// A number that only who carries the baton counts up.
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
    fn who_gathers_is_told_when_all_are_here() {
        model(|| {
            let work = Arc::new(Work::default());
            // As if two had taken part before.
            {
                let mut state = work.baton.0.lock();
                (state.crowd, state.cost) = (2, Duration::from_secs(36_000));
                state.passed = Some(Instant::now());
            }
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
    fn who_waits_for_a_pass_is_woken_by_one() {
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
