use super::*;
use lanefs_sync::{Arc, model, thread};

/// What a transaction's handles did, as the committer finds it.
#[derive(Default)]
struct Work {
    /// By transaction.
    done: [AtomicU32; 4],
}

fn worker(gate: &Gate, work: &Work, n: u32) {
    let place = gate.enter(n, |_| Ok::<(), ()>(())).unwrap();
    work.done[place.tid.0 as usize].fetch_add(1, Ordering::Relaxed);
    // A sync by this thread would commit its changes.
    assert_eq!(gate.running().tid, place.tid);
    gate.leave(place.slot, n);
}

#[test]
fn a_closed_transaction_is_final() {
    model(|| {
        let gate = Arc::new(Gate::new(Tid(1), 8));
        let work = Arc::new(Work::default());
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let (gate, work) = (Arc::clone(&gate), Arc::clone(&work));
                thread::spawn(move || worker(&gate, &work, 3))
            })
            .collect();
        let closed = gate.close();
        assert_eq!(closed.tid, Tid(1));
        let at_close = work.done[1].load(Ordering::Relaxed);
        gate.open_next(Tid(2), 8);
        for worker in workers {
            worker.join().unwrap();
        }
        assert_eq!(work.done[1].load(Ordering::Relaxed), at_close);
        assert_eq!(at_close + work.done[2].load(Ordering::Relaxed), 2);
    });
}

#[test]
fn a_slot_is_used_again_while_a_late_thread_passes() {
    model(|| {
        let gate = Arc::new(Gate::new(Tid(1), 8));
        let work = Arc::new(Work::default());
        let late = {
            let (gate, work) = (Arc::clone(&gate), Arc::clone(&work));
            thread::spawn(move || worker(&gate, &work, 3))
        };
        gate.close();
        gate.open_next(Tid(2), 8);
        let second = gate.close();
        let at_close = work.done[2].load(Ordering::Relaxed);
        gate.open_next(Tid(3), 8);
        late.join().unwrap();
        assert_eq!(second.tid, Tid(2));
        assert_eq!(work.done[2].load(Ordering::Relaxed), at_close);
        // All credits came back, or were taken off with the transaction.
        assert!(gate.attempt(8).is_ok());
    });
}

#[test]
fn a_handle_that_finds_it_full_joins_the_next() {
    model(|| {
        let gate = Arc::new(Gate::new(Tid(1), 4));
        let first = gate.attempt(3).unwrap();
        let waiter = {
            let gate = Arc::clone(&gate);
            thread::spawn(move || {
                let mut told = None;
                let place = gate.enter(3, |why| {
                    told = Some(why);
                    Ok::<(), ()>(())
                });
                (place.unwrap().tid, told)
            })
        };
        // The handle uses all its credits, so that only the next transaction has enough.
        gate.leave(first.slot, 0);
        gate.close();
        gate.open_next(Tid(2), 4);
        assert_eq!(waiter.join().unwrap().0, Tid(2));
    });
}

#[test]
fn a_raised_limit_wakes() {
    model(|| {
        let gate = Arc::new(Gate::new(Tid(1), 0));
        let waiter = {
            let gate = Arc::clone(&gate);
            thread::spawn(move || {
                gate.enter(2, |why| {
                    assert_eq!(why, Refused::Full { tid: Tid(1), inside: false, unused: true });
                    Ok::<(), ()>(())
                })
                .unwrap()
                .tid
            })
        };
        gate.raise_limit(2);
        assert_eq!(waiter.join().unwrap(), Tid(1));
    });
}

#[test]
fn a_transaction_that_was_stepped_to_is_opened_for_a_sleeper() {
    model(|| {
        let gate = Arc::new(Gate::new(Tid(1), 8));
        let work = Arc::new(Work::default());
        let waiter = {
            let (gate, work) = (Arc::clone(&gate), Arc::clone(&work));
            thread::spawn(move || worker(&gate, &work, 3))
        };
        gate.close();
        let at_close = work.done[1].load(Ordering::Relaxed);
        gate.step_closed(Tid(2), 8);
        gate.reopen();
        waiter.join().unwrap();
        assert_eq!(work.done[1].load(Ordering::Relaxed), at_close);
        assert_eq!(at_close + work.done[2].load(Ordering::Relaxed), 1);
    });
}

/// As in the journal, the limit is raised and a transaction is opened under one lock, which also
/// has what the limit is counted from.
#[test]
fn a_limit_that_is_raised_beside_a_commit_lets_in() {
    model(|| {
        let shared = Arc::new((Gate::new(Tid(1), 1), Mutex::new(1)));
        let waiter = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (gate, limit) = &*shared;
                let place = gate.enter(3, |_| {
                    let mut limit = limit.lock();
                    *limit = 4;
                    gate.raise_limit(*limit);
                    Ok::<(), ()>(())
                });
                gate.leave(place.unwrap().slot, 3);
            })
        };
        let (gate, limit) = &*shared;
        gate.close();
        {
            let limit = limit.lock();
            gate.open_next(Tid(2), *limit);
        }
        waiter.join().unwrap();
        assert_eq!(gate.inside().waiting, 0);
    });
}

#[test]
fn credits_that_come_back_let_the_next_in() {
    model(|| {
        let gate = Arc::new(Gate::new(Tid(1), 4));
        let first = gate.attempt(3).unwrap();
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let gate = Arc::clone(&gate);
                thread::spawn(move || {
                    let enough = |why| {
                        if matches!(why, Refused::Full { inside: true, .. }) { Ok(()) } else { Err(why) }
                    };
                    let place = gate.enter(2, enough).unwrap();
                    assert_eq!(place.tid, Tid(1));
                    // It used one.
                    gate.leave(place.slot, 1)
                })
            })
            .collect();
        // No commit is needed: all of them fit one after the other.
        assert!(
            gate.leave(first.slot, 3).is_none_or(|why| matches!(why, Refused::Full { inside: true, .. }))
        );
        for waiter in waiters {
            let why = waiter.join().unwrap();
            assert!(why.is_none_or(|why| matches!(why, Refused::Full { inside: true, .. })), "{why:?}");
        }
        assert_eq!(gate.slots[0].word.load(Ordering::Relaxed), 2);
        assert_eq!(gate.sleepers.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn somebody_is_told_that_only_a_commit_helps() {
    model(|| {
        let gate = Arc::new(Gate::new(Tid(1), 4));
        let first = gate.attempt(3).unwrap();
        let told = Arc::new(Signal::new());
        let tell = |told: &Signal<()>, why| {
            if matches!(why, Refused::Full { inside: false, unused: false, .. }) {
                told.send(());
            }
        };
        let waiter = {
            let (gate, told) = (Arc::clone(&gate), Arc::clone(&told));
            thread::spawn(move || {
                let entered = gate.enter(3, |why| {
                    tell(&told, why);
                    Ok::<(), ()>(())
                });
                entered.unwrap().tid
            })
        };
        if let Some(why) = gate.leave(first.slot, 0) {
            tell(&told, why);
        }
        told.wait();
        gate.close();
        gate.open_next(Tid(2), 4);
        assert_eq!(waiter.join().unwrap(), Tid(2));
    });
}

#[test]
fn a_waiter_that_gives_up_leaves_no_trace() {
    model(|| {
        let gate = Arc::new(Gate::new(Tid(1), 4));
        let first = gate.attempt(3).unwrap();
        let waiter = {
            let gate = Arc::clone(&gate);
            thread::spawn(move || {
                if let Ok(place) = gate.enter(3, |_| Err(())) {
                    gate.leave(place.slot, 3);
                }
            })
        };
        gate.leave(first.slot, 3);
        waiter.join().unwrap();
        assert_eq!(gate.slots[0].word.load(Ordering::Relaxed), 0);
        assert_eq!(gate.sleepers.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn credits_are_counted() {
    model(|| {
        let gate = Gate::new(Tid(7), 10);
        let a = gate.attempt(6).unwrap();
        assert_eq!(
            gate.attempt(5).unwrap_err().0,
            Refused::Full { tid: Tid(7), inside: true, unused: false }
        );
        assert!(gate.extend(a.slot, 4));
        assert!(!gate.extend(a.slot, 1));
        gate.leave(a.slot, 9);
        let b = gate.attempt(9).unwrap();
        assert_eq!(
            gate.attempt(1).unwrap_err().0,
            Refused::Full { tid: Tid(7), inside: true, unused: false }
        );
        gate.leave(b.slot, 0);
        gate.close();
        assert_eq!(gate.attempt(1).unwrap_err().0, Refused::Closed);
        gate.reopen();
        assert!(gate.attempt(10).is_ok());
    });
}
