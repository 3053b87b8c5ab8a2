//! A volume mounted by lanefs or by a peer: the kernel's ext4 or fuse2fs.
//!
//! Invariants:
//!
//! - Dropping the value, also by a panic, unmounts the volume and ends the server.
//! - A server that makes no progress is killed after a time limit, so that a test that waits for it
//!   gets an error instead of hanging.

use crate::LoopMount;
use crate::tools::{e2fsck_clean, private_mounts};
use rustix::fs::{FlockOperation, flock};
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// The time limit for a server to start, or to write back and exit.
const PATIENCE: Duration = Duration::from_secs(300);

/// The server of a mounted volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Server {
    /// `lanefs mount`, with the path of the command.
    Lanefs(PathBuf),
    /// The kernel's ext4, on a loop device.
    Kernel,
    /// The kernel's ext4, on a loop device that goes past the page cache of the image's file
    /// system.
    KernelDirect,
    /// fuse2fs of e2fsprogs.
    Fuse2fs,
}

impl Server {
    /// The name for messages and tables.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Lanefs(_) => "lanefs",
            Self::Kernel | Self::KernelDirect => "kernel ext4",
            Self::Fuse2fs => "fuse2fs",
        }
    }
}

/// A mounted volume.
#[derive(Debug)]
pub struct Mounted {
    image: PathBuf,
    dir: PathBuf,
    by: By,
}

#[derive(Debug)]
enum By {
    Kernel(LoopMount),
    Process { child: Child, log: PathBuf, _limit: Option<Sender<()>> },
    Nobody,
}

impl Mounted {
    /// Mounts `image`. `options` are those of `mount -o`, of the server. It is killed when it has
    /// been mounted for `limit`.
    ///
    /// # Panics
    /// If the test is not root, or the server does not come up; with what it said.
    pub fn new(server: &Server, image: &Path, options: &str, limit: Duration) -> Self {
        Self::from(server, (image.as_os_str(), image), options, limit)
    }

    /// Mounts the volume at `url` as [`new`](Self::new) does, with what the server says in a file
    /// beside `image`.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn served(server: &Server, (url, image): (&str, &Path), options: &str, limit: Duration) -> Self {
        Self::from(server, (url.as_ref(), image), options, limit)
    }

    fn from(server: &Server, (volume, image): (&OsStr, &Path), options: &str, limit: Duration) -> Self {
        private_mounts();
        let kernel = match server {
            Server::Kernel => Some(LoopMount::new(image, options)),
            Server::KernelDirect => Some(LoopMount::direct(image, "ext4", options).unwrap()),
            Server::Lanefs(_) | Server::Fuse2fs => None,
        };
        if let Some(mount) = kernel {
            let dir = mount.path().to_owned();
            return Self { image: image.to_owned(), dir, by: By::Kernel(mount) };
        }
        let dir = tempfile::Builder::new().prefix("lanefs-mnt").tempdir().unwrap().keep();
        let log = image.with_extension("log");
        let file = File::options().create(true).append(true).open(&log).unwrap();
        let mut command = match server {
            Server::Lanefs(program) => {
                let mut command = Command::new(crate::power::server(program));
                command.args(["mount", "--foreground"]).arg(volume).arg(&dir);
                command
            }
            _ => {
                let mut command = Command::new("fuse2fs");
                command.arg("-f").arg(image).arg(&dir);
                command
            }
        };
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        let child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let pid = child.id();
        let by = By::Process { child, log, _limit: None };
        let mut mounted = Self { image: image.to_owned(), dir: dir.clone(), by };
        let by = Instant::now() + PATIENCE;
        while !is_mounted(&dir) {
            if let Some(status) = mounted.try_wait() {
                panic!("{command:?}: {status}\n{}", mounted.said());
            }
            assert!(Instant::now() < by, "{command:?} does not mount\n{}", mounted.said());
            std::thread::sleep(Duration::from_millis(5));
        }
        if let By::Process { _limit, .. } = &mut mounted.by {
            *_limit = Some(kill_after(pid, limit, format!("{command:?}")));
        }
        mounted
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// The volume.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// Calls [`LoopMount::keep_unwritten`], where the mount is the kernel's.
    ///
    /// # Panics
    /// If the kernel has no such setting.
    pub fn keep_unwritten(&self) {
        if let By::Kernel(mount) = &self.by {
            mount.keep_unwritten();
        }
    }

    /// The serving process, where there is one.
    pub fn pid(&self) -> Option<u32> {
        match &self.by {
            By::Process { child, .. } => Some(child.id()),
            _ => None,
        }
    }

    /// What the server has said.
    pub fn said(&self) -> String {
        match &self.by {
            By::Process { log, .. } => std::fs::read_to_string(log).unwrap_or_default(),
            _ => String::new(),
        }
    }

    fn try_wait(&mut self) -> Option<ExitStatus> {
        match &mut self.by {
            By::Process { child, .. } => child.try_wait().unwrap(),
            _ => None,
        }
    }

    /// Unmounts; the server must end well. Then `e2fsck -fn` judges the volume.
    ///
    /// # Panics
    /// If anything of that fails.
    pub fn unmount(self) {
        let image = self.image.clone();
        self.unmount_only();
        e2fsck_clean(image);
    }

    /// Unmounts as [`unmount`](Self::unmount) does, without e2fsck.
    ///
    /// # Panics
    /// If the unmount fails.
    pub fn unmount_only(mut self) {
        match std::mem::replace(&mut self.by, By::Nobody) {
            By::Kernel(mount) => mount.unmount(),
            by => {
                self.by = by;
                unmount_soon(&self.dir);
                let status = self.wait();
                assert!(status.success(), "the server ended with {status}\n{}", self.said());
            }
        }
    }

    /// Waits for the server's end, after whatever ends it.
    ///
    /// # Panics
    /// If it does not come.
    pub fn wait(&mut self) -> ExitStatus {
        let by = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.try_wait() {
                return status;
            }
            assert!(Instant::now() < by, "the server does not end\n{}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills the server with SIGKILL, or cuts the kernel's power; then `ends` what uses the mount,
    /// and takes the dead mount away. The image stays as it is.
    ///
    /// # Panics
    /// If the dead mount cannot be unmounted.
    pub fn kill(mut self, ends: impl FnOnce()) {
        match &mut self.by {
            By::Kernel(mount) => mount.shut_down(),
            By::Process { child, .. } => {
                child.kill().unwrap();
                child.wait().unwrap();
                released(&self.image);
            }
            By::Nobody => {}
        }
        ends();
        match std::mem::replace(&mut self.by, By::Nobody) {
            By::Kernel(mount) => mount.unmount(),
            _ => unmount_soon(&self.dir),
        }
        assert!(!is_mounted(&self.dir), "{} is still mounted", self.dir.display());
    }
}

/// Waits until the kernel has released the lock of a killed server, whose writes may still be on
/// their way.
///
/// # Panics
/// If there is no such file.
pub fn released(image: &Path) {
    let image = File::open(image).unwrap();
    flock(&image, FlockOperation::LockExclusive).unwrap();
    flock(&image, FlockOperation::Unlock).unwrap();
}

/// Runs umount until it succeeds. A process that was just killed, or just forked by another test,
/// may keep the mount busy for a moment.
///
/// # Panics
/// If it stays busy. The mount is gone nevertheless.
pub fn unmount_soon(dir: &Path) {
    for _ in 0..1200 {
        if Command::new("umount").arg(dir).output().is_ok_and(|out| out.status.success()) {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let said = Command::new("umount").arg(dir).output();
    let _ = Command::new("umount").arg("--lazy").arg(dir).status();
    panic!("{} cannot be unmounted: {said:?}", dir.display());
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let By::Process { child, log, .. } = &mut self.by {
            // The dead server first: an unmount would wait for a living one that hangs.
            if matches!(child.try_wait(), Ok(None)) {
                if std::thread::panicking() {
                    eprintln!("{}", std::fs::read_to_string(log).unwrap_or_default());
                }
                let _ = child.kill();
            }
            let _ = child.wait();
            if is_mounted(&self.dir) {
                let _ = Command::new("umount").arg("--lazy").arg(&self.dir).status();
            }
        }
        // Never its content: that would be the volume's, if it is still mounted.
        let _ = std::fs::remove_dir(&self.dir);
    }
}

/// Returns whether something is mounted at `dir`.
pub fn is_mounted(dir: &Path) -> bool {
    let dir = format!(" {} ", dir.display());
    std::fs::read_to_string("/proc/thread-self/mounts").unwrap().lines().any(|line| line.contains(&dir))
}

/// Kills a process that is its own child with SIGKILL after `limit`, unless the sender is dropped
/// before.
fn kill_after(pid: u32, limit: Duration, what: String) -> Sender<()> {
    let (alive, dropped) = channel();
    std::thread::spawn(move || {
        if dropped.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            eprintln!("killed after {} s: {what}", limit.as_secs());
            let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    });
    alive
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mke2fs;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn volume() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("volume.img");
        mke2fs(&path, 16 << 20, &["-t", "ext4"]);
        (dir, path)
    }

    #[test]
    fn peers_come_and_go() {
        for server in [Server::Kernel, Server::KernelDirect, Server::Fuse2fs] {
            let (_dir, image) = volume();
            let mounted = Mounted::new(&server, &image, "", PATIENCE);
            let dir = mounted.path().to_owned();
            std::fs::write(dir.join("f"), "kept").unwrap();
            mounted.unmount();
            assert!(!is_mounted(&dir) && !dir.exists(), "{}", server.name());
            assert_eq!(crate::debugfs(&image, "cat /f"), "kept");
        }
    }

    #[test]
    fn a_server_is_killed_by_a_panic_and_by_its_limit() {
        let (_dir, image) = volume();
        let mut dir = PathBuf::new();
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let mounted = Mounted::new(&Server::Fuse2fs, &image, "", PATIENCE);
            dir = mounted.path().to_owned();
            panic!("on purpose");
        }));
        assert!(ended.is_err() && !is_mounted(&dir) && !dir.exists());
        let mut mounted = Mounted::new(&Server::Fuse2fs, &image, "", Duration::from_millis(300));
        assert!(!mounted.wait().success());
        drop(mounted);
        assert!(
            catch_unwind(|| Mounted::new(&Server::Fuse2fs, &image.with_extension("none"), "", PATIENCE))
                .is_err()
        );
    }
}
