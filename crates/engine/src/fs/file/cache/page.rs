//! The memory of a page.
//!
//! A chunk has it alone, in its own memory: so a write finds the bytes without the line of a count
//! of references. A writeback shares it, and a thread that changes a page in writeback copies it
//! first. The chunk has it alone again with the first change behind the writeback.

use lanefs_device::AlignedBuf;
use std::mem;
use std::ops::Deref;
use std::sync::Arc;

/// The memory of a page. See the head of the file.
#[derive(Debug)]
pub(super) enum Page {
    Owned(AlignedBuf),
    /// With a writeback, or with one that has ended.
    Shared(Arc<AlignedBuf>),
}

impl Page {
    /// Returns the bytes, to change them; `None` while a writeback has them too.
    #[inline]
    pub(super) fn get_mut(&mut self) -> Option<&mut [u8]> {
        match self {
            Self::Owned(bytes) => Some(bytes),
            Self::Shared(_) => self.take_back(),
        }
    }

    #[cold]
    fn take_back(&mut self) -> Option<&mut [u8]> {
        if let Self::Shared(shared) = self {
            Arc::get_mut(shared)?;
            let alone = mem::replace(self, Self::Owned(AlignedBuf::zeroed(0)));
            *self = Self::Owned(alone.into_memory()?);
        }
        match self {
            Self::Owned(bytes) => Some(bytes),
            Self::Shared(_) => None,
        }
    }

    /// Has the processor fetch byte `at`, for a write.
    #[inline]
    pub(super) fn prefetch(&self, at: usize) {
        if let Self::Owned(bytes) = self {
            bytes.prefetch(at);
        }
    }

    /// Returns the memory for a writeback, which shares it from now on.
    pub(super) fn share(&mut self) -> Arc<AlignedBuf> {
        match self {
            Self::Shared(shared) => Arc::clone(shared),
            Self::Owned(bytes) => {
                let shared = Arc::new(mem::replace(bytes, AlignedBuf::zeroed(0)));
                *self = Self::Shared(Arc::clone(&shared));
                shared
            }
        }
    }

    /// Gives up a holder's part. Returns the memory to the last holder.
    pub(super) fn into_memory(self) -> Option<AlignedBuf> {
        match self {
            Self::Owned(bytes) => Some(bytes),
            Self::Shared(shared) => Arc::into_inner(shared),
        }
    }
}

impl Deref for Page {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Shared(shared) => shared,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_writeback_shares_is_not_changed() {
        let mut page = Page::Owned(AlignedBuf::zeroed(4096));
        page.get_mut().unwrap()[0] = 1;
        let shared = page.share();
        assert!(page.get_mut().is_none());
        let again = page.share();
        assert!(Page::Shared(shared).into_memory().is_none());
        assert!(page.get_mut().is_none());
        assert_eq!(again[0], 1);
        drop(again);
        page.get_mut().unwrap()[0] = 2;
        assert!(matches!(page, Page::Owned(_)));
        assert_eq!(page.into_memory().unwrap()[0], 2);
    }

    #[test]
    fn a_chunk_has_32_bytes_for_a_page() {
        assert_eq!(size_of::<Option<Page>>(), 32);
    }
}
