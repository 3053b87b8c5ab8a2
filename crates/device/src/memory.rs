//! Zeroed memory from the system, at a multiple of a power of two: mapped on Unix, from the
//! allocator elsewhere.
#![allow(unsafe_code)]

pub(crate) use system::{advise_huge, map, populate, unmap};

#[cfg(unix)]
mod system {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    use std::ptr::NonNull;

    /// Maps `len` zero bytes at a multiple of `align`; both are multiples of a page. The kernel
    /// zeroes each page at the first touch. `None` where the system has no memory.
    pub(crate) fn map(len: usize, align: usize) -> Option<NonNull<u8>> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // A mapping begins at a multiple of a page. For more it is made with room, and cut.
        let room = if align > super::SMALLEST_PAGE { align } else { 0 };
        let mapped = len.checked_add(room)?;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), mapped, prot, flags) }.ok()?;
        let base = NonNull::new(base.cast::<u8>())?;
        let before = if room > 0 { base.align_offset(align).min(room) } else { 0 };
        // SAFETY: `before` is at most the `room` that was mapped beyond `len`.
        let ptr = unsafe { base.add(before) };
        // SAFETY: as above: `before + len` is at most what was mapped.
        let end = unsafe { ptr.add(len) };
        for (start, len) in [(base, before), (end, room - before)] {
            if len > 0 {
                // SAFETY: parts of the mapping that no pointer leads to. If this fails, they stay
                // mapped, which only wastes address space.
                let _ = unsafe { munmap(start.as_ptr().cast(), len) };
            }
        }
        Some(ptr)
    }

    /// Gives memory back.
    ///
    /// # Safety
    /// It came from [`map`] with this length and alignment, and nothing uses it any more.
    pub(crate) unsafe fn unmap(ptr: NonNull<u8>, len: usize, _align: usize) {
        // SAFETY: the caller's promise.
        let _ = unsafe { munmap(ptr.as_ptr().cast(), len) };
    }

    /// Asks for huge pages. Without them the pages are small.
    ///
    /// # Safety
    /// The memory came from [`map`].
    pub(crate) unsafe fn advise_huge(ptr: NonNull<u8>, len: usize) {
        #[cfg(target_os = "linux")]
        // SAFETY: the caller's promise; advice changes no byte.
        let _ = unsafe { rustix::mm::madvise(ptr.as_ptr().cast(), len, rustix::mm::Advice::LinuxHugepage) };
        #[cfg(not(target_os = "linux"))]
        let _ = (ptr, len);
    }

    /// Has the kernel supply memory now, where it can (Linux 5.14): else it does so at the first
    /// touch.
    pub(crate) fn populate(ptr: NonNull<u8>, len: usize) {
        #[cfg(target_os = "linux")]
        // SAFETY: advice changes no byte, and fails where nothing is mapped.
        let _ =
            unsafe { rustix::mm::madvise(ptr.as_ptr().cast(), len, rustix::mm::Advice::LinuxPopulateWrite) };
        #[cfg(not(target_os = "linux"))]
        let _ = (ptr, len);
    }
}

#[cfg(not(unix))]
mod system {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    /// Allocates `len` zero bytes, more than none, at a multiple of `align`. `None` where the
    /// system has no memory.
    pub(crate) fn map(len: usize, align: usize) -> Option<NonNull<u8>> {
        let layout = Layout::from_size_align(len, align).ok().filter(|layout| layout.size() > 0)?;
        // SAFETY: the layout's size is not zero.
        NonNull::new(unsafe { alloc_zeroed(layout) })
    }

    /// Gives memory back.
    ///
    /// # Safety
    /// It came from [`map`] with this length and alignment, and nothing uses it any more.
    pub(crate) unsafe fn unmap(ptr: NonNull<u8>, len: usize, align: usize) {
        if let Ok(layout) = Layout::from_size_align(len, align) {
            // SAFETY: the caller's promise: allocated with this layout.
            unsafe { dealloc(ptr.as_ptr(), layout) };
        }
    }

    /// Does nothing: the allocator chooses its pages.
    ///
    /// # Safety
    /// None is needed.
    pub(crate) unsafe fn advise_huge(_ptr: NonNull<u8>, _len: usize) {}

    /// Does nothing: the allocator has touched it.
    pub(crate) fn populate(_ptr: NonNull<u8>, _len: usize) {}
}

/// A mapping begins at least at a multiple of this.
#[cfg(unix)]
const SMALLEST_PAGE: usize = 4096;
