//! The loops that compare range locks.

use super::{Range, Variant};
use crate::Random;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Ranges that a thread takes before it releases them.
pub const HELD: u64 = 100;
/// Points of a range.
pub const LEN: u64 = 4096;
/// Points of the file that the file system's loop works on.
pub const SPACE: u64 = 1 << 30;

/// The ranges that a thread takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Regions {
    /// A region for each thread: the best case of an optimistic tree.
    Apart,
    /// Each range between those of other threads: the worst.
    Interleaved,
}

fn range(start: u64) -> Range {
    match Range::with_len(start, LEN) {
        Ok(range) => range,
        Err(error) => unreachable!("{error}"),
    }
}

/// Keeps this thread on one core, so that two threads do run on two. A machine that refuses is
/// measured as it is.
pub fn pin(thread: usize) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut set = rustix::thread::CpuSet::new();
    set.set(thread % cores);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// Runs `body` in `threads` threads for `time`; it does some operations and says how many. Returns
/// operations a second.
fn run(threads: usize, time: Duration, body: impl Fn(usize, &AtomicBool) -> u64 + Sync) -> f64 {
    let (stop, total, start) = (AtomicBool::new(false), AtomicU64::new(0), Barrier::new(threads + 1));
    let (stop, total, start, body) = (&stop, &total, &start, &body);
    let mut elapsed = Duration::ZERO;
    std::thread::scope(|s| {
        for thread in 0..threads {
            s.spawn(move || {
                pin(thread);
                start.wait();
                total.fetch_add(body(thread, stop), Ordering::Relaxed);
            });
        }
        start.wait();
        let began = Instant::now();
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        elapsed = began.elapsed();
    });
    total.load(Ordering::Relaxed) as f64 / elapsed.as_secs_f64()
}

/// Runs the source's loop: take a hundred ranges, release them, repeat. Returns ranges a second.
pub fn hundred<V: Variant>(regions: Regions, threads: usize, time: Duration) -> f64 {
    let lock = V::default();
    run(threads, time, |thread, stop| {
        let start = |i: u64| match regions {
            Regions::Apart => (thread as u64 * 1024 + i) * LEN,
            Regions::Interleaved => (i * threads as u64 + thread as u64) * LEN,
        };
        let mut held = Vec::with_capacity(HELD as usize);
        let mut done = 0;
        while !stop.load(Ordering::Relaxed) {
            held.extend((0..HELD).map(|i| lock.write(range(start(i)))));
            held.clear();
            done += HELD;
        }
        done
    })
}

/// Runs a file system's loop: one range at a time, anywhere; `reads` of a hundred are reads.
/// Returns ranges a second.
pub fn one<V: Variant>(reads: u64, threads: usize, time: Duration) -> f64 {
    let lock = V::default();
    run(threads, time, |thread, stop| {
        let mut random = Random::new(thread as u64);
        let mut done = 0;
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..64 {
                let r = random.draw();
                let range = range((r >> 20) % (SPACE / LEN) * LEN);
                if r % 100 < reads {
                    drop(lock.read(range));
                } else {
                    drop(lock.write(range));
                }
            }
            done += 64;
        }
        done
    })
}

/// Returns the nanoseconds of a lock and unlock at a random place while `held` other ranges are
/// held, and the bytes of heap for each of these. `heap` returns the bytes in use.
pub fn among(held: u64, time: Duration, heap: impl Fn() -> usize) -> (f64, f64) {
    let lock = lanefs_rangelock::RangeLock::new();
    let mut guards = Vec::with_capacity(held as usize);
    let before = heap();
    // Every second place, in an order without order: a step that has no factor in common with the
    // count.
    let step = (held as f64 * 0.618) as u64 | 1;
    let step = (step..).find(|s| gcd(*s, held) == 1).unwrap_or(1);
    let mut place = 0;
    for _ in 0..held {
        guards.push(lock.write(range(place * 2 * LEN)));
        place = (place + step) % held;
    }
    let bytes = (heap() - before) as f64 / held as f64;
    let mut random = Random::new(held);
    let (began, mut done) = (Instant::now(), 0_u32);
    while began.elapsed() < time {
        for _ in 0..64 {
            drop(lock.write(range((random.draw() % held * 2 + 1) * LEN)));
        }
        done += 64;
    }
    (began.elapsed().as_nanos() as f64 / f64::from(done), bytes)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Returns the nanoseconds that a cache line takes to go to another core and be written there.
pub fn hand_over(time: Duration) -> f64 {
    let ball = AtomicU64::new(0);
    let per_second = run(2, time, |thread, stop| {
        let (me, mut hits) = (thread as u64, 0);
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..1000 {
                if ball.load(Ordering::Acquire) % 2 == me {
                    ball.fetch_add(1, Ordering::AcqRel);
                    hits += 1;
                }
                std::hint::spin_loop();
            }
        }
        hits
    });
    1e9 / per_second
}
