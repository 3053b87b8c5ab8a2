//! Opens a file by the flags of open(2).

use crate::answer::{Failure, Result, call};
use crate::args;
use crate::table::{Open, Table};
use crate::volume::{lanefs_volume, volume};
use lanefs::{At, AtSymlink, Error, File, NewAttr};
use libc::{c_char, c_int, mode_t};
use std::path::Path;

/// An open file.
pub struct lanefs_file {
    _private: [u8; 0],
}

static FILES: Table<File> = Table::new(2);

/// Returns the file behind a handle.
pub(crate) fn file(handle: *mut lanefs_file) -> Result<Open<'static, File>> {
    FILES.get(handle.addr()).ok_or_else(not_open)
}

fn not_open() -> Failure {
    Failure::new(libc::EBADF, "no open file")
}

/// Returns mode and owner of a new inode. The owner is root until the caller changes it with chown.
pub(crate) fn new_attr(mode: mode_t) -> NewAttr {
    NewAttr { permissions: permissions(mode), uid: 0, gid: 0 }
}

/// Returns the low 12 bits of a mode.
pub(crate) fn permissions(mode: mode_t) -> u16 {
    (mode & 0o7777) as u16
}

/// Opens a regular file. Paths begin at the volume's root, with or without a slash.
///
/// `flags` are those of open(2) in <fcntl.h>: one of O_RDONLY, O_WRONLY, O_RDWR, and any of
/// O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_DIRECT, O_SYNC, O_DSYNC, O_NOFOLLOW, O_TMPFILE. O_CLOEXEC,
/// O_NOATIME, O_NOCTTY, O_NONBLOCK and O_LARGEFILE change nothing. O_DIRECT takes memory, places
/// and lengths that are not aligned, too, and copies them then. LANEFS_O_UNCACHED is like
/// RWF_DONTCACHE for every read and write: those of 128 KiB and more bypass the page cache, if they
/// are of whole blocks.
///
/// With O_TMPFILE `path` is a directory. It goes with O_WRONLY or O_RDWR, and without O_CREAT,
/// O_EXCL, O_DIRECT, O_SYNC, O_DSYNC and LANEFS_O_UNCACHED.
///
/// `mode` is that of a file that is made; no umask is applied, and its owner is 0:0. No
/// permission is checked: a caller that has the volume has all of it.
///
/// Errors: ENOENT, EEXIST, EISDIR, ENOTDIR, ELOOP, ENAMETOOLONG, EROFS, ENOSPC, EPERM (to write: an
/// immutable file, an append-only one without O_APPEND, one with a hash tree; to make: in an
/// immutable directory), EUCLEAN, EIO, ENODEV (the volume was closed), EINVAL (flags; a device,
/// fifo or socket), EMFILE, EBADF, EFAULT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_open(
    volume: *mut lanefs_volume,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> *mut lanefs_file {
    call(|| {
        let volume = self::volume(volume)?;
        // SAFETY: a string or null, as the header says.
        let path = unsafe { args::path(path)? };
        keep_file(open(volume.at(), path, flags, mode)?)
    })
}

/// A flag of lanefs_open: large reads and writes bypass the page cache. Not with O_DIRECT.
pub const LANEFS_O_UNCACHED: c_int = 0x4000_0000;

/// Makes a handle for a file.
pub(crate) fn keep_file(file: File) -> Result<*mut lanefs_file> {
    let full = |_| Failure::new(libc::EMFILE, "too many open files");
    Ok(std::ptr::without_provenance_mut(FILES.insert(file).map_err(full)?))
}

pub(crate) fn open(at: At<'_>, path: &Path, flags: c_int, mode: mode_t) -> Result<File> {
    const WITHOUT_EFFECT: c_int =
        libc::O_CLOEXEC | libc::O_NOATIME | libc::O_NOCTTY | libc::O_NONBLOCK | libc::O_LARGEFILE | LARGEFILE;
    // What glibc has as 0 where files are always large is set by programs of other libraries.
    const LARGEFILE: c_int = 0o100_000;
    const KNOWN: c_int = WITHOUT_EFFECT
        | libc::O_ACCMODE
        | libc::O_CREAT
        | libc::O_EXCL
        | libc::O_TRUNC
        | libc::O_APPEND
        | libc::O_DIRECT
        | libc::O_SYNC
        | libc::O_NOFOLLOW
        | libc::O_TMPFILE
        | LANEFS_O_UNCACHED;

    let has = |flag: c_int| flags & flag == flag;
    let (read, write) = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => (true, false),
        libc::O_WRONLY => (false, true),
        libc::O_RDWR => (true, true),
        _ => return Err(Failure::invalid("neither O_RDONLY nor O_WRONLY nor O_RDWR")),
    };
    if flags & !KNOWN != 0 {
        return Err(Failure::invalid(format!("flags that open does not have: {:#o}", flags & !KNOWN)));
    }
    if has(libc::O_TMPFILE) {
        // With O_EXCL a file could never get a name, which lanefs_flink does not know of.
        const OTHER: c_int = libc::O_DIRECT | libc::O_SYNC | libc::O_CREAT | libc::O_EXCL | LANEFS_O_UNCACHED;
        if !write || flags & OTHER != 0 {
            return Err(Failure::invalid("O_TMPFILE is to be written, and goes without other flags"));
        }
        let options = at.open_options().read(read).write(write).append(has(libc::O_APPEND));
        return Ok(options.attr(new_attr(mode)).open_nameless(&at.open_dir(path)?)?);
    }
    if has(libc::O_DIRECTORY) {
        let is_dir = at.metadata(path, AtSymlink::Follow)?.is_dir();
        return Err(if is_dir { Error::IsDir } else { Error::NotDir }.into());
    }
    if has(libc::O_DIRECT | LANEFS_O_UNCACHED) {
        return Err(Failure::invalid("O_DIRECT and LANEFS_O_UNCACHED"));
    }
    if has(libc::O_TRUNC) && !write {
        return Err(Failure::invalid("O_TRUNC of a file that is not to be written"));
    }
    let options = at
        .open_options()
        .read(read)
        .write(write)
        .truncate(has(libc::O_TRUNC))
        .create(has(libc::O_CREAT))
        .create_new(has(libc::O_CREAT | libc::O_EXCL))
        .follow(!has(libc::O_NOFOLLOW))
        .uncached(has(LANEFS_O_UNCACHED))
        .attr(new_attr(mode));
    let options = if write { options.append(has(libc::O_APPEND)) } else { options };
    let options = if has(libc::O_DIRECT) { options.direct(true) } else { options };
    // O_SYNC has the bit of O_DSYNC.
    let options = match (has(libc::O_SYNC), has(libc::O_DSYNC)) {
        (true, _) => options.sync(true),
        (false, true) => options.dsync(true),
        (false, false) => options,
    };
    Ok(options.open(path)?)
}

/// Closes a file, when all calls that use it have returned. What was written is not durable by
/// that: lanefs_fsync.
///
/// Errors: EBADF, also for a file that was closed before.
#[unsafe(no_mangle)]
pub extern "C" fn lanefs_close(file: *mut lanefs_file) -> c_int {
    call(|| {
        FILES.remove(file.addr()).ok_or_else(not_open)?;
        Ok(0)
    })
}
