//! An open file.

use super::path::{self, AtSymlink};
use super::{At, Dir, Mapped, Metadata};
use crate::error::{Error, Result};
use crate::fs::data::{FallocMode, FiemapExtent};
use crate::fs::inode::NodeRef;
use crate::fs::namei::{NewAttr, NewKind, SetAttr, is_dots};
use crate::store::xattr::SetXattr;
use lanefs_device::os_name::OsStrExt;
use lanefs_format::{FileType, InodeFlags};
use lanefs_sync::atomic::{AtomicU32, Ordering};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// An open file of a volume. Many threads may call it at once: a read sees all of a write or none
/// of it.
#[derive(Debug, Clone)]
pub struct File {
    node: NodeRef,
    read: bool,
    write: bool,
    pub(super) append: bool,
    pub(super) direct: bool,
    /// What each write makes durable before it returns.
    sync: Sync,
    handle: Arc<Handle>,
}

/// What all clones of a [`File`] share.
#[derive(Debug)]
struct Handle {
    /// The count of the file's writeback failures up to which this handle has reported them.
    told: AtomicU32,
    /// The file, whose writers this handle is one of.
    writes: Option<NodeRef>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(node) = &self.writes {
            node.file().remove_writer();
        }
    }
}

/// The value of `told` once this handle has also reported the failure that ended all writing.
const ALL_TOLD: u32 = u32::MAX;

/// What a write makes durable before it returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sync {
    Nothing,
    Data,
    All,
}

impl File {
    /// Opens the file of `node` for reading, and for writing if `write`.
    pub(super) fn of_node(node: NodeRef, write: bool) -> Result<Self> {
        match node.state().file_type()? {
            FileType::Regular => {}
            FileType::Directory => return Err(Error::IsDir),
            FileType::Symlink => return Err(Error::Loop),
            _ => return Err(Error::Invalid("a device, fifo or socket has no content")),
        }
        let mut handle = Handle { told: AtomicU32::new(node.file().failures()), writes: None };
        if write {
            node.file().add_writer()?;
            handle.writes = Some(node.clone());
            // Counted first: a tree is set only while nobody is.
            node.check_no_verity()?;
        }
        let handle = Arc::new(handle);
        Ok(Self { node, read: true, write, append: false, direct: false, sync: Sync::Nothing, handle })
    }

    /// Opens the file of `node` for reading, and for writing unless the volume is read-only or a
    /// hash tree fixes the content.
    pub(super) fn of_node_as_may(node: NodeRef) -> Result<Self> {
        let write = !node.fs.is_read_only() && !node.flags().contains(InodeFlags::VERITY);
        match Self::of_node(node.clone(), write) {
            Err(Error::TextBusy | Error::NotPermitted(_)) => Self::of_node(node, false),
            opened => opened,
        }
    }

    pub(crate) fn node(&self) -> &NodeRef {
        &self.node
    }

    /// Returns the same open file, past the page cache (O_DIRECT) or through it. The two handles
    /// share their record of reported failures.
    pub fn with_direct(&self, direct: bool) -> File {
        Self { direct, ..self.clone() }
    }

    /// Reads from `offset` on into `buf`. Returns how many bytes there were: fewer than asked for
    /// only at the end of the file, 0 behind it.
    ///
    /// # Errors
    /// [`Error::BadHandle`] if not open for reading; the device's; a damaged block map.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.check_read()?;
        self.node.content().read(buf, offset, self.direct)
    }

    /// Reads as [`read_at`](Self::read_at) does, for a caller with a cache of its own (the kernel,
    /// above a mount). Such a caller seldom reads the same bytes again, so the page cache need not
    /// keep them too.
    ///
    /// # Errors
    /// [`Error::BadHandle`] if not open for reading; the device's; a damaged block map.
    pub fn read_for_cache(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.check_read()?;
        self.node.content().read_for_cache(buf, offset)
    }

    /// Reads as [`read_at`](Self::read_at) does, but without waiting (RWF_NOWAIT): cached bytes,
    /// or, past the page cache, bytes that no writer has locked. Returns how many: 0 only at the
    /// end of the file.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if it had to wait for the first byte; those of `read_at`.
    pub fn try_read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.check_read()?;
        self.node.content().try_read(buf, offset, self.direct)
    }

    /// Returns `len` bytes from `offset` on as a slice, without a copy. Only for a volume on a
    /// device that is memory (`pmem:FILE`).
    ///
    /// Returns `None` on any other device, and if the bytes are not all inside of the file,
    /// written, and contiguous on the volume, and while too many other slices are lent. Use
    /// [`read_at`](Self::read_at) then.
    ///
    /// While the slice lives, a thread that writes these bytes, or cuts the file before their end,
    /// waits. A thread that comes later, even to read, waits behind it if it needs bytes that the
    /// first one waits for. So the thread that has the slice must neither use the file in another
    /// way nor wait for a thread that does.
    ///
    /// # Errors
    /// [`Error::BadHandle`] if not open for reading; a damaged block map.
    pub fn map(&self, offset: u64, len: usize) -> Result<Option<Mapped<'_>>> {
        self.check_read()?;
        Ok(self.node.content().lend(offset, len)?.map(Mapped::new))
    }

    /// Returns the first range at or behind `offset` that is no hole: its start and end. The bytes
    /// behind its end may be no hole either. `None` if only holes follow.
    ///
    /// # Errors
    /// A damaged block map.
    pub fn next_data(&self, offset: u64) -> Result<Option<(u64, u64)>> {
        self.node.content().next_data(offset)
    }

    /// Writes all of `bytes` at `offset`, or at the end if open for appending. The bytes between
    /// the old end and `offset` become a hole.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::FileTooBig`]: a part may have been written.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.write_from(offset, bytes).map(drop)
    }

    /// Writes as [`write_at`](Self::write_at), and returns where.
    pub(super) fn write_from(&self, offset: u64, bytes: &[u8]) -> Result<u64> {
        self.check_write()?;
        let content = self.node.content();
        let at = match self.append {
            true => content.append(bytes, self.direct)?,
            false => content.write(bytes, offset, self.direct).map(|()| offset)?,
        };
        self.after_write()?;
        Ok(at)
    }

    /// Writes bytes that a caller with a cache of its own accepted earlier, when the write was
    /// allowed: flags that the inode got since do not refuse it. The page cache need not keep all
    /// of them. A thread that reads through this library may see a part of the write, and zeros
    /// before it. The file's times do not change: the caller keeps them and sets them with
    /// [`set_attr`](Self::set_attr).
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::FileTooBig`]: a part may have been written. After
    /// [`Error::NoSpace`] the file may be longer than what was written, and reads as zeros there,
    /// until its inode leaves memory.
    pub fn write_late(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.check_write()?;
        self.node.content().write_late(bytes, offset)
    }

    /// Writes as [`write_at`](Self::write_at) does, but without waiting (RWF_NOWAIT): only bytes
    /// whose blocks need neither be loaded nor allocated. Returns how many.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if it had to wait for the first byte; those of `write_at`.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// let file = volume.open_options().read(true).write(true).create(true).open("/a")?;
    /// assert!(matches!(file.try_write_at(b"new", 0), Err(lanefs::Error::WouldBlock)));
    /// file.write_at(b"old", 0)?;
    /// assert_eq!(file.try_write_at(b"new", 0)?, 3);
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn try_write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        self.check_write()?;
        let offset = (!self.append).then_some(offset);
        let done = self.node.content().try_write(bytes, offset, self.direct)?;
        self.after_write()?;
        Ok(done)
    }

    /// Cuts or extends the file to `len` bytes. Bytes that are added read as zeros.
    ///
    /// # Errors
    /// [`Error::FileTooBig`], ...
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// let file = volume.create_file("/sparse")?;
    /// file.set_len(1 << 30)?;
    /// assert_eq!((file.metadata().len(), file.metadata().sectors()), (1 << 30, 0));
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn set_len(&self, len: u64) -> Result<()> {
        self.check_write()?;
        self.node.content().truncate(len)
    }

    /// Changes which blocks hold the `len` bytes from `offset` on: see [`FallocMode`].
    ///
    /// # Errors
    /// [`Error::BadHandle`] if not open for writing; [`Error::NotPermitted`] for an immutable
    /// inode, and for an append-only one unless it is allocation; [`Error::FileTooBig`];
    /// [`Error::NotSupported`] for a file without extents, unless it is a punch; [`Error::Invalid`]
    /// for no bytes, and for a collapse or insertion that is not of whole blocks or not before the
    /// end. [`Error::NoSpace`]: a part may have been done.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// use lanefs::FallocMode;
    /// let file = volume.create_file("/log")?;
    /// file.write_at(&[7; 3 << 20], 0)?;
    /// file.fallocate(FallocMode::PunchHole, 1 << 20, 1 << 20)?;
    /// assert_eq!((file.seek_hole(0)?, file.seek_data(1 << 20)?), (1 << 20, 2 << 20));
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn fallocate(&self, mode: FallocMode, offset: u64, len: u64) -> Result<()> {
        self.check_write()?;
        self.node.content().fallocate(mode, offset, len)?;
        self.after_write()
    }

    /// The first byte at or behind `offset` that is data (SEEK_DATA). Blocks that are allocated
    /// and were never written are holes.
    ///
    /// # Errors
    /// [`Error::NothingThere`] if only holes follow, or the end; a damaged block map.
    pub fn seek_data(&self, offset: u64) -> Result<u64> {
        self.node.content().seek_data(offset)
    }

    /// The first byte at or behind `offset` that is in a hole (SEEK_HOLE): the end of the file at
    /// the latest.
    ///
    /// # Errors
    /// [`Error::NothingThere`] from the end on; a damaged block map.
    pub fn seek_hole(&self, offset: u64) -> Result<u64> {
        self.node.content().seek_hole(offset)
    }

    /// Returns where the blocks that hold any of `bytes` lie, in order (FIEMAP): the first `most`
    /// extents. Writes out dirty pages first.
    ///
    /// A caller that wants more asks again from the end of the last extent on, until one is marked
    /// as the last. A damaged volume can have a billion.
    ///
    /// # Errors
    /// The device's; a damaged block map.
    pub fn fiemap(&self, bytes: Range<u64>, most: usize) -> Result<Vec<FiemapExtent>> {
        self.node.content().fiemap(bytes, most)
    }

    /// Makes the content and all attributes durable.
    ///
    /// # Errors
    /// The journal's or the device's: then none of the latest changes may be durable.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// let file = volume.create_file("/ledger")?;
    /// file.write_at(b"100", 0)?;
    /// file.sync_all()?; // content, size and name are there after any crash
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn sync_all(&self) -> Result<()> {
        self.tell_failures(self.node.sync_all())
    }

    /// Makes the content and the size durable.
    ///
    /// # Errors
    /// As [`sync_all`](Self::sync_all).
    pub fn sync_data(&self) -> Result<()> {
        self.tell_failures(self.node.sync_data())
    }

    /// Returns the attributes of the file.
    pub fn metadata(&self) -> Metadata {
        Metadata::of(&self.node)
    }

    /// Sets mode, owner or times.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::NotPermitted`].
    pub fn set_attr(&self, set: &SetAttr) -> Result<()> {
        self.node.set_attr(set)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// [`Error::XattrsTooLarge`] if it fits nowhere, ...
    pub fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<()> {
        self.node.set_xattr(name, value, SetXattr::Any)
    }

    /// Reports a failure of writeback in the background once through each handle. So it does with a
    /// failure that ended all writing: from then on a sync says that the volume is read-only.
    fn tell_failures(&self, synced: Result<()>) -> Result<()> {
        let fs = &self.node.fs;
        if synced.is_err() && fs.journal.has_ended() && !fs.is_closed() {
            let lost = Error::Lost { ino: self.node.ino };
            return match (self.handle.told.swap(ALL_TOLD, Ordering::AcqRel), synced) {
                (ALL_TOLD, _) => Err(Error::ReadOnly),
                (_, Err(Error::ReadOnly)) => Err(lost),
                (_, synced) => synced,
            };
        }
        let failures = self.node.file().failures();
        let told = |told: u32| (told != ALL_TOLD).then_some(failures);
        let before = self.handle.told.fetch_update(Ordering::AcqRel, Ordering::Acquire, told);
        let untold = before.is_ok_and(|before| before != failures);
        match synced {
            Ok(()) if untold => Err(Error::Lost { ino: self.node.ino }),
            synced => synced,
        }
    }

    /// Returns whether the handle counts as one that writes.
    pub(super) fn counts_as_writer(&self) -> bool {
        self.handle.writes.is_some()
    }

    pub(super) fn appends(&self) -> bool {
        self.append
    }

    pub(super) fn check_read(&self) -> Result<()> {
        if self.read { Ok(()) } else { Err(Error::BadHandle("not open for reading")) }
    }

    pub(super) fn after_write(&self) -> Result<()> {
        match self.sync {
            Sync::Nothing => Ok(()),
            Sync::Data => self.sync_data(),
            Sync::All => self.sync_all(),
        }
    }

    pub(super) fn check_write(&self) -> Result<()> {
        if self.write { self.node.fs.check_writable() } else { Err(Error::BadHandle("not open for writing")) }
    }
}

/// How to open a file, shaped like [`std::fs::OpenOptions`].
#[derive(Debug, Clone)]
pub struct FileOptions<'v> {
    at: At<'v>,
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    at_end: AtSymlink,
    direct: bool,
    sync: Sync,
    attr: NewAttr,
}

impl<'v> FileOptions<'v> {
    pub(super) fn new(at: At<'v>) -> Self {
        let attr = NewAttr { permissions: 0o644, uid: 0, gid: 0 };
        Self {
            at,
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            at_end: AtSymlink::Follow,
            direct: false,
            sync: Sync::Nothing,
            attr,
        }
    }

    /// Opens for reading.
    pub fn read(mut self, yes: bool) -> Self {
        self.read = yes;
        self
    }

    /// Opens for writing.
    pub fn write(mut self, yes: bool) -> Self {
        self.write = yes;
        self
    }

    /// Opens for writing, always at the end.
    pub fn append(mut self, yes: bool) -> Self {
        self.append = yes;
        self.write |= yes;
        self
    }

    /// Cuts the file to nothing.
    pub fn truncate(mut self, yes: bool) -> Self {
        self.truncate = yes;
        self
    }

    /// Makes the file if there is none.
    pub fn create(mut self, yes: bool) -> Self {
        self.create = yes;
        self
    }

    /// Makes the file; one that exists is an error.
    pub fn create_new(mut self, yes: bool) -> Self {
        self.create_new = yes;
        self
    }

    /// Whether a symbolic link at the end of the path is followed: yes, unless said otherwise.
    pub fn follow(mut self, yes: bool) -> Self {
        self.at_end = if yes { AtSymlink::Follow } else { AtSymlink::NoFollow };
        self
    }

    /// Goes past the page cache (O_DIRECT): no, unless said otherwise. Memory and offset may have
    /// any alignment; whole sectors in aligned memory go straight to the device.
    pub fn direct(mut self, yes: bool) -> Self {
        self.direct = yes;
        self
    }

    /// Each write is durable with all attributes before it returns (O_SYNC).
    pub fn sync(mut self, yes: bool) -> Self {
        self.sync = if yes { Sync::All } else { Sync::Nothing };
        self
    }

    /// Each write is durable before it returns (O_DSYNC).
    pub fn dsync(mut self, yes: bool) -> Self {
        self.sync = if yes { Sync::Data } else { Sync::Nothing };
        self
    }

    /// Sets mode and owner of a file that is made: 0644, 0:0 unless said otherwise.
    pub fn attr(mut self, attr: NewAttr) -> Self {
        self.attr = attr;
        self
    }

    /// Opens the file.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Exists`], [`Error::IsDir`], [`Error::ReadOnly`], ...
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        let path = path.as_ref().as_os_str().as_bytes();
        let fs = self.at.fs;
        let _timer = fs.counters.open.start();
        if self.write || self.truncate || self.create || self.create_new {
            fs.check_writable()?;
        }
        let node = self.find_or_make(path)?;
        let file = self.with_access(File::of_node(node, self.write)?);
        if self.truncate {
            file.set_len(0)?;
        }
        Ok(file)
    }

    /// Makes a file without a name in `dir` (O_TMPFILE), and opens it.
    ///
    /// # Errors
    /// As [`Dir::create_nameless`].
    pub fn open_nameless(&self, dir: &Dir) -> Result<File> {
        Ok(self.with_access(dir.create_nameless(self.attr)?))
    }

    fn with_access(&self, file: File) -> File {
        let (read, write, append, direct, sync) =
            (self.read, self.write, self.append, self.direct, self.sync);
        File { read, write, append, direct, sync, ..file }
    }

    fn find_or_make(&self, path: &[u8]) -> Result<NodeRef> {
        let mut base = self.at.base()?;
        if !self.create && !self.create_new {
            return path::resolve(&base, path, self.at_end);
        }
        let is_dir = || if self.create_new { Error::Exists } else { Error::IsDir };
        let mut path = path.to_vec();
        // A link at the end is followed to the place where the file is, or is to be made.
        for _ in 0..=path::MAX_LINKS {
            let look = || path::place(&base, &path);
            let at = match look() {
                Err(Error::Busy) => return Err(is_dir()),
                place => place?,
            };
            if is_dots(&at.name) {
                return Err(is_dir());
            }
            if at.must_be_dir {
                return Err(Error::IsDir);
            }
            match at.dir.lookup(&at.name) {
                Err(Error::NotFound) => match at.dir.create(&at.name, NewKind::File, self.attr) {
                    // Made by another thread meanwhile.
                    Err(Error::Exists) => {}
                    Err(Error::NotFound) if at.is_stale(look)? => {}
                    made => return made,
                },
                Ok(_) if self.create_new => return Err(Error::Exists),
                Ok(node) if self.at_end == AtSymlink::Follow && node.state().is_symlink() => {
                    path = node.read_link()?;
                    base = at.dir;
                }
                found => return found,
            }
        }
        Err(Error::Loop)
    }
}
