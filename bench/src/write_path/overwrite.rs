//! Direct overwrites of 4 KiB at random places of 32 files, and overwrites that are each made durable.

use super::{Bench, Outcome, THREADS};
use crate::report::Goal;
use lanefs::Overwrite;
use lanefs_device::AlignedBuf;
use lanefs_lab::Random;
use lanefs_lab::load::{random_overwrites, run};
use lanefs_lab::store::{Backing, ext4, filled, lanefs, raw, xfs};

const FILES: usize = 32;
const PAGE: u64 = 4096;

/// Random direct overwrites by threads.
///
/// # Errors
/// Of any of the stores.
pub fn overwrite(bench: &mut Bench) -> Outcome<()> {
    let size: u64 = if bench.long { 64 << 20 } else { 24 << 20 };
    let backing = Backing::new(&bench.dir, FILES as u64 * size + (512 << 20))?;
    let variants = [
        raw(),
        lanefs("nojournal", 128, |o| o),
        lanefs("journal", 128, |o| o.overwrite(Overwrite::Journal)),
        ext4("ext4", 128, ""),
        xfs(),
    ];
    let mut samples = vec![vec![Vec::new(); THREADS.len()]; variants.len()];
    let mut handles = vec![Vec::new(); variants.len()];
    bench.rounds(&backing, &variants, |number, store| {
        let files = filled(store, FILES, size, true)?;
        let counts = || {
            let stats = store.volume()?.stats();
            Some((stats.journal.handles, stats.times.write_direct.count))
        };
        let before = counts();
        for (threads, samples) in THREADS.iter().zip(&mut samples[number]) {
            samples.push(random_overwrites(&files, size, *threads, bench.time)?);
        }
        if let (Some(before), Some(after)) = (before, counts()) {
            handles[number].push((after.0 - before.0) as f64 / (after.1 - before.1).max(1) as f64);
        }
        Ok(())
    })?;
    for number in [1, 2] {
        let case = "direct overwrites, handles for each";
        let each = bench.report.row(case, variants[number].name, 16, &handles[number], "");
        if number == 1 {
            // A few are those that write times to the disk, now and then.
            bench.report.target(case, Goal::AtMost(0.001), each);
        }
    }
    let mut medians = vec![Vec::new(); variants.len()];
    for (at, threads) in THREADS.iter().enumerate() {
        for (number, variant) in variants.iter().enumerate() {
            let samples = &samples[number][at];
            medians[number].push(bench.report.row(
                "direct overwrites, 4 KiB",
                variant.name,
                *threads,
                samples,
                "/s",
            ));
        }
    }
    for (peer, name, goal) in [(0, "raw", 0.95), (3, "ext4", 1.0), (4, "XFS", 1.0)] {
        for (at, threads) in THREADS.iter().enumerate() {
            let what = format!("direct overwrites, {threads} threads: over {name}");
            bench.report.target(&what, Goal::AtLeast(goal), medians[1][at] / medians[peer][at]);
        }
    }
    Ok(())
}

/// One thread that makes each overwrite durable by fdatasync.
///
/// # Errors
/// Of any of the stores.
pub fn fdatasync(bench: &mut Bench) -> Outcome<()> {
    let size: u64 = 64 << 20;
    let backing = Backing::new(&bench.dir, 1 << 30)?;
    let variants = [raw(), lanefs("lanefs", 128, |o| o), ext4("ext4", 128, ""), xfs()];
    let ways = [("direct", true), ("buffered", false)];
    let mut samples = vec![vec![Vec::new(); ways.len()]; variants.len()];
    bench.rounds(&backing, &variants, |number, store| {
        drop(filled(store, 1, size, true)?);
        for ((_, direct), samples) in ways.iter().zip(&mut samples[number]) {
            let file = store.file(0, size, *direct)?;
            samples.push(run(1, bench.time, |worker| {
                let page = AlignedBuf::zeroed(PAGE as usize);
                let mut random = Random::new(7);
                while worker.go_on() {
                    file.write(random.draw() % (size / PAGE) * PAGE, &page)?;
                    file.sync_data()?;
                    worker.did(1);
                }
                Ok(())
            })?);
        }
        Ok(())
    })?;
    for (at, (way, _)) in ways.iter().enumerate() {
        let case = format!("4 KiB and fdatasync, {way}");
        let medians: Vec<f64> = (variants.iter().zip(&samples))
            .map(|(variant, samples)| bench.report.row(&case, variant.name, 1, &samples[at], "/s"))
            .collect();
        bench.report.target(&format!("{case}: over raw"), Goal::AtLeast(0.95), medians[1] / medians[0]);
    }
    Ok(())
}
