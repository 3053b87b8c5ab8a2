//! `lanefs mount`, and what mount(8) calls: `mount.lanefs` and `mount.fuse.lanefs`.
//!
//! In the background, the command starts itself anew and ends when the mount is there: the child says so by a line on its
//! standard output. Exit codes are those of mount(8).

use crate::failure::{Cause, Failure, Res};
use crate::location::{VolumeName, whole_volume};
use crate::quote::quoted;
use crate::volumes::{file_of, names_file, open_by};
use crate::watch::{Server, Signals, Subject, place};
use lanefs_fuse::{MountOptions, MountPoint, Session, SessionError};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// mount(8): wrong use, or not permitted.
const USAGE: u8 = 1;
/// mount(8): the system failed.
const SYSTEM: u8 = 2;
/// mount(8): it is not mounted.
const NOT_MOUNTED: u8 = 32;

/// Mount a volume, for all programs to use
///
/// Without -f it goes into the background when the mount is there. It ends when the mount is taken away (lanefs umount,
/// umount) or by a signal, and closes the volume.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The volume
    volume: OsString,
    /// The directory to mount it at
    #[arg(value_name = "DIRECTORY")]
    dir: PathBuf,
    /// Options, with commas between, by the names that the kernel's ext4 has for them
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Stay in the foreground
    #[arg(short, long)]
    foreground: bool,
    /// Say on standard output when the mount is there, and go into the background
    #[arg(long, hide = true)]
    daemon: bool,
}

impl Args {
    pub(crate) fn run(self) -> Res {
        let mut options = MountOptions::default();
        for words in &self.options {
            options.parse(words).map_err(|e| Failure::new(e.to_string()).code(USAGE))?;
        }
        if options.remount {
            let mount = MountPoint::find(&self.dir, |device| place::server_of(device).is_some());
            let done = mount.and_then(|mount| options.remount(&mount));
            return done.map_err(|e| not_mounted(&self.volume, &self.dir, e.to_string()));
        }
        if self.foreground || self.daemon { self.serve(&options) } else { self.start() }
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
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(system)?;
        let mut word = [0];
        let said = child.stdout.take().is_some_and(|mut out| out.read_exact(&mut word).is_ok());
        if said {
            return Ok(());
        }
        let status = child.wait().map_err(system)?;
        match status.code().and_then(|code| u8::try_from(code).ok()) {
            Some(0) => Ok(()),
            Some(code) => Err(Failure::Silent(code)),
            None => Err(Failure::new(format!("the server died: {status}")).code(NOT_MOUNTED)),
        }
    }

    fn serve(&self, options: &MountOptions) -> Res {
        let name = whole_volume(&self.volume);
        let system =
            |e: std::io::Error| not_mounted(&name, &self.dir, Cause::from(e).to_string()).code(SYSTEM);
        let signals = Signals::new(&[SIGTERM, SIGINT, SIGHUP]).map_err(system)?;
        let metrics = self.listen(options)?;
        lanefs_fuse::await_closing(Path::new(&source(&name)), !options.read_only);
        let volume = open_by(&name, !options.read_only, options.open_options());
        let volume = volume.map_err(|e| e.code(NOT_MOUNTED))?;
        let session = Session::mount(volume, &source(&name), &self.dir, options)
            .map_err(|e| not_mounted(&name, &self.dir, e.to_string()))?;
        let unmounter = session.unmounter();
        let end = move || {
            if let Err(e) = unmounter.unmount() {
                eprintln!("lanefs: {e}");
            }
        };
        let subject = Subject {
            monitor: session.monitor(),
            volume: source(&name).to_string_lossy().into_owned(),
            dir: session.dir().to_string_lossy().into_owned(),
            read_only: options.read_only,
            metrics: metrics.as_ref().and_then(|listener| listener.local_addr().ok()),
            began: Instant::now(),
        };
        // A mount that cannot be looked at is a mount all the same.
        let owner = place::bind(session.device()).inspect_err(|e| {
            eprintln!(
                "lanefs: lanefs top will not find {}: {}",
                quoted(name.as_bytes()),
                Cause::text(e.to_string())
            );
        });
        if self.daemon {
            detach().map_err(system)?;
        }
        let server = Server::start(signals, owner.ok(), metrics, subject, end).map_err(system)?;
        session.serve(|| drop(server)).map_err(|e| ended(&name, &e))
    }

    /// Where metrics are asked for, if they are wanted.
    fn listen(&self, options: &MountOptions) -> Res<Option<TcpListener>> {
        let Some(address) = options.metrics else { return Ok(None) };
        let listener = TcpListener::bind(address).and_then(|l| l.set_nonblocking(true).map(|()| l));
        let failed = |e| format!("mount option 'metrics={address}': {}", Cause::from(e));
        listener.map(Some).map_err(|e| Failure::new(failed(e)).code(USAGE))
    }
}

/// The name by which the volume is found again from anywhere.
fn source(name: &VolumeName) -> OsString {
    if !names_file(name) {
        return name.into();
    }
    file_of(name).canonicalize().map_or_else(|_| name.into(), PathBuf::into_os_string)
}

/// Leaves the terminal and the directory, and tells who waits that the mount is there.
fn detach() -> std::io::Result<()> {
    // The leader of a group has one of its own already.
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/")?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let mut out = std::io::stdout();
    // Who waited may have gone: the mount is there all the same.
    let _ = out.write_all(b"+").and_then(|()| out.flush());
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
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

/// What mount(8) calls: `mount.TYPE SOURCE DIRECTORY [-sfnvrw] [-N NAMESPACE] [-t TYPE] [-o OPTIONS]`.
#[derive(Debug, clap::Parser)]
#[command(name = "mount.lanefs", version)]
pub(crate) struct Helper {
    /// The volume
    source: OsString,
    /// The directory to mount it at
    dir: PathBuf,
    /// Pass over options that are not known
    #[arg(short)]
    sloppy: bool,
    /// Do all but mount
    #[arg(short = 'f')]
    fake: bool,
    /// For compatibility
    #[arg(short = 'n')]
    no_table: bool,
    /// For compatibility
    #[arg(short)]
    verbose: bool,
    /// Read-only
    #[arg(short)]
    read_only: bool,
    /// For reading and writing
    #[arg(short = 'w')]
    write: bool,
    /// For compatibility
    #[arg(short = 't', value_name = "TYPE")]
    fs_type: Option<String>,
    /// For compatibility
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Options
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
}

impl Helper {
    pub(crate) fn run(self) -> Res {
        let mut options = self.options;
        if self.read_only {
            options.push("ro".into());
        }
        if self.sloppy {
            let known = |word: &&str| MountOptions::default().parse(word).is_ok();
            options =
                options.iter().map(|o| o.split(',').filter(known).collect::<Vec<_>>().join(",")).collect();
        }
        let args = Args { volume: self.source, dir: self.dir, options, foreground: false, daemon: false };
        if self.fake {
            let mut parsed = MountOptions::default();
            return args
                .options
                .iter()
                .try_for_each(|o| parsed.parse(o))
                .map_err(|e| Failure::new(e.to_string()).code(USAGE));
        }
        args.run()
    }
}
