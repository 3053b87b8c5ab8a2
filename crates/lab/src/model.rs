//! Predicts from costs what this machine cannot measure: the throughput of many cores and threads.
//!
//! - *Cores that share a cache line.* An operation costs `alone` by itself. Each further core adds
//!   `serial`: a number of hand-overs of that line, each as long as measured between two cores. `n`
//!   cores do `n / (alone + (n - 1) * serial)`. The number is an upper bound, for operations of
//!   [`shared_writes`](crate::shared_writes) the one that a test holds, so this is a floor.
//! - *Threads that share a commit.* A round costs `round` once, for flush and commit block, and
//!   `each` for each write in it. `b` writes take `round + b * each`; the log's credits bound `b`.
//!
//! Each prediction comes with its error, against the measurement on this machine and against the
//! curves of the sources. Points that costs were taken from are not counted.

use crate::plan::Plan;
use crate::rangelock::work::hand_over;
use crate::results::{Better, CaseResult, Chart, Detail, ExperimentResult, Origin, Point, Results, Series};
use crate::shared_writes::{BUFFERED_WRITE, CREATE, DIRECT_OVERWRITE, Operation, WRITE_AND_FSYNC};
use crate::{Outcome, published, stop};
use std::time::{Duration, Instant};

const CORES: [u64; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
const THREADS: [u64; 9] = [1, 4, 16, 64, 256, 1024, 2048, 4096, 10_000];

/// Cores that share a line; in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct SharedLine {
    alone: f64,
    serial: f64,
}

impl SharedLine {
    /// Fits the law to the operations a second of one core and of two.
    fn through(one: f64, two: f64) -> Self {
        let alone = 1.0 / one;
        Self { alone, serial: (2.0 / two - alone).max(0.0) }
    }

    fn at(&self, cores: u64) -> f64 {
        cores as f64 / (self.alone + (cores - 1) as f64 * self.serial)
    }
}

/// Threads that share a commit; in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct SharedCommit {
    round: f64,
    each: f64,
    /// Writes that a round takes at most.
    most: f64,
}

impl SharedCommit {
    fn at(&self, threads: u64) -> f64 {
        let writes = (threads as f64).min(self.most);
        writes / (self.round + writes * self.each)
    }
}

/// Returns the errors of predictions, as shares of the figures: the median and the worst.
fn error(pairs: &[(f64, f64)]) -> Option<(f64, f64)> {
    let mut off: Vec<f64> = pairs.iter().map(|(said, was)| (said / was - 1.0).abs()).collect();
    off.sort_by(f64::total_cmp);
    Some((crate::results::median(&off), *off.last()?))
}

fn told(pairs: &[(f64, f64)], of: &str) -> String {
    match error(pairs) {
        Some((median, worst)) => {
            format!("off by {:.0} % in the median and {:.0} % at worst {of}", 100.0 * median, 100.0 * worst)
        }
        None => format!("not checked {of}: there are no further points"),
    }
}

fn line(name: &str, origin: Origin, source: &str, points: impl Iterator<Item = (u64, f64)>) -> Series {
    Series {
        name: name.to_owned(),
        origin,
        source: (!source.is_empty()).then(|| source.to_owned()),
        points: points.map(|(at, value)| Point::new(at, vec![value])).collect(),
    }
}

/// Predictions from what a run measured; nothing if it has none of the experiments that they need.
/// Operations that no experiment measures are timed here.
pub fn predict(results: &Results, plan: &Plan) -> Option<ExperimentResult> {
    let mut found = Prediction::default();
    let cores = results.machine.cores as u64;
    // One core hands nothing over.
    let transfer = (cores >= 2).then(|| hand_over(plan.time.max(Duration::from_millis(50))) / 1e9);
    if let Some(transfer) = transfer {
        found.sentences.push(format!("a line changes hands in {:.0} ns", transfer * 1e9));
    }
    found.sharers(results, transfer, &LOCKS);
    found.sharers(results, transfer, &OVERWRITES);
    found.storm(results, plan);
    if found.cases.is_empty() {
        return None;
    }
    let mut left_out = Vec::new();
    if let Some(transfer) = transfer
        && let Err(e) = found.operations(plan, cores, transfer)
    {
        left_out.push(format!("operations in memory: {e}"));
    }
    Some(ExperimentResult {
        name: "model".to_owned(),
        question: "What would more cores and more threads do, by what was measured here?".to_owned(),
        answers: Vec::new(),
        cases: found.cases,
        left_out,
        findings: found.sentences,
    })
}

#[derive(Default)]
struct Prediction {
    cases: Vec<CaseResult>,
    sentences: Vec<String>,
}

/// A contender that shares a line: the chart it was measured on, its name, how often the hottest
/// line changes hands for each operation at most, and the published curve that shows the same.
type Sharer = (&'static str, &'static str, f64, fn() -> Vec<Series>, usize);

/// A chart of contenders that share a line.
struct Line {
    name: &'static str,
    title: &'static str,
    unit: &'static str,
    sharers: &'static [Sharer],
}

/// A record of an interleaved range lies in a leaf with others, which is written when it comes and
/// when it goes; so is the word of a mutex, and the word of the running transaction by a handle.
/// Few cores have several records in a row in one leaf, so for them it is too much.
const LOCKS: Line = Line {
    name: "lock",
    title: "Locks and unlocks by cores",
    unit: "/s",
    sharers: &[
        ("rangelock/best/rate", "optimistic B-tree", 0.0, published::range_lock_best, 0),
        ("rangelock/best/rate", "mutexed B-tree", 2.0, published::range_lock_best, 1),
        ("rangelock/worst/rate", "optimistic B-tree", 2.0, published::range_lock_worst, 0),
    ],
};
const OVERWRITES: Line = Line {
    name: "overwrite",
    title: "Overwrites in mapped memory by cores",
    unit: "IOPS",
    sharers: &[
        (
            "overwrite/dax/iops",
            "overwrite=nojournal",
            DIRECT_OVERWRITE.shared_writes,
            published::overwrite,
            0,
        ),
        ("overwrite/dax/iops", "overwrite=journal", 2.0, published::overwrite, 1),
    ],
};

/// Operations that no experiment measures by themselves, and how many of them each thread does: for
/// some milliseconds.
const TIMED: [(Operation, usize); 3] = [(BUFFERED_WRITE, 50_000), (CREATE, 2000), (WRITE_AND_FSYNC, 2000)];

/// The threads that do these, as far as the machine has a core for each.
const TIMED_BY: [u64; 3] = [1, 2, 4];

/// Returns the operations a second of each of [`TIMED`], by threads. As in experiments, each gets
/// its turn in every round.
fn timed(plan: &Plan, cores: u64) -> Outcome<Vec<Vec<Point>>> {
    let threads: Vec<u64> = TIMED_BY.into_iter().filter(|n| *n <= cores).collect();
    let mut rates = vec![vec![Vec::new(); threads.len()]; TIMED.len()];
    for _ in 0..plan.rounds {
        for ((operation, times), rates) in TIMED.iter().zip(&mut rates) {
            for (threads, samples) in threads.iter().zip(rates) {
                stop::check()?;
                let threads = *threads as usize;
                let took = operation.run(threads, *times, |go| {
                    let began = Instant::now();
                    go();
                    began.elapsed()
                })?;
                samples.push((threads * times) as f64 / took.as_secs_f64());
            }
        }
    }
    let points = |rates: Vec<Vec<f64>>| -> Vec<Point> {
        threads.iter().zip(rates).map(|(at, samples)| Point::new(*at, samples)).collect()
    };
    Ok(rates.into_iter().map(points).collect())
}

impl Prediction {
    fn sharers(&mut self, results: &Results, transfer: Option<f64>, shared: &Line) {
        let mut all = Vec::new();
        for (chart, contender, moves, published, number) in shared.sharers {
            let own = results.charts().find(|c| c.name == *chart).and_then(|c| c.own(contender));
            let Some(own) = own else { continue };
            if let Some(theirs) = published().into_iter().nth(*number) {
                self.curve(&theirs, &mut all);
            }
            let which = format!("{contender}, {}", chart.split('/').nth(1).unwrap_or(""));
            let real = results.machine.cores as u64;
            let measured: Vec<Point> = (own.points.iter().filter(|p| p.at <= real))
                .map(|p| Point::new(p.at, vec![p.median]))
                .collect();
            self.law(&which, *moves, transfer, measured, &mut all);
        }
        self.case(shared.name, shared.title, "cores", shared.unit, all);
    }

    /// Draws what `moves` hand-overs for each operation predict beside what was measured. Draws
    /// nothing without the rate of one thread, or without the time of a hand-over that there is.
    fn law(
        &mut self,
        which: &str,
        moves: f64,
        transfer: Option<f64>,
        measured: Vec<Point>,
        all: &mut Vec<Series>,
    ) {
        let serial = if moves == 0.0 { Some(0.0) } else { transfer.map(|t| moves * t) };
        let one = measured.iter().find(|p| p.at == 1);
        let (Some(one), Some(serial)) = (one, serial) else { return };
        let law = SharedLine { alone: 1.0 / one.median, serial };
        let pairs: Vec<_> = measured.iter().filter(|p| p.at > 1).map(|p| (law.at(p.at), p.median)).collect();
        self.sentences.push(format!(
            "{which}: {:.0} ns alone, at most {moves} hand-overs: {}",
            law.alone * 1e9,
            told(&pairs, "of what was measured here")
        ));
        all.push(line(which, Origin::Predicted, "from costs", CORES.iter().map(|n| (*n, law.at(*n)))));
        all.push(Series { points: measured, ..line(which, Origin::Measured, "", std::iter::empty()) });
    }

    /// Times operations on a volume in memory, and predicts them from the bounds of their shared
    /// writes.
    fn operations(&mut self, plan: &Plan, cores: u64, transfer: f64) -> Outcome<()> {
        let mut all = Vec::new();
        for ((operation, _), measured) in TIMED.iter().zip(timed(plan, cores)?) {
            self.law(operation.name, operation.shared_writes, Some(transfer), measured, &mut all);
        }
        self.case("operations", "Operations in memory by cores, at least", "cores", "/s", all);
        Ok(())
    }

    /// Draws the law with the costs of a source's first two points, beside its other points.
    fn curve(&mut self, theirs: &Series, all: &mut Vec<Series>) {
        let (Some(one), Some(two)) = (theirs.at(1), theirs.at(2)) else { return };
        let law = SharedLine::through(one.median, two.median);
        let pairs: Vec<_> =
            theirs.points.iter().filter(|p| p.at > 2).map(|p| (law.at(p.at), p.median)).collect();
        self.sentences.push(format!("{}: {}", theirs.name, told(&pairs, "of its points beyond two threads")));
        all.push(theirs.clone());
        let source = "from the source's first two points";
        all.push(line(&theirs.name, Origin::Predicted, source, CORES.iter().map(|n| (*n, law.at(*n)))));
    }

    fn storm(&mut self, results: &Results, plan: &Plan) {
        let case = results.experiments.iter().find(|e| e.name == "fsync-storm").and_then(|e| e.cases.first());
        let Some(case) = case else { return };
        let Some(rates) = case.charts.first() else { return };
        let mut all = Vec::new();
        // MiB of the log.
        for (name, log) in
            [("mapafter", 128), ("mapafter, log 16M", 16), ("dioread_lock", 128), ("dioread_nolock", 128)]
        {
            let Some(own) = rates.own(name) else { continue };
            let Some(first) = own.points.first() else { continue };
            let Some(detail) = case.details.iter().find(|d| d.series == name && d.at == first.at) else {
                continue;
            };
            let Some(law) = group(detail, first, plan.log(log)) else { continue };
            let pairs: Vec<_> = own.points.iter().skip(1).map(|p| (law.at(p.at), p.median)).collect();
            self.sentences.push(format!(
                "{name}: {:.2} ms a round and {:.1} µs a write, {:.0} writes a round at most: {}",
                law.round * 1e3,
                law.each * 1e6,
                law.most,
                told(&pairs, "of what was measured here")
            ));
            let measured = own.points.iter().map(|p| (p.at, p.median));
            all.push(line(name, Origin::Predicted, "from costs", THREADS.iter().map(|n| (*n, law.at(*n)))));
            all.push(line(name, own.origin, "", measured));
        }
        // What the source's collapse means by this law.
        if let [lock, nolock] = &published::fsync_storm()[..]
            && let (Some(lock), Some(nolock)) = (lock.points.first(), nolock.points.first())
        {
            let round = lock.at as f64 / lock.median;
            let writes = nolock.median * round;
            self.sentences.push(format!(
                "source 004: at {:.0} ms a round, as with dioread_lock, its dioread_nolock has {writes:.0} of {} threads in a round, as if \
                 each asked for {:.0} of the 8192 credits",
                round * 1e3,
                lock.at,
                8192.0 / writes
            ));
        }
        all.extend(published::fsync_storm());
        self.case("storm", "A storm of fsyncs by threads", "threads", "IOPS", all);
    }

    fn case(&mut self, name: &str, title: &str, axis: &str, unit: &str, series: Vec<Series>) {
        if !series.iter().any(|s| s.origin == Origin::Predicted) {
            return;
        }
        let chart = Chart {
            name: format!("model/{name}/rate"),
            title: title.to_owned(),
            axis: axis.to_owned(),
            unit: unit.to_owned(),
            better: Better::Higher,
            series,
        };
        self.cases.push(CaseResult {
            name: name.to_owned(),
            title: title.to_owned(),
            charts: vec![chart],
            details: Vec::new(),
            verdicts: Vec::new(),
        });
    }
}

/// Returns the costs of a mode, from its counters at one number of threads.
fn group(detail: &Detail, point: &Point, log: u32) -> Option<SharedCommit> {
    let mean = |name: &str| detail.histograms.get(name).map(|h| h.total() / h.count.max(1) as f64 / 1e9);
    let round = mean("commit_flush").unwrap_or(0.0) + mean("commit_block")?;
    let cycle = point.at as f64 / point.median;
    let writes = detail.histograms.get("write")?.count as f64;
    let asked = detail.counter("credits_asked") as f64 / writes.max(1.0);
    // A quarter of the log's blocks of 4 KiB is what a transaction may have.
    let most = (f64::from(log) * 256.0 / 4.0 / asked.max(f64::MIN_POSITIVE)).max(1.0);
    let in_round = (point.at as f64).min(most);
    let cycle = cycle * in_round / point.at as f64;
    Some(SharedCommit { round, each: ((cycle - round) / in_round).max(0.0), most })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_line_bounds_what_cores_do() {
        let free = SharedLine { alone: 1e-6, serial: 0.0 };
        assert!((free.at(256) - 256e6).abs() < 1.0);
        let shared = SharedLine::through(1e6, 1e6);
        assert!((shared.at(2) - 1e6).abs() < 1.0 && shared.at(256) < 1.01e6);
        let worse = SharedLine::through(5_239_442.0, 1_014_466.0);
        assert!((worse.at(1) - 5_239_442.0).abs() < 1.0 && (worse.at(2) - 1_014_466.0).abs() < 1.0);
        assert!(worse.at(16) < worse.at(2), "it gets no better with more");
    }

    #[test]
    fn shared_writes_bound_what_cores_do() {
        // 100 ns for each hand-over.
        let predicted = |alone: f64, moves: f64| {
            let (mut found, mut all) = (Prediction::default(), Vec::new());
            let measured = vec![Point::new(1, vec![1.0 / alone]), Point::new(2, vec![1.9 / alone])];
            found.law("create", moves, Some(1e-7), measured, &mut all);
            assert!(found.sentences[0].contains(&format!("at most {moves} hand-overs: off by")));
            let of = |origin| all.iter().find(|s| s.origin == origin).unwrap().clone();
            assert_eq!(of(Origin::Measured).points.len(), 2);
            of(Origin::Predicted).at(256).unwrap().median
        };
        for (operation, _) in TIMED {
            // However little an operation costs alone: the hand-overs come one after the other.
            let most = 1e7 / operation.shared_writes;
            let rate = predicted(1e-7 * operation.shared_writes, operation.shared_writes);
            assert!((rate / most - 1.0).abs() < 1e-9, "{}: {rate} of {most}", operation.name);
            assert!(predicted(1e-6, operation.shared_writes) < 256e6, "{}", operation.name);
        }
        assert!((predicted(1e-6, 0.0) - 256e6).abs() < 1.0);
        // Without the time of a hand-over there is nothing to predict with.
        let (mut found, mut all) = (Prediction::default(), Vec::new());
        found.law("create", 30.0, None, vec![Point::new(1, vec![1e6])], &mut all);
        found.law("create", 30.0, Some(1e-7), vec![Point::new(2, vec![1e6])], &mut all);
        assert!(all.is_empty() && found.sentences.is_empty());
    }

    #[test]
    fn credits_bound_a_round() {
        let law = SharedCommit { round: 0.01, each: 1e-5, most: 100.0 };
        assert!(law.at(100) > 50.0 * law.at(1));
        assert_eq!(law.at(100), law.at(10_000));
        let wide = SharedCommit { most: 1e9, ..law };
        assert!(wide.at(10_000) > 5.0 * law.at(10_000) && wide.at(10_000) < 1e5);
    }

    #[test]
    fn the_error_is_told() {
        assert_eq!(error(&[]), None);
        let (median, worst) = error(&[(1.1, 1.0), (0.5, 1.0), (1.0, 1.0)]).unwrap();
        assert!((median - 0.1).abs() < 1e-9 && (worst - 0.5).abs() < 1e-9);
        let mut found = Prediction::default();
        let mut all = Vec::new();
        for theirs in published::range_lock_best().iter().chain(&published::overwrite()) {
            found.curve(theirs, &mut all);
        }
        assert_eq!((found.sentences.len(), all.len()), (4, 8));
        assert!(found.sentences.iter().all(|s| s.contains("off by")), "{:?}", found.sentences);
        // What the model is worth: the curves of the sources within a factor, not within percents.
        for said in &found.sentences {
            let worst: f64 =
                said.split(" % at worst").next().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
            assert!(worst < 60.0, "{said}");
        }
    }
}
