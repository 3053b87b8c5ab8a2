//! Space on a nearly full volume: runs an operation again after blocks may have become available.
//!
//! Freed blocks become available when their transaction commits. Dirty pages claim more blocks for
//! their map than they need, and give the rest back when they are written out. So an operation that
//! finds no space tries again after both, and only then reports ENOSPC. Every operation that may
//! take a block runs in [`Fs::with_room`]. Freed inodes are available at once, so
//! [`Error::NoInodes`] is reported at once.
//!
//! Hazard: making room waits for handles and for the writeback lock of any file. The caller holds
//! no handle, no writeback lock and no inode's state.

use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::store::alloc::await_frees;

/// How often one operation tries again: meanwhile other threads may take the blocks.
const TRIES: u32 = 3;

impl Fs {
    /// Runs `f`, and runs it again while it finds no space and room can be made. `f` changes
    /// nothing when it finds no space.
    ///
    /// # Errors
    /// The errors of `f` and of the journal.
    pub(crate) fn with_room<T>(&self, mut f: impl FnMut() -> Result<T>) -> Result<T> {
        for _ in 0..TRIES {
            // Counted before `f`: blocks that another thread gives back while `f` runs come too
            // late for `f`, and `make_room` does not see them.
            let returns = self.alloc.returns();
            match f() {
                Err(Error::NoSpace) if self.make_room()? || self.alloc.returns() != returns => {}
                done => return done,
            }
        }
        f()
    }

    /// Writes out dirty pages, and commits freed blocks. Returns `false` if there were neither.
    fn make_room(&self) -> Result<bool> {
        let claimed = self.alloc.has_claims();
        if claimed {
            self.counters.space_retries.add(1);
            // Failures are reported to the users of the files.
            let _ = self.write_back_all();
        }
        Ok(await_frees(self)? || claimed)
    }
}
