//! Source 002: bytes are locked, not the inode, and by what kind of tree.

use super::rig::{LanefsMode, Ran, Work};
use crate::Outcome;
use crate::experiment::{Case, Entry, Experiment, Measurement, Metric, Rig};
use crate::load::mixed;
use crate::peer::Peer;
use crate::plan::Plan;
use crate::published;
use crate::rangelock::work::{Regions, hundred};
use crate::rangelock::{IntervalTree, LanefsLock, MutexBTree, Variant};
use crate::results::{Better, CaseResult, Detail, Series};
use crate::store::{ext4, filled, xfs};
use ::lanefs::Locking;
use std::time::{Duration, Instant};

const OURS: &str = "optimistic B-tree";
const MUTEX: &str = "mutexed B-tree";
const TREE: &str = "interval tree";
const RANGE: &str = "locking=range";
const INODE: &str = "locking=inode";
const MODES: [LanefsMode; 3] = [
    (RANGE, |o| o),
    ("locking=range-mutex", |o| o.locking(Locking::RangeMutex)),
    (INODE, |o| o.locking(Locking::Inode)),
];

/// The lock alone, and one file under it.
#[derive(Debug)]
pub(super) struct RangeLocks;

impl Experiment for RangeLocks {
    fn name(&self) -> &'static str {
        "rangelock"
    }

    fn question(&self) -> &'static str {
        "Which lock lets threads that touch different bytes of one file run side by side?"
    }

    fn cases(&self, plan: &Plan) -> Vec<Case> {
        let mut cases = vec![
            lock(
                plan,
                "best",
                "A hundred ranges, a region for each thread",
                Regions::Apart,
                published::range_lock_best(),
            ),
            lock(
                plan,
                "worst",
                "A hundred ranges, those of all threads interleaved",
                Regions::Interleaved,
                published::range_lock_worst(),
            ),
        ];
        cases.extend(file(plan, "buffered", "Reads and writes of one file through the page cache", false));
        cases.extend(file(plan, "direct", "Direct reads and writes of one file", true));
        cases
    }

    fn findings(&self, _: &[CaseResult]) -> Vec<String> {
        Vec::new()
    }
}

fn lock(plan: &Plan, name: &str, title: &str, regions: Regions, published: Vec<Series>) -> Case {
    Case {
        name: name.to_owned(),
        title: title.to_owned(),
        axis: "threads",
        points: plan.threads.clone(),
        metrics: vec![Metric { name: "rate", title: "lock and unlock", unit: "/s", better: Better::Higher }],
        backing: 0,
        fresh: false,
        patience: 1,
        contenders: vec![
            variant::<LanefsLock>(OURS, regions),
            variant::<MutexBTree>(MUTEX, regions),
            variant::<IntervalTree>(TREE, regions),
        ],
        gain: "with the optimistic tree than with a mutex around a tree",
        versus: vec![(OURS, MUTEX)],
        published: published.into_iter().map(|series| (0, series)).collect(),
    }
}

fn variant<V: Variant>(name: &'static str, regions: Regions) -> Entry {
    Entry::own(name, move |_| Ok(Box::new(Lock(regions, hundred::<V>))))
}

struct Lock(Regions, fn(Regions, usize, Duration) -> f64);

impl Rig for Lock {
    fn run(&self, threads: u64, time: Duration) -> Outcome<Measurement> {
        let began = Instant::now();
        let rate = (self.1)(self.0, threads as usize, time);
        let detail = Detail { seconds: began.elapsed().as_secs_f64(), ..Detail::default() };
        Ok(Measurement { values: vec![Some(rate)], detail })
    }

    fn finish(self: Box<Self>) -> Outcome<()> {
        Ok(())
    }
}

fn file(plan: &Plan, name: &str, title: &str, direct: bool) -> Vec<Case> {
    let (size, log) = (plan.content, plan.log(128));
    let work = Work::new(
        move |store, _| filled(store, 1, size, direct),
        move |_, files, threads, time| Ok(Ran::rate(mixed(&*files[0], size, threads as usize, time)?)),
    );
    let mut contenders = work.modes(&MODES, log);
    contenders.extend([
        work.peer(Peer::KernelExt4, ext4("kernel ext4", log, "")),
        work.peer(Peer::KernelXfs, xfs()),
    ]);
    let case = Case {
        name: name.to_owned(),
        title: title.to_owned(),
        axis: "threads",
        points: plan.threads.clone(),
        metrics: vec![Metric { name: "rate", title: "operations", unit: "/s", better: Better::Higher }],
        backing: size + plan.room(),
        fresh: false,
        patience: 1,
        contenders,
        gain: "with the range lock than with the lock of the inode",
        versus: vec![(RANGE, INODE)],
        // The source's were direct.
        published: match direct {
            true => published::range_lock_io().into_iter().map(|series| (0, series)).collect(),
            false => Vec::new(),
        },
    };
    work.and_simulated(plan, case, &MODES, log)
}
