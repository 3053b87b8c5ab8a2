//! An open file: reads and writes at offsets, and what makes them durable.

use super::{Mapped, Metadata, Node};
use crate::error::{Error, Result};
use crate::fs::data::{Caching, FallocMode, FiemapExtent, Placement};
use crate::fs::inode::InodeRef;
use crate::fs::namei::SetAttr;
use lanefs_format::{FileType, InodeFlags};
use lanefs_sync::atomic::{AtomicU32, Ordering};
use std::ops::Range;
use std::sync::Arc;

/// An open file of a volume. Many threads may call it at once: a read sees all of a write or none
/// of it.
///
/// [`Volume::open_options`](crate::Volume::open_options) opens one.
/// [`FileCursor`](crate::FileCursor) adds a position. An open file has no path, for it may have
/// been renamed or removed: its errors name the reason alone.
///
/// # Examples
/// ```
/// # let volume = lanefs::Volume::in_memory(16 << 20)?;
/// let file = volume.create_file("/greeting")?;
/// file.write_at(b"hello world", 0)?;
/// let mut word = [0; 5];
/// assert_eq!(file.read_at(&mut word, 6)?, 5);
/// assert_eq!(&word, b"world");
/// # Ok::<(), lanefs::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct File {
    node: InodeRef,
    pub(super) access: Access,
    handle: Arc<Handle>,
}

/// What all clones of a [`File`] share.
#[derive(Debug)]
struct Handle {
    /// The count of the file's writeback failures up to which this handle has reported them.
    reported: AtomicU32,
    /// The file, whose writers this handle is one of.
    writes: Option<InodeRef>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(node) = &self.writes {
            node.file().remove_writer();
        }
    }
}

/// The value of `reported` once this handle has also reported the failure that ended all writing.
const ALL_REPORTED: u32 = u32::MAX;

/// What a handle may do with its file, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) read: bool,
    pub(super) write: bool,
    pub(super) append: bool,
    pub(super) caching: Caching,
    pub(super) durability: WriteDurability,
}

impl Access {
    pub(super) const NONE: Self = Self {
        read: false,
        write: false,
        append: false,
        caching: Caching::Cached,
        durability: WriteDurability::None,
    };
}

/// What each write through a handle makes durable before it returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteDurability {
    /// Nothing: a later sync does.
    None,
    /// The content and the size (O_DSYNC).
    Data,
    /// The content and all attributes (O_SYNC).
    All,
}

impl File {
    /// Opens the file of `node` for reading, and for writing if `write`.
    pub(super) fn of_node(node: InodeRef, write: bool) -> Result<Self> {
        match node.state().file_type()? {
            FileType::Regular => {}
            FileType::Directory => return Err(Error::IsDir),
            FileType::Symlink => return Err(Error::Loop),
            _ => return Err(Error::Invalid("a device, fifo or socket has no content")),
        }
        let mut handle = Handle { reported: AtomicU32::new(node.file().failures()), writes: None };
        if write {
            node.file().add_writer()?;
            handle.writes = Some(node.clone());
            node.check_no_verity()?;
        }
        let handle = Arc::new(handle);
        Ok(Self { node, access: Access { read: true, write, ..Access::NONE }, handle })
    }

    /// Opens the file of `node` for reading, and for writing unless the volume is read-only or a
    /// hash tree fixes the content.
    pub(super) fn of_node_as_may(node: InodeRef) -> Result<Self> {
        let write = !node.fs.is_read_only() && !node.flags().contains(InodeFlags::VERITY);
        match Self::of_node(node.clone(), write) {
            Err(Error::TextBusy | Error::NotPermitted(_)) => Self::of_node(node, false),
            opened => opened,
        }
    }

    /// Returns the inode of the file, to look at it or to change it.
    pub fn node(&self) -> Node {
        Node { node: self.node.clone() }
    }

    pub(crate) fn inode(&self) -> &InodeRef {
        &self.node
    }

    pub(super) fn with_access(self, access: Access) -> File {
        Self { access, ..self }
    }

    /// Returns the same open file, past the page cache (O_DIRECT) or through it. The two handles
    /// share their record of reported failures.
    pub fn with_direct(&self, direct: bool) -> File {
        let caching = if direct { Caching::Direct } else { Caching::Cached };
        self.clone().with_access(Access { caching, ..self.access })
    }

    /// Reads from `offset` on into `buf`. Returns how many bytes there were: fewer than asked for
    /// only at the end of the file, 0 behind it.
    ///
    /// # Errors
    /// [`Error::BadHandle`] if not open for reading; the device's; a damaged block map.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// volume.write("/file", b"0123456789")?;
    /// let file = volume.open_file("/file")?;
    /// let mut buf = [0; 4];
    /// assert_eq!(file.read_at(&mut buf, 8)?, 2); // the file ends there
    /// assert_eq!(&buf[..2], b"89");
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.check_read()?;
        self.node.content().read(buf, offset, self.access.caching)
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
        self.node.content().try_read(buf, offset, self.access.caching)
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
    ///
    /// ```no_run
    /// let volume = lanefs::OpenOptions::new().open_url("pmem:/mnt/dax/disk.img")?;
    /// let file = volume.open_file("/table")?;
    /// match file.map(0, 4096)? {
    ///     Some(bytes) => println!("{:?}", &bytes[..16]), // no copy was made
    ///     None => println!("to be read by read_at"),
    /// }
    /// # Ok::<(), lanefs::Error>(())
    /// ```
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
    /// [`Error::BadHandle`] if not open for writing; [`Error::ReadOnly`]; [`Error::NotPermitted`]
    /// for an immutable file, an append-only one unless at its end, and one with a hash tree;
    /// [`Error::FileTooBig`]. [`Error::NoSpace`], and the device's: a part may have been written.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// let file = volume.create_file("/file")?;
    /// file.write_at(b"end", 1 << 20)?;
    /// let meta = file.metadata();
    /// assert_eq!(meta.len(), (1 << 20) + 3);
    /// let mut hole = [7; 8];
    /// file.read_at(&mut hole, 0)?;
    /// assert_eq!(hole, [0; 8]);
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.check_write()?;
        self.write_counted(bytes, &mut { offset }, &mut 0)?;
        self.after_write()
    }

    /// Writes as [`write_at`](Self::write_at) does, but an error behind the first byte ends the
    /// write early, as in pwrite(2). Returns how many bytes were written.
    ///
    /// # Errors
    /// Those of [`write_at`](Self::write_at): nothing was written. Of a file opened with `sync` or
    /// `dsync`, those of a sync: all may have been written.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// let file = volume.create_file("/file")?;
    /// let most = vec![7; 32 << 20];
    /// let n = file.write_part_at(&most, 0)?;
    /// assert!(n < most.len());
    /// assert_eq!(file.metadata().len(), n as u64);
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn write_part_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        self.write_part_from(bytes, offset).map(|(_, done)| done)
    }

    /// Writes as [`write_part_at`](Self::write_part_at). Returns where, and how many bytes.
    pub(super) fn write_part_from(&self, bytes: &[u8], offset: u64) -> Result<(u64, usize)> {
        let written = self.write_part_unsynced(bytes, offset)?;
        self.after_write()?;
        Ok(written)
    }

    /// Writes as [`write_part_from`](Self::write_part_from) does, but leaves
    /// [`after_write`](Self::after_write) to the caller.
    pub(super) fn write_part_unsynced(&self, bytes: &[u8], offset: u64) -> Result<(u64, usize)> {
        self.check_write()?;
        let (mut at, mut done) = (offset, 0);
        match self.write_counted(bytes, &mut at, &mut done) {
            Err(e) if done == 0 => Err(e),
            _ => Ok((at, done)),
        }
    }

    /// Writes at `at`; if open for appending, sets it to the end first. Adds to `done` how many
    /// bytes are written, also of a write that an error ended.
    fn write_counted(&self, bytes: &[u8], at: &mut u64, done: &mut usize) -> Result<()> {
        let (content, caching) = (self.node.content(), self.access.caching);
        match self.access.append {
            true => content.append(bytes, caching, at, done),
            false => content.write(bytes, *at, caching, done),
        }
    }

    /// Writes `bytes` of the file, which the caller itself puts on the volume's device: `write`
    /// gets the places of them, or of a part of them, and puts the bytes and the zeros around them
    /// there before the file's map shows them. On a nearly full volume it may get the same bytes
    /// again, with other places.
    ///
    /// For a program that fills a new volume on a device of its own, and knows a shorter way for
    /// the bytes than through memory of the library. Bytes that `write` leaves away have any
    /// content: that of deleted files too.
    ///
    /// # Errors
    /// Those of [`write_at`](Self::write_at) and of `write`: a part may have been written. A later
    /// sync does not tell of a failure of `write`.
    ///
    /// ```
    /// use lanefs::device::{BlockDevice, MemDevice};
    /// use std::sync::Arc;
    ///
    /// # let device = Arc::new(MemDevice::new(16 << 20));
    /// # lanefs::mkfs::format(&*device, &lanefs::mkfs::Options::default())?;
    /// let volume = lanefs::OpenOptions::new().write(true).open_device(device.clone())?;
    /// let file = volume.create_file("/greeting")?;
    /// file.write_placed(0..11, &mut |places| {
    ///     for place in places {
    ///         let text = &b"hello world"[place.bytes.start as usize..place.bytes.end as usize];
    ///         device.write_at(&[text, &vec![0; place.tail]].concat(), place.offset)?;
    ///     }
    ///     Ok(())
    /// })?;
    /// assert_eq!(volume.read("/greeting")?, b"hello world");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write_placed(
        &self,
        bytes: Range<u64>,
        write: &mut dyn FnMut(&[Placement]) -> Result<()>,
    ) -> Result<()> {
        self.check_write()?;
        self.node.content().write_placed(bytes, write)?;
        self.after_write()
    }

    /// Writes whole blocks past the page cache, from pieces of memory that lie one behind the other
    /// from `offset` on: for a program that brings much and reads none of it again. Returns false,
    /// and has written nothing, if they are no whole blocks, if the file is open for appending, or
    /// if the volume's device does not take the memory as it is, as a file with direct I/O does not
    /// take most: [`write_at`](Self::write_at) is the way then.
    ///
    /// # Errors
    /// Those of [`write_at`](Self::write_at).
    pub fn write_gathered(&self, pieces: &[&[u8]], offset: u64) -> Result<bool> {
        self.check_write()?;
        if self.access.append {
            return Ok(false);
        }
        let is_written = self.node.content().write_gathered(pieces, offset)?;
        self.after_write()?;
        Ok(is_written)
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
        let offset = (!self.access.append).then_some(offset);
        let done = self.node.content().try_write(bytes, offset, self.access.caching)?;
        self.after_write()?;
        Ok(done)
    }

    /// Cuts or extends the file to `len` bytes. Bytes that are added read as zeros.
    ///
    /// # Errors
    /// [`Error::BadHandle`] if not open for writing; [`Error::ReadOnly`]; [`Error::NotPermitted`]
    /// for an immutable or append-only file or one with a hash tree, [`Error::TextBusy`] while it
    /// gets one; [`Error::FileTooBig`]; the journal's or the device's.
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

    /// Extends the file to `len` bytes if it is shorter, for a caller with a cache of its own that
    /// accepted bytes up to there earlier: also if the file has become append-only since. Bytes
    /// that are added read as zeros.
    ///
    /// # Errors
    /// [`Error::BadHandle`] if not open for writing; [`Error::ReadOnly`]; [`Error::NotPermitted`]
    /// for an immutable file or one with a hash tree; [`Error::TextBusy`] while it gets one;
    /// [`Error::CutShort`]; [`Error::FileTooBig`]; the journal's or the device's.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// let file = volume.create_file("/log")?;
    /// file.write_at(b"text", 0)?;
    /// file.extend_late(8)?;
    /// file.extend_late(2)?;
    /// assert_eq!(volume.read("/log")?, b"text\0\0\0\0");
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn extend_late(&self, len: u64) -> Result<()> {
        self.check_write()?;
        self.node.content().extend(len)
    }

    /// Changes which blocks hold the `len` bytes from `offset` on: see [`FallocMode`].
    ///
    /// # Errors
    /// [`Error::BadHandle`] if not open for writing; [`Error::NotPermitted`] for an immutable
    /// inode, and for an append-only one unless it is allocation; [`Error::FileTooBig`];
    /// [`Error::NotSupported`] for a file without extents, unless it is a punch; [`Error::Invalid`]
    /// for no bytes, and for a collapse or insertion that is not of whole blocks or not before the
    /// end. After [`Error::NoSpace`], and after any error in a file of very many extents, a part
    /// may have been done.
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

    /// Returns the first byte of data at or behind `offset` (SEEK_DATA). Blocks that are allocated
    /// and were never written are holes.
    ///
    /// # Errors
    /// [`Error::NothingThere`] if only holes follow, or the end; a damaged block map.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// let file = volume.create_file("/sparse")?;
    /// file.write_at(b"data", 1 << 20)?;
    /// assert_eq!(file.seek_data(0)?, 1 << 20);
    /// assert_eq!(file.seek_hole(0)?, 0);
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn seek_data(&self, offset: u64) -> Result<u64> {
        self.node.content().seek_data(offset)
    }

    /// Returns the first byte of a hole at or behind `offset` (SEEK_HOLE): the end of the file at
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
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// let file = volume.create_file("/file")?;
    /// file.write_at(&[1; 10_000], 0)?;
    /// for extent in file.fiemap(0..u64::MAX, 100)? {
    ///     println!("{extent:?}");
    /// }
    /// # Ok::<(), lanefs::Error>(())
    /// ```
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
        self.report_failures(self.node.sync_all())
    }

    /// Makes the content and the size durable.
    ///
    /// # Errors
    /// The journal's or the device's: then none of the latest changes may be durable.
    pub fn sync_data(&self) -> Result<()> {
        self.report_failures(self.node.sync_data())
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

    /// Returns the result of a sync, or a failure of background writeback that this handle has not
    /// reported yet. Each handle reports a failure once, also one that ended all writing: later
    /// syncs fail with [`Error::ReadOnly`].
    fn report_failures(&self, synced: Result<()>) -> Result<()> {
        let fs = &self.node.fs;
        if synced.is_err() && fs.journal.has_ended() && !fs.is_closed() {
            let lost = Error::Lost { ino: self.node.ino };
            return match (self.handle.reported.swap(ALL_REPORTED, Ordering::AcqRel), synced) {
                (ALL_REPORTED, _) => Err(Error::ReadOnly),
                (_, Err(Error::ReadOnly)) => Err(lost),
                (_, synced) => synced,
            };
        }
        let failures = self.node.file().failures();
        let report = |reported: u32| (reported != ALL_REPORTED).then_some(failures);
        let before = self.handle.reported.fetch_update(Ordering::AcqRel, Ordering::Acquire, report);
        let unreported = before.is_ok_and(|before| before != failures);
        match synced {
            Ok(()) if unreported => Err(Error::Lost { ino: self.node.ino }),
            synced => synced,
        }
    }

    /// Returns whether the handle counts as one that writes.
    pub(super) fn counts_as_writer(&self) -> bool {
        self.handle.writes.is_some()
    }

    pub(super) fn appends(&self) -> bool {
        self.access.append
    }

    pub(super) fn check_read(&self) -> Result<()> {
        if self.access.read { Ok(()) } else { Err(Error::BadHandle("not open for reading")) }
    }

    /// Makes durable what the handle promises for each write. Its error must reach the caller of
    /// the write: a failure of background writeback is reported once.
    pub(super) fn after_write(&self) -> Result<()> {
        match self.access.durability {
            WriteDurability::None => Ok(()),
            WriteDurability::Data => self.sync_data(),
            WriteDurability::All => self.sync_all(),
        }
    }

    pub(super) fn check_write(&self) -> Result<()> {
        if self.access.write {
            self.node.fs.check_writable()
        } else {
            Err(Error::BadHandle("not open for writing"))
        }
    }
}
