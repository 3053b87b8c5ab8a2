//! One file written from its start to its end, 1 MiB at a time.

use super::ground::ground;
use super::{Bench, Beside, Outcome};
use crate::report::Goal;
use lanefs_device::AlignedBuf;
use lanefs_lab::store::{Backing, Handle, ext4, lanefs_default, open_raw, xfs};
use std::time::Instant;

/// lanefs on a new volume, right behind another volume of lanefs.
const BEHIND: &str = "lanefs, memory used before";

/// A new file, buffered and direct, until it is durable.
///
/// # Errors
/// Of any of the stores.
pub fn sequential(bench: &mut Bench) -> Outcome<()> {
    let size: u64 = if bench.long { 8 << 30 } else { 512 << 20 };
    let backing = Backing::new(&bench.dir, 2 * size + (512 << 20))?;
    // The second one mostly finds the memory that the first one has just given back: what the host
    // of a virtual machine takes to supply new memory is the difference of the two.
    let ours = |name| lanefs_default(name, 128, |o| o);
    let variants = [ours("lanefs"), ours(BEHIND), ext4("ext4", 128, ""), xfs()];
    let ways = [("direct", true), ("buffered", false)];
    let mut beside = vec![Beside::default(); ways.len()];
    let mut samples = vec![vec![Vec::new(); ways.len()]; variants.len()];
    bench.rounds(&backing, &variants, |number, store| {
        for (way, (_, direct)) in ways.into_iter().enumerate() {
            let rate = write(&*store.file(way, size, direct)?, size)?;
            if let (0, Some(volume)) = (number, store.volume()) {
                let limit = &ground(open_raw(&backing)?, volume, way + 1, size)?[way];
                beside[way].add(rate, write(&**limit, size)?);
            } else {
                samples[number][way].push(rate);
            }
        }
        Ok(())
    })?;
    for (at, (way, _)) in ways.iter().enumerate() {
        let case = format!("1 MiB one after the other, {way}");
        let names = (variants[0].name, "raw");
        let rate = beside[at].report(&mut bench.report, &case, names, 1, "MiB/s", 0.95);
        for (variant, samples) in variants.iter().zip(&samples).skip(1) {
            let peer = bench.report.row(&case, variant.name, 1, &samples[at], "MiB/s");
            if variant.name == "ext4" {
                let what = format!("{case}: over {}", variant.name);
                bench.report.target(&what, Goal::AtLeast(1.0), rate / peer);
            } else if variant.name == BEHIND {
                let what = format!("{case}, {BEHIND}: over raw");
                bench.report.target(&what, Goal::AtLeast(0.95), peer / beside[at].limit());
            }
        }
    }
    Ok(())
}

/// MiB a second, until it is durable.
fn write(file: &dyn Handle, size: u64) -> Outcome<f64> {
    let page = AlignedBuf::zeroed(1 << 20);
    let began = Instant::now();
    for at in (0..size).step_by(page.len()) {
        file.write(at, &page)?;
    }
    file.sync_data()?;
    Ok(size as f64 / began.elapsed().as_secs_f64() / f64::from(1 << 20))
}
