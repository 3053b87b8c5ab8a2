//! Guards: a held range is released when its guard is dropped, also by a panic.

use crate::lock::{Place, RangeLock};
use crate::range::{Claim, Mode, Range};
use crate::wait::Request;
use lanefs_sync::Arc;
use std::fmt;

/// One held range.
pub(crate) struct HeldRange<'a> {
    lock: &'a RangeLock,
    claim: Claim,
    place: Place<'a>,
}

/// The error of a `shrink` to a range that the guard does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{part:?} is not a part of {whole:?}")]
pub struct NotAPart {
    /// The requested part.
    pub part: Range,
    /// The range that is held, and stays so.
    pub whole: Range,
}

impl<'a> HeldRange<'a> {
    #[inline]
    pub(crate) fn new(lock: &'a RangeLock, claim: Claim, place: Place<'a>) -> Self {
        Self { lock, claim, place }
    }

    /// Replaces the held range by its parts `now`. Remembers the place of the last part.
    fn become_parts(&mut self, now: &[Claim]) {
        self.lock.leave_lane(self.claim, &self.place);
        let place = std::mem::replace(&mut self.place, Place::Leaves);
        let request = if let Place::Queued(request) = &place { Some(request) } else { None };
        self.place = self.lock.replace(self.claim, request, now);
    }

    fn shrink(&mut self, part: Range) -> Result<(), NotAPart> {
        if !self.claim.range.covers(&part) {
            return Err(NotAPart { part, whole: self.claim.range });
        }
        let now = Claim { range: part, ..self.claim };
        self.become_parts(&[now]);
        self.claim = now;
        Ok(())
    }

    fn split_at(mut self, point: u64) -> Result<(Self, Self), Self> {
        let whole = self.claim.range;
        if !whole.contains(point) || point == whole.first {
            return Err(self);
        }
        let left = Claim { range: Range { last: point - 1, ..whole }, ..self.claim };
        let right = Claim { range: Range { first: point, ..whole }, ..self.claim };
        self.become_parts(&[left, right]);
        let lock = self.lock;
        let place = std::mem::replace(&mut self.place, Place::Leaves);
        // Its record is gone: the two parts have their own.
        std::mem::forget(self);
        Ok((Self::new(lock, left, Place::Leaves), Self::new(lock, right, place)))
    }

    fn downgrade(&mut self) {
        let now = Claim { mode: Mode::Read, ..self.claim };
        self.become_parts(&[now]);
        self.claim = now;
    }
}

impl Drop for HeldRange<'_> {
    #[inline]
    fn drop(&mut self) {
        self.lock.release(self.claim, &self.place);
    }
}

/// A range that is locked for reading.
///
/// [`RangeLock::read`] and its variants return it. Other readers may hold the same points. The
/// range is released when the guard is dropped.
///
/// # Examples
/// ```
/// use lanefs_rangelock::{Range, RangeLock};
///
/// let lock = RangeLock::new();
/// let mut guard = lock.read(Range::new(0, 100)?);
/// guard.shrink(Range::new(0, 10)?)?;
/// assert!(lock.try_write(Range::new(10, 100)?).is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "released at once unless kept"]
pub struct ReadGuard<'a>(pub(crate) HeldRange<'a>);

/// A range that is locked for writing.
///
/// [`RangeLock::write`] and its variants return it. No other thread holds any of its points. The
/// range is released when the guard is dropped.
///
/// # Examples
/// ```
/// use lanefs_rangelock::{Range, RangeLock};
///
/// let lock = RangeLock::new();
/// let guard = lock.write(Range::new(0, 100)?);
/// let (head, tail) = guard.split_at(10).expect("both parts have points");
/// drop(head);
/// assert!(lock.try_write(Range::new(0, 10)?).is_some());
/// assert!(lock.try_read(Range::new(10, 100)?).is_none());
/// # drop(tail);
/// # Ok::<(), lanefs_rangelock::RangeError>(())
/// ```
#[must_use = "released at once unless kept"]
pub struct WriteGuard<'a>(pub(crate) HeldRange<'a>);

macro_rules! guard {
    ($guard:ident) => {
        impl $guard<'_> {
            /// Returns the held range.
            pub fn range(&self) -> Range {
                self.0.claim.range
            }

            /// Releases all but `part`, which stays locked all the while.
            ///
            /// # Errors
            /// [`NotAPart`] if `part` is not inside the held range, which stays as it is.
            ///
            /// # Examples
            /// ```
            /// # use lanefs_rangelock::{Range, RangeLock};
            /// let lock = RangeLock::new();
            /// let mut guard = lock.write(Range::new(0, 100)?);
            /// guard.shrink(Range::new(40, 100)?)?;
            /// assert!(lock.try_write(Range::new(0, 40)?).is_some());
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            pub fn shrink(&mut self, part: Range) -> Result<(), NotAPart> {
                self.0.shrink(part)
            }

            /// Splits the guard into one for the points before `point`, and one for `point` and
            /// those behind it. All of them stay locked all the while.
            ///
            /// # Errors
            /// Returns the guard itself if one of the two would have no point.
            pub fn split_at(self, point: u64) -> Result<(Self, Self), Self> {
                self.0.split_at(point).map(|(left, right)| (Self(left), Self(right))).map_err(Self)
            }
        }

        impl fmt::Debug for $guard<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($guard)).field(&self.range()).finish()
            }
        }
    };
}

guard!(ReadGuard);
guard!(WriteGuard);

impl<'a> WriteGuard<'a> {
    /// Turns the writer into a reader atomically: no writer comes between.
    ///
    /// Waiting readers that are not queued behind another writer are admitted.
    ///
    /// # Examples
    /// ```
    /// # use lanefs_rangelock::{Range, RangeLock};
    /// let lock = RangeLock::new();
    /// let guard = lock.write(Range::ALL).downgrade();
    /// assert!(lock.try_read(guard.range()).is_some());
    /// ```
    pub fn downgrade(mut self) -> ReadGuard<'a> {
        self.0.downgrade();
        ReadGuard(self.0)
    }
}

/// Several ranges that are locked together, and released together.
///
/// [`RangeLock::lock_many`] and its variants return it, and have an example.
#[must_use = "released at once unless kept"]
pub struct ManyGuard<'a> {
    lock: &'a RangeLock,
    claims: Vec<Claim>,
    request: Option<Arc<Request>>,
}

impl<'a> ManyGuard<'a> {
    pub(crate) fn new(lock: &'a RangeLock, claims: Vec<Claim>, request: Option<Arc<Request>>) -> Self {
        Self { lock, claims, request }
    }

    /// Returns the held ranges in ascending order. Overlapping ranges are joined.
    pub fn ranges(&self) -> impl Iterator<Item = (Range, Mode)> {
        self.claims.iter().map(|c| (c.range, c.mode))
    }
}

impl Drop for ManyGuard<'_> {
    fn drop(&mut self) {
        for &claim in &self.claims {
            self.lock.replace(claim, self.request.as_ref(), &[]);
        }
    }
}

impl fmt::Debug for ManyGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ranges()).finish()
    }
}
