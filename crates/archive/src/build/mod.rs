//! A tree into a new volume that fits it, in one call.
//!
//! A source is read twice: to find out what it takes ([`survey`]), and to fill the volume. What
//! comes out depends on source and options alone: one thread writes the volume, and none works in
//! the background.

mod behind;
mod options;
mod scratch;
mod seal;
mod size;
mod volatile;

pub use options::{BuildOptions, VerityOptions};
pub use size::{VolumeSize, VolumeSizeError};

use crate::event::{self, Tell};
use crate::image::{Copies, FileState};
use crate::import::{self, Survey, survey};
use crate::unfinished::{Unfinished, host};
use crate::{Action, Cause, Error, Event, ImportOptions, Source};
use behind::WriteBehind;
use lanefs::OpenOptions;
use lanefs::device::BlockDevice;
use lanefs::format::Incompat;
use lanefs::mkfs::{self, Options};
use scratch::Scratch;
use seal::Parts;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use volatile::Volatile;

/// The margin of the largest volume that is tried, in usual margins.
const MOST_MARGINS: u64 = 8;
/// Bytes of the volume's cache while it is filled.
const CACHE: usize = 64 << 20;

/// The result of a build.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Built {
    /// Bytes of the file.
    pub file_size: u64,
    /// The first byte of the volume in the file.
    pub volume_start: u64,
    /// The volume as it was made, before it was filled.
    pub volume: mkfs::Report,
    /// The tree of dm-verity and its root hash.
    pub verity: Option<(lanefs_verity::Header, Vec<u8>)>,
    /// The partition's PARTUUID.
    pub partition: Option<[u8; 16]>,
}

/// Makes a volume in a new file, and fills it with `source`.
///
/// The tree arrives as by [`import`](crate::import). If a size that was found turns out too small,
/// the volume is made again with more room, which [`Event::Sized`] tells. The file gets its name
/// when it is complete and durable; after an error or a cancel there is none, unless
/// [`BuildOptions::keep`] is set.
///
/// ```
/// use lanefs_archive::{BuildOptions, Source, build};
/// use std::ops::ControlFlow;
///
/// # let dir = tempfile::tempdir()?;
/// # let (folder, image) = (dir.path().join("folder"), dir.path().join("disk.img"));
/// # std::fs::create_dir(&folder)?;
/// # std::fs::write(folder.join("hostname"), "lane\n")?;
/// let source = Source::open(&folder)?;
/// build(source, &image, &BuildOptions::new(), |_| ControlFlow::Continue(()))?;
/// let volume = lanefs::Volume::open_read_only(&image)?;
/// assert_eq!(volume.read("/hostname")?, b"lane\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The errors of an import; [`Cause::TargetExists`], [`Cause::NotAFile`]; [`Cause::TooSmall`] for a
/// size that is asked for; [`Cause::ReadOnce`] for a source that cannot be read twice and has no
/// size asked for; [`Cause::TargetIsSource`], [`Cause::TargetInSource`]; options that cannot be had
/// together. [`Event::Skipped`] reports a failure of one name, and the build goes on.
pub fn build(
    source: Source,
    path: impl AsRef<Path>,
    options: &BuildOptions,
    mut events: impl FnMut(Event) -> ControlFlow<()> + Send,
) -> Result<Built, Error> {
    let path = path.as_ref();
    let failed = |cause| Error::new(Action::Build, host(path), cause);
    let file = Unfinished::new(path, Action::Build, options.overwrite, options.keep)?;
    source.refuse_target(file.target()).map_err(failed)?;
    let (volume, import) = options.settled().map_err(failed)?;
    let copies = Arc::new(Copies::beside(path));
    let before = source.states()?;
    let survey = survey_of(&source, &copies, (path, &volume), &import, &mut events)?;
    let source = match &survey {
        Some(survey) if copies.leave_room_for(bytes_of(survey, &volume)) => source.unpacked(&copies),
        Some(_) => source,
        None => {
            source.check(import.max_size, |bytes| {
                event::tell(&mut events, Event::Checked(bytes), Action::Import, b"/")
            })?;
            source
        }
    };
    drop(copies);
    let mut filling = Filling { path, options, import, survey, file, before };
    let (parts, report) = filling.fill_retrying(source, &volume, &mut events)?;
    let file = filling.file;
    let verity = parts.make_tree(&file, &mut events).map_err(failed)?;
    let partition = parts.make_table(&file).map_err(failed)?;
    if events(Event::Waiting).is_break() {
        return Err(failed(Cause::Cancelled));
    }
    file.finish()?;
    Ok(Built { file_size: parts.file_size(), volume_start: parts.start(), volume: report, verity, partition })
}

/// The second pass of a build.
struct Filling<'a> {
    path: &'a Path,
    options: &'a BuildOptions,
    import: ImportOptions,
    survey: Option<Survey>,
    file: Unfinished,
    /// The archives of the source before the first pass.
    before: Vec<Option<FileState>>,
}

impl Filling<'_> {
    fn failed(&self, cause: impl Into<Cause>) -> Error {
        Error::new(Action::Build, host(self.path), cause)
    }

    /// Fills a new volume. If a volume whose size was found turns out too small, makes a larger one
    /// and fills that.
    fn fill_retrying(
        &mut self,
        mut source: Source,
        options: &Options,
        events: &mut Tell<'_>,
    ) -> Result<(Parts, mkfs::Report), Error> {
        let (mut more, mut told) = (1, 0);
        loop {
            let again = source.again();
            let retries = !matches!(self.options.size, VolumeSize::Bytes(_)) && more < MOST_MARGINS;
            let mut skipped = 0;
            let mut events = |event| {
                if matches!(event, Event::Skipped(_)) {
                    skipped += 1;
                    if skipped <= told {
                        // The volume before told of it.
                        return ControlFlow::Continue(());
                    }
                    told = skipped;
                }
                events(event)
            };
            match (self.fill(source, options, more, &mut events), again) {
                (Err(e), Some(again)) if retries && is_full(&e) => {
                    (source, more) = (again, more * 2);
                }
                (Err(e), _) if matches!(e.cause(), Cause::Cancelled) => return Err(e),
                (filled, read) => {
                    // The first cause of what failed, or of wrong bytes.
                    read.as_ref().map_or(Ok(()), |read| read.check_unchanged(&self.before))?;
                    let (parts, report, device) = filled?;
                    flush(&*device, read).map_err(|e| self.failed(e))?;
                    return Ok((parts, report));
                }
            }
        }
    }

    /// Fills a new volume, whose size has so many times the usual margin. Returns its device too,
    /// which is still to be flushed.
    fn fill(
        &mut self,
        source: Source,
        options: &Options,
        margins: u64,
        events: &mut Tell<'_>,
    ) -> Result<(Parts, mkfs::Report, Arc<dyn BlockDevice>), Error> {
        let volume = match (&self.survey, self.options.size) {
            (Some(survey), size) => size.options(survey, margins, options).map_err(|e| self.failed(e))?,
            (None, VolumeSize::Bytes(size)) => Options { size: Some(size), ..options.clone() },
            (None, _) => return Err(self.failed(Cause::ReadOnce)),
        };
        let parts = Parts::new(self.options, &volume).map_err(|e| self.failed(e))?;
        let volume = Options { size: Some(parts.volume_size()), ..volume };
        if events(Event::Sized(parts.file_size())).is_break() {
            return Err(self.failed(Cause::Cancelled));
        }
        self.file.create(parts.file_size()).map_err(|e| self.failed(e))?;
        let device = parts.open(&self.file).map_err(|e| self.failed(e))?;
        let report =
            mkfs::format(&Volatile::new(Arc::clone(&device)), &volume).map_err(|e| self.failed(e))?;
        let behind = Arc::new(WriteBehind::new(Arc::clone(&device)).map_err(|e| self.failed(e))?);
        let opened = OpenOptions::new().write(true).mmp(false).threads(false).cache_bytes(CACHE);
        let opened =
            opened.commit_interval(Duration::ZERO).clock(self.options.time).open_device(behind.clone());
        let filled = opened.map_err(|e| self.failed(e))?;
        let removed = self.survey.as_ref().map(|survey| &survey.removed);
        let place = source.place();
        let written = import::write(source, &filled, &self.import, (removed, &*behind), events);
        // Also after a failure: what is kept then is a volume.
        let closed = filled.close().and_then(|()| Ok(behind.flush()?));
        if let Err(e) = written.and(closed.map_err(|e| self.failed(e))) {
            // The failure that is told is the first one.
            let _ = device.flush();
            return Err(behind.unread().map_or(e, |unread| Error::new(Action::Read, place, unread)));
        }
        Ok((parts, report, device))
    }
}

fn is_full(error: &Error) -> bool {
    matches!(error.cause(), Cause::Volume(lanefs::Error::NoSpace))
}

/// Makes the file durable. Closes meanwhile what was read: the memory of large copies is freed.
fn flush(device: &dyn BlockDevice, read: Option<Source>) -> lanefs::Result<()> {
    std::thread::scope(|scope| {
        // Without a thread it is dropped here.
        let _ = std::thread::Builder::new().name("close".into()).spawn_scoped(scope, || drop(read));
        Ok(device.flush()?)
    })
}

/// Returns about how many bytes of a disk the volume takes, at most.
fn bytes_of(survey: &Survey, volume: &Options) -> u64 {
    let blocks = survey.blocks.saturating_add(survey.blocks / 16).saturating_add(256);
    blocks.saturating_mul(volume.block_size.unwrap_or(4096).into())
}

/// Finds out what a source takes of a volume of these options; `None` if it can be read only once,
/// or if no space can be given to files without their data.
fn survey_of(
    source: &Source,
    copies: &Arc<Copies>,
    (path, volume): (&Path, &Options),
    import: &ImportOptions,
    events: &mut Tell<'_>,
) -> Result<Option<Survey>, Error> {
    let features = volume.features.apply(volume.fs_type.features());
    let again = source.again().filter(|_| features.incompat.contains(Incompat::EXTENTS));
    let Some(source) = again else { return Ok(None) };
    let scratch = || {
        let scratch = Scratch::new(path, volume);
        scratch.map_err(|cause| Error::new(Action::Build, host(path), cause))
    };
    let mut events = |event| match event {
        // The second pass tells of them.
        Event::Skipped(_) => ControlFlow::Continue(()),
        event => events(event),
    };
    survey(source, copies, scratch, import, &mut events)
}
