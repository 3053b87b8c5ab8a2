//! Small writes while observers read i_version: an observer that reads it twice must see it changed
//! if a write came between.

use super::run;
use crate::store::Handle;
use crate::{Outcome, Random};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time between two looks of an observer: that of a client that polls for changes.
const EVERY: Duration = Duration::from_micros(200);

/// The work of a writer, and what observers saw.
#[derive(Debug, Clone, Copy)]
pub struct Observed {
    /// Writes a second.
    pub rate: f64,
    /// Looks at i_version, of all observers.
    pub looks: u64,
    /// Looks with a whole write since the last look of the same observer.
    pub due: u64,
    /// Looks among `due` that saw the same i_version as the last one. There must be none.
    pub missed: u64,
}

/// Runs one thread that writes `bytes` at random places of a file of `size` bytes, and `observers`
/// threads that look at its i_version.
///
/// # Errors
/// The errors of writing; a file whose i_version cannot be seen.
pub fn observed(
    file: &dyn Handle,
    size: u64,
    bytes: usize,
    observers: usize,
    time: Duration,
) -> Outcome<Observed> {
    // One writer: write number n begins after `begun` is n, and has ended when `ended` is n.
    let (begun, ended) = (AtomicU64::new(0), AtomicU64::new(0));
    let [looks, due, missed] = [const { AtomicU64::new(0) }; 3];
    let rate = run(1 + observers, time, |worker| {
        if worker.thread == 0 {
            let data = vec![1; bytes];
            let mut random = Random::new(1);
            let mut number = 0;
            while worker.go_on() {
                number += 1;
                begun.store(number, Ordering::SeqCst);
                file.write(random.draw() % (size - bytes as u64), &data)?;
                ended.store(number, Ordering::SeqCst);
                worker.did(1);
            }
            return Ok(());
        }
        let look = || file.look().ok_or_else(|| io::Error::other("its i_version cannot be seen"));
        let mut last = look()?;
        let mut begun_by_then = begun.load(Ordering::SeqCst);
        while worker.go_on() {
            std::thread::sleep(EVERY);
            let ended_by_now = ended.load(Ordering::SeqCst);
            let now = look()?;
            looks.fetch_add(1, Ordering::Relaxed);
            // A write that had not begun at the last look has ended before this one.
            if ended_by_now > begun_by_then {
                due.fetch_add(1, Ordering::Relaxed);
                missed.fetch_add(u64::from(now == last), Ordering::Relaxed);
            }
            last = now;
            begun_by_then = begun.load(Ordering::SeqCst);
        }
        Ok(())
    })?;
    let of = |n: AtomicU64| n.into_inner();
    Ok(Observed { rate, looks: of(looks), due: of(due), missed: of(missed) })
}
