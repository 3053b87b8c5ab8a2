//! Direct readers beside buffered writers of one file.

use super::{PAGE, run};
use crate::store::Handle;
use crate::{Outcome, Random};
use lanefs_device::AlignedBuf;
use lanefs_stats::{Histogram, Snapshot};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The result of both kinds of threads.
#[derive(Debug, Clone)]
pub struct Beside {
    /// Reads a second.
    pub reads: f64,
    /// Writes a second.
    pub writes: f64,
    /// Nanoseconds of each read.
    pub read: Snapshot,
}

/// Runs `each` threads that read 4 KiB at random places of the first half of a file through
/// `direct`, and as many that write 4 KiB at random places of its other half through `cached`,
/// which may be a hole. The file has `size` bytes.
///
/// # Errors
/// The errors of reading and writing.
pub fn beside(
    direct: &dyn Handle,
    cached: &dyn Handle,
    size: u64,
    each: usize,
    time: Duration,
) -> Outcome<Beside> {
    let half = size / 2 / PAGE;
    let read = Histogram::new();
    let written = AtomicU64::new(0);
    let both = run(2 * each, time, |worker| {
        let mut page = AlignedBuf::zeroed(PAGE as usize);
        let mut random = Random::new(worker.thread as u64);
        let writer = worker.thread >= each;
        while worker.go_on() {
            let at = random.draw() % half * PAGE;
            if writer {
                cached.write(half * PAGE + at, &page)?;
                written.fetch_add(1, Ordering::Relaxed);
            } else {
                read.time(|| direct.read(at, &mut page))?;
            }
            worker.did(1);
        }
        Ok(())
    })?;
    let read = read.snapshot();
    let writes = written.into_inner() as f64;
    let share = writes / (writes + read.count as f64).max(1.0);
    Ok(Beside { reads: both * (1.0 - share), writes: both * share, read })
}
