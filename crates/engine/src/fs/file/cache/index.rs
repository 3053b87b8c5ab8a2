//! The index of a file's chunks by number.
//!
//! A radix tree of slots. Nodes are made once and stay until the file's cache is dropped. So a
//! lookup takes no lock, counts no reference and writes nothing: it follows pointers to a slot,
//! whose lock guards the chunk. When chunks are evicted, their slots stay: 24 bytes for each 64 KiB
//! of the file (with blocks of up to 4 KiB) that was ever cached. The cache's bound counts them.
//!
//! Chunk 0 has its slot in the root: a small file has no node at all.

use super::chunk::Chunk;
use lanefs_sync::{OnceLock, RwLock};
use std::array;
use std::ops::Range;

/// A chunk and its lock.
pub(super) type Slot = RwLock<Option<Box<Chunk>>>;

const BITS: u32 = 6;
const FAN: usize = 1 << BITS;
/// Base-64 digits of a chunk's number.
const LEVELS: usize = 6;

#[derive(Debug)]
enum Node {
    Inner(Box<[OnceLock<Node>; FAN]>),
    Leaf(Box<[Slot; FAN]>),
}

impl Node {
    /// Returns a node whose children are `shift` bits up.
    fn new(shift: u32) -> Self {
        match shift {
            0 => Self::Leaf(Box::new(array::from_fn(|_| Slot::default()))),
            _ => Self::Inner(Box::new(array::from_fn(|_| OnceLock::new()))),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Inner(children) => size_of_val(&**children),
            Self::Leaf(slots) => size_of_val(&**slots),
        }
    }
}

/// The index of one file. See the head of the file.
#[derive(Debug, Default)]
pub(super) struct Index {
    first: Slot,
    /// By the number of digits: a tree for one digit, for two, and so on.
    roots: [OnceLock<Node>; LEVELS],
}

/// Returns the root for a chunk that is not 0, and the shift of its topmost digit.
fn root_of(chunk: u32) -> (usize, u32) {
    let shift = chunk.ilog2() / BITS * BITS;
    ((shift / BITS) as usize, shift)
}

fn digit(chunk: u32, shift: u32) -> usize {
    (chunk >> shift) as usize % FAN
}

impl Index {
    /// Returns the slot of a chunk, if it was ever made.
    #[inline]
    pub(super) fn get(&self, chunk: u32) -> Option<&Slot> {
        if chunk == 0 {
            return Some(&self.first);
        }
        let (root, mut shift) = root_of(chunk);
        let mut node = self.roots[root].get()?;
        loop {
            match node {
                Node::Leaf(slots) => return Some(&slots[digit(chunk, 0)]),
                Node::Inner(children) => node = children[digit(chunk, shift)].get()?,
            }
            shift = shift.saturating_sub(BITS);
        }
    }

    /// Returns the slot of a chunk, and how many bytes of nodes were made for it.
    pub(super) fn get_or_make(&self, chunk: u32) -> (&Slot, usize) {
        let mut made = 0;
        if chunk == 0 {
            return (&self.first, made);
        }
        let (root, mut shift) = root_of(chunk);
        let mut make = |shift| {
            let node = Node::new(shift);
            made += node.bytes();
            node
        };
        let mut node = self.roots[root].get_or_init(|| make(shift));
        loop {
            match node {
                Node::Leaf(slots) => return (&slots[digit(chunk, 0)], made),
                Node::Inner(children) => {
                    let child = &children[digit(chunk, shift)];
                    shift = shift.saturating_sub(BITS);
                    node = child.get_or_init(|| make(shift));
                }
            }
        }
    }

    /// Calls `f` with each existing slot of `chunks`, in order.
    pub(super) fn walk(&self, chunks: &Range<u32>, f: &mut impl FnMut(u32, &Slot)) {
        if chunks.contains(&0) {
            f(0, &self.first);
        }
        for (level, root) in self.roots.iter().enumerate() {
            if let Some(node) = root.get() {
                walk(node, 0, level as u32 * BITS, chunks, f);
            }
        }
    }

    /// Takes all chunks out. Returns the bytes of all nodes.
    pub(super) fn drain(&mut self, f: &mut impl FnMut(u32, Box<Chunk>)) -> usize {
        if let Some(chunk) = self.first.get_mut().take() {
            f(0, chunk);
        }
        let mut bytes = 0;
        for (level, root) in self.roots.iter_mut().enumerate() {
            if let Some(node) = root.get_mut() {
                bytes += drain(node, 0, level as u32 * BITS, f);
            }
        }
        bytes
    }
}

fn walk(node: &Node, base: u32, shift: u32, chunks: &Range<u32>, f: &mut impl FnMut(u32, &Slot)) {
    match node {
        Node::Leaf(slots) => {
            for (i, slot) in slots.iter().enumerate() {
                let chunk = base + i as u32;
                if chunks.contains(&chunk) {
                    f(chunk, slot);
                }
            }
        }
        Node::Inner(children) => {
            for (i, child) in children.iter().enumerate() {
                let first = u64::from(base) + ((i as u64) << shift);
                if first >= chunks.end.into() || first + (1 << shift) <= chunks.start.into() {
                    continue;
                }
                if let Some(child) = child.get() {
                    walk(child, first as u32, shift - BITS, chunks, f);
                }
            }
        }
    }
}

fn drain(node: &mut Node, base: u32, shift: u32, f: &mut impl FnMut(u32, Box<Chunk>)) -> usize {
    let mut bytes = node.bytes();
    match node {
        Node::Leaf(slots) => {
            for (i, slot) in slots.iter_mut().enumerate() {
                if let Some(content) = slot.get_mut().take() {
                    f(base + i as u32, content);
                }
            }
        }
        Node::Inner(children) => {
            for (i, child) in children.iter_mut().enumerate() {
                if let Some(child) = child.get_mut() {
                    bytes += drain(child, base + ((i as u32) << shift), shift - BITS, f);
                }
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: [u32; 12] =
        [0, 1, 63, 64, 65, 4095, 4096, 262_143, 262_144, 1 << 28, (1 << 30) + 7, u32::MAX - 1];

    #[test]
    fn what_was_made_is_found_and_nothing_else() {
        let index = Index::default();
        for chunk in SOME {
            assert!(chunk == 0 || !index.get(chunk).is_some_and(|slot| slot.read().is_some()), "{chunk}");
            let (slot, _) = index.get_or_make(chunk);
            *slot.write() = Some(Box::default());
            let (again, made) = index.get_or_make(chunk);
            assert!(std::ptr::eq(slot, again) && made == 0);
            assert!(std::ptr::eq(slot, index.get(chunk).unwrap()));
        }
        assert!(index.get(2).unwrap().read().is_none());
        assert!(index.get(1 << 20).is_none());
        assert!(index.get(u32::MAX).unwrap().read().is_none());
    }

    #[test]
    fn walks_in_order_inside_the_range() {
        let mut index = Index::default();
        let mut bytes = 0;
        for chunk in SOME.iter().rev() {
            let (slot, made) = index.get_or_make(*chunk);
            *slot.write() = Some(Box::default());
            bytes += made;
        }
        for (from, to) in [(0, u32::MAX), (1, 64), (64, 262_144), (4096, 4097), (5, 5), (65, u32::MAX - 1)] {
            let mut seen = Vec::new();
            index.walk(&(from..to), &mut |chunk, slot| {
                if slot.read().is_some() {
                    seen.push(chunk);
                }
            });
            let want: Vec<u32> = SOME.iter().copied().filter(|c| (from..to).contains(c)).collect();
            assert_eq!(seen, want);
        }
        let mut seen = Vec::new();
        assert_eq!(index.drain(&mut |chunk, _| seen.push(chunk)), bytes);
        assert_eq!(seen, SOME);
    }
}
