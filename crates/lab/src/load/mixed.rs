//! Reads and writes of one file, as many of each.

use super::{PAGE, run};
use crate::store::Handle;
use crate::{Outcome, Random};
use lanefs_device::AlignedBuf;
use std::time::Duration;

/// Reads and writes 4 KiB at random places of a file of `size` bytes by threads. Returns operations
/// a second.
///
/// # Errors
/// The errors of reading and writing.
pub fn mixed(file: &dyn Handle, size: u64, threads: usize, time: Duration) -> Outcome<f64> {
    run(threads, time, |worker| {
        let mut page = AlignedBuf::zeroed(PAGE as usize);
        page.fill(1);
        let mut random = Random::new(worker.thread as u64);
        while worker.go_on() {
            let draw = random.draw();
            let at = (draw >> 8) % (size / PAGE) * PAGE;
            if draw & 1 == 0 {
                file.read(at, &mut page)?
            } else {
                file.write(at, &page)?
            }
            worker.did(1);
        }
        Ok(())
    })
}
