//! The ring of log blocks: `first..end`, and after the last comes the first again.

use lanefs_format::jbd2::Superblock;

/// Positions in a log. Block 0, the superblock, and the fast-commit area lie outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ring {
    first: u32,
    end: u32,
}

impl Ring {
    /// Returns the ring of a checked superblock, so `first < end`.
    pub(crate) fn new(sb: &Superblock) -> Self {
        Self { first: sb.first(), end: sb.end() }
    }

    /// Returns the number of blocks of the ring.
    pub(crate) fn len(self) -> u32 {
        self.end - self.first
    }

    /// Returns the first block.
    pub(crate) fn first(self) -> u32 {
        self.first
    }

    /// Returns the position `n` blocks after `at`.
    pub(crate) fn advance(self, at: u32, n: u32) -> u32 {
        let from = u64::from(at - self.first) + u64::from(n);
        self.first + (from % u64::from(self.len())) as u32
    }

    /// Returns how many blocks `to` comes after `from`.
    pub(crate) fn distance(self, from: u32, to: u32) -> u32 {
        if to >= from { to - from } else { self.len() - (from - to) }
    }

    /// Returns how many of `n` blocks from `at` come before the wrap.
    pub(crate) fn contiguous(self, at: u32, n: u32) -> u32 {
        n.min(self.end - at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_wrap() {
        let ring = Ring { first: 1, end: 11 };
        assert_eq!(ring.advance(1, 9), 10);
        assert_eq!(ring.advance(10, 1), 1);
        assert_eq!(ring.advance(5, 10), 5);
        assert_eq!(ring.advance(5, u32::MAX), 1 + (4 + u32::MAX % 10));
        assert_eq!(ring.distance(3, 3), 0);
        assert_eq!(ring.distance(3, 10), 7);
        assert_eq!(ring.distance(10, 3), 3);
        assert_eq!(ring.contiguous(8, 7), 3);
        assert_eq!(ring.contiguous(8, 2), 2);
    }
}
