//! Readahead: how far to read beyond a request, for each file.
//!
//! Reads that go on where the last one ended are sequential. The window then doubles from 128 KiB
//! to 2 MiB, and the next window is requested when less than half of the last one is left. Any
//! other read is random access and has no readahead. This file does no I/O, and does not know which
//! pages are cached.

use std::ops::Range;

/// The readahead state of a file. Offsets and lengths are in bytes.
#[derive(Debug, Clone)]
pub(crate) struct ReadAhead {
    /// The largest window.
    max: u64,
    /// Where the last read ended: a sequential read goes on there.
    next: u64,
    /// The last window; 0 after random access.
    window: u64,
    /// The end of the last window.
    end: u64,
}

impl ReadAhead {
    /// The smallest window. Windows end at multiples of it.
    pub(crate) const MIN: u64 = 128 << 10;
    /// The largest window.
    pub(crate) const MAX: u64 = 2 << 20;

    /// Makes the state for a cache of `bound` bytes. A small cache has a small window, or pages
    /// that were read ahead would be evicted before they are read.
    pub(crate) fn new(bound: u64) -> Self {
        Self { max: (bound / 32).clamp(Self::MIN, Self::MAX), next: 0, window: 0, end: 0 }
    }

    /// Notes a read of `bytes` in a file of `size` bytes. Returns the range to read ahead now,
    /// which begins inside of `bytes` or behind them. It may be empty, and parts of it may be
    /// cached already.
    pub(crate) fn read(&mut self, bytes: Range<u64>, size: u64) -> Range<u64> {
        let none = bytes.end..bytes.end;
        let behind = bytes.start.saturating_add(self.window) >= self.next && bytes.end <= self.next;
        if self.window != 0 && behind {
            // A repeated read, or that of a slower thread: the sequence goes on where it was.
            return none;
        }
        if !(self.next..=self.end.max(self.next)).contains(&bytes.start) {
            *self = Self { next: bytes.end, window: 0, end: 0, ..*self };
            return none;
        }
        self.next = bytes.end;
        if self.window != 0 && bytes.end.saturating_add(self.window / 2) <= self.end.min(size) {
            return none;
        }
        self.window = (self.window * 2).clamp(Self::MIN, self.max);
        let start = self.end.max(bytes.start);
        let end = start.max(bytes.end).saturating_add(self.window);
        self.end = end.checked_next_multiple_of(Self::MIN).unwrap_or(end);
        match start < size {
            true => start..self.end.min(size),
            false => none,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;
    const HUGE: u64 = 1 << 40;

    fn ahead() -> ReadAhead {
        ReadAhead::new(1 << 30)
    }

    #[test]
    fn a_stream_is_read_ahead_in_windows_that_double() {
        let (mut ahead, mut got, mut asked) = (ahead(), Vec::new(), 0);
        for at in (0..64 << 20).step_by(4096) {
            let range = ahead.read(at..at + 4096, HUGE);
            if !range.is_empty() {
                assert_eq!(range.start, asked, "no gap, nothing twice");
                got.push((range.end - range.start) / KIB);
                asked = range.end;
            }
            assert!(asked >= at + 4096 + ReadAhead::MIN / 4, "{asked} at {at}");
        }
        assert_eq!(got[..5], [256, 256, 512, 1024, 2048]);
        assert!(got[5..].iter().all(|kib| *kib == 2048), "{got:?}");
    }

    #[test]
    fn random_reads_are_not_read_ahead() {
        let mut ahead = ahead();
        for at in [5 << 20, 1 << 20, 9 << 20, 3 << 20, 7 << 20] {
            assert!(ahead.read(at..at + 4096, HUGE).is_empty());
        }
        // Until they go on where they were.
        let at = (7 << 20) + 4096;
        assert_eq!(ahead.read(at..at + 4096, HUGE).start, at);
        // A jump ends the stream, and the next one begins small.
        assert!(ahead.read(0..4096, HUGE).is_empty());
        let again = ahead.read(4096..8192, HUGE);
        assert!(again.end - again.start <= 2 * ReadAhead::MIN, "{again:?}");
    }

    #[test]
    fn two_threads_that_share_a_stream_keep_it() {
        let mut ahead = ahead();
        let mut asked = ahead.read(0..4096, HUGE).end;
        for pair in 0..1000 {
            let at = 4096 + pair * 8192;
            // The second half comes first.
            for at in [at + 4096, at] {
                let range = ahead.read(at..at + 4096, HUGE);
                asked = asked.max(range.end);
            }
        }
        assert!(asked > 1000 * 8192, "{asked}");
        assert_eq!(ahead.window, ReadAhead::MAX);
    }

    #[test]
    fn nothing_is_read_beyond_the_end() {
        let mut ahead = ahead();
        assert_eq!(ahead.read(0..4096, 10_000), 0..10_000);
        assert!(ahead.read(4096..8192, 10_000).is_empty());
        assert!(ahead.read(8192..10_000, 10_000).is_empty());
        assert!(ahead.read(10_000..10_000, 10_000).is_empty());
        let mut ahead = self::ahead();
        _ = ahead.read(u64::MAX - 8..u64::MAX, u64::MAX);
        assert!(ahead.read(u64::MAX..u64::MAX, u64::MAX).is_empty());
    }

    #[test]
    fn a_large_read_is_a_part_of_what_is_read() {
        let mut ahead = ahead();
        let first = ahead.read(0..8 << 20, HUGE);
        assert_eq!(first, 0..(8 << 20) + ReadAhead::MIN);
        assert_eq!(ReadAhead::new(0).max, ReadAhead::MIN);
    }
}
