//! The five published jobs (`examples/fio`) by fio itself: lanefs through its engine, beside the
//! kernel's ext4 and XFS and the bare backing file, in turns. `make bench-fio` builds the engine
//! and runs short jobs on smaller files. For a peer, the engine becomes `psync` and the volume a
//! folder of the mount, or the backing file.
//!
//! - `ARGS=--long` runs them as their authors did: docs/fio.md has what they published.
//! - `ARGS="overwrite storm"` runs some of them, as `--job overwrite --job storm` does.
//! - The room for all backing files is checked before the first job runs. Where it does not suffice
//!   for the full size, the files are smaller, and rows and targets say their size.

mod job_file;
mod jobs;
mod room;

use clap::Parser;
use job_file::{Change, changed, psync, set};
use jobs::{Contender, Dimensions, Job};
use lanefs_bench::cases::{self, Case};
use lanefs_bench::report::{Goal, Report, median};
use lanefs_bench::setup::own_folder;
use lanefs_bench::turns::rotated;
use lanefs_lab::Outcome;
use lanefs_lab::load::more_open_files;
use lanefs_lab::store::{Backing, LoopMount, LoopOptions};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use tempfile::TempDir;

const CASES: [Case<Bench>; 5] = [
    (jobs::OVERWRITE.name, |bench| bench.measure(&jobs::OVERWRITE)),
    (jobs::ONE_BYTE.name, |bench| bench.measure(&jobs::ONE_BYTE)),
    (jobs::SHARED.name, |bench| bench.measure(&jobs::SHARED)),
    (jobs::DAX.name, |bench| bench.measure(&jobs::DAX)),
    (jobs::STORM.name, |bench| bench.measure(&jobs::STORM)),
];

/// Where a volume in memory is made.
const MEMORY: &str = "/dev/shm";

/// The variable that names the engine of lanefs: `make bench-fio` builds it.
const ENGINE: &str = "LANEFS_FIO_ENGINE";

/// The published jobs, by fio
#[derive(Debug, Parser)]
struct Args {
    /// Only these jobs
    cases: Vec<String>,
    /// Only this job, or these if repeated
    #[arg(long = "job", value_name = "NAME")]
    jobs: Vec<String>,
    /// As their authors ran them: takes an hour, 59 GiB of disk, 20 GiB of memory
    #[arg(long)]
    long: bool,
    /// The most seconds of each measurement; before it, a job runs for half of them at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
    /// Numbers of fio's jobs, up to a job's own, which is the default
    #[arg(long, value_name = "N", value_delimiter = ',')]
    numjobs: Vec<usize>,
    /// How often each contender gets its turn
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// Where the backing file is made
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
}

struct Bench {
    args: Args,
    /// A folder of its own in that of the arguments.
    dir: PathBuf,
    engine: PathBuf,
    report: Report,
}

/// A job at a size and a number of fio's jobs, on its backing file.
struct SizedJob<'a> {
    job: &'a Job,
    dimensions: Dimensions,
    numjobs: usize,
    /// The size, behind the names of rows and targets: empty where it is the full one.
    smaller: &'a str,
    backing: &'a Backing,
}

impl SizedJob<'_> {
    fn case(&self) -> String {
        self.job.case.replacen('N', &self.numjobs.to_string(), 1) + self.smaller
    }
}

/// The result of a run: operations a second, and microseconds that one in a hundred exceeds.
struct Run {
    rate: f64,
    p99: f64,
}

/// The medians of a contender.
struct Medians {
    contender: Contender,
    rate: f64,
    p99: f64,
}

fn main() -> ExitCode {
    cases::end("fio", start(Args::parse()))
}

fn start(args: Args) -> Outcome<()> {
    let chosen = cases::choose(&CASES, &[&args.cases[..], &args.jobs[..]].concat())?;
    more_open_files();
    let own = own_folder(&args.dir, &["fio", "mke2fs", "mkfs.xfs", "losetup", "mount"])?;
    let mut bench = Bench {
        args,
        dir: own.path().to_owned(),
        engine: fs::canonicalize(std::env::var_os(ENGINE).ok_or("run it by make bench-fio")?)?,
        report: Report::new("fio"),
    };
    for job in jobs::ALL.into_iter().filter(|job| chosen.iter().any(|(name, _)| *name == job.name)) {
        bench.check_room(job)?;
    }
    cases::run(&mut bench, &chosen)?;
    println!("\n{}", bench.report.finish()?.display());
    Ok(())
}

impl Bench {
    /// Returns the dimensions that the arguments ask for.
    fn wanted(&self, job: &Job) -> Dimensions {
        let dimensions = if self.args.long { job.published } else { job.short };
        self.args.seconds.map_or(dimensions, |most| dimensions.within(most))
    }

    /// Returns the dimensions for which there is room.
    fn fitted(&self, job: &Job) -> Outcome<Dimensions> {
        let folder = if job.mapped { Path::new(MEMORY) } else { self.dir.as_path() };
        room::fit(job, self.wanted(job), folder)
    }

    /// Prints how much smaller a job is, if there is no room for its full size.
    fn check_room(&self, job: &Job) -> Outcome<()> {
        let (wanted, fitted) = (self.wanted(job), self.fitted(job)?);
        if fitted.volume < wanted.volume {
            let (has, wants) = (room::gibibytes(fitted.volume), room::gibibytes(wanted.volume));
            println!("{}: there is room for {has} GiB, not for {wants}: its files are smaller", job.name);
        }
        Ok(())
    }

    /// Returns the numbers of fio's jobs.
    fn numbers(&self, job: &Job) -> Vec<usize> {
        let own = job.numjobs();
        let mut numbers = self.args.numjobs.clone();
        numbers.retain(|number| (1..=own).contains(number));
        if numbers.is_empty() {
            numbers.push(own);
        }
        numbers
    }

    /// Runs a job with each number of fio's jobs. Its targets are of the job's own number.
    fn measure(&mut self, job: &Job) -> Outcome<()> {
        let dimensions = self.fitted(job)?;
        let memory = if job.mapped { Some(own_folder(MEMORY, &[])?) } else { None };
        let folder = memory.as_ref().map_or(self.dir.as_path(), TempDir::path);
        let backing = Backing::new(folder, dimensions.volume)?;
        let is_smaller = dimensions.content < self.wanted(job).content;
        let smaller = if is_smaller { format!(", {} MiB", dimensions.content >> 20) } else { String::new() };
        for numjobs in self.numbers(job) {
            let sized = SizedJob { job, dimensions, numjobs, smaller: &smaller, backing: &backing };
            let got = self.take_turns(&sized)?;
            if numjobs == job.numjobs() {
                self.targets(&sized, &got);
            }
        }
        Ok(())
    }

    /// Runs a job on all contenders, in turns, and adds the rows.
    fn take_turns(&mut self, sized: &SizedJob) -> Outcome<Vec<Medians>> {
        let job = sized.job;
        let mut runs: Vec<Vec<Run>> = job.contenders.iter().map(|_| Vec::new()).collect();
        for number in rotated(self.args.rounds.max(1), job.contenders.len()) {
            let contender = job.contenders[number];
            let because = |e| format!("{}, {}: {e}", sized.case(), contender.name(job));
            runs[number].push(self.one(sized, contender).map_err(because)?);
        }
        for (what, unit) in [("", "/s"), (", p99", "us")] {
            for (runs, contender) in runs.iter().zip(job.contenders) {
                let figure = |run: &Run| if unit == "us" { run.p99 } else { run.rate };
                let samples: Vec<f64> = runs.iter().map(figure).collect();
                let case = format!("{}{what}", sized.case());
                self.report.row(&case, &contender.name(job), sized.numjobs, &samples, unit);
            }
        }
        let mut medians = Vec::new();
        for (runs, contender) in runs.iter().zip(job.contenders) {
            let of = |figure: fn(&Run) -> f64| median(&runs.iter().map(figure).collect::<Vec<_>>());
            medians.push(Medians { contender: *contender, rate: of(|run| run.rate), p99: of(|run| run.p99) });
        }
        Ok(medians)
    }

    /// Adds the targets: of throughput over the best of the kernel's and over the backing file, and
    /// of the p99 where the job has such a goal.
    fn targets(&mut self, sized: &SizedJob, got: &[Medians]) {
        let job = sized.job;
        let case = format!("{}{}", job.target, sized.smaller);
        let kernel = if job.mapped { "the best of the kernel's, no DAX" } else { "the best of the kernel's" };
        let rate = |of: fn(Contender) -> bool| {
            got.iter().filter(|m| of(m.contender)).map(|m| m.rate).fold(0.0, f64::max)
        };
        let ours = rate(Contender::is_default);
        let peers = [(kernel, rate(Contender::is_kernel)), (job.raw_is, rate(Contender::is_raw))];
        for ((name, peer), goal) in peers.into_iter().zip(job.goals) {
            self.report.target(&format!("{case}: over {name}"), Goal::AtLeast(goal), ours / peer);
        }
        if let Some(most) = job.tail {
            let p99 = |of: fn(Contender) -> bool| {
                got.iter().filter(|m| of(m.contender)).map(|m| m.p99).fold(f64::MAX, f64::min)
            };
            let of_kernel = p99(Contender::is_default) / p99(Contender::is_kernel);
            let what = format!("{case}: p99 of a sync, of the best kernel's");
            self.report.target(&what, Goal::AtMost(most), of_kernel);
        }
    }

    /// One run of fio, on a file system that has just been made.
    fn one(&self, sized: &SizedJob, contender: Contender) -> Outcome<Run> {
        let (job, backing) = (sized.job, sized.backing);
        let mut changes = sized.dimensions.changes(job);
        changes.push(("numjobs", set(sized.numjobs)));
        let mount = |kind, words: &str| {
            LoopMount::new(backing.path(), kind, &format!("noatime,{words}"), LoopOptions::DIRECT)
        };
        let path = backing.path().display();
        match contender {
            Contender::Raw => {
                changes.extend(job.on_raw(sized.dimensions.content));
                changes.push(("filename", set(path)));
                changes.extend(psync(None));
                self.fio(sized, &changes)
            }
            Contender::Lanefs(options) => {
                backing.make_volume(job.journal)?;
                let prefix = if job.mapped { "pmem:" } else { "" };
                changes.push(("ioengine", set(format!("external:{}", self.engine.display()))));
                changes.push(("volume", set(format!("{prefix}{path}"))));
                changes.push(("mount_options", set(options)));
                self.fio(sized, &changes)
            }
            Contender::Ext4(_) | Contender::Xfs => {
                let mut mounted = match contender {
                    Contender::Ext4(options) => {
                        backing.make_ext4(job.journal)?;
                        mount("ext4", options)?
                    }
                    _ => {
                        backing.make_xfs()?;
                        mount("xfs", "noatime")?
                    }
                };
                changes.extend(psync(Some(mounted.path())));
                let run = self.fio(sized, &changes)?;
                mounted.unmount()?;
                Ok(run)
            }
        }
    }

    fn fio(&self, sized: &SizedJob, changes: &[Change]) -> Outcome<Run> {
        let (file, json) = (self.dir.join("job.fio"), self.dir.join("fio.json"));
        fs::write(&file, changed(sized.job.text, changes))?;
        let out = Command::new("fio")
            .current_dir(&self.dir)
            .args(sized.dimensions.options)
            .args(["--output-format=json", "--output"])
            .args([&json, &file])
            .output()?;
        if !out.status.success() {
            let said = fs::read_to_string(&json).unwrap_or_default();
            return Err(format!("fio: {}{said}", String::from_utf8_lossy(&out.stderr)).into());
        }
        let said = fs::read_to_string(&json)?;
        let json = said.find('{').and_then(|at| said.get(at..)).ok_or("fio gave no JSON")?;
        let found: Value = serde_json::from_str(json)?;
        let first = &found["jobs"][0];
        let rate = |kind: &str| first[kind]["iops"].as_f64().unwrap_or(0.0);
        let [of, latency] = sized.job.latency;
        let p99 = first[of][latency]["percentile"]["99.000000"].as_f64().ok_or("fio gave no percentiles")?;
        Ok(Run { rate: rate("read") + rate("write"), p99: p99 / 1000.0 })
    }
}
