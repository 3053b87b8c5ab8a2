//! Putting a mount into the tree of names and taking it out: by the system calls as root, by fusermount3 otherwise.

use crate::options::MountOptions;
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, StatxFlags, flock, open, statx, syncfs};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};
use std::ffi::{CString, OsStr, OsString};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The type of a mount in `/proc/mounts`.
pub(crate) const FS_TYPE: &str = "fuse.lanefs";

/// Why something cannot be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// `/dev/fuse` is missing, or not for this user.
    #[error("/dev/fuse: {0}; is FUSE in the kernel (modprobe fuse)?")]
    NoFuse(#[source] Errno),
    /// The directory cannot be mounted on.
    #[error("{}: {errno}", dir.display())]
    Directory {
        /// The directory.
        dir: PathBuf,
        /// Why.
        errno: Errno,
    },
    /// mount(2) or umount(2) failed.
    #[error("{call} of {}: {errno}", dir.display())]
    System {
        /// Which.
        call: &'static str,
        /// The directory.
        dir: PathBuf,
        /// Why.
        errno: Errno,
    },
    /// fusermount3, which mounts for users, failed.
    #[error("fusermount3: {0}")]
    Helper(String),
    /// The directory is no mount of lanefs.
    #[error("{}: not mounted", .0.display())]
    NotMounted(PathBuf),
    /// What is asked for needs a volume that was opened for writing, and the server has opened it for reading only.
    #[error("{}: the volume was opened ro; unmount it, and mount it again without", .0.display())]
    OpenedReadOnly(PathBuf),
    /// An option that the server must have been started with.
    #[error("{}: {word} is an option of a mount from its beginning; unmount it, and mount it again", dir.display())]
    FromTheBeginning {
        /// The directory.
        dir: PathBuf,
        /// The option.
        word: &'static str,
    },
    /// The volume is still in use long after its mount went.
    #[error("{}: still being closed", .0.display())]
    StillInUse(PathBuf),
}

/// A mount in the tree of names.
#[derive(Debug, Clone)]
pub(crate) struct Mounted {
    dir: PathBuf,
}

impl Mounted {
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Takes it away, with all that the kernel had cached handed down. Who still uses it gets ENOTCONN from then on.
    pub(crate) fn unmount(&self) -> Result<(), MountError> {
        // What fails here shows at the next fsync, of which there is none: nothing is to be done about it.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if let Ok(root) = open(&self.dir, flags, Mode::empty()) {
            let _ = syncfs(&root);
        }
        match detach(&self.dir, UnmountFlags::empty()) {
            Err(MountError::System { errno: Errno::BUSY, .. }) => {
                detach(&self.dir, UnmountFlags::FORCE | UnmountFlags::DETACH)
            }
            done => done,
        }
    }

    /// Has the kernel read as far ahead of who reads from front to back, in place of its own 128 KiB, and keep as many percent of
    /// what all may have dirty, in place of one at most: beyond that, who writes is made to wait. Only root may say so; for others
    /// it stays as it is.
    pub(crate) fn tune(&self, read_ahead: usize, dirty_percent: u32) {
        // What the kernel knows itself: nobody answers a question yet.
        let Ok(known) = statx(CWD, &self.dir, AtFlags::STATX_DONT_SYNC, StatxFlags::empty()) else { return };
        let set = |name: &str, value: String| {
            let (major, minor) = (known.stx_dev_major, known.stx_dev_minor);
            let _ = std::fs::write(format!("/sys/class/bdi/{major}:{minor}/{name}"), value);
        };
        set("read_ahead_kb", (read_ahead >> 10).to_string());
        // No less than the least.
        set("max_ratio", dirty_percent.to_string());
        set("min_ratio", dirty_percent.to_string());
    }
}

/// Mounts at `dir`.
pub(crate) fn mount(
    source: &OsStr,
    dir: &Path,
    options: &MountOptions,
) -> Result<(OwnedFd, Mounted), MountError> {
    let bad = |errno| MountError::Directory { dir: dir.into(), errno };
    let path = dir.canonicalize().map_err(|e| bad(errno_of(&e)))?;
    let meta = path.metadata().map_err(|e| bad(errno_of(&e)))?;
    if !meta.is_dir() {
        return Err(bad(Errno::NOTDIR));
    }
    let device = if rustix::process::geteuid().is_root() {
        by_system(source, &path, options)?
    } else {
        by_helper(source, &path, options)?
    };
    Ok((device, Mounted { dir: path }))
}

fn errno_of(e: &std::io::Error) -> Errno {
    e.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

fn by_system(source: &OsStr, dir: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = open("/dev/fuse", flags, Mode::empty()).map_err(MountError::NoFuse)?;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let data = format!(
        "fd={},rootmode=40000,user_id={uid},group_id={gid},default_permissions{}",
        device.as_raw_fd(),
        if options.allows_others(true) { ",allow_other" } else { "" },
    );
    let failed = |errno| MountError::System { call: "mount", dir: dir.into(), errno };
    let data = CString::new(data).map_err(|_| failed(Errno::INVAL))?;
    let source = options.fsname.as_deref().unwrap_or(source);
    rustix::mount::mount(source, dir, FS_TYPE, options.flags, &*data).map_err(failed)?;
    Ok(device)
}

/// fusermount3 mounts, and hands the connection over by a socket.
fn by_helper(source: &OsStr, dir: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let failed = |e: &dyn std::fmt::Display| MountError::Helper(e.to_string());
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|e| failed(&e))?;
    fcntl_setfd(&theirs, FdFlags::empty()).map_err(|e| failed(&e))?;
    let child = Command::new("fusermount3")
        .arg("-o")
        .arg(helper_words(source, options))
        .arg("--")
        .arg(dir)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| MountError::Helper(format!("{e}; install fuse3, or mount as root")))?;
    drop(theirs);
    let device = receive(&ours);
    let output = child.wait_with_output().map_err(|e| failed(&e))?;
    device.ok_or_else(|| {
        let text = String::from_utf8_lossy(&output.stderr);
        let text = text.trim().trim_start_matches("fusermount3: ");
        MountError::Helper(if text.is_empty() { "it handed nothing over".into() } else { text.into() })
    })
}

fn helper_words(source: &OsStr, options: &MountOptions) -> OsString {
    let mut words = format!("default_permissions,subtype=lanefs,{}", options.flag_words()).into_bytes();
    if options.allows_others(false) {
        words.extend_from_slice(b",allow_other");
    }
    words.extend_from_slice(b",fsname=");
    for byte in options.fsname.as_deref().unwrap_or(source).as_bytes() {
        if matches!(byte, b',' | b'\\') {
            words.push(b'\\');
        }
        words.push(*byte);
    }
    OsString::from_vec(words)
}

fn receive(socket: &OwnedFd) -> Option<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut iov = [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(socket, &mut iov, &mut ancillary, RecvFlags::CMSG_CLOEXEC).ok()?;
    ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    })
}

fn detach(dir: &Path, flags: UnmountFlags) -> Result<(), MountError> {
    match rustix::mount::unmount(dir, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) if !rustix::process::geteuid().is_root() => {
            let mut command = Command::new("fusermount3");
            command.arg("-u");
            if flags.contains(UnmountFlags::DETACH) {
                command.arg("-z");
            }
            let out = command.arg("--").arg(dir).output();
            let out = out.map_err(|e| MountError::Helper(e.to_string()))?;
            if out.status.success() {
                return Ok(());
            }
            let text = String::from_utf8_lossy(&out.stderr);
            if text.contains("busy") {
                return Err(MountError::System { call: "umount", dir: dir.into(), errno: Errno::BUSY });
            }
            Err(MountError::Helper(text.trim().trim_start_matches("fusermount3: ").into()))
        }
        Err(errno) => Err(MountError::System { call: "umount", dir: dir.into(), errno }),
    }
}

/// Takes the mount at `dir` away, and waits until its volume is closed. `lazy`: from the tree of names at once, however
/// it is used, and without waiting.
///
/// # Errors
/// [`MountError::NotMounted`]; EBUSY while somebody uses it, unless `lazy`.
pub fn unmount(dir: &Path, lazy: bool) -> Result<(), MountError> {
    // The directory of a mount whose server died cannot be looked at: its name must do.
    let path = dir.canonicalize().or_else(|_| std::path::absolute(dir)).unwrap_or_else(|_| dir.into());
    let source = source_of(&path).ok_or_else(|| MountError::NotMounted(dir.into()))?;
    detach(&path, if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() })?;
    if lazy {
        return Ok(());
    }
    wait_closed(&source, FlockOperation::NonBlockingLockShared, Duration::from_secs(60))
}

/// Waits a while for a server that still closes the volume in `source`, whose mount is gone already. Who `writes` waits also
/// for one that only read.
pub fn await_closing(source: &Path, writes: bool) {
    let mounted = |_: &[u8], of: &Path| (of == source).then_some(());
    if find_mount(mounted).is_none() {
        // If it stays in use, whoever opens it is told by whom.
        let free = if writes {
            FlockOperation::NonBlockingLockExclusive
        } else {
            FlockOperation::NonBlockingLockShared
        };
        let _ = wait_closed(source, free, Duration::from_secs(5));
    }
}

/// The source of the mount of lanefs at `dir`, the uppermost if there are several.
fn source_of(dir: &Path) -> Option<PathBuf> {
    find_mount(|at, source| (at == dir.as_os_str().as_bytes()).then(|| source.into()))
}

/// Whether there is a mount of lanefs at that directory, or of that volume.
pub fn is_mounted(path: &Path) -> bool {
    find_mount(|at, source| (at == path.as_os_str().as_bytes() || source == path).then_some(())).is_some()
}

/// The last of what `wanted` makes of directory and source of each mount of FUSE.
fn find_mount<T>(mut wanted: impl FnMut(&[u8], &Path) -> Option<T>) -> Option<T> {
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    let mut found = None;
    for line in table.split(|b| *b == b'\n') {
        let words: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
        let Some(dash) = words.iter().position(|w| *w == b"-") else { continue };
        let (Some(at), Some(kind), Some(source)) = (words.get(4), words.get(dash + 1), words.get(dash + 2))
        else {
            continue;
        };
        let source = PathBuf::from(OsString::from_vec(unescape(source)));
        if kind.starts_with(b"fuse") {
            found = wanted(&unescape(at), &source).or(found);
        }
    }
    found
}

/// Octal escapes of the table of mounts.
fn unescape(word: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = word;
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|d| std::str::from_utf8(d).ok());
        match digits.and_then(|d| u8::from_str_radix(d, 8).ok()).filter(|_| byte == b'\\') {
            Some(value) => {
                out.push(value);
                rest = &after[3..];
            }
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    out
}

/// Waits until the server has closed the volume: it holds its lock as long, and `free` cannot be had beside it.
fn wait_closed(source: &Path, free: FlockOperation, patience: Duration) -> Result<(), MountError> {
    const STEP: Duration = Duration::from_millis(5);
    let Ok(file) = open(source, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()) else {
        return Ok(());
    };
    for _ in 0..patience.as_millis() / STEP.as_millis() {
        match flock(&file, free) {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(STEP),
            _ => return Ok(()),
        }
    }
    Err(MountError::StillInUse(source.into()))
}

/// Returns whether the file system that is mounted at `dir` has an option, in all of its mounts.
pub(crate) fn has_super_option(dir: &Path, word: &str) -> bool {
    let Ok(known) = statx(CWD, dir, AtFlags::STATX_DONT_SYNC, StatxFlags::MNT_ID) else { return false };
    let id = known.stx_mnt_id.to_string();
    let table = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
    let line = table.lines().find(|line| line.split(' ').next() == Some(&*id));
    let options = line.and_then(|line| line.rsplit(' ').next()).unwrap_or_default();
    options.split(',').any(|option| option == word)
}

/// Changes the options of a mount that is there, as far as the kernel keeps them.
pub(crate) fn remount(dir: &Path, flags: MountFlags) -> Result<(), MountError> {
    if !flags.contains(MountFlags::RDONLY) && dir.canonicalize().is_ok_and(|dir| is_opened_read_only(&dir)) {
        return Err(MountError::OpenedReadOnly(dir.into()));
    }
    let failed = |errno| MountError::System { call: "remount", dir: dir.into(), errno };
    rustix::mount::mount_remount(dir, flags, c"").map_err(failed)
}

/// Whether the server of the mount at `dir` shares its lock of the volume: then it only reads.
fn is_opened_read_only(dir: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let source = source_of(dir).and_then(|source| open(source, flags, Mode::empty()).ok());
    source.is_some_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_of_the_table_of_mounts() {
        assert_eq!(unescape(br"/mnt/a\040b\134c"), b"/mnt/a b\\c");
        assert_eq!(unescape(br"/mnt/a\04"), br"/mnt/a\04");
    }
}
