//! The lock between openers.
//!
//! The lock is `flock`: it belongs to the open file, so it holds between processes and between two
//! opens in one process, and goes with the process that dies.
//!
//! Invariants:
//! - Readers share, a writer excludes all. A writer of a part of the file shares that lock, and
//!   locks its bytes (see `lock_bytes`), as every reader does.
//! - A writer of a block special file also opens it with O_EXCL, which the kernel refuses while it
//!   is mounted. A writer of a regular file looks for a mounted loop device on top of it.
//!
//! Hazard: the kernel releases the lock of a killed process a moment after the process has gone, if
//! io_uring was still at work for it. An opener waits for that.

use super::{Kind, lock_bytes};
use crate::loop_device::backing;
use crate::{DeviceError, Op, Result};
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// The time that the lock of a process that has died may last.
const AFTERLIFE: Duration = Duration::from_secs(5);

/// Locks `file`, which was opened by `path`, or the bytes of `window` in it, until it is closed.
///
/// # Errors
/// [`Op::Lock`] (EBUSY) while another opener or a mount has it, with the process if it is known.
pub(super) fn lock(
    path: &Path,
    file: &File,
    kind: Kind,
    read_only: bool,
    window: Option<&Range<u64>>,
) -> Result<()> {
    let refuse = |errno, why| Err(DeviceError::at_path(Op::Lock, path, errno, why));
    let shares = read_only || window.is_some();
    let how = match shares {
        true => FlockOperation::NonBlockingLockShared,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    let attempt = || rustix::io::retry_on_intr(|| rustix::fs::flock(file, how)).map_err(io::Error::from);
    let mut locked = outlast(attempt, io::ErrorKind::WouldBlock, || Some(lock_holders(file)));
    // A device manager locks a block special file for a moment to look at it when it was closed.
    let mut tries = if matches!(kind, Kind::Block { .. }) { 20 } else { 0 };
    while tries > 0 && is(&locked, io::ErrorKind::WouldBlock) {
        std::thread::sleep(Duration::from_millis(50));
        locked = attempt();
        tries -= 1;
    }
    let has_shared = locked.is_ok() && shares;
    if has_shared {
        let attempt = || lock_bytes::lock(file, read_only, window);
        locked = outlast(attempt, io::ErrorKind::WouldBlock, || dying(other_holders(file)));
    }
    match locked {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
            let holders = match has_shared {
                // Of several, it is not known which has these bytes.
                true => Some(other_holders(file)).filter(|others| others.len() == 1).unwrap_or_default(),
                false => lock_holders(file),
            };
            let who = match holders.first() {
                Some(&pid) if pid == std::process::id() => "this process".into(),
                Some(pid) => format!("process {pid}"),
                None => "another opener".into(),
            };
            let what = match (read_only, window) {
                (false, _) => "has it open",
                (true, Some(_)) => "writes to it",
                (true, None) => "writes to it, or to a part of it",
            };
            return refuse(libc::EBUSY, format!("is in use: {who} {what}"));
        }
        Err(e) => return refuse(e.raw_os_error().unwrap_or(libc::EIO), format!("cannot be locked: {e}")),
    }
    if !read_only
        && kind == Kind::Regular
        && let Some(name) = mounted_loop_device(file)
    {
        return refuse(libc::EBUSY, format!("is in use: mounted by way of /dev/{name}"));
    }
    if let Some(pid) = user_of_backing(file, read_only) {
        let what = if read_only { "writes to" } else { "has open" };
        return refuse(libc::EBUSY, format!("is in use: process {pid} {what} the file behind it"));
    }
    Ok(())
}

/// Returns the processes that have locked `file`, but for the lock of this opener.
fn other_holders(file: &File) -> Vec<u32> {
    let mut holders = lock_holders(file);
    if let Some(own) = holders.iter().position(|pid| *pid == std::process::id()) {
        holders.remove(own);
    }
    holders
}

/// Returns those that have died of the processes that share a lock: one of them may be waited for.
/// `None` if all of them live.
fn dying(mut holders: Vec<u32>) -> Option<Vec<u32>> {
    let none = holders.is_empty();
    holders.retain(|pid| has_died(*pid));
    (none || !holders.is_empty()).then_some(holders)
}

/// Returns the process that has locked the file behind a loop device against this opener: the two
/// have locks of their own. A process that has died is waited for, as [`outlast`] does.
fn user_of_backing(file: &File, read_only: bool) -> Option<u32> {
    let (dev, ino) = backing(file)?;
    let end = Instant::now() + AFTERLIFE;
    loop {
        let others: Vec<u32> =
            flocks(dev, ino).iter().filter(|lock| lock.excludes || !read_only).map(|lock| lock.pid).collect();
        let other = others.iter().copied().find(|&pid| !has_died(pid)).or(others.first().copied())?;
        if !has_died(other) || Instant::now() >= end {
            return Some(other);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn is<T>(done: &io::Result<T>, kind: io::ErrorKind) -> bool {
    done.as_ref().is_err_and(|e| e.kind() == kind)
}

/// Returns whether a writer has locked the file.
pub(super) fn is_locked(file: &File) -> bool {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
}

/// Repeats `attempt` for up to five seconds while its error is of the kind `busy` and none of the
/// processes that hold the lock is known to live. The kernel does not name a process that its
/// parent has waited for. `holders` returns `None` if the error is not about a lock.
pub(super) fn outlast<T>(
    mut attempt: impl FnMut() -> io::Result<T>,
    busy: io::ErrorKind,
    holders: impl Fn() -> Option<Vec<u32>>,
) -> io::Result<T> {
    let end = Instant::now() + AFTERLIFE;
    loop {
        let done = attempt();
        if !is(&done, busy) || Instant::now() >= end {
            return done;
        }
        let Some(holders) = holders() else { return done };
        if !holders.into_iter().all(has_died) {
            return done;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns whether a process has gone, is a zombie, or is about to become one.
fn has_died(pid: u32) -> bool {
    const PF_EXITING: u32 = 4;
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    // The name, in parentheses, may have blanks and parentheses. Behind it: state, ..., flags. See
    // proc_pid_stat(5).
    let behind = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
    let mut fields = behind.split_ascii_whitespace();
    let state = fields.next();
    let flags: u32 = fields.nth(5).and_then(|flags| flags.parse().ok()).unwrap_or(0);
    matches!(state, None | Some("Z" | "X" | "x")) || flags & PF_EXITING != 0
}

/// A lock that a process has on a file.
struct Flock {
    pid: u32,
    /// It is a writer's, or may be that of a writer of a part of the file.
    excludes: bool,
}

/// Returns the locks on a file, by its device and inode number, as far as the kernel tells. It may
/// take 10 ms: the kernel waits for all processors (an RCU grace period), so ask only about a lock
/// that was refused.
fn flocks(dev: u64, ino: u64) -> Vec<Flock> {
    #[cfg(test)]
    super::tests::note_question();
    let inode = format!("{:02x}:{:02x}:{ino}", rustix::fs::major(dev), rustix::fs::minor(dev));
    // As in "1: FLOCK  ADVISORY  WRITE 1234 08:02:131 0 EOF"; see proc_locks(5).
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    // As in "2: OFDLCK ADVISORY  WRITE -1 08:02:131 4611686018428436480 EOF": without the process.
    let is_part = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, "OFDLCK", _, "WRITE", _, at, start, ..] = fields[..] else { return false };
        at == inode && start.parse().is_ok_and(|start: u64| start >= lock_bytes::BASE)
    };
    let part = locks.lines().any(is_part);
    let flock = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, "FLOCK", _, how, pid, at, ..] = fields[..] else { return None };
        let pid = pid.parse().ok().filter(|&pid: &u32| pid > 0 && at == inode)?;
        Some(Flock { pid, excludes: how == "WRITE" || part })
    };
    locks.lines().filter_map(flock).collect()
}

/// Returns the processes that have locked `file`, as far as the kernel tells: none of another
/// namespace of processes.
pub fn lock_holders(file: &File) -> Vec<u32> {
    let Ok(meta) = file.metadata() else { return Vec::new() };
    flocks(meta.dev(), meta.ino()).into_iter().map(|lock| lock.pid).collect()
}

/// Returns the name of the block device by which the kernel, or a program that has opened it
/// exclusively, uses the volume in `file`: its own name, or that of a loop device on a regular
/// file. The lock of a reader does not see such a user.
pub fn claimed_device(file: &File) -> Option<String> {
    let meta = file.metadata().ok()?;
    if !meta.file_type().is_block_device() {
        return mounted_loop_device(file);
    }
    let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    let sys = Path::new("/sys/dev/block").join(format!("{major}:{minor}")).canonicalize().ok()?;
    let name = sys.file_name()?.to_str()?.to_owned();
    is_claimed(&name, &sys).then_some(name)
}

/// Returns the name of a loop device that is backed by `file` and claimed by a mount.
fn mounted_loop_device(file: &File) -> Option<String> {
    let ours = file.metadata().ok()?;
    let ours = (ours.dev(), ours.ino());
    std::fs::read_dir("/sys/block").ok()?.flatten().find_map(|entry| {
        let name = entry.file_name().into_string().ok().filter(|n| n.starts_with("loop"))?;
        let path = std::fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
        let device = File::open(Path::new("/dev").join(&name));
        let theirs = device.ok().and_then(|device| backing(&device)).or_else(|| {
            // Only root may ask the device. Others go by the path.
            let meta = std::fs::metadata(path.trim_end_matches('\n')).ok()?;
            Some((meta.dev(), meta.ino()))
        })?;
        (theirs == ours && is_claimed(&name, &entry.path())).then_some(name)
    })
}

/// How often a claimed device is asked again: another process may claim it for the moment in which
/// it asks the same.
const ASKED: usize = 20;

/// Asks by `open`, which claims a device exclusively, whether it stays claimed. `None` where the
/// caller may not open it.
pub(super) fn stays_claimed(mut open: impl FnMut() -> io::Result<File>) -> Option<bool> {
    for _ in 0..ASKED {
        match open() {
            Ok(_) => return Some(false),
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy => {}
            Err(_) => return None,
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Some(true)
}

/// Returns whether a loop device is mounted, or in use by another device.
fn is_claimed(name: &str, sys: &Path) -> bool {
    // First what is asked without a claim, which would keep a mount out for a moment.
    is_known_as_claimed(name, sys) || {
        let exclusive = OFlags::EXCL.bits().cast_signed();
        let path = Path::new("/dev").join(name);
        let open = || OpenOptions::new().read(true).custom_flags(exclusive).open(&path);
        // Only root may open it.
        stays_claimed(open).unwrap_or(false)
    }
}

/// Returns whether the kernel tells all users that a device is mounted, or in use by another.
fn is_known_as_claimed(name: &str, sys: &Path) -> bool {
    let holders = std::fs::read_dir(sys.join("holders")).is_ok_and(|mut holders| holders.next().is_some());
    // A mounted ext4, XFS or Btrfs, in whichever mount namespace.
    let mut kinds = std::fs::read_dir("/sys/fs").into_iter().flatten().flatten();
    if holders || kinds.any(|kind| kind.path().join(name).exists()) {
        return true;
    }
    let number = std::fs::read_to_string(sys.join("dev")).unwrap_or_default();
    let table = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
    table.lines().any(|line| line.split(' ').nth(2) == Some(number.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileDevice;
    use std::process::{Command, Stdio};

    /// The lock outlives the process that took it: here a child of it has the file open, as
    /// io_uring has it after a SIGKILL.
    #[test]
    fn the_lock_of_a_process_that_died_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("volume.img");
        drop(FileDevice::create(&path, 4096).unwrap());
        // flock(1) locks the shell's open file, and ends.
        let script = r#"exec 9<>"$1"; flock -x 9; exec cat"#;
        let mut keeper = Command::new("sh");
        let mut keeper = keeper.args(["-c", script, "sh"]).arg(&path).stdin(Stdio::piped()).spawn().unwrap();
        let stdin = keeper.stdin.take();
        let file = File::open(&path).unwrap();
        while !lock_holders(&file).first().is_some_and(|&pid| has_died(pid)) {
            std::thread::sleep(Duration::from_millis(1));
        }
        // The child ends when the last writing end of its stdin is closed.
        let end = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            drop(stdin);
        });
        FileDevice::open_read_only(&path).unwrap();
        FileDevice::open(&path).unwrap();
        end.join().unwrap();
        keeper.wait().unwrap();
    }

    #[test]
    fn zombies_have_died_and_this_process_has_not() {
        assert!(!has_died(std::process::id()));
        let mut child = Command::new("true").spawn().unwrap();
        while !has_died(child.id()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        child.wait().unwrap();
        assert!(has_died(child.id()));
    }
}
