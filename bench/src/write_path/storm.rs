//! The storm of fsyncs ([`lanefs_lab::load::storm`]) beside its limit and the kernel's file
//! systems. Quantiles of fsync are exact.

use super::{Bench, Outcome};
use crate::report::{Goal, Report};
use crate::turns::rotated;
use lanefs::WritebackMode;
use lanefs_journal::Times;
use lanefs_lab::load::{self, bare_storm, more_open_files, sparse_files};
use lanefs_lab::store::{Backing, Contender, ext4, lanefs_default, open_raw, xfs};
use lanefs_stats::{Histogram, Snapshot};
use std::time::Duration;

const SIZE: u64 = 4 << 20;

/// The result of a run: writes a second, and quantiles of fsync in milliseconds.
struct Storm {
    rate: f64,
    half: f64,
    most: f64,
}

impl Storm {
    fn of(mut storm: load::Storm) -> Self {
        let [half, most] = [0.5, 0.99].map(|q| storm.fsyncs.ms(q));
        Self { rate: storm.rate, half, most }
    }
}

/// The figures of a variant, over the rounds.
#[derive(Default)]
struct Samples {
    rate: Vec<f64>,
    half: Vec<f64>,
    most: Vec<f64>,
}

impl Samples {
    fn add(&mut self, storm: &Storm) {
        self.rate.push(storm.rate);
        self.half.push(storm.half);
        self.most.push(storm.most);
    }

    /// Adds the rows; the medians of the rate and of the slowest fsync but one in a hundred.
    fn report(&self, report: &mut Report, name: &str, threads: usize) -> (f64, f64) {
        let rate = report.row("storm of fsyncs, writes", name, threads, &self.rate, "/s");
        report.row("storm of fsyncs, fsync p50", name, threads, &self.half, "ms");
        (rate, report.row("storm of fsyncs, fsync p99", name, threads, &self.most, "ms"))
    }
}

/// The storm.
///
/// # Errors
/// Of any of the stores.
pub fn storm(bench: &mut Bench) -> Outcome<()> {
    more_open_files();
    let counts: &[usize] = if bench.long { &[256, 2048] } else { &[2048] };
    let most = counts.iter().copied().max().unwrap_or(0);
    // Room for the largest of the journals.
    let backing = Backing::new(&bench.dir, most as u64 * SIZE + (2 << 30))?;
    let variants = [
        lanefs_default("mapafter", 128, |o| o),
        lanefs_default("lanefs lock", 128, |o| o.writeback(WritebackMode::DioreadLock)),
        lanefs_default("lanefs nolock", 128, |o| o.writeback(WritebackMode::DioreadNolock)),
        lanefs_default("mapafter, log 16M", 16, |o| o),
        lanefs_default("mapafter, cache 512M", 128, |o| o.cache_bytes(512 << 20)),
        ext4("ext4 lock", 128, "dioread_lock"),
        ext4("ext4 nolock", 128, "dioread_nolock"),
        ext4("ext4 nolock, 1G", 1024, "dioread_nolock"),
        xfs(),
    ];
    // The limit takes its turn behind the variants.
    let limit = variants.len();
    let time = bench.time * 4;
    // A virtual machine gets memory that it has not used lately only at the first touch: a short,
    // unmeasured run of each variant pays for that.
    for number in 0..=limit {
        turn(&backing, variants.get(number), most, time / 4)?;
    }
    for &threads in counts {
        let mut samples: Vec<Samples> = (0..=limit).map(|_| Samples::default()).collect();
        let mut own = Vec::new();
        for number in rotated(bench.rounds, limit + 1) {
            let (storm, journal) = turn(&backing, variants.get(number), threads, time)?;
            samples[number].add(&storm);
            own.extend(journal.filter(|_| number == 0));
        }
        report(&mut bench.report, threads, &variants, &samples, &own);
    }
    Ok(())
}

/// Adds the rows and targets of one number of threads. `own` is what the journal of the first
/// variant timed, of each run.
fn report(report: &mut Report, threads: usize, variants: &[Contender], samples: &[Samples], own: &[Times]) {
    let names = variants.iter().map(|variant| variant.name).chain(["the limit"]);
    let of: Vec<(f64, f64)> =
        names.zip(samples).map(|(name, samples)| samples.report(report, name, threads)).collect();
    let limit = of[variants.len()].0;
    let peers = &of[5..variants.len()];
    let best = peers.iter().map(|(rate, _)| *rate).fold(0.0, f64::max);
    let quickest = peers.iter().map(|(_, most)| *most).fold(f64::MAX, f64::min);
    let what = |what: &str| format!("storm of {threads}: {what}");
    report.target(&what("over the limit"), Goal::AtLeast(0.6), of[0].0 / limit);
    report.target(&what("over the best of the kernel's"), Goal::AtLeast(2.0), of[0].0 / best);
    report.target(&what("fsync p99 over the best of the kernel's"), Goal::AtMost(0.5), of[0].1 / quickest);
    report.target(&what("mapafter over its own dioread_lock"), Goal::AtLeast(1.0), of[0].0 / of[1].0);
    report.target(&what("log of 16 MiB over log of 128 MiB"), Goal::AtLeast(0.8), of[3].0 / of[0].0);
    let starts: Vec<f64> = own.iter().map(|times| p99(&times.start)).collect();
    report.row("storm of fsyncs, handle start p99", "mapafter", threads, &starts, "ms");
    let waits: Vec<f64> = own.iter().map(|times| p99(&times.credit_wait)).collect();
    let wait = report.row("storm of fsyncs, credit wait p99", "mapafter", threads, &waits, "ms");
    report.target(&what("p99 of those that wait for credits, ms"), Goal::AtMost(1.0), wait);
}

/// A variant's turn, and what its journal timed, where it tells; without a variant that of the
/// limit.
fn turn(
    backing: &Backing,
    variant: Option<&Contender>,
    threads: usize,
    time: Duration,
) -> Outcome<(Storm, Option<Times>)> {
    match variant {
        Some(variant) => {
            one(backing, variant, threads, time).map_err(|e| format!("{}: {e}", variant.name).into())
        }
        None => {
            let storm = bare_storm(&open_raw(backing)?, backing.size(), threads, SIZE, time)?;
            Ok((Storm::of(storm), None))
        }
    }
}

fn one(
    backing: &Backing,
    variant: &Contender,
    threads: usize,
    time: Duration,
) -> Outcome<(Storm, Option<Times>)> {
    let store = variant.set_up(backing)?;
    let files = sparse_files(&*store, threads, SIZE, &Histogram::new())?;
    let storm = Storm::of(load::storm(&files, SIZE, time)?);
    let times = store.volume().map(|volume| volume.stats().journal.times);
    drop(files);
    store.finish()?;
    Ok((storm, times))
}

/// Milliseconds, to the width of a bucket.
fn p99(times: &Snapshot) -> f64 {
    times.quantile(0.99) as f64 / 1e6
}
