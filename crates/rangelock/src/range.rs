//! A range of `u64` points, kept as its first and last point so that a range can reach the very
//! end.
//!
//! Invariant: `first <= last`. There is no empty range.

use std::fmt;

/// A non-empty range of `u64` points.
///
/// Both ends are in the range, so it can contain `u64::MAX`. Ranges of the standard library convert
/// into it.
///
/// # Examples
/// ```
/// use lanefs_rangelock::Range;
///
/// let page = Range::with_len(4096, 4096)?;
/// assert_eq!(page, Range::try_from(4096..8192)?);
/// assert_eq!((page.first(), page.last()), (4096, 8191));
/// assert!(page.overlaps(&Range::from(8191..)));
/// # Ok::<(), lanefs_rangelock::RangeError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range {
    pub(crate) first: u64,
    pub(crate) last: u64,
}

/// The error of two numbers that give no [`Range`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// No point lies in it.
    #[error("the range at {at} is empty")]
    Empty {
        /// Where it starts, and ends.
        at: u64,
    },
    /// It ends before it starts.
    #[error("the range from {start} ends before that, at {end}")]
    Reversed {
        /// Where it starts.
        start: u64,
        /// Where it ends.
        end: u64,
    },
    /// It would reach past the last `u64`.
    #[error("{len} points from {start} reach past the end of u64")]
    TooLong {
        /// Where it starts.
        start: u64,
        /// How many points it would have.
        len: u64,
    },
}

impl Range {
    /// All points.
    pub const ALL: Self = Self { first: 0, last: u64::MAX };

    /// Returns the points from `start` up to `end`, without `end` itself.
    ///
    /// # Errors
    /// [`RangeError::Empty`] if the two are equal, [`RangeError::Reversed`] if `end` is less.
    pub const fn new(start: u64, end: u64) -> Result<Self, RangeError> {
        if start < end {
            Ok(Self { first: start, last: end - 1 })
        } else if start == end {
            Err(RangeError::Empty { at: start })
        } else {
            Err(RangeError::Reversed { start, end })
        }
    }

    /// Returns the points from `first` to `last`, both included.
    ///
    /// # Errors
    /// [`RangeError::Reversed`] if `last` is less than `first`.
    pub const fn inclusive(first: u64, last: u64) -> Result<Self, RangeError> {
        if first <= last {
            Ok(Self { first, last })
        } else {
            Err(RangeError::Reversed { start: first, end: last })
        }
    }

    /// Returns the `len` points from `start` on.
    ///
    /// # Errors
    /// [`RangeError::Empty`] if `len` is 0, [`RangeError::TooLong`] if the last point would be more
    /// than `u64::MAX`.
    pub const fn with_len(start: u64, len: u64) -> Result<Self, RangeError> {
        if len == 0 {
            return Err(RangeError::Empty { at: start });
        }
        match start.checked_add(len - 1) {
            Some(last) => Ok(Self { first: start, last }),
            None => Err(RangeError::TooLong { start, len }),
        }
    }

    /// Returns all points from `start` on.
    pub const fn starting_at(start: u64) -> Self {
        Self { first: start, last: u64::MAX }
    }

    /// Returns the first point of the range.
    pub const fn first(&self) -> u64 {
        self.first
    }

    /// Returns the last point of the range.
    pub const fn last(&self) -> u64 {
        self.last
    }

    /// Returns whether `point` is in the range.
    pub const fn contains(&self, point: u64) -> bool {
        self.first <= point && point <= self.last
    }

    /// Returns whether all of `other` is in the range.
    pub const fn covers(&self, other: &Self) -> bool {
        self.first <= other.first && other.last <= self.last
    }

    /// Returns whether the two ranges have a point in common.
    pub const fn overlaps(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

impl TryFrom<std::ops::Range<u64>> for Range {
    type Error = RangeError;
    fn try_from(range: std::ops::Range<u64>) -> Result<Self, RangeError> {
        Self::new(range.start, range.end)
    }
}

impl TryFrom<std::ops::RangeInclusive<u64>> for Range {
    type Error = RangeError;
    fn try_from(range: std::ops::RangeInclusive<u64>) -> Result<Self, RangeError> {
        Self::inclusive(*range.start(), *range.end())
    }
}

impl From<std::ops::RangeFrom<u64>> for Range {
    fn from(range: std::ops::RangeFrom<u64>) -> Self {
        Self::starting_at(range.start)
    }
}

impl From<std::ops::RangeFull> for Range {
    fn from(_: std::ops::RangeFull) -> Self {
        Self::ALL
    }
}

impl fmt::Debug for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {}]", self.first, self.last)
    }
}

/// The mode in which a range is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// For reading: together with other readers.
    Read,
    /// For writing: alone.
    Write,
}

/// A range and how it is wanted or held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) range: Range,
    pub(crate) mode: Mode,
}

impl Claim {
    /// Returns whether the two cannot be held at once.
    pub(crate) fn conflicts(&self, other: &Self) -> bool {
        (self.mode == Mode::Write || other.mode == Mode::Write) && self.range.overlaps(&other.range)
    }
}

/// Sorts claims by range and joins overlapping ones, so that a request never conflicts with itself.
/// If a reader and a writer overlap, the joined claim is a writer.
pub(crate) fn join(mut claims: Vec<Claim>) -> Vec<Claim> {
    claims.sort_by_key(|c| c.range);
    let mut joined: Vec<Claim> = Vec::with_capacity(claims.len());
    for claim in claims {
        match joined.last_mut() {
            Some(before) if before.range.overlaps(&claim.range) => {
                before.range.last = before.range.last.max(claim.range.last);
                before.mode = before.mode.max(claim.mode);
            }
            _ => joined.push(claim),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_full_width() {
        assert_eq!(Range::new(5, 5), Err(RangeError::Empty { at: 5 }));
        assert_eq!(Range::new(6, 5), Err(RangeError::Reversed { start: 6, end: 5 }));
        assert_eq!(Range::inclusive(6, 5), Err(RangeError::Reversed { start: 6, end: 5 }));
        assert_eq!(Range::with_len(7, 0), Err(RangeError::Empty { at: 7 }));
        assert_eq!(Range::with_len(u64::MAX, 2), Err(RangeError::TooLong { start: u64::MAX, len: 2 }));
        assert_eq!(Range::with_len(u64::MAX, 1).unwrap().last(), u64::MAX);
        assert_eq!(Range::with_len(1, u64::MAX).unwrap(), Range::starting_at(1));
        assert!(Range::ALL.overlaps(&Range::starting_at(u64::MAX)));
        assert!(!Range::new(0, 4).unwrap().overlaps(&Range::new(4, 8).unwrap()));
    }

    #[test]
    fn claims_that_overlap_are_joined() {
        let claim = |first, last, mode| Claim { range: Range::inclusive(first, last).unwrap(), mode };
        let joined = join(vec![
            claim(8, 12, Mode::Read),
            claim(0, 3, Mode::Read),
            claim(2, 9, Mode::Write),
            claim(13, 14, Mode::Read),
        ]);
        assert_eq!(joined, [claim(0, 12, Mode::Write), claim(13, 14, Mode::Read)]);
    }
}
