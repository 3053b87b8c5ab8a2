//! Every protocol that has an interleaving to get wrong, in loom: all interleavings of up to
//! `LOOM_MAX_PREEMPTIONS` preemptions, and what the memory model allows each load to see. Leaves
//! have two slots here and inner nodes two keys, so that few steps split, merge and promote.
//!
//! `Region` stands for what a range protects. loom's cell reports two threads in it of which one
//! writes, and a hand-over without the order that makes the last holder's writes visible.

use crate::leaf::{Advice, Leaf};
use crate::lock::{Admission, Place};
use crate::range::Claim;
use crate::tree::{Inner, Link, Tree};
use crate::{Mode, MutexRangeLock, Range, RangeLock, thread_index};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Region {
    range: Range,
    cell: UnsafeCell<u64>,
}

// SAFETY: in a model, loom finds out whether it is.
unsafe impl Sync for Region {}
// SAFETY: as above.
unsafe impl Send for Region {}

impl Region {
    fn new(first: u64, last: u64) -> Self {
        Self { range: range(first, last), cell: UnsafeCell::new(0) }
    }

    fn write(&self, lock: &RangeLock) {
        let _guard = lock.write(self.range);
        self.touch();
    }

    fn touch(&self) {
        // SAFETY: checked by loom.
        self.cell.with_mut(|cell| unsafe { *cell += 1 });
    }

    fn look(&self) -> u64 {
        // SAFETY: checked by loom.
        self.cell.with(|cell| unsafe { *cell })
    }

    fn read(&self, lock: &RangeLock) {
        let _guard = lock.read(self.range);
        self.look();
    }
}

fn range(first: u64, last: u64) -> Range {
    Range::inclusive(first, last).unwrap()
}

fn model(f: impl Fn() + Send + Sync + 'static) {
    explore(SHORT, f);
}

/// Runs `f` in every interleaving of at most `preemptions`, or `LOOM_MAX_PREEMPTIONS` if that is
/// less, and tells how many there were: a model in which nothing interleaves proves nothing.
fn explore(preemptions: usize, f: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    // More than usual: a tree takes some steps to make.
    builder.max_branches = 20_000;
    let long = || std::env::var("LOOM_LONG_PREEMPTIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let most = if preemptions == LONG { long() } else { preemptions };
    builder.preemption_bound = builder.preemption_bound.map(|bound| bound.min(most));
    let executions = std::sync::Arc::new(AtomicUsize::new(0));
    let count = std::sync::Arc::clone(&executions);
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        f();
    });
    let executions = executions.load(Ordering::Relaxed);
    println!("executions: {executions} of at most {:?} preemptions", builder.preemption_bound);
    assert!(executions > 1);
}

/// With one preemption, or `LOOM_LONG_PREEMPTIONS`: two take minutes for each model. (A wait, or
/// the end of a thread, is not a preemption.)
const LONG: usize = 0;
/// With as many as the environment says.
const SHORT: usize = usize::MAX;

/// A lock and two regions, in two threads.
fn both(
    make: impl Fn() -> RangeLock + Send + Sync + 'static,
    regions: [(u64, u64); 2],
    a: fn(&RangeLock, &[Region; 2]),
    b: fn(&RangeLock, &[Region; 2]),
) {
    both_while_held(SHORT, make, &[], regions, a, b);
}

/// The same, while points are held elsewhere.
fn both_while_held(
    preemptions: usize,
    make: impl Fn() -> RangeLock + Send + Sync + 'static,
    held: &'static [u64],
    regions: [(u64, u64); 2],
    a: fn(&RangeLock, &[Region; 2]),
    b: fn(&RangeLock, &[Region; 2]),
) {
    explore(preemptions, move || {
        let shared = Arc::new((make(), regions.map(|(first, last)| Region::new(first, last))));
        let held: Vec<_> = held.iter().map(|&point| shared.0.write(range(point, point))).collect();
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            thread_index::set(1);
            b(&other.0, &other.1);
        });
        thread_index::set(0);
        a(&shared.0, &shared.1);
        thread.join().unwrap();
        drop(held);
        assert_eq!(shared.0.records(), []);
        // Nothing is left over, and the fences still cover everything.
        assert!(shared.0.try_write(Range::ALL).is_some());
    });
}

/// A tree of one leaf.
fn sapling() -> RangeLock {
    let lock = RangeLock::new();
    lock.heed(Advice::SplitAt(1));
    assert_eq!(lock.stats().leaves, 1);
    lock
}

/// A tree with leaves that start at 0 and 10.
fn sapling_of_two() -> RangeLock {
    let lock = sapling();
    lock.heed(Advice::SplitAt(10));
    lock
}

/// A tree with leaves that start at 0, 10 and 20.
fn tree() -> RangeLock {
    let lock = RangeLock::new();
    for pivot in [1, 10, 20] {
        lock.heed(Advice::SplitAt(pivot));
    }
    assert_eq!(lock.stats().leaves, 3);
    lock
}

/// A tree with leaves that start at 0, 10, 20 and 30. The last two have a parent of their own.
fn tree_of_four() -> RangeLock {
    let lock = sapling_of_two();
    // Or a split would merge empty leaves first.
    let held = [3, 15].map(|point| lock.write(range(point, point)));
    lock.heed(Advice::SplitAt(20));
    lock.heed(Advice::SplitAt(30));
    drop(held);
    assert_eq!(lock.stats().leaves, 4);
    lock
}

fn open() -> RangeLock {
    let lock = RangeLock::new();
    lock.heed(Advice::Share);
    lock
}

#[test]
fn loom_a_leaf_is_locked_by_one() {
    model(|| {
        let leaf = Arc::new(Leaf::whole());
        let other = Arc::clone(&leaf);
        let thread = thread::spawn(move || {
            let mut guard = other.lock();
            guard.acquired += 1;
            guard.outdate();
        });
        let mut count = 0;
        if let Some(mut guard) = leaf.try_lock() {
            guard.acquired += 1;
            count += 1;
        }
        leaf.lock().acquired += 1;
        thread.join().unwrap();
        assert_eq!(leaf.lock().acquired, count + 2);
        assert_ne!(leaf.lock().version(), 0);
    });
}

#[test]
fn loom_a_reader_of_a_node_sees_one_moment() {
    model(|| {
        let leaves: [&'static Leaf; 3] = std::array::from_fn(|_| &*Box::leak(Box::new(Leaf::unused())));
        let [low, high, new] = leaves.map(Link::leaf);
        let node = Arc::new(Inner::unused());
        node.start(low);
        node.insert(10, high);
        let other = Arc::clone(&node);
        // The reader is the other thread: loom starts from one order and looks for what depends on
        // it, and of the loads of an atomic it knows only the last, which here would be the
        // writer's own.
        let reader = thread::spawn(move || {
            if let Some(found) = other.find(12) {
                assert!(found == high);
            }
        });
        node.insert(5, new);
        reader.join().unwrap();
        assert!(node.find(12) == Some(high) && node.find(5) == Some(new) && node.find(4) == Some(low));
        for leaf in leaves {
            // SAFETY: leaked above, and no longer pointed to.
            drop(unsafe { Box::from_raw(std::ptr::from_ref(leaf).cast_mut()) });
        }
    });
}

#[test]
fn loom_a_new_child_is_seen_as_it_was_made() {
    model(|| {
        let leaves: [&'static Leaf; 2] = std::array::from_fn(|_| &*Box::leak(Box::new(Leaf::unused())));
        let [low, high] = leaves.map(Link::leaf);
        let (parent, child) = (Arc::new(Inner::unused()), Arc::new(Inner::unused()));
        parent.start(low);
        let other = (Arc::clone(&parent), Arc::clone(&child));
        let reader = thread::spawn(move || {
            if other.0.find(7) == Some(Link::inner(&other.1)) {
                assert!(other.1.find(7) == Some(high));
            }
        });
        child.start(high);
        parent.insert(5, Link::inner(&child));
        reader.join().unwrap();
        for leaf in leaves {
            // SAFETY: leaked above, and no longer pointed to.
            drop(unsafe { Box::from_raw(std::ptr::from_ref(leaf).cast_mut()) });
        }
    });
}

#[test]
fn loom_a_waiter_is_woken() {
    both(RangeLock::new, [(0, 9), (5, 14)], |lock, [x, _]| x.write(lock), |lock, [x, _]| x.write(lock));
}

#[test]
fn loom_a_reader_and_a_writer_take_turns() {
    both(
        RangeLock::new,
        [(0, 9), (5, 14)],
        |lock, [x, _]| {
            x.write(lock);
            x.read(lock);
        },
        |lock, [x, _]| x.read(lock),
    );
}

#[test]
fn loom_several_at_once_do_not_deadlock() {
    fn many(lock: &RangeLock, regions: [&Region; 2]) {
        let _guard = lock.lock_many(&regions.map(|r| (r.range, Mode::Write)));
        regions.into_iter().for_each(Region::touch);
    }
    both(tree, [(0, 0), (25, 25)], |lock, [x, y]| many(lock, [x, y]), |lock, [x, y]| many(lock, [y, x]));
}

#[test]
fn loom_wide_ranges_meet_in_every_leaf() {
    both(sapling_of_two, [(5, 25), (15, 15)], |lock, [x, _]| x.write(lock), |lock, [x, _]| x.write(lock));
}

#[test]
fn loom_a_wide_range_goes_piece_by_piece() {
    both(
        tree,
        [(5, 25), (15, 15)],
        |lock, [_, y]| {
            let _wide = lock.write(range(5, 25));
            y.touch();
        },
        |lock, [_, y]| {
            y.write(lock);
            y.write(lock);
        },
    );
}

#[test]
fn loom_a_late_grant_beats_the_timeout() {
    both(
        RangeLock::new,
        [(0, 9), (0, 9)],
        |lock, [x, _]| x.write(lock),
        |lock, [x, _]| {
            let claim = Claim { range: x.range, mode: Mode::Write };
            let place = match lock.admit(&[claim], true) {
                Admission::Granted(place) => place,
                Admission::Waiting(request) if lock.cancel(&[claim], &request) => Place::Queued(request),
                // A request that was granted meanwhile holds its range.
                Admission::Waiting(request) => return assert_ne!(request.blockers(), 0),
                Admission::Refused => unreachable!(),
            };
            x.touch();
            lock.release(claim, &place);
        },
    );
}

#[test]
fn loom_a_waiter_that_gives_up_lets_the_next_in() {
    model(|| {
        let lock = Arc::new(RangeLock::new());
        let held = lock.read(range(0, 9));
        let claim = Claim { range: range(5, 5), mode: Mode::Write };
        let Admission::Waiting(request) = lock.admit(&[claim], true) else { unreachable!() };
        let other = Arc::clone(&lock);
        let behind = thread::spawn(move || drop(other.read(range(5, 5))));
        assert!(!lock.cancel(&[claim], &request));
        behind.join().unwrap();
        drop(held);
        assert_eq!(lock.records(), []);
    });
}

#[test]
fn loom_promotion_moves_holders_along() {
    // Three at once do not fit into the first leaf.
    let write = |lock: &RangeLock, [x, _]: &[Region; 2]| x.write(lock);
    both_while_held(LONG, RangeLock::new, &[3, 5], [(0, 0), (7, 7)], write, write);
}

#[test]
fn loom_promotion_moves_waiters_along() {
    both(
        RangeLock::new,
        [(0, 0), (7, 7)],
        |lock, [x, _]| {
            let _guard = lock.write(x.range);
            lock.heed(Advice::SplitAt(1));
            x.touch();
        },
        |lock, [x, _]| x.write(lock),
    );
}

#[test]
fn loom_a_split_keeps_records_in_sight() {
    both_while_held(
        LONG,
        sapling,
        &[],
        [(14, 16), (12, 12)],
        |lock, [x, _]| {
            let _guard = lock.write(x.range);
            lock.heed(Advice::SplitAt(15));
            x.touch();
        },
        |lock, [x, _]| x.write(lock),
    );
}

#[test]
fn loom_a_full_leaf_splits() {
    let write = |lock: &RangeLock, [x, _]: &[Region; 2]| x.write(lock);
    both_while_held(SHORT, sapling, &[10, 14], [(12, 12), (16, 16)], write, write);
}

#[test]
fn loom_a_split_of_inner_nodes_loses_nobody() {
    // The root is full: another leaf raises the tree.
    both(tree, [(25, 25), (35, 35)], |lock, _| lock.heed(Advice::SplitAt(30)), |lock, [x, _]| x.write(lock));
}

#[test]
fn loom_a_merge_loses_nobody() {
    both(
        tree,
        [(15, 15), (25, 25)],
        |lock, [x, _]| {
            let _ = lock.tree().map(Tree::sweep_all);
            x.write(lock);
        },
        |lock, [x, _]| x.write(lock),
    );
}

#[test]
fn loom_a_merged_leaf_is_used_again_elsewhere() {
    both_while_held(
        LONG,
        tree,
        &[],
        [(15, 15), (45, 45)],
        |lock, _| {
            let _ = lock.tree().map(Tree::sweep_all);
            lock.heed(Advice::SplitAt(40));
        },
        |lock, [x, _]| x.write(lock),
    );
}

#[test]
fn loom_the_long_way_ends_at_the_right_leaf() {
    // The first thread is the one that is held up: so one preemption is enough.
    both(
        tree,
        [(25, 25), (45, 45)],
        |lock, [x, _]| {
            let claim = Claim { range: x.range, mode: Mode::Write };
            let Admission::Granted(place) = lock.admit(&[claim], false) else { unreachable!() };
            assert!(matches!(place, Place::Slot { .. }), "in no leaf");
            lock.release(claim, &place);
        },
        |lock, _| {
            let _ = lock.tree().map(Tree::sweep_all);
            // The leaf that was merged last is used again: the one that the other may be on the way
            // to.
            lock.heed(Advice::SplitAt(40));
        },
    );
}

#[test]
fn loom_a_wide_range_beside_a_merge() {
    both(
        tree,
        [(15, 25), (25, 25)],
        |lock, _| {
            let _ = lock.tree().map(Tree::sweep_all);
        },
        |lock, [x, _]| x.write(lock),
    );
}

#[test]
fn loom_a_wide_range_waits_for_no_leaf_that_it_remembers() {
    // The first leaf is full: a split merges the leaf from 20 on into the next, and gives it the
    // points from 7 on. The first thread may be on the way to it, and hold the leaf from 10 on.
    both_while_held(
        LONG,
        tree_of_four,
        &[3, 5, 35],
        [(12, 25), (8, 14)],
        |lock, [x, _]| x.write(lock),
        |lock, [_, y]| {
            drop(lock.write(range(7, 7)));
            y.write(lock);
        },
    );
}

#[test]
fn loom_a_writer_closes_an_open_lock() {
    both(open, [(0, 9), (20, 29)], |lock, [x, _]| x.read(lock), |lock, [x, _]| x.write(lock));
}

#[test]
fn loom_a_published_range_may_change_before_it_is_moved() {
    model(|| {
        let shared = Arc::new((open(), Region::new(0, 9)));
        let claim = Claim { range: range(20, 29), mode: Mode::Read };
        thread_index::set(0);
        let lane = |lock: &RangeLock| std::ptr::from_ref(lock.shared().unwrap().lane().unwrap());
        // SAFETY: a lane is kept until the lock is dropped.
        let ticket = unsafe { &*lane(&shared.0) }.publish(claim.range).unwrap();
        thread_index::set(1);
        let other = Arc::clone(&shared);
        let reader = thread::spawn(move || {
            thread_index::set(0);
            // SAFETY: as above.
            other.0.release(claim, &Place::Lane { lane: unsafe { &*lane(&other.0) }, ticket });
            other.1.read(&other.0);
        });
        shared.1.write(&shared.0);
        reader.join().unwrap();
        assert_eq!(shared.0.records(), []);
    });
}

#[test]
fn loom_a_reader_on_its_way_in_is_moved() {
    both(open, [(0, 9), (20, 29)], |lock, [x, _]| x.read(lock), |lock, _| lock.close());
}

fn read_and_close(lock: &RangeLock, [x, _]: &[Region; 2]) {
    x.read(lock);
    lock.close();
}

#[test]
fn loom_a_thread_that_finds_the_lock_closed_comes_after_its_readers() {
    both(open, [(0, 9), (20, 29)], read_and_close, |lock, [x, _]| x.write(lock));
}

#[test]
fn loom_a_thread_that_finds_it_closed_the_long_way_does_too() {
    both(open, [(0, 9), (20, 29)], read_and_close, |lock, [x, _]| {
        let claim = Claim { range: x.range, mode: Mode::Write };
        if let Admission::Granted(place) = lock.admit(&[claim], false) {
            x.touch();
            lock.release(claim, &place);
        }
    });
}

#[test]
fn loom_a_writer_passes_readers_beside_it() {
    both_while_held(
        LONG,
        open,
        &[],
        [(0, 9), (20, 29)],
        |lock, [x, y]| {
            let guard = lock.read(x.range);
            // Waits for itself, if the writer side waited for all readers.
            y.write(lock);
            x.look();
            drop(guard);
        },
        |lock, [_, y]| y.write(lock),
    );
}

#[test]
fn loom_opening_sees_the_writer_or_is_seen() {
    both(
        RangeLock::new,
        [(0, 9), (20, 29)],
        |lock, [x, _]| {
            lock.heed(Advice::Share);
            x.read(lock);
        },
        |lock, [x, _]| x.write(lock),
    );
}

#[test]
fn loom_a_reader_of_a_reopened_lock_sees_what_was_written() {
    both(
        open,
        [(0, 9), (20, 29)],
        |lock, [x, _]| x.read(lock),
        |lock, [x, _]| {
            x.write(lock);
            lock.heed(Advice::Share);
        },
    );
}

#[test]
fn loom_opening_while_a_tree_grows() {
    both(
        RangeLock::new,
        [(0, 9), (20, 29)],
        |lock, [x, _]| {
            lock.heed(Advice::Share);
            x.read(lock);
        },
        |lock, [x, _]| {
            lock.heed(Advice::SplitAt(1));
            x.write(lock);
        },
    );
}

#[test]
fn loom_a_reader_leaves_its_lane_for_a_record() {
    both(
        open,
        [(0, 9), (20, 29)],
        |lock, [x, _]| {
            let mut guard = lock.read(range(0, 15));
            guard.shrink(x.range).unwrap();
            x.look();
        },
        |lock, [x, _]| x.write(lock),
    );
}

#[test]
fn loom_downgrade_lets_the_reader_in() {
    both(
        RangeLock::new,
        [(0, 9), (20, 29)],
        |lock, [x, _]| {
            let guard = lock.write(x.range);
            x.touch();
            let _guard = guard.downgrade();
            x.look();
        },
        |lock, [x, _]| x.read(lock),
    );
}

#[test]
fn loom_both_parts_of_a_split_guard_are_waited_for() {
    both(
        RangeLock::new,
        [(0, 9), (20, 29)],
        |lock, [x, _]| {
            let (left, right) = lock.write(x.range).split_at(5).unwrap();
            drop(left);
            x.touch();
            drop(right);
        },
        |lock, [x, _]| x.write(lock),
    );
}

#[test]
fn loom_the_plain_lock_wakes_its_waiter() {
    model(|| {
        let shared = Arc::new((MutexRangeLock::new(), Region::new(0, 9)));
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let _guard = other.0.write(range(0, 5));
            other.1.touch();
        });
        {
            let _guard = shared.0.write(range(3, 9));
            shared.1.touch();
        }
        thread.join().unwrap();
        assert!(shared.0.try_write(Range::ALL).is_some());
    });
}
