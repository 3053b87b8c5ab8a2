//! The storm of fsyncs ([`lanefs_lab::load::storm`]) beside its limit and the kernel's file
//! systems.

use super::{Bench, Outcome};
use crate::report::{Goal, Report};
use lanefs::WritebackMode;
use lanefs_journal::Times;
use lanefs_lab::load::{self, bare_storm, more_open_files, sparse_files};
use lanefs_lab::store::{Backing, Contender, ext4, lanefs, open_raw, xfs};
use lanefs_stats::{Histogram, Snapshot};
use std::time::Duration;

const SIZE: u64 = 4 << 20;

/// The result of a run: writes a second, and quantiles of fsync in milliseconds.
struct Storm {
    rate: f64,
    half: f64,
    most: f64,
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
        lanefs("mapafter", 128, |o| o),
        lanefs("lanefs lock", 128, |o| o.writeback(WritebackMode::DioreadLock)),
        lanefs("lanefs nolock", 128, |o| o.writeback(WritebackMode::DioreadNolock)),
        lanefs("mapafter, log 16M", 16, |o| o),
        lanefs("mapafter, cache 512M", 128, |o| o.cache_bytes(512 << 20)),
        ext4("ext4 lock", 128, "dioread_lock"),
        ext4("ext4 nolock", 128, "dioread_nolock"),
        ext4("ext4 nolock, 1G", 1024, "dioread_nolock"),
        xfs(),
    ];
    let time = bench.time * 16;
    let rounds = bench.rounds.div_ceil(3);
    // A virtual machine gets memory that it has not used lately only at the first touch: an
    // unmeasured run pays for that.
    one(&backing, &variants[0], most, time)?;
    for &threads in counts {
        let mut limit = Samples::default();
        let mut samples: Vec<Samples> = variants.iter().map(|_| Samples::default()).collect();
        let (mut waits, mut starts) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            limit.add(&figures(&bare_storm(&open_raw(&backing)?, backing.size(), threads, SIZE, time)?));
            // Each round begins with another one.
            for number in (0..variants.len()).map(|turn| (round + turn) % variants.len()) {
                let variant = &variants[number];
                let (storm, journal) =
                    one(&backing, variant, threads, time).map_err(|e| format!("{}: {e}", variant.name))?;
                samples[number].add(&storm);
                if let (0, Some(times)) = (number, journal) {
                    waits.push(ms(&times.credit_wait, 0.99));
                    starts.push(ms(&times.start, 0.99));
                }
            }
        }
        let report = &mut bench.report;
        let (limit, _) = limit.report(report, "the limit", threads);
        let of: Vec<(f64, f64)> =
            variants.iter().zip(&samples).map(|(v, s)| s.report(report, v.name, threads)).collect();
        let best = of[5..].iter().map(|(rate, _)| *rate).fold(0.0, f64::max);
        let quickest = of[5..].iter().map(|(_, most)| *most).fold(f64::MAX, f64::min);
        let what = |what: &str| format!("storm of {threads}: {what}");
        report.target(&what("over the limit"), Goal::AtLeast(0.6), of[0].0 / limit);
        report.target(&what("over the best of the kernel's"), Goal::AtLeast(2.0), of[0].0 / best);
        report.target(
            &what("fsync p99 over the best of the kernel's"),
            Goal::AtMost(0.5),
            of[0].1 / quickest,
        );
        report.target(&what("mapafter over its own dioread_lock"), Goal::AtLeast(1.0), of[0].0 / of[1].0);
        report.target(&what("log of 16 MiB over log of 128 MiB"), Goal::AtLeast(0.8), of[3].0 / of[0].0);
        report.row("storm of fsyncs, handle start p99", "mapafter", threads, &starts, "ms");
        let wait = report.row("storm of fsyncs, credit wait p99", "mapafter", threads, &waits, "ms");
        report.target(&what("p99 of those that wait for credits, ms"), Goal::AtMost(1.0), wait);
    }
    Ok(())
}

/// One variant's turn, and what its journal timed, where it tells.
fn one(
    backing: &Backing,
    variant: &Contender,
    threads: usize,
    time: Duration,
) -> Outcome<(Storm, Option<Times>)> {
    let store = variant.set_up(backing)?;
    let files = sparse_files(&*store, threads, SIZE, &Histogram::new())?;
    let storm = figures(&load::storm(&files, SIZE, time)?);
    let times = store.volume().map(|volume| volume.stats().journal.times);
    drop(files);
    store.finish()?;
    Ok((storm, times))
}

fn figures(storm: &load::Storm) -> Storm {
    Storm { rate: storm.rate, half: ms(&storm.fsync, 0.5), most: ms(&storm.fsync, 0.99) }
}

/// A quantile in milliseconds.
fn ms(times: &Snapshot, q: f64) -> f64 {
    times.quantile(q) as f64 / 1e6
}
