//! `lanefs umount`, and what umount(8) calls: `umount.lanefs` and `umount.fuse.lanefs`.

use super::mount::{fs_type, no_namespace};
use crate::failure::{Failure, Res};
use crate::quote::quoted;
use crate::streams::tell;
use crate::watch::{AwaitedEnd, place};
use lanefs::device::lock_holders;
use lanefs_fuse::{MountError, MountOptions, MountPoint, User};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Unmount a volume, and wait until it is closed
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The directory that it is mounted at
    #[arg(value_name = "DIRECTORY")]
    dir: PathBuf,
    /// Detach it now, and unmount it when no program uses it any more
    #[arg(short, long)]
    lazy: bool,
    /// Unmount it while programs use it: their calls fail from then on, and data that they have not
    /// synced may be lost
    #[arg(short, long, conflicts_with = "read_only")]
    force: bool,
    /// Make it read-only if programs use it, in place of a failure
    #[arg(short, long)]
    read_only: bool,
}

impl Args {
    pub(crate) fn run(self) -> Res {
        let name = quoted(self.dir.as_os_str().as_bytes());
        let failed = |why: String| Failure::new(format!("cannot unmount {name}: {why}")).code(32);
        let mount = MountPoint::find(&self.dir, |device| place::server_of(device).is_some());
        let mount = mount.map_err(|e| failed(e.to_string()))?;
        // Before the unmount: the server is one of this mount as long as the mount is there.
        let server = ServerEnd::of(&mount, !self.lazy);
        let mut done = mount.unmount(self.lazy);
        let aborts = self.force && is_busy(&done);
        if aborts {
            // Out of the tree first, so that no program opens a file in it any more.
            done = mount.unmount(true).and_then(|()| mount.abort());
        }
        if self.read_only && is_busy(&done) && make_read_only(&mount).is_ok() {
            tell(format!("{name} is in use, and read-only now"));
            return Ok(());
        }
        done.map_err(|e| match e {
            MountError::System { errno: Errno::BUSY, .. } => {
                failed(format!("{e}{}", listed(": ", &lanefs_fuse::users(mount.device()))))
            }
            e => failed(e.to_string()),
        })?;
        // Where it is mounted elsewhere too, the server goes on.
        if self.lazy || mount.is_left() {
            return Ok(());
        }
        let ended = |why| Failure::new(format!("{name} is unmounted, {why}")).code(32);
        if !server.ends_within(FIRST) {
            tell(format!("{name} is unmounted, {}", server.state(&mount, aborts)));
            if !server.ends_within(PATIENCE - FIRST) {
                return Err(ended(server.state(&mount, aborts)));
            }
        }
        if aborts {
            return Ok(());
        }
        server.told().map_err(|why| ended(format!("and its volume was not closed: {why}")))
    }
}

fn is_busy(done: &Result<(), MountError>) -> bool {
    matches!(done, Err(MountError::System { errno: Errno::BUSY, .. }))
}

fn make_read_only(mount: &MountPoint) -> Result<(), MountError> {
    let mut options = MountOptions::default();
    // These two words are options.
    let _ = options.parse("remount,ro");
    mount.remount(&options, |_| None)
}

/// The time that a volume may take to be closed, in all, and until the command says why it waits.
const PATIENCE: Duration = Duration::from_secs(60);
const FIRST: Duration = Duration::from_secs(2);

/// The server of a mount: a process, which cannot be taken for another.
enum ServerEnd {
    /// It has a socket, and tells there how it ends, if it was asked and does not hang.
    Process(Pid, OwnedFd, Option<AwaitedEnd>),
    /// The mount has no socket that this user may open. Holds the processes that had the volume
    /// locked while it was mounted.
    Holders(File, Vec<u32>),
    /// It is gone already, or in another namespace of processes.
    Unknown,
}

impl ServerEnd {
    /// Finds the server. If `asks`, asks it to report its end.
    fn of(mount: &MountPoint, asks: bool) -> Self {
        if let Some((socket, pid)) = place::served_at(mount.device())
            && let Ok(process) = pidfd_open(pid, PidfdFlags::empty())
        {
            let end = asks.then(|| AwaitedEnd::new(&socket).ok()).flatten();
            return Self::Process(pid, process, end);
        }
        // A user's mount may name anything as its source, and opening a device may start something.
        let flags = OFlags::PATH.bits().cast_signed();
        match File::options().read(true).custom_flags(flags).open(mount.source()) {
            Ok(file) => {
                // A process with a socket serves another mount of the volume, and this one is dead.
                let others: Vec<u32> = place::servers()
                    .into_iter()
                    .map(|pid| pid.as_raw_nonzero().get().cast_unsigned())
                    .collect();
                let mut holders = lock_holders(&file);
                holders.retain(|pid| !others.contains(pid));
                if holders.is_empty() { Self::Unknown } else { Self::Holders(file, holders) }
            }
            Err(_) => Self::Unknown,
        }
    }

    /// Waits until it has ended, or has closed its volume. Whether it has.
    fn ends_within(&self, patience: Duration) -> bool {
        const STEP: Duration = Duration::from_millis(5);
        match self {
            Self::Process(_, process, _) => {
                let end = Instant::now() + patience;
                loop {
                    let left = end.saturating_duration_since(Instant::now());
                    let left = Timespec {
                        tv_sec: left.as_secs().cast_signed(),
                        tv_nsec: left.subsec_nanos().into(),
                    };
                    match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&left)) {
                        Ok(0) => return false,
                        Err(Errno::INTR) => {}
                        // If nothing can be waited for, nothing is.
                        Ok(_) | Err(_) => return true,
                    }
                }
            }
            Self::Holders(file, before) => (0..patience.as_millis() / STEP.as_millis()).any(|_| {
                let now = lock_holders(file);
                let one_has_gone = before.iter().any(|pid| !now.contains(pid));
                if !one_has_gone {
                    std::thread::sleep(STEP);
                }
                one_has_gone
            }),
            Self::Unknown => true,
        }
    }

    /// Returns what the server, which has ended, told of its volume.
    fn told(self) -> Result<(), String> {
        match self {
            Self::Process(_, _, Some(end)) => end.told(),
            _ => Ok(()),
        }
    }

    /// Returns why the server has not ended, and what ends it. A program that uses an `aborted`
    /// mount does not keep the server any longer.
    fn state(&self, mount: &MountPoint, aborted: bool) -> String {
        let who = match self {
            Self::Process(pid, ..) => format!("process {}", pid.as_raw_nonzero()),
            Self::Holders(_, pids) => format!("process {}", pids.first().copied().unwrap_or_default()),
            Self::Unknown => String::new(),
        };
        match lanefs_fuse::users(mount.device()) {
            users if aborted || users.is_empty() => format!("and {who} is still closing its volume"),
            users => format!(
                "and still in use{}; SIGTERM to {who} closes its volume all the same",
                listed(": ", &users)
            ),
        }
    }
}

/// Returns the first few users, behind `lead`; an empty string if there are none.
fn listed(lead: &str, users: &[User]) -> String {
    const MOST: usize = 3;
    if users.is_empty() {
        return String::new();
    }
    let mut names: Vec<String> = users.iter().take(MOST).map(ToString::to_string).collect();
    if users.len() > MOST {
        names.push(format!("and {} more", users.len() - MOST));
    }
    format!("{lead}{}", names.join(", "))
}

/// Unmount a volume, as umount(8) calls it, and wait until it is closed
///
/// umount(8) runs it for mounts of the type fuse.lanefs, or that name it by -o uhelper=lanefs.
#[derive(Debug, clap::Parser)]
#[command(name = "umount.lanefs", version)]
pub(crate) struct UmountHelper {
    /// The directory
    dir: PathBuf,
    /// Unmount it while programs use it: their calls fail from then on, and data that they have not
    /// synced may be lost
    #[arg(short, conflicts_with = "read_only")]
    force: bool,
    /// Detach it now, and unmount it when no program uses it any more
    #[arg(short)]
    lazy: bool,
    /// Accepted and ignored: there is no table of mounts but the kernel's
    #[arg(short = 'n')]
    no_table: bool,
    /// Make it read-only if programs use it, in place of a failure
    #[arg(short)]
    read_only: bool,
    /// Print the unmounted directory
    #[arg(short)]
    verbose: bool,
    /// The type: lanefs, or fuse and any name behind a dot
    #[arg(short = 't', value_name = "TYPE", value_parser = mounted_type)]
    fs_type: Option<String>,
    /// Refused: nsenter(1) enters a mount namespace
    #[arg(short = 'N', value_name = "NAMESPACE", value_parser = no_namespace)]
    namespace: Option<String>,
}

/// Takes a type that the table of mounts can have for a mount of lanefs. Whether the mount is one,
/// its own entry there says.
fn mounted_type(name: &str) -> Result<String, String> {
    if name.starts_with("fuse.") { Ok(name.to_owned()) } else { fs_type(name) }
}

impl UmountHelper {
    pub(crate) fn run(self) -> Res {
        let said = format!("{} is unmounted", quoted(self.dir.as_os_str().as_bytes()));
        Args { dir: self.dir, lazy: self.lazy, force: self.force, read_only: self.read_only }.run()?;
        if self.verbose {
            tell(said);
        }
        Ok(())
    }
}
