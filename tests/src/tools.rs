//! Programs as judges.

use crate::VirtualClock;
use lanefs::{OpenOptions, Timestamp};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::thread::UnshareFlags;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tempfile::TempDir;

/// Where Debian keeps what a test needs, also for users whose PATH leaves it out.
fn search_path() -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{path}:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin")
}

/// Returns a command that runs `program`, which may live where only root looks, in the locale C.
///
/// The program is named by its path: for a bare name and a PATH of its own the standard library
/// forks, which copies the page tables of a test that has much memory, instead of `posix_spawn`.
pub fn tool(program: &str) -> Command {
    let path = search_path();
    let found = path.split(':').map(|dir| Path::new(dir).join(program)).find(|file| file.is_file());
    let mut command = Command::new(found.unwrap_or_else(|| program.into()));
    command.env("PATH", path).env("LC_ALL", "C");
    command
}

/// Returns the path of what `scripts/judges.sh` keeps beside the build.
///
/// # Panics
/// If it is missing.
pub fn kept(name: &str) -> PathBuf {
    let exe = std::env::current_exe().expect("the path of this program");
    let build = exe.ancestors().nth(3).expect("a folder of builds");
    let path = build.join("judges").join(name);
    assert!(path.is_file(), "{} is missing: `make test` installs it", path.display());
    path
}

fn output(program: &str, command: &mut Command) -> Output {
    command
        .output()
        .unwrap_or_else(|e| panic!("cannot run {program}: {e}; `make test` installs what it lacks"))
}

/// Both streams of a program, for messages.
fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// Runs a program and returns its standard output without the last line's end.
///
/// # Panics
/// If it is missing or fails, with all that it said.
pub fn run(program: &str, args: &[impl AsRef<OsStr>]) -> String {
    let mut command = tool(program);
    let out = output(program, command.args(args));
    assert!(out.status.success(), "{command:?}: {}\n{}", out.status, text(&out));
    String::from_utf8_lossy(&out.stdout).trim_end().to_owned()
}

/// # Panics
/// Unless the test runs as root.
pub fn require_root() {
    let root = rustix::process::geteuid().is_root();
    assert!(root, "this test mounts volumes: run it as root, in an environment with loop devices");
}

/// Gives the calling thread a mount namespace of its own, unless it has one already. The threads
/// and processes that it starts afterwards share it. A process outside, such as a container or
/// `unshare --mount`, then gets no copy of a mount that a test makes, and cannot keep it alive.
///
/// `/proc/self` shows the namespace of the process's first thread, `/proc/thread-self` that of the
/// caller.
///
/// # Panics
/// Unless the test runs as root.
pub fn private_mounts() {
    // The namespace that the process began in.
    static FIRST: OnceLock<(u64, u64)> = OnceLock::new();
    require_root();
    let current = || {
        let namespace = std::fs::metadata("/proc/thread-self/ns/mnt").expect("a mount namespace");
        (namespace.dev(), namespace.ino())
    };
    if *FIRST.get_or_init(current) != current() {
        return;
    }
    #[allow(deprecated, reason = "unshare is unsafe with FILES only, which is not asked for")]
    rustix::thread::unshare(UnshareFlags::NEWNS | UnshareFlags::FS).expect("a mount namespace of its own");
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).expect("mounts that others do not see");
}

/// # Panics
/// Unless all `programs` are there.
pub fn require_tools(programs: &[&str]) {
    let path = search_path();
    let there = |program: &&&str| path.split(':').any(|dir| Path::new(dir).join(program).is_file());
    let missing: Vec<_> = programs.iter().filter(|p| !there(p)).collect();
    assert!(missing.is_empty(), "programs that the test needs are missing: {missing:?}");
}

/// The UUID of volumes, and the seed of their directory hash.
const UUID: &str = "11111111-2222-3333-4444-555555555555";

/// The second at which volumes are made.
const MADE_AT: i64 = 1_000_000_000;

/// Returns `mke2fs -q -F ARGS`, to which the path is to be added. The UUID, the seed of the
/// directory hash and the time are fixed, so that the same arguments make the same bytes.
pub fn mke2fs_command(args: &[&str]) -> Command {
    let mut extended = format!("hash_seed={UUID}");
    let mut command = tool("mke2fs");
    command.env("E2FSPROGS_FAKE_TIME", MADE_AT.to_string()).args(["-q", "-F", "-U", UUID]);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        // mke2fs heeds the last -E alone.
        if *arg == "-E" {
            extended = format!("{extended},{}", args.next().expect("a value behind -E"));
        } else {
            command.arg(arg);
        }
    }
    command.args(["-E", &extended]);
    command
}

/// Makes a sparse file of `size` bytes and runs [`mke2fs_command`] on it.
///
/// # Panics
/// If anything fails.
pub fn mke2fs(path: impl AsRef<Path>, size: u64, args: &[&str]) {
    let path = path.as_ref();
    File::create(path).and_then(|f| f.set_len(size)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut command = mke2fs_command(args);
    let out = output("mke2fs", command.arg(path));
    assert!(out.status.success(), "{command:?}: {}\n{}", out.status, text(&out));
}

/// Returns options to write to a volume without a timer and with a fixed clock, as
/// [`mke2fs_command`] made it: the same calls make the same bytes in each run.
pub(crate) fn fixed_options() -> OpenOptions {
    let made_at = Timestamp { sec: MADE_AT, nsec: 0 };
    let clock = Arc::new(VirtualClock::of_one_host());
    let options = OpenOptions::new().write(true).commit_interval(Duration::ZERO);
    options.clock(Some(made_at)).mmp_clock(clock)
}

/// Copies a file. A process of its own does it: `cp` leaves holes out, which `std::fs::copy` would
/// write as zeros; and a program can be run at once. If this process had the copy open for writing,
/// so had a child that another thread forks, and the kernel would not run it (ETXTBSY).
///
/// # Panics
/// If that fails.
pub fn copy_file(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    run("cp", &[from.as_ref(), to.as_ref()]);
}

/// Returns a folder in memory, for volumes and their judges, or one of the disk where there is no
/// memory for files: nothing waits for a disk there. Tests of what files on a disk have (direct
/// I/O, lost syncs) take `tempfile::tempdir`.
///
/// # Panics
/// If it cannot be made.
pub fn memory_dir() -> TempDir {
    let memory = Path::new("/dev/shm");
    // Containers have 64 MiB of it.
    let room = rustix::fs::statvfs(memory).map_or(0, |stat| stat.f_bavail * stat.f_frsize);
    let made = if room < 4 << 30 { tempfile::tempdir() } else { tempfile::tempdir_in(memory) };
    made.expect("a folder")
}

/// Returns the bytes of memory that a process has for itself. Not the pages of its program: how
/// many of those are mapped depends on the page cache.
///
/// # Panics
/// If there is no such process.
pub fn memory_of(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
    };
    (kib("RssAnon:") + kib("RssShmem:")) << 10
}

/// Runs `e2fsck ARGS`, and returns its exit code and all that it said.
///
/// # Panics
/// If there is no such program.
pub fn e2fsck(path: impl AsRef<Path>, args: &[&str]) -> (i32, String) {
    let out = output("e2fsck", tool("e2fsck").args(args).arg(path.as_ref()));
    (out.status.code().unwrap_or(-1), text(&out))
}

/// Runs `e2fsck ARGS` until it has used a processor for `limit`; it is killed then. How long it
/// waits for the machine is of no account.
///
/// # Panics
/// If there is no such program.
pub(crate) fn e2fsck_within(limit: Duration, path: impl AsRef<Path>, args: &[&str]) -> (i32, String) {
    let mut command = tool("prlimit");
    let cpu = format!("--cpu={}", limit.as_secs());
    command.args([&cpu, "--core=0", "e2fsck"]).args(args).arg(path.as_ref());
    let out = output("prlimit", &mut command);
    (out.status.code().unwrap_or(-1), text(&out))
}

/// Holds a volume that was closed against `e2fsck -fn`.
///
/// # Panics
/// If it finds anything, or a journal that must be replayed first.
pub fn e2fsck_clean(path: impl AsRef<Path>) {
    if let Err(said) = e2fsck_closed(path.as_ref()) {
        panic!("{said}");
    }
}

/// Holds a volume that was closed against `e2fsck -fn`.
///
/// # Errors
/// What it finds, or a journal that must be replayed first.
///
/// # Panics
/// If there is no such program.
pub(crate) fn e2fsck_closed(path: &Path) -> Result<(), String> {
    let (code, said) = e2fsck(path, &["-fn"]);
    // With -n it goes on past a dirty journal, and its verdict is about nothing.
    let judged = !said.contains("skipping journal recovery");
    match code == 0 && judged {
        true => Ok(()),
        false => Err(format!("e2fsck -fn {}: exit code {code}\n{said}", path.display())),
    }
}

/// Replays the journal as e2fsck does, and nothing else. Whether there was anything to replay.
///
/// # Panics
/// If it fails.
pub fn e2fsck_replay(path: impl AsRef<Path>) -> bool {
    let path = path.as_ref();
    let (code, said) = e2fsck(path, &["-y", "-E", "journal_only"]);
    assert!(code == 0 || code == 1, "e2fsck -E journal_only {}: exit code {code}\n{said}", path.display());
    said.contains("recovering journal")
}

/// What `debugfs -R CMD` prints.
///
/// # Panics
/// If it complains.
pub fn debugfs(path: impl AsRef<Path>, cmd: &str) -> String {
    run_debugfs(path.as_ref(), &["-R", cmd])
}

/// What `debugfs -w -R CMD` prints.
///
/// # Panics
/// If it complains.
pub fn debugfs_write(path: impl AsRef<Path>, cmd: &str) -> String {
    run_debugfs(path.as_ref(), &["-w", "-R", cmd])
}

fn run_debugfs(path: &Path, args: &[&str]) -> String {
    let mut command = tool("debugfs");
    let out = output("debugfs", command.args(args).arg(path));
    // Its exit code says nothing; the first line of its standard error is its version.
    let stderr = String::from_utf8_lossy(&out.stderr);
    let complaint = stderr.lines().any(|line| !line.starts_with("debugfs 1."));
    assert!(out.status.success() && !complaint, "{command:?}: {}", text(&out));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// What `dumpe2fs ARGS` prints.
///
/// # Panics
/// If it fails.
pub fn dumpe2fs(path: impl AsRef<Path>, args: &[&str]) -> String {
    let all = args.iter().map(OsStr::new).chain([path.as_ref().as_os_str()]);
    run("dumpe2fs", &all.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use std::panic::catch_unwind;

    fn volume() -> (TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("volume");
        mke2fs(&path, 8 << 20, &["-t", "ext4", "-L", "judged"]);
        (dir, path)
    }

    #[test]
    fn a_fresh_volume_is_clean() {
        let (_dir, path) = volume();
        e2fsck_clean(&path);
        assert!(dumpe2fs(&path, &["-h"]).contains("judged"));
        assert!(debugfs(&path, "stat /").contains("Type: directory"));
        assert!(!e2fsck_replay(&path));
    }

    #[test]
    fn volumes_are_the_same_each_time() {
        let dir = tempfile::tempdir().unwrap();
        let made = |name: &str| {
            let path = dir.path().join(name);
            mke2fs(&path, 2 << 20, &["-t", "ext4", "-O", "orphan_file", "-E", "orphan_file_size=32k"]);
            std::fs::read(path).unwrap()
        };
        let first = made("first");
        // Past the second that a time in the superblock has.
        std::thread::sleep(Duration::from_millis(1100));
        let differ = first.iter().zip(&made("second")).position(|(a, b)| a != b);
        assert_eq!(differ, None, "first byte that differs");
        assert!(dumpe2fs(dir.path().join("first"), &["-h"]).contains("Orphan file inode"));
    }

    #[test]
    fn damage_is_found() {
        let (_dir, path) = volume();
        debugfs_write(&path, "set_inode_field / links_count 7");
        let error = catch_unwind(|| e2fsck_clean(&path)).unwrap_err();
        assert!(error.downcast_ref::<String>().unwrap().contains("reference count"));
    }

    #[test]
    fn a_dirty_journal_is_not_clean() {
        let (_dir, path) = volume();
        debugfs_write(&path, "feature needs_recovery");
        assert!(catch_unwind(|| e2fsck_clean(&path)).is_err());
    }

    #[test]
    fn complaints_of_debugfs_are_failures() {
        let (_dir, path) = volume();
        assert!(catch_unwind(|| debugfs(&path, "stat /nothing")).is_err());
        assert!(catch_unwind(|| debugfs(&path, "no_such_command")).is_err());
    }

    #[test]
    fn what_is_missing_is_a_failure() {
        require_tools(&["e2fsck", "mke2fs"]);
        assert!(catch_unwind(|| require_tools(&["e2fsck", "no-such-program"])).is_err());
        assert!(catch_unwind(|| run("no-such-program", &["x"])).is_err());
        assert!(catch_unwind(|| run("false", &["x"])).is_err());
        let (_dir, path) = volume();
        File::options().write(true).open(&path).unwrap().write_all_at(&[0; 4096], 0).unwrap();
        assert!(catch_unwind(|| dumpe2fs(&path, &[])).is_err());
    }
}
