//! Sources 000 and 003: what a journal handle for each overwrite costs.

use super::rig::{LanefsMode, Ran, Work};
use crate::experiment::{Case, Experiment, Metric, Setup};
use crate::load::random_overwrites;
use crate::peer::Peer;
use crate::plan::Plan;
use crate::published;
use crate::results::{Better, CaseResult, Detail};
use crate::store::{ext4, filled, mapped, raw, xfs};
use ::lanefs::{OpenOptions, Overwrite};

const FILES: u64 = 32;
const NEW: &str = "overwrite=nojournal";
const OLD: &str = "overwrite=journal";
const MODES: [LanefsMode; 2] = [(NEW, |o| o), (OLD, |o| o.overwrite(Overwrite::Journal))];

/// Overwrites of mapped, written blocks inside of i_size.
#[derive(Debug)]
pub(super) struct Overwrites;

impl Experiment for Overwrites {
    fn name(&self) -> &'static str {
        "overwrite"
    }

    fn question(&self) -> &'static str {
        "What does a journal handle for each overwrite cost, when the blocks are there already?"
    }

    fn cases(&self, plan: &Plan) -> Vec<Case> {
        let size = plan.content / FILES;
        let log = plan.log(128);
        let work = Work::new(
            move |store, _| filled(store, FILES as usize, size, true),
            move |_, files, threads, time| {
                Ok(Ran::rate(random_overwrites(files, size, threads as usize, time)?))
            },
        )
        .derive(handles);
        let case = |name: &str, title: &str, backing, contenders| Case {
            name: name.to_owned(),
            title: title.to_owned(),
            axis: "threads",
            points: plan.threads.clone(),
            metrics: METRICS.to_vec(),
            backing,
            fresh: false,
            patience: 1,
            contenders,
            gain: "without a handle",
            versus: vec![(NEW, OLD)],
            published: published::overwrite().into_iter().map(|series| (0, series)).collect(),
        };
        let dax = MODES.map(|(name, change)| {
            work.elsewhere(name, move |setup: &Setup| {
                let whole = FILES * size + (256 << 20);
                mapped(&setup.memory.join("volume"), whole, change(OpenOptions::new()))
            })
        });
        let mut direct = work.modes(&MODES, log);
        direct.extend([
            work.peer(Peer::KernelExt4, ext4("kernel ext4", log, "")),
            work.peer(Peer::KernelXfs, xfs()),
            work.peer(Peer::Raw, raw()),
        ]);
        let direct = case("direct", "Direct overwrites of 4 KiB", plan.content + plan.room(), direct);
        let dax = case("dax", "Overwrites of 4 KiB in mapped memory (DAX)", 0, dax.into());
        let mut cases = work.and_simulated(plan, direct, &MODES, log);
        cases.push(dax);
        cases
    }

    fn findings(&self, cases: &[CaseResult]) -> Vec<String> {
        let mut said = Vec::new();
        for case in cases {
            for name in [NEW, OLD] {
                let (mut handles, mut writes) = (0, 0);
                for detail in case.details.iter().filter(|d| d.series == name) {
                    handles += detail.counter("handles");
                    writes += overwrites(detail);
                }
                said.push(format!("{}: {name}: {handles} handles for {writes} overwrites", case.title));
            }
        }
        said
    }
}

const METRICS: [Metric; 3] = [
    Metric { name: "iops", title: "writes a second", unit: "IOPS", better: Better::Higher },
    Metric { name: "handles", title: "handles for each", unit: "handles/write", better: Better::Lower },
    Metric { name: "journal", title: "share of time in the journal", unit: "%", better: Better::Lower },
];

fn overwrites(detail: &Detail) -> u64 {
    detail.counter("overwrites") + detail.counter("overwrites_journalled")
}

/// Handles for each overwrite, and the share of the threads' time that went to starting handles and
/// waiting for commits.
fn handles(threads: u64, detail: &Detail) -> Vec<Option<f64>> {
    let time = detail.seconds * threads as f64;
    let journal = detail.spent("journal_start") + detail.spent("commit_wait");
    vec![
        Some(detail.counter("handles") as f64 / overwrites(detail).max(1) as f64),
        Some(100.0 * journal / time),
    ]
}
