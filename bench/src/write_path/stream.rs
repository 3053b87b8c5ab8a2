//! One file written from its start to its end, 1 MiB at a time.

use super::{Bench, Outcome};
use crate::report::Goal;
use lanefs_device::AlignedBuf;
use lanefs_lab::store::{Backing, ext4, lanefs, raw, xfs};
use std::time::Instant;

/// A new file, buffered and direct, until it is durable.
///
/// # Errors
/// Of any of the stores.
pub fn sequential(bench: &mut Bench) -> Outcome<()> {
    let size: u64 = if bench.long { 4 << 30 } else { 512 << 20 };
    let backing = Backing::new(&bench.dir, 2 * size + (512 << 20))?;
    let variants = [raw(), lanefs("lanefs", 128, |o| o), ext4("ext4", 128, ""), xfs()];
    let ways = [("direct", true), ("buffered", false)];
    let mut samples = vec![vec![Vec::new(); ways.len()]; variants.len()];
    bench.rounds(&backing, &variants, |number, store| {
        let page = AlignedBuf::zeroed(1 << 20);
        for (way, ((_, direct), samples)) in ways.iter().zip(&mut samples[number]).enumerate() {
            let file = store.file(way, size, *direct)?;
            let began = Instant::now();
            for at in (0..size).step_by(page.len()) {
                file.write(at, &page)?;
            }
            file.sync_data()?;
            samples.push(size as f64 / began.elapsed().as_secs_f64() / f64::from(1 << 20));
        }
        Ok(())
    })?;
    for (at, (way, _)) in ways.iter().enumerate() {
        let case = format!("1 MiB one after the other, {way}");
        let medians: Vec<f64> = (variants.iter().zip(&samples))
            .map(|(variant, samples)| bench.report.row(&case, variant.name, 1, &samples[at], "MiB/s"))
            .collect();
        bench.report.target(&format!("{case}: over raw"), Goal::AtLeast(0.95), medians[1] / medians[0]);
    }
    Ok(())
}
