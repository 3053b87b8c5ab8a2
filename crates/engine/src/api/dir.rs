//! An open directory: operations on names in it, without looking up its path each time.

use super::{File, Metadata, Node};
use crate::error::{Corrupt, Error, OrCannot, Result};
use crate::fs::inode::InodeRef;
use crate::fs::namei::{NewAttr, NewKind, RenameFlags, SetAttr, link_found};
use crate::store::dir::ListedEntry;
use lanefs_device::os_name::{OsStrExt, OsStringExt};
use lanefs_format::{DeviceNumber, FileType};
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::path::PathBuf;

/// An open directory of a volume. A clone shares the inode and costs one reference count.
///
/// Its methods take single names and follow no symbolic link at them. It stays the same directory
/// when it is renamed. [`at`](Self::at) takes paths that begin here.
///
/// # Examples
/// ```
/// # let volume = lanefs::Volume::in_memory(16 << 20)?;
/// use lanefs::NewAttr;
///
/// let attr = NewAttr { permissions: 0o755, uid: 1000, gid: 1000 };
/// let home = volume.open_dir("/")?.create_dir("home", attr)?;
/// home.create_new_file("notes", attr)?.write_at(b"buy milk", 0)?;
/// volume.rename("/home", "/users")?;
/// assert_eq!(home.symlink_metadata("notes")?.len(), 8);
/// home.remove_file("notes")?;
/// # Ok::<(), lanefs::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Dir {
    pub(super) node: InodeRef,
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The name.
    pub name: OsString,
    /// The inode that it leads to.
    pub ino: u32,
    /// The inode's type, if the directory notes types.
    pub file_type: Option<FileType>,
    /// The cookie with which a listing goes on behind this entry.
    pub cookie: u64,
}

/// A name in a directory that is being listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirEntryRef<'a> {
    /// The name.
    pub name: &'a OsStr,
    /// The inode that it leads to.
    pub ino: u32,
    /// The inode's type, if the directory notes types.
    pub file_type: Option<FileType>,
    /// The cookie with which a listing goes on behind this entry.
    pub cookie: u64,
}

impl<'a> From<ListedEntry<'a>> for DirEntryRef<'a> {
    fn from(entry: ListedEntry<'a>) -> Self {
        let name = OsStr::from_bytes(entry.name);
        Self { name, ino: entry.ino, file_type: entry.file_type, cookie: entry.cookie }
    }
}

impl Dir {
    /// Returns the inode of the directory itself, to look at it or to change it.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// use lanefs::SetAttr;
    /// let root = volume.open_dir("/")?;
    /// root.node().set_attr(&SetAttr { uid: Some(1000), ..SetAttr::default() })?;
    /// assert_eq!(root.metadata().uid(), 1000);
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn node(&self) -> Node {
        Node { node: self.node.clone() }
    }

    /// Returns the inode of `name`, of any type; does not follow a symbolic link.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NameTooLong`]; those of a damaged volume.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// volume.symlink("/target", "/link")?;
    /// let link = volume.open_dir("/")?.lookup("link")?;
    /// assert!(link.metadata().is_symlink());
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn lookup(&self, name: impl AsRef<OsStr>) -> Result<Node> {
        Ok(Node { node: self.find(name.as_ref()).or_cannot("look up", name.as_ref())? })
    }

    /// Returns the attributes of the directory itself.
    pub fn metadata(&self) -> Metadata {
        Metadata::of(&self.node)
    }

    /// Sets mode, owner or times of the directory itself.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::NotPermitted`].
    pub fn set_attr(&self, set: &SetAttr) -> Result<()> {
        self.node.set_attr(set)
    }

    /// Returns the attributes of `name`; does not follow a symbolic link.
    ///
    /// # Errors
    /// [`Error::NotFound`] and those of a damaged volume.
    pub fn symlink_metadata(&self, name: impl AsRef<OsStr>) -> Result<Metadata> {
        let node = self.find(name.as_ref()).or_cannot("read the attributes of", name.as_ref())?;
        Ok(Metadata::of(&node))
    }

    /// Opens the subdirectory `name`.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDir`].
    pub fn open_dir(&self, name: impl AsRef<OsStr>) -> Result<Dir> {
        let find = || {
            let node = self.find(name.as_ref())?;
            node.check_dir()?;
            Ok(Dir { node })
        };
        find().or_cannot("open directory", name.as_ref())
    }

    /// Opens the file `name` for reading; does not follow a symbolic link.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsDir`], [`Error::Loop`] for a symbolic link,
    /// [`Error::Invalid`] for a device, fifo or socket; those of a damaged volume.
    pub fn open_file(&self, name: impl AsRef<OsStr>) -> Result<File> {
        let _timer = self.node.fs.counters.open.start();
        let opened = self.find(name.as_ref()).and_then(|node| File::of_node(node, false));
        opened.or_cannot("open", name.as_ref())
    }

    /// Returns the target of the symbolic link `name`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is none.
    pub fn read_link(&self, name: impl AsRef<OsStr>) -> Result<PathBuf> {
        let read = || self.find(name.as_ref())?.read_link();
        Ok(OsString::from_vec(read().or_cannot("read symbolic link", name.as_ref())?).into())
    }

    /// Makes a new, empty file, and opens it for reading and writing. Fails if the name exists, as
    /// [`std::fs::File::create_new`] does. [`at`](Self::at) has
    /// [`open_options`](crate::At::open_options) for all other ways to open a file.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NameTooLong`], [`Error::NotFound`] for a directory that was
    /// removed, [`Error::NoSpace`], [`Error::ReadOnly`], [`Error::NotPermitted`] for an immutable
    /// directory; the journal's or the device's.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// use lanefs::{Error, NewAttr};
    /// let attr = NewAttr { permissions: 0o600, uid: 0, gid: 0 };
    /// let dir = volume.open_dir("/")?;
    /// dir.create_new_file("lock", attr)?;
    /// let again = dir.create_new_file("lock", attr);
    /// assert!(matches!(again.unwrap_err().kind(), Error::Exists));
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn create_new_file(&self, name: impl AsRef<OsStr>, attr: NewAttr) -> Result<File> {
        let _timer = self.node.fs.counters.open.start();
        let made = self.create(name.as_ref(), NewKind::File, attr);
        made.and_then(|node| File::of_node(node, true)).or_cannot("create", name.as_ref())
    }

    /// Makes a new, empty directory.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NameTooLong`], [`Error::NotFound`] for a directory that was
    /// removed, [`Error::TooManyLinks`], [`Error::NoSpace`], [`Error::ReadOnly`],
    /// [`Error::NotPermitted`] for an immutable directory; the journal's or the device's.
    pub fn create_dir(&self, name: impl AsRef<OsStr>, attr: NewAttr) -> Result<Dir> {
        let made = self.create(name.as_ref(), NewKind::Dir, attr);
        Ok(Dir { node: made.or_cannot("create directory", name.as_ref())? })
    }

    /// Makes a symbolic link to `target`.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NameTooLong`] for name or target, [`Error::NotFound`] for a
    /// directory that was removed, [`Error::NoSpace`], [`Error::ReadOnly`],
    /// [`Error::NotPermitted`] for an immutable directory; the journal's or the device's.
    pub fn symlink(
        &self,
        target: impl AsRef<OsStr>,
        name: impl AsRef<OsStr>,
        attr: NewAttr,
    ) -> Result<Metadata> {
        let kind = NewKind::Symlink(target.as_ref().as_bytes());
        let made = self.create(name.as_ref(), kind, attr);
        Ok(Metadata::of(&*made.or_cannot("create symbolic link", name.as_ref())?))
    }

    /// Makes a device file, fifo or socket.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another type, or a device number that no inode can hold;
    /// [`Error::Exists`], [`Error::NameTooLong`], [`Error::NotFound`] for a directory that was
    /// removed, [`Error::NoSpace`], [`Error::ReadOnly`], [`Error::NotPermitted`] for an immutable
    /// directory; the journal's or the device's.
    pub fn mknod(
        &self,
        name: impl AsRef<OsStr>,
        file_type: FileType,
        device: DeviceNumber,
        attr: NewAttr,
    ) -> Result<Metadata> {
        let name = name.as_ref();
        let made = special(&self.node, name.as_bytes(), (file_type, device), attr);
        Ok(Metadata::of(&*made.or_cannot("create", name)?))
    }

    /// Gives the inode that `from` names here the name `to` in `dir` too.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] for a directory, [`Error::Exists`], [`Error::TooManyLinks`].
    pub fn hard_link(&self, from: impl AsRef<OsStr>, dir: &Dir, to: impl AsRef<OsStr>) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        link_found(|| self.find(from), |node| node.link(&dir.node, to.as_bytes()))
            .or_cannot_to("link", from, to)
    }

    /// Makes a file without a name (O_TMPFILE). It is deleted with its last user, unless
    /// [`link_file`](Self::link_file) gives it a name.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub fn create_nameless(&self, attr: NewAttr) -> Result<File> {
        File::of_node(self.node.create_nameless(attr)?, true)
    }

    /// Gives an open file the name `name` here.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::TooManyLinks`]; [`Error::OtherVolume`]; [`Error::NotFound`] for
    /// a file that was removed.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// use lanefs::NewAttr;
    /// let root = volume.open_dir("/")?;
    /// let file = root.create_nameless(NewAttr { permissions: 0o644, uid: 0, gid: 0 })?;
    /// file.write_at(b"whole", 0)?;
    /// root.link_file(&file, "report")?; // no reader has seen a part of it
    /// assert_eq!(volume.read("/report")?, b"whole");
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn link_file(&self, file: &File, name: impl AsRef<OsStr>) -> Result<()> {
        let linked = file.inode().link(&self.node, name.as_ref().as_bytes());
        linked.or_cannot("create link", name.as_ref())
    }

    /// Removes the name of anything but a directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsDir`].
    pub fn remove_file(&self, name: impl AsRef<OsStr>) -> Result<()> {
        self.node.unlink(name.as_ref().as_bytes()).map(drop).or_cannot("remove", name.as_ref())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDir`], [`Error::NotEmpty`].
    pub fn remove_dir(&self, name: impl AsRef<OsStr>) -> Result<()> {
        self.node.rmdir(name.as_ref().as_bytes()).map(drop).or_cannot("remove directory", name.as_ref())
    }

    /// Removes everything in the directory.
    pub(super) fn remove_content(&self) -> Result<()> {
        // Depth first, without recursion or paths: a tree may be deeper than the stack, and its
        // paths longer than one can be.
        let mut stack = vec![(OsString::new(), self.clone(), self.remove_files()?)];
        let mut above = HashSet::from([self.node.ino]);
        while let Some((_, dir, subdirs)) = stack.last_mut() {
            if let Some(name) = subdirs.pop() {
                let subdir = dir.open_dir(&name)?;
                let ino = subdir.node.ino;
                if !above.insert(ino) {
                    let rule = "lies below itself";
                    return Err(Error::from(Corrupt::SpecialInode { ino, role: "directory", rule }));
                }
                let below = subdir.remove_files()?;
                stack.push((name, subdir, below));
            } else if let (Some((name, dir, _)), Some((_, parent, _))) = (stack.pop(), stack.last()) {
                above.remove(&dir.node.ino);
                parent.remove_dir(name)?;
            }
        }
        Ok(())
    }

    /// Removes all names but those of subdirectories, which it returns.
    fn remove_files(&self) -> Result<Vec<OsString>> {
        let mut subdirs = Vec::new();
        for DirEntry { name, .. } in self.read_dir()? {
            if self.symlink_metadata(&name)?.is_dir() {
                subdirs.push(name);
            } else {
                self.remove_file(&name)?;
            }
        }
        Ok(subdirs)
    }

    /// Renames `name` in this directory to `new` in `dir`; `flags` say what happens to a file or
    /// directory of that name.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Exists`] or [`Error::NotEmpty`] for what is at `new`;
    /// [`Error::OtherVolume`]; otherwise the errors of renameat2(2).
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// use lanefs::RenameFlags;
    /// volume.create_dir("/done")?;
    /// volume.write("/job", b"")?;
    /// let (jobs, done) = (volume.open_dir("/")?, volume.open_dir("/done")?);
    /// jobs.rename("job", &done, "job-1", RenameFlags::NoReplace)?;
    /// assert!(volume.exists("/done/job-1")?);
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn rename(
        &self,
        name: impl AsRef<OsStr>,
        dir: &Dir,
        new: impl AsRef<OsStr>,
        flags: RenameFlags,
    ) -> Result<()> {
        let (name, new) = (name.as_ref(), new.as_ref());
        let renamed = self.node.rename(name.as_bytes(), &dir.node, new.as_bytes(), flags);
        renamed.map(drop).or_cannot_to("rename", name, new)
    }

    /// Returns all entries but "." and "..", in the order of the directory.
    ///
    /// # Errors
    /// The errors of a damaged directory.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// for entry in volume.open_dir("/")?.read_dir()? {
    ///     println!("{:8} {}", entry.ino, entry.name.display());
    /// }
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn read_dir(&self) -> Result<Vec<DirEntry>> {
        let mut all = Vec::new();
        self.read_dir_from(0, |e| {
            if e.name != "." && e.name != ".." {
                all.push(DirEntry {
                    name: e.name.to_owned(),
                    ino: e.ino,
                    file_type: e.file_type,
                    cookie: e.cookie,
                });
            }
            ControlFlow::Continue(())
        })?;
        Ok(all)
    }

    /// Calls `each` for the entries behind `cookie`, with "." and "..", until it breaks. Cookie 0
    /// is the start. An entry that another thread makes or removes meanwhile may or may not be
    /// seen; every other is seen once. The directory is locked: `each` must not use the volume.
    ///
    /// # Errors
    /// The errors of a damaged directory.
    pub fn read_dir_from(
        &self,
        cookie: u64,
        mut each: impl FnMut(DirEntryRef<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.node.read_dir(cookie, &mut |entry| each(entry.into()))
    }

    fn find(&self, name: &OsStr) -> Result<InodeRef> {
        self.node.lookup(name.as_bytes())
    }

    fn create(&self, name: &OsStr, kind: NewKind<'_>, attr: NewAttr) -> Result<InodeRef> {
        self.node.create(name.as_bytes(), kind, attr)
    }
}

/// Makes what mknod(2) makes: a device file, fifo, socket or empty file.
pub(super) fn special(
    dir: &InodeRef,
    name: &[u8],
    (file_type, device): (FileType, DeviceNumber),
    attr: NewAttr,
) -> Result<InodeRef> {
    let kind = match file_type {
        FileType::Regular => NewKind::File,
        _ => NewKind::Special { file_type, device },
    };
    dir.create(name, kind, attr)
}

#[cfg(test)]
mod tests {
    use crate::{DeviceNumber, Error, FileType, NewAttr, NewKind, RenameFlags, Volume};

    const ATTR: NewAttr = NewAttr { permissions: 0o755, uid: 0, gid: 0 };

    /// The path to its end is longer than a path can be.
    #[test]
    fn a_deep_tree_is_removed() {
        let volume = Volume::in_memory(16 << 20).unwrap();
        volume.create_dir("/top").unwrap();
        volume.write("/kept", b"").unwrap();
        let mut dir = volume.open_dir("/top").unwrap();
        for _ in 0..300 {
            dir.create_new_file("file", ATTR).unwrap();
            dir.symlink("/", "link", ATTR).unwrap();
            dir = dir.create_dir("a name of twenty-one.", ATTR).unwrap();
        }
        drop(dir);
        volume.remove_dir_all("/top").unwrap();
        assert!(volume.exists("/kept").unwrap() && !volume.exists("/top").unwrap());
    }

    /// A slash behind the name of a link does not lead to what it names.
    #[test]
    fn a_removal_of_all_does_not_follow_a_link() {
        let volume = Volume::in_memory(16 << 20).unwrap();
        volume.create_dir("/data").unwrap();
        volume.write("/data/kept", b"").unwrap();
        volume.symlink("/data", "/link").unwrap();
        volume.create_dir("/data/x").unwrap();
        let cases = [
            ("/link/", Error::NotDir),
            ("/", Error::Busy),
            ("/nothing/", Error::NotFound),
            ("/.", Error::Invalid("")),
            ("/data/.", Error::Invalid("")),
            ("/..", Error::NotEmpty),
            ("/data/x/..", Error::NotEmpty),
        ];
        for (path, wanted) in cases {
            let refused = volume.remove_dir_all(path).unwrap_err();
            assert_eq!(refused.errno(), wanted.errno(), "{path}: {refused}");
        }
        assert!(volume.exists("/data/kept").unwrap());
        volume.remove_dir_all("/link").unwrap();
        volume.remove_dir_all("/data/").unwrap();
        assert!(!volume.exists("/link").unwrap() && !volume.exists("/data").unwrap());
    }

    #[test]
    fn only_what_mknod_makes_is_made_by_a_number() {
        let root = Volume::in_memory(16 << 20).unwrap().root_node().unwrap();
        let none = DeviceNumber { major: 0, minor: 0 };
        let refused = [
            (FileType::Directory, none),
            (FileType::Symlink, none),
            (FileType::Regular, none),
            (FileType::CharDevice, DeviceNumber { major: 0x1001, minor: 0 }),
            (FileType::BlockDevice, DeviceNumber { major: 0, minor: 1 << 20 }),
        ];
        for (file_type, device) in refused {
            let made = root.create("made", NewKind::Special { file_type, device }, ATTR, 0);
            assert!(matches!(made, Err(Error::Invalid(_))), "{file_type:?}");
        }
        root.create("old", NewKind::File, ATTR, 0).unwrap();
        let flags = RenameFlags::Whiteout { replace: true, uid: u32::MAX, gid: 0 };
        assert!(matches!(root.rename("old", &root, "new", flags), Err(Error::Invalid(_))));
        assert!(root.lookup("old").is_ok() && root.lookup("made").is_err());
    }

    #[test]
    fn a_removed_directory_gets_no_file_without_a_name() {
        let volume = Volume::in_memory(16 << 20).unwrap();
        volume.create_dir("/gone").unwrap();
        let dir = volume.open_dir("/gone").unwrap();
        volume.remove_dir("/gone").unwrap();
        assert!(matches!(dir.create_nameless(ATTR), Err(Error::NotFound)));
        let opened = volume.open_options().write(true).open_nameless(&dir);
        assert!(opened.is_err_and(|e| matches!(e.kind(), Error::NotFound)));
    }
}
