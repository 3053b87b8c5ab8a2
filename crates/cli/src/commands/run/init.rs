//! The first process of the PID namespace: it arranges the program's mounts, starts the program,
//! and takes in processes that lost their parents.
//!
//! Hazard: paths inside of the volume are its author's. Each is looked up below the volume's root,
//! with links that lead out of it taken as leading to that root.

use super::signals::Forwarder;
use super::{Args, FAILED, code_of, forbidden, pid_of, unshare};
use crate::failure::{Cause, Failure, OrCannot, Res};
use crate::quote::quoted;
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind_recursive, unmount};
use rustix::process::{Signal, WaitOptions, chdir, pivot_root, set_parent_process_death_signal, wait};
use rustix::thread::UnshareFlags;
use std::ffi::OsStr;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

/// Directories of this machine, bound where the volume has a directory for them.
const OF_THE_MACHINE: [&str; 2] = ["/dev", "/sys"];

/// The exit codes of a shell for a program that is missing, or is no program.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

impl Args {
    /// Runs the program for the process `parent`, which has started this one. Returns the exit
    /// status of the program.
    pub(super) fn be_init(&self, parent: u32) -> Res<u8> {
        let own = |failure: Failure| failure.code(FAILED);
        set_parent_process_death_signal(Some(Signal::KILL)).or_cannot("follow", "lanefs").map_err(own)?;
        // It may have ended before. /proc is still the one that numbers processes as it does.
        if number_in_proc("PPid:") != Some(parent) {
            return Ok(128 + Signal::KILL.as_raw() as u8);
        }
        let forwarder = Forwarder::new().or_cannot("catch", "signals").map_err(own)?;
        self.arrange().map_err(own)?;
        let (name, args) = self.program.split_first().ok_or_else(|| own(Failure::new("no program")))?;
        let child = Command::new(name).args(args).spawn().map_err(|e| {
            let code = if e.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
            Failure::cannot("run", name.as_bytes(), e).code(code)
        })?;
        let Some(child) = pid_of(child.id()) else { return Ok(FAILED) };
        forwarder.pass_to(child);
        loop {
            match wait(WaitOptions::empty()) {
                Ok(Some((pid, status))) if pid == child => return Ok(code_of(status)),
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(own(Failure::cannot("wait for", name.as_bytes(), e))),
            }
        }
    }

    /// Makes the mounts of the program, and goes to its directory.
    fn arrange(&self) -> Res {
        // The server and its broker keep the directories that they have.
        unshare(UnshareFlags::NEWNS).map_err(|e| forbidden("a mount namespace", e))?;
        let shown = self.volume.as_bytes();
        let root = open_in(CWD, self.at.as_os_str(), ResolveFlags::empty()).or_cannot("open", shown)?;
        for (bind, host) in self.bind.iter().zip(&self.host) {
            let (_, inside) = split_bind(bind)?;
            let target =
                open_in(&root, inside, ResolveFlags::IN_ROOT).or_cannot("bind at", inside.as_bytes())?;
            mount_bind_recursive(host, path_of(&target)).or_cannot("bind", host.as_os_str().as_bytes())?;
        }
        if self.chroot {
            self.make_root(&root)?;
        } else {
            mount_proc("/proc").or_cannot("mount", "/proc")?;
        }
        let dir = self.workdir.as_deref().unwrap_or(if self.chroot { Path::new("/") } else { &self.at });
        chdir(dir).or_cannot("change to directory", dir.as_os_str().as_bytes())
    }

    /// Makes the volume the root directory of this process and of those that it starts.
    fn make_root(&self, root: &OwnedFd) -> Res {
        for name in OF_THE_MACHINE {
            if let Ok(target) = open_in(root, name.as_ref(), ResolveFlags::IN_ROOT) {
                mount_bind_recursive(name, path_of(&target)).or_cannot("bind", name)?;
            }
        }
        if let Ok(target) = open_in(root, "/proc".as_ref(), ResolveFlags::IN_ROOT) {
            mount_proc(&path_of(&target)).or_cannot("mount", "/proc")?;
        }
        let made = chdir(&self.at)
            .and_then(|()| pivot_root(".", "."))
            .and_then(|()| unmount(".", UnmountFlags::DETACH))
            .and_then(|()| chdir("/"));
        made.or_cannot("make a root directory of", self.volume.as_bytes())
    }
}

/// Mounts the `/proc` of this PID namespace, or binds the old one: a container that hides a part of
/// its own gets no other.
fn mount_proc(target: &str) -> rustix::io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", target, "proc", flags, c"").or_else(|_| mount_bind_recursive("/proc", target))
}

/// Splits `HOST:INSIDE`.
pub(super) fn split_bind(bind: &OsStr) -> Res<(&OsStr, &OsStr)> {
    let bytes = bind.as_bytes();
    let at = bytes.iter().rposition(|b| *b == b':').filter(|at| *at > 0 && at + 1 < bytes.len());
    let at = at.ok_or_else(|| Failure::new(format!("{}: write --bind HOST:INSIDE", quoted(bytes))))?;
    Ok((OsStr::from_bytes(&bytes[..at]), OsStr::from_bytes(&bytes[at + 1..])))
}

/// Opens a place of the tree, as such.
fn open_in(dir: impl rustix::fd::AsFd, path: &OsStr, resolve: ResolveFlags) -> Result<OwnedFd, Cause> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    Ok(openat2(dir, path, flags, Mode::empty(), resolve)?)
}

/// Returns a path that leads to an open file, whatever its name is by now.
fn path_of(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Returns the number of this process (`Pid:`) or its parent (`PPid:`) as `/proc` counts, which may
/// be that of a PID namespace above.
pub(super) fn number_in_proc(field: &str) -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix(field))?.trim().parse().ok()
}
