//! Single promises, each by a small case.

use crate::{Mode, Range, RangeLock};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

fn range(first: u64, last: u64) -> Range {
    Range::inclusive(first, last).unwrap()
}

/// Long against a hand-over, short against a test run.
const SOON: Duration = Duration::from_millis(20);

#[test]
fn readers_share_and_writers_do_not() {
    let lock = RangeLock::new();
    let a = lock.read(range(0, 9));
    let b = lock.read(range(5, 14));
    assert!(lock.try_write(range(9, 9)).is_none());
    assert!(lock.try_write(range(15, 20)).is_some());
    drop(a);
    assert!(lock.try_write(range(0, 4)).is_some());
    assert!(lock.try_write(range(4, 5)).is_none());
    drop(b);
    let _all = lock.write(Range::ALL);
    assert!(lock.try_read(range(u64::MAX, u64::MAX)).is_none());
}

#[test]
fn a_guard_releases_on_panic() {
    let lock = RangeLock::new();
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _held = lock.write(range(3, 7));
        std::panic::resume_unwind(Box::new(()));
    }));
    assert!(result.is_err());
    assert!(lock.try_write(Range::ALL).is_some());
}

#[test]
fn a_timeout_gives_up_and_lets_the_next_in() {
    let lock = RangeLock::new();
    let held = lock.read(range(0, 9));
    thread::scope(|s| {
        let (tx, rx) = mpsc::channel();
        let lock = &lock;
        s.spawn(move || {
            assert!(lock.write_timeout(range(5, 5), SOON).is_none());
            tx.send(()).unwrap();
        });
        while lock.stats().waited == 0 {
            thread::yield_now();
        }
        // Behind the writer until that gives up; then beside the reader.
        let _reader = lock.read(range(5, 9));
        rx.recv().unwrap();
    });
    assert_eq!(lock.stats().timed_out, 1);
    drop(held);
    assert!(lock.write_timeout(Range::ALL, SOON).is_some());
    assert!(lock.read_timeout(Range::ALL, SOON).is_some());
}

#[test]
fn many_at_once_do_not_deadlock() {
    let lock = RangeLock::new();
    let (a, b) = ((range(0, 0), Mode::Write), (range(1000, 1000), Mode::Write));
    thread::scope(|s| {
        for order in [[a, b], [b, a]] {
            let lock = &lock;
            s.spawn(move || {
                for _ in 0..if cfg!(miri) { 8 } else { 2000 } {
                    let guard = lock.lock_many(&order);
                    assert_eq!(guard.ranges().count(), 2);
                }
            });
        }
    });
    assert!(lock.try_lock_many(&[a, b]).is_some());
    let held = lock.read(range(0, 0));
    assert!(lock.try_lock_many(&[a, b]).is_none());
    assert!(lock.lock_many_timeout(&[a, b], SOON).is_none());
    drop(held);
    assert_eq!(lock.records(), []);
}

#[test]
fn a_waiter_does_not_hold_up_others() {
    let lock = RangeLock::new();
    let held = lock.write(range(0, 9));
    thread::scope(|s| {
        s.spawn(|| drop(lock.write(range(5, 20))));
        while lock.records().len() < 2 {
            thread::yield_now();
        }
        assert!(lock.try_write(range(21, 30)).is_some());
        assert!(lock.try_read(range(10, 10)).is_none(), "first come, first served");
        drop(held);
    });
    assert_eq!(lock.stats().waited, 1);
}

#[test]
fn memory_is_used_again() {
    let mut lock = RangeLock::new();
    let count = if cfg!(miri) { 60 } else { 200_000 };
    assert_eq!(lock.stats().memory, 0);
    let fill = |from: u64| {
        (0..count).map(|i| lock.write(range(from + i * 4096, from + i * 4096 + 4095))).collect::<Vec<_>>()
    };
    let held = fill(0);
    let first = lock.stats();
    assert_eq!(first.promoted, 1);
    drop(held);
    drop(fill(1 << 40));
    drop(fill(1 << 50));
    let second = lock.stats();
    if !cfg!(miri) {
        assert!(first.memory as u64 <= 64 * count, "{first:?}");
        assert!(second.merges > 0 && second.memory <= first.memory * 4 / 3, "{first:?} {second:?}");
    }
    lock.trim();
    assert_eq!(lock.stats().memory, 0);
}

#[test]
fn an_open_lock_knows_its_readers() {
    use crate::leaf::Advice;
    let lock = RangeLock::new();
    lock.heed(Advice::Share);
    let reader = lock.read(range(0, 9));
    let mut other = lock.read(range(10, 19));
    assert!(lock.stats().published > 0, "{lock:?}");
    // A writer beside them is not held up by them; one that meets them is.
    let writer = lock.write(range(20, 29));
    assert_eq!(lock.stats().closed, 1);
    assert!(lock.try_write(range(9, 9)).is_none());
    other.shrink(range(15, 19)).unwrap();
    drop(reader);
    let rest = lock.try_write(range(0, 14)).unwrap();
    drop((writer, other, rest));
    assert_eq!(lock.records(), []);
}
