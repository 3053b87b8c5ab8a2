//! Through the page cache: writes of few bytes, one file by many threads, and a bound on memory.

use super::counted::counted;
use super::{Bench, Outcome, THREADS};
use crate::report::Goal;
use lanefs::{IVersion, Locking};
use lanefs_lab::load::{mixed as mixed_load, small_writes};
use lanefs_lab::store::{Backing, ext4, filled, lanefs_default, xfs};
use std::time::Instant;

/// Random writes of 1 byte to 4 KiB by one thread.
///
/// # Errors
/// Of any of the stores.
pub fn tiny(bench: &mut Bench) -> Outcome<()> {
    const SIZES: [usize; 4] = [1, 64, 512, 4096];
    let size: u64 = 32 << 20;
    let backing = Backing::new(&bench.dir, 1 << 30)?;
    let variants = [
        lanefs_default("queried", 128, |o| o),
        lanefs_default("always", 128, |o| o.i_version(IVersion::Always)),
        ext4("ext4", 128, ""),
        xfs(),
    ];
    let mut samples = vec![vec![Vec::new(); SIZES.len()]; variants.len()];
    bench.rounds(&backing, &variants, |number, store| {
        let files = filled(store, 1, size, false)?;
        for (bytes, samples) in SIZES.iter().zip(&mut samples[number]) {
            samples.push(small_writes(&*files[0], size, *bytes, bench.time)?);
        }
        Ok(())
    })?;
    for (at, bytes) in SIZES.iter().enumerate() {
        let case = format!("buffered writes, {bytes} bytes");
        let medians: Vec<f64> = (variants.iter().zip(&samples))
            .map(|(variant, samples)| bench.report.row(&case, variant.name, 1, &samples[at], "/s"))
            .collect();
        if at == 0 {
            let r = &mut bench.report;
            r.target(&format!("{case}: over ext4"), Goal::AtLeast(5.0), medians[0] / medians[2]);
            r.target(&format!("{case}: over XFS"), Goal::AtLeast(5.0), medians[0] / medians[3]);
            r.target(&format!("{case}: queried over always"), Goal::AtLeast(1.65), medians[0] / medians[1]);
        }
    }
    let store = variants[0].set_up(&backing)?;
    let files = filled(&*store, 1, size, false)?;
    counted(bench, variants[0].name, &*files[0], size)?;
    drop(files);
    store.finish()
}

/// One file: random reads and buffered writes of 4 KiB, as many of each, by threads.
///
/// # Errors
/// Of any of the stores.
pub fn mixed(bench: &mut Bench) -> Outcome<()> {
    let size: u64 = 128 << 20;
    let backing = Backing::new(&bench.dir, 1 << 30)?;
    let variants = [
        lanefs_default("range", 128, |o| o),
        lanefs_default("range-mutex", 128, |o| o.locking(Locking::RangeMutex)),
        lanefs_default("inode", 128, |o| o.locking(Locking::Inode)),
        ext4("ext4", 128, ""),
        xfs(),
    ];
    let mut samples = vec![vec![Vec::new(); THREADS.len()]; variants.len()];
    bench.rounds(&backing, &variants, |number, store| {
        let files = filled(store, 1, size, false)?;
        for (threads, samples) in THREADS.iter().zip(&mut samples[number]) {
            samples.push(mixed_load(&*files[0], size, *threads, bench.time)?);
        }
        Ok(())
    })?;
    let mut medians = vec![Vec::new(); variants.len()];
    for (at, threads) in THREADS.iter().enumerate() {
        for (number, variant) in variants.iter().enumerate() {
            let samples = &samples[number][at];
            medians[number].push(bench.report.row(
                "one file, reads and writes",
                variant.name,
                *threads,
                samples,
                "/s",
            ));
        }
    }
    for (peer, name) in [(2, "inode"), (3, "ext4"), (4, "XFS")] {
        for (at, &threads) in THREADS.iter().enumerate() {
            let what = format!("one file, {threads} threads: range over {name}");
            let goal = if threads > 1 { 1.5 } else { 1.0 };
            bench.report.target(&what, Goal::AtLeast(goal), medians[0][at] / medians[peer][at]);
        }
    }
    Ok(())
}

/// A file of a hundred times the page cache's bound, written and read back: what the process grows
/// by.
///
/// # Errors
/// Of the volume.
pub fn memory(bench: &mut Bench) -> Outcome<()> {
    let bound: usize = if bench.long { 64 << 20 } else { 16 << 20 };
    let size = 100 * bound as u64;
    let backing = Backing::new(&bench.dir, size + (512 << 20))?;
    let variants = [lanefs_default("lanefs", 64, move |o| o.cache_bytes(bound))];
    let mut grown = Vec::new();
    let mut rates = Vec::new();
    bench.rounds(&backing, &variants, |_, store| {
        let file = store.file(0, size, false)?;
        let before = resident("VmRSS:")?;
        // Resets the peak resident size.
        std::fs::write("/proc/self/clear_refs", "5")?;
        let mut page = vec![7; 1 << 20];
        let began = Instant::now();
        for at in (0..size).step_by(page.len()) {
            file.write(at, &page)?;
        }
        file.sync_data()?;
        rates.push(size as f64 / began.elapsed().as_secs_f64() / f64::from(1 << 20));
        for at in (0..size).step_by(page.len()) {
            file.read(at, &mut page)?;
        }
        grown.push((resident("VmHWM:")? - before) / bound as f64);
        Ok(())
    })?;
    bench.report.row("a file of 100 bounds, written", "lanefs", 1, &rates, "MiB/s");
    let grown = bench.report.row("a file of 100 bounds, memory", "lanefs", 1, &grown, "bounds");
    // The metadata cache has a bound of its own, and writes under way are in memory too.
    bench.report.target("memory over the bound of the page cache", Goal::AtMost(1.5), grown);
    Ok(())
}

/// Bytes that `/proc/self/status` tells.
fn resident(field: &str) -> Outcome<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line =
        status.lines().find_map(|l| l.strip_prefix(field)).ok_or("no such line in /proc/self/status")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? * 1024.0)
}
