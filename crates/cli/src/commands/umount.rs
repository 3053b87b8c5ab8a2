//! `lanefs umount`, and what umount(8) calls: `umount.lanefs` and `umount.fuse.lanefs`.

use crate::failure::{Failure, Res};
use crate::quote::quoted;
use crate::watch::place;
use lanefs::device::lock_holders;
use lanefs_fuse::{MountError, MountPoint, User};
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

/// Take a mount away, and wait until its volume is closed
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The directory that it is mounted at
    #[arg(value_name = "DIRECTORY")]
    dir: PathBuf,
    /// Take it from the tree of names now, and for good when nobody uses it any more
    #[arg(short, long)]
    lazy: bool,
}

impl Args {
    pub(crate) fn run(self) -> Res {
        let name = quoted(self.dir.as_os_str().as_bytes());
        let failed = |why: String| Failure::new(format!("cannot unmount {name}: {why}")).code(32);
        let mount = MountPoint::find(&self.dir, |device| place::server_of(device).is_some());
        let mount = mount.map_err(|e| failed(e.to_string()))?;
        // Before the unmount: the server is one of this mount as long as the mount is there.
        let server = Server::of(&mount);
        mount.unmount(self.lazy).map_err(|e| match e {
            MountError::System { errno: Errno::BUSY, .. } => {
                failed(format!("{e}{}", listed(": ", &lanefs_fuse::users(mount.device()))))
            }
            e => failed(e.to_string()),
        })?;
        // Where it is mounted elsewhere too, the server goes on.
        if self.lazy || mount.is_left() || server.ends_within(FIRST) {
            return Ok(());
        }
        eprintln!("lanefs: {name} is unmounted, {}", server.state(&mount));
        if server.ends_within(PATIENCE - FIRST) {
            return Ok(());
        }
        Err(Failure::new(format!("{name} is unmounted, {}", server.state(&mount))).code(32))
    }
}

/// How long a volume may take to be closed, in all, and until it is said why that lasts.
const PATIENCE: Duration = Duration::from_secs(60);
const FIRST: Duration = Duration::from_secs(2);

/// The server of a mount: a process, which cannot be taken for another.
enum Server {
    /// It has a socket.
    Process(Pid, OwnedFd),
    /// It has none that this user may enter: the processes that had the volume locked while it was mounted.
    Holders(File, Vec<u32>),
    /// It is gone already, or in another namespace of processes.
    Unknown,
}

impl Server {
    fn of(mount: &MountPoint) -> Self {
        if let Some(pid) = place::server_of(mount.device())
            && let Ok(process) = pidfd_open(pid, PidfdFlags::empty())
        {
            return Self::Process(pid, process);
        }
        let flags = OFlags::NONBLOCK.bits().cast_signed();
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
            Self::Process(_, process) => {
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

    /// Why it has not ended, and what ends it.
    fn state(&self, mount: &MountPoint) -> String {
        let who = match self {
            Self::Process(pid, _) => format!("process {}", pid.as_raw_nonzero()),
            Self::Holders(_, pids) => format!("process {}", pids.first().copied().unwrap_or_default()),
            Self::Unknown => String::new(),
        };
        match lanefs_fuse::users(mount.device()) {
            users if users.is_empty() => format!("and {who} is still closing its volume"),
            users => format!(
                "and still in use{}; SIGTERM to {who} closes its volume all the same",
                listed(": ", &users)
            ),
        }
    }
}

/// The first few users, behind `lead`; nothing if there are none.
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

/// What umount(8) calls: `umount.TYPE DIRECTORY [-flnrv] [-N NAMESPACE] [-t TYPE]`.
#[derive(Debug, clap::Parser)]
#[command(name = "umount.lanefs", version)]
pub(crate) struct Helper {
    /// The directory
    dir: PathBuf,
    /// For compatibility
    #[arg(short)]
    force: bool,
    /// From the tree of names now
    #[arg(short)]
    lazy: bool,
    /// For compatibility
    #[arg(short = 'n')]
    no_table: bool,
    /// For compatibility
    #[arg(short)]
    read_only: bool,
    /// For compatibility
    #[arg(short)]
    verbose: bool,
    /// For compatibility
    #[arg(short = 't', value_name = "TYPE")]
    fs_type: Option<String>,
    /// For compatibility
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<String>,
}

impl Helper {
    pub(crate) fn run(self) -> Res {
        Args { dir: self.dir, lazy: self.lazy }.run()
    }
}
