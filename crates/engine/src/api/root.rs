//! Operations on paths from the root of a volume.

use super::at::{At, bytes};
use super::{AtSymlink, Dir, DirEntry, File, FileOptions, Metadata, Volume};
use crate::error::{Error, OrCannot, Result};
use crate::fs::namei::{NewAttr, RenameFlags, SetAttr, is_dots};
use lanefs_format::{DeviceNumber, FileType};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

const DEFAULT_DIR: NewAttr = NewAttr { permissions: 0o755, uid: 0, gid: 0 };

impl Volume {
    /// Returns operations on paths that begin at the root. [`Dir::at`] has them for paths that
    /// begin in another directory.
    pub fn at(&self) -> At<'_> {
        At::root_of(&self.fs)
    }

    /// Returns options for opening a file: what to do if it exists, and what if it does not.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// let file = volume.open_options().write(true).create_new(true).open("/log")?;
    /// file.write_at(b"one line\n", 0)?;
    /// let file = volume.open_options().append(true).open("/log")?;
    /// file.write_at(b"another\n", 0)?;
    /// assert_eq!(volume.read("/log")?, b"one line\nanother\n");
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn open_options(&self) -> FileOptions<'_> {
        self.at().open_options()
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::NotDir`] for a path through a file; [`Error::Loop`];
    /// [`Error::IsDir`], and [`Error::Invalid`] for a device, fifo or socket; those of a damaged
    /// volume, and the device's.
    pub fn open_file(&self, path: impl AsRef<Path>) -> Result<File> {
        self.at().open_file(path)
    }

    /// Makes a file, or cuts one that exists to nothing, and opens it for writing.
    ///
    /// # Errors
    /// [`Error::NotFound`] if its directory does not exist, [`Error::IsDir`], [`Error::NoSpace`].
    pub fn create_file(&self, path: impl AsRef<Path>) -> Result<File> {
        self.at().create_file(path)
    }

    /// Returns the whole content of a file.
    ///
    /// # Errors
    /// The errors of [`open_file`](Self::open_file) and [`File::read_at`]; [`Error::NoMemory`] for
    /// a file that is larger than memory, as a sparse one may be.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// volume.write("/motd", b"hello")?;
    /// assert_eq!(volume.read("/motd")?, b"hello");
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        self.at().read(path)
    }

    /// Makes or replaces a file with this content.
    ///
    /// # Errors
    /// The errors of [`create_file`](Self::create_file) and [`File::write_at`].
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// volume.write("/motd", b"hello")?;
    /// assert_eq!(volume.read("/motd")?, b"hello");
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn write(&self, path: impl AsRef<Path>, content: &[u8]) -> Result<()> {
        self.at().write(path, content)
    }

    /// Returns the attributes of the inode at `path`; a symbolic link at the end is followed.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDir`], [`Error::Loop`].
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// volume.write("/file", b"12345")?;
    /// let meta = volume.metadata("/file")?;
    /// assert!(meta.is_file());
    /// assert_eq!((meta.len(), meta.permissions(), meta.nlink()), (5, 0o644, 1));
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.at().metadata(path, AtSymlink::Follow)
    }

    /// Returns the attributes of the inode at `path`; a symbolic link at the end is not followed.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::NotDir`] for a path through a file; [`Error::Loop`] for too
    /// many links on the way.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.at().metadata(path, AtSymlink::NoFollow)
    }

    /// Returns whether `path` leads to an inode.
    ///
    /// # Errors
    /// Everything but [`Error::NotFound`].
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        self.at().exists(path)
    }

    /// Opens a directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDir`].
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// use lanefs::NewAttr;
    /// let attr = NewAttr { permissions: 0o644, uid: 0, gid: 0 };
    /// let dir = volume.open_dir("/")?;
    /// for i in 0..100 {
    ///     dir.create_new_file(format!("file-{i}"), attr)?.write_at(b"content", 0)?;
    /// }
    /// assert_eq!(dir.read_dir()?.len(), 101); // and lost+found
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn open_dir(&self, path: impl AsRef<Path>) -> Result<Dir> {
        self.at().open_dir(path)
    }

    /// Returns all entries of a directory but "." and "..".
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDir`]; those of a damaged directory.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// volume.create_dir_all("/a/b")?;
    /// volume.write("/a/file", b"")?;
    /// let mut names: Vec<_> = volume.read_dir("/a")?.into_iter().map(|e| e.name).collect();
    /// names.sort();
    /// assert_eq!(names, ["b", "file"]);
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<Vec<DirEntry>> {
        self.at().read_dir(path)
    }

    /// Makes a directory, mode 0755, owner 0:0.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NotFound`], [`Error::NoSpace`], [`Error::TooManyLinks`].
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// volume.create_dir("/home")?;
    /// assert!(matches!(volume.create_dir("/home").unwrap_err().kind(), lanefs::Error::Exists));
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.create_dir_with(path, DEFAULT_DIR)
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NotFound`], [`Error::NoSpace`], [`Error::TooManyLinks`].
    pub fn create_dir_with(&self, path: impl AsRef<Path>, attr: NewAttr) -> Result<()> {
        self.at().create_dir(path, attr)
    }

    /// Makes a directory, and every directory above it that does not exist.
    ///
    /// # Errors
    /// The errors of [`create_dir`](Self::create_dir). A directory that exists is no error.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut at = PathBuf::from("/");
        for part in path.as_ref() {
            at.push(part);
            match self.create_dir(&at) {
                Err(e) if !matches!(e.kind(), Error::Exists) => return Err(e),
                Err(_) if !self.metadata(&at)?.is_dir() => {
                    return Err(Error::NotDir).or_cannot("create directory", &at);
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Removes the name of a file that is not a directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsDir`].
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// volume.write("/file", b"gone soon")?;
    /// volume.remove_file("/file")?;
    /// assert!(!volume.exists("/file")?);
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        self.at().remove_file(path)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDir`], [`Error::NotEmpty`], [`Error::Busy`] for the root.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.at().remove_dir(path)
    }

    /// Removes a directory with everything in it, or a file. Follows no symbolic link at the end,
    /// nor one that takes the place of a directory meanwhile.
    ///
    /// # Errors
    /// [`Error::Busy`] for the root, [`Error::Invalid`] and [`Error::NotEmpty`] for "." and "..",
    /// [`Error::NotDir`] for a symbolic link with a slash behind it: nothing is removed. The first
    /// that any of the removals gives; what was removed stays removed.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        // Not by `At::node`, which follows a link that has a slash behind it.
        let place = self.at().place(bytes(&path)).or_cannot("remove", &path)?;
        let node = place.dir.lookup(&place.name).or_cannot("remove", &path)?;
        if !node.is_dir() {
            return self.remove_file(path);
        }
        // Of "." and "..", the removal below fails.
        if !is_dots(&place.name) {
            Dir { node }.remove_content()?;
        }
        self.remove_dir(path)
    }

    /// Renames, and replaces a file or an empty directory at `to`.
    ///
    /// # Errors
    /// The errors of rename(2): [`Error::NotFound`]; [`Error::IsDir`], [`Error::NotDir`] or
    /// [`Error::NotEmpty`] for what is at `to`; [`Error::Invalid`] for a directory below itself.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// volume.write("/config.new", b"new")?;
    /// volume.write("/config", b"old")?;
    /// volume.rename("/config.new", "/config")?; // at no moment is /config gone
    /// assert_eq!(volume.read("/config")?, b"new");
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_with(from, to, RenameFlags::Replace)
    }

    /// Renames; `flags` say what happens to a file or directory at `to`.
    ///
    /// # Errors
    /// The errors of renameat2(2).
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// use lanefs::RenameFlags;
    /// volume.write("/new", b"new")?;
    /// volume.write("/current", b"old")?;
    /// volume.rename_with("/new", "/current", RenameFlags::Exchange)?;
    /// assert_eq!(volume.read("/current")?, b"new");
    /// assert!(volume.rename_with("/new", "/current", RenameFlags::NoReplace).is_err());
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn rename_with(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.at().rename(from, self.at(), to, flags)
    }

    /// Gives the inode at `from` another name. A symbolic link is linked itself.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] for a directory, [`Error::Exists`], [`Error::TooManyLinks`].
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// volume.write("/one", b"same")?;
    /// volume.hard_link("/one", "/two")?;
    /// assert_eq!(volume.metadata("/two")?.nlink(), 2);
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn hard_link(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.at().hard_link(from, self.at(), to)
    }

    /// Gives an open file the name `to`. The file may have been made without a name by
    /// [`Dir::create_nameless`], but must not have lost its last one.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::TooManyLinks`]; [`Error::OtherVolume`]; [`Error::NotFound`] for
    /// a file that was removed.
    pub fn link_file(&self, file: &File, to: impl AsRef<Path>) -> Result<()> {
        self.at().link_file(file, to)
    }

    /// Makes a symbolic link at `path` to `target`.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NameTooLong`], [`Error::NoSpace`].
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// volume.write("/target", b"there")?;
    /// volume.symlink("target", "/link")?;
    /// assert_eq!(volume.read("/link")?, b"there");
    /// assert_eq!(volume.read_link("/link")?.to_str(), Some("target"));
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn symlink(&self, target: impl AsRef<OsStr>, path: impl AsRef<Path>) -> Result<()> {
        self.at().symlink(target, path)
    }

    /// Makes a device file, fifo, socket or empty file.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NoSpace`]; [`Error::Invalid`] for another type, or a
    /// device number that no inode can hold.
    pub fn mknod(
        &self,
        path: impl AsRef<Path>,
        file_type: FileType,
        device: DeviceNumber,
        attr: NewAttr,
    ) -> Result<()> {
        self.at().mknod(path, file_type, device, attr)
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is none.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        self.at().read_link(path)
    }

    /// Sets mode, owner or times; `at_end` says whether a symbolic link at the end is followed.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotPermitted`].
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// use lanefs::{AtSymlink, SetAttr, SetTime, Timestamp};
    /// volume.write("/file", b"")?;
    /// let set = SetAttr {
    ///     permissions: Some(0o600),
    ///     uid: Some(1000),
    ///     mtime: Some(SetTime::At(Timestamp { sec: 1, nsec: 5 })),
    ///     ..SetAttr::default()
    /// };
    /// volume.set_attr("/file", &set, AtSymlink::Follow)?;
    /// assert_eq!(volume.metadata("/file")?.uid(), 1000);
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn set_attr(&self, path: impl AsRef<Path>, set: &SetAttr, at_end: AtSymlink) -> Result<()> {
        self.at().set_attr(path, set, at_end)
    }
}
