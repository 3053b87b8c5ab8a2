//! Compares basic operations with peers: mkfs and import with mke2fs, export with cp, names with
//! the kernel. Peer and lanefs take turns, in one run, on one file system.
//!
//! `make bench-foundation`; `ARGS=--quick` for a tenth of it, `ARGS="--runs 5"` for more of it.

use clap::Parser;
use lanefs::{NewAttr, Volume};
use lanefs_bench::cases::{self, Effort};
use lanefs_bench::process::{self, Cost};
use lanefs_bench::report::{Goal, Report};
use lanefs_bench::setup::{lanefs_command, own_folder};
use lanefs_bench::tree::make_tree;
use lanefs_lab::Outcome;
use lanefs_tests::{LoopMount, mke2fs};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

struct Bench {
    dir: PathBuf,
    runs: usize,
    files: u32,
    names: u32,
    lanefs: PathBuf,
    report: Report,
}

/// mkfs, import, export and names against the peers
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    effort: Effort,
}

fn main() -> ExitCode {
    cases::end("foundation", start(Args::parse()))
}

fn start(Args { effort }: Args) -> Outcome<()> {
    let dir = own_folder(std::env::temp_dir(), &["mke2fs", "/usr/bin/time", "cp"])?;
    let mut bench = Bench {
        dir: dir.path().to_owned(),
        runs: effort.runs(5),
        files: if effort.quick { 2_000 } else { 20_000 },
        names: if effort.quick { 10_000 } else { 100_000 },
        lanefs: lanefs_command()?,
        report: Report::new("foundation"),
    };
    bench.mkfs()?;
    bench.large_volume()?;
    bench.names()?;
    bench.import_export()?;
    println!("\n{}", bench.report.finish()?.display());
    Ok(())
}

impl Bench {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn run<S: AsRef<OsStr>>(&self, program: &Path, args: &[S]) -> Outcome<Cost> {
        process::run(&self.path("time"), program, args)
    }

    /// mkfs of a sparse file of 1 TiB.
    fn mkfs(&mut self) -> Outcome<()> {
        let (ours, theirs) = (self.path("ours.img"), self.path("theirs.img"));
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for _ in 0..self.runs {
            remove(&[&ours, &theirs])?;
            fs::File::create(&theirs)?.set_len(1 << 40)?;
            let args =
                ["-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=0,lazy_journal_init=0"].map(OsStr::new);
            let args: Vec<&OsStr> = args.into_iter().chain([theirs.as_os_str()]).collect();
            b.push(self.run(Path::new("mke2fs"), &args)?.seconds);
            let args = [OsStr::new("mkfs"), OsStr::new("--size"), OsStr::new("1T"), ours.as_os_str()];
            a.push(self.run(&self.lanefs, &args)?.seconds);
        }
        remove(&[&ours, &theirs])?;
        let a = self.report.row("mkfs of 1 TiB sparse", "lanefs", 1, &a, "s");
        let b = self.report.row("mkfs of 1 TiB sparse", "mke2fs", 1, &b, "s");
        self.report.target("mkfs of a 1 TiB sparse file, of mke2fs's time", Goal::AtMost(1.5), a / b);
        Ok(())
    }

    /// Open and ls of one file in a sparse volume of 15 TiB.
    fn large_volume(&mut self) -> Outcome<()> {
        let image = self.path("large.img");
        self.run(
            &self.lanefs,
            &[OsStr::new("mkfs"), OsStr::new("--size"), OsStr::new("15T"), image.as_os_str()],
        )?;
        let inside = |p: &str| format!("{}:{p}", image.display());
        let source = self.path("one");
        fs::write(&source, "one")?;
        self.run(&self.lanefs, &["cp", &source.display().to_string(), &inside("/one")])?;
        let costs: Vec<Cost> = (0..self.runs)
            .map(|_| self.run(&self.lanefs, &["ls", "-l", &inside("/one")]))
            .collect::<Outcome<_>>()?;
        let seconds: Vec<f64> = costs.iter().map(|c| c.seconds).collect();
        let peak: Vec<f64> = costs.iter().map(|c| c.peak_mib).collect();
        self.report.row("open and ls in 15 TiB", "lanefs", 1, &seconds, "s");
        let peak = self.report.row("open and ls in 15 TiB", "lanefs", 1, &peak, "MiB peak");
        self.report.target("memory of open and ls in a 15 TiB volume, MiB", Goal::AtMost(64.0), peak);
        remove(&[&image])?;
        Ok(())
    }

    /// Creating and unlinking many names in one directory: the library against the kernel.
    fn names(&mut self) -> Outcome<()> {
        let image = self.path("names.img");
        let names: Vec<String> = (0..self.names).map(|i| format!("file-{i:06}")).collect();
        let (mut ours, mut theirs) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for _ in 0..self.runs {
            fresh_volume(&image)?;
            let [create, unlink] = kernel_names(&image, &names)?;
            theirs[0].push(create);
            theirs[1].push(unlink);
            fresh_volume(&image)?;
            let [create, unlink] = library_names(&image, &names)?;
            ours[0].push(create);
            ours[1].push(unlink);
        }
        remove(&[&image])?;
        let n = self.names;
        let mut total = [0.0, 0.0];
        for (i, what) in ["create", "unlink"].into_iter().enumerate() {
            let case = format!("{what} {n} files");
            let a = self.report.row(&case, "lanefs library", 1, &ours[i], "s");
            let b = self.report.row(&case, "kernel ext4", 1, &theirs[i], "s");
            self.report.target(
                &format!("{case} in one directory, of the kernel's time"),
                Goal::AtMost(1.0),
                a / b,
            );
            total[0] += a;
            total[1] += b;
        }
        let what = format!("create and unlink {n} files, of the kernel's time");
        self.report.target(&what, Goal::AtMost(1.0), total[0] / total[1]);
        Ok(())
    }

    /// import against mke2fs -d, export against cp -a from the kernel's mount.
    fn import_export(&mut self) -> Outcome<()> {
        let tree = self.path("tree");
        let bytes = make_tree(&tree, self.files)?;
        println!("tree: {} files, {} MiB", self.files, bytes >> 20);
        let size = (bytes * 3 / 2).max(64 << 20);
        let (ours, theirs) = (self.path("ours.img"), self.path("theirs.img"));
        let inside = format!("{}:/", ours.display());
        let (mut a, mut b, mut peak, mut with_mkfs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.runs {
            remove(&[&ours, &theirs])?;
            let (kib, source) = (format!("{}k", size >> 10), tree.display().to_string());
            let target = theirs.display().to_string();
            b.push(
                self.run(Path::new("mke2fs"), &["-q", "-F", "-t", "ext4", "-d", &source, &target, &kib])?
                    .seconds,
            );
            let volume = ours.display().to_string();
            let made = self.run(&self.lanefs, &["mkfs", "--size", &size.to_string(), &volume])?;
            let cost = self.run(&self.lanefs, &["import", &source, &inside])?;
            a.push(cost.seconds);
            with_mkfs.push(made.seconds + cost.seconds);
            peak.push(cost.peak_mib);
        }
        let case = format!("import of {} files", self.files);
        self.report.row(&case, "lanefs import", 1, &a, "s");
        let a = self.report.row(&case, "lanefs with mkfs", 1, &with_mkfs, "s");
        let b = self.report.row(&case, "mke2fs -d", 1, &b, "s");
        let peak = self.report.row(&case, "lanefs import", 1, &peak, "MiB peak");
        self.report.target("mkfs and import, of the time of mke2fs -d", Goal::AtMost(1.0), a / b);
        self.report.target("memory of import, MiB", Goal::AtMost(256.0), peak);
        self.export(&ours, &inside)
    }

    fn export(&mut self, image: &Path, inside: &str) -> Outcome<()> {
        let out = self.path("out");
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for _ in 0..self.runs {
            let mount = LoopMount::new(image, "ro");
            fs::create_dir(&out)?;
            let from = mount.path().join(".");
            b.push(
                self.run(Path::new("cp"), &[OsStr::new("-a"), from.as_os_str(), out.as_os_str()])?.seconds,
            );
            mount.unmount();
            fs::remove_dir_all(&out)?;
            let args = [OsStr::new("export"), OsStr::new(inside), out.as_os_str()];
            a.push(self.run(&self.lanefs, &args)?.seconds);
            fs::remove_dir_all(&out)?;
        }
        let case = format!("export of {} files", self.files);
        let a = self.report.row(&case, "lanefs export", 1, &a, "s");
        let b = self.report.row(&case, "cp -a, loop mount", 1, &b, "s");
        self.report.target("export, of the time of cp -a from the kernel's mount", Goal::AtMost(1.2), a / b);
        Ok(())
    }
}

fn remove(paths: &[&Path]) -> Outcome<()> {
    for path in paths.iter().filter(|p| p.exists()) {
        fs::remove_file(path)?;
    }
    Ok(())
}

fn fresh_volume(image: &Path) -> Outcome<()> {
    remove(&[image])?;
    mke2fs(image, 1 << 30, &["-t", "ext4", "-N", "131072", "-E", "lazy_itable_init=0,lazy_journal_init=0"]);
    Ok(())
}

/// Seconds to create and to unlink, each with everything made durable at its end.
fn library_names(image: &Path, names: &[String]) -> Outcome<[f64; 2]> {
    let volume = Volume::open(image)?;
    volume.create_dir("/d")?;
    let dir = volume.open_dir("/d")?;
    let began = Instant::now();
    for name in names {
        dir.create_new_file(name, NewAttr { permissions: 0o644, uid: 0, gid: 0 })?;
    }
    volume.sync()?;
    let create = began.elapsed().as_secs_f64();
    let began = Instant::now();
    for name in names {
        dir.remove_file(name)?;
    }
    volume.sync()?;
    let unlink = began.elapsed().as_secs_f64();
    drop(dir);
    volume.close()?;
    Ok([create, unlink])
}

fn kernel_names(image: &Path, names: &[String]) -> Outcome<[f64; 2]> {
    use rustix::fs::{AtFlags, Mode, OFlags, openat, syncfs, unlinkat};
    let mount = LoopMount::new(image, "");
    let path = mount.path().join("d");
    fs::create_dir(&path)?;
    let dir = fs::File::open(&path)?;
    let began = Instant::now();
    for name in names {
        openat(&dir, name, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY, Mode::from_raw_mode(0o644))?;
    }
    syncfs(&dir)?;
    let create = began.elapsed().as_secs_f64();
    let began = Instant::now();
    for name in names {
        unlinkat(&dir, name, AtFlags::empty())?;
    }
    syncfs(&dir)?;
    let unlink = began.elapsed().as_secs_f64();
    drop(dir);
    mount.unmount();
    Ok([create, unlink])
}
