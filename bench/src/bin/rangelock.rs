//! Compares the range lock with older designs: the loops of the source, the loop of a file system,
//! memory, the cost by number of held ranges, and the scaling to more cores that the writes to
//! shared cache lines predict.
//!
//! `make bench-rangelock`; `ARGS=--quick` for a tenth of it, `ARGS="--runs 9"` for more of it. All
//! variants run in turn, in one process, each thread kept on a core; a figure is the median of the
//! runs.

use clap::Parser;
use lanefs_bench::cases::{self, Effort};
use lanefs_bench::linked_list::LinkedList;
use lanefs_bench::report::{Goal, Report};
use lanefs_bench::turns::rotated;
use lanefs_lab::Outcome;
use lanefs_lab::rangelock::work::{LEN, Regions, among, hand_over, hundred, one};
use lanefs_lab::rangelock::{IntervalTree, LanefsLock, MutexBTree, RwLock, Variant};
use lanefs_rangelock::{Range, RangeLock};
use std::alloc::{GlobalAlloc, Layout, System};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const THREADS: [usize; 5] = [1, 2, 4, 8, 16];

/// Takes `count` ranges and releases them; then the same elsewhere, twice. Returns the heap after
/// that, over the heap after the first time.
fn reuse(count: u64, heap: impl Fn() -> usize) -> f64 {
    let lock = RangeLock::new();
    let before = heap();
    let range = |start: u64| match Range::with_len(start, LEN) {
        Ok(range) => range,
        Err(error) => unreachable!("{error}"),
    };
    let fill = |from: u64| {
        let guards: Vec<_> = (0..count).map(|i| lock.write(range(from + i * LEN))).collect();
        drop(guards);
        (heap() - before) as f64
    };
    let first = fill(0);
    fill(1 << 40);
    fill(1 << 50) / first
}

/// An allocator that counts bytes, to check the lock's own report of its memory.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything to `System`, and counts.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn heap() -> usize {
    IN_USE.load(Ordering::Relaxed)
}

struct Bench {
    report: Report,
    runs: usize,
    time: Duration,
}

/// One figure of one run: variant, threads, time.
type Run = fn(usize, Duration) -> f64;

/// The range lock against the old ways
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    effort: Effort,
}

fn main() -> ExitCode {
    cases::end("rangelock", start(Args::parse()))
}

fn start(Args { effort }: Args) -> Outcome<()> {
    let mut bench = Bench {
        report: Report::new("rangelock"),
        runs: effort.runs(5),
        time: Duration::from_millis(if effort.quick { 60 } else { 300 }),
    };
    bench.hundred();
    bench.one();
    bench.held(if effort.quick { 1_000_000 } else { 10_000_000 });
    bench.more_cores();
    println!("\n{}", bench.report.finish()?.display());
    Ok(())
}

/// A function for a loop and a variant, which a table of variants can hold.
macro_rules! run {
    ($name:ident, $variant:ty, $($arg:expr),+) => {
        (<$variant as Variant>::NAME, (|threads, time| $name::<$variant>($($arg),+, threads, time)) as Run)
    };
}

impl Bench {
    /// Runs each variant at each count of threads, in turn. Gives the medians, by variant and then
    /// by count.
    fn table(&mut self, case: &str, variants: &[(&'static str, Run)]) -> Vec<Vec<f64>> {
        let mut medians = vec![Vec::new(); variants.len()];
        for threads in THREADS {
            let mut samples = vec![Vec::new(); variants.len()];
            for number in rotated(self.runs, variants.len()) {
                let (_, run) = variants[number];
                samples[number].push(run(threads, self.time));
            }
            for (((name, _), samples), medians) in variants.iter().zip(&samples).zip(&mut medians) {
                medians.push(self.report.row(case, name, threads, samples, "lock+unlock/s"));
            }
        }
        medians
    }

    fn hundred(&mut self) {
        let apart = self.table(
            "hundred, a region each",
            &[
                run!(hundred, LanefsLock, Regions::Apart),
                run!(hundred, MutexBTree, Regions::Apart),
                run!(hundred, IntervalTree, Regions::Apart),
                run!(hundred, LinkedList, Regions::Apart),
            ],
        );
        let interleaved = self.table(
            "hundred, interleaved",
            &[
                run!(hundred, LanefsLock, Regions::Interleaved),
                run!(hundred, MutexBTree, Regions::Interleaved),
                run!(hundred, IntervalTree, Regions::Interleaved),
                run!(hundred, LinkedList, Regions::Interleaved),
            ],
        );
        let (ours, mutex) = (&apart[0], &apart[1]);
        let peak = ours.iter().copied().fold(0.0, f64::max);
        let worst = interleaved[0].iter().zip(ours).map(|(w, b)| w / b).fold(f64::MAX, f64::min);
        let r = &mut self.report;
        r.target("1 thread: over the mutexed B-tree", Goal::AtLeast(1.0), ours[0] / mutex[0]);
        r.target("2 threads, a region each: over its own 1 thread", Goal::AtLeast(1.7), ours[1] / ours[0]);
        r.target("2 threads, a region each: over the mutexed B-tree", Goal::AtLeast(2.0), ours[1] / mutex[1]);
        r.target("16 threads, a region each: over its own peak", Goal::AtLeast(0.9), ours[4] / peak);
        r.target("interleaved over a region each, least of all counts", Goal::AtLeast(0.8), worst);
    }

    fn one(&mut self) {
        let variants = |reads: u64| -> [(&'static str, Run); 5] {
            // The loop is told by a constant, so that each is a plain function.
            if reads == 100 {
                [
                    run!(one, LanefsLock, 100),
                    run!(one, RwLock, 100),
                    run!(one, MutexBTree, 100),
                    run!(one, IntervalTree, 100),
                    run!(one, LinkedList, 100),
                ]
            } else {
                [
                    run!(one, LanefsLock, 70),
                    run!(one, RwLock, 70),
                    run!(one, MutexBTree, 70),
                    run!(one, IntervalTree, 70),
                    run!(one, LinkedList, 70),
                ]
            }
        };
        let reads = self.table("one at a time, reads", &variants(100));
        let mixed = self.table("one at a time, 70/30", &variants(70));
        let r = &mut self.report;
        r.target("2 threads, one range, reads: over RwLock", Goal::AtLeast(1.0), reads[0][1] / reads[1][1]);
        r.target(
            "2 threads, one range, 70/30: over the interval tree",
            Goal::AtLeast(3.0),
            mixed[0][1] / mixed[3][1],
        );
        r.target(
            "2 threads, one range, reads: over the interval tree",
            Goal::AtLeast(3.0),
            reads[0][1] / reads[3][1],
        );
    }

    fn held(&mut self, most: u64) {
        let mut costs = Vec::new();
        for held in (1..).map(|e| 10_u64.pow(e)).take_while(|&n| n <= most) {
            let (ns, bytes) = among(held, self.time, heap);
            costs.push(self.report.row(
                &format!("one more among {held} held"),
                LanefsLock::NAME,
                1,
                &[ns],
                "ns",
            ));
            self.report.row(&format!("memory of {held} held"), LanefsLock::NAME, 1, &[bytes], "bytes/range");
            if held == 1_000_000 {
                self.report.target("bytes a held range, at 1 million", Goal::AtMost(64.0), bytes);
            }
        }
        let growth = costs.last().zip(costs.first()).map_or(0.0, |(last, first)| last / first);
        // A cost of c*log10(n) would be that many times the cost at ten.
        let logarithm = costs.len() as f64;
        self.report.target("cost at the most held over cost at 10", Goal::AtMost(logarithm), growth);
        self.report.target(
            "heap after 1 million more elsewhere over heap before",
            Goal::AtMost(1.1),
            reuse(1_000_000, heap),
        );
        let idle = size_of::<RangeLock>() as f64;
        self.report.target("bytes of an idle lock", Goal::AtMost(256.0), idle);
    }

    /// The line that all threads write sets the pace: it can change hands so often a second,
    /// whatever the number of cores. Per lock and unlock, the hottest line changes hands this often
    /// when every core wants it.
    fn more_cores(&mut self) {
        let samples: Vec<f64> = (0..self.runs).map(|_| hand_over(self.time)).collect();
        let ns = self.report.row("a line changes hands", "two cores", 2, &samples, "ns");
        for (variant, case, moves) in [
            (LanefsLock::NAME, "a region each", 0.0),
            (LanefsLock::NAME, "reads, published", 0.0),
            // A leaf of ten is visited for its share of them, twice; header and slots are five
            // lines.
            (LanefsLock::NAME, "interleaved, one leaf", 2.0),
            (MutexBTree::NAME, "any", 2.0),
            (RwLock::NAME, "reads", 2.0),
            (IntervalTree::NAME, "any", 2.0),
            (LinkedList::NAME, "a region each", 0.0),
        ] {
            let cap = if moves == 0.0 { f64::INFINITY } else { 1e9 / (moves * ns) };
            if cap.is_finite() {
                self.report.row(
                    &format!("cap by the hottest line, {case}"),
                    variant,
                    64,
                    &[cap],
                    "lock+unlock/s",
                );
            }
        }
    }
}
