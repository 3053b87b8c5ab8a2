//! A slice of a file that is not a copy.

use crate::fs::file::lock::Kept;
use lanefs_device::Lent;
use std::fmt;
use std::ops::Deref;

/// Bytes of a file in place, without a copy: see [`File::map`](crate::File::map). No thread changes
/// them while this value lives.
pub struct Mapped<'f> {
    // Declared first, so that the slice is given back before the lock of its bytes is released.
    bytes: Lent,
    _kept: Kept<'f>,
}

impl<'f> Mapped<'f> {
    pub(super) fn new((bytes, kept): (Lent, Kept<'f>)) -> Self {
        Self { bytes, _kept: kept }
    }
}

impl Deref for Mapped<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsRef<[u8]> for Mapped<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Mapped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapped({} bytes)", self.len())
    }
}
