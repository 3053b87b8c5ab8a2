//! Memory that O_DIRECT accepts.
#![allow(unsafe_code)]

use crate::memory;
use crate::page_pool::{self, PAGE};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes from which on a buffer has a mapping of its own.
const MAPPED: usize = 256 << 10;

/// A zeroed byte buffer of fixed length whose address is a multiple of 4096.
///
/// Direct I/O reads and writes such a buffer without a copy, where its length and the offset are
/// aligned too.
///
/// # Examples
/// ```
/// use lanefs_device::AlignedBuf;
///
/// let mut buf = AlignedBuf::zeroed(8192);
/// buf[0] = 1;
/// assert!(buf.as_ptr().addr().is_multiple_of(AlignedBuf::ALIGN));
/// ```
pub struct AlignedBuf {
    ptr: NonNull<u8>,
    len: usize,
    origin: Origin,
}

/// The origin of a buffer's memory, to which it is returned.
enum Origin {
    /// The allocator; of a length of 0, nothing.
    Heap,
    /// The pool of pages of this number.
    Page(u8),
    /// The slab that it is a part of, with the last of its buffers.
    Slab { _whole: Arc<Slab> },
}

// SAFETY: the buffer owns its memory alone, as a Vec does: pieces of a slab do not overlap, and the
// bytes of a slab are read and written only through its pieces.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared references only read.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// The alignment in bytes.
    pub const ALIGN: usize = 4096;
    /// The size of a huge page.
    pub const HUGE: usize = 2 << 20;

    /// Returns a buffer of `len` zero bytes. Pages of a large one that are never touched take no
    /// memory.
    pub fn zeroed(len: usize) -> Self {
        if len == 0 {
            return Self { ptr: NonNull::dangling(), len, origin: Origin::Heap };
        }
        if len <= PAGE {
            let page = Self::page(len);
            // SAFETY: the page has at least `len` bytes, and is ours.
            unsafe { page.ptr.as_ptr().write_bytes(0, len) };
            return page;
        }
        if len >= MAPPED {
            // The allocator would touch all of it to zero it.
            let whole = Arc::new(Slab::new(len.checked_next_multiple_of(PAGE).unwrap_or(len)));
            return Self { ptr: whole.ptr, len, origin: Origin::Slab { _whole: whole } };
        }
        let layout = Self::layout(len);
        // SAFETY: the layout's size is not zero.
        let ptr = unsafe { alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(ptr) else { handle_alloc_error(layout) };
        Self { ptr, len, origin: Origin::Heap }
    }

    /// Returns a buffer of at most [`PAGE`] bytes, which the caller initialises before any thread
    /// reads them.
    fn page(len: usize) -> Self {
        let Some((ptr, pool)) = page_pool::take() else { handle_alloc_error(Self::layout(len)) };
        Self { ptr, len, origin: Origin::Page(pool) }
    }

    /// Allocates `count` buffers of `len` zero bytes each, a multiple of 4096, consecutively in one
    /// allocation: single allocations would waste up to a page each. The memory is freed when the
    /// last of them is dropped. An allocation of [`HUGE`](Self::HUGE) or more has huge pages, where
    /// the kernel has some.
    ///
    /// # Panics
    /// If `len` is not a multiple of [`ALIGN`](Self::ALIGN), or the sum of the lengths is beyond
    /// memory.
    pub fn slab(len: usize, count: usize) -> Vec<Self> {
        assert!(len.is_multiple_of(Self::ALIGN), "pieces of {len} bytes are not aligned");
        if len == 0 || count == 0 {
            return (0..count).map(|_| Self::zeroed(0)).collect();
        }
        let whole = Arc::new(Slab::new(len.saturating_mul(count)));
        let piece = |i| {
            // SAFETY: `i * len` lies inside of the slab: it has `count * len` bytes (or making it
            // has failed).
            let ptr = unsafe { whole.ptr.add(i * len) };
            Self { ptr, len, origin: Origin::Slab { _whole: Arc::clone(&whole) } }
        };
        (0..count).map(piece).collect()
    }

    /// Has the system supply the memory of buffers of a [`slab`](Self::slab) at once, and not page
    /// by page at the first touch. Of adjacent ones, the last comes first in memory.
    pub fn populate(bufs: &mut [Self]) {
        let adjacent = |a: &Self, b: &Self| b.as_ptr().wrapping_add(b.len) == a.as_ptr();
        for run in bufs.chunk_by(adjacent) {
            if let Some(first) = run.last() {
                memory::populate(first.ptr, run.iter().map(|buf| buf.len).sum());
            }
        }
    }

    /// Has the processor fetch the memory of byte `at`, for a write, while the caller goes on. Past
    /// the end it fetches nothing of use.
    #[inline]
    pub fn prefetch(&self, at: usize) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
            // SAFETY: a prefetch neither reads nor faults, whatever its address.
            unsafe { _mm_prefetch::<_MM_HINT_ET0>(self.ptr.as_ptr().wrapping_add(at).cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }

    fn layout(len: usize) -> Layout {
        match Layout::from_size_align(len, Self::ALIGN) {
            Ok(layout) => layout,
            Err(_) => handle_alloc_error(Layout::new::<u8>()),
        }
    }
}

/// Memory shared by many buffers. The system zeroes each page once, at the first touch; an aligned
/// zeroed allocation would zero it again.
struct Slab {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: the slab owns its memory and gives out only the address; the pieces regulate access to
// it.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Slab {
    /// Allocates `len` zero bytes, more than none and a multiple of 4096.
    fn new(len: usize) -> Self {
        let align = Self::align(len);
        let Some(ptr) = memory::map(len, align) else { handle_alloc_error(AlignedBuf::layout(len)) };
        if align == AlignedBuf::HUGE {
            // SAFETY: mapped above.
            unsafe { memory::advise_huge(ptr, len) };
        }
        Self { ptr, len }
    }

    /// Returns the alignment of a slab. For huge pages it begins at a multiple of their size.
    fn align(len: usize) -> usize {
        if len >= AlignedBuf::HUGE { AlignedBuf::HUGE } else { AlignedBuf::ALIGN }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; the last piece that pointed into it is gone.
        unsafe { memory::unmap(self.ptr, self.len, Self::align(self.len)) };
    }
}

impl Clone for AlignedBuf {
    fn clone(&self) -> Self {
        if self.len == 0 || self.len > PAGE {
            let mut copy = Self::zeroed(self.len);
            copy.copy_from_slice(self);
            return copy;
        }
        let copy = Self::page(self.len);
        // SAFETY: both have `len` bytes, and no other reference to the new one exists.
        unsafe { copy.ptr.as_ptr().copy_from_nonoverlapping(self.ptr.as_ptr(), self.len) };
        copy
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        match self.origin {
            // SAFETY: allocated in `zeroed` with the same layout, and freed once.
            Origin::Heap if self.len != 0 => unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.len)) },
            // SAFETY: taken in `page` from this pool, and given back once.
            Origin::Page(pool) => unsafe { page_pool::give_back(self.ptr, pool) },
            Origin::Heap | Origin::Slab { .. } => {}
        }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `ptr` is valid for `len` initialised bytes (dangling only for length 0), which a
        // slab keeps alive.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident() -> u64 {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * PAGE as u64
    }

    #[test]
    fn a_large_buffer_takes_memory_as_it_is_touched() {
        let before = resident();
        let mut buffers: Vec<_> = (0..512).map(|_| AlignedBuf::zeroed((1 << 20) + 3)).collect();
        buffers.iter_mut().for_each(|buffer| buffer[1 << 19] = 1);
        // Other tests of this program take some meanwhile.
        let grown = resident().saturating_sub(before);
        assert!(grown < 256 << 20, "{grown} bytes");
        assert_eq!(buffers[7].iter().filter(|byte| **byte != 0).count(), 1);
    }

    #[test]
    fn pieces_of_a_slab_are_apart_and_outlive_each_other() {
        let mut pieces = AlignedBuf::slab(8192, 5);
        for (i, piece) in (1..).zip(&mut pieces) {
            assert!(piece.as_ptr().addr().is_multiple_of(AlignedBuf::ALIGN));
            assert!(piece.len() == 8192 && piece.iter().all(|b| *b == 0));
            piece.fill(i);
        }
        let last = pieces.pop();
        drop(pieces.remove(0));
        for (i, piece) in (2..).zip(&pieces) {
            assert!(piece.iter().all(|b| *b == i));
        }
        drop(pieces);
        assert!(last.is_some_and(|last| last.clone().iter().all(|b| *b == 5)));
        assert!(AlignedBuf::slab(4096, 0).is_empty());
        let mut huge = AlignedBuf::slab(4096, 1030);
        assert!(huge[0].as_ptr().addr().is_multiple_of(AlignedBuf::HUGE));
        assert_eq!(huge[1029].as_ptr().addr() - huge[0].as_ptr().addr(), 1029 * 4096);
        assert!(huge.iter().all(|piece| piece.iter().all(|b| *b == 0)));
        huge[1029].fill(1);
    }
}
