//! Opens a volume: checks which files may be one and whether the caller may use it, and explains
//! refusals. See `lock` for how openers exclude each other.

use super::lock::{is_locked, lock, lock_holders, outlast};
use super::ring::Rings;
use super::shared::SharedFile;
use super::{FileDevice, Kind};
use crate::open_here::OpenHere;
use crate::{AlignedBuf, BlockDevice, Cached, DeviceError, FileOptions, IoUring, Op, Result};
use rustix::fs::{AtFlags, FsWord, OFlags, StatxFlags};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

impl FileOptions {
    /// Opens a regular file or a block special file that exists, and locks it until drop.
    ///
    /// # Errors
    /// [`Op::Open`] for a file that is missing, not permitted, empty, or of another kind (a folder,
    /// a pipe), or if O_DIRECT or io_uring is required and not available; [`Op::Lock`] (EBUSY)
    /// while another opener or a mount uses it.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<FileDevice> {
        let path = path.as_ref();
        let is_locked = !(self.unlocked && self.read_only);
        let (file, kind) = loop {
            let (file, kind) = self.open_existing(path)?;
            if !is_locked || lock_named(path, &file, kind, self.read_only, self.window.as_ref())? {
                break (file, kind);
            }
        };
        self.finish(path, file, kind)
    }

    /// Creates a sparse file of `size` zero bytes, and drops the content of an existing file.
    ///
    /// A block special file must have at least `size` bytes, and keeps its content.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open), and where the file system cannot hold a file of that
    /// size.
    pub fn create(&self, path: impl AsRef<Path>, size: u64) -> Result<FileDevice> {
        self.create_at(path.as_ref(), size, true)
    }

    /// Creates a sparse file of `size` zero bytes, and leaves an existing file alone.
    ///
    /// # Errors
    /// EEXIST if there is a file, and the other errors of [`create`](Self::create).
    pub fn create_new(&self, path: impl AsRef<Path>, size: u64) -> Result<FileDevice> {
        self.create_at(path.as_ref(), size, false)
    }

    fn create_at(&self, path: &Path, size: u64, over: bool) -> Result<FileDevice> {
        let refuse = |errno, why: &str| DeviceError::at_path(Op::Open, path, errno, why);
        if self.read_only {
            return Err(refuse(libc::EINVAL, "cannot be made read-only"));
        }
        if size == 0 {
            return Err(refuse(libc::EINVAL, "a volume of 0 bytes"));
        }
        let (file, kind, is_new) = loop {
            let (file, kind, is_new) = match self.system_open(path, true) {
                Ok(file) => (file, Kind::Regular, true),
                Err(e) if over && e.kind() == io::ErrorKind::AlreadyExists => {
                    let (file, kind) = self.open_existing(path)?;
                    (file, kind, false)
                }
                Err(e) => return Err(explain(path, e)),
            };
            if lock_named(path, &file, kind, self.read_only, None)? {
                break (file, kind, is_new);
            }
        };
        let len = file.metadata().map_err(|e| explain(path, e))?.len();
        if (self.keeps_content || !over) && kind == Kind::Regular && len > 0 {
            // Another opener had the lock before.
            return Err(explain(path, io::Error::from_raw_os_error(libc::EEXIST)));
        }
        // `file` has the lock for as long as it is open, whatever becomes of the device.
        let made = file.try_clone().map_err(|e| explain(path, e));
        let made = made.and_then(|device| self.take_size(path, device, kind, size));
        if made.is_err() && is_new {
            remove_new(path, &file);
        }
        made
    }

    /// Makes a locked file a device of `size` bytes.
    fn take_size(&self, path: &Path, file: File, kind: Kind, size: u64) -> Result<FileDevice> {
        if kind == Kind::Regular {
            // Emptied under the lock only: another opener may be at work on it.
            // First to the new size, which the file system may refuse: its content is kept then.
            // One that is empty is not cut: ext4 would write such a file out when it is closed.
            let was_empty = file.metadata().map_err(|e| explain(path, e))?.len() == 0;
            let sizes: &[u64] = if was_empty { &[size] } else { &[size, 0, size] };
            let resized = sizes.iter().try_for_each(|&len| file.set_len(len));
            resized.map_err(|e| explain(path, e))?;
        }
        let device = self.finish(path, file, kind)?;
        if device.size() < size {
            let why = format!("has {} bytes, {size} are asked for", device.size());
            return Err(DeviceError::at_path(Op::Open, path, libc::ENOSPC, why));
        }
        Ok(device)
    }

    fn system_open(&self, path: &Path, create: bool) -> io::Result<File> {
        let mut flags = OFlags::empty();
        if !create && !self.read_only && std::fs::metadata(path)?.file_type().is_block_device() {
            flags |= OFlags::EXCL;
        }
        let mut options = OpenOptions::new();
        options.read(true).write(!self.read_only).create_new(create);
        options.custom_flags(flags.bits().cast_signed());
        // O_EXCL is refused for a mount by the kernel too, which has no lock.
        let holders = || File::open(path).ok().filter(is_locked).map(|file| lock_holders(&file));
        outlast(|| options.open(path), io::ErrorKind::ResourceBusy, holders)
    }

    fn open_existing(&self, path: &Path) -> Result<(File, Kind)> {
        let explain = |e| explain(path, e);
        // Before the open, which would hang on a pipe.
        kind_of(path, &std::fs::metadata(path).map_err(explain)?)?;
        let file = self.system_open(path, false).map_err(explain)?;
        let mut kind = kind_of(path, &file.metadata().map_err(explain)?)?;
        if let Kind::Block { sector } = &mut kind {
            *sector = u64::from(rustix::fs::ioctl_blksszget(&file).map_err(|e| explain(e.into()))?);
        }
        Ok((file, kind))
    }

    fn finish(&self, path: &Path, mut file: File, kind: Kind) -> Result<FileDevice> {
        let refuse = |errno, why: String| Err(DeviceError::at_path(Op::Open, path, errno, why));
        let size = file.seek(SeekFrom::End(0)).map_err(|e| explain(path, e))?;
        if size == 0 {
            return refuse(libc::EINVAL, "is empty (0 bytes), no volume".into());
        }
        let used = self.window.clone().unwrap_or(0..size);
        let owner = super::owner::owner(&file).map_err(|e| explain(path, e))?;
        let align = match self.cached {
            Cached::All => 1,
            Cached::SmallReads if !keeps_in_step(&file, kind) => 1,
            Cached::SmallReads => go_direct(&file, kind, &used).unwrap_or(1),
            Cached::Nothing => match go_direct(&file, kind, &used) {
                Ok(align) => align,
                Err(why) => return refuse(libc::EINVAL, why),
            },
        };
        let wants_cache = self.cached == Cached::SmallReads && align > 1;
        let for_small_reads = if wants_cache { reopen(&file).ok() } else { None };
        let shared_align = direct_alignment(&file, kind);
        let shared = if align == 1 { SharedFile::open(&file, shared_align, self.read_only) } else { None };
        let rings = Rings::default();
        let probed = match (self.io_uring, self.confined) {
            (IoUring::Off, _) | (IoUring::Auto, false) => Ok(()),
            // Through the page cache no ring is used.
            (IoUring::Auto, true) if align == 1 => Ok(()),
            (_, true) => rings.make_all(&file),
            (IoUring::On, false) => rings.probe(&file),
        };
        if let Err(e) = probed
            && self.io_uring == IoUring::On
        {
            return refuse(e.raw_os_error().unwrap_or(libc::EIO), format!("by io_uring: {e}"));
        }
        let open_here = OpenHere::new(&file, path).map_err(|e| explain(path, e))?;
        Ok(FileDevice {
            file,
            path: path.to_owned(),
            kind,
            owner,
            size: size.into(),
            read_only: self.read_only,
            locks_bytes: self.read_only || self.window.is_some(),
            align,
            for_small_reads,
            shared,
            partial_sector: Default::default(),
            flusher: Default::default(),
            io_uring: self.io_uring,
            rings,
            _open_here: open_here,
        })
    }
}

/// Locks `file` as [`lock`] does. Returns false if it has no name any more: the opener that had the
/// lock removed or replaced it, and the caller has to open `path` again. What it would write would
/// be lost.
fn lock_named(
    path: &Path,
    file: &File,
    kind: Kind,
    read_only: bool,
    window: Option<&Range<u64>>,
) -> Result<bool> {
    #[cfg(test)]
    super::tests::before_lock(path);
    lock(path, file, kind, read_only, window)?;
    // Of a file without a name, /proc/self/fd may be the path.
    Ok(leads_to(path, file) || file.metadata().is_ok_and(|meta| meta.nlink() > 0))
}

/// Returns whether `path` leads to `file`, and not to another file of that name.
fn leads_to(path: &Path, file: &File) -> bool {
    let number = |meta: &Metadata| (meta.dev(), meta.ino());
    matches!((std::fs::metadata(path), file.metadata()), (Ok(a), Ok(b)) if number(&a) == number(&b))
}

/// Removes a file that was made here and that `locked` has locked: without the lock it may be
/// another opener's by now, and another process may have renamed its own over it. That it cannot be
/// removed is not the failure to tell of.
pub(crate) fn remove_new(path: &Path, locked: &File) {
    #[cfg(test)]
    super::tests::note_removal(path);
    if leads_to(path, locked) {
        let _ = std::fs::remove_file(path);
    }
}

fn kind_of(path: &Path, meta: &Metadata) -> Result<Kind> {
    let kind = meta.file_type();
    let (errno, why) = if kind.is_file() {
        return Ok(Kind::Regular);
    } else if kind.is_block_device() {
        return Ok(Kind::Block { sector: 512 });
    } else if kind.is_dir() {
        (libc::EISDIR, "is a directory, neither a file nor a block device")
    } else {
        (libc::EINVAL, "is neither a regular file nor a block device")
    };
    Err(DeviceError::at_path(Op::Open, path, errno, why))
}

/// The meaning of EMFILE, and the remedy: a number alone does not say it.
pub const IN_THIS_PROCESS: &str = "in this process (`ulimit -n` is the limit)";

/// Explains a failed open in one line, with a remedy.
fn explain(path: &Path, e: io::Error) -> DeviceError {
    let errno = e.raw_os_error().unwrap_or(match e.kind() {
        // A size beyond what an offset can be does not come as far as the kernel.
        io::ErrorKind::InvalidInput => libc::EFBIG,
        _ => libc::EIO,
    });
    let why = match errno {
        libc::ENOENT => "no such file or directory".into(),
        libc::EEXIST => "exists already".into(),
        libc::EACCES | libc::EPERM => "permission denied".into(),
        libc::EMFILE => format!("too many open files {IN_THIS_PROCESS}"),
        libc::EROFS => "lies on a read-only file system or device".into(),
        libc::EFBIG => "the file system cannot hold a file of that size".into(),
        libc::EBUSY => {
            let why = "is in use: mounted, or opened exclusively by another process";
            return DeviceError::at_path(Op::Lock, path, errno, why);
        }
        _ => e.to_string(),
    };
    DeviceError::at_path(Op::Open, path, errno, why)
}

/// Goes past the page cache from now on; the alignment that this asks for, or why it cannot be. Not
/// at the open, which makes a new file before it finds that it cannot.
fn go_direct(file: &File, kind: Kind, used: &Range<u64>) -> std::result::Result<usize, String> {
    let align = direct_alignment(file, kind);
    if align > AlignedBuf::ALIGN {
        return Err(format!("asks for direct I/O in units of {align} bytes"));
    }
    // A sector that two volumes share could be read, changed and written by both at once.
    for (what, bytes) in [("size", used.end - used.start), ("start", used.start)] {
        if !bytes.is_multiple_of(align as u64) {
            return Err(format!(
                "its {what}, {bytes} bytes, is not a multiple of {align}, as direct I/O asks"
            ));
        }
    }
    let flags = rustix::fs::fcntl_getfl(file);
    let done = flags.and_then(|flags| rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT));
    done.map(|()| align).map_err(|_| "its file system does not support direct I/O".into())
}

/// Returns whether the kernel invalidates cached pages when a direct write to them has ended, also
/// one by io_uring. The file systems named here do. A block special file does so only for a
/// synchronous write, and a network file system may not do so at all.
fn keeps_in_step(file: &File, kind: Kind) -> bool {
    const EXT4: FsWord = 0xef53;
    const XFS: FsWord = 0x5846_5342;
    let known = |stat: rustix::fs::StatFs| [EXT4, XFS].contains(&stat.f_type);
    kind == Kind::Regular && rustix::fs::fstatfs(file).is_ok_and(known)
}

/// Opens the same file once more, to read through the page cache.
fn reopen(file: &File) -> io::Result<File> {
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Returns the alignment that O_DIRECT requires of offsets, lengths and addresses: the kernel's
/// value (6.1 and later), or the logical block size, or 4096, which suits every common device.
fn direct_alignment(file: &File, kind: Kind) -> usize {
    let stat = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    let align = match (stat, kind) {
        (Ok(s), _) if s.stx_dio_offset_align > 0 && s.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
            s.stx_dio_offset_align.max(s.stx_dio_mem_align) as usize
        }
        (_, Kind::Block { sector }) => sector as usize,
        (_, Kind::Regular) => AlignedBuf::ALIGN,
    };
    // More than 1 also tells direct from buffered.
    align.max(512)
}
