//! The tree over the leaves, used when one leaf is not enough.
//!
//! **Descent** reads inner nodes optimistically (`inner.rs`), writes nothing, and ends at a leaf,
//! which it locks. The leaf is the right one if the point is inside its fence; else the descent
//! starts over. The fence makes the result of a descent exact, whatever was split, merged or reused
//! meanwhile. Versions only prevent a reader from following a half-written node.
//!
//! **Structure.** Splits and merges hold `structure`, a mutex: inner nodes have one writer at a
//! time. Both are rare compared to acquisitions: one for several records while the lock fills, and
//! none in the steady state, because *empty leaves stay*. They keep their fences, so a program that
//! locks the same ranges again finds the same leaves. A full leaf is split, and so is a contended
//! leaf, between the two points that contend. So the tree is striped by offset as finely as the
//! load requires, and ranges without contention share one leaf.
//!
//! **Reclamation.** When a split needs a leaf and none is spare, a sweep visits some leaves from
//! where the last sweep stopped, and merges empty ones into a neighbour. If it finds few, the pool
//! grows. There are no epochs and no garbage: a removed node is a spare node at once. The memory is
//! freed with the lock (or by `RangeLock::trim`).
//!
//! **Lock order**: leaves by ascending fence, then `structure`.
//!
//! - A thread that holds no leaf waits for the leaf that its descent found.
//! - A thread that holds leaves waits for no leaf that it remembers: a stale pointer may lead to a
//!   leaf that answers for *lower* points by now, or that the thread itself holds. It tries, and
//!   descends again (`lock_beside`). Only the holder changes the fence of a locked leaf, so the
//!   current leaf of a higher point is above all that it holds.
//! - A sweep holds `structure` and needs leaves, so it only tries to lock them.
//! - A leaf out of use may be locked at any time: a thread that reaches it by a stale pointer
//!   unlocks it at once. So a split may wait for its new leaf.

mod inner;
mod link;
mod pool;

#[cfg(all(test, loom))]
pub(crate) use {inner::Inner, link::Link};

use crate::leaf::{Backoff, Leaf, LeafGuard};
#[cfg(not(all(test, loom)))]
use inner::Inner;
use inner::KEYS;
use lanefs_sync::Mutex;
use lanefs_sync::atomic::{AtomicPtr, Ordering};
use lanefs_sync::{hint, thread};
#[cfg(not(all(test, loom)))]
use link::Link;
use link::Node;
use pool::Pool;

/// With fewer leaves than this, a sweep is not worth the splits that it may cause: 1 MiB.
const SWEEP_FROM: usize = if cfg!(loom) { 2 } else { 4096 };
/// Under so many inner nodes, a leaf is hardly in the cache.
const DEEP: usize = 4;
/// Leaves that a sweep looks at before it may give up.
const SWEEP_LOOKS: usize = 64;

pub(crate) struct Tree {
    root: AtomicPtr<()>,
    structure: Mutex<Structure>,
}

struct Structure {
    leaves: Pool<Leaf>,
    inners: Pool<Inner>,
    /// Where the next sweep starts.
    hand: u64,
    splits: u64,
    merges: u64,
}

/// The shape of a tree, for statistics.
#[derive(Default)]
pub(crate) struct Shape {
    pub(crate) leaves: usize,
    /// Bytes.
    pub(crate) memory: usize,
    pub(crate) spare: usize,
    pub(crate) splits: u64,
    pub(crate) merges: u64,
}

impl Tree {
    /// Returns a tree of one leaf, which takes over the records of `from`.
    pub(crate) fn from_leaf(from: &mut LeafGuard<'_>) -> Box<Self> {
        let mut structure =
            Structure { leaves: Pool::new(), inners: Pool::new(), hand: 0, splits: 0, merges: 0 };
        // SAFETY: the pool is in the same tree as the root, which is all that keeps the reference.
        let leaf = unsafe { structure.leaves.take(Leaf::unused) };
        from.move_to(&mut leaf.lock());
        Box::new(Self { root: AtomicPtr::new(Link::leaf(leaf).into_raw()), structure: Mutex::new(structure) })
    }

    #[inline]
    fn follow(&self, link: Link) -> Node<'_> {
        // SAFETY: links come from the root and from inner nodes of this tree, and were made from
        // nodes of its pools, which live as long as `self`. The empty links of an unused node are
        // never read: `len` bounds them, and a reader that saw a `len` of another moment is turned
        // away by the version.
        unsafe { link.follow() }
    }

    /// Returns the leaf that answers for `point`, or did a moment ago. `None` if a node on the way
    /// was being written.
    #[inline]
    pub(crate) fn find(&self, point: u64) -> Option<&Leaf> {
        let mut link = Link::from_raw(self.root.load(Ordering::Acquire));
        let mut levels = 0;
        loop {
            match self.follow(link) {
                Node::Leaf(leaf) => {
                    if levels >= DEEP {
                        leaf.prefetch();
                    }
                    return Some(leaf);
                }
                Node::Inner(inner) => link = inner.find(point)?,
            }
            levels += 1;
        }
    }

    /// Locks the leaf that answers for `point`. The caller holds no other leaf.
    #[inline(always)]
    pub(crate) fn lock(&self, point: u64) -> (&Leaf, LeafGuard<'_>) {
        let mut missed = 0;
        loop {
            if let Some(leaf) = self.find(point) {
                let mut guard = leaf.lock();
                if guard.has(point) {
                    guard.retried += missed;
                    return (leaf, guard);
                }
            }
            missed += 1;
            if cfg!(loom) || missed > 10 { thread::yield_now() } else { hint::spin_loop() }
        }
    }

    /// Locks the leaf that answers for `point`, which lies above all leaves that the caller holds.
    /// Descends again for each attempt: see the lock order.
    pub(crate) fn lock_beside(&self, point: u64) -> LeafGuard<'_> {
        let (mut missed, mut is_contended, mut backoff) = (0, false, Backoff::default());
        loop {
            if let Some(leaf) = self.find(point) {
                let guard = if is_contended { leaf.try_lock_again() } else { leaf.try_lock() };
                match guard {
                    Some(mut guard) if guard.has(point) => {
                        guard.retried += missed;
                        return guard;
                    }
                    Some(_) => missed += 1,
                    None => is_contended = true,
                }
            } else {
                missed += 1;
            }
            backoff.pause();
        }
    }

    /// Splits a locked leaf at `pivot`, which lies inside of it and not at its start.
    pub(crate) fn split(&self, left: &mut LeafGuard<'_>, pivot: u64) {
        let mut structure = self.structure.lock();
        let leaf = self.spare_leaf(&mut structure);
        if left.split_into(pivot, &mut leaf.lock()) {
            left.outdate();
        }
        // `left` stays locked until the parent knows the new leaf: a thread that looks for the new
        // leaf waits for `left`, and then descends again.
        self.insert(&mut structure, pivot, Link::leaf(leaf));
        structure.splits += 1;
    }

    fn spare_leaf(&self, structure: &mut Structure) -> &Leaf {
        if structure.leaves.spare() == 0 && structure.leaves.total() >= SWEEP_FROM {
            self.sweep(structure);
        }
        // SAFETY: the reference is bound to `self`, which owns the pool.
        unsafe { structure.leaves.take(Leaf::unused) }
    }

    fn spare_inner(&self, structure: &mut Structure) -> &Inner {
        // SAFETY: as above.
        unsafe { structure.inners.take(Inner::unused) }
    }

    fn root(&self) -> Link {
        Link::from_raw(self.root.load(Ordering::Relaxed))
    }

    /// Puts an inner node above the root.
    fn raise(&self, structure: &mut Structure) -> &Inner {
        let top = self.spare_inner(structure);
        top.start(self.root());
        self.root.store(Link::inner(top).into_raw(), Ordering::Release);
        top
    }

    /// Makes `new` the child for the points from `key` on. Full nodes on the way are split before
    /// they are entered, so that there is room above each.
    fn insert(&self, structure: &mut Structure, key: u64, new: Link) {
        let mut node = match self.follow(self.root()) {
            Node::Inner(root) if !root.is_full() => root,
            _ => self.raise(structure),
        };
        loop {
            match self.follow(node.link(node.position(key))) {
                Node::Leaf(_) => return node.insert(key, new),
                Node::Inner(child) if child.is_full() => {
                    let right = self.spare_inner(structure);
                    let (middle, stay) = child.copy_upper(right);
                    node.insert(middle, Link::inner(right));
                    child.truncate(stay);
                }
                Node::Inner(child) => node = child,
            }
        }
    }

    /// Merges empty leaves into their neighbours, for as long as every second one looked at is
    /// empty.
    fn sweep(&self, structure: &mut Structure) {
        let (mut looked, mut freed) = (0, 0);
        let enough = structure.leaves.step();
        while freed < enough
            && looked < structure.leaves.total()
            && (looked < SWEEP_LOOKS || freed * 2 >= looked)
        {
            let (l, f) = self.sweep_at_hand(structure);
            looked += l;
            freed += f;
        }
    }

    /// Sweeps once, below the inner node at the hand. For models, whose trees are small.
    #[cfg(all(test, loom))]
    pub(crate) fn sweep_all(&self) {
        let mut structure = self.structure.lock();
        self.sweep_at_hand(&mut structure);
    }

    /// Sweeps below one inner node, and moves the hand on. Returns the leaves looked at and those
    /// freed.
    fn sweep_at_hand(&self, structure: &mut Structure) -> (usize, usize) {
        let mut path: Vec<(&Inner, usize)> = Vec::new();
        let mut link = self.root();
        while let Node::Inner(inner) = self.follow(link) {
            let at = inner.position(structure.hand);
            path.push((inner, at));
            link = inner.link(at);
        }
        let Some((&(bottom, _), above)) = path.split_last() else { return (1, 0) };
        // The range of the lowest node ends at the next key of the nearest node above that has one.
        structure.hand =
            above.iter().rev().find(|(node, at)| *at < node.len()).map_or(0, |(node, at)| node.key(*at));

        let looked = bottom.len() + 1;
        let mut at = 0;
        while at < bottom.len() {
            if !self.merge_leaves(structure, bottom, at) {
                at += 1;
            }
        }
        let freed = looked - (bottom.len() + 1);
        structure.merges += freed as u64;
        self.merge_inners(structure, &path);
        (looked, freed)
    }

    /// Merges the children on both sides of key `at`, if they are unlocked leaves of which one is
    /// empty.
    fn merge_leaves(&self, structure: &mut Structure, parent: &Inner, at: usize) -> bool {
        let (Node::Leaf(left), Node::Leaf(right)) =
            (self.follow(parent.link(at)), self.follow(parent.link(at + 1)))
        else {
            return false;
        };
        let Some(mut l) = left.try_lock() else { return false };
        let Some(mut r) = right.try_lock() else { return false };
        let empty = if r.is_empty() {
            l.hi = r.hi;
            r.retire();
            right
        } else if l.is_empty() {
            r.lo = l.lo;
            l.retire();
            parent.replace(at, Link::leaf(right));
            left
        } else {
            return false;
        };
        parent.remove_right_of(at);
        structure.leaves.give_back(empty);
        true
    }

    /// Joins nodes of a path with a neighbour where both fit in one, and takes off a root with one
    /// child.
    fn merge_inners(&self, structure: &mut Structure, path: &[(&Inner, usize)]) {
        for pair in path.windows(2).rev() {
            let &[(parent, at), _] = pair else { continue };
            for left in [Some(at), at.checked_sub(1)].into_iter().flatten() {
                if left >= parent.len() {
                    continue;
                }
                let (Node::Inner(l), Node::Inner(r)) =
                    (self.follow(parent.link(left)), self.follow(parent.link(left + 1)))
                else {
                    continue;
                };
                if l.len() + r.len() < KEYS * 3 / 4 {
                    l.absorb(parent.key(left), r);
                    parent.remove_right_of(left);
                    structure.inners.give_back(r);
                    break;
                }
            }
        }
        while let Node::Inner(root) = self.follow(self.root()) {
            if root.len() > 0 {
                break;
            }
            self.root.store(root.link(0).into_raw(), Ordering::Release);
            structure.inners.give_back(root);
        }
    }

    pub(crate) fn shape(&self) -> Shape {
        let s = self.structure.lock();
        Shape {
            leaves: s.leaves.total(),
            memory: size_of::<Self>() + s.leaves.memory() + s.inners.memory(),
            spare: s.leaves.spare(),
            splits: s.splits,
            merges: s.merges,
        }
    }

    /// Sums up something of every leaf, in use or spare, one leaf locked at a time.
    pub(crate) fn sum<const N: usize>(&self, of: impl Fn(&LeafGuard<'_>) -> [u64; N]) -> [u64; N] {
        // Collected first: a leaf must not be waited for under `structure`.
        let leaves: Vec<_> = self.structure.lock().leaves.nodes().collect();
        let mut sums = [0; N];
        for leaf in leaves {
            // SAFETY: a node of the pool, which lives as long as `self`.
            let leaf = unsafe { &*leaf }.lock();
            for (sum, n) in sums.iter_mut().zip(of(&leaf)) {
                *sum += n;
            }
        }
        sums
    }
}
