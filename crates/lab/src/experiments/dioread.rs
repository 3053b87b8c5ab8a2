//! The good side of dioread_nolock: direct readers that do not wait for buffered writers of the
//! same file.

use super::rig::{LanefsMode, Ran, Work};
use crate::experiment::{Case, Experiment, Metric};
use crate::load::beside;
use crate::peer::Peer;
use crate::plan::Plan;
use crate::results::{Better, CaseResult};
use crate::store::{ext4, filled, xfs};
use ::lanefs::WritebackMode;

const MODES: [LanefsMode; 3] = [
    ("mapafter", |o| o),
    ("dioread_nolock", |o| o.writeback(WritebackMode::DioreadNolock)),
    ("dioread_lock", |o| o.writeback(WritebackMode::DioreadLock)),
];

/// Readers and writers of one file.
#[derive(Debug)]
pub(super) struct DioRead;

impl Experiment for DioRead {
    fn name(&self) -> &'static str {
        "dioread"
    }

    fn question(&self) -> &'static str {
        "Do direct readers wait for buffered writers that fill holes of the same file?"
    }

    fn cases(&self, plan: &Plan) -> Vec<Case> {
        let (size, log) = (plan.content, plan.log(128));
        let work = Work::new(
            move |store, _| {
                // The first half is written, the other a hole.
                let mut files = filled(store, 1, size / 2, true)?;
                files[0].set_len(size)?;
                files[0].sync()?;
                files.push(store.file(0, size, false)?);
                Ok(files)
            },
            move |_, files, each, time| {
                let ran = beside(&*files[0], &*files[1], size, each as usize, time)?;
                Ok(Ran {
                    values: vec![
                        Some(ran.reads),
                        Some(ran.writes),
                        Some(ran.read.quantile(0.99) as f64 / 1e6),
                    ],
                    timed: vec![("read_direct", (&ran.read).into())],
                    ..Ran::default()
                })
            },
        );
        let mut contenders = work.modes(&MODES, log);
        contenders.extend([
            work.peer(Peer::KernelExt4, ext4("ext4 dioread_nolock", log, "dioread_nolock")),
            work.peer(Peer::KernelExt4, ext4("ext4 dioread_lock", log, "dioread_lock")),
            work.peer(Peer::KernelXfs, xfs()),
        ]);
        let case = Case {
            name: "beside".to_owned(),
            title: "Direct readers beside as many buffered writers of holes".to_owned(),
            axis: "readers",
            points: plan.threads.iter().copied().filter(|n| *n <= 8).collect(),
            metrics: vec![
                Metric { name: "reads", title: "reads a second", unit: "/s", better: Better::Higher },
                Metric { name: "writes", title: "writes a second", unit: "/s", better: Better::Higher },
                Metric { name: "p99", title: "p99 of reads", unit: "ms", better: Better::Lower },
            ],
            backing: size + plan.room(),
            // Holes are filled once.
            fresh: true,
            patience: 1,
            contenders,
            gain: "with mapafter than with dioread_lock",
            versus: vec![("mapafter", "dioread_lock"), ("dioread_nolock", "dioread_lock")],
            published: Vec::new(),
        };
        work.and_simulated(plan, case, &MODES, log)
    }

    fn findings(&self, _: &[CaseResult]) -> Vec<String> {
        Vec::new()
    }
}
