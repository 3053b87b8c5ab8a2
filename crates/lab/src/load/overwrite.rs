//! Overwrites of 4 KiB at random places of some files.

use super::{PAGE, run};
use crate::store::Handle;
use crate::{Outcome, Random};
use lanefs_device::AlignedBuf;
use std::time::Duration;

/// Writes 4 KiB at random places of random files of `size` bytes. Returns writes a second.
///
/// # Errors
/// The errors of writing.
pub fn random_overwrites(
    files: &[Box<dyn Handle>],
    size: u64,
    threads: usize,
    time: Duration,
) -> Outcome<f64> {
    run(threads, time, |worker| {
        let page = AlignedBuf::zeroed(PAGE as usize);
        let mut random = Random::new(worker.thread as u64);
        while worker.go_on() {
            let draw = random.draw();
            let file = &files[(draw >> 40) as usize % files.len()];
            file.write(draw % (size / PAGE) * PAGE, &page)?;
            worker.did(1);
        }
        Ok(())
    })
}
