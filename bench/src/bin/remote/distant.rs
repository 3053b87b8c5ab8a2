//! A volume on a distant device, mounted: 1 ms a read or write, 64 at a time, and 2 ms a flush.
//! Beside fuse2fs over nbdfuse on the same export; and an import beside what the link carries.

use crate::Bench;
use lanefs_bench::report::Goal;
use lanefs_bench::turns::rotated;
use lanefs_lab::Outcome;
use lanefs_tests::Served;
use std::fs::{self, File};
use std::io::Write;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SIZE: &str = "2G";
const FILES: usize = 1000;
const DIRS: usize = 100;
const FILES_IN_DIR: usize = 200;
/// What an import brings, in files of this size.
const IMPORTED: u64 = 1 << 30;
const IMPORTED_FILE: u64 = 64 << 20;
/// The bits a second of the link that an import goes over.
const LINK: &str = "rate=10G";

#[derive(Debug, Clone, Copy, PartialEq)]
enum Server {
    /// With these mount options.
    Lanefs(&'static str),
    Fuse2fs,
}

impl Server {
    fn name(self) -> String {
        match self {
            Self::Lanefs("rw") => "lanefs".into(),
            Self::Lanefs(options) => format!("lanefs, {options}"),
            Self::Fuse2fs => "fuse2fs".into(),
        }
    }
}

/// A mounted volume; nothing of it is cached.
struct Mount {
    dir: PathBuf,
    /// Of fuse2fs, the mount of nbdfuse.
    device: Option<(PathBuf, Child)>,
    child: Child,
}

/// Starts a program that mounts something, and waits until `path` is there.
fn start(command: &mut Command, path: &Path) -> Outcome<Child> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
    let began = Instant::now();
    while !path.exists() {
        if let Some(status) = child.try_wait()? {
            return Err(format!("{command:?}: {status}").into());
        }
        if began.elapsed() > Duration::from_secs(30) {
            let _ = child.kill();
            return Err(format!("{command:?} does not mount").into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(child)
}

fn unmount(dir: &Path, mut child: Child) -> Outcome<()> {
    let status = Command::new("fusermount3").arg("-u").arg(dir).status()?;
    if !status.success() {
        let _ = child.kill();
        return Err(format!("fusermount3 -u {}: {status}", dir.display()).into());
    }
    child.wait()?;
    Ok(())
}

impl Mount {
    fn new(bench: &Bench, server: Server, url: &str) -> Outcome<Self> {
        let dir = tempfile::tempdir_in(bench.dir.path())?.keep();
        // Every volume has it.
        let there = dir.join("lost+found");
        if let Server::Lanefs(options) = server {
            let mut command = Command::new(&bench.lanefs);
            command.args(["mount", "--foreground", "-o", options, url]).arg(&dir);
            return Ok(Self { child: start(&mut command, &there)?, dir, device: None });
        }
        let below = tempfile::tempdir_in(bench.dir.path())?.keep();
        let file = below.join("nbd");
        let device = start(Command::new("nbdfuse").arg(&below).arg(url), &file)?;
        let child = start(Command::new("fuse2fs").arg("-f").arg(&file).arg(&dir), &there)?;
        Ok(Self { dir, device: Some((below, device)), child })
    }

    fn end(self) -> Outcome<()> {
        unmount(&self.dir, self.child)?;
        self.device.map_or(Ok(()), |(dir, child)| unmount(&dir, child))
    }
}

impl Bench {
    /// Serves a file with latency.
    fn serve_distant(&self, image: &Path) -> Outcome<Served> {
        let library = self.dir.path().join("slow_flush.so");
        let source = self.dir.path().join("slow_flush.c");
        fs::write(&source, include_str!("../../slow_flush.c"))?;
        let cc = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status()?;
        if !cc.success() {
            return Err(format!("cc {}: {cc}", source.display()).into());
        }
        let file = format!("file={}", image.display());
        let args = ["--threads=64", "--filter=delay", "file", &file, "rdelay=1ms", "wdelay=1ms"];
        Ok(Served::nbdkit_preloaded(&self.socket(), &library, &args))
    }

    /// Runs the command.
    fn lanefs(&self, args: &[&str]) -> Outcome<()> {
        let out = Command::new(&self.lanefs).args(args).output()?;
        match out.status.success() {
            true => Ok(()),
            false => Err(format!("lanefs {args:?}: {}", String::from_utf8_lossy(&out.stderr)).into()),
        }
    }

    /// Makes a volume in memory. `tree` is what it gets.
    fn new_volume(&self, tree: Option<&Path>) -> Outcome<tempfile::TempPath> {
        let image = tempfile::Builder::new().prefix("lanefs-remote").tempfile_in("/dev/shm")?;
        let path = image.into_temp_path();
        let name = path.to_str().ok_or("a path that is not UTF-8")?;
        // Of the host alone, as fuse2fs knows no protection of several.
        self.lanefs(&["mkfs", "-q", "-F", "--size", SIZE, name])?;
        if let Some(tree) = tree {
            self.lanefs(&["import", tree.to_str().ok_or("a path")?, &format!("{name}:/")])?;
        }
        Ok(path)
    }

    /// Times `work` of some threads in a mount by each server, each on a new volume.
    fn distant(
        &mut self,
        case: &str,
        threads: usize,
        servers: &[Server],
        tree: Option<&Path>,
        work: impl Fn(&Path) -> Outcome<()>,
    ) -> Outcome<Vec<f64>> {
        let mut samples = vec![Vec::new(); servers.len()];
        for number in rotated(self.runs, servers.len()) {
            let image = self.new_volume(tree)?;
            let served = self.serve_distant(&image)?;
            let mount = Mount::new(self, servers[number], &served.url("", ""))?;
            let began = Instant::now();
            let done = work(&mount.dir);
            samples[number].push(began.elapsed().as_secs_f64());
            mount.end()?;
            done?;
        }
        let row = |(server, samples): (&Server, &Vec<f64>)| {
            self.report.row(case, &server.name(), threads, samples, "s")
        };
        Ok(servers.iter().zip(&samples).map(row).collect())
    }

    pub(crate) fn create_and_fsync(&mut self, threads: usize) -> Outcome<()> {
        let case = "create and fsync 1,000 files";
        let make = |dir: &Path, thread: usize| -> std::io::Result<()> {
            (0..FILES).skip(thread).step_by(threads).try_for_each(|n| {
                let mut file = File::create(dir.join(format!("file-{n}")))?;
                file.write_all(&[7; 4096])?;
                file.sync_all()
            })
        };
        let servers = [Server::Lanefs("rw"), Server::Fuse2fs];
        let seconds = self.distant(case, threads, &servers, None, |dir| {
            std::thread::scope(|scope| {
                let made: Vec<_> =
                    (0..threads).map(|thread| scope.spawn(move || make(dir, thread))).collect();
                made.into_iter().try_for_each(|made| Ok(made.join().unwrap_or_else(|p| resume_unwind(p))?))
            })
        })?;
        let what = format!("{case} (1 ms, 2 ms), {threads} threads, against fuse2fs");
        self.report.target(&what, Goal::AtLeast(5.0), seconds[1] / seconds[0]);
        Ok(())
    }

    pub(crate) fn list(&mut self) -> Outcome<()> {
        let tree = tempfile::tempdir_in("/dev/shm")?;
        for dir in 0..DIRS {
            let dir = tree.path().join(format!("d{dir}"));
            fs::create_dir(&dir)?;
            (0..FILES_IN_DIR).try_for_each(|n| fs::write(dir.join(format!("file-number-{n}")), b""))?;
        }
        let case = "ls -lR of 20,000 files, cold";
        // Without attributes ls asks for nothing but names and inodes.
        let servers = [Server::Lanefs("rw"), Server::Lanefs("noxattr"), Server::Fuse2fs];
        let seconds = self.distant(case, 1, &servers, Some(tree.path()), |dir| {
            let listed = Command::new("ls").arg("-lR").arg(dir).stdout(Stdio::null()).status()?;
            if listed.success() { Ok(()) } else { Err(format!("ls: {listed}").into()) }
        })?;
        let what = format!("{case} (1 ms), time over that of fuse2fs");
        self.report.target(&what, Goal::AtMost(0.2), seconds[0] / seconds[2]);
        let what = format!("{what}, with noxattr");
        self.report.target(&what, Goal::AtMost(0.2), seconds[1] / seconds[2]);
        Ok(())
    }

    /// An import from memory, beside nbdcopy of as many bytes over the same link.
    pub(crate) fn import(&mut self) -> Outcome<()> {
        let tree = tempfile::tempdir_in("/dev/shm")?;
        let folder = tree.path().join("tree");
        fs::create_dir(&folder)?;
        let whole = tree.path().join("whole");
        let mut copied = File::create(&whole)?;
        let content: Vec<u8> =
            (0..IMPORTED_FILE / 8).flat_map(|word| (word * 0x9e37_79b9).to_le_bytes()).collect();
        for n in 0..IMPORTED / IMPORTED_FILE {
            fs::write(folder.join(n.to_string()), &content)?;
            copied.write_all(&content)?;
        }
        drop((copied, content));
        let serve = || Served::nbdkit(&self.socket(), &["--filter=rate", "memory", SIZE, LINK]);
        let mib = IMPORTED as f64 / f64::from(1 << 20);
        let (mut imports, mut copies) = (Vec::new(), Vec::new());
        // The first of each is not counted: memory that the machine has not used yet costs more.
        for run in 0..=self.runs {
            let server = serve();
            let url = server.url("", "");
            self.lanefs(&["mkfs", "-q", "-F", "-O", "^mmp", &url])?;
            let began = Instant::now();
            self.lanefs(&["import", folder.to_str().ok_or("a path")?, &format!("{url}:/")])?;
            let import = mib / began.elapsed().as_secs_f64();
            drop(server);
            let server = serve();
            let began = Instant::now();
            let copied =
                Command::new("nbdcopy").arg("--flush").arg(&whole).arg(server.url("", "")).status()?;
            if !copied.success() {
                return Err(format!("nbdcopy: {copied}").into());
            }
            if run > 0 {
                imports.push(import);
                copies.push(mib / began.elapsed().as_secs_f64());
            }
        }
        let case = "import of 1 GiB, 10 Gbit/s";
        let lanefs = self.report.row(case, "lanefs", 1, &imports, "MiB/s");
        let link = self.report.row(case, "nbdcopy", 1, &copies, "MiB/s");
        self.report.target(
            "import of 1 GiB, over what nbdcopy brings over the link",
            Goal::AtLeast(0.8),
            lanefs / link,
        );
        Ok(())
    }
}
