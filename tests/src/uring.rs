//! The kernel's switch for FUSE over io_uring.

use crate::tools::require_root;
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};

/// The switch: `Y` or `N`. Kernels that lack it have no FUSE over io_uring.
pub const FUSE_URING: &str = "/sys/module/fuse/parameters/enable_uring";

/// The switch in one position, for this process alone. Dropping it restores the former position.
#[derive(Debug)]
pub struct FuseUring {
    before: String,
    _alone: File,
}

impl FuseUring {
    /// Sets the switch. Waits for other processes that have set it. `None` on a kernel without, and
    /// where /sys cannot be written.
    ///
    /// # Panics
    /// For a user other than root.
    pub fn set(on: bool) -> Option<Self> {
        let alone = File::open(FUSE_URING).ok()?;
        require_root();
        flock(&alone, FlockOperation::LockExclusive).expect("a lock of the switch");
        let before = fs::read_to_string(FUSE_URING).expect("the switch");
        fs::write(FUSE_URING, if on { "Y" } else { "N" }).ok()?;
        Some(Self { before, _alone: alone })
    }
}

impl Drop for FuseUring {
    fn drop(&mut self) {
        let _ = fs::write(FUSE_URING, self.before.trim());
    }
}
