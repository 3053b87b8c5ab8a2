//! The write path beside its peers: raw direct I/O on a file of the same disk, and the kernel's
//! ext4 and XFS on loop devices over one. Volumes are opened as by a caller that sets no option,
//! but for the options that a variant is named after. The case `overwrite` shows what the loop
//! device of the peers costs.
//!
//! Each case sets up one `Store` after the other on one backing file that has been written whole,
//! and runs the same loop on each. Rounds go around all of them, so that a disk that changes its
//! mind is fair to all. The limit, which a goal says to the percent, takes turns with lanefs within
//! a round, where it can on the same blocks: see [`Beside`].

pub mod cached;
mod counted;
pub mod ground;
pub mod overwrite;
pub mod pmem;
pub mod storm;
pub mod stream;

use crate::report::{Goal, Report, median};
use crate::turns::rotated;
use lanefs_lab::store::{Backing, Contender, Store};
use std::path::PathBuf;
use std::time::Duration;

pub use lanefs_lab::Outcome;

/// Threads that the cases with many of them run.
pub const THREADS: [usize; 5] = [1, 2, 4, 8, 16];

/// Slices of a loop beside its limit.
const SLICES: u32 = 5;

/// The state that all cases share.
#[derive(Debug)]
pub struct Bench {
    /// Where the backing file is made.
    pub dir: PathBuf,
    /// A file system in memory, for mapped volumes.
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
    /// Sets each variant up in turn, as often as there are rounds, and gives it to `run`, with its
    /// number. Each round begins with another variant.
    fn rounds(
        &self,
        backing: &Backing,
        variants: &[Contender],
        mut run: impl FnMut(usize, &dyn Store) -> Outcome<()>,
    ) -> Outcome<()> {
        for number in rotated(self.rounds, variants.len()) {
            let variant = &variants[number];
            let because = |e| format!("{}: {e}", variant.name);
            let store = variant.set_up(backing).map_err(because)?;
            run(number, &*store).map_err(because)?;
            store.finish().map_err(because)?;
        }
        Ok(())
    }
}

/// A loop and its limit by turns, in short slices: what both reached, and the ratio of each two
/// that are neighbours in time.
#[derive(Debug, Clone, Default)]
pub struct Beside {
    rates: Vec<f64>,
    limits: Vec<f64>,
    ratios: Vec<f64>,
}

impl Beside {
    /// Runs both for `time`.
    ///
    /// # Errors
    /// Theirs.
    pub fn run(
        &mut self,
        time: Duration,
        rate: impl Fn(Duration) -> Outcome<f64>,
        limit: impl Fn(Duration) -> Outcome<f64>,
    ) -> Outcome<()> {
        let time = time / SLICES;
        for slice in 0..SLICES {
            let first = if slice % 2 == 0 { Some(limit(time)?) } else { None };
            let rate = rate(time)?;
            let limit = first.map_or_else(|| limit(time), Ok)?;
            self.add(rate, limit);
        }
        Ok(())
    }

    /// One sample of each.
    pub fn add(&mut self, rate: f64, limit: f64) {
        self.rates.push(rate);
        self.limits.push(limit);
        self.ratios.push(rate / limit);
    }

    /// Returns the median of the limits.
    pub fn limit(&self) -> f64 {
        median(&self.limits)
    }

    /// Adds the rows. Returns the medians of the rates and of the ratios.
    pub fn rows(
        &self,
        report: &mut Report,
        case: &str,
        (variant, limit): (&str, &str),
        threads: usize,
        unit: &'static str,
    ) -> (f64, f64) {
        report.row(case, limit, threads, &self.limits, unit);
        let rate = report.row(case, variant, threads, &self.rates, unit);
        let ratio = report.row(case, &format!("{variant} over {limit}"), threads, &self.ratios, "");
        (rate, ratio)
    }

    /// Adds the rows, and `goal` for the ratio. Returns the median of the rates.
    #[expect(clippy::too_many_arguments, reason = "a row of the report has as many columns")]
    pub fn report(
        &self,
        report: &mut Report,
        case: &str,
        names: (&str, &str),
        threads: usize,
        unit: &'static str,
        goal: f64,
    ) -> f64 {
        let (rate, ratio) = self.rows(report, case, names, threads, unit);
        let limit = names.1;
        report.target(&format!("{case}, {threads} threads: over {limit}"), Goal::AtLeast(goal), ratio);
        rate
    }
}
