//! fio in its own words on lanefs: the engine is built against the headers of the fio that is
//! installed, jobs verify what they wrote, and e2fsck judges the volume.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panic")]

use lanefs_tests::{debugfs, e2fsck_clean, e2fsck_replay, mke2fs, require_tools};
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The engine, built once.
fn engine() -> &'static Path {
    static ENGINE: OnceLock<PathBuf> = OnceLock::new();
    ENGINE.get_or_init(|| {
        require_tools(&["cc", "fio", "apt-get"]);
        // Cargo puts the library that this test is linked with beside it.
        let library = std::env::current_exe().unwrap().with_file_name("liblanefs_capi.a");
        let engine = Path::new(env!("CARGO_TARGET_TMPDIR")).join("liblanefs_fio.so");
        let out =
            Command::new(root().join("scripts/fio-engine.sh")).arg(library).arg(&engine).output().unwrap();
        assert!(out.status.success(), "{}", said(&out));
        engine
    })
}

fn said(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// A volume in a folder of its own.
struct Disk {
    dir: tempfile::TempDir,
    volume: PathBuf,
}

impl Disk {
    fn new(size: u64) -> Self {
        Self::of_type("ext4", size)
    }

    fn of_type(fs_type: &str, size: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("disk.img");
        mke2fs(&volume, size, &["-t", fs_type, "-b", "4096"]);
        Self { dir, volume }
    }

    /// Bytes that the volume's file takes.
    fn used(&self) -> u64 {
        self.volume.metadata().unwrap().blocks() * 512
    }

    /// One job on the volume, with these words besides.
    fn command(&self, mount_options: &str, args: &[&str]) -> Command {
        let mut fio = Command::new("fio");
        fio.current_dir(self.dir.path())
            .args(["--name=job", "--directory=/"])
            .arg(format!("--ioengine=external:{}", engine().display()))
            .arg(format!("--volume={}", self.volume.display()))
            .arg(format!("--mount_options={mount_options}"))
            .args(args);
        fio
    }

    fn job(&self, mount_options: &str, args: &[&str]) -> Output {
        self.command(mount_options, args).output().unwrap()
    }

    fn job_succeeds(&self, mount_options: &str, args: &[&str]) -> String {
        let out = self.job(mount_options, args);
        let said = said(&out);
        assert!(out.status.success() && said.contains("err= 0"), "fio {args:?} ({mount_options}): {said}");
        said
    }

    /// A job that must not run: fio says why in these words.
    fn job_is_refused(&self, mount_options: &str, args: &[&str], why: &str) {
        let out = self.job(mount_options, args);
        let said = said(&out);
        assert!(!out.status.success() && said.contains(why), "fio {args:?}: {}: {said}", out.status);
    }
}

const VERIFIED: &[&str] = &["--thread=1", "--verify=crc32c", "--verify_fatal=1", "--bs=4k"];

fn verified<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [VERIFIED, args].concat()
}

#[test]
fn what_is_written_is_verified() {
    let disk = Disk::new(256 << 20);
    // Four jobs with files of their own; one of a file that two jobs share; each buffered and
    // direct, synced and not.
    for (mount_options, args) in [
        ("defaults", &["--rw=randwrite", "--numjobs=4", "--size=2m", "--fsync=64"][..]),
        ("dioread_nolock", &["--rw=randrw", "--numjobs=4", "--size=2m", "--direct=1", "--fdatasync=32"]),
        (
            "dioread_lock,nodelalloc",
            &["--rw=write", "--numjobs=4", "--size=2m", "--nrfiles=4", "--sync=dsync"],
        ),
        (
            "locking=inode",
            &["--rw=randwrite", "--filename=shared", "--size=4m", "--overwrite=1", "--end_fsync=1"],
        ),
        ("defaults", &["--rw=randwrite", "--bsrange=4k-512k", "--size=4m", "--uncached=1", "--fdatasync=32"]),
        ("cache=1M", &["--rw=write", "--size=4m", "--bsrange=1k-64k", "--fallocate=none", "--file_append=1"]),
    ] {
        let said = disk.job_succeeds(mount_options, &verified(args));
        assert!(said.contains("clat percentiles") && said.contains("READ: bw="), "{said}");
        e2fsck_clean(&disk.volume);
    }
    assert!(debugfs(&disk.volume, "stat /shared").contains("Size: 4194304"));
}

/// The judge can say no.
#[test]
fn verification_finds_other_bytes() {
    let disk = Disk::new(64 << 20);
    let args = ["--rw=write", "--filename=f", "--size=1m", "--verify_state_save=0"];
    disk.job_succeeds("defaults", &verified(&args));
    let block: u64 = debugfs(&disk.volume, "bmap /f 7").trim().parse().unwrap();
    let image = std::fs::File::options().write(true).open(&disk.volume).unwrap();
    image.write_all_at(b"other", block * 4096 + 100).unwrap();
    disk.job_is_refused(
        "defaults",
        &verified(&[&args[..], &["--verify_only"]].concat()),
        "verify failed at file //f offset 28672",
    );
}

#[test]
fn trims_punch_and_what_is_read_is_laid_out() {
    let disk = Disk::new(64 << 20);
    disk.job_succeeds(
        "defaults",
        &["--thread=1", "--rw=read", "--filename=a/b/read", "--size=2m", "--bs=64k"],
    );
    assert!(debugfs(&disk.volume, "stat /a/b/read").contains("Size: 2097152"));
    disk.job_succeeds(
        "defaults",
        &["--thread=1", "--rw=trim", "--filename=a/b/read", "--size=2m", "--bs=64k"],
    );
    assert!(debugfs(&disk.volume, "stat /a/b/read").contains("Blockcount: 0"));
    disk.job_succeeds(
        "defaults",
        &["--thread=1", "--rw=write", "--filename=gone", "--size=1m", "--unlink=1"],
    );
    assert!(!debugfs(&disk.volume, "ls -p /").contains("gone"));
    e2fsck_clean(&disk.volume);
}

#[test]
fn what_cannot_be_is_refused_in_words() {
    let disk = Disk::new(16 << 20);
    let write = ["--thread=1", "--rw=write", "--size=1m"];
    disk.job_is_refused(
        "defaults",
        &["--rw=write", "--size=1m"],
        "jobs must be threads, for a volume has one opener: add thread=1",
    );
    let offload = [&write[..], &["--io_submit_mode=offload"]].concat();
    disk.job_is_refused("defaults", &offload, "can't be used with offloaded submit");
    disk.job_is_refused("swift", &write, "mount option swift: no such option");
    disk.job_is_refused("defaults", &[&write[..], &["--volume=none.img"]].concat(), "none.img");
    disk.job_is_refused("ro", &write, "Read-only");
    disk.job_is_refused("defaults", &["--thread=1", "--rw=write", "--size=64m"], "No space left");
    let second = [
        "--name=second".to_owned(),
        format!("--ioengine=external:{}", engine().display()),
        format!("--volume={}", disk.volume.display()),
        "--mount_options=nodelalloc".to_owned(),
        "--thread=1".to_owned(),
        "--size=1m".to_owned(),
    ];
    disk.job_is_refused(
        "defaults",
        &[&write[..], &second.each_ref().map(String::as_str)].concat(),
        "jobs on one volume have the same mount_options",
    );
    e2fsck_clean(&disk.volume);
}

/// fio asks for fallocate(2) unless told otherwise, and does without it where there is none.
#[test]
fn volumes_without_extents_are_laid_out() {
    for fs_type in ["ext2", "ext3"] {
        let disk = Disk::of_type(fs_type, 64 << 20);
        disk.job_succeeds("defaults", &verified(&["--rw=randwrite", "--filename=written", "--size=2m"]));
        let read = ["--thread=1", "--rw=read", "--filename=read", "--size=2m", "--bs=64k"];
        disk.job_succeeds("defaults", &read);
        for name in ["written", "read"] {
            assert!(debugfs(&disk.volume, &format!("stat /{name}")).contains("Size: 2097152"), "{fs_type}");
        }
        e2fsck_clean(&disk.volume);
    }
}

/// A file that is laid out has its whole size from the beginning on: the next job would read the
/// rest of it as zeros.
#[test]
fn a_layout_that_ends_early_leaves_no_file() {
    let read = ["--thread=1", "--rw=read", "--filename=half"];
    let is_there = |disk: &Disk| debugfs(&disk.volume, "ls -p /").contains("half");

    let disk = Disk::new(64 << 20);
    let args = [&read[..], &["--size=256m", "--fallocate=truncate"]].concat();
    disk.job_is_refused("defaults", &args, "No space left");
    // fio ends without a call of the engine, as if power had gone.
    let judge = |disk: &Disk, said: &str| {
        e2fsck_replay(&disk.volume);
        assert!(!is_there(disk), "{said}");
        e2fsck_clean(&disk.volume);
    };
    judge(&disk, "");

    let disk = Disk::new(4 << 30);
    let before = disk.used();
    let mut fio = disk.command("cache=16M", &[&read[..], &["--size=3g"]].concat());
    let mut child = fio.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while disk.used() < before + (32 << 20) {
        assert!(child.try_wait().unwrap().is_none(), "fio has ended before it wrote");
        std::thread::sleep(Duration::from_millis(5));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(said(&out).contains("terminating on signal 2"), "{}", said(&out));
    judge(&disk, &said(&out));
}

/// Options that make a job small and short.
const SMALL: [(&str, &str); 9] = [
    ("size=16G", "size=8m"),
    ("size=2g", "size=2m"),
    ("filesize=512m", "filesize=1m"),
    ("filesize=28800000", "filesize=64k"),
    ("jobs=2048", "jobs=64"),
    ("ramp_time=30", "ramp_time=0"),
    ("runtime=60", "runtime=1"),
    ("runtime=30", "runtime=1"),
    ("timeout=60", "timeout=1"),
];

/// The job files of `examples/fio`, made small.
#[test]
fn the_examples_run() {
    let disk = Disk::new(512 << 20);
    let mut jobs = 0;
    for entry in std::fs::read_dir(root().join("examples/fio")).unwrap() {
        let path = entry.unwrap().path();
        let mut text = std::fs::read_to_string(&path).unwrap();
        for (from, to) in SMALL {
            text = text.replace(from, to);
        }
        text = text.replace("external:liblanefs_fio.so", &format!("external:{}", engine().display()));
        // fio runs one job, whatever numjobs= says, if filename_format= names no job.
        let count = text.lines().find_map(|line| line.strip_prefix("numjobs=")).unwrap().to_owned();
        let job = disk.dir.path().join("job.fio");
        std::fs::write(&job, text).unwrap();
        for options in ["overwrite=journal,i_version=always,locking=inode,dioread_lock", "defaults"] {
            let mut fio = Command::new("fio");
            fio.arg(&job).env("LANEFS_VOLUME", &disk.volume).env("LANEFS_OPTIONS", options);
            let out = fio.current_dir(disk.dir.path()).output().unwrap();
            let said = said(&out);
            assert!(out.status.success() && said.contains("err= 0"), "{} {options}: {said}", path.display());
            assert!(said.contains(&format!("jobs={count})")), "{}: {count} jobs? {said}", path.display());
            e2fsck_clean(&disk.volume);
        }
        jobs += 1;
    }
    assert!(jobs >= 4);
}

/// The jobs as they were published for the kernel, and what is changed of each: the line of the
/// engine, and that of the directory. The second has no line of an engine; the third was words of a
/// command, less those that are about all jobs.
const PUBLISHED: [(&str, &[&str]); 3] = [
    (
        "[global]\nrw=randwrite\nnorandommap=1\ninvalidate=0\nbs=4k\nnumjobs=16\ntime_based=1\nramp_time=30\nruntime=60\n\
         group_reporting=1\nioengine=psync\ndirect=1\nsize=16G\nfilename=file1.0.0:file1.0.1:file1.0.2:file1.0.3\n\
         file_service_type=random\nnrfiles=32\ndirectory=/mnt/\n[name]\ndirect=1\n",
        &["ioengine=psync", "directory=/mnt/"],
    ),
    (
        "[global]\ndirect=0\nsize=2g\nfilesize=512m\nbsrange=1-1\ntimeout=60\nnumjobs=1\ndirectory=/mnt/scratch\n[f1]\n\
         filename=randwrite\nrw=randwrite\n",
        &["numjobs=1", "directory=/mnt/scratch"],
    ),
    (
        "[16kb_rand_write_only_2048_jobs]\ndirectory=/dbdata\nrw=randwrite\nioengine=sync\nfdatasync=1\nbuffered=1\nbs=16k\n\
         numjobs=2048\nruntime=60\ntime_based\nthread\nfilesize=28800000\nfsync=1\ngroup_reporting\n",
        &["ioengine=sync", "directory=/dbdata"],
    ),
];

#[test]
fn published_jobs_run_with_two_lines_changed() {
    let disk = Disk::new(256 << 20);
    let engine = format!("ioengine=external:{}", engine().display());
    let volume = format!("volume={}", disk.volume.display());
    for (published, [first, second]) in PUBLISHED.map(|(text, lines)| (text, [lines[0], lines[1]])) {
        let mut changed = 0;
        let mut lines: Vec<&str> = Vec::new();
        for line in published.lines() {
            let other = match line {
                // A line of the published job that is kept beside the engine's.
                _ if line == first && !line.starts_with("ioengine") => vec![line, &engine],
                _ if line == first => vec![&*engine],
                _ if line == second => vec![&*volume],
                _ => vec![line],
            };
            changed += usize::from(other != [line]);
            lines.extend(other);
        }
        assert_eq!(changed, 2, "{published}");
        // Jobs that are processes cannot have one volume.
        if !lines.contains(&"thread") {
            lines.insert(1, "thread=1");
        }
        // Small and short.
        let text = SMALL.iter().fold(lines.join("\n"), |text, (from, to)| text.replace(from, to));
        let job = disk.dir.path().join("job.fio");
        std::fs::write(&job, &text).unwrap();
        let out = Command::new("fio").arg(&job).current_dir(disk.dir.path()).output().unwrap();
        let said = said(&out);
        assert!(out.status.success() && said.contains("err= 0"), "{text}: {said}");
        e2fsck_clean(&disk.volume);
    }
}

/// A job's own figures.
fn figures(disk: &Disk, args: &[&str]) -> serde_json::Value {
    let out = disk.job("defaults", &[&["--thread=1", "--output-format=json"], args].concat());
    let said = said(&out);
    assert!(out.status.success(), "fio {args:?}: {said}");
    // Notes come before it.
    let json = said.find('{').and_then(|at| serde_json::from_str(&said[at..]).ok());
    let json: serde_json::Value = json.unwrap_or_else(|| panic!("fio {args:?}: {said}"));
    assert_eq!(json["jobs"][0]["error"], 0, "{said}");
    json["jobs"][0].clone()
}

/// The sum of all latencies of a kind, in seconds.
fn sum(of: &serde_json::Value) -> f64 {
    of["mean"].as_f64().unwrap() * of["N"].as_f64().unwrap() / 1e9
}

/// A job that does one thing at a time spends its run in that: so the latencies that fio tells add
/// up to the time of the run, and those of several at a time to a multiple of it. They are apart in
/// time, or no more than the depth at a time, so they add up to no more; 5 percent are for fio's
/// milliseconds. Between two requests fio has work of a microsecond, where a request takes several.
#[test]
fn latencies_add_up_to_the_time_of_the_run() {
    let disk = Disk::new(256 << 20);
    let run = ["--time_based", "--runtime=1", "--size=16m", "--bs=4k", "--overwrite=1"];
    for (depth, args) in [
        (1.0, &["--rw=randwrite", "--fsync=1"][..]),
        (1.0, &["--rw=randwrite", "--fdatasync=4", "--direct=1"]),
        (1.0, &["--rw=randread", "--direct=1"]),
        // Without a queue there is none, whatever its depth.
        (1.0, &["--rw=randwrite", "--fsync=1", "--iodepth=8"]),
        (8.0, &["--rw=randread", "--direct=1", "--iodepth=8"]),
        (8.0, &["--rw=randwrite", "--direct=1", "--iodepth=8", "--fsync=16"]),
    ] {
        let began = Instant::now();
        let job = figures(&disk, &[&run[..], args].concat());
        let wall = began.elapsed().as_secs_f64();
        let transfers = if args[0] == "--rw=randread" { &job["read"] } else { &job["write"] };
        let (completion, total, sync) =
            (sum(&transfers["clat_ns"]), sum(&transfers["lat_ns"]), sum(&job["sync"]["lat_ns"]));
        // fio's clock, beside the time that was asked for and the time of the process.
        let seconds = job["job_runtime"].as_f64().unwrap() / 1e3;
        assert!((0.99..wall).contains(&seconds), "{args:?}: {seconds} of {wall} s, {job}");
        let busy = (completion + sync) / (seconds * depth);
        // A read of memory takes fio about as long as lanefs.
        let least = if sync > 0.0 { 0.7 } else { 0.5 };
        assert!((least..1.05).contains(&busy), "{args:?}: {busy} of the run, {job}");
        // Not a few slow requests alone: half of the kind that takes most of the time take a part
        // of what each of them has of the run.
        let most = if completion > sync { &transfers["clat_ns"] } else { &job["sync"]["lat_ns"] };
        let half = most["percentile"]["50.000000"].as_f64().unwrap() / 1e9;
        let each = seconds * depth / most["N"].as_f64().unwrap();
        assert!(half >= 0.02 * each, "{args:?}: half take {half} s, each has {each} s, {job}");
        // Nothing of it is left for the time between the choice of a request and its issue.
        assert!(completion > 0.5 * total, "{args:?}: {completion} of {total} s, {job}");
        if let Some(every) = args.iter().find_map(|arg| arg.strip_prefix("--fsync=")) {
            let syncs = job["sync"]["lat_ns"]["N"].as_f64().unwrap() * every.parse::<f64>().unwrap();
            let writes = transfers["total_ios"].as_f64().unwrap();
            assert!((syncs - writes).abs() <= 64.0, "{args:?}: {job}");
        }
    }
}

/// How many bytes of the volume's file the page cache has.
fn cached(disk: &Disk) -> u64 {
    let mut fincore = Command::new("fincore");
    let out = fincore.args(["--bytes", "--noheadings", "--output=RES"]).arg(&disk.volume).output().unwrap();
    said(&out).trim().parse().unwrap_or_else(|e| panic!("{e}: {}", said(&out)))
}

/// direct=1 alone: no byte of a file comes from the page cache of what the volume lies on, nor goes
/// into it.
#[test]
fn direct_io_reaches_the_device() {
    require_tools(&["fincore"]);
    let disk = Disk::new(256 << 20);
    let size = 32 << 20;
    let of_file = ["--size=32m", "--thread=1", "--filename=f", "--bs=4k"];
    disk.job_succeeds("defaults", &[&of_file[..], &["--rw=write", "--end_fsync=1"]].concat());
    let drop_cached = || {
        let image = std::fs::File::open(&disk.volume).unwrap();
        image.sync_all().unwrap();
        rustix::fs::fadvise(&image, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    };
    for (rw, direct, depth) in
        [("randread", true, "1"), ("randwrite", true, "1"), ("randread", true, "8"), ("randread", false, "1")]
    {
        drop_cached();
        let direct_arg = format!("--direct={}", u8::from(direct));
        let (rw_arg, depth_arg) = (format!("--rw={rw}"), format!("--iodepth={depth}"));
        let args: [&str; 3] = [&rw_arg, &direct_arg, &depth_arg];
        disk.job_succeeds("defaults", &[&of_file[..], &args].concat());
        let cached = cached(&disk);
        assert_eq!(cached < size / 4, direct, "{rw}, direct={direct}, depth {depth}: {cached} bytes");
    }
}

/// Many at the same time, with syncs and trims in between, of one file and of several.
#[test]
fn a_queue_is_as_deep_as_asked() {
    let disk = Disk::new(256 << 20);
    for (mount_options, args) in [
        ("io=direct", &["--rw=randwrite", "--size=8m", "--iodepth=8", "--overwrite=1", "--fsync=32"][..]),
        ("io=direct,io_uring=off", &["--rw=randrw", "--size=4m", "--iodepth=8", "--nrfiles=3"]),
        ("defaults", &["--rw=randtrimwrite", "--size=4m", "--iodepth=8", "--iodepth_batch=4"]),
        (
            "io=direct,locking=inode",
            &["--rw=randrw", "--size=4m", "--iodepth=8", "--iodepth_low=2", "--iodepth_batch_complete_min=3"],
        ),
    ] {
        let said = disk.job_succeeds(mount_options, &verified(&[args, &["--direct=1"]].concat()));
        assert!(!said.contains("capped") && said.contains(", 8="), "{said}");
        e2fsck_clean(&disk.volume);
    }
    let write = ["--thread=1", "--rw=write", "--direct=1", "--iodepth=8", "--fallocate=none"];
    disk.job_is_refused("defaults", &[&write[..], &["--size=1g"]].concat(), "No space left");
    e2fsck_clean(&disk.volume);
}
