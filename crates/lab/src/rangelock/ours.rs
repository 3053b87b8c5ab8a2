//! The range lock of lanefs, the subject of the comparison.

use super::{Range, Variant};
use lanefs_rangelock::{RangeLock, ReadGuard, WriteGuard};

/// `lanefs_rangelock::RangeLock`.
#[derive(Default)]
pub struct LanefsLock(pub RangeLock);

impl Variant for LanefsLock {
    const NAME: &'static str = "rangelock";
    type Read<'a> = ReadGuard<'a>;
    type Write<'a> = WriteGuard<'a>;

    #[inline]
    fn read(&self, range: Range) -> ReadGuard<'_> {
        self.0.read(range)
    }

    #[inline]
    fn write(&self, range: Range) -> WriteGuard<'_> {
        self.0.write(range)
    }
}
