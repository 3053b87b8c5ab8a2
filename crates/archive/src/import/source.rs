//! Where an import comes from.
//!
//! A source is recognised by its content: a folder, a tar archive, an OCI layout, or what
//! `docker save` wrote.
//!
//! Hazard: a build reads its source twice. A stream can be read only once, and an archive that
//! changes between the passes fails the build.

#[cfg(target_os = "linux")]
use super::folder;
use super::tar;
use crate::compress::{READ_AHEAD, unpacked};
use crate::image::{self, ArchiveStream, Copies, FileState, ImageChoice, Layer};
use crate::limit::Limit;
use crate::pipe::{Gone, Outlet, PipeItem};
use crate::{Action, Cause, Error, ImageError, Place};
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where an import comes from: a folder, an archive, or layers.
pub struct Source {
    pub(super) name: Vec<u8>,
    origin: Origin,
    size: Option<u64>,
    /// The folder of an OCI layout.
    layout: Option<PathBuf>,
}

enum Origin {
    #[cfg(target_os = "linux")]
    Folder(Arc<rustix::fd::OwnedFd>),
    /// An archive in a file.
    Archive(Arc<Layer>),
    /// An archive, unpacked.
    Stream(Box<dyn BufRead + Send>),
    Layers(Arc<Vec<Layer>>),
}

/// What is wanted of a source.
#[derive(Debug, Clone)]
pub(super) enum Wanted {
    /// Members with their data.
    Content,
    /// Members alone. Layers are checked meanwhile, and what archives unpack to is copied.
    Members(Arc<Copies>),
}

impl Source {
    /// Opens a folder (on Linux), a tar archive in a file, or an image: an OCI layout, as a folder
    /// or in a tar archive that is not compressed, or what `docker save` wrote. What it is, its
    /// content says; of an image [`ImageChoice::new`] is taken. A named pipe is read as
    /// [`reader`](Self::reader) does without a greatest size.
    ///
    /// # Errors
    /// It cannot be opened or read; [`Cause::Compressed`]: by a program that this build cannot
    /// replace; [`Cause::Image`].
    ///
    /// [`Cause::Compressed`]: crate::Cause::Compressed
    /// [`Cause::Image`]: crate::Cause::Image
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let name = path.as_os_str().as_encoded_bytes();
        let failed = |e: io::Error| Error::new(Action::Open, Place::Host(name.to_vec()), e);
        path.metadata().map_err(failed)?;
        if let Some(layers) = image::find(path, &ImageChoice::new())? {
            return Ok(Self::of_image(path, layers));
        }
        #[cfg(target_os = "linux")]
        if path.metadata().map_err(failed)?.is_dir() {
            return Self::folder(path);
        }
        let file = File::open(path).map_err(failed)?;
        let archive = Layer::of_file(path);
        if !archive.is_repeatable() {
            return Self::reader(name, file, &ImageChoice::new(), None);
        }
        let size = file.metadata().ok().map(|m| m.len()).filter(|len| *len != 0);
        let stream = Self::stream(name, file, size)?;
        Ok(Self { origin: Origin::Archive(Arc::new(archive)), ..stream })
    }

    fn of_layers(name: Vec<u8>, layers: Vec<Layer>) -> Self {
        Self { name, origin: Origin::Layers(Arc::new(layers)), size: None, layout: None }
    }

    /// Returns the layers of the image at `path`.
    fn of_image(path: &Path, layers: Vec<Layer>) -> Self {
        let name = path.as_os_str().as_encoded_bytes().to_vec();
        let layout = path.is_dir().then(|| path.to_owned());
        Self { layout, ..Self::of_layers(name, layers) }
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
            Ok(folder) => {
                Ok(Self { name, origin: Origin::Folder(Arc::new(folder)), size: None, layout: None })
            }
            Err(e) => Err(Error::new(Action::Open, Place::Host(name), io::Error::from(e))),
        }
    }

    /// Reads a tar archive from a stream: ustar, GNU or pax, plain or compressed by gzip, zstd, xz
    /// or bzip2, told by its content. Errors name it by `name`. The start of the stream is read at
    /// once, and all of it by the end. An image is an archive as others here:
    /// [`reader`](Self::reader) takes its layers.
    ///
    /// # Errors
    /// It cannot be read; [`Cause::Compressed`]: by a program that this build cannot replace.
    ///
    /// [`Cause::Compressed`]: crate::Cause::Compressed
    pub fn archive(name: impl AsRef<[u8]>, stream: impl Read + Send + 'static) -> Result<Self, Error> {
        Self::stream(name.as_ref(), stream, None)
    }

    fn stream(name: &[u8], stream: impl Read + Send + 'static, size: Option<u64>) -> Result<Self, Error> {
        let opened = unpacked(BufReader::with_capacity(READ_AHEAD, stream));
        let (stream, compressed) =
            opened.map_err(|cause| Error::new(Action::Read, Place::Host(name.to_vec()), cause))?;
        let size = size.filter(|_| !compressed);
        Ok(Self { name: name.to_vec(), origin: Origin::Stream(stream), size, layout: None })
    }

    /// Reads a tar archive or an image from a stream. What begins with a name that images have is
    /// copied into a file without a name in [`std::env::temp_dir`] first, because an image is not
    /// read front to back. The copy has at most `max_size` bytes. A `choice` of a tag or a platform
    /// asks for an image.
    ///
    /// # Errors
    /// A stream that cannot be read, or that no reader here unpacks; an image without the choice;
    /// a copy that cannot be written; [`Cause::TooLarge`](crate::Cause::TooLarge).
    pub fn reader(
        name: impl AsRef<[u8]>,
        stream: impl Read + Send + 'static,
        choice: &ImageChoice,
        max_size: Option<u64>,
    ) -> Result<Self, Error> {
        let name = name.as_ref();
        let failed = |e: io::Error| Error::new(Action::Read, Place::Host(name.to_vec()), e);
        let mut recorded = Recorded { stream, head: Vec::new() };
        let may_be_image = image::may_begin((&mut recorded).take(READ_AHEAD as u64));
        let Recorded { stream, head } = recorded;
        if !may_be_image {
            return match choice.is_of_image() {
                true => Err(Error::new(Action::Read, Place::Host(name.to_vec()), ImageError::NotAnImage)),
                false => Self::stream(name, Cursor::new(head).chain(stream), None),
            };
        }
        let file = spooled(name, Cursor::new(head).chain(stream), &Limit::new(max_size))?;
        match image::find_in(name, file.try_clone().map_err(failed)?, choice)? {
            Some(layers) => Ok(Self::of_layers(name.to_vec(), layers)),
            None if choice.is_of_image() => {
                Err(Error::new(Action::Read, Place::Host(name.to_vec()), ImageError::NotAnImage))
            }
            None => {
                let archive = Arc::new(Layer::in_file(name, file).map_err(failed)?);
                Ok(Self { name: name.to_vec(), origin: Origin::Archive(archive), size: None, layout: None })
            }
        }
    }

    /// Opens an image, as [`open`](Self::open) does, and chooses one of those that it has.
    ///
    /// # Errors
    /// It cannot be opened or read; [`Cause::Image`](crate::Cause::Image).
    pub fn image(path: impl AsRef<Path>, choice: &ImageChoice) -> Result<Self, Error> {
        let path = path.as_ref();
        match image::find(path, choice)? {
            Some(layers) => Ok(Self::of_image(path, layers)),
            None => {
                let name = path.as_os_str().as_encoded_bytes().to_vec();
                Err(Error::new(Action::Read, Place::Host(name), ImageError::NotAnImage))
            }
        }
    }

    /// Checks the layers of an image, before anything is written. `tell` hears how many bytes were
    /// read, and returns what ends the work.
    pub(crate) fn check(
        &self,
        max_size: Option<u64>,
        tell: impl FnMut(u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        match &self.origin {
            Origin::Layers(layers) => image::check(layers, max_size, tell),
            _ => Ok(()),
        }
    }

    /// Opens the layers of an image, tar archives in files, the lowest first. They are opened one
    /// after the other; a named pipe will do too.
    ///
    /// # Errors
    /// One of them does not exist or cannot be read; [`Cause::Compressed`]: by a program that this
    /// build cannot replace.
    ///
    /// [`Cause::Compressed`]: crate::Cause::Compressed
    pub fn layers(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<Self, Error> {
        let layers = paths.into_iter().map(|path| Layer::at(path.as_ref()));
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let name = layers.first().map(|layer| layer.name.clone()).unwrap_or_default();
        Ok(Self::of_layers(name, layers))
    }

    /// Returns whether it is an image, or layers of one.
    #[must_use]
    pub fn is_image(&self) -> bool {
        matches!(self.origin, Origin::Layers(_))
    }

    /// Returns the size of an archive in bytes, if it is a file that is not compressed: about what
    /// the [`Data`](crate::Event::Data) events of its import add up to.
    #[must_use]
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// Returns whether it is a folder.
    pub(crate) fn is_folder(&self) -> bool {
        #[cfg(target_os = "linux")]
        if matches!(self.origin, Origin::Folder(_)) {
            return true;
        }
        false
    }

    /// Refuses a new file at `target` that would replace what is read, or be read itself.
    pub(crate) fn refuse_target(&self, target: &Path) -> Result<(), Cause> {
        #[cfg(target_os = "linux")]
        if let Origin::Folder(folder) = &self.origin {
            use std::os::unix::fs::MetadataExt;
            let own = rustix::fs::fstat(folder)?;
            return refuse_inside(target, |above| {
                let meta = above.metadata()?;
                Ok((meta.dev(), meta.ino()) == (own.st_dev, own.st_ino))
            });
        }
        if let Some(layout) = &self.layout {
            refuse_inside(target, |above| is_same(above, layout))?;
        }
        match target.exists() && self.archives().iter().any(|layer| layer.blob.is_in(target)) {
            true => Err(Cause::TargetIsSource),
            false => Ok(()),
        }
    }

    /// Returns its place in errors.
    pub(crate) fn place(&self) -> Place {
        Place::Host(self.name.clone())
    }

    /// Returns its archives, if they lie in files.
    fn archives(&self) -> &[Layer] {
        match &self.origin {
            Origin::Archive(archive) => std::slice::from_ref(&**archive),
            Origin::Layers(layers) => layers,
            _ => &[],
        }
    }

    /// Returns the states of the files of its archives.
    pub(crate) fn states(&self) -> Result<Vec<Option<FileState>>, Error> {
        self.archives().iter().map(Layer::state).collect()
    }

    /// Checks that the files of its archives are as they were `before`.
    pub(crate) fn check_unchanged(&self, before: &[Option<FileState>]) -> Result<(), Error> {
        let mut archives = self.archives().iter().zip(before);
        archives.try_for_each(|(archive, before)| archive.check_unchanged(before.as_ref()))
    }

    /// Returns the same source again, to be read twice; `None` for a stream or a pipe.
    pub(crate) fn again(&self) -> Option<Self> {
        let origin = match &self.origin {
            #[cfg(target_os = "linux")]
            Origin::Folder(folder) => Origin::Folder(Arc::clone(folder)),
            Origin::Archive(archive) => Origin::Archive(Arc::clone(archive)),
            Origin::Layers(layers) if layers.iter().all(Layer::is_repeatable) => {
                Origin::Layers(Arc::clone(layers))
            }
            _ => return None,
        };
        Some(Self { name: self.name.clone(), origin, size: self.size, layout: self.layout.clone() })
    }

    /// Returns the same source, with what was copied of its archives in place of them.
    pub(crate) fn unpacked(self, copies: &Copies) -> Self {
        let origin = match self.origin {
            Origin::Archive(archive) => {
                let copied = copies.instead_of(std::slice::from_ref(&archive)).pop();
                Origin::Archive(copied.map_or(archive, Arc::new))
            }
            Origin::Layers(layers) => Origin::Layers(Arc::new(copies.instead_of(&layers))),
            origin => origin,
        };
        Self { origin, ..self }
    }

    /// Sends all members, and takes at most `max_size` bytes of archives, unpacked.
    pub(super) fn send(self, wanted: Wanted, max_size: Option<u64>, out: &mut Outlet) {
        let limit = Limit::new(max_size);
        let content = matches!(wanted, Wanted::Content);
        // Either way the reader is done: the other side knows, or is gone.
        let _ = match (self.origin, wanted) {
            #[cfg(target_os = "linux")]
            (Origin::Folder(folder), _) => folder::send(&folder, &self.name, content, out),
            (Origin::Stream(stream), _) => tar::send(limit.of(stream), &self.name, content, out),
            (Origin::Archive(archive), Wanted::Content) => {
                let sent = send_content(&archive, &limit, out);
                sent.unwrap_or_else(|e| out.push(PipeItem::Failed(e)))
            }
            (Origin::Archive(archive), Wanted::Members(copies)) => {
                let sent = send_members(&archive, &limit, &copies, out);
                sent.unwrap_or_else(|e| out.push(PipeItem::Failed(e)))
            }
            (Origin::Layers(layers), Wanted::Content) => send_layers(&layers, &limit, out),
            (Origin::Layers(layers), Wanted::Members(copies)) => {
                image::check_and_send(&layers, max_size, &copies, out)
            }
        };
    }
}

/// Refuses a target in a folder, or anywhere below it. `is_folder` says whether a path leads to
/// that folder.
fn refuse_inside(target: &Path, is_folder: impl Fn(&Path) -> io::Result<bool>) -> Result<(), Cause> {
    let above = target.parent().filter(|above| !above.as_os_str().is_empty());
    // A folder that is not there is told of when the file is made.
    let Ok(above) = above.unwrap_or(Path::new(".")).canonicalize() else { return Ok(()) };
    for above in above.ancestors() {
        if is_folder(above)? {
            return Err(Cause::TargetInSource);
        }
    }
    Ok(())
}

/// Returns whether two paths lead to the same folder.
fn is_same(one: &Path, other: &Path) -> io::Result<bool> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let number = |path: &Path| path.metadata().map(|meta| (meta.dev(), meta.ino()));
        Ok(number(one)? == number(other)?)
    }
    #[cfg(not(unix))]
    {
        Ok(one.canonicalize()? == other.canonicalize()?)
    }
}

/// A stream, and what was read of it.
struct Recorded<R> {
    stream: R,
    head: Vec<u8>,
}

impl<R: Read> Read for Recorded<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.stream.read(buf)?;
        self.head.extend_from_slice(&buf[..n]);
        Ok(n)
    }
}

/// Copies the stream of the name `name` into a file without a name.
fn spooled(name: &[u8], stream: impl Read, limit: &Limit) -> Result<File, Error> {
    let copy = || -> Result<File, Cause> {
        let mut file = tempfile::tempfile()?;
        let mut stream = limit.of(BufReader::with_capacity(READ_AHEAD, stream));
        io::copy(&mut stream, &mut file)?;
        Ok(file)
    };
    copy().map_err(|cause| match cause {
        Cause::TooLarge(_) => Error::new(Action::Read, Place::Host(name.to_vec()), cause),
        cause => {
            let folder = std::env::temp_dir().into_os_string().into_encoded_bytes();
            Error::new(Action::Write, Place::Host(folder), cause)
        }
    })
}

/// Sends the members of an archive without their data, and copies what it unpacks to.
///
/// # Errors
/// It cannot be opened: nothing was sent.
fn send_members(
    archive: &Layer,
    limit: &Limit,
    copies: &Copies,
    out: &mut Outlet,
) -> Result<Result<(), Gone>, Error> {
    let name = &archive.name;
    if let Some(plain) = archive.plain().map_err(|e| archive.failed(Action::Open, e))? {
        return Ok(tar::send_plain(&plain, name, false, limit, out));
    }
    let stream = archive.unpacked()?;
    let copy = Some(copies.begin(0));
    let sent = ArchiveStream::of(limit.of(stream), None, copy, |mut stream| {
        tar::send(&mut stream, name, false, out)?;
        stream.keep();
        Ok(())
    });
    sent.map_err(|e| archive.failed(Action::Read, e))
}

/// Sends the members of all layers, those of the lowest first.
fn send_layers(layers: &[Layer], limit: &Limit, out: &mut Outlet) -> Result<(), Gone> {
    for (layer, label) in layers.iter().zip(Layer::labels(layers)) {
        out.push(PipeItem::Layer(label))?;
        match send_content(layer, limit, out) {
            Ok(sent) => sent?,
            Err(e) => return out.push(PipeItem::Failed(e)),
        }
    }
    Ok(())
}

/// Sends the members of an archive with their data.
///
/// # Errors
/// It cannot be opened: nothing was sent.
fn send_content(archive: &Layer, limit: &Limit, out: &mut Outlet) -> Result<Result<(), Gone>, Error> {
    if let Some(plain) = archive.plain().map_err(|e| archive.failed(Action::Open, e))? {
        return Ok(tar::send_plain(&plain, &archive.name, true, limit, out));
    }
    let stream = archive.unpacked()?;
    Ok(tar::send(limit.of(stream), &archive.name, true, out))
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = String::from_utf8_lossy(&self.name);
        f.debug_struct("Source").field("name", &name).field("size", &self.size).finish_non_exhaustive()
    }
}
