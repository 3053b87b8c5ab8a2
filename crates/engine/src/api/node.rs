//! One inode in use, of any type: the interface for adapters that know inodes and not paths.
//!
//! A [`Node`] keeps its inode: when the inode has no name any more, it is deleted with the last
//! `Node`, [`File`] or [`Dir`](super::Dir) of it. Permissions are not checked here: the adapter
//! checks which user may do what.

use super::{DirEntryRef, File, Metadata, Volume};
use crate::error::{Corrupt, Error, Result};
use crate::fs::inode::InodeRef;
use crate::fs::namei::Atime;
use crate::fs::namei::{Modifier, NewAttr, NewKind, RenameFlags, SetAttr};
use lanefs_device::os_name::{OsStrExt, OsStringExt};
use lanefs_format::{FileType, InodeFlags, S_ISGID};
use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::path::PathBuf;

/// An inode in use. A clone shares the inode and costs one reference count.
///
/// # Examples
/// ```
/// # let volume = lanefs::Volume::in_memory(16 << 20)?;
/// use lanefs::{NewAttr, NewKind};
/// let root = volume.root_node()?;
/// let attr = NewAttr { permissions: 0o666, uid: 0, gid: 0 };
/// let file = root.create("file", NewKind::File, attr, 0o022)?;
/// assert_eq!(file.metadata().permissions(), 0o644);
/// root.remove_file("file")?;
/// file.open()?.write_at(b"still there", 0)?; // until the last handle is dropped
/// # Ok::<(), lanefs::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Node {
    pub(super) node: InodeRef,
}

impl Volume {
    /// Returns the root directory.
    ///
    /// # Errors
    /// The errors of a damaged volume.
    pub fn root_node(&self) -> Result<Node> {
        Ok(Node { node: self.fs.root()? })
    }

    /// Returns the inode of this number.
    ///
    /// # Errors
    /// [`Error::Stale`] for an inode that is free, or that has neither a name nor a user; those of
    /// a damaged inode.
    pub fn node_at(&self, ino: u32) -> Result<Node> {
        // A file handle that was never given out is not a sign of damage.
        self.fs.check_named(ino).map_err(|_| Error::Stale(ino))?;
        match self.fs.inode(ino) {
            Err(Error::Corrupt(Corrupt::DeadInode { ino })) => Err(Error::Stale(ino)),
            node => Ok(Node { node: node? }),
        }
    }
}

impl Node {
    /// Returns the inode's number.
    pub fn ino(&self) -> u32 {
        self.node.ino
    }

    /// Returns i_generation, which tells an inode from an earlier one of the same number.
    pub fn generation(&self) -> u32 {
        self.node.state().generation
    }

    /// Returns whether the inode has a name for certain. Never waits: `false` also while a thread
    /// changes the inode.
    pub fn is_named(&self) -> bool {
        !self.node.is_nameless()
    }

    /// Returns the type of the inode.
    ///
    /// # Errors
    /// A mode that holds no type.
    pub fn file_type(&self) -> Result<FileType> {
        Ok(self.node.state().file_type()?)
    }

    /// Returns i_flags, as chattr(1) shows them.
    pub fn flags(&self) -> InodeFlags {
        self.node.flags()
    }

    /// Returns the attributes of the inode.
    pub fn metadata(&self) -> Metadata {
        Metadata::of(&self.node)
    }

    /// Returns the inode of the entry `name` in this directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDir`].
    pub fn lookup(&self, name: impl AsRef<OsStr>) -> Result<Node> {
        Ok(Node { node: self.node.lookup(name.as_ref().as_bytes())? })
    }

    /// Makes an inode with the name `name` in this directory. `umask` counts where the directory
    /// has no default ACL.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NotDir`], [`Error::NameTooLong`], [`Error::NotFound`] for a
    /// directory that was removed, [`Error::NoSpace`], [`Error::TooManyLinks`],
    /// [`Error::ReadOnly`], [`Error::NotPermitted`] for an immutable directory; the journal's or
    /// the device's.
    pub fn create(
        &self,
        name: impl AsRef<OsStr>,
        kind: NewKind<'_>,
        attr: NewAttr,
        umask: u16,
    ) -> Result<Node> {
        let attr = self.masked(attr, umask)?;
        Ok(Node { node: self.node.create(name.as_ref().as_bytes(), kind, attr)? })
    }

    /// Makes a file without a name (O_TMPFILE), as a child of this directory would be.
    ///
    /// # Errors
    /// [`Error::NotDir`], [`Error::NotFound`] for a directory that was removed, [`Error::NoSpace`],
    /// [`Error::ReadOnly`]; the journal's or the device's.
    pub fn create_nameless(&self, attr: NewAttr, umask: u16) -> Result<Node> {
        self.node.check_alive()?;
        let attr = self.masked(attr, umask)?;
        Ok(Node { node: self.node.create_nameless(attr)? })
    }

    fn masked(&self, mut attr: NewAttr, umask: u16) -> Result<NewAttr> {
        // Looked up only when a name is made: most directories have no attributes.
        if !self.has_default_acl()? {
            attr.permissions &= !umask;
        }
        Ok(attr)
    }

    fn has_default_acl(&self) -> Result<bool> {
        self.has_xattr(b"system.posix_acl_default")
    }

    fn has_xattr(&self, name: &[u8]) -> Result<bool> {
        match self.node.xattr(name) {
            Ok(_) => Ok(true),
            Err(Error::NoData | Error::NotSupported(_)) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Gives the inode `file`, of any type but a directory, the name `name` in this directory.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] for a directory, [`Error::Exists`], [`Error::TooManyLinks`];
    /// [`Error::NotFound`] for an inode that was removed.
    pub fn link_file(&self, file: &Node, name: impl AsRef<OsStr>) -> Result<()> {
        file.node.link(&self.node, name.as_ref().as_bytes())
    }

    /// Removes the name of something that is no directory. Returns its inode: without another name
    /// it goes with the last `Node` of it.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsDir`].
    pub fn remove_file(&self, name: impl AsRef<OsStr>) -> Result<Node> {
        Ok(Node { node: self.node.unlink(name.as_ref().as_bytes())? })
    }

    /// Removes an empty directory. Returns its inode, which goes with the last `Node` of it.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDir`], [`Error::NotEmpty`].
    pub fn remove_dir(&self, name: impl AsRef<OsStr>) -> Result<Node> {
        Ok(Node { node: self.node.rmdir(name.as_ref().as_bytes())? })
    }

    /// Renames `name` in this directory to `new` in `dir`. Returns the inode whose name was taken:
    /// without another name it goes with the last `Node` of it.
    ///
    /// # Errors
    /// The errors of renameat2(2).
    pub fn rename(
        &self,
        name: impl AsRef<OsStr>,
        dir: &Node,
        new: impl AsRef<OsStr>,
        flags: RenameFlags,
    ) -> Result<Option<Node>> {
        let replaced =
            self.node.rename(name.as_ref().as_bytes(), &dir.node, new.as_ref().as_bytes(), flags)?;
        Ok(replaced.map(|node| Node { node }))
    }

    /// Calls `each` for the entries behind `cookie`, as
    /// [`Dir::read_dir_from`](super::Dir::read_dir_from) does.
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

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is none.
    pub fn read_link(&self) -> Result<PathBuf> {
        Ok(PathBuf::from(OsString::from_vec(self.node.read_link()?)))
    }

    /// Sets attributes.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::NotPermitted`].
    pub fn set_attr(&self, set: &SetAttr) -> Result<()> {
        self.node.set_attr(set)
    }

    /// Cuts or extends a file to `len` bytes.
    ///
    /// # Errors
    /// [`Error::IsDir`], [`Error::Invalid`] for what is no file, [`Error::FileTooBig`],
    /// [`Error::NotPermitted`] for an immutable or append-only file or one with a hash tree,
    /// [`Error::TextBusy`] while it gets one, [`Error::ReadOnly`]; the journal's or the device's.
    pub fn set_len(&self, len: u64) -> Result<()> {
        match self.file_type()? {
            FileType::Regular => self.node.content().truncate(len),
            FileType::Directory => Err(Error::IsDir),
            _ => Err(Error::Invalid("only a file has a length to set")),
        }
    }

    /// Drops the privileges that a change of the content by `by` takes away: file capabilities,
    /// set-user-id and set-group-id. Writes nothing where there are none.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], the journal's; those of damaged attributes.
    pub fn drop_privileges(&self, by: Modifier) -> Result<()> {
        let takes = by.takes_with_content(self.node.state().mode);
        if takes == 0 && !self.has_xattr(crate::fs::namei::CAPABILITY)? {
            return Ok(());
        }
        self.node.drop_privileges(by)
    }

    /// Clears set-group-id.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::NotPermitted`].
    pub fn drop_set_group_id(&self) -> Result<()> {
        let permissions = self.node.state().mode & 0o7777;
        if permissions & S_ISGID == 0 {
            return Ok(());
        }
        self.set_attr(&SetAttr { permissions: Some(permissions & !S_ISGID), ..SetAttr::default() })
    }

    /// Sets the flags that chattr(1) sets: those that a user may change are replaced by their
    /// values in `flags`.
    ///
    /// # Errors
    /// [`Error::NotSupported`] where another flag would have to change; [`Error::NotPermitted`] for
    /// another flag of an inode that was immutable and stays so.
    pub fn set_flags(&self, flags: InodeFlags) -> Result<()> {
        self.set_file_attr(Some(flags), None)
    }

    /// Sets flags as [`set_flags`](Self::set_flags) does and the project (i_projid), both or
    /// neither; `None` leaves either.
    ///
    /// # Errors
    /// The errors of [`set_flags`](Self::set_flags); [`Error::NotSupported`] on a volume without
    /// projects, unless the project stays the same.
    pub fn set_file_attr(&self, flags: Option<InodeFlags>, project: Option<u32>) -> Result<()> {
        self.node.set_file_attr(flags, project)
    }

    /// Opens a file, for writing too unless the volume is read-only or a hash tree fixes the
    /// content.
    ///
    /// # Errors
    /// [`Error::IsDir`], [`Error::Loop`], [`Error::Invalid`] for a device, fifo or socket.
    pub fn open(&self) -> Result<File> {
        let _timer = self.node.fs.counters.open.start();
        File::of_node_as_may(self.node.clone())
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// [`Error::IsDir`], [`Error::Loop`], [`Error::Invalid`] for a device, fifo or socket.
    pub fn open_to_read(&self) -> Result<File> {
        let _timer = self.node.fs.counters.open.start();
        File::of_node(self.node.clone(), false)
    }

    /// Opens a file for reading and writing.
    ///
    /// # Errors
    /// [`Error::IsDir`], [`Error::Loop`], [`Error::Invalid`] for a device, fifo or socket;
    /// [`Error::NotPermitted`] for a file with a hash tree, [`Error::TextBusy`] for one that gets
    /// it.
    pub fn open_to_write(&self) -> Result<File> {
        let _timer = self.node.fs.counters.open.start();
        File::of_node(self.node.clone(), true)
    }

    /// Notes that the inode was read: moves the time of the last read, if `atime` says so.
    ///
    /// # Errors
    /// The journal's.
    pub fn accessed(&self, atime: Atime) -> Result<()> {
        self.node.accessed(atime)
    }

    /// Returns whether [`accessed`](Self::accessed) would move the time of the last read now.
    pub fn is_atime_due(&self, atime: Atime) -> bool {
        self.node.is_atime_due(atime, self.node.fs.now())
    }

    /// Makes a directory, link or special file durable with all its attributes, or a file with its
    /// content.
    ///
    /// # Errors
    /// The journal's or the device's.
    pub fn sync_all(&self) -> Result<()> {
        self.node.sync_all()
    }
}
