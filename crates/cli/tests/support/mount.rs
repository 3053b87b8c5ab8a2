//! A volume that is mounted, for as long as a test.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use super::{Image, tool};
use lanefs_tests::Watchdog;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// One test at a time: a process that another test forks has the files of this one open until it is
/// another program, and a mount with an open file is busy.
static ALONE: Mutex<()> = Mutex::new(());

/// An image that is mounted at `m` beside it, or was.
pub(crate) struct Mount {
    pub(crate) image: Image,
    pub(crate) at: PathBuf,
    namespace: Namespace,
    _watchdog: Watchdog,
    _alone: MutexGuard<'static, ()>,
}

impl Mount {
    pub(crate) fn new(options: &str) -> Self {
        let mount = Self::blank();
        mount.image.ok(["mount", "v.img", "m", "-o", options]);
        mount
    }

    /// Not mounted yet.
    pub(crate) fn blank() -> Self {
        Self::blank_with(&[])
    }

    /// Not mounted yet, with these options of mke2fs.
    pub(crate) fn blank_with(options: &[&str]) -> Self {
        Self::watched(Watchdog::new("a mount"), options)
    }

    /// Not mounted yet, for a load of so long.
    pub(crate) fn for_load(time: Duration) -> Self {
        Self::watched(Watchdog::behind(time, "a mount under load"), &[])
    }

    fn watched(watchdog: Watchdog, options: &[&str]) -> Self {
        lanefs_tests::private_mounts();
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let image = Image::mke2fs(&[&["-b", "4096"], options].concat(), None);
        let at = image.beside("m");
        fs::create_dir(&at).unwrap();
        let namespace = Namespace::of("thread-self").unwrap();
        Self { image, at, namespace, _watchdog: watchdog, _alone: alone }
    }

    /// Not mounted yet, and in memory: how soon a server has closed its volume is not a matter of
    /// the disk.
    pub(crate) fn in_memory() -> Self {
        let mount = Self::blank();
        let script =
            "mount -t tmpfs -o size=100m memory m; cp --sparse=always v.img m; mkdir m/m; mount --move m .";
        super::succeed(tool("sh").args(["-euc", script]).current_dir(mount.image.beside("")));
        mount
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }

    /// In the foreground, when it is served: until then the mount goes with a killed server.
    pub(crate) fn serve(&self) -> Child {
        let mut child = self.image.lanefs(["mount", "-f", "v.img", "m"]).spawn().unwrap();
        while !self.is_mounted() {
            assert!(child.try_wait().unwrap().is_none(), "the server ended");
            thread::sleep(Duration::from_millis(10));
        }
        fs::read_dir(&self.at).unwrap();
        child
    }

    pub(crate) fn is_mounted(&self) -> bool {
        let at = self.at.canonicalize().unwrap_or_else(|_| self.at.clone());
        let table = fs::read_to_string("/proc/thread-self/mounts").unwrap();
        table.lines().any(|line| line.contains(" fuse.lanefs ") && line.contains(at.to_str().unwrap()))
    }

    pub(crate) fn umount(&self) {
        self.unmount("m");
        self.image.fsck();
    }

    /// `lanefs umount NAME` in the image's folder.
    pub(crate) fn unmount(&self, name: &str) {
        self.unmount_of(&self.image.path, name);
    }

    /// As [`unmount`](Self::unmount), of a mount of `volume`.
    pub(crate) fn unmount_of(&self, volume: &Path, name: &str) {
        let servers = servers_of(volume);
        let out = self.image.lanefs(["umount", name]).output().unwrap();
        let said = String::from_utf8(out.stderr).unwrap();
        assert!(out.status.success() && is_quiet(&said, name, &servers), "{}: {said}", out.status);
    }

    /// The process that mounts and unmounts for a server.
    pub(crate) fn broker_of(&self, server: u32) -> Pid {
        let out = super::succeed(tool("pgrep").args(["-P", &server.to_string()]));
        Pid::from_raw(String::from_utf8_lossy(&out.stdout).trim().parse().unwrap()).unwrap()
    }

    /// Kills the broker of a server, and waits until it has gone.
    pub(crate) fn kill_broker(&self, server: u32) {
        let broker = self.broker_of(server);
        kill_process(broker, Signal::KILL).unwrap();
        ended(broker);
    }

    /// Processes that serve the volume.
    pub(crate) fn servers(&self) -> Vec<i32> {
        servers_of(&self.image.path)
    }
}

/// Whether an unmount of `name` said nothing, or what it says after two seconds: that one of
/// `servers` is still closing its volume, which is no failure.
pub(crate) fn is_quiet(said: &str, name: &str, servers: &[i32]) -> bool {
    let closing = |pid: &i32| {
        said == format!("lanefs: '{name}' is unmounted, and process {pid} is still closing its volume\n")
    };
    said.is_empty() || servers.iter().any(closing)
}

/// Processes that have the file or device `volume` open.
fn servers_of(volume: &Path) -> Vec<i32> {
    let volume = volume.canonicalize().unwrap();
    let fds = |pid: &i32| fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|e| e.file_name().to_str()?.parse().ok());
    pids.filter(|pid| fds(pid).any(|fd| fs::read_link(fd.path()).is_ok_and(|p| p == volume))).collect()
}

/// A mount namespace. A test that mounts has one of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Namespace(u64, u64);

impl Namespace {
    /// Returns the namespace of a process, by its name in `/proc`; `None` if it has ended.
    pub(crate) fn of(process: &str) -> Option<Self> {
        let found = fs::metadata(format!("/proc/{process}/ns/mnt")).ok()?;
        Some(Self(found.dev(), found.ino()))
    }

    /// Returns the processes of the command in this namespace: servers of mounts and their brokers,
    /// whatever they serve.
    pub(crate) fn processes(self) -> Vec<Pid> {
        let command = Path::new(env!("CARGO_BIN_EXE_lanefs")).canonicalize().unwrap();
        let names = fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().into_string().ok());
        let is_here = |name: &String| {
            fs::read_link(format!("/proc/{name}/exe")).is_ok_and(|program| program == command)
                && Self::of(name) == Some(self)
        };
        names.filter(is_here).filter_map(|name| Pid::from_raw(name.parse().ok()?)).collect()
    }
}

/// Waits until a process that is no child of this one has ended. It may stay a zombie.
pub(crate) fn ended(pid: Pid) {
    let status = format!("/proc/{}/status", pid.as_raw_nonzero());
    while fs::read_to_string(&status).is_ok_and(|text| !text.contains("State:\tZ")) {
        thread::sleep(Duration::from_millis(5));
    }
}

impl Drop for Mount {
    /// Takes away all that a test that failed has left mounted beside the image. Kills the servers
    /// first: one whose NBD server is gone would wait a minute for it.
    fn drop(&mut self) {
        for process in self.namespace.processes() {
            // It may have ended by itself.
            let _ = kill_process(process, Signal::KILL);
            ended(process);
        }
        let dir = self.image.beside("").canonicalize().unwrap();
        let table = fs::read_to_string("/proc/thread-self/mounts").unwrap();
        let dirs = table.lines().rev().filter_map(|line| line.split(' ').nth(1));
        for at in dirs.filter(|at| PathBuf::from(at).starts_with(&dir)) {
            let _ = tool("umount").arg("-l").arg(at).status();
        }
    }
}
