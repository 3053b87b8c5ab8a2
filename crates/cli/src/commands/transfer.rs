//! Arguments, messages and progress that the commands import and export share.

use crate::failure::{self, Failure, Noted, OrCannot, Res};
use crate::location::VolumeName;
use crate::owner::Owner;
use crate::progress::Progress;
use lanefs_archive::{Action, Cause, Error, Event, IdRange, ImageError, Place, host};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// Time in which signals are one: timeout(1) sends two, to the process and to its group.
const SAME_SIGNAL: Duration = Duration::from_secs(1);

/// The owners that imported and exported files get.
#[derive(Debug, Default, clap::Args)]
pub(super) struct Ownership {
    /// Everything belongs to this user and group: USER, USER:GROUP or :GROUP
    #[arg(long)]
    owner: Option<Owner>,
    /// Map COUNT users from FROM on to those from TO on; repeat it for more ranges
    #[arg(long, value_name = "FROM:TO[:COUNT]")]
    uid_map: Vec<IdRange>,
    /// Map COUNT groups from FROM on to those from TO on; repeat it for more ranges
    #[arg(long, value_name = "FROM:TO[:COUNT]")]
    gid_map: Vec<IdRange>,
}

impl From<Ownership> for lanefs_archive::Ownership {
    fn from(args: Ownership) -> Self {
        let Owner { uid, gid } = args.owner.unwrap_or_default();
        let mut to = args.uid_map.into_iter().fold(Self::new(), Self::map_users);
        to = args.gid_map.into_iter().fold(to, Self::map_groups);
        to = uid.into_iter().fold(to, Self::user);
        gid.into_iter().fold(to, Self::group)
    }
}

/// Converts an error to the command's failure. `volume` is the volume as the user named it.
pub(super) fn failure(volume: &OsStr, error: &Error) -> Failure {
    let what = match error.place() {
        Place::Volume(path) | Place::NewVolume(path) => [volume.as_encoded_bytes(), b":", path].concat(),
        place => place.as_bytes().to_vec(),
    };
    let advice = match error.cause() {
        Cause::Host(host::Error::Protected(_)) => "; --force overwrites it".into(),
        Cause::Owner(_) => "; --uid-map, --gid-map or --owner says who gets it".into(),
        Cause::Image(ImageError::Compressed(by)) => format!("; {by} -dc FILE > image.tar unpacks it"),
        Cause::Compressed(by) => format!("; {by} -dc FILE | lanefs import - VOLUME:/DIR"),
        Cause::NeedsRecovery => "; lanefs recover makes it whole".into(),
        Cause::TargetExists if error.action() == Action::Write => "; --force replaces a file".into(),
        _ => String::new(),
    };
    let cause = match error.cause() {
        Cause::CannotCompress(by) => {
            let name = String::from_utf8_lossy(&what);
            format!("lanefs compresses with gzip only; lanefs export SRC - | {by} > {name}")
        }
        _ => failure::words_of(&error.reason()) + &advice,
    };
    Failure::cannot(&error.action().to_string(), what, failure::Cause::text(cause))
}

/// Converts an error of work with two volumes, `old` and `new`, to the command's failure.
pub(super) fn failure_of_two([old, new]: [&OsStr; 2], error: &Error) -> Failure {
    // The old one is only compared with.
    let is_old = error.action() == Action::Compare && matches!(error.place(), Place::Volume(_));
    failure(if is_old { old } else { new }, error)
}

/// Runs a command on a thread of its own. The kernel gives a signal to the main thread first, which
/// must not be where no handler runs, as in a read from a mount whose server hangs.
pub(super) fn off_main(command: impl FnOnce() -> Res + Send) -> Res {
    const STACK: usize = 8 << 20;
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("lanefs-transfer".into()).stack_size(STACK);
        let thread = thread.spawn_scoped(scope, command).or_cannot("start", "a thread")?;
        match thread.join() {
            Ok(ended) => ended,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Returns the exit code that a signal asks for, which is 0 until one comes. A signal that comes a
/// second or more after the first ends the process at once: a read or write may hang that the first
/// one waits for.
pub(super) fn asked() -> Res<Arc<AtomicUsize>> {
    catch_signals().or_cannot("catch", "signals")
}

fn catch_signals() -> io::Result<Arc<AtomicUsize>> {
    let (asked, again) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (mut first, came) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // The exit code that a shell gives for a process that a signal ended.
        let code = 128 + signal;
        signal_hook::flag::register_conditional_shutdown(signal, code, Arc::clone(&again))?;
        signal_hook::flag::register_usize(signal, Arc::clone(&asked), code.unsigned_abs() as usize)?;
        signal_hook::low_level::pipe::register(signal, came.try_clone()?)?;
    }
    let watch = move || {
        // No other error is possible, and with one the second signal does nothing.
        if first.read_exact(&mut [0]).is_ok() {
            thread::sleep(SAME_SIGNAL);
            again.store(true, Ordering::Relaxed);
        }
    };
    thread::Builder::new().name("lanefs-signal".into()).spawn(watch)?;
    Ok(asked)
}

/// A watcher of a transfer: shows a bar and reports notes.
#[derive(Debug)]
pub(super) struct TransferReporter<'a> {
    progress: Progress,
    noted: Noted,
    volume: &'a OsStr,
    /// The volume that it is compared with, or the same.
    older: &'a OsStr,
    /// What ends the transfer.
    asked: Option<&'a AtomicUsize>,
}

impl<'a> TransferReporter<'a> {
    /// Starts to report on `volume`, as the user named it; `total` is the number of bytes to
    /// expect.
    pub(super) fn new(what: &'static str, volume: &'a OsStr, total: Option<u64>) -> Self {
        Self {
            progress: Progress::new(what, total),
            noted: Noted::default(),
            volume,
            older: volume,
            asked: None,
        }
    }

    /// Ends the transfer once `asked` is not 0, as [`asked`] counts.
    pub(super) fn until(mut self, asked: &'a AtomicUsize) -> Self {
        self.asked = Some(asked);
        self
    }

    /// Sets the name of the volume that it is compared with.
    pub(super) fn older(mut self, older: Option<&'a VolumeName>) -> Self {
        self.older = older.map_or(self.older, OsString::as_os_str);
        self
    }

    /// Takes a step of an import or an export.
    pub(super) fn hear(&mut self, event: Event) -> ControlFlow<()> {
        match event {
            Event::Entry => self.progress.file(),
            Event::Data(bytes) => self.progress.bytes(bytes),
            // Only a closed standard output is passed on, and nothing is written there here.
            Event::Skipped(error) => {
                drop(self.noted.note(Err(failure_of_two([self.older, self.volume], &error))));
            }
            _ => {}
        }
        match self.asked.is_some_and(|asked| asked.load(Ordering::Relaxed) != 0) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    /// Lets the bar find out how much is in a folder.
    pub(super) fn measure(&self, folder: PathBuf) {
        self.progress.find_total(move || size_of(folder));
    }

    /// Takes the bar away.
    pub(super) fn finish(self) -> Noted {
        self.noted
    }
}

/// Returns the bytes of all files in a folder. Files that cannot be read do not count: the number
/// is for the bar only.
fn size_of(folder: PathBuf) -> u64 {
    let (mut left, mut bytes) = (vec![folder], 0);
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(meta) if meta.is_dir() => left.push(entry.path()),
                Ok(meta) if meta.is_file() => bytes += meta.len().min(meta.blocks().saturating_mul(512)),
                _ => {}
            }
        }
    }
    bytes
}
