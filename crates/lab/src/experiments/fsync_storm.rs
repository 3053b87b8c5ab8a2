//! Source 004: very many threads that write into holes and fsync each write, with one log for all.

use super::rig::{Files, Ran, Work};
use crate::cause::cause;
use crate::experiment::{Case, Entry, Experiment, Measurement, Metric, Rig, Setup};
use crate::load::{Storm, bare_storm, more_open_files, sparse_files, storm};
use crate::peer::Peer;
use crate::plan::Plan;
use crate::published;
use crate::results::{Better, CaseResult, Detail};
use crate::store::{ext4, lanefs, open_raw, simulated, xfs};
use crate::{Outcome, Simulated};
use ::lanefs::{OpenOptions, WritebackMode};
use lanefs_stats::Histogram;
use std::fs::File;
use std::time::{Duration, Instant};

const NEW: &str = "mapafter";
const LOCK: &str = "dioread_lock";
const NOLOCK: &str = "dioread_nolock";
const GAIN: &str = "with mapafter than with dioread_nolock";

/// The storm.
#[derive(Debug)]
pub(super) struct FsyncStorm;

impl Experiment for FsyncStorm {
    fn name(&self) -> &'static str {
        "fsync-storm"
    }

    fn question(&self) -> &'static str {
        "Why do thousands of fsyncing threads stall on a journal, and what keeps them from it?"
    }

    fn cases(&self, plan: &Plan) -> Vec<Case> {
        let simulated = plan.simulated.iter().map(|device| on_simulated(plan, *device));
        std::iter::once(modes(plan)).chain(simulated).collect()
    }

    fn findings(&self, cases: &[CaseResult]) -> Vec<String> {
        let mut said = Vec::new();
        for case in cases {
            let most = case.details.iter().map(|d| d.at).max().unwrap_or(0);
            for detail in case.details.iter().filter(|d| d.at == most && d.counters.contains_key("commits")) {
                said.push(format!(
                    "{}: {}, {most} threads: {}",
                    case.title,
                    detail.series,
                    cause(detail, most)
                ));
            }
        }
        said
    }
}

const METRICS: [Metric; 4] = [
    Metric { name: "iops", title: "writes a second", unit: "IOPS", better: Better::Higher },
    Metric { name: "p50", title: "half of fsyncs take no longer", unit: "ms", better: Better::Lower },
    Metric { name: "p99", title: "99 of 100 fsyncs take no longer", unit: "ms", better: Better::Lower },
    Metric { name: "credits", title: "time in waiting for credits", unit: "%", better: Better::Lower },
];

/// Returns the size of each thread's file in bytes.
fn size(plan: &Plan) -> u64 {
    if plan.small_logs { 1 << 20 } else { 4 << 20 }
}

fn work(size: u64) -> Work {
    Work::new(
        |_, _| Ok(Files::new()),
        move |store, _, threads, time| {
            more_open_files();
            let open = Histogram::new();
            let files = sparse_files(store, threads as usize, size, &open)?;
            let began = Instant::now();
            let mut ran = figures(&storm(&files, size, time)?);
            ran.seconds = Some(began.elapsed().as_secs_f64());
            ran.timed.push(("open", (&open.snapshot()).into()));
            Ok(ran)
        },
    )
    .derive(|threads, detail| {
        let share = detail.spent("credit_wait") / (detail.seconds * threads as f64);
        vec![Some(100.0 * share)]
    })
}

fn figures(storm: &Storm) -> Ran {
    let ms = |q| Some(storm.fsync.quantile(q) as f64 / 1e6);
    Ran {
        values: vec![Some(storm.rate), ms(0.5), ms(0.99)],
        timed: vec![("write", (&storm.write).into()), ("fsync", (&storm.fsync).into())],
        ..Ran::default()
    }
}

/// Returns the case on the disk that is measured.
fn modes(plan: &Plan) -> Case {
    let size = size(plan);
    let most = plan.storm.iter().copied().max().unwrap_or(0);
    let work = work(size);
    let (log, large, small) = (plan.log(128), plan.log(1024), plan.log(16));
    let versus = [(NEW, NOLOCK), (NEW, LOCK), (LOCK, NOLOCK), ("mapafter, log 16M", NEW)];
    Case {
        name: "modes".to_owned(),
        title: "A storm of fsyncs".to_owned(),
        axis: "threads",
        points: plan.storm.clone(),
        metrics: METRICS.to_vec(),
        backing: most * size + (u64::from(large) << 20) + 2 * plan.room(),
        // Holes are filled once.
        fresh: true,
        patience: plan.patience,
        contenders: vec![
            work.own(lanefs(NEW, log, |o| o)),
            work.own(lanefs("mapafter, log 16M", small, |o| o)),
            work.own(lanefs(LOCK, log, |o| o.writeback(WritebackMode::DioreadLock))),
            work.own(lanefs(NOLOCK, log, |o| o.writeback(WritebackMode::DioreadNolock))),
            work.own(lanefs("dioread_nolock, log 1G", large, |o| o.writeback(WritebackMode::DioreadNolock))),
            work.own(lanefs("mapafter, nodelalloc", log, |o| o.delalloc(false))),
            work.own(lanefs("dioread_lock, nodelalloc", log, |o| {
                o.writeback(WritebackMode::DioreadLock).delalloc(false)
            })),
            work.own(lanefs("dioread_nolock, nodelalloc", log, |o| {
                o.writeback(WritebackMode::DioreadNolock).delalloc(false)
            })),
            work.peer(Peer::KernelExt4, ext4("ext4 dioread_lock", log, "dioread_lock")),
            work.peer(Peer::KernelExt4, ext4("ext4 dioread_nolock", log, "dioread_nolock")),
            work.peer(Peer::KernelExt4, ext4("ext4 dioread_nolock, log 1G", large, "dioread_nolock")),
            work.peer(
                Peer::KernelExt4,
                ext4("ext4 dioread_nolock, nodelalloc", log, "dioread_nolock,nodelalloc"),
            ),
            work.peer(Peer::KernelXfs, xfs()),
            Entry::peer(Peer::Raw, "raw writes, shared flush", move |setup| {
                let backing = setup.backing()?;
                Ok(Box::new(RawFsyncs { file: open_raw(backing)?, whole: backing.size(), size }))
            }),
        ],
        gain: GAIN,
        versus: versus.to_vec(),
        published: published::fsync_storm().into_iter().map(|series| (0, series)).collect(),
    }
}

/// Returns the case on a simulated device, such as the source's volume.
fn on_simulated(plan: &Plan, device: Simulated) -> Case {
    let size = size(plan).min(1 << 20);
    let most = plan.storm.iter().copied().max().unwrap_or(0);
    let work = work(size);
    let (log, large) = (plan.log(128), plan.log(1024));
    // A log may take at most half of the free space.
    let whole = most * size + 3 * (u64::from(large) << 20);
    let on = |name, log, mode: WritebackMode, delalloc| {
        let options = OpenOptions::new().writeback(mode).delalloc(delalloc);
        let open = move |_: &Setup| simulated(device.pace, whole, log, options.clone());
        work.elsewhere(name, open).simulated(device.title)
    };
    Case {
        name: device.name.to_owned(),
        title: format!("A storm of fsyncs on a simulated {}", device.title),
        axis: "threads",
        points: plan.storm.clone(),
        metrics: METRICS.to_vec(),
        backing: 0,
        fresh: true,
        patience: plan.patience * device.patience,
        contenders: vec![
            on(NEW, log, WritebackMode::MapAfter, true),
            on(LOCK, log, WritebackMode::DioreadLock, true),
            on(NOLOCK, log, WritebackMode::DioreadNolock, true),
            on("dioread_nolock, log 1G", large, WritebackMode::DioreadNolock, true),
            on("dioread_nolock, nodelalloc", log, WritebackMode::DioreadNolock, false),
        ],
        gain: GAIN,
        versus: vec![(NEW, NOLOCK), (NEW, LOCK), (LOCK, NOLOCK)],
        // The source's volume was one of these.
        published: match device == Simulated::CLOUD {
            true => published::fsync_storm().into_iter().map(|series| (0, series)).collect(),
            false => Vec::new(),
        },
    }
}

/// The limit.
struct RawFsyncs {
    file: File,
    whole: u64,
    size: u64,
}

impl Rig for RawFsyncs {
    fn run(&self, threads: u64, time: Duration) -> Outcome<Measurement> {
        let began = Instant::now();
        let ran = figures(&bare_storm(&self.file, self.whole, threads as usize, self.size, time)?);
        let mut detail = Detail { seconds: began.elapsed().as_secs_f64(), ..Detail::default() };
        detail.histograms.extend(ran.timed.into_iter().map(|(name, hist)| (name.to_owned(), hist)));
        Ok(Measurement { values: ran.values, detail })
    }

    fn finish(self: Box<Self>) -> Outcome<()> {
        Ok(())
    }
}
