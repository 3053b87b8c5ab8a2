//! A memory pool for nodes of one type. It grows by a sixteenth of its size, hands nodes out and
//! takes them back, and frees no memory before it is dropped. That makes nodes type-stable.
//!
//! A large pool grows by whole huge pages, and advises the kernel to use them. Without them, a
//! descent to a random leaf of a large tree misses the TLB at each node, and the page-table walk
//! costs more than the node itself.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// The size of a huge page on x86 and most other processors, in bytes.
const HUGE_PAGE: usize = 2 << 20;
/// The size, in bytes, from which on a pool grows by huge pages: they are then at most a quarter
/// more than it needs.
const LARGE: usize = 4 * HUGE_PAGE;

/// Nodes in the first chunk.
const FIRST: usize = if cfg!(loom) { 1 } else { 4 };

pub(crate) struct Pool<T> {
    chunks: Vec<NonNull<[Aligned<T>]>>,
    free: Vec<*const T>,
    total: usize,
}

/// Two nodes share no cache line: neighbours are often used by different cores.
#[repr(C, align(64))]
struct Aligned<T>(T);

// SAFETY: a pool owns its chunks as a `Vec<Box<[_]>>` would; pointers only because nodes are shared
// while it is moved.
unsafe impl<T: Send + Sync> Send for Pool<T> {}

impl<T> Pool<T> {
    pub(crate) const fn new() -> Self {
        Self { chunks: Vec::new(), free: Vec::new(), total: 0 }
    }

    /// Nodes in use and free.
    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// Returns the size of the pool in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.total * size_of::<Aligned<T>>() + self.free.capacity() * size_of::<*const T>()
    }

    /// Returns the number of free nodes.
    pub(crate) fn spare(&self) -> usize {
        self.free.len()
    }

    /// Returns how many nodes the next growth makes.
    pub(crate) fn step(&self) -> usize {
        let (step, size) = (FIRST.max(self.total / 16), size_of::<Aligned<T>>());
        if self.total * size < LARGE { step } else { (step * size).next_multiple_of(HUGE_PAGE) / size }
    }

    /// Takes a free node, still as it was left. `'a` must not outlive the pool.
    ///
    /// # Safety
    ///
    /// The reference must not be used after the pool is dropped.
    pub(crate) unsafe fn take<'a>(&mut self, make: impl Fn() -> T) -> &'a T {
        if self.free.is_empty() {
            self.grow(make);
        }
        match self.free.pop() {
            // SAFETY: points into a chunk, which lives as long as the pool.
            Some(node) => unsafe { &*node },
            None => unreachable!("a pool grows by at least one node"),
        }
    }

    pub(crate) fn give_back(&mut self, node: &T) {
        self.free.push(node);
    }

    fn grow(&mut self, make: impl Fn() -> T) {
        let step = self.step();
        let layout = layout::<T>(step);
        // SAFETY: the layout is of more than no bytes.
        let Some(memory) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        if layout.align() == HUGE_PAGE {
            advise_huge(memory, layout.size());
        }
        for i in 0..step {
            // SAFETY: the layout has room for so many.
            unsafe { memory.cast::<Aligned<T>>().add(i).write(Aligned(make())) };
        }
        let chunk = NonNull::slice_from_raw_parts(memory.cast(), step);
        self.chunks.push(chunk);
        self.total += step;
        self.free.reserve_exact(step);
        // Backwards, so that neighbours in memory are handed out one after the other.
        self.free.extend((0..step).rev().map(|i| node(chunk, i)));
    }

    /// Returns all nodes, in use or not.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = *const T> {
        self.chunks.iter().flat_map(|&chunk| (0..chunk.len()).map(move |i| node(chunk, i)))
    }
}

/// Returns the layout of a chunk of `nodes` nodes.
fn layout<T>(nodes: usize) -> Layout {
    let aligned = Layout::array::<Aligned<T>>(nodes).and_then(|layout| {
        layout.align_to(if layout.size() >= HUGE_PAGE { HUGE_PAGE } else { layout.align() })
    });
    match aligned {
        Ok(layout) => layout,
        Err(_) => unreachable!("a chunk is a part of what is allocated already"),
    }
}

/// Asks the kernel for huge pages. Nothing depends on them: with small pages all works as well, if
/// slower.
#[cfg(all(target_os = "linux", not(miri)))]
fn advise_huge(memory: NonNull<u8>, size: usize) {
    use rustix::mm::{Advice, madvise};
    // SAFETY: the memory is ours, and its contents stay as they are.
    let _ = unsafe { madvise(memory.as_ptr().cast(), size, Advice::LinuxHugepage) };
}

#[cfg(any(not(target_os = "linux"), miri))]
fn advise_huge(_: NonNull<u8>, _: usize) {}

/// Returns a node of a chunk: the first, and only, thing in its place.
fn node<T>(chunk: NonNull<[Aligned<T>]>, i: usize) -> *const T {
    chunk.as_ptr().cast::<Aligned<T>>().wrapping_add(i).cast_const().cast()
}

impl<T> Drop for Pool<T> {
    fn drop(&mut self) {
        for &chunk in &self.chunks {
            // SAFETY: allocated with this layout and filled by `grow`; no thread holds a node any
            // more.
            unsafe {
                chunk.drop_in_place();
                dealloc(chunk.as_ptr().cast(), layout::<T>(chunk.len()));
            }
        }
    }
}
