//! One lock for all points: the inode's rwsem.

use super::{Range, Variant};
use std::sync::{self, PoisonError, RwLockReadGuard, RwLockWriteGuard};

/// `std::sync::RwLock`.
#[derive(Default)]
pub struct RwLock(sync::RwLock<()>);

impl Variant for RwLock {
    const NAME: &'static str = "rwlock";
    const MANY: bool = false;
    type Read<'a> = RwLockReadGuard<'a, ()>;
    type Write<'a> = RwLockWriteGuard<'a, ()>;

    #[inline]
    fn read(&self, _: Range) -> Self::Read<'_> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn write(&self, _: Range) -> Self::Write<'_> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
