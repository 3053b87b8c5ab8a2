//! Volumes on an NBD server, beside what the server gives without a file system: 4 KiB at random
//! places beside fio's engine `nbd`, 1 MiB in sequence and imports beside nbdcopy. And on a server
//! with latency, beside fuse2fs.
//!
//! `make bench-remote [ARGS='--quick --runs N reads-16 ...']`. The server is nbdkit's memory at a
//! unix socket, a new one for each measurement. fio is measured in its two forms: N requests deep
//! on one connection, and N jobs with a connection each. `device` is the client alone, without a
//! volume. The targets are of lanefs by default, on one connection. A row has it on four, which
//! nbdcopy has.

mod distant;

use clap::Parser;
use lanefs::{File, Io, OpenOptions, Volume};
use lanefs_bench::cases::{self, Case, Effort};
use lanefs_bench::report::{Goal, Report};
use lanefs_device::{AlignedBuf, BlockDevice, FileOptions, open_url};
use lanefs_lab::load::run;
use lanefs_lab::{Outcome, Random};
use lanefs_tests::Served;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
/// The export, and what is used of it.
const EXPORT: &str = "1G";
const FILE: u64 = 512 * MIB;
/// What nbdcopy has too.
const FOUR: &str = "&connections=4";

/// NBD against fio and nbdcopy
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    effort: Effort,
    /// Cases; all without one
    cases: Vec<String>,
}

const CASES: &[Case<Bench>] = &[
    ("writes-1", |bench| bench.random(Work::Write, 1)),
    ("writes-16", |bench| bench.random(Work::Write, 16)),
    ("writes-64", |bench| bench.random(Work::Write, 64)),
    ("reads-1", |bench| bench.random(Work::Read, 1)),
    ("reads-16", |bench| bench.random(Work::Read, 16)),
    ("reads-64", |bench| bench.random(Work::Read, 64)),
    ("sequential-writes", |bench| bench.sequential(Work::Write)),
    ("sequential-reads", |bench| bench.sequential(Work::Read)),
    ("create-fsync-1", |bench| bench.create_and_fsync(1)),
    ("create-fsync-16", |bench| bench.create_and_fsync(16)),
    ("ls", Bench::list),
    ("import", Bench::import),
];

/// What is measured, and how often.
struct Bench {
    dir: tempfile::TempDir,
    /// The command, which `make bench-remote` builds into the folder of this program.
    lanefs: PathBuf,
    report: Report,
    runs: usize,
    time: Duration,
}

/// What a loop does.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Work {
    Write,
    Read,
}

fn main() -> ExitCode {
    cases::end("remote", start(Args::parse()))
}

fn start(Args { effort, cases }: Args) -> Outcome<()> {
    let chosen = cases::choose(CASES, &cases)?;
    let time = Duration::from_secs(if effort.quick { 1 } else { 3 });
    let lanefs = std::env::current_exe()?.with_file_name("lanefs");
    if !lanefs.is_file() {
        return Err(format!("{} is missing: run make bench-remote", lanefs.display()).into());
    }
    let (dir, report) = (tempfile::tempdir()?, Report::new("remote"));
    let mut bench = Bench { dir, lanefs, report, runs: effort.runs(3), time };
    cases::run(&mut bench, &chosen)?;
    bench.report.finish()?;
    Ok(())
}

impl Bench {
    fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    fn serve(&self) -> Served {
        Served::nbdkit(&self.socket(), &["memory", EXPORT])
    }

    /// A server whose export holds something: what was never written is no memory of it.
    fn serve_filled(&self) -> Outcome<Served> {
        let server = self.serve();
        fill(&*open_url(server.url("", ""), &FileOptions::new())?)?;
        Ok(server)
    }

    /// 4 KiB at random places: a file of a volume, the device alone, and fio.
    fn random(&mut self, work: Work, threads: usize) -> Outcome<()> {
        let mut samples = [const { Vec::new() }; 6];
        for _ in 0..self.runs {
            for (samples, connections) in samples.iter_mut().zip(["", FOUR]) {
                let server = self.serve();
                samples.push(self.in_a_file(&server.url("", connections), work, threads)?);
            }
            let server = self.serve();
            samples[2].push(self.on_the_device(&server.url("", ""), work, threads)?);
            drop(server);
            let server = self.serve_filled()?;
            samples[3].push(self.fio(&server.url("", ""), work, &[format!("--iodepth={threads}")])?);
            let jobs = [format!("--numjobs={threads}"), "--group_reporting".into(), "--thread".into()];
            samples[4].push(self.fio(&server.url("", ""), work, &jobs)?);
            drop(server);
            let server = self.serve();
            samples[5].push(self.in_batches(&server.url("", ""), work, threads)?);
        }
        let case = match work {
            Work::Write => "4 KiB direct overwrites",
            Work::Read => "4 KiB direct reads",
        };
        let names = ["lanefs", "lanefs, 4 conn.", "device", "fio, N deep", "fio, N jobs", "lanefs, N deep"];
        let medians: Vec<f64> = (names.iter().zip(&samples))
            .map(|(name, samples)| self.report.row(case, name, threads, samples, "IOPS"))
            .collect();
        // One thread with N requests beside one, N threads beside N.
        for (peer, own) in [(3, 5), (4, 0)] {
            let what = format!("{case}, {threads}: {} against {}", names[own], names[peer]);
            self.report.target(&what, Goal::AtLeast(0.9), medians[own] / medians[peer]);
        }
        Ok(())
    }

    fn in_a_file(&self, url: &str, work: Work, threads: usize) -> Outcome<f64> {
        let (volume, file) = volume_with_file(url)?;
        let rate = run(threads, self.time, |worker| {
            let mut page = AlignedBuf::zeroed(PAGE as usize);
            page.fill(worker.thread as u8 | 1);
            let mut random = Random::new(worker.thread as u64);
            while worker.go_on() {
                let at = random.draw() % (FILE / PAGE) * PAGE;
                match work {
                    Work::Write => file.write_at(&page, at).map_err(io::Error::other)?,
                    Work::Read => file.read_at(&mut page, at).map(|_| ()).map_err(io::Error::other)?,
                }
                worker.did(1);
            }
            Ok(())
        })?;
        drop(file);
        volume.close()?;
        Ok(rate)
    }

    /// Operations a second of one thread with `depth` of them in each batch.
    fn in_batches(&self, url: &str, work: Work, depth: usize) -> Outcome<f64> {
        let (volume, file) = volume_with_file(url)?;
        let rate = run(1, self.time, |worker| {
            let mut pages: Vec<_> = (0..depth).map(|_| AlignedBuf::zeroed(PAGE as usize)).collect();
            pages.iter_mut().for_each(|page| page.fill(1));
            let mut random = Random::new(1);
            while worker.go_on() {
                let mut requests = Vec::with_capacity(depth);
                for page in &mut pages {
                    let at = random.draw() % (FILE / PAGE) * PAGE;
                    requests.push(match work {
                        Work::Write => Io::write(&file, page, at),
                        Work::Read => Io::read(&file, page, at),
                    });
                }
                for done in File::run_batch(&mut requests) {
                    done.map_err(io::Error::other)?;
                }
                worker.did(depth as u64);
            }
            Ok(())
        })?;
        drop(file);
        volume.close()?;
        Ok(rate)
    }

    fn on_the_device(&self, url: &str, work: Work, threads: usize) -> Outcome<f64> {
        let device = open_url(url, &FileOptions::new())?;
        fill(&*device)?;
        run(threads, self.time, |worker| {
            let mut page = vec![worker.thread as u8 | 1; PAGE as usize];
            let mut random = Random::new(worker.thread as u64);
            while worker.go_on() {
                let at = random.draw() % (FILE / PAGE) * PAGE;
                let done = match work {
                    Work::Write => device.write_at(&page, at),
                    Work::Read => device.read_at(&mut page, at),
                };
                done.map_err(io::Error::other)?;
                worker.did(1);
            }
            Ok(())
        })
    }

    /// Operations a second of fio on the export.
    fn fio(&self, url: &str, work: Work, how: &[String]) -> Outcome<f64> {
        let rw = if work == Work::Write { "randwrite" } else { "randread" };
        let out = Command::new("fio")
            .args(["--name=n", "--ioengine=nbd", "--bs=4k", "--time_based", "--output-format=json"])
            .args([format!("--uri={url}"), format!("--rw={rw}"), format!("--size={FILE}")])
            .arg(format!("--runtime={}", self.time.as_secs()))
            .args(how)
            .current_dir(self.dir.path())
            .output()?;
        let text = String::from_utf8_lossy(&out.stdout);
        let json = text.find('{').and_then(|at| serde_json::from_str::<serde_json::Value>(&text[at..]).ok());
        let side = if work == Work::Write { "write" } else { "read" };
        let rate = json.and_then(|json| json["jobs"][0][side]["iops"].as_f64()).filter(|rate| *rate > 0.0);
        rate.ok_or_else(|| format!("fio: {text}{}", String::from_utf8_lossy(&out.stderr)).into())
    }

    /// 1 MiB after another: a file of a volume, the device alone, and nbdcopy.
    fn sequential(&mut self, work: Work) -> Outcome<()> {
        let mut samples = [const { Vec::new() }; 4];
        for _ in 0..self.runs {
            for (samples, connections) in samples.iter_mut().zip(["", FOUR]) {
                let server = self.serve();
                let (volume, file) = volume_with_file(&server.url("", connections))?;
                let began = Instant::now();
                in_pieces(|at, piece| match work {
                    Work::Write => Ok(file.write_at(piece, at)?),
                    Work::Read => Ok(file.read_at(piece, at).map(|_| ())?),
                })?;
                if work == Work::Write {
                    file.sync_data()?;
                }
                samples.push(FILE as f64 / MIB as f64 / began.elapsed().as_secs_f64());
                drop(file);
                volume.close()?;
            }
            let server = self.serve();
            let device = open_url(server.url("", ""), &FileOptions::new())?;
            fill(&*device)?;
            let began = Instant::now();
            in_pieces(|at, piece| match work {
                Work::Write => Ok(device.write_at(piece, at)?),
                Work::Read => Ok(device.read_at(piece, at)?),
            })?;
            if work == Work::Write {
                device.flush()?;
            }
            samples[2].push(FILE as f64 / MIB as f64 / began.elapsed().as_secs_f64());
            drop(device);
            samples[3].push(self.nbdcopy(&server, work)?);
        }
        let case = if work == Work::Write { "1 MiB sequential writes" } else { "1 MiB sequential reads" };
        let names = ["lanefs", "lanefs, 4 conn.", "device", "nbdcopy"];
        let medians: Vec<f64> = (names.iter().zip(&samples))
            .map(|(name, samples)| self.report.row(case, name, 1, samples, "MiB/s"))
            .collect();
        let what = format!("{case}, against nbdcopy");
        self.report.target(&what, Goal::AtLeast(0.9), medians[0] / medians[3]);
        Ok(())
    }

    /// MiB a second of nbdcopy: all of an export of that size to nowhere, or a file in memory to
    /// one.
    fn nbdcopy(&self, filled: &Served, work: Work) -> Outcome<f64> {
        let time = |from: &Path, to: &Path, more: &[&str]| -> Outcome<f64> {
            let began = Instant::now();
            let out = Command::new("nbdcopy").args(more).arg(from).arg(to).output()?;
            if !out.status.success() {
                return Err(format!("nbdcopy: {}", String::from_utf8_lossy(&out.stderr)).into());
            }
            Ok(began.elapsed().as_secs_f64())
        };
        let url = filled.url("", "");
        let source = tempfile::Builder::new().tempfile_in("/dev/shm")?;
        // The half of the export that holds something: the other is a hole, and costs nothing.
        let seconds = match work {
            Work::Read => time(Path::new(&url), Path::new("null:"), &[])?,
            Work::Write => {
                let device = open_url(&url, &FileOptions::new())?;
                let mut piece = vec![0; MIB as usize];
                for at in (0..FILE).step_by(MIB as usize) {
                    device.read_at(&mut piece, at)?;
                    std::os::unix::fs::FileExt::write_all_at(source.as_file(), &piece, at)?;
                }
                drop(device);
                time(source.path(), Path::new(&url), &["--flush"])?
            }
        };
        Ok(FILE as f64 / MIB as f64 / seconds)
    }
}

/// Calls `act` with each MiB of a file, in order.
fn in_pieces(mut act: impl FnMut(u64, &mut [u8]) -> Outcome<()>) -> Outcome<()> {
    let mut piece = AlignedBuf::zeroed(MIB as usize);
    piece.fill(3);
    (0..FILE).step_by(MIB as usize).try_for_each(|at| act(at, &mut piece))
}

/// Writes all that is used: memory that the server has not taken yet would be measured with it.
fn fill(device: &dyn BlockDevice) -> Outcome<()> {
    in_pieces(|at, piece| Ok(device.write_at(piece, at)?))?;
    Ok(device.flush()?)
}

/// Makes a volume with a file, filled, that is open for direct I/O.
fn volume_with_file(url: &str) -> Outcome<(Volume, File)> {
    let device: Arc<dyn BlockDevice> = open_url(url, &FileOptions::new())?;
    lanefs_mkfs::format(&*device, &lanefs_mkfs::Options::default())?;
    let volume = OpenOptions::new().write(true).open_device(device)?;
    let file = volume.open_options().read(true).write(true).create(true).direct(true).open("/f")?;
    in_pieces(|at, piece| Ok(file.write_at(piece, at)?))?;
    file.sync_all()?;
    Ok((volume, file))
}
