//! The cost of an operation against the size of what it works on: it must be flat or logarithmic.
//! The rule of the targets: each tenfold adds at most half of what the operation costs at the size
//! of comparison. `make bench-scale` takes seconds; `ARGS=--long` has directories of 10 million
//! entries and files of a million extents; `ARGS="names volumes"` runs some cases only.

use clap::Parser;
use lanefs_bench::cases::{self, Case};
use lanefs_bench::report::{Goal, Report, median};
use lanefs_bench::scale::{self, Figures};
use lanefs_bench::setup::own_folder;
use lanefs_lab::Outcome;
use lanefs_lab::store::{LoopDevice, LoopOptions};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

const CASES: [Case<Bench>; 3] =
    [("names", Bench::names), ("extents", Bench::extents), ("volumes", Bench::volumes)];

/// Sizes of volumes, and their names.
const VOLUMES: [(u64, &str); 4] =
    [(1 << 30, "1 GiB"), (1 << 36, "64 GiB"), (1 << 40, "1 TiB"), (1 << 44, "16 TiB")];
/// Bounds of memory, in MiB: of metadata in the cache, with the inodes in use; of opening a volume.
const MEMORY: f64 = 160.0;
const OPENING: f64 = 64.0;

/// The cost of operations against size
#[derive(Debug, Parser)]
struct Args {
    /// Only these cases
    cases: Vec<String>,
    /// Directories of up to 10 million entries, files of up to a million extents
    #[arg(long)]
    long: bool,
    /// How often each is run
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Where the volumes are made: in memory, so that no disk hides the cost
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// A step, in a process of its own
    #[arg(long, hide = true, requires_all = ["size", "volume"])]
    step: Option<String>,
    #[arg(long, hide = true)]
    size: Option<u64>,
    #[arg(long, hide = true)]
    volume: Option<PathBuf>,
}

struct Bench {
    dir: PathBuf,
    runs: usize,
    long: bool,
    report: Report,
}

/// The figures of a case at one size.
struct Sized {
    size: u64,
    label: String,
    runs: Vec<Figures>,
}

impl Sized {
    fn samples(&self, figure: &str) -> Vec<f64> {
        self.runs.iter().filter_map(|run| run.get(figure).copied()).collect()
    }
}

fn main() -> ExitCode {
    cases::end("scale", start(Args::parse()))
}

fn start(args: Args) -> Outcome<()> {
    if let (Some(step), Some(size), Some(volume)) = (&args.step, args.size, &args.volume) {
        return scale::step(step, volume, size);
    }
    let chosen = cases::choose(&CASES, &args.cases)?;
    let own = own_folder(args.dir, &["losetup"])?;
    let mut bench = Bench {
        dir: own.path().to_owned(),
        runs: args.runs.max(1),
        long: args.long,
        report: Report::new("scale"),
    };
    cases::run(&mut bench, &chosen)?;
    println!("\n{}", bench.report.finish()?.display());
    Ok(())
}

impl Bench {
    fn names(&mut self) -> Outcome<()> {
        let sizes: &[u64] =
            if self.long { &[10, 1000, 100_000, 1_000_000, 10_000_000] } else { &[10, 1000, 100_000] };
        let sized = self.sizes(sizes, "names-make", "names")?;
        for operation in ["create", "lookup", "unlink"] {
            self.cost(
                &format!("{operation} in a directory of so many entries"),
                operation,
                "us",
                &sized,
                1000,
            );
        }
        self.memory("directory of so many entries, memory", "memory", &sized, MEMORY);
        Ok(())
    }

    fn extents(&mut self) -> Outcome<()> {
        let sizes: &[u64] = if self.long { &[10, 1000, 100_000, 1_000_000] } else { &[10, 1000, 100_000] };
        let sized = self.sizes(sizes, "extents-make", "extents")?;
        // A punch is compared with the smallest file. At 1,000 extents it was dearer than at
        // 100,000, so that no cost at 100,000 would have missed the goal.
        for (operation, base) in [
            ("overwrite of an unchanged map beyond a bare write", 1000),
            ("overwrite beyond a bare write", 1000),
            ("append", 1000),
            ("punch", 10),
        ] {
            self.cost(&format!("{operation} in a file of so many extents"), operation, "us", &sized, base);
        }
        self.plain("bare write of a block of that file", "bare", "us", &sized);
        self.memory("file of so many extents, memory", "memory", &sized, MEMORY);
        Ok(())
    }

    /// Makes a volume of each size, and measures it as often as there are runs.
    fn sizes(&self, sizes: &[u64], make: &str, measure: &str) -> Outcome<Vec<Sized>> {
        let mut sized = Vec::new();
        for &size in sizes {
            let volume = self.dir.join("volume");
            scale::run(make, &volume, size)?;
            let runs = (0..self.runs).map(|_| scale::run(measure, &volume, size)).collect::<Outcome<_>>()?;
            sized.push(Sized { size, label: grouped(size), runs });
            fs::remove_file(&volume)?;
        }
        Ok(sized)
    }

    fn volumes(&mut self) -> Outcome<()> {
        for full in [false, true] {
            let kind = if full { "full" } else { "empty" };
            let (mut clean, mut crashed, mut mounted) = (Vec::new(), Vec::new(), Vec::new());
            for (size, label) in VOLUMES {
                let volume = self.dir.join("volume");
                scale::run("volume-make", &volume, size)?;
                if full {
                    scale::run("volume-fill", &volume, size)?;
                }
                let (opened, recovered) = self.open(&volume, size)?;
                let kernel = (0..self.runs).map(|_| self.kernel(&volume)).collect::<Outcome<Vec<f64>>>()?;
                mounted.push((label, median(&kernel)));
                self.report.row(&format!("mount by the kernel, {kind}"), label, 1, &kernel, "ms");
                clean.push(Sized { size, label: label.to_owned(), runs: opened });
                crashed.push(Sized { size, label: label.to_owned(), runs: recovered });
                fs::remove_file(&volume)?;
            }
            self.cost(&format!("open, {kind}"), "open", "ms", &clean, 1 << 30);
            for ((label, kernel), opened) in mounted.into_iter().zip(&clean) {
                let what = format!("open, {kind}, {label}: of the kernel's time to mount");
                self.report.target(&what, Goal::AtMost(1.0), median(&opened.samples("open")) / kernel);
            }
            self.cost(&format!("first file made durable, {kind}"), "first file", "ms", &clean, 1 << 30);
            self.cost(&format!("open after a crash, {kind}"), "open", "ms", &crashed, 1 << 30);
            self.memory(&format!("open, {kind}, memory"), "memory", &clean, OPENING);
            self.memory(&format!("first file, {kind}, memory"), "memory with it", &clean, OPENING);
            self.memory(&format!("open after a crash, {kind}, memory"), "memory", &crashed, OPENING);
        }
        Ok(())
    }

    /// Opens a volume clean and after a crash, by turns.
    fn open(&self, volume: &Path, size: u64) -> Outcome<(Vec<Figures>, Vec<Figures>)> {
        let (mut clean, mut crashed) = (Vec::new(), Vec::new());
        scale::run("volume-open", volume, size)?;
        for _ in 0..self.runs {
            clean.push(scale::run("volume-open", volume, size)?);
            scale::run("volume-crash", volume, size)?;
            crashed.push(scale::run("volume-open", volume, size)?);
        }
        Ok((clean, crashed))
    }

    /// Milliseconds that the kernel takes to mount a volume.
    fn kernel(&self, volume: &Path) -> Outcome<f64> {
        let device = LoopDevice::new(volume, LoopOptions::DEFAULT)?;
        let place = self.dir.join("mnt");
        fs::create_dir_all(&place)?;
        let began = Instant::now();
        mount(device.path(), &place, "ext4", MountFlags::NOATIME, c"")?;
        let took = began.elapsed().as_secs_f64() * 1e3;
        unmount(&place, UnmountFlags::empty())?;
        Ok(took)
    }

    /// Adds the rows of an operation, and the targets beyond the size of comparison.
    fn cost(&mut self, case: &str, figure: &str, unit: &'static str, sized: &[Sized], base: u64) {
        self.plain(case, figure, unit, sized);
        let at = |size| sized.iter().find(|one| one.size == size).map(|one| median(&one.samples(figure)));
        let Some(compared) = at(base) else { return };
        // A difference that is not above zero bounds nothing.
        let ratio = |cost: f64| if compared > 0.0 { cost / compared } else { f64::INFINITY };
        for one in sized.iter().filter(|one| one.size > base) {
            let tenfolds = (one.size as f64 / base as f64).log10();
            let what = format!("{case}, {}: of the cost at {}", one.label, sized_label(sized, base));
            let most = ((1.0 + tenfolds / 2.0) * 100.0).round() / 100.0;
            self.report.target(&what, Goal::AtMost(most), ratio(median(&one.samples(figure))));
        }
    }

    /// Adds rows without a target.
    fn plain(&mut self, case: &str, figure: &str, unit: &'static str, sized: &[Sized]) {
        for one in sized {
            self.report.row(case, &one.label, 1, &one.samples(figure), unit);
        }
    }

    fn memory(&mut self, case: &str, figure: &str, sized: &[Sized], bound: f64) {
        self.plain(case, figure, "MiB", sized);
        if let Some(most) = sized.last() {
            let what = format!("{case}, {}: MiB", most.label);
            self.report.target(&what, Goal::AtMost(bound), median(&most.samples(figure)));
        }
    }
}

fn sized_label(sized: &[Sized], size: u64) -> &str {
    sized.iter().find(|one| one.size == size).map_or("", |one| &one.label)
}

/// With a comma behind each three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
