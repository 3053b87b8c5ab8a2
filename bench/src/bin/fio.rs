//! The five published jobs (`examples/fio`) by fio itself: lanefs through its engine, beside the
//! kernel's ext4 and XFS and the bare backing file, in turns. `make bench-fio` builds the engine
//! and runs short jobs on smaller files; `ARGS=--long` runs them as their authors did, and
//! `ARGS="overwrite storm"` some of them. For a peer, the engine becomes `psync` and the volume a
//! folder of the mount, or the backing file.

use clap::Parser;
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

const CASES: [Case<Bench>; 5] = [
    ("overwrite", Bench::overwrite),
    ("one-byte", Bench::one_byte),
    ("shared", Bench::shared),
    ("dax", Bench::dax),
    ("storm", Bench::storm),
];

const OVERWRITE: &str = include_str!("../../../examples/fio/overwrite-direct.fio");
const ONE_BYTE: &str = include_str!("../../../examples/fio/one-byte.fio");
const SHARED: &str = include_str!("../../../examples/fio/shared-file.fio");
const STORM: &str = include_str!("../../../examples/fio/fsync-2048.fio");

/// What the peers of a job are called.
const KERNEL: &str = "the best of the kernel's";
const PWRITE: &str = "raw, pwrite";

/// The variable that names the engine of lanefs: `make bench-fio` builds it.
const ENGINE: &str = "LANEFS_FIO_ENGINE";

/// The published jobs, by fio
#[derive(Debug, Parser)]
struct Args {
    /// Only these jobs
    cases: Vec<String>,
    /// As their authors ran them: takes an hour, and 80 GiB of disk
    #[arg(long)]
    long: bool,
    /// How often each contender gets its turn
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// Where the backing file is made
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
}

struct Bench {
    dir: PathBuf,
    engine: PathBuf,
    rounds: usize,
    long: bool,
    report: Report,
}

/// A contender of a job.
#[derive(Clone, Copy)]
enum Contender {
    /// The backing file, without a file system of its own.
    Raw,
    /// The kernel's ext4, with these mount options.
    Ext4(&'static str),
    Xfs,
    /// lanefs through its engine, with these mount options.
    Lanefs(&'static str),
}

impl Contender {
    fn name(self, job: &Job) -> String {
        let no_dax = if job.mapped { ", no DAX" } else { "" };
        match self {
            Self::Raw => job.raw_is.into(),
            Self::Ext4("noatime") => format!("ext4{no_dax}"),
            Self::Ext4(options) => format!("ext4 {options}{no_dax}"),
            Self::Xfs => format!("XFS{no_dax}"),
            Self::Lanefs("defaults") => "lanefs".into(),
            Self::Lanefs(options) => format!("lanefs {options}"),
        }
    }
}

/// Words of a job file, with the value that each gets; `None` takes the word out.
type Changes<'a> = Vec<(&'a str, Option<String>)>;

/// A job, and what it runs on.
struct Job<'a> {
    case: &'a str,
    text: &'static str,
    /// Changes of a run that is short, for all contenders.
    short: Changes<'a>,
    /// Changes for the backing file.
    raw: Changes<'a>,
    /// The name of I/O on the backing file.
    raw_is: &'static str,
    contenders: Vec<Contender>,
    /// MiB of the log.
    journal: u32,
    /// What the latency is of: in fio's JSON.
    latency: [&'static str; 2],
    /// The volume is memory, and lanefs maps it. The kernel's file systems are on a loop device,
    /// which has no DAX.
    mapped: bool,
}

impl Job<'_> {
    /// A job that writes as it is, with a log of 128 MiB; the caller names it.
    fn writing() -> Self {
        Self {
            case: "",
            text: "",
            short: vec![],
            raw: vec![],
            raw_is: "raw",
            contenders: vec![],
            journal: 128,
            latency: ["write", "clat_ns"],
            mapped: false,
        }
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
    let chosen = cases::choose(&CASES, &args.cases)?;
    more_open_files();
    let own = own_folder(args.dir, &["fio", "mke2fs", "mkfs.xfs", "losetup", "mount"])?;
    let mut bench = Bench {
        dir: own.path().to_owned(),
        engine: fs::canonicalize(std::env::var_os(ENGINE).ok_or("run it by make bench-fio")?)?,
        rounds: args.rounds.max(1),
        long: args.long,
        report: Report::new("fio"),
    };
    cases::run(&mut bench, &chosen)?;
    println!("\n{}", bench.report.finish()?.display());
    Ok(())
}

fn set(value: &str) -> Option<String> {
    Some(value.to_owned())
}

impl Bench {
    /// Direct overwrites by 16 writers ("Optimize ext4 file overwrites").
    fn overwrite(&mut self) -> Outcome<()> {
        let backing = Backing::new(&self.dir, if self.long { 20 << 30 } else { 2 << 30 })?;
        let got = self.run(&backing, &overwrite("direct overwrites, 16 jobs", false))?;
        self.over(&got, "direct overwrites", (KERNEL, 1.0), ("raw", 0.95));
        Ok(())
    }

    /// The same on memory: the first version of that patch was for DAX. None of the peers has it:
    /// the limit is pwrite to a file of tmpfs.
    fn dax(&mut self) -> Outcome<()> {
        let backing = Backing::new(Path::new("/dev/shm"), if self.long { 18 << 30 } else { 2 << 30 })?;
        let job = Job { raw_is: PWRITE, ..overwrite("DAX overwrites, 16 jobs", true) };
        let got = self.run(&backing, &job)?;
        self.over(&got, "DAX overwrites", ("the best of the kernel's, no DAX", 1.0), (PWRITE, 1.0));
        Ok(())
    }

    /// Buffered writes of a byte ("fs: inode->i_version rework and optimization").
    fn one_byte(&mut self) -> Outcome<()> {
        let backing = Backing::new(&self.dir, 4 << 30)?;
        let got = self.run(
            &backing,
            &Job {
                case: "buffered writes of a byte",
                text: ONE_BYTE,
                short: vec![
                    ("timeout", None),
                    ("filesize", set("128m")),
                    ("time_based", set("1")),
                    ("runtime", set("3")),
                ],
                // Through the page cache of the file system that the backing file is in.
                raw_is: PWRITE,
                contenders: vec![
                    Contender::Raw,
                    Contender::Lanefs("defaults"),
                    Contender::Ext4("noatime"),
                    Contender::Xfs,
                ],
                ..Job::writing()
            },
        )?;
        self.over(&got, "buffered writes of a byte", (KERNEL, 3.0), (PWRITE, 1.0));
        Ok(())
    }

    /// Direct readers and writers of one file ("xfs: reduce ilock contention").
    fn shared(&mut self) -> Outcome<()> {
        let backing = Backing::new(&self.dir, 4 << 30)?;
        let got = self.run(
            &backing,
            &Job {
                case: "one file, 16 direct jobs",
                text: SHARED,
                short: vec![("runtime", set("3")), ("size", set("512m"))],
                contenders: vec![
                    Contender::Raw,
                    Contender::Lanefs("defaults"),
                    Contender::Lanefs("locking=inode"),
                    Contender::Ext4("noatime"),
                    Contender::Xfs,
                ],
                ..Job::writing()
            },
        )?;
        self.over(&got, "one file, 16 direct jobs", (KERNEL, 1.0), ("raw", 0.95));
        Ok(())
    }

    /// 2048 writers that sync each write ("Buffered random writes performance regression with
    /// dioread_nolock enabled").
    fn storm(&mut self) -> Outcome<()> {
        let size = if self.long { "28800000" } else { "2m" };
        let backing = Backing::new(&self.dir, if self.long { 64 << 30 } else { 6 << 30 })?;
        let case = "2048 jobs, 16 KiB and fsync";
        let got = self.run(
            &backing,
            &Job {
                case,
                text: STORM,
                short: vec![("filesize", set(size)), ("runtime", set("6"))],
                raw: vec![
                    ("filesize", None),
                    ("size", set(size)),
                    ("offset_increment", set(size)),
                    ("buffered", None),
                    ("direct", set("1")),
                ],
                contenders: vec![
                    Contender::Raw,
                    Contender::Lanefs("defaults"),
                    Contender::Lanefs("io=direct"),
                    Contender::Ext4("dioread_lock"),
                    Contender::Ext4("dioread_nolock"),
                    Contender::Xfs,
                ],
                latency: ["sync", "lat_ns"],
                ..Job::writing()
            },
        )?;
        self.over(&got, case, (KERNEL, 2.0), ("raw", 0.6));
        let p99 = |of: fn(Contender) -> bool| {
            got.iter().filter(|m| of(m.contender)).map(|m| m.p99).fold(f64::MAX, f64::min)
        };
        let (ours, best) = (p99(is_default), p99(is_kernel));
        self.report.target(
            &format!("{case}: p99 of a sync, of the best kernel's"),
            Goal::AtMost(1.0),
            ours / best,
        );
        Ok(())
    }

    /// Targets of throughput, by the names of what they are over: the best of the kernel's, and the
    /// backing file.
    fn over(&mut self, got: &[Medians], case: &str, kernel: (&str, f64), raw: (&str, f64)) {
        let rate = |of: fn(Contender) -> bool| {
            got.iter().filter(|m| of(m.contender)).map(|m| m.rate).fold(0.0, f64::max)
        };
        let ours = rate(is_default);
        let limit = rate(|c| matches!(c, Contender::Raw));
        for ((name, goal), peer) in [(kernel, rate(is_kernel)), (raw, limit)] {
            self.report.target(&format!("{case}: over {name}"), Goal::AtLeast(goal), ours / peer);
        }
    }

    /// Runs a job on all contenders, in turns.
    fn run(&mut self, backing: &Backing, job: &Job) -> Outcome<Vec<Medians>> {
        let mut runs: Vec<Vec<Run>> = job.contenders.iter().map(|_| Vec::new()).collect();
        for number in rotated(self.rounds, job.contenders.len()) {
            let contender = job.contenders[number];
            let because = |e| format!("{}, {}: {e}", job.case, contender.name(job));
            runs[number].push(self.one(backing, job, contender).map_err(because)?);
        }
        let mut medians = Vec::new();
        let threads = numjobs(job.text);
        for (what, unit) in [("", "/s"), (", p99", "us")] {
            for (runs, contender) in runs.iter().zip(&job.contenders) {
                let figure = |run: &Run| if unit == "us" { run.p99 } else { run.rate };
                let samples: Vec<f64> = runs.iter().map(figure).collect();
                let case = format!("{}{what}", job.case);
                self.report.row(&case, &contender.name(job), threads, &samples, unit);
            }
        }
        for (runs, contender) in runs.iter().zip(&job.contenders) {
            let of = |figure: fn(&Run) -> f64| median(&runs.iter().map(figure).collect::<Vec<_>>());
            medians.push(Medians { contender: *contender, rate: of(|run| run.rate), p99: of(|run| run.p99) });
        }
        Ok(medians)
    }

    /// One run of fio, on a file system that has just been made.
    fn one(&self, backing: &Backing, job: &Job, contender: Contender) -> Outcome<Run> {
        let mut changes: Changes = if self.long { vec![] } else { job.short.clone() };
        let mount = |kind, words: &str| {
            LoopMount::new(backing.path(), kind, &format!("noatime,{words}"), LoopOptions::DIRECT)
        };
        let path = backing.path().display();
        match contender {
            Contender::Raw => {
                let own = ["nrfiles", "file_service_type", "overwrite"];
                changes.extend(own.map(|word| (word, None)));
                changes.extend(job.raw.iter().cloned());
                changes.extend([("filename", Some(path.to_string())), ("ioengine", set("psync"))]);
                changes.extend(psync(None));
                self.fio(job, &changes)
            }
            Contender::Lanefs(options) => {
                backing.make_volume(job.journal)?;
                let prefix = if job.mapped { "pmem:" } else { "" };
                changes.push(("ioengine", Some(format!("external:{}", self.engine.display()))));
                changes.push(("volume", Some(format!("{prefix}{path}"))));
                changes.push(("mount_options", set(options)));
                self.fio(job, &changes)
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
                let run = self.fio(job, &changes)?;
                mounted.unmount()?;
                Ok(run)
            }
        }
    }

    fn fio(&self, job: &Job, changes: &Changes) -> Outcome<Run> {
        let (file, json) = (self.dir.join("job.fio"), self.dir.join("fio.json"));
        fs::write(&file, changed(job.text, changes))?;
        let out = Command::new("fio")
            .current_dir(&self.dir)
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
        let [of, latency] = job.latency;
        let p99 = first[of][latency]["percentile"]["99.000000"].as_f64().ok_or("fio gave no percentiles")?;
        Ok(Run { rate: rate("read") + rate("write"), p99: p99 / 1000.0 })
    }
}

fn overwrite(case: &str, mapped: bool) -> Job<'_> {
    Job {
        case,
        text: OVERWRITE,
        short: vec![("size", set("1g")), ("ramp_time", set("1")), ("runtime", set("3"))],
        contenders: vec![
            Contender::Raw,
            Contender::Lanefs("defaults"),
            Contender::Ext4("noatime"),
            Contender::Xfs,
        ],
        mapped,
        ..Job::writing()
    }
}

/// lanefs as it comes.
fn is_default(contender: Contender) -> bool {
    matches!(contender, Contender::Lanefs("defaults"))
}

fn is_kernel(contender: Contender) -> bool {
    matches!(contender, Contender::Ext4(_) | Contender::Xfs)
}

/// The changes for a peer, with its files in `folder`.
fn psync(folder: Option<&Path>) -> Changes<'static> {
    vec![
        ("ioengine", set("psync")),
        ("volume", None),
        ("mount_options", None),
        ("directory", folder.map(|folder| folder.display().to_string())),
    ]
}

/// The job file with other values: a word that it lacks comes into its first section.
fn changed(text: &str, changes: &Changes) -> String {
    let word = |line: &str| line.split('=').next().map(str::to_owned).unwrap_or_default();
    let mut lines: Vec<String> =
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
    for (name, value) in changes {
        lines.retain(|line| word(line) != *name);
        if let Some(value) = value {
            let at = lines.iter().position(|line| line.starts_with('[')).map_or(0, |at| at + 1);
            lines.insert(at, format!("{name}={value}"));
        }
    }
    lines.join("\n") + "\n"
}

fn numjobs(text: &str) -> usize {
    text.lines().find_map(|line| line.strip_prefix("numjobs=")?.parse().ok()).unwrap_or(1)
}
