//! What a benchmark prints and writes: rows of medians, and the targets computed from them.
//!
//! `target/bench/NAME.json` holds `command`, `commit`, `machine`, `rows` (`case`, `variant`,
//! `threads`, `value`, `unit`, `min`, `max`) and `targets` (`what`, `goal`, `got`, `met`).

use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;

/// The report of one benchmark.
#[derive(Debug)]
pub struct Report {
    name: String,
    rows: Vec<Row>,
    targets: Vec<Target>,
}

#[derive(Debug)]
struct Row {
    case: String,
    variant: String,
    threads: usize,
    median: f64,
    min: f64,
    max: f64,
    unit: &'static str,
}

/// The good side of a goal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// The figure must not be above it.
    AtMost(f64),
    /// The figure must not be below it.
    AtLeast(f64),
}

#[derive(Debug)]
struct Target {
    what: String,
    goal: Goal,
    got: f64,
}

impl Target {
    fn met(&self) -> bool {
        match self.goal {
            Goal::AtMost(bound) => self.got <= bound,
            Goal::AtLeast(bound) => self.got >= bound,
        }
    }
}

/// The median of some figures; 0 of none.
pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

impl Report {
    /// An empty report of the benchmark `name`.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), rows: Vec::new(), targets: Vec::new() }
    }

    /// Adds a row from the samples of several runs, and prints it. Gives the median.
    pub fn row(
        &mut self,
        case: &str,
        variant: &str,
        threads: usize,
        samples: &[f64],
        unit: &'static str,
    ) -> f64 {
        let (min, max) = samples.iter().fold((f64::MAX, f64::MIN), |(lo, hi), &s| (lo.min(s), hi.max(s)));
        let row = Row {
            case: case.into(),
            variant: variant.into(),
            threads,
            median: median(samples),
            min,
            max,
            unit,
        };
        println!(
            "{:<34} {:<18} {:>3} thr  {:>14}  ({} .. {}) {}",
            row.case,
            row.variant,
            row.threads,
            figure(row.median),
            figure(row.min),
            figure(row.max),
            row.unit
        );
        let median = row.median;
        self.rows.push(row);
        median
    }

    /// Adds a target with the figure that was got.
    pub fn target(&mut self, what: &str, goal: Goal, got: f64) {
        self.targets.push(Target { what: what.into(), goal, got });
    }

    /// Prints the targets and writes the JSON file.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn finish(&self) -> std::io::Result<PathBuf> {
        println!();
        for t in &self.targets {
            let goal = match t.goal {
                Goal::AtMost(bound) => format!("<= {}", figure(bound)),
                Goal::AtLeast(bound) => format!(">= {}", figure(bound)),
            };
            let verdict = if t.met() { "met" } else { "MISSED" };
            println!("{:<66} {:>10}  got {:>9}  {verdict}", t.what, goal, figure(t.got));
        }
        let dir = folder();
        fs::create_dir_all(&dir)?;
        let path = dir.join(format!("{}.json", self.name));
        fs::write(&path, format!("{:#}\n", self.json()))?;
        Ok(path)
    }

    fn json(&self) -> Value {
        let rows = self.rows.iter().map(|r| {
            json!({ "case": r.case, "variant": r.variant, "threads": r.threads, "value": r.median, "unit": r.unit,
                    "min": r.min, "max": r.max })
        });
        let targets = self.targets.iter().map(|t| {
            let goal = match t.goal {
                Goal::AtMost(bound) => format!("<= {bound}"),
                Goal::AtLeast(bound) => format!(">= {bound}"),
            };
            json!({ "what": t.what, "goal": goal, "got": t.got, "met": t.met() })
        });
        json!({ "command": self.command(), "commit": commit(), "machine": machine(),
                "rows": rows.collect::<Vec<_>>(), "targets": targets.collect::<Vec<_>>() })
    }

    /// How a reader of the figures gets them again.
    fn command(&self) -> String {
        let args: Vec<String> = std::env::args().skip(1).collect();
        match args.is_empty() {
            true => format!("make bench-{}", self.name),
            false => format!("make bench-{} ARGS='{}'", self.name, args.join(" ")),
        }
    }
}

/// Where benchmarks leave their figures.
pub fn folder() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    target.join("bench")
}

/// The commit that is checked out, `unknown` outside of a repository; `+` stands behind it where
/// files differ from it.
fn commit() -> String {
    let git = |args: &[&str]| {
        let out = std::process::Command::new("git").args(args).output().ok()?;
        out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short", "HEAD"]) else { return "unknown".into() };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_none_or(|s| !s.is_empty());
    if changed { commit + "+" } else { commit }
}

/// The machine that the figures are of.
pub fn machine() -> Value {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, key: &str| {
        text.lines().find_map(|l| l.strip_prefix(key)?.split_once(':').map(|(_, v)| v.trim().to_owned()))
    };
    json!({
        "cpu": field(&read("/proc/cpuinfo"), "model name"),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "memory": field(&read("/proc/meminfo"), "MemTotal"),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
    })
}

/// Three or four significant digits.
pub fn figure(v: f64) -> String {
    match v.abs() {
        a if a >= 1000.0 => format!("{v:.0}"),
        a if a >= 100.0 => format!("{v:.1}"),
        a if a >= 1.0 => format!("{v:.2}"),
        _ => format!("{v:.4}"),
    }
}
