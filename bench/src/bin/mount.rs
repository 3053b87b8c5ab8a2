//! Compares the mount with Debian's fuse2fs and the kernel's ext4 on a loop device, on one disk, in
//! one run.
//!
//! `make bench-mount`; `ARGS="untar create"` for some cases only, `ARGS=--quick` for one round of
//! each, `--dir DIR` says on which disk. All of them serve one backing file that has been written
//! whole, so that no disk block is new to it; each turn begins with a new volume on it and ends
//! with a silent `e2fsck -fn`. Each round begins with another server. Figures are medians.

use clap::Parser;
use lanefs_bench::cases::{self, Case};
use lanefs_bench::report::{Goal, Report, median};
use lanefs_bench::setup::{lanefs_command, own_folder};
use lanefs_bench::turns::rotated;
use lanefs_lab::Outcome;
use lanefs_tests::{Mounted, Server, run};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// Size of the backing file in bytes.
const SIZE: u64 = 2 << 30;
/// A turn that takes longer is killed.
const LIMIT: Duration = Duration::from_secs(120);
/// Threads of the cases that have many.
const JOBS: usize = 16;
const MIB: usize = 1 << 20;

struct Bench {
    dir: PathBuf,
    image: PathBuf,
    tar: PathBuf,
    lanefs: PathBuf,
    rounds: usize,
    time: Duration,
    report: Report,
}

const CASES: [Case<Bench>; 10] = [
    ("untar", untar),
    ("requests", requests),
    ("create", create),
    ("stream", stream),
    ("tiny", tiny),
    ("overwrite", overwrite),
    ("fsync", fsync),
    ("dbench", dbench),
    ("idle", idle),
    ("sandbox", sandbox),
];

/// The mount beside fuse2fs and the kernel's ext4
#[derive(Debug, Parser)]
struct Args {
    /// Only these cases
    cases: Vec<String>,
    /// One short round of each
    #[arg(long)]
    quick: bool,
    /// On the disk that this folder is on
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
}

fn main() -> ExitCode {
    cases::end("mount", start(Args::parse()))
}

fn start(args: Args) -> Outcome<()> {
    let chosen = cases::choose(&CASES, &args.cases)?;
    // `make bench-mount` builds the command into the same folder.
    let lanefs = lanefs_command()?;
    if !lanefs.is_file() {
        return Err(format!("{} is missing: run make bench-mount", lanefs.display()).into());
    }
    let own = own_folder(args.dir, &["mke2fs", "losetup", "mount", "fuse2fs", "dbench", "tar"])?;
    let mut bench = Bench {
        dir: own.path().to_owned(),
        image: own.path().join("volume.img"),
        tar: own.path().join("files.tar"),
        lanefs,
        rounds: if args.quick { 1 } else { 3 },
        time: Duration::from_millis(if args.quick { 500 } else { 1000 }),
        report: Report::new("mount"),
    };
    let mut backing = File::create(&bench.image)?;
    for _ in 0..SIZE / MIB as u64 {
        backing.write_all(&vec![0x5a; MIB])?;
    }
    backing.sync_all()?;
    cases::run(&mut bench, &chosen)?;
    println!("\n{}", bench.report.finish()?.display());
    Ok(())
}

impl Bench {
    fn lanefs(&self) -> Server {
        Server::Lanefs(self.lanefs.clone())
    }

    /// lanefs, the kernel, and fuse2fs.
    fn all(&self) -> Vec<Server> {
        vec![self.lanefs(), Server::KernelDirect, Server::Fuse2fs]
    }

    fn kernel(&self) -> Vec<Server> {
        vec![self.lanefs(), Server::KernelDirect]
    }

    fn mount(&self, server: &Server) -> Mounted {
        let options = if let Server::Lanefs(_) = server { "allow_other,default_permissions" } else { "" };
        Mounted::new(server, &self.image, options, LIMIT)
    }

    /// A new volume in the blocks of a backing file, which stay its own.
    fn make(&self, image: &Path) -> Outcome<()> {
        let image = image.to_str().ok_or("a path that is not UTF-8")?;
        let how = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
        run("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "4096", "-E", how, image]);
        // Flushes earlier writes, so that this turn does not pay for them.
        File::open(image)?.sync_all()?;
        Ok(())
    }

    /// Lets each server do `work` once a round on a new volume; `work` gives one figure for each of
    /// `names`. The medians, by name and by server.
    fn turns(
        &mut self,
        names: &[(&str, &'static str)],
        threads: usize,
        servers: &[Server],
        work: impl Fn(&Self, Mounted) -> Outcome<(Vec<f64>, Mounted)>,
    ) -> Outcome<Vec<Vec<f64>>> {
        let mut samples = vec![vec![Vec::new(); servers.len()]; names.len()];
        for number in rotated(self.rounds, servers.len()) {
            let server = &servers[number];
            self.make(&self.image)?;
            let mounted = self.mount(server);
            let (figures, mounted) = work(self, mounted).map_err(|e| format!("{}: {e}", server.name()))?;
            mounted.unmount();
            for (name, figure) in figures.into_iter().enumerate() {
                samples[name][number].push(figure);
            }
        }
        let mut medians = Vec::new();
        for ((name, unit), samples) in names.iter().zip(&samples) {
            let row = |(server, samples): (&Server, &Vec<f64>)| {
                self.report.row(name, server.name(), threads, samples, unit)
            };
            medians.push(servers.iter().zip(samples).map(row).collect());
        }
        Ok(medians)
    }

    /// lanefs over one of the others.
    fn ratio(&mut self, what: &str, goal: f64, medians: &[f64], peer: usize) {
        let got = if medians[peer] > 0.0 { medians[0] / medians[peer] } else { 0.0 };
        self.report.target(what, Goal::AtLeast(goal), got);
    }
}

/// An archive of 5,000 files in 50 folders, of 0 to 12 KiB.
fn archive(bench: &Bench) -> Outcome<()> {
    if bench.tar.exists() {
        return Ok(());
    }
    let tree = bench.dir.join("tree");
    for n in 0..5000usize {
        let folder = tree.join(format!("d{}", n / 100));
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(format!("file{n}")), vec![n as u8; n * 7919 % 12_288])?;
    }
    run(
        "tar",
        &["-C".as_ref(), bench.dir.as_os_str(), "-cf".as_ref(), bench.tar.as_os_str(), "tree".as_ref()],
    );
    fs::remove_dir_all(tree)?;
    fs::read(&bench.tar)?;
    Ok(())
}

/// Files a second.
fn unpack(bench: &Bench, dir: &Path) -> f64 {
    let began = Instant::now();
    run("tar", &["-C".as_ref(), dir.as_os_str(), "-xf".as_ref(), bench.tar.as_os_str()]);
    5000.0 / began.elapsed().as_secs_f64()
}

fn untar(bench: &mut Bench) -> Outcome<()> {
    archive(bench)?;
    let servers = bench.all();
    let medians = bench.turns(&[("untar 5,000 files", "files/s")], 1, &servers, |bench, mounted| {
        Ok((vec![unpack(bench, mounted.path())], mounted))
    })?;
    bench.ratio("untar of 5,000 files, against fuse2fs", 10.0, &medians[0], 2);
    bench.ratio("untar of 5,000 files, against the kernel", 0.5, &medians[0], 1);
    Ok(())
}

/// What the options that save requests gain: untar, and reading all of its files, the first time
/// after a mount and again with another open of each.
fn requests(bench: &mut Bench) -> Outcome<()> {
    const MODES: [&str; 5] = ["rw", "noopen", "noxattr", "noopen,noxattr", "fuse2fs"];
    const WORK: [&str; 3] = ["untar 5,000 files", "read 5,000 files", "read 5,000 files again"];
    archive(bench)?;
    let mut samples = [const { [const { Vec::new() }; MODES.len()] }; WORK.len()];
    for number in rotated(bench.rounds, MODES.len()) {
        bench.make(&bench.image)?;
        let (server, options) = match MODES[number] {
            "fuse2fs" => (Server::Fuse2fs, String::new()),
            mode => (bench.lanefs(), format!("allow_other,default_permissions,{mode}")),
        };
        let mount = || Mounted::new(&server, &bench.image, &options, LIMIT);
        let mounted = mount();
        samples[0][number].push(unpack(bench, mounted.path()));
        mounted.unmount_only();
        let mounted = mount();
        for samples in &mut samples[1..] {
            samples[number].push(read_tree(mounted.path())?);
        }
        mounted.unmount();
    }
    for (work, samples) in WORK.iter().zip(&samples) {
        let name = format!("requests: {work}");
        let row = |(mode, samples): (&&str, &Vec<f64>)| bench.report.row(&name, mode, 1, samples, "files/s");
        let medians: Vec<f64> = MODES.iter().zip(samples).map(row).collect();
        if *work == WORK[0] {
            let what = "untar of 5,000 files with noopen,noxattr, against fuse2fs";
            bench.report.target(what, Goal::AtLeast(12.0), medians[3] / medians[4]);
        }
    }
    Ok(())
}

/// Files a second.
fn read_tree(root: &Path) -> Outcome<f64> {
    let (began, mut files) = (Instant::now(), 0_u32);
    for dir in fs::read_dir(root.join("tree"))? {
        for file in fs::read_dir(dir?.path())? {
            fs::read(file?.path())?;
            files += 1;
        }
    }
    Ok(f64::from(files) / began.elapsed().as_secs_f64())
}

fn create(bench: &mut Bench) -> Outcome<()> {
    let servers = bench.all();
    let medians = bench.turns(&[("create 10,000 files", "files/s")], 1, &servers, |_, mounted| {
        let began = Instant::now();
        for n in 0..10_000 {
            File::create(mounted.path().join(format!("file{n}")))?;
        }
        Ok((vec![10_000.0 / began.elapsed().as_secs_f64()], mounted))
    })?;
    bench.ratio("creating 10,000 files, against fuse2fs", 10.0, &medians[0], 2);
    Ok(())
}

/// Writes of `unit` bytes, in MiB/s with the close; with an fsync before it, if `synced`.
fn write_file(path: &Path, unit: usize, size: usize, synced: bool) -> Outcome<f64> {
    let block = vec![0xa5; unit];
    let began = Instant::now();
    let mut file = File::create(path)?;
    for _ in 0..size / unit {
        file.write_all(&block)?;
    }
    if synced {
        file.sync_all()?;
    }
    drop(file);
    Ok((size / MIB) as f64 / began.elapsed().as_secs_f64())
}

/// Sequential writes and reads. The small ones end with a close, the large ones with an fsync; a
/// read follows a new mount.
fn stream(bench: &mut Bench) -> Outcome<()> {
    const SMALL: usize = 64 * MIB;
    const LARGE: usize = 512 * MIB;
    let servers = bench.all();
    let medians = bench.turns(&[("sequential write, 4 KiB", "MiB/s")], 1, &servers, |_, mounted| {
        Ok((vec![write_file(&mounted.path().join("f"), 4096, SMALL, false)?], mounted))
    })?;
    bench.ratio("sequential 4 KiB buffered write, against fuse2fs", 8.0, &medians[0], 2);

    let servers = bench.kernel();
    let names = [("sequential write and fsync, 128 KiB", "MiB/s"), ("sequential read, 128 KiB", "MiB/s")];
    let medians = bench.turns(&names, 1, &servers, |bench, mounted| {
        let written = write_file(&mounted.path().join("f"), MIB / 8, LARGE, true)?;
        let server = match mounted.pid() {
            Some(_) => bench.lanefs(),
            None => Server::KernelDirect,
        };
        mounted.unmount_only();
        // Neither side may read its last writes from the host's page cache.
        let image = File::open(&bench.image)?;
        rustix::fs::fadvise(&image, 0, None, rustix::fs::Advice::DontNeed)?;
        let mounted = bench.mount(&server);
        let mut file = File::open(mounted.path().join("f"))?;
        let mut buf = vec![0; MIB / 8];
        let began = Instant::now();
        while file.read(&mut buf)? > 0 {}
        let read = (LARGE / MIB) as f64 / began.elapsed().as_secs_f64();
        drop(file);
        Ok((vec![written, read], mounted))
    })?;
    bench.ratio("sequential buffered write, against the kernel", 0.9, &medians[0], 1);
    bench.ratio("sequential buffered read, against the kernel", 0.9, &medians[1], 1);
    Ok(())
}

/// A generator of places, of no other quality than to be quick.
fn places(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % below
    }
}

/// Source 001: one byte at random places of a file that is cached.
fn tiny(bench: &mut Bench) -> Outcome<()> {
    let servers = bench.kernel();
    let medians = bench.turns(&[("random 1-byte writes", "writes/s")], 1, &servers, |bench, mounted| {
        const SIZE: usize = 64 * MIB;
        let path = mounted.path().join("f");
        write_file(&path, MIB, SIZE, true)?;
        let file = File::options().write(true).open(&path)?;
        let mut draw = places(1);
        let (began, mut done) = (Instant::now(), 0u64);
        while began.elapsed() < bench.time {
            for _ in 0..256 {
                file.write_all_at(&[1], draw(SIZE as u64))?;
            }
            done += 256;
        }
        let rate = done as f64 / began.elapsed().as_secs_f64();
        drop(file);
        Ok((vec![rate], mounted))
    })?;
    bench.ratio("1-byte buffered writes, against the kernel", 0.9, &medians[0], 1);
    Ok(())
}

/// `work` by all jobs, each until its time is over; how often they did it in a second.
fn jobs(time: Duration, work: impl Fn(usize, &dyn Fn() -> bool) -> Outcome<u64> + Sync) -> Outcome<f64> {
    let began = Instant::now();
    let goes_on = || began.elapsed() < time;
    let done: Vec<Outcome<u64>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..JOBS)
            .map(|n| {
                scope.spawn({
                    let work = &work;
                    let goes_on = &goes_on;
                    move || work(n, goes_on)
                })
            })
            .collect();
        workers.into_iter().map(|w| w.join().unwrap_or_else(|_| Err("a job panicked".into()))).collect()
    });
    let seconds = began.elapsed().as_secs_f64();
    Ok(done.into_iter().sum::<Outcome<u64>>()? as f64 / seconds)
}

/// Sources 000 and 003: direct overwrites of 4 KiB.
fn overwrite(bench: &mut Bench) -> Outcome<()> {
    const BLOCKS: u64 = 256 * MIB as u64 / 4096;
    let servers = bench.kernel();
    let medians =
        bench.turns(&[("direct 4 KiB overwrites", "writes/s")], JOBS, &servers, |bench, mounted| {
            let path = mounted.path().join("f");
            write_file(&path, MIB, 256 * MIB, true)?;
            let rate = jobs(bench.time * 2, |job, goes_on| {
                let file = File::options().write(true).custom_flags(libc::O_DIRECT).open(&path)?;
                let room = vec![job as u8; 8192];
                let at = room.as_ptr().align_offset(4096);
                let block = &room[at..at + 4096];
                let (mut draw, mut done) = (places(job as u64 + 1), 0);
                while goes_on() {
                    file.write_all_at(block, draw(BLOCKS) * 4096)?;
                    done += 1;
                }
                Ok(done)
            })?;
            Ok((vec![rate], mounted))
        })?;
    bench.ratio("4 KiB random direct overwrites at 16 jobs, against the kernel", 0.6, &medians[0], 1);
    Ok(())
}

/// Each thread appends 4 KiB to a file of its own and syncs it.
fn fsync(bench: &mut Bench) -> Outcome<()> {
    let servers = bench.kernel();
    let medians =
        bench.turns(&[("append 4 KiB and fsync", "fsyncs/s")], JOBS, &servers, |bench, mounted| {
            let rate = jobs(bench.time * 2, |job, goes_on| {
                let mut file = File::create(mounted.path().join(format!("f{job}")))?;
                let mut done = 0;
                while goes_on() {
                    file.write_all(&[job as u8; 4096])?;
                    file.sync_all()?;
                    done += 1;
                }
                Ok(done)
            })?;
            Ok((vec![rate], mounted))
        })?;
    bench.ratio("fsync at 16 threads, against the kernel", 1.0, &medians[0], 1);
    Ok(())
}

/// It syncs now and then. All servers do what that asks for: fuse2fs calls fsync(2) on the image
/// twice for each (seen by strace).
fn dbench(bench: &mut Bench) -> Outcome<()> {
    let servers = bench.all();
    let seconds = (bench.time.as_secs_f64() * 3.0).ceil().to_string();
    let medians = bench.turns(&[("dbench", "MB/s")], 4, &servers, |_, mounted| {
        let out =
            Command::new("dbench").arg("-D").arg(mounted.path()).args(["-t", &seconds, "4"]).output()?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let rate = text.lines().find_map(|l| l.strip_prefix("Throughput ")?.split(' ').next()?.parse().ok());
        let rate = rate.ok_or_else(|| format!("{}\n{text}", String::from_utf8_lossy(&out.stderr)))?;
        Ok((vec![rate], mounted))
    })?;
    bench.ratio("dbench with 4 clients, against fuse2fs", 10.0, &medians[0], 2);
    Ok(())
}

/// Memory and wake-ups of a mount that did something and then nothing.
fn idle(bench: &mut Bench) -> Outcome<()> {
    archive(bench)?;
    let servers = [bench.lanefs()];
    let names = [("idle: memory", "MiB"), ("idle: wake-ups", "in 5 s")];
    let medians = bench.turns(&names, 1, &servers, |bench, mounted| {
        let pid = mounted.pid().ok_or("no process")?;
        run("tar", &["-C".as_ref(), mounted.path().as_os_str(), "-xf".as_ref(), bench.tar.as_os_str()]);
        // Longer than the age at which anything is written out or committed.
        std::thread::sleep(Duration::from_secs(if bench.rounds > 1 { 12 } else { 7 }));
        let before = sleeps(pid)?;
        std::thread::sleep(Duration::from_secs(5));
        let woken = sleeps(pid)?.saturating_sub(before);
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        Ok((vec![number(&status, "VmRSS:")? as f64 / 1024.0, woken as f64], mounted))
    })?;
    bench.report.target("memory of an idle mount, MiB", Goal::AtMost(32.0), medians[0][0]);
    bench.report.target("wake-ups of an idle mount in 5 s", Goal::AtMost(0.0), medians[1][0]);
    Ok(())
}

/// What the confinement of the server costs. Two volumes are mounted at once, one of them with
/// `sandbox=off`, and have short turns, so that both meet the same machine; half-way they change
/// their backing files. The result is the median of what single pairs of turns give: two mounts of
/// one kind that are measured one after the other may differ by a quarter.
fn sandbox(bench: &mut Bench) -> Outcome<()> {
    const MODES: [(&str, &str); 2] = [("sandbox", "sandbox=require"), ("no sandbox", "sandbox=off")];
    const WORK: [(&str, &str); 3] = [
        ("sandbox: create and remove", "files/s"),
        ("sandbox: write 4 KiB", "MiB/s"),
        ("sandbox: direct read 4 KiB", "reads/s"),
    ];
    let mut images = [bench.image.clone(), bench.dir.join("other.img")];
    fs::copy(&images[0], &images[1])?;
    let mut samples = vec![[Vec::new(), Vec::new()]; WORK.len()];
    for _ in 0..2 {
        let mut mounts = Vec::new();
        for ((_, options), image) in MODES.iter().zip(&images) {
            bench.make(image)?;
            let mounted = Mounted::new(&bench.lanefs(), image, options, LIMIT);
            write_file(&mounted.path().join("f"), MIB, SANDBOX_FILE, true)?;
            mounts.push(mounted);
        }
        for turn in 0..bench.rounds * 12 {
            for mode in [turn % 2, 1 - turn % 2] {
                let figures = sandbox_turn(mounts[mode].path(), bench.time / 10)?;
                for (of_work, figure) in samples.iter_mut().zip(figures) {
                    of_work[mode].push(figure);
                }
            }
        }
        mounts.into_iter().for_each(Mounted::unmount);
        images.reverse();
    }
    for ((name, unit), of_work) in WORK.iter().zip(&samples) {
        for ((mode, _), samples) in MODES.iter().zip(of_work) {
            bench.report.row(name, mode, 1, samples, unit);
        }
        let ratios: Vec<f64> =
            of_work[0].iter().zip(&of_work[1]).map(|(with, without)| with / without).collect();
        bench.report.target(&format!("{name}, against sandbox=off"), Goal::AtLeast(0.97), median(&ratios));
    }
    Ok(())
}

/// Size of the file that direct reads are from, in bytes.
const SANDBOX_FILE: usize = 128 * MIB;

/// Requests of each kind that a server has the most of: names, cached writes, reads of the device.
fn sandbox_turn(dir: &Path, time: Duration) -> Outcome<[f64; 3]> {
    let (began, mut names) = (Instant::now(), 0u64);
    while began.elapsed() < time {
        let path = dir.join(format!("file{names}"));
        File::create(&path)?;
        fs::remove_file(path)?;
        names += 1;
    }
    let names = names as f64 / began.elapsed().as_secs_f64();
    let written = write_file(&dir.join("w"), 4096, 16 * MIB, true)?;
    let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(dir.join("f"))?;
    let mut room = vec![0; 8192];
    let at = room.as_ptr().align_offset(4096);
    let (mut draw, began, mut reads) = (places(1), Instant::now(), 0u64);
    while began.elapsed() < time {
        file.read_exact_at(&mut room[at..at + 4096], draw(SANDBOX_FILE as u64 / 4096) * 4096)?;
        reads += 1;
    }
    Ok([names, written, reads as f64 / began.elapsed().as_secs_f64()])
}

fn number(status: &str, field: &str) -> Outcome<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix(field)).ok_or("no such field")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// How often its threads went to sleep, which is how often they were woken.
fn sleeps(pid: u32) -> Outcome<u64> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = fs::read_to_string(task?.path().join("status"))?;
        sum += number(&status, "voluntary_ctxt_switches:")?;
    }
    Ok(sum)
}
