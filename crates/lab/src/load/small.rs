//! Writes of few bytes through the page cache.

use super::run;
use crate::store::Handle;
use crate::{Outcome, Random};
use std::time::Duration;

/// Writes `bytes` at random places of a file of `size` bytes by one thread. Returns writes a
/// second.
///
/// # Errors
/// The errors of writing.
pub fn small_writes(file: &dyn Handle, size: u64, bytes: usize, time: Duration) -> Outcome<f64> {
    run(1, time, |worker| {
        let data = vec![1; bytes];
        let mut random = Random::new(1);
        while worker.go_on() {
            for _ in 0..16 {
                file.write(random.draw() % (size - bytes as u64), &data)?;
            }
            worker.did(16);
        }
        Ok(())
    })
}
