//! Source 001: a change counter that moves only if it was read since its last change.

use super::rig::{LanefsMode, Ran, Work};
use crate::experiment::{Case, Experiment, Metric};
use crate::load::{observed, small_writes};
use crate::peer::Peer;
use crate::plan::Plan;
use crate::published;
use crate::results::{Better, CaseResult};
use crate::store::{ext4, filled, xfs};
use ::lanefs::IVersion;

const NEW: &str = "i_version=queried";
const OLD: &str = "i_version=always";
const MODES: [LanefsMode; 2] = [(NEW, |o| o), (OLD, |o| o.i_version(IVersion::Always))];
const MANY: usize = 8;
const UNOBSERVED: &str = "none";

/// Small writes, and observers that look at i_version meanwhile.
#[derive(Debug)]
pub(super) struct IVersions;

impl Experiment for IVersions {
    fn name(&self) -> &'static str {
        "iversion"
    }

    fn question(&self) -> &'static str {
        "What does it cost to change i_version with every write, and does every observer see each change if it changes only after a read?"
    }

    fn cases(&self, plan: &Plan) -> Vec<Case> {
        [(UNOBSERVED, "no observer", 0), ("one", "one observer", 1), ("many", "eight observers", MANY)]
            .into_iter()
            .flat_map(|(name, who, observers)| cases(plan, name, who, observers))
            .collect()
    }

    fn findings(&self, cases: &[CaseResult]) -> Vec<String> {
        let mut said = Vec::new();
        for case in cases.iter().filter(|c| !c.name.starts_with(UNOBSERVED)) {
            for name in [NEW, OLD] {
                let sum =
                    |what| case.details.iter().filter(|d| d.series == name).map(|d| d.counter(what)).sum();
                let (looks, due, missed): (u64, u64, u64) =
                    (sum("looks"), sum("changes_due"), sum("changes_missed"));
                said.push(format!(
                    "{}: {name}: {looks} looks, {due} with a whole write since the one before, {missed} of those missed it",
                    case.title
                ));
            }
        }
        said
    }
}

fn cases(plan: &Plan, name: &str, who: &str, observers: usize) -> Vec<Case> {
    let (size, log) = (plan.content, plan.log(128));
    let work = Work::new(
        move |store, _| filled(store, 1, size, false),
        move |_, files, bytes, time| {
            let kb = |rate: f64| rate * bytes as f64 / 1000.0;
            if observers == 0 {
                return Ok(Ran::rate(kb(small_writes(&*files[0], size, bytes as usize, time)?)));
            }
            let seen = observed(&*files[0], size, bytes as usize, observers, time)?;
            let counted =
                vec![("looks", seen.looks), ("changes_due", seen.due), ("changes_missed", seen.missed)];
            Ok(Ran { values: vec![Some(kb(seen.rate))], counted, ..Ran::default() })
        },
    );
    let mut contenders = work.modes(&MODES, log);
    let mut published = Vec::new();
    if observers == 0 {
        contenders.push(work.peer(Peer::KernelExt4, ext4("kernel ext4", log, "")));
        contenders.push(work.peer(Peer::KernelXfs, xfs()));
        published = published::i_version().into_iter().map(|series| (0, series)).collect();
    }
    let case = Case {
        name: name.to_owned(),
        title: format!("Buffered random writes by one thread, {who}"),
        axis: "bytes a write",
        points: vec![1, 16, 128, 1024, 4096],
        metrics: vec![Metric { name: "rate", title: "KB a second", unit: "KB/s", better: Better::Higher }],
        backing: size + plan.room(),
        fresh: false,
        patience: 1,
        contenders,
        gain: "where i_version changes only after a read",
        versus: vec![(NEW, OLD)],
        published,
    };
    work.and_simulated(plan, case, &MODES, log)
}
