//! A folder, a tar stream or the layers of an image into a directory of a volume.
//!
//! One thread reads the source, the caller's writes the volume, a bounded pipe between them. Names
//! go in the order of the source and one thread writes, so the same source gives the same volume.

mod current;
mod dir_times;
mod entry;
mod fill;
#[cfg(target_os = "linux")]
mod folder;
mod gather;
mod layer;
mod number_set;
mod pass;
mod source;
mod tar;

pub(crate) use pass::{SecondPass, Sink, Survey};
pub use source::Source;

use crate::event::{self, Tell};
use crate::image::Copies;
use crate::pipe::{Inlet, PipeItem, pipe};
use crate::{Action, Cause, Error, Event, Ownership, Place};
use fill::Fill;
use lanefs::{Timestamp, Verity, Volume};
use pass::Pass;
use source::Wanted;
use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the caller of an import hears that the source is waited for.
const WAITING: Duration = Duration::from_millis(100);

/// Options of an import. By default it changes no attributes.
///
/// ```
/// use lanefs_archive::{ImportOptions, Ownership};
/// use lanefs::Timestamp;
/// // Reproducible: everything is root's, and no time is later than that of the release.
/// let options = ImportOptions::new()
///     .ownership(Ownership::new().user(0).group(0))
///     .newest(Timestamp { sec: 1_700_000_000, nsec: 0 });
/// ```
#[derive(Debug, Clone)]
pub struct ImportOptions {
    ownership: Ownership,
    newest: Option<Timestamp>,
    whiteouts: bool,
    pub(crate) max_size: Option<u64>,
    fs_verity: Option<FsVerity>,
}

impl Default for ImportOptions {
    fn default() -> Self {
        let ownership = Ownership::default();
        Self { ownership, newest: None, whiteouts: true, max_size: None, fs_verity: None }
    }
}

/// Says of a path whether it is meant.
type FileFilter = dyn Fn(&[u8]) -> bool + Send + Sync;

/// Which files get a hash tree, and of what.
#[derive(Clone)]
pub(crate) struct FsVerity {
    pub(crate) verity: Verity,
    /// Whether a file gets one, by its path with a slash before it.
    pub(crate) wanted: Arc<FileFilter>,
}

impl fmt::Debug for FsVerity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.verity.fmt(f)
    }
}

impl ImportOptions {
    /// Changes nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Changes owners.
    #[must_use]
    pub fn ownership(mut self, ownership: Ownership) -> Self {
        self.ownership = ownership;
        self
    }

    /// Sets the newest time that an imported file can have, for example that of
    /// `SOURCE_DATE_EPOCH`. A volume that comes out the same twice needs its own clock set to it
    /// too ([`lanefs::OpenOptions::clock`]).
    #[must_use]
    pub fn newest(mut self, newest: Timestamp) -> Self {
        self.newest = Some(newest);
        self
    }

    /// Sets whether the whiteouts of layers take names of lower layers away (the default), or
    /// arrive as files. The whiteouts of a single archive are always files.
    #[must_use]
    pub fn whiteouts(mut self, whiteouts: bool) -> Self {
        self.whiteouts = whiteouts;
        self
    }

    /// Gives files hash trees.
    pub(crate) fn fs_verity(mut self, fs_verity: Option<FsVerity>) -> Self {
        self.fs_verity = fs_verity;
        self
    }

    /// Sets how many bytes all archives of the source may have together, unpacked. A small file can
    /// unpack to any size.
    #[must_use]
    pub fn max_size(mut self, bytes: u64) -> Self {
        self.max_size = Some(bytes);
        self
    }
}

/// Imports `source` into the directory `dir` of a volume, which is made if it does not exist.
///
/// Owners, modes, times, extended attributes, ACLs, hard links, devices and holes arrive as the
/// source has them, or as `options` change them; the users need not exist and no right is asked
/// for. Entries that are there stay, but a name of the source replaces an entry that is not a
/// directory. Nothing is written outside of `dir`: an import goes through no symbolic link.
///
/// A file whose data cannot be read to its end is left out. The entry that had its name before the
/// import is gone too: the new file replaced it before its data was read. A file that this process
/// has open as a volume is left out ([`Cause::SourceInUse`]), and replaces nothing.
///
/// Layers ([`Source::layers`]) lie on top of each other, the first on what is in `dir`. There a
/// name replaces a directory too, a directory has the attributes of the last layer that names it,
/// and whiteouts remove names below their layer. The layers of an image are checked first: unless
/// all of them have the digests that the image says, nothing is written.
///
/// `events` hears of each step and says whether to go on; also, ten times a second, while a source
/// that gives nothing is waited for. What was imported by the time it cancels stays.
/// Changes are durable after [`Volume::sync`] or [`Volume::close`].
///
/// # Errors
/// What ended the import early: the source cannot be read, the volume is full or cannot be written,
/// or `events` cancelled. [`Event::Skipped`] reports a failure of one name, and the import goes on.
///
/// # Examples
/// ```
/// use lanefs_archive::{Event, ImportOptions, Source, import};
/// use std::ops::ControlFlow;
///
/// # let made = lanefs::Volume::in_memory(16 << 20)?;
/// # made.write("/hostname", b"lane\n")?;
/// # let mut tar = Vec::new();
/// # let target = lanefs_archive::Target::archive("", &mut tar, Default::default());
/// # let go_on = |_| ControlFlow::Continue(());
/// # lanefs_archive::export(&made, "/", target, &Default::default(), go_on)?;
/// let volume = lanefs::Volume::in_memory(16 << 20)?;
/// let source = Source::archive("layer.tar", std::io::Cursor::new(tar))?;
/// let mut bytes = 0;
/// import(source, &volume, "/etc", &ImportOptions::new(), |event| {
///     match event {
///         Event::Data(more) => bytes += more,
///         // A name that does not arrive ends this import.
///         Event::Skipped(_) => return ControlFlow::Break(()),
///         _ => {}
///     }
///     ControlFlow::Continue(())
/// })?;
/// assert_eq!(volume.read("/etc/hostname")?, b"lane\n");
/// assert_eq!(bytes, 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn import(
    source: Source,
    volume: &Volume,
    dir: impl AsRef<Path>,
    options: &ImportOptions,
    mut events: impl FnMut(Event) -> ControlFlow<()> + Send,
) -> Result<(), Error> {
    let base = dir.as_ref().as_os_str().as_encoded_bytes();
    let (before, again) = (source.states()?, source.again());
    source.check(options.max_size, |bytes| {
        event::tell(&mut events, Event::Checked(bytes), Action::Import, base)
    })?;
    let fill = Fill::new(volume, dir.as_ref(), options, &mut events, Pass::Import)?;
    Reading::of(source, Wanted::Content, options)?.fill(fill)?.finish()?;
    again.map_or(Ok(()), |again| again.check_unchanged(&before))
}

/// Finds out what a source takes of a volume, by making its names in an empty one, which `scratch`
/// makes while the source is read already. Layers are checked meanwhile, and `copies` gets what
/// archives unpack to.
pub(crate) fn survey<V: AsRef<Volume>>(
    source: Source,
    copies: &Arc<Copies>,
    scratch: impl FnOnce() -> Result<V, Error>,
    options: &ImportOptions,
    events: &mut Tell<'_>,
) -> Result<Option<Survey>, Error> {
    let reading = Reading::of(source, Wanted::Members(Arc::clone(copies)), options)?;
    let scratch = scratch()?;
    let volume = scratch.as_ref();
    let fill = Fill::new(volume, Path::new("/"), options, events, Pass::measure(volume))?;
    reading.fill(fill)?.into_survey()
}

/// Imports a source, whose layers are checked already, into the root of an empty volume.
pub(crate) fn write(
    source: Source,
    volume: &Volume,
    options: &ImportOptions,
    second: SecondPass<'_>,
    events: &mut Tell<'_>,
) -> Result<(), Error> {
    let fill = Fill::new(volume, Path::new("/"), options, events, Pass::write(second))?;
    Reading::of(source, Wanted::Content, options)?.fill(fill)?.finish()
}

/// A source that a thread of its own reads.
struct Reading {
    thread: JoinHandle<()>,
    items: Inlet,
    is_folder: bool,
}

impl Reading {
    /// Begins to read.
    fn of(source: Source, wanted: Wanted, options: &ImportOptions) -> Result<Self, Error> {
        let (mut out, items) = pipe();
        let (name, max_size, is_folder) = (source.name.clone(), options.max_size, source.is_folder());
        let thread = std::thread::Builder::new().name("import".into());
        match thread.spawn(move || source.send(wanted, max_size, &mut out)) {
            Ok(thread) => Ok(Self { thread, items, is_folder }),
            Err(e) => Err(Error::new(Action::Read, Place::Host(name), e)),
        }
    }

    /// Has `fill` take what comes.
    fn fill<'a>(self, fill: Fill<'a>) -> Result<Fill<'a>, Error> {
        let filled = Self::take(self.items, fill);
        // The end of the pipe is closed. A thread that reads a folder ends soon, and sets back the
        // modes that it had to change; another may wait for a stream without end.
        if filled.is_err() && !self.is_folder {
            return filled;
        }
        let joined = self.thread.join();
        let fill = filled?;
        match joined {
            Ok(()) => Ok(fill),
            Err(_) => Err(Error::new(Action::Import, fill.place(), Cause::ReaderDied)),
        }
    }

    /// Has `fill` take what comes, to its end.
    fn take<'a>(mut items: Inlet, mut fill: Fill<'a>) -> Result<Fill<'a>, Error> {
        loop {
            let batch = match items.recv_timeout(WAITING) {
                Ok(batch) => batch,
                Err(RecvTimeoutError::Timeout) => {
                    fill.tell(Event::Waiting)?;
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            };
            for item in batch {
                match item {
                    PipeItem::Layer(label) => fill.layer(label)?,
                    PipeItem::Member(member) => fill.member(member)?,
                    PipeItem::Data { offset, bytes } => fill.data(offset, bytes.into())?,
                    PipeItem::Unread { offset, content } => fill.data(offset, content)?,
                    PipeItem::Skipped(error) => fill.tell(Event::Skipped(error))?,
                    PipeItem::Incomplete(error) => fill.incomplete(error)?,
                    PipeItem::Checked(bytes) => fill.tell(Event::Checked(bytes))?,
                    PipeItem::Failed(error) => return Err(error),
                }
            }
        }
        Ok(fill)
    }
}
