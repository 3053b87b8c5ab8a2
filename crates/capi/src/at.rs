//! Calls on paths that begin at an open directory. An absolute path begins at the root of the
//! directory's volume.

use crate::answer::{Failure, Result, call};
use crate::args;
use crate::attr::{lanefs_stat, owner, stat_of, times_of};
use crate::dir::{dir, keep_dir, lanefs_dir};
use crate::names::{give_target, new_type, rename_flags};
use crate::open::{keep_file, lanefs_file, new_attr, open, permissions};
use lanefs::{AtSymlink, DeviceNumber, SetAttr};
use libc::{c_char, c_int, c_uint, dev_t, gid_t, mode_t, ssize_t, timespec, uid_t};

/// Opens a file as lanefs_open does. `path` starts at the directory `dir`.
///
/// Errors: as lanefs_open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_openat(
    dir: *mut lanefs_dir,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> *mut lanefs_file {
    call(|| {
        let dir = self::dir(dir)?;
        // SAFETY: a string or null, as the header says.
        keep_file(open(dir.at(), unsafe { args::path(path)? }, flags, mode)?)
    })
}

/// Opens a directory as lanefs_opendir does. `path` starts at the directory `dir`.
///
/// Errors: as lanefs_opendir.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_opendirat(dir: *mut lanefs_dir, path: *const c_char) -> *mut lanefs_dir {
    call(|| {
        let dir = self::dir(dir)?;
        // SAFETY: a string or null, as the header says.
        keep_dir(dir.at().open_dir(unsafe { args::path(path)? })?)
    })
}

/// Reads attributes as lanefs_stat does. `path` starts at the directory `dir`; `flags` is 0 or
/// AT_SYMLINK_NOFOLLOW of <fcntl.h>.
///
/// Errors: as lanefs_stat; EINVAL (flags).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_fstatat(
    dir: *mut lanefs_dir,
    path: *const c_char,
    out: *mut lanefs_stat,
    flags: c_int,
) -> c_int {
    call(|| {
        let (dir, at_end) = (self::dir(dir)?, at_symlink(flags)?);
        // SAFETY: a string or null, as the header says.
        let meta = dir.at().metadata(unsafe { args::path(path)? }, at_end)?;
        // SAFETY: room for one or null, as the header says.
        unsafe { args::give(out, stat_of(&meta))? };
        Ok(0)
    })
}

/// Changes the permissions as lanefs_chmod does. `path` starts at the directory `dir`; `flags` is
/// 0.
///
/// Errors: as lanefs_chmod; EINVAL (flags).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_fchmodat(
    dir: *mut lanefs_dir,
    path: *const c_char,
    mode: mode_t,
    flags: c_int,
) -> c_int {
    let set = SetAttr { permissions: Some(permissions(mode)), ..SetAttr::default() };
    let set = none_of(flags).map(|()| Some(set));
    // SAFETY: passed on as they came.
    unsafe { set_at(dir, path, set, Ok(AtSymlink::Follow)) }
}

/// Changes the owner as lanefs_chown does. `path` starts at the directory `dir`; `flags` is 0 or
/// AT_SYMLINK_NOFOLLOW of <fcntl.h>.
///
/// Errors: as lanefs_chown; EINVAL (flags).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_fchownat(
    dir: *mut lanefs_dir,
    path: *const c_char,
    uid: uid_t,
    gid: gid_t,
    flags: c_int,
) -> c_int {
    // SAFETY: passed on as they came.
    unsafe { set_at(dir, path, Ok(Some(owner(uid, gid))), at_symlink(flags)) }
}

/// Sets times as lanefs_utimens does. `path` starts at the directory `dir`.
///
/// Errors: as lanefs_utimens.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_utimensat(
    dir: *mut lanefs_dir,
    path: *const c_char,
    times: *const timespec,
    flags: c_int,
) -> c_int {
    // SAFETY: two of them or null, as the header says; the others are passed on as they came.
    unsafe { set_at(dir, path, times_of(times), at_symlink(flags)) }
}

/// Makes a directory as lanefs_mkdir does. `path` starts at the directory `dir`.
///
/// Errors: as lanefs_mkdir.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_mkdirat(dir: *mut lanefs_dir, path: *const c_char, mode: mode_t) -> c_int {
    call(|| {
        let dir = self::dir(dir)?;
        // SAFETY: a string or null, as the header says.
        dir.at().create_dir(unsafe { args::path(path)? }, new_attr(mode))?;
        Ok(0)
    })
}

/// Removes a name as lanefs_unlink does, or as lanefs_rmdir does if `flags` is AT_REMOVEDIR of
/// <fcntl.h>. `path` starts at the directory `dir`.
///
/// Errors: as lanefs_unlink and lanefs_rmdir; EINVAL (flags).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_unlinkat(dir: *mut lanefs_dir, path: *const c_char, flags: c_int) -> c_int {
    call(|| {
        let dir = self::dir(dir)?;
        // SAFETY: a string or null, as the header says.
        let path = unsafe { args::path(path)? };
        match flags {
            libc::AT_REMOVEDIR => dir.at().remove_dir(path)?,
            _ => none_of(flags).map(|()| dir.at().remove_file(path))??,
        }
        Ok(0)
    })
}

/// Renames as lanefs_rename does. Each path starts at its own directory.
///
/// Errors: as lanefs_rename; EXDEV (directories of two volumes).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_renameat(
    from_dir: *mut lanefs_dir,
    from: *const c_char,
    to_dir: *mut lanefs_dir,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    call(|| {
        let (from_dir, to_dir) = (dir(from_dir)?, dir(to_dir)?);
        // SAFETY: strings or null, as the header says.
        let (from, to) = unsafe { (args::path(from)?, args::path(to)?) };
        from_dir.at().rename(from, to_dir.at(), to, rename_flags(flags)?)?;
        Ok(0)
    })
}

/// Makes a hard link as lanefs_link does. Each path starts at its own directory; `flags` is 0.
///
/// Errors: as lanefs_link; EXDEV (directories of two volumes); EINVAL (flags).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_linkat(
    from_dir: *mut lanefs_dir,
    from: *const c_char,
    to_dir: *mut lanefs_dir,
    to: *const c_char,
    flags: c_int,
) -> c_int {
    call(|| {
        let (from_dir, to_dir) = (dir(from_dir)?, dir(to_dir)?);
        // SAFETY: strings or null, as the header says.
        let (from, to) = unsafe { (args::path(from)?, args::path(to)?) };
        none_of(flags)?;
        from_dir.at().hard_link(from, to_dir.at(), to)?;
        Ok(0)
    })
}

/// Makes a symbolic link as lanefs_symlink does. `path` starts at the directory `dir`.
///
/// Errors: as lanefs_symlink.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_symlinkat(
    target: *const c_char,
    dir: *mut lanefs_dir,
    path: *const c_char,
) -> c_int {
    call(|| {
        let dir = self::dir(dir)?;
        // SAFETY: strings or null, as the header says.
        let (target, path) = unsafe { (args::os(target)?, args::path(path)?) };
        dir.at().symlink(target, path)?;
        Ok(0)
    })
}

/// Reads a symbolic link as lanefs_readlink does. `path` starts at the directory `dir`.
///
/// Errors: as lanefs_readlink.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_readlinkat(
    dir: *mut lanefs_dir,
    path: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> ssize_t {
    call(|| {
        let dir = self::dir(dir)?;
        // SAFETY: a string, and `size` bytes, or null, as the header says.
        let (path, room) = unsafe { (args::path(path)?, args::memory_mut(buf.cast(), size)?) };
        give_target(|| dir.at().read_link(path), room)
    })
}

/// Makes a special file as lanefs_mknod does. `path` starts at the directory `dir`.
///
/// Errors: as lanefs_mknod.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_mknodat(
    dir: *mut lanefs_dir,
    path: *const c_char,
    mode: mode_t,
    dev: dev_t,
) -> c_int {
    call(|| {
        let dir = self::dir(dir)?;
        // SAFETY: a string or null, as the header says.
        let path = unsafe { args::path(path)? };
        let device = DeviceNumber { major: libc::major(dev), minor: libc::minor(dev) };
        dir.at().mknod(path, new_type(mode)?, device, new_attr(mode))?;
        Ok(0)
    })
}

/// Returns whether a symbolic link at the end is followed.
fn at_symlink(flags: c_int) -> Result<AtSymlink> {
    match flags {
        libc::AT_SYMLINK_NOFOLLOW => Ok(AtSymlink::NoFollow),
        _ => none_of(flags).map(|()| AtSymlink::Follow),
    }
}

fn none_of(flags: c_int) -> Result<()> {
    match flags {
        0 => Ok(()),
        _ => Err(Failure::invalid(format!("flags that the call does not have: {flags:#x}"))),
    }
}

unsafe fn set_at(
    dir: *mut lanefs_dir,
    path: *const c_char,
    set: Result<Option<SetAttr>>,
    at_end: Result<AtSymlink>,
) -> c_int {
    call(|| {
        let Some(set) = set.transpose() else { return Ok(0) };
        let dir = self::dir(dir)?;
        // SAFETY: a string or null, as the header says.
        dir.at().set_attr(unsafe { args::path(path)? }, &set?, at_end?)?;
        Ok(0)
    })
}
