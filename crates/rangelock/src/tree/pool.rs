//! Memory for nodes of one kind. It grows by a sixteenth of itself, hands nodes out and takes them back, and gives
//! nothing to the allocator before it is dropped: that is what makes nodes type-stable.

/// Nodes in the first chunk.
const FIRST: usize = if cfg!(loom) { 1 } else { 4 };

pub(crate) struct Pool<T> {
    chunks: Vec<*mut [Aligned<T>]>,
    free: Vec<*const T>,
    total: usize,
}

/// Two nodes share no cache line: neighbours are often used by different cores.
#[repr(C, align(64))]
struct Aligned<T>(T);

// SAFETY: a pool owns its chunks as a `Vec<Box<[_]>>` would; pointers only because nodes are shared while it is moved.
unsafe impl<T: Send + Sync> Send for Pool<T> {}

impl<T> Pool<T> {
    pub(crate) const fn new() -> Self {
        Self { chunks: Vec::new(), free: Vec::new(), total: 0 }
    }

    /// Nodes in use and free.
    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// Bytes.
    pub(crate) fn memory(&self) -> usize {
        self.total * size_of::<Aligned<T>>() + self.free.capacity() * size_of::<*const T>()
    }

    /// Free nodes.
    pub(crate) fn spare(&self) -> usize {
        self.free.len()
    }

    /// How many nodes the next growth makes.
    pub(crate) fn step(&self) -> usize {
        FIRST.max(self.total / 16)
    }

    /// A free node, still as it was left. `'a` must not outlive the pool.
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
        let chunk: *mut [Aligned<T>] = Box::into_raw((0..step).map(|_| Aligned(make())).collect());
        self.chunks.push(chunk);
        self.total += step;
        self.free.reserve_exact(step);
        // Backwards, so that neighbours in memory are handed out one after the other.
        self.free.extend((0..step).rev().map(|i| node(chunk, i)));
    }

    /// All nodes, in use or not.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = *const T> {
        self.chunks.iter().flat_map(|&chunk| (0..chunk.len()).map(move |i| node(chunk, i)))
    }
}

/// A node of a chunk: the first, and only, thing in its place.
fn node<T>(chunk: *mut [Aligned<T>], i: usize) -> *const T {
    chunk.cast::<Aligned<T>>().wrapping_add(i).cast_const().cast()
}

impl<T> Drop for Pool<T> {
    fn drop(&mut self) {
        for &chunk in &self.chunks {
            // SAFETY: from `Box::into_raw`, once; nobody holds a node any more.
            drop(unsafe { Box::from_raw(chunk) });
        }
    }
}
