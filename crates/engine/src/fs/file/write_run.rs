//! The run of large writes that continues a file without a gap: whether its writer is a long
//! stream, whose bytes the page cache need not keep.

use lanefs_sync::atomic::{AtomicU64, Ordering};

/// Bytes of a write that may be part of a run. A smaller one waits longer for the device than its
/// copy into the cache takes.
const LARGE: usize = 512 << 10;

/// Bytes after which a run is a long stream. The cache keeps a whole file of that size, and no more
/// of a longer one in any case.
const LONG: u64 = 128 << 20;

/// Where the last large write of a file ended, and how many bytes came before it without a gap.
/// Writers that race lose a run, or keep one, which costs time only.
#[derive(Debug, Default)]
pub(crate) struct WriteRun {
    end: AtomicU64,
    len: AtomicU64,
}

impl WriteRun {
    /// Notes a write of `len` bytes at `offset`. Returns whether it continues a long stream.
    pub(crate) fn goes_on(&self, offset: u64, len: usize) -> bool {
        if len < LARGE {
            return false;
        }
        let len = len as u64;
        let end = self.end.swap(offset.saturating_add(len), Ordering::Relaxed);
        let before = if end == offset { self.len.load(Ordering::Relaxed) } else { 0 };
        self.len.store(before.saturating_add(len), Ordering::Relaxed);
        before >= LONG
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_writes_without_a_gap_become_a_stream() {
        let run = WriteRun::default();
        let streams = |at: std::ops::Range<u64>| -> Vec<u64> {
            at.filter(|no| run.goes_on(no << 22, 1 << 22)).collect()
        };
        assert_eq!(streams(0..34), [32, 33]);
        assert_eq!(streams(35..69), [67, 68], "a gap begins anew");
        assert!(!run.goes_on(69 << 22, 4096) && run.goes_on(69 << 22, 1 << 22), "small ones are no part");
        assert!(!run.goes_on(u64::MAX, usize::MAX) && !run.goes_on(0, 1 << 20));
    }
}
