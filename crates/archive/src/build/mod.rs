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
use crate::import::{self, SecondPass, Survey, survey};
use crate::unfinished::{Unfinished, host};
use crate::{Action, Cause, Error, Event, ImportOptions, Source};
use behind::WriteBehind;
use lanefs::OpenOptions;
use lanefs::device::{BlockDevice, FileDevice};
use lanefs::format::Incompat;
use lanefs::mkfs::{self, Options};
use scratch::{Scratch, ScratchSize};
use seal::Parts;
use std::io;
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
    let before = source.states()?;
    let (survey, source) = match survey_of(&source, (path, &volume), &import, &mut events)? {
        Some((survey, copies)) => {
            let has_room = copies.leave_room_for(bytes_of(&survey, &volume));
            (Some(survey), if has_room { source.unpacked(&copies) } else { source })
        }
        None => {
            source.check(import.max_size, |bytes| {
                event::tell(&mut events, Event::Checked(bytes), Action::Import, b"/")
            })?;
            (None, source)
        }
    };
    let mut filling = Filling { path, options, import, survey, file, before };
    let Filled { parts, report, file } = filling.fill_retrying(source, &volume, &mut events)?;
    let verity = parts.make_tree(&file, &mut events).map_err(failed)?;
    let partition = parts.make_table(&file).map_err(failed)?;
    if events(Event::Waiting).is_break() {
        return Err(failed(Cause::Cancelled));
    }
    filling.file.finish()?;
    Ok(Built { file_size: parts.file_size(), volume_start: parts.start(), volume: report, verity, partition })
}

/// A volume with its content, in the file that has all parts.
struct Filled {
    parts: Parts,
    report: mkfs::Report,
    file: Arc<FileDevice>,
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

    /// Returns whether a volume that is full, with so many times the usual margin, is made again.
    fn retries(&self, margins: u64) -> bool {
        !matches!(self.options.size, VolumeSize::Bytes(_)) && margins < MOST_MARGINS
    }

    /// Fills a new volume. If a volume whose size was found turns out too small, makes a larger one
    /// and fills that.
    fn fill_retrying(
        &mut self,
        mut source: Source,
        options: &Options,
        events: &mut Tell<'_>,
    ) -> Result<Filled, Error> {
        let (mut more, mut told) = (1, 0);
        loop {
            let again = source.again();
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
                (Err(e), Some(again)) if self.retries(more) && is_full(&e) => {
                    (source, more) = (again, more * 2);
                }
                (Err(e), _) if matches!(e.cause(), Cause::Cancelled) => return Err(e),
                (filled, read) => {
                    // The first cause of what failed, or of wrong bytes.
                    read.as_ref().map_or(Ok(()), |read| read.check_unchanged(&self.before))?;
                    let filled = filled?;
                    flush(&*filled.file, read).map_err(|e| self.failed(e))?;
                    return Ok(filled);
                }
            }
        }
    }

    /// Fills a new volume, whose size has so many times the usual margin. Its file is still to be
    /// flushed.
    fn fill(
        &mut self,
        source: Source,
        options: &Options,
        margins: u64,
        events: &mut Tell<'_>,
    ) -> Result<Filled, Error> {
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
        let file = self.file.create(parts.file_size()).map_err(|e| self.failed(e))?;
        let device = parts.in_file(&file).map_err(|e| self.failed(e))?;
        let report =
            mkfs::format(&Volatile::new(Arc::clone(&device)), &volume).map_err(|e| self.failed(e))?;
        let behind = Arc::new(WriteBehind::new(Arc::clone(&device)).map_err(|e| self.failed(e))?);
        let opened = OpenOptions::new().write(true).mmp(false).threads(false).cache_bytes(CACHE);
        let opened =
            opened.commit_interval(Duration::ZERO).clock(self.options.time).open_device(behind.clone());
        let filled = opened.map_err(|e| self.failed(e))?;
        let removed = self.survey.as_ref().map(|survey| &survey.removed);
        let second = SecondPass { removed, sink: &*behind, retries: self.retries(margins) };
        let place = source.place();
        let written = import::write(source, &filled, &self.import, second, events);
        // Also after a failure: what is kept then is a volume.
        let closed = filled.close().and_then(|()| Ok(behind.flush()?));
        if let Err(e) = written.and(closed.map_err(|e| self.failed(e))) {
            // The failure that is told is the first one.
            let _ = device.flush();
            return Err(behind.unread().map_or(e, |unread| Error::new(Action::Read, place, unread)));
        }
        Ok(Filled { parts, report, file })
    }
}

/// Returns whether the volume has no free block for a name, its data, or one of its attributes.
fn is_full(error: &Error) -> bool {
    let cause = match error.cause() {
        Cause::Xattr { cause, .. } => &**cause,
        cause => cause,
    };
    matches!(cause, Cause::Volume(lanefs::Error::NoSpace))
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

/// A count that a survey which is made again begins anew.
#[derive(Debug, Default)]
struct Told {
    most: u64,
    now: u64,
}

impl Told {
    /// Adds to the count. Returns what the caller has not heard yet.
    fn add(&mut self, more: u64) -> u64 {
        self.now += more;
        let new = self.now.saturating_sub(self.most);
        self.most += new;
        new
    }
}

/// Finds out what a source takes of a volume of these options, and copies what its archives unpack
/// to; `None` if it can be read only once, or if no space can be given to files without their data.
/// A survey that the usual scratch volume is too small for is made again in the largest.
fn survey_of(
    source: &Source,
    (path, volume): (&Path, &Options),
    import: &ImportOptions,
    events: &mut Tell<'_>,
) -> Result<Option<(Survey, Arc<Copies>)>, Error> {
    let features = volume.features.apply(volume.fs_type.features());
    if !features.incompat.contains(Incompat::EXTENTS) {
        return Ok(None);
    }
    let (mut checked, mut found) = (Told::default(), Told::default());
    let mut survey_in = |size| -> Result<Option<(Survey, Arc<Copies>)>, Error> {
        let Some(source) = source.again() else { return Ok(None) };
        // The reader of an earlier survey may still make copies.
        let copies = Arc::new(Copies::beside(path));
        (checked.now, found.now) = (0, 0);
        let mut events = |event| match event {
            // The second pass tells of them.
            Event::Skipped(_) => ControlFlow::Continue(()),
            Event::Checked(bytes) => match checked.add(bytes) {
                0 => events(Event::Waiting),
                new => events(Event::Checked(new)),
            },
            Event::Found if found.add(1) == 0 => events(Event::Waiting),
            event => events(event),
        };
        let scratch = || {
            let scratch = Scratch::new(path, volume, size);
            scratch.map_err(|cause| Error::new(Action::Build, host(path), cause))
        };
        let surveyed = survey(source, &copies, scratch, import, &mut events)?;
        Ok(surveyed.map(|survey| (survey, copies)))
    };
    let lacks_inodes = |e: &Error| matches!(e.cause(), Cause::Volume(lanefs::Error::NoInodes));
    match survey_in(ScratchSize::Usual) {
        Err(first) if (is_full(&first) || lacks_inodes(&first)) && Scratch::can_be_larger(volume) => {
            match survey_in(ScratchSize::Most) {
                Err(e) if is_too_large(&e) => Err(first),
                surveyed => surveyed,
            }
        }
        surveyed => surveyed,
    }
}

/// Returns whether the file system of the host has no file so large.
fn is_too_large(error: &Error) -> bool {
    matches!(error.cause(), Cause::Io(e) if e.kind() == io::ErrorKind::FileTooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_survey_that_is_made_again_tells_what_is_new() {
        let mut told = Told::default();
        assert_eq!([told.add(3), told.add(4)], [3, 4]);
        told.now = 0;
        assert_eq!([told.add(5), told.add(4), told.add(1)], [0, 2, 1]);
    }
}
