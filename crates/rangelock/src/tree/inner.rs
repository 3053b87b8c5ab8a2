//! An inner node of the tree: keys, and between them links to children. Read without a lock.
//!
//! `keys[i]` is the first point under `links[i + 1]`. There is one writer at a time, the thread
//! that holds the tree's structure lock. Readers take no lock and write nothing. The word is a
//! version (a seqlock): it only grows, and is odd while the node is being written. A reader loads
//! the version, reads with relaxed loads, and loads the version again. If it changed, the values
//! may be inconsistent, and the reader starts over. All fields are atomics, so such a read is no
//! data race.
//!
//! The check only proves that the link was the child for this point at some moment: the node may
//! have been split or retired since then. The leaf at the end of a descent is validated by its
//! fence.

use super::link::Link;
use lanefs_sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};

/// Keys in a node: with its word and count it fills 512 bytes.
pub(crate) const KEYS: usize = if cfg!(loom) { 2 } else { 30 };
/// A search looks at the last key of each such group first, and then at the keys of one.
const GROUP: usize = if cfg!(loom) { 1 } else { 8 };
/// The value of an unused key: above every point but the last.
const NONE: u64 = u64::MAX;

pub(crate) struct Inner {
    word: AtomicU64,
    len: AtomicUsize,
    /// `NONE` from `len` on; the last always.
    keys: [AtomicU64; KEYS + 1],
    links: [AtomicPtr<()>; KEYS + 1],
}

impl Inner {
    pub(crate) fn unused() -> Self {
        Self {
            word: AtomicU64::new(0),
            len: AtomicUsize::new(0),
            keys: std::array::from_fn(|_| AtomicU64::new(NONE)),
            links: std::array::from_fn(|_| AtomicPtr::default()),
        }
    }

    /// Returns the child for `point`; None if the node was being written.
    #[inline]
    pub(crate) fn find(&self, point: u64) -> Option<Link> {
        let word = self.word.load(Ordering::Acquire);
        if word & 1 != 0 {
            return None;
        }
        let link = self.link(self.search(point));
        // Orders the loads above before the load below. Pairs with the release fence in `edit`.
        fence(Ordering::Acquire);
        (self.word.load(Ordering::Relaxed) == word).then_some(link)
    }

    /// Returns how many keys are not above `point`. Takes two steps of loads that do not wait for
    /// each other, where a binary search takes five that do: they are misses of the cache in a tree
    /// that is large, and a chain of latencies in one that is not.
    #[inline]
    fn search(&self, point: u64) -> usize {
        let below = |at: usize| usize::from(self.keys[at].load(Ordering::Relaxed) <= point);
        let groups: usize = (GROUP - 1..KEYS).step_by(GROUP).map(below).sum();
        let from = groups * GROUP;
        let at = from + (from..from + GROUP - 1).map(below).sum::<usize>();
        // In the middle of an edit the count may be any of two, and both fit.
        at.min(self.len())
    }

    /// Returns how many keys it has; one less than children.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed).min(KEYS)
    }

    // The functions below require the structure lock.

    pub(crate) fn is_full(&self) -> bool {
        self.len() == KEYS
    }

    pub(crate) fn position(&self, point: u64) -> usize {
        self.search(point)
    }

    #[inline]
    pub(crate) fn link(&self, at: usize) -> Link {
        Link::from_raw(self.links[at].load(Ordering::Relaxed))
    }

    pub(crate) fn key(&self, at: usize) -> u64 {
        self.keys[at].load(Ordering::Relaxed)
    }

    fn set_link(&self, at: usize, link: Link) {
        self.links[at].store(link.into_raw(), Ordering::Relaxed);
    }

    fn set_key(&self, at: usize, key: u64) {
        self.keys[at].store(key, Ordering::Relaxed);
    }

    fn edit<R>(&self, change: impl FnOnce(&Self) -> R) -> R {
        let word = self.word.load(Ordering::Relaxed);
        self.word.store(word.wrapping_add(1), Ordering::Relaxed);
        // A reader that sees any store below also sees the odd word, or a later one, when it looks
        // again; and it sees the child that a new link leads to as it was made.
        fence(Ordering::Release);
        let result = change(self);
        self.word.store(word.wrapping_add(2), Ordering::Release);
        result
    }

    fn set_len(&self, len: usize) {
        for at in len..self.len() {
            self.set_key(at, NONE);
        }
        self.len.store(len, Ordering::Relaxed);
    }

    /// Makes it a node with one child.
    pub(crate) fn start(&self, only: Link) {
        self.edit(|node| {
            node.set_link(0, only);
            node.set_len(0);
        });
    }

    /// Adds the child `link` for the points from `key` on. There must be room.
    pub(crate) fn insert(&self, key: u64, link: Link) {
        debug_assert!(!self.is_full());
        let (at, len) = (self.search(key), self.len());
        self.edit(|node| {
            for i in (at..len).rev() {
                node.set_key(i + 1, node.key(i));
                node.set_link(i + 2, node.link(i + 1));
            }
            node.set_key(at, key);
            node.set_link(at + 1, link);
            node.set_len(len + 1);
        });
    }

    /// Takes out the child right of key `at`, and the key.
    pub(crate) fn remove_right_of(&self, at: usize) {
        let len = self.len();
        self.edit(|node| {
            for i in at + 1..len {
                node.set_key(i - 1, node.key(i));
                node.set_link(i, node.link(i + 1));
            }
            node.set_len(len - 1);
        });
    }

    /// Puts `link` where another child was.
    pub(crate) fn replace(&self, at: usize, link: Link) {
        self.edit(|node| node.set_link(at, link));
    }

    /// Copies the upper half to `right`; returns where it starts and how many keys stay. `truncate`
    /// afterwards, when the parent knows `right`: until then the points are found on both ways.
    pub(crate) fn copy_upper(&self, right: &Self) -> (u64, usize) {
        let (len, middle) = (self.len(), self.len() / 2);
        right.edit(|right| {
            right.set_link(0, self.link(middle + 1));
            for i in middle + 1..len {
                right.set_key(i - middle - 1, self.key(i));
                right.set_link(i - middle, self.link(i + 1));
            }
            right.set_len(len - middle - 1);
        });
        (self.key(middle), middle)
    }

    pub(crate) fn truncate(&self, len: usize) {
        self.edit(|node| node.set_len(len));
    }

    /// Takes over the children of its right neighbour, which starts at `key`. There must be room.
    pub(crate) fn absorb(&self, key: u64, right: &Self) {
        let (len, more) = (self.len(), right.len());
        self.edit(|node| {
            node.set_key(len, key);
            node.set_link(len + 1, right.link(0));
            for i in 0..more {
                node.set_key(len + 1 + i, right.key(i));
                node.set_link(len + 2 + i, right.link(i + 1));
            }
            node.set_len(len + 1 + more);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::leaf::Leaf;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    /// Random edits of two nodes against a vector of keys; the children are all alike, since links
    /// move with the keys.
    #[test]
    fn a_search_finds_what_a_vector_finds() {
        let (leaf, mut random) = (Leaf::unused(), SmallRng::seed_from_u64(1));
        let (left, right) = (Inner::unused(), Inner::unused());
        left.start(Link::leaf(&leaf));
        let mut keys: Vec<u64> = Vec::new();
        for _ in 0..if cfg!(miri) { 200 } else { 20_000 } {
            let key = if random.random_range(0..20) == 0 { u64::MAX } else { random.random_range(1..500) };
            match random.random_range(0..8) {
                0..5 if keys.len() < KEYS && !keys.contains(&key) => {
                    left.insert(key, Link::leaf(&leaf));
                    keys.push(key);
                    keys.sort_unstable();
                }
                5..7 if !keys.is_empty() => {
                    let at = random.random_range(0..keys.len());
                    left.remove_right_of(at);
                    keys.remove(at);
                }
                7 if keys.len() > 2 => {
                    let (middle, stay) = left.copy_upper(&right);
                    left.truncate(stay);
                    let upper = keys.split_off(stay);
                    assert_eq!((middle, right.len()), (upper[0], upper.len() - 1));
                    if random.random_range(0..2) == 0 {
                        left.absorb(middle, &right);
                        keys.extend(upper);
                    }
                }
                _ => {}
            }
            for point in [0, key, key - 1, u64::MAX, random.random_range(0..500)] {
                assert_eq!(
                    left.position(point),
                    keys.iter().filter(|&&k| k <= point).count(),
                    "{point} in {keys:?}"
                );
            }
        }
    }
}
