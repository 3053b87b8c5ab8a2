//! Names: making, removing, renaming and linking them.

use crate::answer::{Failure, Result, call};
use crate::args;
use crate::open::{file, lanefs_file, new_attr};
use crate::volume::{lanefs_volume, volume};
use lanefs::{DeviceNumber, FileType, RenameFlags};
use libc::{c_char, c_int, c_uint, dev_t, mode_t, ssize_t};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// For lanefs_rename: a name that is taken is an error (RENAME_NOREPLACE).
pub const LANEFS_RENAME_NOREPLACE: c_uint = 1;
/// For lanefs_rename: swap the two (RENAME_EXCHANGE).
pub const LANEFS_RENAME_EXCHANGE: c_uint = 2;
/// For lanefs_rename: leave a whiteout of 0:0 at the old name (RENAME_WHITEOUT); with
/// LANEFS_RENAME_NOREPLACE or without.
pub const LANEFS_RENAME_WHITEOUT: c_uint = 4;

/// Makes a directory, owned by 0:0.
///
/// Errors: EEXIST, ENOENT, ENOTDIR, ELOOP, ENAMETOOLONG, EMLINK, ENOSPC, EPERM, EROFS, EUCLEAN,
/// EIO, ENODEV, EBADF, EFAULT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_mkdir(
    volume: *mut lanefs_volume,
    path: *const c_char,
    mode: mode_t,
) -> c_int {
    call(|| {
        let volume = self::volume(volume)?;
        // SAFETY: a string or null, as the header says.
        volume.create_dir_with(unsafe { args::path(path)? }, new_attr(mode))?;
        Ok(0)
    })
}

/// Removes an empty directory.
///
/// Errors: ENOTEMPTY, ENOENT, ENOTDIR, ELOOP, ENAMETOOLONG, EBUSY (the root), EINVAL ("."), EPERM,
/// EROFS, EUCLEAN, EIO, ENODEV, EBADF, EFAULT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_rmdir(volume: *mut lanefs_volume, path: *const c_char) -> c_int {
    call(|| {
        let volume = self::volume(volume)?;
        // SAFETY: a string or null, as the header says.
        volume.remove_dir(unsafe { args::path(path)? })?;
        Ok(0)
    })
}

/// Removes a name of something that is no directory. The file goes with its last name and its last
/// user.
///
/// Errors: ENOENT, EISDIR, ENOTDIR, ELOOP, ENAMETOOLONG, EPERM, EROFS, EUCLEAN, EIO, ENODEV, EBADF,
/// EFAULT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_unlink(volume: *mut lanefs_volume, path: *const c_char) -> c_int {
    call(|| {
        let volume = self::volume(volume)?;
        // SAFETY: a string or null, as the header says.
        volume.remove_file(unsafe { args::path(path)? })?;
        Ok(0)
    })
}

/// Renames, as renameat2(2). `flags` is 0 (what is at `to` is replaced), LANEFS_RENAME_NOREPLACE,
/// LANEFS_RENAME_EXCHANGE or LANEFS_RENAME_WHITEOUT.
///
/// Errors: ENOENT, EEXIST, ENOTEMPTY, EISDIR, ENOTDIR, ELOOP, ENAMETOOLONG, EBUSY (the root),
/// EINVAL (below itself; flags), EMLINK, ENOSPC, EPERM, EROFS, EUCLEAN, EIO, ENODEV, EBADF, EFAULT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_rename(
    volume: *mut lanefs_volume,
    from: *const c_char,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    call(|| {
        let volume = self::volume(volume)?;
        // SAFETY: strings or null, as the header says.
        let (from, to) = unsafe { (args::path(from)?, args::path(to)?) };
        volume.rename_with(from, to, rename_flags(flags)?)?;
        Ok(0)
    })
}

/// Gives what is at `from` the name `to` too. A symbolic link is linked itself.
///
/// Errors: EEXIST, ENOENT, ENOTDIR, ELOOP, ENAMETOOLONG, EPERM (a directory; immutable), EMLINK,
/// ENOSPC, EROFS, EUCLEAN, EIO, ENODEV, EBADF, EFAULT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_link(
    volume: *mut lanefs_volume,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    call(|| {
        let volume = self::volume(volume)?;
        // SAFETY: strings or null, as the header says.
        let (from, to) = unsafe { (args::path(from)?, args::path(to)?) };
        volume.hard_link(from, to)?;
        Ok(0)
    })
}

/// Gives an open file, such as one made with O_TMPFILE, the name `to`.
///
/// Errors: as lanefs_link; EXDEV (a file of another volume).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_flink(
    file: *mut lanefs_file,
    volume: *mut lanefs_volume,
    to: *const c_char,
) -> c_int {
    call(|| {
        let (file, volume) = (self::file(file)?, self::volume(volume)?);
        // SAFETY: a string or null, as the header says.
        volume.link_file(&file, unsafe { args::path(to)? })?;
        Ok(0)
    })
}

/// Makes a symbolic link at `path` to `target`.
///
/// Errors: EEXIST, ENOENT (also: an empty target), ENOTDIR, ELOOP, ENAMETOOLONG, ENOSPC, EPERM,
/// EROFS, EUCLEAN, EIO, ENODEV, EBADF, EFAULT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_symlink(
    volume: *mut lanefs_volume,
    target: *const c_char,
    path: *const c_char,
) -> c_int {
    call(|| {
        let volume = self::volume(volume)?;
        // SAFETY: strings or null, as the header says.
        let (target, path) = unsafe { (args::os(target)?, args::path(path)?) };
        volume.symlink(target, path)?;
        Ok(0)
    })
}

/// Puts the target of a symbolic link into `buf`, without a NUL at its end; what does not fit into
/// `size` bytes is cut off. How many bytes it put there.
///
/// Errors: EINVAL (no symbolic link; `size` of 0), ENOENT, ENOTDIR, ELOOP, ENAMETOOLONG, EUCLEAN,
/// EIO, ENODEV, EBADF, EFAULT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_readlink(
    volume: *mut lanefs_volume,
    path: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> ssize_t {
    call(|| {
        let volume = self::volume(volume)?;
        // SAFETY: a string, and `size` bytes, or null, as the header says.
        let (path, room) = unsafe { (args::path(path)?, args::memory_mut(buf.cast(), size)?) };
        give_target(|| volume.read_link(path), room)
    })
}

/// Makes a device file, fifo, socket or empty file, by the type in `mode` (S_IFMT; 0 is a file).
/// `dev` is makedev(3) of a device file's numbers.
///
/// Errors: EEXIST, ENOENT, ENOTDIR, ELOOP, ENAMETOOLONG, EINVAL (another type, a device number that
/// no inode can hold), ENOSPC, EPERM, EROFS, EUCLEAN, EIO, ENODEV, EBADF, EFAULT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_mknod(
    volume: *mut lanefs_volume,
    path: *const c_char,
    mode: mode_t,
    dev: dev_t,
) -> c_int {
    call(|| {
        let volume = self::volume(volume)?;
        // SAFETY: a string or null, as the header says.
        let path = unsafe { args::path(path)? };
        let device = DeviceNumber { major: libc::major(dev), minor: libc::minor(dev) };
        volume.mknod(path, new_type(mode)?, device, new_attr(mode))?;
        Ok(0)
    })
}

pub(crate) fn rename_flags(flags: c_uint) -> Result<RenameFlags> {
    const WHITEOUT_NOREPLACE: c_uint = LANEFS_RENAME_WHITEOUT | LANEFS_RENAME_NOREPLACE;
    match flags {
        LANEFS_RENAME_WHITEOUT => Ok(RenameFlags::Whiteout { replace: true, uid: 0, gid: 0 }),
        WHITEOUT_NOREPLACE => Ok(RenameFlags::Whiteout { replace: false, uid: 0, gid: 0 }),
        0 => Ok(RenameFlags::Replace),
        LANEFS_RENAME_NOREPLACE => Ok(RenameFlags::NoReplace),
        LANEFS_RENAME_EXCHANGE => Ok(RenameFlags::Exchange),
        _ => Err(Failure::invalid(format!("flags that rename does not have: {flags:#x}"))),
    }
}

/// Decodes the file type of a mode; without one it is a regular file.
pub(crate) fn new_type(mode: mode_t) -> Result<FileType> {
    let file_type = match mode & libc::S_IFMT {
        0 => Some(FileType::Regular),
        bits => FileType::from_mode(bits as u16),
    };
    file_type.ok_or_else(|| Failure::invalid(format!("no type of a file: {mode:#o}")))
}

/// Puts as much of a link's target into `room` as there is room for. How much.
pub(crate) fn give_target(
    read: impl FnOnce() -> lanefs::Result<PathBuf>,
    room: &mut [u8],
) -> Result<ssize_t> {
    if room.is_empty() {
        return Err(Failure::invalid("no room for a target"));
    }
    let target = read()?;
    let target = target.as_os_str().as_bytes();
    let fits = target.len().min(room.len());
    room[..fits].copy_from_slice(&target[..fits]);
    Ok(fits.cast_signed())
}
