//! An OCI image of a tree: a layout in a folder or in a tar archive.
//!
//! A layout is made whole in a folder of its own beside the target, and gets its name, or goes into
//! the archive, when it is complete. The same trees and options give the same bytes.

use super::documents::{
    Annotations, CONFIG, Config, Descriptor, History, INDEX, Index, LAYOUT, MANIFEST, Manifest,
    PlatformFields, RootFs, Settings, rfc3339,
};
use super::layer::{self, Tree, Written};
use super::{ExportOptions, open_root};
use crate::event::Tell;
use crate::image::Digest;
use crate::member::{Kind, Member};
use crate::tarball::TarWriter;
use crate::unfinished::{HeldFolder, Unfinished, UnfinishedFolder, host};
use crate::{Action, Cause, Compression, Error, Event, Place, Platform};
use lanefs::{Timestamp, Volume};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Bytes that are copied into an archive at once.
const PIECE: usize = 1 << 20;
/// Where a layout has its blobs, and the folder above.
const BLOBS: &str = "blobs/sha256";
const BLOBS_DIR: &str = "blobs";

/// Where an image, or a layer, goes. Nothing that is there is replaced, unless
/// [`ImageOptions::overwrite`] says so.
pub struct ImageTarget<'a>(To<'a>);

enum To<'a> {
    Folder(&'a Path),
    File(&'a Path),
    Stream { name: Vec<u8>, stream: Box<dyn Write + 'a> },
}

impl<'a> ImageTarget<'a> {
    /// Returns the target of a layout in a folder, which must not exist, or be empty.
    #[must_use]
    pub fn folder(path: &'a Path) -> Self {
        Self(To::Folder(path))
    }

    /// Returns the target of a tar archive in a file.
    #[must_use]
    pub fn file(path: &'a Path) -> Self {
        Self(To::File(path))
    }

    /// Returns the target of a tar archive to a stream, which errors call `name`.
    pub fn stream(name: impl AsRef<[u8]>, stream: impl Write + 'a) -> Self {
        Self(To::Stream { name: name.as_ref().to_vec(), stream: Box::new(stream) })
    }
}

impl fmt::Debug for ImageTarget<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &self.0 {
            To::Folder(path) | To::File(path) => path.to_string_lossy(),
            To::Stream { name, .. } => String::from_utf8_lossy(name),
        };
        f.debug_struct("ImageTarget").field("name", &name).finish_non_exhaustive()
    }
}

/// How an image is made of a tree.
#[derive(Debug, Clone)]
pub struct ImageOptions<'a> {
    export: ExportOptions,
    compression: Compression,
    tag: Option<String>,
    platform: Platform,
    since: Option<(&'a Volume, PathBuf)>,
    overwrite: bool,
}

impl Default for ImageOptions<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> ImageOptions<'a> {
    /// Returns the defaults: the whole tree as one gzip layer, for this machine, without a tag.
    #[must_use]
    pub fn new() -> Self {
        Self {
            export: ExportOptions::new(),
            compression: Compression::Gzip,
            tag: None,
            platform: Platform::of_this_machine(),
            since: None,
            overwrite: false,
        }
    }

    /// Sets what is changed on the way. [`ExportOptions::newest`] is also when the image says that
    /// it was made; without it, it does not say.
    #[must_use]
    pub fn export(mut self, export: ExportOptions) -> Self {
        self.export = export;
        self
    }

    /// Sets how layers are compressed.
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// Names the image in its layout (`org.opencontainers.image.ref.name`).
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// Sets the platform that the image is for.
    #[must_use]
    pub fn platform(mut self, platform: Platform) -> Self {
        self.platform = platform;
        self
    }

    /// Sets the older tree that a layer is the difference to. An image then has two layers: the
    /// older tree, and the difference.
    #[must_use]
    pub fn since(mut self, volume: &'a Volume, dir: impl Into<PathBuf>) -> Self {
        self.since = Some((volume, dir.into()));
        self
    }

    /// Sets whether an archive that is there is replaced. A folder never is.
    #[must_use]
    pub fn overwrite(mut self, yes: bool) -> Self {
        self.overwrite = yes;
        self
    }
}

/// Makes an OCI image of the directory `dir` of a volume.
///
/// Modes, times, extended attributes, ACLs, hard links, devices and holes are in its layers as the
/// volume has them, or as options change them; the volume's `lost+found` is not. `events` hears of
/// each step and says whether to go on. After an error or a cancel nothing is left at the target,
/// but for what a stream has taken.
///
/// # Errors
/// What ended the export early: a directory cannot be read, the target cannot be written, is there
/// ([`Cause::TargetExists`]), or `events` cancelled. [`Event::Skipped`] reports a failure of one
/// name, and the export goes on.
///
/// # Examples
/// ```
/// use lanefs_archive::{ImageOptions, ImageTarget, Source, export_image};
/// use std::ops::ControlFlow;
///
/// # let dir = tempfile::tempdir()?;
/// # let layout = dir.path().join("layout");
/// let volume = lanefs::Volume::in_memory(16 << 20)?;
/// volume.write("/hostname", b"lane\n")?;
/// let options = ImageOptions::new().tag("app");
/// let target = ImageTarget::folder(&layout);
/// export_image(&volume, "/", target, &options, |_| ControlFlow::Continue(()))?;
/// assert!(Source::open(&layout)?.is_image());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn export_image(
    volume: &Volume,
    dir: impl AsRef<Path>,
    target: ImageTarget<'_>,
    options: &ImageOptions<'_>,
    mut events: impl FnMut(Event) -> ControlFlow<()> + Send,
) -> Result<(), Error> {
    let tree = tree(volume, dir.as_ref(), options)?;
    let events: &mut Tell<'_> = &mut events;
    let mtime = options.export.newest.unwrap_or_default();
    match target.0 {
        To::Folder(path) => {
            let folder = UnfinishedFolder::new(path)?;
            Layout { folder: folder.held(), target: path, options }.make(tree, events)?;
            folder.finish()
        }
        To::File(path) => {
            let mut file = Unfinished::new(path, Action::Write, options.overwrite, false)?;
            let failed = |cause: Cause| Error::new(Action::Write, host(path), cause);
            let folder = UnfinishedFolder::scratch(path)?;
            Layout { folder: folder.held(), target: path, options }.make(tree, events)?;
            let stream = file.create_stream().map_err(failed)?;
            let files = files(folder.held()).map_err(|e| failed(e.into()))?;
            let stream = pack(files, stream, mtime, events).map_err(failed)?;
            stream.sync_all().map_err(|e| failed(e.into()))?;
            file.finish()
        }
        To::Stream { name, stream } => {
            let scratch = std::env::temp_dir().join("image");
            let folder = UnfinishedFolder::scratch(&scratch)?;
            Layout { folder: folder.held(), target: &scratch, options }.make(tree, events)?;
            let files = files(folder.held());
            // A stream may wait for its reader without end: until then nothing is left to remove.
            drop(folder);
            let packed = files.map_err(Cause::from).and_then(|files| pack(files, stream, mtime, events));
            packed.map(drop).map_err(|cause| Error::new(Action::Write, Place::Host(name), cause))
        }
    }
}

/// Writes a layer of an image, a tar archive: the directory `dir` of a volume, or what it has that
/// the tree of [`ImageOptions::since`] has not, with whiteouts for names that are gone. Tag and
/// platform are not used.
///
/// # Errors
/// What ended the export early: a directory cannot be read, the target cannot be written, is there
/// ([`Cause::TargetExists`]) or is a folder ([`Cause::NotAFile`]), or `events` cancelled.
/// [`Event::Skipped`] reports a failure of one name, and the export goes on.
pub fn export_layer(
    volume: &Volume,
    dir: impl AsRef<Path>,
    target: ImageTarget<'_>,
    options: &ImageOptions<'_>,
    mut events: impl FnMut(Event) -> ControlFlow<()> + Send,
) -> Result<(), Error> {
    let tree = tree(volume, dir.as_ref(), options)?;
    let (compression, export) = (options.compression, &options.export);
    let path = match target.0 {
        To::Folder(path) => return Err(Error::new(Action::Write, host(path), Cause::NotAFile)),
        To::Stream { name, stream } => {
            return layer::write(&tree, (&name, stream), compression, export, &mut events).map(drop);
        }
        To::File(path) => path,
    };
    let failed = |cause: Cause| Error::new(Action::Write, host(path), cause);
    let mut file = Unfinished::new(path, Action::Write, options.overwrite, false)?;
    let stream = file.create_stream().map_err(failed)?;
    let name = path.as_os_str().as_encoded_bytes();
    layer::write(&tree, (name, stream), compression, export, &mut events)?;
    stream.sync_all().map_err(|e| failed(e.into()))?;
    file.finish()
}

/// Opens the trees of a layer.
fn tree<'a>(volume: &Volume, dir: &'a Path, options: &'a ImageOptions<'_>) -> Result<Tree<'a>, Error> {
    let since = match &options.since {
        None => None,
        Some((old, path)) => {
            Some((open_root(old, path, Action::Compare)?, path.as_os_str().as_encoded_bytes()))
        }
    };
    Ok(Tree {
        root: open_root(volume, dir, Action::Export)?,
        base: dir.as_os_str().as_encoded_bytes(),
        since,
    })
}

/// A layout that is being made.
struct Layout<'a> {
    folder: &'a HeldFolder,
    /// Its name in errors.
    target: &'a Path,
    options: &'a ImageOptions<'a>,
}

impl Layout<'_> {
    fn failed(&self, cause: impl Into<Cause>) -> Error {
        Error::new(Action::Write, host(self.target), cause)
    }

    fn make(&self, tree: Tree<'_>, events: &mut Tell<'_>) -> Result<(), Error> {
        for dir in [BLOBS_DIR, BLOBS] {
            self.folder.create_dir(dir).map_err(|e| self.failed(e))?;
        }
        let mut layers = Vec::new();
        if let Some((root, base)) = tree.since.clone() {
            layers.push(self.layer(&Tree { root, base, since: None }, events)?);
        }
        layers.push(self.layer(&tree, events)?);
        self.documents(&layers).map_err(|e| self.failed(e))
    }

    fn layer(&self, tree: &Tree<'_>, events: &mut Tell<'_>) -> Result<Written, Error> {
        let unnamed = format!("{BLOBS}/layer");
        let stream = self.folder.create_file(&unnamed).map_err(|e| self.failed(e))?;
        let name = self.target.as_os_str().as_encoded_bytes();
        let (compression, export) = (self.options.compression, &self.options.export);
        let written = layer::write(tree, (name, &stream), compression, export, events)?;
        let path = written.digest.path();
        let named = stream.sync_all().and_then(|()| self.folder.rename(&unnamed, &path));
        named.map_err(|e| self.failed(e))?;
        Ok(written)
    }

    /// Writes everything but layers.
    fn documents(&self, layers: &[Written]) -> io::Result<()> {
        let options = self.options;
        let created = options.export.newest.and_then(rfc3339);
        let created = created.as_deref();
        let platform = PlatformFields::of(&options.platform);
        let history = layers.iter().map(|_| History { created, created_by: "lanefs export" });
        let diff_ids = layers.iter().map(|layer| layer.diff_id.to_string()).collect();
        let config = self.blob(&Config {
            created,
            platform,
            config: Settings {},
            rootfs: RootFs { kind: "layers", diff_ids },
            history: history.collect(),
        })?;
        let media_type = media_type(options.compression);
        let layers = layers.iter().map(|l| descriptor(media_type, &l.digest, l.size)).collect();
        let config = descriptor(CONFIG, &config.0, config.1);
        let manifest = Manifest { schema_version: 2, media_type: MANIFEST, config, layers };
        let (digest, size) = self.blob(&manifest)?;
        let mut manifest = descriptor(MANIFEST, &digest, size);
        manifest.platform = Some(platform);
        manifest.annotations = options.tag.as_deref().map(|ref_name| Annotations { ref_name });
        let index = Index { schema_version: 2, media_type: INDEX, manifests: [manifest] };
        self.file("index.json", &serde_json::to_vec(&index)?)?;
        self.file("oci-layout", LAYOUT.as_bytes())
    }

    /// Writes a document as a blob.
    fn blob(&self, document: &impl Serialize) -> io::Result<(Digest, u64)> {
        let bytes = serde_json::to_vec(document)?;
        let digest = Digest::of_sha256(&Sha256::digest(&bytes));
        self.file(&digest.path(), &bytes)?;
        Ok((digest, bytes.len() as u64))
    }

    fn file(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut file = self.folder.create_file(name)?;
        file.write_all(bytes)?;
        file.sync_all()
    }
}

fn descriptor<'a>(media_type: &'a str, digest: &Digest, size: u64) -> Descriptor<'a> {
    Descriptor { media_type, digest: digest.to_string(), size, platform: None, annotations: None }
}

fn media_type(compression: Compression) -> &'static str {
    match compression {
        Compression::None => "application/vnd.oci.image.layer.v1.tar",
        Compression::Gzip => "application/vnd.oci.image.layer.v1.tar+gzip",
        #[cfg(feature = "zstd")]
        Compression::Zstd => "application/vnd.oci.image.layer.v1.tar+zstd",
    }
}

/// Opens the files of a layout, in the order of an archive: what leads to the rest stands first.
fn files(folder: &HeldFolder) -> io::Result<Vec<(String, File)>> {
    let blobs = folder.names(BLOBS)?;
    let mut blobs: Vec<_> = blobs.iter().map(|name| format!("{BLOBS}/{}", name.to_string_lossy())).collect();
    blobs.sort();
    let names = ["oci-layout", "index.json"].map(String::from).into_iter().chain(blobs);
    names.map(|name| folder.open_file(&name).map(|file| (name, file))).collect()
}

/// Writes the files of a layout as an archive, and gives the stream back.
fn pack<W: Write>(
    files: Vec<(String, File)>,
    stream: W,
    mtime: Timestamp,
    events: &mut Tell<'_>,
) -> Result<W, Cause> {
    let mut tar = TarWriter::new(BufWriter::with_capacity(PIECE, stream));
    let mut bytes = vec![0; PIECE];
    for dir in [BLOBS_DIR, BLOBS] {
        tar.member(&member(dir, Kind::Dir, 0o755, mtime))?;
    }
    for (name, mut file) in files {
        let size = file.metadata()?.len();
        tar.member(&member(&name, Kind::File { size, data: vec![(0, size)] }, 0o644, mtime))?;
        loop {
            if events(Event::Waiting).is_break() {
                return Err(Cause::Cancelled);
            }
            match file.read(&mut bytes)? {
                0 => break,
                n => tar.data(&bytes[..n])?,
            }
        }
    }
    tar.finish()?.into_inner().map_err(|e| e.into_error().into())
}

fn member(path: &str, kind: Kind, mode: u16, mtime: Timestamp) -> Member {
    Member { path: path.into(), kind, mode, uid: 0, gid: 0, mtime, xattrs: Vec::new() }
}
