use super::*;
use crate::atomic::{AtomicU32, Ordering};
use crate::time::Instant;
use crate::{Condvar, Mutex, OnceLock, RwLock, thread};
use std::time::Duration;

const SEEDS: u64 = 300;

/// The failures of some hundred seeds.
fn failures(body: fn()) -> Vec<(u64, Failure)> {
    let failure = |seed| run(seed, body).failure.map(|failure| (seed, failure));
    (0..SEEDS).filter_map(failure).collect()
}

fn lost_update() {
    let number = Arc::new(AtomicU32::new(0));
    let add = |number: &AtomicU32| {
        let before = number.load(Ordering::SeqCst);
        number.store(before + 1, Ordering::SeqCst);
    };
    let other = Arc::clone(&number);
    let thread = thread::spawn(move || add(&other));
    add(&number);
    thread.join().unwrap();
    assert_eq!(number.load(Ordering::SeqCst), 2);
}

#[test]
fn a_lost_update_is_found_and_a_seed_replays_it() {
    let found = failures(lost_update);
    assert!((5..SEEDS as usize).contains(&found.len()), "{} of {SEEDS}", found.len());
    assert!(matches!(&found[0].1, Failure::Panic(said) if said.contains("assertion")));
    for (seed, failure) in found {
        let first = run(seed, lost_update);
        assert_eq!(first.failure, Some(failure));
        assert_eq!(first, run(seed, lost_update));
    }
}

#[test]
fn a_deadlock_is_found_and_tells_the_places() {
    let found = failures(|| {
        let locks = Arc::new([Mutex::new(()), Mutex::new(())]);
        let other = Arc::clone(&locks);
        let thread = thread::spawn(move || {
            let _b = other[1].lock();
            let _a = other[0].lock();
        });
        {
            let _a = locks[0].lock();
            let _b = locks[1].lock();
        }
        thread.join().unwrap();
    });
    assert!(!found.is_empty() && found.len() < SEEDS as usize);
    let Failure::Deadlock(said) = &found[0].1 else { panic!("{found:?}") };
    assert_eq!(said.matches("waits for a mutex").count(), 2, "{said}");
    assert_eq!(said.matches("schedule/tests.rs").count(), 2, "{said}");
}

#[test]
fn a_lost_wake_up_is_a_deadlock() {
    let found = failures(|| {
        let shared = Arc::new((Mutex::new(false), Condvar::new()));
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            other.1.notify_one();
            *other.0.lock() = true;
        });
        let mut ready = shared.0.lock();
        while !*ready {
            shared.1.wait(&mut ready);
        }
        drop(ready);
        thread.join().unwrap();
    });
    assert!(found.iter().all(|(_, failure)| matches!(failure, Failure::Deadlock(_))));
    assert!(!found.is_empty() && found.len() < SEEDS as usize);
}

#[test]
fn what_is_right_does_not_fail() {
    let found = failures(|| {
        let shared = Arc::new((RwLock::new((0, 0)), OnceLock::new(), Mutex::new(0), Condvar::new()));
        let threads: Vec<_> = (0..3)
            .map(|i| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    shared.1.get_or_init(|| {
                        thread::yield_now();
                        i
                    });
                    let mut pair = shared.0.write();
                    pair.0 += 1;
                    thread::yield_now();
                    pair.1 += 1;
                    drop(pair);
                    let pair = shared.0.read();
                    assert_eq!(pair.0, pair.1);
                    *shared.2.lock() += 1;
                    shared.3.notify_all();
                })
            })
            .collect();
        let mut ended = shared.2.lock();
        while *ended < 3 {
            shared.3.wait(&mut ended);
        }
        drop(ended);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*shared.0.read(), (3, 3));
    });
    assert_eq!(found, []);
}

#[test]
fn time_passes_without_waiting() {
    let began = std::time::Instant::now();
    let found = failures(|| {
        let (lock, condvar) = (Mutex::new(()), Condvar::new());
        let began = Instant::now();
        assert!(condvar.wait_until(&mut lock.lock(), began + Duration::from_secs(5)).timed_out());
        assert!(began.elapsed() >= Duration::from_secs(5));
        thread::sleep(Duration::from_secs(3600));
        assert!(began.elapsed() >= Duration::from_secs(3605));
    });
    assert_eq!(found, []);
    assert!(began.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_reader_behind_a_waiting_writer_waits() {
    let found = failures(|| {
        let lock = Arc::new(RwLock::new(()));
        let other = Arc::clone(&lock);
        let thread = thread::spawn(move || drop(other.write()));
        {
            let _first = lock.read();
            let _again = lock.read();
        }
        thread.join().unwrap();
    });
    assert!(found.iter().all(|(_, failure)| matches!(failure, Failure::Deadlock(_))));
    assert!(!found.is_empty());
}
