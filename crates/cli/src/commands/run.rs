//! `lanefs run`: a program on a volume, in namespaces of its own, without root.
//!
//! The command makes a mount namespace, and a user namespace if it may not make the former without.
//! It starts the server of a mount in them (`lanefs mount --until`), and then the first process of
//! a PID namespace (`init`), which starts the program and passes on its exit status.
//!
//! Invariants, whichever process is killed:
//! - init goes with the command, and all processes of the program go with init;
//! - the server ends with the command, and closes the volume;
//! - the mount is in no mount namespace but these.

mod init;
mod signals;

use super::mount;
use crate::failure::{Cause, Failure, OrCannot, Res};
use crate::location::whole_volume;
use crate::quote::quoted;
use init::{number_in_proc, split_bind};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getgid, getuid, kill_process, wait};
use rustix::thread::UnshareFlags;
use signals::Forwarder;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// The exit code of a failure of the command itself, as for env(1) and chroot(1).
const FAILED: u8 = 125;

/// Users that a whole system has numbers for.
const NUMBERS: u64 = 65_536;

/// Run a program on a volume, without root and without a mount that others see
///
/// The volume is mounted in a mount namespace of the program's own, and is gone with it. Users are
/// root in it, and all files are theirs. The exit status is that of the program, 128 and the number
/// of a signal that ended it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The volume
    volume: OsString,
    /// The program writes to the volume, which otherwise is only read
    #[arg(long)]
    rw: bool,
    /// Keep the program's writes in memory, and drop them at its end
    #[arg(long, conflicts_with = "rw")]
    overlay: bool,
    /// The volume is the program's root directory, with /dev and /sys of this machine and a /proc
    /// in it
    #[arg(long)]
    chroot: bool,
    /// Show a file or directory of this machine at INSIDE in the volume, where one is
    #[arg(long, value_name = "HOST:INSIDE")]
    bind: Vec<OsString>,
    /// The directory to start the program in, as the program names it; else the root of the volume
    #[arg(long, value_name = "DIR")]
    workdir: Option<PathBuf>,
    /// The directory that the program finds the volume at, without --chroot
    #[arg(long, value_name = "DIR", default_value = "/mnt")]
    at: PathBuf,
    /// Options of the mount: see lanefs-mount-options(5)
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Be the first process of the PID namespace that the process PROCESS has made
    #[arg(long, hide = true, value_name = "PROCESS")]
    init: Option<u32>,
    /// HOST of each --bind, as it was before the mount
    #[arg(long, hide = true, value_name = "HOST")]
    host: Vec<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

impl Args {
    pub(crate) fn run(mut self) -> Res {
        let failed = |failure: Failure| failure.code(FAILED);
        self.at = self
            .at
            .canonicalize()
            .or_cannot("mount at", self.at.as_os_str().as_encoded_bytes())
            .map_err(failed)?;
        let code = match self.init {
            Some(parent) => self.be_init(parent)?,
            None => self.start().map_err(failed)?,
        };
        if code == 0 { Ok(()) } else { Err(Failure::Silent(code)) }
    }

    /// Runs the program. Returns its exit status.
    fn start(&self) -> Res<u8> {
        self.check_options()?;
        let hosts = self.hosts()?;
        let alone = enter_namespaces()?;
        // For all processes that are started from here on by this one, Ctrl-C is not for this one.
        let forwarder = Forwarder::new().or_cannot("catch", "signals")?;
        let server = self.mount(alone)?;
        let outcome = self.in_pids(server.id(), &hosts, &forwarder);
        self.end(&server, outcome)
    }

    /// Refuses a word of `-o` that contradicts how the volume is mounted.
    fn check_options(&self) -> Res {
        let has = |word: &str| self.options.iter().any(|words| words.split(',').any(|other| other == word));
        let text = match (self.rw, self.overlay) {
            (false, false) if has("rw") => {
                "-o rw does not make the volume writable: --rw does, and --overlay drops the changes"
            }
            (true, _) if has("ro") => "-o ro contradicts --rw: leave one of them out",
            (_, true) if has("ro") => "-o ro contradicts --overlay: leave one of them out",
            (_, false) if has("overlay") => "-o overlay does not make an overlay: --overlay does",
            _ => return Ok(()),
        };
        Err(Failure::new(text))
    }

    /// Returns where HOST of each `--bind` leads to, while the volume does not cover it.
    fn hosts(&self) -> Res<Vec<PathBuf>> {
        let host = |bind| {
            let (host, _) = split_bind(bind)?;
            let path = Path::new(host).canonicalize().or_cannot("bind", host.as_encoded_bytes())?;
            if path.starts_with(&self.at) {
                let why = "the volume is mounted above it; --at names another directory for that";
                return Err(Failure::cannot("bind", host.as_encoded_bytes(), Cause::text(why)));
            }
            Ok(path)
        };
        self.bind.iter().map(|bind| host(bind)).collect()
    }

    /// Starts the server of the mount, and waits until the mount is there. `alone`: no other owner
    /// has a number here, so all files are shown as this user's.
    fn mount(&self, alone: bool) -> Res<Child> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("lanefs").args(["mount", "--daemon"]).arg(format!("--until={}", std::process::id()));
        if alone {
            command.args(["-o", "uid=0,gid=0"]);
        }
        for words in &self.options {
            command.arg("-o").arg(words);
        }
        let mode = match (self.rw, self.overlay) {
            (true, _) => "rw",
            (false, true) => "overlay,rw",
            (false, false) => "ro",
        };
        command.args(["-o", mode]);
        mount::started(command.arg("--").arg(whole_volume(&self.volume)).arg(&self.at))
    }

    /// Starts init, and waits until it or the server has ended. Returns the exit status of the
    /// program; `None` if the server ended first.
    fn in_pids(&self, server: u32, hosts: &[PathBuf], forwarder: &Forwarder) -> Res<Option<u8>> {
        unshare(UnshareFlags::NEWPID).map_err(|e| forbidden("a PID namespace", e))?;
        let own = number_in_proc("Pid:").ok_or_else(|| unfound("this process"))?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("lanefs").arg("run").arg(format!("--init={own}"));
        hosts.iter().for_each(|host| _ = command.arg("--host").arg(host));
        let init = command.args(std::env::args_os().skip(2)).spawn().or_cannot("start", "lanefs")?;
        let init = pid_of(init.id()).ok_or_else(|| unfound("the first process of the namespace"))?;
        signals::until_heard(init);
        forwarder.pass_to(init);
        let mut served = true;
        loop {
            match wait(WaitOptions::empty()) {
                Ok(Some((pid, status))) if pid == init => return Ok(served.then(|| code_of(status))),
                Ok(Some((pid, _))) if Some(pid) == pid_of(server) => {
                    served = false;
                    // All that runs on the mount goes with init.
                    let _ = kill_process(init, Signal::KILL);
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(Failure::cannot("wait for", "the program", e)),
            }
        }
    }

    /// Ends the mount, and waits until the volume is closed.
    fn end(&self, server: &Child, outcome: Res<Option<u8>>) -> Res<u8> {
        let volume = quoted(self.volume.as_encoded_bytes());
        let died = || Failure::new(format!("the server of {volume} has died; the program was ended"));
        let Some(code) = outcome? else { return Err(died()) };
        let Some(server) = pid_of(server.id()) else { return Err(died()) };
        // By hand, and not by a signal to the server: its broker may have been killed.
        if unmount(&self.at, UnmountFlags::empty()).is_err() {
            let _ = kill_process(server, Signal::TERM);
        }
        loop {
            match wait(WaitOptions::empty()) {
                Ok(Some((pid, status))) if pid == server => {
                    return match status.exit_status() {
                        Some(0) => Ok(code),
                        _ => Err(Failure::new(format!("{volume} was not closed; lanefs check looks at it"))),
                    };
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(Failure::cannot("close", self.volume.as_encoded_bytes(), e)),
            }
        }
    }
}

/// Makes a mount namespace, in a user namespace where this user may have none otherwise. Returns
/// whether this user is alone: other users have no numbers in the user namespace.
fn enter_namespaces() -> Res<bool> {
    let (uid, gid) = (getuid(), getgid());
    let may = rustix::process::geteuid().is_root() && unshare(UnshareFlags::NEWNS).is_ok();
    if !may {
        let both = UnshareFlags::NEWUSER | UnshareFlags::NEWNS;
        unshare(both).map_err(|e| forbidden("a user namespace", e))?;
        let maps = [
            ("setgroups", "deny".to_owned()),
            ("uid_map", format!("0 {uid} 1")),
            ("gid_map", format!("0 {gid} 1")),
        ];
        for (file, text) in maps {
            fs::write(format!("/proc/self/{file}"), text).map_err(|e| forbidden("a user namespace", e))?;
        }
    }
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(|e| forbidden("a mount namespace", e))?;
    Ok(["uid_map", "gid_map"].iter().any(|map| numbers_in(map) < NUMBERS))
}

/// Returns how many users or groups have a number in the user namespace.
fn numbers_in(map: &str) -> u64 {
    let map = fs::read_to_string(format!("/proc/self/{map}")).unwrap_or_default();
    map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok()).sum()
}

/// Leaves namespaces that this process shares with others.
#[allow(deprecated, reason = "unshare is unsafe with FILES only, which is not asked for")]
fn unshare(spaces: UnshareFlags) -> rustix::io::Result<()> {
    rustix::thread::unshare(spaces)
}

/// Says which setting of the machine is in the way of a namespace.
fn forbidden(what: &str, e: impl Into<Cause>) -> Failure {
    let settings = [
        ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", "user.max_user_namespaces=10000"),
        ("user/max_mnt_namespaces", "0", "user.max_mnt_namespaces=10000"),
        ("user/max_pid_namespaces", "0", "user.max_pid_namespaces=10000"),
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    ];
    let is = |file: &str, value: &str| {
        fs::read_to_string(format!("/proc/sys/{file}")).is_ok_and(|text| text.trim() == value)
    };
    let found = settings.into_iter().find(|(file, value, _)| is(file, value));
    let advice = found
        .map_or("a container or a security module may forbid it".to_owned(), |(.., setting)| {
            format!("sysctl -w {setting} allows it, by root")
        });
    Failure::new(format!("cannot make {what}: {}; {advice}", e.into())).code(FAILED)
}

/// Says that /proc does not show a process: it is of another PID namespace, or not mounted.
fn unfound(process: &str) -> Failure {
    Failure::new(format!("cannot find {process} in /proc: mount a /proc of this PID namespace")).code(FAILED)
}

fn pid_of(number: u32) -> Option<Pid> {
    Pid::from_raw(number.cast_signed())
}

/// Returns what a shell makes of how a process ended.
fn code_of(status: WaitStatus) -> u8 {
    let code = status.exit_status().or_else(|| Some(128 + status.terminating_signal()?));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED)
}
