//! Operations on paths that begin at a directory, as openat(2) and its family have them. The paths
//! of a volume begin at its root.

use super::dir::special;
use super::path::{self, NamePlace};
use super::{AtSymlink, Dir, DirEntry, File, FileOptions, Metadata};
use crate::error::{Error, OrCannot, Result};
use crate::fs::Fs;
use crate::fs::inode::InodeRef;
use crate::fs::namei::{NewAttr, NewKind, RenameFlags, SetAttr, check_target, is_dots, link_found};
use lanefs_device::os_name::{OsStrExt, OsStringExt};
use lanefs_format::{DeviceNumber, FileType};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The directory where relative paths begin, wherever it is moved. Absolute paths begin at the
/// volume's root.
///
/// # Examples
/// ```
/// # let volume = lanefs::Volume::in_memory(16 << 20)?;
/// use lanefs::AtSymlink;
///
/// volume.create_dir_all("/srv/www")?;
/// volume.write("/srv/www/index.html", b"<p>")?;
/// volume.symlink("index.html", "/srv/www/start")?;
/// let srv = volume.open_dir("/srv")?;
/// assert_eq!(srv.at().metadata("www/start", AtSymlink::Follow)?.len(), 3);
/// assert!(srv.at().metadata("www/start", AtSymlink::NoFollow)?.is_symlink());
/// # Ok::<(), lanefs::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct At<'d> {
    pub(super) fs: &'d Arc<Fs>,
    /// The directory; `None` for the root.
    base: Option<&'d InodeRef>,
}

pub(super) fn bytes(path: &impl AsRef<Path>) -> &[u8] {
    path.as_ref().as_os_str().as_bytes()
}

impl Dir {
    /// Returns operations on paths that begin here.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// volume.create_dir_all("/inbox/new")?;
    /// let inbox = volume.open_dir("/inbox")?;
    /// volume.rename("/inbox", "/letters")?;
    /// inbox.at().open_options().write(true).create(true).open("new/1")?;
    /// assert!(volume.exists("/letters/new/1")?);
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn at(&self) -> At<'_> {
        At { fs: &self.node.fs, base: Some(&self.node) }
    }
}

impl<'d> At<'d> {
    pub(super) fn root_of(fs: &'d Arc<Fs>) -> Self {
        Self { fs, base: None }
    }

    pub(super) fn base(self) -> Result<InodeRef> {
        self.base.map_or_else(|| self.fs.root(), |base| Ok(base.clone()))
    }

    pub(super) fn node(self, path: &[u8], at_end: AtSymlink) -> Result<InodeRef> {
        path::resolve(&self.base()?, path, at_end)
    }

    pub(super) fn place(self, path: &[u8]) -> Result<NamePlace> {
        path::place(&self.base()?, path)
    }

    /// Returns the place for a new name that will not be a directory: the root exists already, and
    /// a name with a slash behind it names a directory.
    fn new_place(self, path: &[u8]) -> Result<NamePlace> {
        match self.place(path) {
            Err(Error::Busy) => Err(Error::Exists),
            Ok(NamePlace { dir, name, must_be_dir: true }) => match dir.lookup(&name) {
                Ok(_) => Err(Error::Exists),
                Err(e) => Err(e),
            },
            place => place,
        }
    }

    /// Returns options for opening a file.
    pub fn open_options(self) -> FileOptions<'d> {
        FileOptions::new(self)
    }

    /// Opens a file for reading, as [`Volume::open_file`](crate::Volume::open_file) does for paths
    /// from the root.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDir`], [`Error::Loop`], [`Error::IsDir`];
    /// [`Error::Invalid`] for a device, fifo or socket.
    pub fn open_file(self, path: impl AsRef<Path>) -> Result<File> {
        self.open_options().read(true).open(path)
    }

    /// Makes a file, or cuts one that exists to nothing, as
    /// [`Volume::create_file`](crate::Volume::create_file) does for paths from the root.
    ///
    /// # Errors
    /// [`Error::NotFound`] if its directory does not exist, [`Error::IsDir`], [`Error::NoSpace`].
    pub fn create_file(self, path: impl AsRef<Path>) -> Result<File> {
        self.open_options().read(true).write(true).create(true).truncate(true).open(path)
    }

    /// Returns the whole content of a file, as [`Volume::read`](crate::Volume::read) does for paths
    /// from the root.
    ///
    /// # Errors
    /// The errors of [`open_file`](Self::open_file) and [`File::read_at`]; [`Error::NoMemory`].
    pub fn read(self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let file = self.open_file(&path)?;
        read_all(&file).or_cannot("read", path)
    }

    /// Makes or replaces a file with this content, as [`Volume::write`](crate::Volume::write) does
    /// for paths from the root.
    ///
    /// # Errors
    /// The errors of [`create_file`](Self::create_file) and [`File::write_at`].
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// volume.create_dir("/home")?;
    /// let home = volume.open_dir("/home")?;
    /// home.at().write("notes", b"hello")?;
    /// volume.rename("/home", "/moved")?;
    /// assert_eq!(home.at().read("notes")?, b"hello");
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn write(self, path: impl AsRef<Path>, content: &[u8]) -> Result<()> {
        self.create_file(&path)?.write_at(content, 0).or_cannot("write", path)
    }

    /// Returns whether `path` leads to an inode.
    ///
    /// # Errors
    /// Everything but [`Error::NotFound`].
    pub fn exists(self, path: impl AsRef<Path>) -> Result<bool> {
        match self.node(bytes(&path), AtSymlink::Follow) {
            Ok(_) => Ok(true),
            Err(Error::NotFound) => Ok(false),
            Err(e) => Err(e).or_cannot("look up", path),
        }
    }

    /// Returns all entries of a directory but "." and "..".
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDir`]; those of a damaged directory.
    pub fn read_dir(self, path: impl AsRef<Path>) -> Result<Vec<DirEntry>> {
        self.open_dir(&path)?.read_dir().or_cannot("read directory", path)
    }

    /// Returns attributes as [`Volume::metadata`](crate::Volume::metadata) does; `at_end` says
    /// whether it follows a symbolic link at the end.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDir`], [`Error::Loop`].
    pub fn metadata(self, path: impl AsRef<Path>, at_end: AtSymlink) -> Result<Metadata> {
        let node = self.node(bytes(&path), at_end).or_cannot("read the attributes of", path)?;
        Ok(Metadata::of(&node))
    }

    /// Opens a directory, as [`Volume::open_dir`](crate::Volume::open_dir) does for paths from the
    /// root.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDir`].
    pub fn open_dir(self, path: impl AsRef<Path>) -> Result<Dir> {
        let find = || {
            let node = self.node(bytes(&path), AtSymlink::Follow)?;
            node.check_dir()?;
            Ok(Dir { node })
        };
        find().or_cannot("open directory", &path)
    }

    /// Makes a directory, as [`Volume::create_dir_with`](crate::Volume::create_dir_with) does for
    /// paths from the root.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NotFound`], [`Error::NoSpace`], [`Error::TooManyLinks`].
    pub fn create_dir(self, path: impl AsRef<Path>, attr: NewAttr) -> Result<()> {
        let look = || match self.place(bytes(&path)) {
            Err(Error::Busy) => Err(Error::Exists),
            place => place,
        };
        NamePlace::make_at(look, |at| at.dir.create(&at.name, NewKind::Dir, attr).map(|_| ()))
            .or_cannot("create directory", &path)
    }

    /// Removes a name of anything but a directory, as
    /// [`Volume::remove_file`](crate::Volume::remove_file) does for paths from the root.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsDir`].
    pub fn remove_file(self, path: impl AsRef<Path>) -> Result<()> {
        self.unlink(bytes(&path)).or_cannot("remove", path)
    }

    fn unlink(self, path: &[u8]) -> Result<()> {
        match self.place(path) {
            Ok(NamePlace { dir, name, must_be_dir: false }) => dir.unlink(&name).map(drop),
            Ok(NamePlace { dir, name, .. }) => {
                dir.lookup(&name)?.check_dir()?;
                Err(Error::IsDir)
            }
            Err(Error::Busy) => Err(Error::IsDir),
            Err(e) => Err(e),
        }
    }

    /// Removes an empty directory, as [`Volume::remove_dir`](crate::Volume::remove_dir) does for
    /// paths from the root.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDir`], [`Error::NotEmpty`], [`Error::Busy`] for the root.
    pub fn remove_dir(self, path: impl AsRef<Path>) -> Result<()> {
        let removed = self.place(bytes(&path)).and_then(|NamePlace { dir, name, .. }| dir.rmdir(&name));
        removed.map(drop).or_cannot("remove directory", path)
    }

    /// Renames as [`Volume::rename_with`](crate::Volume::rename_with) does, to a path that begins
    /// at `there`.
    ///
    /// # Errors
    /// The errors of renameat2(2); [`Error::OtherVolume`].
    pub fn rename(
        self,
        source: impl AsRef<Path>,
        there: At<'_>,
        target: impl AsRef<Path>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.rename_bytes(bytes(&source), there, bytes(&target), flags).or_cannot_to("rename", source, target)
    }

    fn rename_bytes(self, source: &[u8], there: At<'_>, target: &[u8], flags: RenameFlags) -> Result<()> {
        if !Arc::ptr_eq(self.fs, there.fs) {
            return Err(Error::OtherVolume);
        }
        loop {
            // That a path is the root, which cannot be renamed, is reported last.
            let (from, to) = match (self.place(source), there.place(target)) {
                (Ok(from), Ok(to)) => (from, to),
                (Err(Error::Busy), Ok(_) | Err(Error::Busy)) => return Err(Error::Busy),
                (Ok(from), Err(Error::Busy)) if flags.keeps_target() && !is_dots(&from.name) => {
                    return Err(Error::Exists);
                }
                (Err(Error::Busy), Err(e)) | (Err(e), _) | (Ok(_), Err(e)) => return Err(e),
            };
            self.check_slashes(&from, &to, flags)?;
            match from.dir.rename(&from.name, &to.dir, &to.name, flags) {
                Err(Error::NotFound) if to.is_stale(|| there.place(target))? => {}
                done => return done.map(drop),
            }
        }
    }

    /// Checks a rename of a name with a slash behind it: only a directory may have one.
    fn check_slashes(self, from: &NamePlace, to: &NamePlace, flags: RenameFlags) -> Result<()> {
        if !from.must_be_dir && !to.must_be_dir || is_dots(&from.name) || is_dots(&to.name) {
            return Ok(());
        }
        let node = from.dir.lookup(&from.name)?;
        let target = to.dir.lookup(&to.name);
        let exchange = flags == RenameFlags::Exchange;
        match target {
            Ok(_) if flags.keeps_target() => return Err(Error::Exists),
            Ok(target) if exchange && to.must_be_dir => target.check_dir()?,
            Err(Error::NotFound) if !exchange => {}
            target => drop(target?),
        }
        if from.must_be_dir || !exchange { node.check_dir() } else { Ok(()) }
    }

    /// Links as [`Volume::hard_link`](crate::Volume::hard_link) does, to a path that begins at
    /// `there`.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] for a directory, [`Error::Exists`], [`Error::TooManyLinks`];
    /// [`Error::OtherVolume`].
    pub fn hard_link(self, from: impl AsRef<Path>, there: At<'_>, to: impl AsRef<Path>) -> Result<()> {
        let find = || self.node(bytes(&from), AtSymlink::NoFollow);
        link_found(find, |node| {
            NamePlace::make_at(|| there.new_place(bytes(&to)), |at| node.link(&at.dir, &at.name))
        })
        .or_cannot_to("link", from, &to)
    }

    /// Gives an open file a name, as [`Volume::link_file`](crate::Volume::link_file) does for paths
    /// from the root.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::TooManyLinks`], [`Error::OtherVolume`]; [`Error::NotFound`] for
    /// a file that was removed.
    pub fn link_file(self, file: &File, to: impl AsRef<Path>) -> Result<()> {
        let look = || self.new_place(bytes(&to));
        NamePlace::make_at(look, |at| file.inode().link(&at.dir, &at.name)).or_cannot("create link", &to)
    }

    /// Makes a symbolic link, as [`Volume::symlink`](crate::Volume::symlink) does for paths from
    /// the root.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NameTooLong`], [`Error::NoSpace`].
    pub fn symlink(self, target: impl AsRef<OsStr>, path: impl AsRef<Path>) -> Result<()> {
        let attr = NewAttr { permissions: 0o777, uid: 0, gid: 0 };
        let target = target.as_ref().as_bytes();
        let make = |at: &NamePlace| at.dir.create(&at.name, NewKind::Symlink(target), attr);
        check_target(target)
            .and_then(|()| NamePlace::make_at(|| self.new_place(bytes(&path)), make))
            .map(drop)
            .or_cannot("create symbolic link", &path)
    }

    /// Makes a device file, fifo, socket or empty file, as [`Volume::mknod`](crate::Volume::mknod)
    /// does for paths from the root.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NoSpace`]; [`Error::Invalid`] for another type, or a
    /// device number that no inode can hold.
    pub fn mknod(
        self,
        path: impl AsRef<Path>,
        file_type: FileType,
        device: DeviceNumber,
        attr: NewAttr,
    ) -> Result<()> {
        let make = |at: &NamePlace| special(&at.dir, &at.name, (file_type, device), attr);
        NamePlace::make_at(|| self.new_place(bytes(&path)), make).map(drop).or_cannot("create", &path)
    }

    /// Returns the target of a symbolic link, as [`Volume::read_link`](crate::Volume::read_link)
    /// does for paths from the root.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is none.
    pub fn read_link(self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let find = || self.node(bytes(&path), AtSymlink::NoFollow)?.read_link();
        Ok(OsString::from_vec(find().or_cannot("read symbolic link", &path)?).into())
    }

    /// Sets attributes, as [`Volume::set_attr`](crate::Volume::set_attr) does for paths from the
    /// root.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotPermitted`].
    pub fn set_attr(self, path: impl AsRef<Path>, set: &SetAttr, at_end: AtSymlink) -> Result<()> {
        let node = self.node(bytes(&path), at_end);
        node.and_then(|node| node.set_attr(set)).or_cannot("set the attributes of", path)
    }
}

fn read_all(file: &File) -> Result<Vec<u8>> {
    let mut content = Vec::new();
    let mut piece = vec![0; 1 << 20];
    // Not by i_size: that comes from the volume, and a hostile one can claim any size with
    // holes.
    loop {
        let n = file.read_at(&mut piece, content.len() as u64)?;
        content.try_reserve(n).map_err(|_| Error::NoMemory { bytes: content.len() + n })?;
        content.extend_from_slice(piece.get(..n).unwrap_or_default());
        if n < piece.len() {
            return Ok(content);
        }
    }
}
