//! Room on a full volume.
//!
//! Freed blocks come back when their transaction commits. Dirty pages claim more blocks for their
//! map than they turn out to need, and give the rest back when they are written out. So an
//! operation that finds no space tries again behind both, and only then says ENOSPC. Freed inodes
//! wait for nothing, so a want of those ([`Error::NoInodes`]) is told at once, like all else that
//! no free block helps.
//!
//! Every operation that may take a block runs in [`Fs::with_room`]: names (`namei`), attributes
//! (`Fs::change`), writes through the cache and past it, and fallocate.
//!
//! Hazard: both wait for handles and for the writeback lock of any file. The caller holds neither.

use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::store::alloc::await_frees;

/// How often room is made for one operation: meanwhile other threads may take what it made.
const TRIES: u32 = 3;

impl Fs {
    /// Runs `f`, and runs it again while it finds no space and room can be made. `f` changes
    /// nothing when it finds none.
    ///
    /// # Errors
    /// Those of `f`; those of the journal.
    pub(crate) fn with_room<T>(&self, mut f: impl FnMut() -> Result<T>) -> Result<T> {
        for _ in 0..TRIES {
            // What another thread gives back while `f` runs comes too late for `f`, and before
            // `make_room` looks.
            let returns = self.alloc.returns();
            match f() {
                Err(Error::NoSpace) if self.make_room()? || self.alloc.returns() != returns => {}
                done => return done,
            }
        }
        f()
    }

    /// Writes out what is dirty, and commits what was freed; `false` if there was neither.
    fn make_room(&self) -> Result<bool> {
        let claimed = self.alloc.has_claims();
        if claimed {
            self.counters.space_retries.add(1);
            // A file that cannot be written out tells its own users.
            let _ = self.write_back_all();
        }
        Ok(await_frees(self)? || claimed)
    }
}
