//! The plain lock: the promises of order and waiting by small cases, random requests against a
//! vector, and threads over a shadow array.

use super::stress::Shadow;
use crate::range::Claim;
use crate::{Mode, Range};
use crate::{MutexRangeGuard, MutexRangeLock};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::thread;
use std::time::Duration;

fn range(first: u64, last: u64) -> Range {
    Range::inclusive(first, last).unwrap()
}

/// How many hold or wait.
fn live(lock: &MutexRangeLock) -> usize {
    format!("{lock:?}").matches('[').count() - 1
}

#[test]
fn first_come_first_served() {
    let lock = MutexRangeLock::new();
    let reader = lock.read(range(0, 9));
    thread::scope(|s| {
        let lock = &lock;
        s.spawn(move || drop(lock.write(range(5, 20))));
        while live(lock) < 2 {
            thread::yield_now();
        }
        assert!(lock.try_read(range(0, 4)).is_some(), "beside the waiter");
        assert!(lock.try_read(range(10, 10)).is_none(), "behind the waiter");
        assert!(lock.try_write(range(21, 30)).is_some());
        s.spawn(move || drop(lock.read(Range::starting_at(15))));
        while live(lock) < 3 {
            thread::yield_now();
        }
        drop(reader);
    });
    assert!(lock.try_write(Range::ALL).is_some());
}

#[test]
fn a_waiter_that_gives_up_lets_the_next_in() {
    let lock = MutexRangeLock::new();
    let reader = lock.read(range(0, 9));
    let mut patience = Duration::from_millis(20);
    let mut waited = false;
    // It may have given up before it is looked for; then again, with more patience.
    while !waited {
        thread::scope(|s| {
            let lock = &lock;
            let writer = s.spawn(move || assert!(lock.write_timeout(range(5, 5), patience).is_none()));
            while !waited && !writer.is_finished() {
                thread::yield_now();
                waited = live(lock) == 2;
            }
            drop(lock.read(range(5, 9)));
        });
        patience *= 2;
    }
    drop(reader);
    assert!(lock.read_timeout(Range::ALL, Duration::ZERO).is_some());
    assert_eq!(live(&lock), 0);
}

#[test]
fn a_waiter_that_gives_up_lets_no_earlier_one_in() {
    let lock = MutexRangeLock::new();
    let reader = lock.read(range(0, 9));
    thread::scope(|s| {
        let lock = &lock;
        s.spawn(move || drop(lock.write(range(5, 5))));
        while live(lock) < 2 {
            thread::yield_now();
        }
        assert!(lock.read_timeout(range(5, 5), Duration::from_millis(1)).is_none());
        assert!(format!("{lock:?}").contains("Write [5, 5] waits for 1"), "{lock:?}");
        drop(reader);
    });
}

/// A request that finds nothing in its way holds; a model that is a vector says which.
#[test]
fn lets_in_what_a_vector_lets_in() {
    let mut random = SmallRng::seed_from_u64(7);
    let lock = MutexRangeLock::new();
    let mut held: Vec<(Claim, MutexRangeGuard<'_>)> = Vec::new();
    let (mut refused, mut granted) = (0, 0);
    for _ in 0..if cfg!(miri) { 80 } else { 20_000 } {
        if !held.is_empty() && random.random_range(0..5) < 2 {
            let at = random.random_range(0..held.len());
            drop(held.swap_remove(at));
            continue;
        }
        let first = random.random_range(0..200);
        let last = if random.random_range(0..50) == 0 { u64::MAX } else { first + random.random_range(0..6) };
        let mode = if random.random_range(0..2) == 0 { Mode::Read } else { Mode::Write };
        let claim = Claim { range: range(first, last), mode };
        let guard = if mode == Mode::Read { lock.try_read(claim.range) } else { lock.try_write(claim.range) };
        assert_eq!(guard.is_some(), !held.iter().any(|(c, _)| c.conflicts(&claim)), "{claim:?} {lock:?}");
        match guard {
            Some(guard) => {
                held.push((claim, guard));
                granted += 1;
            }
            None => refused += 1,
        }
        assert_eq!(live(&lock), held.len());
    }
    assert!(refused > 5 && granted > 5);
}

#[test]
fn threads_are_kept_apart() {
    let (lock, shadow) = (MutexRangeLock::new(), Shadow::new());
    thread::scope(|s| {
        for thread in 0..4 {
            let (lock, shadow) = (&lock, &shadow);
            s.spawn(move || {
                let mut random = SmallRng::seed_from_u64(thread);
                for _ in 0..if cfg!(miri) { 30 } else { 10_000 } {
                    let wanted = super::stress::range(&mut random);
                    let mode = if random.random_range(0..2) == 0 { Mode::Read } else { Mode::Write };
                    let patience = Duration::from_micros(20);
                    let guard = match (mode, random.random_range(0..6)) {
                        (Mode::Read, 0) => lock.read_timeout(wanted, patience),
                        (Mode::Write, 0) => lock.write_timeout(wanted, patience),
                        (Mode::Read, _) => Some(lock.read(wanted)),
                        (Mode::Write, _) => Some(lock.write(wanted)),
                    };
                    if guard.is_some() {
                        shadow.enter(wanted, mode);
                        shadow.leave(wanted, mode);
                    }
                }
            });
        }
    });
    assert_eq!(live(&lock), 0);
}
