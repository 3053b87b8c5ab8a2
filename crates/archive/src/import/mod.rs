//! A folder or a tar stream into a directory of a volume.
//!
//! One thread reads the source, the caller's writes the volume, a bounded pipe between them. Names
//! go in the order of the source and one thread writes, so the same source gives the same volume.

mod fill;
#[cfg(target_os = "linux")]
mod folder;
mod late;
mod tar;

use crate::compress::{Unpacked, unpacked};
use crate::pipe::{Outlet, Piece, pipe};
use crate::{Action, Cause, Error, Event, Ownership, Place};
use fill::Fill;
use lanefs::{Timestamp, Volume};
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::path::Path;

/// Bytes of an archive that are read at once.
const READ_AHEAD: usize = 1 << 20;

/// What an import changes. By default it changes nothing.
///
/// ```
/// use lanefs_archive::{ImportOptions, Ownership};
/// use lanefs::Timestamp;
/// // Reproducible: everything is root's, and no time is later than that of the release.
/// let options = ImportOptions::new()
///     .ownership(Ownership::new().user(0).group(0))
///     .newest(Timestamp { sec: 1_700_000_000, nsec: 0 });
/// ```
#[derive(Debug, Clone, Default)]
pub struct ImportOptions {
    ownership: Ownership,
    newest: Option<Timestamp>,
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
}

/// Where an import comes from: a folder or an archive.
pub struct Source {
    name: Vec<u8>,
    origin: Origin,
    size: Option<u64>,
}

enum Origin {
    #[cfg(target_os = "linux")]
    Folder(rustix::fd::OwnedFd),
    Tar(Box<dyn Read + Send>),
}

impl Source {
    /// Opens a folder (on Linux), or a tar archive in a file.
    ///
    /// # Errors
    /// It cannot be opened or read; [`Cause::Compressed`]: by a program that this build cannot
    /// replace.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let name = path.as_os_str().as_encoded_bytes();
        let failed = |e: io::Error| Error::new(Action::Open, Place::Host(name.to_vec()), e);
        #[cfg(target_os = "linux")]
        if path.metadata().map_err(failed)?.is_dir() {
            return Self::folder(path);
        }
        let file = File::open(path).map_err(failed)?;
        let size = file.metadata().ok().map(|m| m.len()).filter(|len| *len != 0);
        Self::stream(name, file, size)
    }

    /// Opens a folder.
    ///
    /// # Errors
    /// It cannot be opened.
    #[cfg(target_os = "linux")]
    pub fn folder(path: impl AsRef<Path>) -> Result<Self, Error> {
        use rustix::fs::{Mode, OFlags};
        let path = path.as_ref();
        let name = path.as_os_str().as_encoded_bytes().to_vec();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(folder) => Ok(Self { name, origin: Origin::Folder(folder), size: None }),
            Err(e) => Err(Error::new(Action::Open, Place::Host(name), io::Error::from(e))),
        }
    }

    /// Reads a tar archive from a stream: ustar, GNU or pax, plain or compressed by gzip, zstd, xz
    /// or bzip2, told by its content. Errors name it by `name`. The start of the stream is read at
    /// once.
    ///
    /// # Errors
    /// It cannot be read; [`Cause::Compressed`]: by a program that this build cannot replace.
    pub fn archive(name: impl AsRef<[u8]>, stream: impl Read + Send + 'static) -> Result<Self, Error> {
        Self::stream(name.as_ref(), stream, None)
    }

    fn stream(name: &[u8], stream: impl Read + Send + 'static, size: Option<u64>) -> Result<Self, Error> {
        let stream: Box<dyn BufRead + Send> = Box::new(BufReader::with_capacity(READ_AHEAD, stream));
        let cause = match unpacked(stream) {
            Ok(Unpacked::Stream { stream, compressed }) => {
                let size = size.filter(|_| !compressed);
                return Ok(Self { name: name.to_vec(), origin: Origin::Tar(stream), size });
            }
            Ok(Unpacked::By(program)) => Cause::Compressed(program),
            Err(e) => e.into(),
        };
        Err(Error::new(Action::Read, Place::Host(name.to_vec()), cause))
    }

    /// Returns the size of an archive in bytes, if it is a file that is not compressed: about what
    /// the [`Data`](Event::Data) events of its import add up to.
    #[must_use]
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    fn send(self, out: &mut Outlet) {
        // Either way the reader is done: the other side knows, or is gone.
        let _ = match self.origin {
            #[cfg(target_os = "linux")]
            Origin::Folder(folder) => folder::send(folder, &self.name, out),
            Origin::Tar(stream) => tar::send(stream, &self.name, out),
        };
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = String::from_utf8_lossy(&self.name);
        f.debug_struct("Source").field("name", &name).field("size", &self.size).finish_non_exhaustive()
    }
}

/// Imports `source` into the directory `dir` of a volume, which is made if it does not exist.
///
/// Owners, modes, times, extended attributes, ACLs, hard links, devices and holes arrive as the
/// source has them, or as `options` change them; the users need not exist and no right is asked
/// for. Entries that are there stay, but a name of the source replaces an entry that is not a
/// directory: several imports lie on top of each other as the layers of an image do. Nothing is
/// written outside of `dir`: an import goes through no symbolic link.
///
/// `events` hears of each step and says whether to go on. A source that gives nothing is waited
/// for; between two pieces of it a cancelled import ends at once. What was imported by then stays.
/// Changes are durable after [`Volume::sync`] or [`Volume::close`].
///
/// # Errors
/// What ended the import early: the source cannot be read, the volume is full or cannot be written,
/// or `events` cancelled. What concerns one name is told by [`Event::Skipped`], and the import goes
/// on.
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
    let mut fill = Fill::new(volume, dir.as_ref(), options, &mut events)?;
    let failed = |cause: Cause| Error::new(Action::Import, Place::Volume(base.to_vec()), cause);
    let (mut out, pieces) = pipe();
    let reader = std::thread::Builder::new().name("import".into()).spawn(move || source.send(&mut out));
    let reader = reader.map_err(|e| failed(e.into()))?;
    for batch in pieces {
        for piece in batch {
            match piece {
                Piece::Member(member) => fill.member(member)?,
                Piece::Data { offset, bytes } => fill.data(offset, &bytes)?,
                Piece::Skipped(error) => fill.tell(Event::Skipped(error))?,
                Piece::Failed(error) => return Err(error),
            }
        }
    }
    // Its end of the pipe is closed: it has ended, or died.
    reader.join().map_err(|_| failed(Cause::ReaderDied))?;
    fill.finish()
}
