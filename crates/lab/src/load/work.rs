//! Threads that do the same until they are told to stop.

use crate::{Outcome, stop as ended};
use std::io;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Enough for a call into lanefs, little enough for thousands of threads.
const STACK: usize = 256 << 10;

/// One thread's place in a loop.
#[derive(Debug)]
pub struct Worker<'a> {
    /// Its number, from 0.
    pub thread: usize,
    stop: &'a AtomicBool,
    done: &'a Lane,
}

/// Operations that one thread has done, on a cache line of its own.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Lane(AtomicU64);

impl Worker<'_> {
    /// Returns whether the thread is to go on.
    #[inline]
    pub fn go_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Counts `n` operations.
    #[inline]
    pub fn did(&self, n: u64) {
        self.done.0.store(self.done.0.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }
}

/// Runs `body` in `threads` threads for `time`. Returns operations a second. Only operations that
/// were done when the time was over count; neither a later one counts nor the time that it takes.
///
/// # Errors
/// The first of a thread's own, or no thread.
pub fn run(
    threads: usize,
    time: Duration,
    body: impl Fn(&Worker<'_>) -> io::Result<()> + Sync,
) -> Outcome<f64> {
    let (stop, gate, ready) = (AtomicBool::new(false), RwLock::new(()), AtomicUsize::new(0));
    let lanes: Vec<Lane> = (0..threads).map(|_| Lane::default()).collect();
    let (stop, gate, ready, body) = (&stop, &gate, &ready, &body);
    std::thread::scope(|scope| {
        let closed = gate.write();
        let workers: Vec<_> = lanes
            .iter()
            .enumerate()
            .map(|(thread, done)| {
                Builder::new().stack_size(STACK).spawn_scoped(scope, move || {
                    ready.fetch_add(1, Ordering::Relaxed);
                    drop(gate.read());
                    let result = body(&Worker { thread, stop, done });
                    if result.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    result
                })
            })
            .collect();
        if workers.iter().any(Result::is_err) {
            stop.store(true, Ordering::Relaxed);
        }
        while ready.load(Ordering::Relaxed) < threads && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Before they are let go: they may run for a while before this thread does again.
        let began = Instant::now();
        drop(closed);
        // On a machine that lets none of them run in that time, until one has.
        let nothing = || lanes.iter().all(|lane| lane.0.load(Ordering::Relaxed) == 0);
        let go_on = || !stop.load(Ordering::Relaxed) && ended::asked().is_none();
        while (began.elapsed() < time || nothing()) && go_on() {
            let left = time.saturating_sub(began.elapsed());
            std::thread::sleep(left.clamp(Duration::from_micros(100), Duration::from_millis(100)));
        }
        let done: u64 = lanes.iter().map(|lane| lane.0.load(Ordering::Relaxed)).sum();
        let elapsed = began.elapsed();
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            match worker?.join() {
                Ok(result) => result?,
                Err(_) => return Err("a thread panicked".into()),
            }
        }
        Ok(done as f64 / elapsed.as_secs_f64())
    })
}
