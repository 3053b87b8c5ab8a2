//! An interval tree under a spinlock: the range lock that was proposed for the kernel.
//!
//! A treap by first point, each node with the greatest last point below it. A request counts the
//! conflicting requests in the tree, inserts itself at once, and waits for its count to fall to
//! zero. A request that leaves decrements the count of each later request that conflicts with it.

use super::{Range, SpinLock, Variant, pause};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// `SpinLock<interval tree>`.
#[derive(Default)]
pub struct IntervalTree(SpinLock<Treap>);

/// A held range.
pub struct TreeGuard<'a> {
    lock: &'a IntervalTree,
    node: u32,
}

const NIL: u32 = 0;

#[derive(Clone, Default)]
struct Node {
    first: u64,
    last: u64,
    serial: u64,
    /// Greatest `last` of this node and the nodes below.
    max: u64,
    priority: u32,
    left: u32,
    right: u32,
    write: bool,
    blockers: Option<Arc<AtomicUsize>>,
}

struct Treap {
    /// The first node is not in use: its index stands for "none".
    nodes: Vec<Node>,
    free: Vec<u32>,
    root: u32,
    serial: u64,
    random: u32,
}

impl Default for Treap {
    fn default() -> Self {
        Self { nodes: vec![Node::default()], free: Vec::new(), root: NIL, serial: 0, random: 0x9e37_79b9 }
    }
}

impl Treap {
    fn at(&self, n: u32) -> &Node {
        &self.nodes[n as usize]
    }

    fn at_mut(&mut self, n: u32) -> &mut Node {
        &mut self.nodes[n as usize]
    }

    fn key(&self, n: u32) -> (u64, u64) {
        (self.at(n).first, self.at(n).serial)
    }

    fn update(&mut self, n: u32) {
        let node = self.at(n);
        let max = node.last.max(self.at(node.left).max).max(self.at(node.right).max);
        self.at_mut(n).max = max;
    }

    /// Calls `f` with each node that overlaps.
    fn overlapping(&self, n: u32, first: u64, last: u64, f: &mut impl FnMut(&Node)) {
        if n == NIL || self.at(n).max < first {
            return;
        }
        let node = self.at(n);
        self.overlapping(node.left, first, last, f);
        if node.first <= last {
            if node.last >= first {
                f(node);
            }
            self.overlapping(node.right, first, last, f);
        }
    }

    fn insert(&mut self, root: u32, new: u32) -> u32 {
        if root == NIL {
            return new;
        }
        if self.at(new).priority > self.at(root).priority {
            let (left, right) = self.split(root, self.key(new));
            (self.at_mut(new).left, self.at_mut(new).right) = (left, right);
            self.update(new);
            return new;
        }
        if self.key(new) < self.key(root) {
            let left = self.insert(self.at(root).left, new);
            self.at_mut(root).left = left;
        } else {
            let right = self.insert(self.at(root).right, new);
            self.at_mut(root).right = right;
        }
        self.update(root);
        root
    }

    fn split(&mut self, n: u32, key: (u64, u64)) -> (u32, u32) {
        if n == NIL {
            return (NIL, NIL);
        }
        let halves = if self.key(n) < key {
            let (left, right) = self.split(self.at(n).right, key);
            self.at_mut(n).right = left;
            (n, right)
        } else {
            let (left, right) = self.split(self.at(n).left, key);
            self.at_mut(n).left = right;
            (left, n)
        };
        self.update(n);
        halves
    }

    fn merge(&mut self, left: u32, right: u32) -> u32 {
        if left == NIL || right == NIL {
            return left.max(right);
        }
        if self.at(left).priority > self.at(right).priority {
            let merged = self.merge(self.at(left).right, right);
            self.at_mut(left).right = merged;
            self.update(left);
            left
        } else {
            let merged = self.merge(left, self.at(right).left);
            self.at_mut(right).left = merged;
            self.update(right);
            right
        }
    }

    fn remove(&mut self, root: u32, node: u32) -> u32 {
        if root == node {
            return self.merge(self.at(node).left, self.at(node).right);
        }
        if self.key(node) < self.key(root) {
            let left = self.remove(self.at(root).left, node);
            self.at_mut(root).left = left;
        } else {
            let right = self.remove(self.at(root).right, node);
            self.at_mut(root).right = right;
        }
        self.update(root);
        root
    }
}

impl IntervalTree {
    fn lock(&self, range: Range, write: bool) -> TreeGuard<'_> {
        let (first, last) = (range.first(), range.last());
        let (node, blockers) = self.0.with(|t| {
            let mut count = 0;
            t.overlapping(t.root, first, last, &mut |n| count += usize::from(write || n.write));
            t.serial += 1;
            t.random ^= t.random << 13;
            t.random ^= t.random >> 17;
            t.random ^= t.random << 5;
            let blockers = (count > 0).then(|| Arc::new(AtomicUsize::new(count)));
            let (serial, priority) = (t.serial, t.random);
            let new = Node {
                first,
                last,
                serial,
                max: last,
                priority,
                left: NIL,
                right: NIL,
                write,
                blockers: blockers.clone(),
            };
            let node = match t.free.pop() {
                Some(node) => {
                    *t.at_mut(node) = new;
                    node
                }
                None => {
                    t.nodes.push(new);
                    (t.nodes.len() - 1) as u32
                }
            };
            t.root = t.insert(t.root, node);
            (node, blockers)
        });
        let mut rounds = 0;
        while blockers.as_ref().is_some_and(|b| b.load(Ordering::Acquire) > 0) {
            pause(&mut rounds);
        }
        TreeGuard { lock: self, node }
    }
}

impl Drop for TreeGuard<'_> {
    fn drop(&mut self) {
        self.lock.0.with(|t| {
            t.root = t.remove(t.root, self.node);
            let Node { first, last, serial, write, .. } = *t.at(self.node);
            t.overlapping(t.root, first, last, &mut |n| {
                if let (Some(blockers), true) = (&n.blockers, n.serial > serial && (write || n.write)) {
                    blockers.fetch_sub(1, Ordering::Release);
                }
            });
            t.free.push(self.node);
        });
    }
}

impl Variant for IntervalTree {
    const NAME: &'static str = "interval tree";
    type Read<'a> = TreeGuard<'a>;
    type Write<'a> = TreeGuard<'a>;

    fn read(&self, range: Range) -> TreeGuard<'_> {
        self.lock(range, false)
    }

    fn write(&self, range: Range) -> TreeGuard<'_> {
        self.lock(range, true)
    }
}
