//! A directory of a volume into a folder or a tar stream.
//!
//! Into a folder several threads read the volume and write files; a tar stream is read by one
//! thread and written by another, names in the order of their bytes. The volume is not trusted: a
//! name that could lead out of the folder, a directory that is its own ancestor, a link in the way
//! are left out with an error, and nothing is written outside.

mod documents;
#[cfg(target_os = "linux")]
mod folder;
mod image;
mod layer;
mod tar;
mod tree;

pub use image::{ImageOptions, ImageTarget, export_image, export_layer};

use crate::{Action, Compression, Error, Event, Ownership, Place};
#[cfg(target_os = "linux")]
use crate::{
    Overwrite,
    event::Tell,
    host::Object,
    unfinished::{Unfinished, host},
};
use lanefs::{Dir, Timestamp, Volume};
use std::fmt;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;

/// Options of an export. By default it changes no attributes.
#[derive(Debug, Clone, Default)]
pub struct ExportOptions {
    ownership: Ownership,
    newest: Option<Timestamp>,
    sparse: bool,
    #[cfg(target_os = "linux")]
    overwrite: Overwrite,
}

impl ExportOptions {
    /// Changes nothing, and overwrites no volumes.
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

    /// Sets the newest time that an exported file can have, for example that of
    /// `SOURCE_DATE_EPOCH`.
    #[must_use]
    pub fn newest(mut self, newest: Timestamp) -> Self {
        self.newest = Some(newest);
        self
    }

    /// Sets whether blocks of zeros become holes. Holes stay holes in any case, but for those
    /// behind the first million of a file.
    #[must_use]
    pub fn sparse(mut self, yes: bool) -> Self {
        self.sparse = yes;
        self
    }

    /// Sets which files of a folder may be overwritten.
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn overwrite(mut self, overwrite: Overwrite) -> Self {
        self.overwrite = overwrite;
        self
    }
}

/// Where an export goes: a folder or an archive.
pub struct Target<'a>(To<'a>);

enum To<'a> {
    #[cfg(target_os = "linux")]
    Folder(&'a Path),
    #[cfg(target_os = "linux")]
    File(&'a Path),
    Tar {
        name: Vec<u8>,
        stream: Box<dyn Write + 'a>,
        compression: Compression,
    },
}

impl<'a> Target<'a> {
    /// Writes into a folder, which is made if it does not exist.
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn folder(path: &'a Path) -> Self {
        Self(To::Folder(path))
    }

    /// Writes a tar archive to a stream. Errors name it by `name`.
    pub fn archive(name: impl AsRef<[u8]>, stream: impl Write + 'a, compression: Compression) -> Self {
        Self(To::Tar { name: name.as_ref().to_vec(), stream: Box::new(stream), compression })
    }

    /// Writes a tar archive to a file, compressed as its name says. An older archive is replaced
    /// when the new one is complete; other files are not, unless [`ExportOptions::overwrite`] says
    /// so.
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn file(path: &'a Path) -> Self {
        Self(To::File(path))
    }
}

impl fmt::Debug for Target<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &self.0 {
            #[cfg(target_os = "linux")]
            To::Folder(path) | To::File(path) => path.to_string_lossy(),
            To::Tar { name, .. } => String::from_utf8_lossy(name),
        };
        f.debug_struct("Target").field("name", &name).finish_non_exhaustive()
    }
}

/// Looks at what is at the path of an archive, which must not protect it. Returns how the archive
/// is compressed, and the device or pipe that is there.
#[cfg(target_os = "linux")]
fn look_at(
    path: &Path,
    name: &[u8],
    overwrite: Overwrite,
) -> Result<(Compression, Option<Object>), crate::Cause> {
    use crate::content::{self, Content};
    use crate::host::{self, Protected};
    let (compression, earlier) = match crate::program_for(name).unwrap_or_default() {
        "" => (Compression::None, Content::Archive("tar")),
        "gzip" => (Compression::Gzip, Content::Compressed("gzip")),
        other => return Err(crate::Cause::CannotCompress(other)),
    };
    let there = content::of_path(path).filter(|_| overwrite == Overwrite::NoVolumes);
    if let Some(there) = there.filter(|there| *there != Content::Ext && *there != earlier) {
        return Err(host::Error::from(Protected::NoArchive(there)).into());
    }
    let device = match host::open_named(path, overwrite)? {
        Some(object) if !object.is_regular()? => Some(object),
        _ => None,
    };
    Ok((compression, device))
}

/// Writes an archive to a file, which takes the place of an older one when it is complete. A device
/// or a pipe takes the archive as it comes; on a device it is durable at the end.
#[cfg(target_os = "linux")]
fn write_file(
    (root, base): (Dir, &[u8]),
    path: &Path,
    options: &ExportOptions,
    events: &mut Tell<'_>,
) -> Result<(), Error> {
    use std::os::unix::fs::FileTypeExt;
    let name = path.as_os_str().as_encoded_bytes().to_vec();
    let failed = |cause: crate::Cause| Error::new(Action::Write, host(path), cause);
    let (compression, device) = look_at(path, &name, options.overwrite).map_err(failed)?;
    if let Some(device) = device {
        let file = std::fs::File::from(device);
        let sink = tar::Sink { name, stream: Box::new(&file), compression };
        tar::write(root, base, sink, options, events)?;
        let synced = match file.metadata() {
            Ok(meta) if meta.file_type().is_block_device() => file.sync_all(),
            told => told.map(drop),
        };
        return synced.map_err(|e| failed(e.into()));
    }
    let mut file = Unfinished::replacing(path, Action::Write).map_err(failed)?;
    let stream = file.create_stream().map_err(failed)?;
    let sink = tar::Sink { name, stream: Box::new(stream), compression };
    tar::write(root, base, sink, options, events)?;
    stream.sync_all().map_err(|e| failed(e.into()))?;
    file.finish()
}

/// Exports the directory `dir` of a volume.
///
/// Modes, times, extended attributes, ACLs, hard links, devices and holes arrive as the volume has
/// them, or as `options` change them. In a folder they do as far as this user may make them: files
/// of others belong to this user, and lose their set-user-id bits. Archives are written in the pax
/// form, with GNU's sparse files; the same tree gives the same bytes.
///
/// `events` hears of each step and says whether to go on; of a folder, it is called from several
/// threads, by one at a time. What was written of a cancelled export stays in a folder, which may
/// lack attributes, and in a stream. An archive in a file is complete when it gets its name. A file
/// in a folder that cannot be written whole is left out, and an older one of its name stays.
///
/// # Errors
/// What ended the export early: the directory cannot be read, the target cannot be made or written
/// ([`Protected`](crate::host::Protected): what is there may not be overwritten), or `events`
/// cancelled. [`Event::Skipped`] reports a failure of one name, and the export goes on.
///
/// # Examples
/// ```
/// use lanefs_archive::{Compression, ExportOptions, Target, export};
/// use std::ops::ControlFlow;
///
/// let volume = lanefs::Volume::in_memory(16 << 20)?;
/// volume.write("/hostname", b"lane\n")?;
/// let mut tar = Vec::new();
/// let target = Target::archive("out.tar", &mut tar, Compression::None);
/// export(&volume, "/", target, &ExportOptions::new(), |_| ControlFlow::Continue(()))?;
/// assert_eq!(tar.len() % 10_240, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn export(
    volume: &Volume,
    dir: impl AsRef<Path>,
    target: Target<'_>,
    options: &ExportOptions,
    mut events: impl FnMut(Event) -> ControlFlow<()> + Send,
) -> Result<(), Error> {
    let base = dir.as_ref().as_os_str().as_encoded_bytes();
    let root = open_root(volume, dir.as_ref(), Action::Export)?;
    match target.0 {
        #[cfg(target_os = "linux")]
        To::Folder(folder) => folder::write(root, base, folder, options, &mut events),
        #[cfg(target_os = "linux")]
        To::File(path) => write_file((root, base), path, options, &mut events),
        To::Tar { name, stream, compression } => {
            tar::write(root, base, tar::Sink { name, stream, compression }, options, &mut events)
        }
    }
}

/// Opens a directory of a volume, for what `action` says.
fn open_root(volume: &Volume, dir: &Path, action: Action) -> Result<Dir, Error> {
    let name = || Place::Volume(dir.as_os_str().as_encoded_bytes().to_vec());
    volume.open_dir(dir).map_err(|e| Error::new(action, name(), e))
}
