//! `lanefs mount`, and what mount(8) calls: `mount.lanefs` and `mount.fuse.lanefs`.
//!
//! To mount in the background, the command starts itself as a child process, the server. It ends
//! when the child reports the mount on its standard output. Exit codes are those of mount(8).
//!
//! The server is confined once the device is open, before it reads the first byte of the file
//! system. It starts the command once more as its broker, for calls that a confined process cannot
//! make: see [`lanefs_fuse::Broker`].

use crate::failure::{Cause, Failure, Res};
use crate::location::{VolumeName, whole_volume};
use crate::quote::quoted;
use crate::streams::tell;
use crate::volumes::{open_device, source};
use crate::watch::place::{self, Folder};
use crate::watch::{EndWaiters, Signals, SocketPlace, Subject, WatchServer, ask};
use lanefs::Volume;
use lanefs_device::{BlockDevice, Medium, Overlay, VolumeUrl};
use lanefs_fuse::{Broker, MountDevice, MountOptions, MountPoint, SandboxMode, Session, SessionError};
use rustix::process::{Signal, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

/// mount(8): wrong use, or not permitted.
const USAGE: u8 = 1;
/// mount(8): the system failed.
const SYSTEM: u8 = 2;
/// mount(8): it is not mounted.
const NOT_MOUNTED: u8 = 32;

/// The signals that end a mount.
const SIGNALS: [i32; 3] = [SIGTERM, SIGINT, SIGHUP];

/// Mount a volume, for all programs to use
///
/// Without -f, the server continues in the background once the volume is mounted. It closes the
/// volume and ends after an unmount (lanefs umount, umount) or a signal. All options:
/// lanefs-mount-options(5).
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The volume
    volume: OsString,
    /// The directory to mount it at
    #[arg(value_name = "DIRECTORY")]
    dir: PathBuf,
    /// Options, separated by commas, as the kernel's ext4 names them: see lanefs-mount-options(5)
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Stay in the foreground
    #[arg(short, long)]
    foreground: bool,
    /// Report the mount on standard output, and go into the background
    #[arg(long, hide = true)]
    daemon: bool,
    /// Be the broker of the server that is this process: mount for it, and unmount
    #[arg(long, hide = true, value_name = "PROCESS")]
    broker: Option<u32>,
    /// End when the process PROCESS has ended, which has started this one
    #[arg(long, hide = true, value_name = "PROCESS")]
    until: Option<u32>,
    /// With --broker: the volume is another user's
    #[arg(long, hide = true, requires = "broker")]
    distrust: bool,
    /// mount(8) calls, which adds to a remount what fstab says of the mount.
    #[arg(skip)]
    by_mount8: bool,
}

impl Args {
    pub(crate) fn run(self) -> Res {
        let mut options = MountOptions::default();
        for words in &self.options {
            options.parse(words).map_err(|e| Failure::new(e.to_string()).code(USAGE))?;
        }
        if options.remount {
            self.check_remount(&options)?;
            let mount = MountPoint::find(&self.dir, |device| place::server_of(device).is_some());
            let done = mount.and_then(|mount| mount.remount(&options, only_reads));
            return done.map_err(|e| not_mounted(&self.volume, &self.dir, e.to_string()));
        }
        if let Some(server) = self.broker {
            return self.run_broker(server, options);
        }
        if self.foreground || self.daemon { self.serve(options) } else { self.start() }
    }

    /// Checks that a remount is asked for nothing that it cannot do. Of mount(8) it only says so:
    /// what fstab has is most often what the mount has.
    fn check_remount(&self, options: &MountOptions) -> Res {
        let words = options.from_the_beginning().join(",");
        let text = format!("a remount changes flags only, and not {words}: unmount it, and mount it again");
        match (words.is_empty(), self.by_mount8) {
            (true, _) => {}
            (false, true) => tell(text),
            (false, false) => return Err(Failure::new(text).code(USAGE)),
        }
        Ok(())
    }

    /// Starts the server, and waits until the mount is there or cannot be.
    fn start(self) -> Res {
        let system = |e: std::io::Error| {
            Failure::new(format!("cannot go into the background: {}", Cause::from(e))).code(SYSTEM)
        };
        let mut command = Command::new(std::env::current_exe().map_err(system)?);
        command.arg0("lanefs").args(["mount", "--daemon"]);
        for words in &self.options {
            command.arg("-o").arg(words);
        }
        command.arg("--").arg(&self.volume).arg(&self.dir);
        started(&mut command).map(drop)
    }

    fn serve(&self, mut options: MountOptions) -> Res {
        let name = whole_volume(&self.volume);
        let source = source(&name);
        let system =
            |e: std::io::Error| not_mounted(&name, &self.dir, Cause::from(e).to_string()).code(SYSTEM);
        if let Some(parent) = self.until {
            end_with(parent).map_err(system)?;
        }
        // Before this process opens any. The volume may be named as one of them, as /dev/fd/3.
        let inherited = lanefs_device::inherited_files();
        let signals = Signals::new(&SIGNALS).map_err(system)?;
        let metrics = self.listen(&options)?;
        // A confined process opens nothing.
        let null = File::options().read(true).write(true).open("/dev/null").map_err(system)?;
        let (volume, broker) = self.open_and_confine(&name, &source, &mut options, inherited, &null)?;
        // The broker has opened its own.
        let folder = broker.is_none().then(Folder::open);
        let session = match &broker {
            Some(broker) => Session::mount_by(broker, volume, &options),
            None => Session::mount(volume, &source, &self.dir, &options),
        };
        let session = session.map_err(|e| not_mounted(&name, &self.dir, e.to_string()))?;
        let unmounter = session.unmounter();
        let end = move || {
            if let Err(e) = unmounter.unmount() {
                tell(e);
            }
        };
        let subject = Subject {
            monitor: session.monitor(),
            volume: source.to_string_lossy().into_owned(),
            dir: session.dir().to_string_lossy().into_owned(),
            read_only: options.read_only,
            metrics: metrics.as_ref().and_then(|listener| listener.local_addr().ok()),
            began: Instant::now(),
        };
        // A mount that cannot be looked at is a mount all the same.
        let (socket, place) = self.socket(&session, broker.as_deref(), folder);
        if self.daemon {
            detach(&null).map_err(system)?;
        }
        let waiters = EndWaiters::default();
        let server = WatchServer::start(signals, socket, metrics, subject, waiters.clone(), end);
        let server = server.map_err(system)?;
        // Before the first request of a program is answered.
        if let Some(broker) = &broker {
            broker.keep_mount();
        }
        let ending = || {
            drop((server, place));
            if let Some(broker) = &broker {
                broker.remove_socket();
            }
        };
        let served = session.serve(ending);
        waiters.tell(&served);
        served.map_err(|e| ended(&name, &e))
    }

    /// Opens the device, confines this process, and opens the volume on the device. Returns the
    /// broker if the process is confined.
    fn open_and_confine(
        &self,
        name: &VolumeName,
        source: &OsStr,
        options: &mut MountOptions,
        inherited: Vec<OwnedFd>,
        null: &File,
    ) -> Res<(Volume, Option<Arc<Broker>>)> {
        if VolumeUrl::reaches_image(name) {
            self.leave_unconfined(options)?;
        }
        let writes = !options.read_only && !options.overlay;
        let parsed = VolumeUrl::parse(source).map(|url| url.medium);
        let locked = if let Ok(Medium::Overlay { top, .. }) = parsed { top } else { Path::new(source) };
        lanefs_fuse::await_closing(locked, writes);
        let mut broker = None;
        let volume = open_device(name, writes, options.open_options(), |device| {
            // What another user may have written gives no rights.
            let distrust = device.owner().is_some_and(|owner| owner != rustix::process::geteuid().as_raw());
            if distrust {
                options.distrust();
            }
            let device: Arc<dyn BlockDevice> =
                if options.overlay { Arc::new(Overlay::new(device)) } else { device };
            drop(inherited);
            if options.sandbox == SandboxMode::Off {
                return Ok(device);
            }
            let replaced = rustix::stdio::dup2_stdin(null).map_err(std::io::Error::from);
            replaced.map_err(|e| not_mounted(name, &self.dir, Cause::from(e).to_string()).code(SYSTEM))?;
            broker = Some(self.confine(source, options.sandbox, distrust)?);
            Ok(device)
        });
        volume.map(|volume| (volume, broker)).map_err(|e| e.code(NOT_MOUNTED))
    }

    /// Leaves the server of an RBD image as it was started: librbd starts threads and makes
    /// connections at any time.
    fn leave_unconfined(&self, options: &mut MountOptions) -> Res {
        let why = "librbd makes connections at any time, so the server of this mount cannot be confined";
        match options.sandbox {
            SandboxMode::Off => {}
            SandboxMode::Auto => tell(why),
            SandboxMode::Require => {
                let why = format!("mount option 'sandbox=require': {why}; qemu-nbd serves the image to one");
                return Err(not_mounted(&self.volume, &self.dir, why));
            }
        }
        options.sandbox = SandboxMode::Off;
        Ok(())
    }

    /// Confines this process, which from then on opens, starts and mounts nothing. Returns the
    /// broker that mounts for it.
    fn confine(&self, source: &OsStr, mode: SandboxMode, distrust: bool) -> Res<Arc<Broker>> {
        let failed = |why: String| not_mounted(&self.volume, &self.dir, why).code(SYSTEM);
        // This very program, whatever its path leads to by now.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("lanefs").arg("mount").arg(format!("--broker={}", std::process::id()));
        if distrust {
            command.arg("--distrust");
        }
        for words in &self.options {
            command.arg("-o").arg(words);
        }
        command.arg("--").arg(source).arg(&self.dir);
        let broker = Broker::start(command).map_err(|e| failed(format!("the broker process: {e}")))?;
        if VolumeUrl::reaches_server(source) {
            // A confined process connects to nothing, and a connection may be lost.
            let dialer = broker.dialer().map_err(|e| failed(format!("the broker process: {e}")))?;
            lanefs_device::dial_by(dialer);
        }
        let missing = lanefs_sandbox::enter().map_err(|e| failed(format!("cannot be confined: {e}")))?;
        match missing.text() {
            Some(text) if mode == SandboxMode::Require => {
                let why = format!("mount option 'sandbox=require': {text}");
                Err(not_mounted(&self.volume, &self.dir, why))
            }
            Some(text) => {
                tell(format!("{text}; the server of this mount is confined by the rest"));
                Ok(broker)
            }
            None => Ok(broker),
        }
    }

    /// Returns the socket at which `lanefs top` asks, and what removes it if this process does.
    fn socket(
        &self,
        session: &Session,
        broker: Option<&Broker>,
        folder: Option<std::io::Result<Folder>>,
    ) -> (Option<UnixListener>, Option<SocketPlace>) {
        let bind = |folder: std::io::Result<Folder>| folder?.bind(session.device(), std::process::id());
        let made = match (broker, folder) {
            (Some(broker), _) => broker.socket().and_then(|socket| {
                // The peer that a command finds is the process that listened last.
                rustix::net::listen(&socket, -1).map_err(|e| e.to_string())?;
                Ok((UnixListener::from(socket), None))
            }),
            (None, Some(folder)) => {
                bind(folder).map(|(listener, place)| (listener, Some(place))).map_err(|e| e.to_string())
            }
            (None, None) => return (None, None),
        };
        match made {
            Ok((listener, place)) => (Some(listener), place),
            // Its mount is seen by no other process.
            Err(_) if self.until.is_some() => (None, None),
            Err(why) => {
                let volume = quoted(self.volume.as_bytes());
                tell(format!("lanefs top will not find {volume}: {}", Cause::text(why)));
                (None, None)
            }
        }
    }

    /// Runs as the broker of the process `server`, which has started this one, until it has ended.
    fn run_broker(&self, server: u32, mut options: MountOptions) -> Res {
        let failed = |e: std::io::Error| not_mounted(&self.volume, &self.dir, e.to_string()).code(SYSTEM);
        // The signals that end a server may reach the broker too, which ends with the server.
        let _signals = Signals::new(&SIGNALS).map_err(failed)?;
        if self.distrust {
            options.distrust();
        }
        // Before there is a mount, which may cover it.
        let folder = Folder::open();
        let socket = |device| folder?.bind(device, server).map(|(listener, place)| (listener.into(), place));
        let volume = self.volume.clone();
        let dial = move || lanefs_device::dial(&volume);
        lanefs_fuse::run_broker(&self.volume, &self.dir, &options, socket, dial).map_err(failed)
    }

    /// Opens the port for requests of metrics, if they are wanted.
    fn listen(&self, options: &MountOptions) -> Res<Option<TcpListener>> {
        let Some(address) = options.metrics else { return Ok(None) };
        let listener = TcpListener::bind(address).and_then(|l| l.set_nonblocking(true).map(|()| l));
        let failed = |e| format!("mount option 'metrics={address}': {}", Cause::from(e));
        listener.map(Some).map_err(|e| Failure::new(failed(e)).code(USAGE))
    }
}

/// Starts a server by its command, and waits until the mount is there or cannot be.
pub(super) fn started(command: &mut Command) -> Res<Child> {
    let system = |e: std::io::Error| {
        Failure::new(format!("cannot go into the background: {}", Cause::from(e))).code(SYSTEM)
    };
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(system)?;
    let mut word = [0];
    let said = child.stdout.take().is_some_and(|mut out| out.read_exact(&mut word).is_ok());
    if said {
        return Ok(child);
    }
    let status = child.wait().map_err(system)?;
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(0) => Ok(child),
        Some(code) => Err(Failure::Silent(code)),
        None => Err(Failure::new(format!("the server died: {status}")).code(NOT_MOUNTED)),
    }
}

/// Returns whether the server of a mount opened the volume read-only, if it tells this user.
fn only_reads(device: MountDevice) -> Option<bool> {
    let (socket, _) = place::served_at(device)?;
    let stats: serde_json::Value = serde_json::from_str(&ask(&socket, "/stats").ok()?).ok()?;
    stats.get("read_only")?.as_bool()
}

/// Asks the kernel for SIGTERM when the process `parent`, which has started this one, ends.
fn end_with(parent: u32) -> std::io::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // It may have ended before.
    let is_there = std::os::unix::process::parent_id() == parent;
    if is_there { Ok(()) } else { Err(rustix::io::Errno::SRCH.into()) }
}

/// Leaves the terminal and the directory, and tells the process that waits that the mount is there.
fn detach(null: &File) -> std::io::Result<()> {
    // The leader of a group has one of its own already.
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/")?;
    let mut out = std::io::stdout();
    // The waiting process may have ended: the mount is there all the same.
    let _ = out.write_all(b"+").and_then(|()| out.flush());
    rustix::stdio::dup2_stdout(null)?;
    rustix::stdio::dup2_stderr(null)?;
    Ok(())
}

fn not_mounted(volume: &OsStr, dir: &Path, why: String) -> Failure {
    let text = format!(
        "cannot mount {} at {}: {why}",
        quoted(volume.as_bytes()),
        quoted(dir.as_os_str().as_bytes())
    );
    Failure::new(text).code(NOT_MOUNTED)
}

fn ended(volume: &OsStr, e: &SessionError) -> Failure {
    Failure::new(format!("the mount of {} ended with a failure: {e}", quoted(volume.as_bytes())))
        .code(NOT_MOUNTED)
}

/// Mount a volume, as mount(8) calls it
///
/// mount(8) and lines of fstab run it for the types lanefs and fuse.lanefs. All options:
/// lanefs-mount-options(5).
#[derive(Debug, clap::Parser)]
#[command(name = "mount.lanefs", version)]
pub(crate) struct MountHelper {
    /// The volume
    source: OsString,
    /// The directory to mount it at
    dir: PathBuf,
    /// Ignore unknown options
    #[arg(short)]
    sloppy: bool,
    /// Do all but mount
    #[arg(short = 'f')]
    fake: bool,
    /// Accepted and ignored: there is no table of mounts but the kernel's
    #[arg(short = 'n')]
    no_table: bool,
    /// Print the mounted volume
    #[arg(short)]
    verbose: bool,
    /// Read-only
    #[arg(short)]
    read_only: bool,
    /// For reading and writing
    #[arg(short = 'w', conflicts_with = "read_only")]
    write: bool,
    /// The type: lanefs or fuse.lanefs
    #[arg(short = 't', value_name = "TYPE", value_parser = fs_type)]
    fs_type: Option<String>,
    /// Refused: nsenter(1) enters a mount namespace
    #[arg(short = 'N', value_name = "NAMESPACE", value_parser = no_namespace)]
    namespace: Option<String>,
    /// Options, separated by commas: see lanefs-mount-options(5)
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
}

/// Takes a type that mounts of lanefs have for mount(8).
pub(super) fn fs_type(name: &str) -> Result<String, String> {
    match name {
        "lanefs" | "fuse.lanefs" | "fuse" => Ok(name.to_owned()),
        _ => Err("wanted is lanefs or fuse.lanefs; -o subtype=NAME gives a mount another type".into()),
    }
}

/// Refuses a mount namespace: the volume would have to be found in one, and the directory in
/// another.
pub(super) fn no_namespace(name: &str) -> Result<String, String> {
    Err(format!("enter the namespace first: nsenter --mount={name} and then this command without -N"))
}

impl MountHelper {
    pub(crate) fn run(self) -> Res {
        let mut options = self.options;
        if self.read_only {
            options.push("ro".into());
        }
        if self.write {
            options.push("rw".into());
        }
        if self.sloppy {
            let remounts = options.iter().any(|o| o.split(',').any(|word| word == "remount"));
            let with = if remounts { "remount," } else { "" };
            let is_known = |word: &&str| MountOptions::default().parse(&format!("{with}{word}")).is_ok();
            options =
                options.iter().map(|o| o.split(',').filter(is_known).collect::<Vec<_>>().join(",")).collect();
        }
        if self.fake {
            let mut parsed = MountOptions::default();
            let taken = options.iter().try_for_each(|o| parsed.parse(o));
            return taken.map_err(|e| Failure::new(e.to_string()).code(USAGE));
        }
        let said = format!(
            "{} is mounted at {}",
            quoted(self.source.as_bytes()),
            quoted(self.dir.as_os_str().as_bytes())
        );
        let (volume, dir) = (self.source, self.dir);
        Args {
            volume,
            dir,
            options,
            foreground: false,
            daemon: false,
            broker: None,
            until: None,
            distrust: false,
            by_mount8: true,
        }
        .run()?;
        if self.verbose {
            tell(said);
        }
        Ok(())
    }
}
