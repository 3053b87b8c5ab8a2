//! The write path beside its peers: raw direct I/O on a file of the same disk, and the kernel's ext4 and XFS on loop
//! devices over one.
//!
//! Each case sets up one `Store` after the other on one backing file that has been written whole, and runs the
//! same loop on each. Rounds go around all of them, so that a disk that changes its mind is fair to all.

pub mod cached;
pub mod overwrite;
pub mod pmem;
pub mod storm;
pub mod stream;

use crate::report::Report;
use lanefs_lab::store::{Backing, Contender, Store};
use std::path::PathBuf;
use std::time::Duration;

pub use lanefs_lab::Outcome;

/// Threads that the cases with many of them run.
pub const THREADS: [usize; 5] = [1, 2, 4, 8, 16];

/// What all cases share.
#[derive(Debug)]
pub struct Bench {
    /// Where the backing file is made.
    pub dir: PathBuf,
    /// A file system in memory, for what is mapped.
    pub memory: PathBuf,
    /// How long each loop runs.
    pub time: Duration,
    /// How often each variant gets its turn.
    pub rounds: usize,
    /// Whether everything is run, at the sizes of the goals.
    pub long: bool,
    /// The figures.
    pub report: Report,
}

impl Bench {
    /// Sets each variant up in turn, as often as there are rounds, and gives it to `run`, with its number.
    fn rounds(
        &self,
        backing: &Backing,
        variants: &[Contender],
        mut run: impl FnMut(usize, &dyn Store) -> Outcome<()>,
    ) -> Outcome<()> {
        for _ in 0..self.rounds {
            for (number, variant) in variants.iter().enumerate() {
                let because = |e| format!("{}: {e}", variant.name);
                let store = variant.set_up(backing).map_err(because)?;
                run(number, &*store).map_err(because)?;
                store.finish().map_err(because)?;
            }
        }
        Ok(())
    }
}
