//! Direct overwrites of 4 KiB at random places of 32 files, and overwrites that are each made
//! durable.

use super::ground::ground;
use super::{Bench, Beside, Outcome, THREADS};
use crate::report::Goal;
use lanefs::{Overwrite, Volume};
use lanefs_device::AlignedBuf;
use lanefs_lab::Random;
use lanefs_lab::load::{random_overwrites, run};
use lanefs_lab::store::{
    Backing, Handle, LoopDevice, LoopOptions, ext4, filled, lanefs_default, open_direct, open_raw, xfs,
};
use std::time::Duration;

const FILES: usize = 32;
const PAGE: u64 = 4096;
/// The numbers of threads at which the loop device is measured that the kernel's file systems have.
const OVER_LOOP: [usize; 2] = [1, 16];

/// Random direct overwrites by threads.
///
/// # Errors
/// Of any of the stores.
pub fn overwrite(bench: &mut Bench) -> Outcome<()> {
    let size: u64 = if bench.long { 64 << 20 } else { 24 << 20 };
    let backing = Backing::new(&bench.dir, FILES as u64 * size + (512 << 20))?;
    let variants = [
        lanefs_default("nojournal", 128, |o| o),
        lanefs_default("journal", 128, |o| o.overwrite(Overwrite::Journal)),
        ext4("ext4", 128, ""),
        xfs(),
    ];
    let mut beside = vec![Beside::default(); THREADS.len()];
    let mut over_loop = vec![Beside::default(); OVER_LOOP.len()];
    let mut samples = vec![vec![Vec::new(); THREADS.len()]; variants.len()];
    let mut handles = vec![Vec::new(); variants.len()];
    bench.rounds(&backing, &variants, |number, store| {
        let files = filled(store, FILES, size, true)?;
        let counts = || {
            let stats = store.volume()?.stats();
            Some((stats.journal.handles, stats.times.write_direct.count))
        };
        let before = counts();
        let limit = match (number, store.volume()) {
            (0, Some(volume)) => {
                let limit = ground(open_raw(&backing)?, volume, FILES, size)?;
                loop_beside_raw(bench.time, &backing, volume, &limit, size, &mut over_loop)?;
                limit
            }
            _ => Vec::new(),
        };
        for (at, threads) in THREADS.into_iter().enumerate() {
            let run = |time| random_overwrites(&files, size, threads, time);
            if !limit.is_empty() {
                beside[at].run(bench.time, run, |time| random_overwrites(&limit, size, threads, time))?;
            } else {
                samples[number][at].push(run(bench.time)?);
            }
        }
        if let (Some(before), Some(after)) = (before, counts()) {
            handles[number].push((after.0 - before.0) as f64 / (after.1 - before.1).max(1) as f64);
        }
        Ok(())
    })?;
    for number in [0, 1] {
        let case = "direct overwrites, handles for each";
        let each = bench.report.row(case, variants[number].name, 16, &handles[number], "");
        if number == 0 {
            // A few are those that write times to the disk, now and then.
            bench.report.target(case, Goal::AtMost(0.001), each);
        }
    }
    for (over_loop, threads) in over_loop.iter().zip(OVER_LOOP) {
        let case = "cost of a loop device: overwrites, 4 KiB";
        over_loop.rows(&mut bench.report, case, ("raw over loop", "raw"), threads, "/s");
    }
    for (at, threads) in THREADS.into_iter().enumerate() {
        let case = "direct overwrites, 4 KiB";
        let ours = beside[at].report(&mut bench.report, case, (variants[0].name, "raw"), threads, "/s", 0.95);
        for (variant, samples) in variants.iter().zip(&samples).skip(1) {
            let theirs = bench.report.row(case, variant.name, threads, &samples[at], "/s");
            if variant.name != "journal" {
                let what = format!("{case}, {threads} threads: over {}", variant.name);
                bench.report.target(&what, Goal::AtLeast(1.0), ours / theirs);
            }
        }
    }
    Ok(())
}

/// Overwrites the blocks of the volume's files by way of a loop device, in turn with `limit`, which
/// are the same blocks of the backing file.
fn loop_beside_raw(
    time: Duration,
    backing: &Backing,
    volume: &Volume,
    limit: &[Box<dyn Handle>],
    size: u64,
    over_loop: &mut [Beside],
) -> Outcome<()> {
    let device = LoopDevice::new(backing.path(), LoopOptions::DIRECT)?;
    let looped = ground(open_direct(device.path())?, volume, FILES, size)?;
    for (over_loop, threads) in over_loop.iter_mut().zip(OVER_LOOP) {
        let rate = |time| random_overwrites(&looped, size, threads, time);
        over_loop.run(time, rate, |time| random_overwrites(limit, size, threads, time))?;
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
    let variants = [lanefs_default("lanefs", 128, |o| o), ext4("ext4", 128, ""), xfs()];
    let ways = [("direct", true), ("buffered", false)];
    let mut beside = vec![Beside::default(); ways.len()];
    let mut samples = vec![vec![Vec::new(); ways.len()]; variants.len()];
    bench.rounds(&backing, &variants, |number, store| {
        drop(filled(store, 1, size, true)?);
        let limit = match (number, store.volume()) {
            (0, Some(volume)) => ground(open_raw(&backing)?, volume, 1, size)?,
            _ => Vec::new(),
        };
        for (at, (_, direct)) in ways.into_iter().enumerate() {
            let file = store.file(0, size, direct)?;
            let run = |time| durable_overwrites(&*file, size, time);
            if !limit.is_empty() {
                beside[at].run(bench.time, run, |time| durable_overwrites(&*limit[0], size, time))?;
            } else {
                samples[number][at].push(run(bench.time)?);
            }
        }
        Ok(())
    })?;
    for (at, (way, _)) in ways.iter().enumerate() {
        let case = format!("4 KiB and fdatasync, {way}");
        beside[at].report(&mut bench.report, &case, (variants[0].name, "raw"), 1, "/s", 0.95);
        for (variant, samples) in variants.iter().zip(&samples).skip(1) {
            bench.report.row(&case, variant.name, 1, &samples[at], "/s");
        }
    }
    Ok(())
}

fn durable_overwrites(file: &dyn Handle, size: u64, time: Duration) -> Outcome<f64> {
    run(1, time, |worker| {
        let page = AlignedBuf::zeroed(PAGE as usize);
        let mut random = Random::new(7);
        while worker.go_on() {
            file.write(random.draw() % (size / PAGE) * PAGE, &page)?;
            file.sync_data()?;
            worker.did(1);
        }
        Ok(())
    })
}
