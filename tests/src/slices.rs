//! How much of a campaign one run does: a slice that the date chooses, and more by `LANEFS_LONG`.

use lanefs_sim::seed_from_env;
use std::num::NonZero;
use std::time::{Duration, SystemTime};

/// Returns the number of the day, or what `LANEFS_SEED` says.
///
/// # Panics
/// If that is no number.
pub fn day() -> u64 {
    match std::env::var_os("LANEFS_SEED") {
        Some(_) => seed_from_env("LANEFS_SEED").value(),
        None => SystemTime::UNIX_EPOCH.elapsed().unwrap_or(Duration::ZERO).as_secs() / 86_400,
    }
}

/// Returns `LANEFS_LONG`, how many times as much a campaign does as in `make test`: 1 unless set.
///
/// # Panics
/// If it is set to something else than a number of at least 1.
pub fn long() -> usize {
    match std::env::var("LANEFS_LONG") {
        Ok(n) => n.parse::<NonZero<usize>>().expect("LANEFS_LONG is a number of at least 1").get(),
        Err(_) => 1,
    }
}

/// Returns one in `every` of the cases of a campaign, or [`long`] times as many: others each day.
pub fn slice<T>(cases: impl Iterator<Item = T>, every: usize) -> impl Iterator<Item = T> {
    let (every, day) = ((every / long()).max(1), day());
    println!("LANEFS_SEED={day}, one case in {every}");
    cases.skip((day % every as u64) as usize).step_by(every)
}
