//! Many threads run all operations against a shadow array, which holds for each point the number of
//! readers and whether a thread writes it. Each granted request marks its points in the array and
//! checks that the lock was right. If no thread makes progress for `PATIENCE`, a wake-up was lost.
//!
//! `RANGELOCK_SEED` gives each thread other requests.

use crate::leaf::Advice;
use crate::{Mode, Range, RangeLock};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const POINTS: usize = 256;
const WRITER: i64 = 1 << 32;
const NAP: Duration = Duration::from_millis(5);

/// In naps: a machine or a process that is stopped for a while sleeps through one of them.
const PATIENCE: u32 = 24_000;

pub(super) struct Shadow([AtomicI64; POINTS]);

impl Shadow {
    pub(super) fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicI64::new(0)))
    }

    fn points(&self, range: Range) -> &[AtomicI64] {
        let end = POINTS.min((range.last() as usize).saturating_add(1));
        self.0.get(range.first() as usize..end).unwrap_or(&[])
    }

    pub(super) fn enter(&self, range: Range, mode: Mode) {
        for point in self.points(range) {
            let before = point.fetch_add(if mode == Mode::Write { WRITER } else { 1 }, Ordering::Relaxed);
            assert!(
                if mode == Mode::Write { before == 0 } else { before < WRITER },
                "{mode:?} {range:?} is not alone"
            );
        }
    }

    pub(super) fn leave(&self, range: Range, mode: Mode) {
        for point in self.points(range) {
            point.fetch_sub(if mode == Mode::Write { WRITER } else { 1 }, Ordering::Relaxed);
        }
    }
}

pub(super) fn range(random: &mut SmallRng) -> Range {
    let first = random.random_range(0..POINTS as u64);
    match random.random_range(0..40) {
        0 => Range::ALL,
        1 => Range::starting_at(first),
        2 => Range::with_len(first, 64).unwrap(),
        _ => Range::with_len(first, random.random_range(1..4)).unwrap(),
    }
}

fn one(lock: &RangeLock, shadow: &Shadow, random: &mut SmallRng, reads: u32) {
    let wanted = range(random);
    let middle = wanted.first() + (wanted.last() - wanted.first()) / 2;
    if random.random_range(0..100) < reads {
        let mut guard = match random.random_range(0..8) {
            0 => lock.try_read(wanted),
            1 => lock.read_timeout(wanted, Duration::from_micros(20)),
            _ => Some(lock.read(wanted)),
        };
        if let Some(guard) = &mut guard {
            shadow.enter(wanted, Mode::Read);
            shadow.leave(wanted, Mode::Read);
            if random.random_range(0..16) == 0 {
                let part = Range::inclusive(wanted.first(), middle).unwrap();
                guard.shrink(part).unwrap();
                shadow.enter(part, Mode::Read);
                shadow.leave(part, Mode::Read);
            }
        }
        return;
    }
    let guard = match random.random_range(0..8) {
        0 => lock.try_write(wanted),
        1 => lock.write_timeout(wanted, Duration::from_micros(20)),
        _ => Some(lock.write(wanted)),
    };
    let Some(guard) = guard else { return };
    shadow.enter(wanted, Mode::Write);
    if random.random_range(0..8) == 0 {
        thread::yield_now();
    }
    shadow.leave(wanted, Mode::Write);
    match random.random_range(0..12) {
        0 => {
            let guard = guard.downgrade();
            shadow.enter(wanted, Mode::Read);
            shadow.leave(wanted, Mode::Read);
            drop(guard);
        }
        1 => {
            if let Ok((left, right)) = guard.split_at(middle) {
                drop(left);
                shadow.enter(right.range(), Mode::Write);
                shadow.leave(right.range(), Mode::Write);
            }
        }
        _ => {}
    }
}

fn many(lock: &RangeLock, shadow: &Shadow, random: &mut SmallRng) {
    let wanted: Vec<_> = (0..random.random_range(2..4))
        .map(|i| (range(random), if i == 0 { Mode::Write } else { Mode::Read }))
        .collect();
    let guard = lock.lock_many(&wanted);
    for (range, mode) in guard.ranges() {
        shadow.enter(range, mode);
        shadow.leave(range, mode);
    }
}

/// `reads` of a hundred are reads.
fn stress(threads: u64, rounds: u64, reads: u32) {
    let lock = RangeLock::new();
    let shadow = Shadow::new();
    let done: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(0)).collect();
    let seed: u64 =
        std::env::var("RANGELOCK_SEED").map_or(0x001a_9ef5, |seed| seed.parse().expect("a number"));
    println!("seed {seed}");
    thread::scope(|s| {
        let mut workers = Vec::new();
        for (thread, done) in (0..threads).zip(&done) {
            let (lock, shadow) = (&lock, &shadow);
            workers.push(s.spawn(move || {
                let mut random = SmallRng::seed_from_u64(seed ^ thread);
                for round in 0..rounds {
                    match random.random_range(0..200) {
                        0 => lock.heed(Advice::SplitAt(random.random_range(1..POINTS as u64))),
                        1 | 2 => lock.heed(Advice::Share),
                        3..8 => many(lock, shadow, &mut random),
                        8 => drop(lock.records()),
                        _ => one(lock, shadow, &mut random, reads),
                    }
                    done.store(round + 1, Ordering::Relaxed);
                }
            }));
        }
        // The watchdog: some thread must always make progress.
        let sum = || done.iter().map(|d| d.load(Ordering::Relaxed)).sum::<u64>();
        let (mut last, mut naps) = (sum(), 0);
        while !workers.iter().all(|w| w.is_finished()) {
            thread::sleep(NAP);
            naps += 1;
            if sum() != last {
                (last, naps) = (sum(), 0);
            }
            if naps > PATIENCE {
                eprintln!("stuck at {last}, seed {seed}: {:?}", lock.records());
                std::process::abort();
            }
        }
    });
    assert_eq!(lock.records(), []);
    assert!(lock.try_write(Range::ALL).is_some());
    println!("{:?}", lock.stats());
}

const ROUNDS: u64 = if cfg!(miri) { 30 } else { 20_000 };

#[test]
fn stress_half_reads() {
    stress(if cfg!(miri) { 3 } else { 8 }, ROUNDS, 50);
}

#[test]
fn stress_mostly_reads() {
    stress(if cfg!(miri) { 3 } else { 8 }, ROUNDS, 97);
}

#[test]
fn stress_two_writers() {
    stress(2, ROUNDS * 2, 0);
}
