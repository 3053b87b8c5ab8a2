//! The write path beside its peers: raw direct I/O on a file of the same disk, and the kernel's ext4 and XFS on loop
//! devices over one.
//!
//! Each case sets up one `Store` after the other on one backing file that has been written whole, and runs the
//! same loop on each. Rounds go around all of them, so that a disk that changes its mind is fair to all.

mod backing;
mod store;
mod work;

pub mod cached;
pub mod overwrite;
pub mod pmem;
pub mod storm;
pub mod stream;

use crate::report::Report;
use backing::Backing;
use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;
use store::Store;

/// What a benchmark gives or fails with.
pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

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

/// One of the things that are compared: a name, and how to set it up on a backing file.
struct Variant {
    name: &'static str,
    #[allow(clippy::type_complexity, reason = "a name for it would be used once")]
    set_up: Box<dyn Fn(&Backing) -> Outcome<Box<dyn Store>>>,
}

fn variant(name: &'static str, set_up: impl Fn(&Backing) -> Outcome<Box<dyn Store>> + 'static) -> Variant {
    Variant { name, set_up: Box::new(set_up) }
}

impl Bench {
    /// Sets each variant up in turn, as often as there are rounds, and gives it to `run`, with its number.
    fn rounds(
        &self,
        backing: &Backing,
        variants: &[Variant],
        mut run: impl FnMut(usize, &dyn Store) -> Outcome<()>,
    ) -> Outcome<()> {
        for _ in 0..self.rounds {
            for (number, variant) in variants.iter().enumerate() {
                let because = |e| format!("{}: {e}", variant.name);
                let store = (variant.set_up)(backing).map_err(because)?;
                run(number, &*store).map_err(because)?;
                store.finish().map_err(because)?;
            }
        }
        Ok(())
    }
}
