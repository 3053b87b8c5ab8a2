//! A batch of cases on all cores.

use super::explore::{Count, Explore, Finding};
use super::workload::Case;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The result of a batch.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The counters of the work done.
    pub count: Count,
    /// Fingerprints of the states.
    pub prints: Vec<u64>,
    /// At most one for each case, as found.
    pub findings: Vec<Finding>,
}

/// Explores `cases` on `jobs` threads, each with an explorer of its own.
///
/// # Panics
/// If a thread does, which is a fault of the campaign.
pub fn explore_all<E: Explore>(cases: &[Case], jobs: usize, explorer: impl Fn() -> E + Sync) -> Outcome {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut explorer = explorer();
        let mut findings = Vec::new();
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            findings.extend(explorer.explore(case).err());
        }
        Outcome { count: explorer.count(), prints: explorer.take_prints(), findings }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().fold(Outcome::default(), |mut all, worker| {
            let done = worker.join().expect("a worker");
            all.count.add(done.count);
            all.prints.extend(done.prints);
            all.findings.extend(done.findings);
            all
        })
    })
}
