//! The room for backing files, which bounds how large a job can be.

use crate::jobs::{Dimensions, Job};
use lanefs_lab::Outcome;
use std::fs;
use std::path::Path;

/// Free bytes that a volume leaves: of the disk, and of memory to fio, lanefs and the page cache.
const SPARE_DISK: u64 = 1 << 30;
const SPARE_MEMORY: u64 = 2 << 30;

/// Returns `wanted`, or less where `folder` has no room for its volume.
///
/// # Errors
/// Room for less than half of the volume: the message says how much is missing. The system's.
pub(crate) fn fit(job: &Job, wanted: Dimensions, folder: &Path) -> Outcome<Dimensions> {
    let (free, spare) = if job.mapped {
        (free_space(folder)?.min(available_memory()?), SPARE_MEMORY)
    } else {
        (free_space(folder)?, SPARE_DISK)
    };
    let least = wanted.volume / 2 + spare;
    if free < least {
        return Err(format!(
            "{}: {} GiB are missing: {} has {} GiB free, the job needs {} at least, {} for its full size",
            job.name,
            gibibytes(least - free),
            folder.display(),
            gibibytes(free),
            gibibytes(least),
            gibibytes(wanted.volume + spare)
        )
        .into());
    }
    Ok(if free - spare < wanted.volume { wanted.in_volume(free - spare) } else { wanted })
}

/// Returns bytes as GiB.
pub(crate) fn gibibytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / (1_u64 << 30) as f64)
}

fn free_space(folder: &Path) -> Outcome<u64> {
    let stat = rustix::fs::statvfs(folder)?;
    Ok(stat.f_bavail * stat.f_frsize)
}

/// Returns the bytes of memory that programs can have without swapping.
fn available_memory() -> Outcome<u64> {
    let said = fs::read_to_string("/proc/meminfo")?;
    let line = said.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|value| value.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(kib.ok_or("/proc/meminfo does not say MemAvailable")? << 10)
}
