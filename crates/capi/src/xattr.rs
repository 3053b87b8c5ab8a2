//! Extended attributes. Names are whole ("user.mime", "security.capability",
//! "system.posix_acl_access").

use crate::answer::{Failure, Result, call};
use crate::args;
use crate::open::{file, lanefs_file};
use crate::volume::{lanefs_volume, volume};
use lanefs::SetXattr;
use libc::{c_char, c_int, c_void, ssize_t};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// For lanefs_lsetxattr: the attribute must not exist (XATTR_CREATE).
pub const LANEFS_XATTR_CREATE: c_int = 1;
/// For lanefs_lsetxattr: the attribute must exist (XATTR_REPLACE).
pub const LANEFS_XATTR_REPLACE: c_int = 2;

/// Puts the value of an attribute into `value`; how many bytes it has. `size` of 0 only asks that.
/// A symbolic link at the end is not followed, here and in the other calls on attributes of paths.
///
/// Errors: ENODATA (no such attribute), ERANGE (no room; a name that is too long), EOPNOTSUPP (a
/// name without a known prefix), ENOENT, ENOTDIR, ELOOP, ENAMETOOLONG, EUCLEAN, EIO, ENODEV, EBADF,
/// EFAULT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_lgetxattr(
    volume: *mut lanefs_volume,
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    size: usize,
) -> ssize_t {
    call(|| {
        let volume = self::volume(volume)?;
        // SAFETY: strings or null, as the header says.
        let (path, name) = unsafe { (args::path(path)?, args::os(name)?) };
        let found = volume.xattr(path, name)?;
        // SAFETY: `size` bytes or null, as the header says.
        hand_out(&found, unsafe { args::memory_mut(value, size)? })
    })
}

/// Puts the names of all attributes into `list`, each with a NUL behind it; how many bytes they
/// have. `size` of 0 only asks that.
///
/// Errors: ERANGE (no room), otherwise as lanefs_lgetxattr.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_llistxattr(
    volume: *mut lanefs_volume,
    path: *const c_char,
    list: *mut c_char,
    size: usize,
) -> ssize_t {
    call(|| {
        let volume = self::volume(volume)?;
        // SAFETY: a string or null, as the header says.
        let names = volume.xattr_names(unsafe { args::path(path)? })?;
        // SAFETY: `size` bytes or null, as the header says.
        hand_out(&joined(&names), unsafe { args::memory_mut(list.cast(), size)? })
    })
}

/// Returns the names, each with a NUL behind it.
fn joined(names: &[OsString]) -> Vec<u8> {
    names.iter().flat_map(|name| name.as_bytes().iter().chain(b"\0")).copied().collect()
}

fn hand_out(found: &[u8], room: &mut [u8]) -> Result<ssize_t> {
    if !room.is_empty() {
        let room = room.get_mut(..found.len()).ok_or(lanefs::Error::Range)?;
        room.copy_from_slice(found);
    }
    Ok(found.len().cast_signed())
}

/// Sets an attribute. `flags` is 0, LANEFS_XATTR_CREATE or LANEFS_XATTR_REPLACE.
///
/// Errors: EEXIST and ENODATA (by `flags`), ENOSPC (it fits nowhere), E2BIG (more than 65536
/// bytes), ERANGE (the name's length), EOPNOTSUPP (a name without a known prefix), EINVAL (flags),
/// EPERM, EROFS, ENOENT, ENOTDIR, ELOOP, ENAMETOOLONG, EUCLEAN, EIO, ENODEV, EBADF, EFAULT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_lsetxattr(
    volume: *mut lanefs_volume,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    size: usize,
    flags: c_int,
) -> c_int {
    call(|| {
        let volume = self::volume(volume)?;
        // SAFETY: strings, and `size` bytes, or null, as the header says.
        let (path, name, value) = unsafe { (args::path(path)?, args::os(name)?, args::memory(value, size)?) };
        volume.set_xattr(path, name, value, how_of(flags)?)?;
        Ok(0)
    })
}

fn how_of(flags: c_int) -> Result<SetXattr> {
    match flags {
        0 => Ok(SetXattr::Any),
        LANEFS_XATTR_CREATE => Ok(SetXattr::Create),
        LANEFS_XATTR_REPLACE => Ok(SetXattr::Replace),
        _ => Err(Failure::invalid(format!("flags that setxattr does not have: {flags:#x}"))),
    }
}

/// Removes an attribute.
///
/// Errors: ENODATA, otherwise as lanefs_lsetxattr.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_lremovexattr(
    volume: *mut lanefs_volume,
    path: *const c_char,
    name: *const c_char,
) -> c_int {
    call(|| {
        let volume = self::volume(volume)?;
        // SAFETY: strings or null, as the header says.
        let (path, name) = unsafe { (args::path(path)?, args::os(name)?) };
        volume.remove_xattr(path, name)?;
        Ok(0)
    })
}

/// Puts the value of an attribute of an open file into `value`, as lanefs_lgetxattr does.
///
/// Errors: ENODATA (no such attribute), ERANGE (no room; a name that is too long), EOPNOTSUPP (a
/// name without a known prefix), EUCLEAN, EIO, ENODEV, EBADF, EFAULT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_fgetxattr(
    file: *mut lanefs_file,
    name: *const c_char,
    value: *mut c_void,
    size: usize,
) -> ssize_t {
    call(|| {
        let file = self::file(file)?;
        // SAFETY: a string or null, as the header says.
        let found = file.xattr(unsafe { args::os(name)? })?;
        // SAFETY: `size` bytes or null, as the header says.
        hand_out(&found, unsafe { args::memory_mut(value, size)? })
    })
}

/// Puts the names of all attributes of an open file into `list`, as lanefs_llistxattr does.
///
/// Errors: ERANGE (no room), otherwise as lanefs_fgetxattr.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_flistxattr(
    file: *mut lanefs_file,
    list: *mut c_char,
    size: usize,
) -> ssize_t {
    call(|| {
        let names = self::file(file)?.xattr_names()?;
        // SAFETY: `size` bytes or null, as the header says.
        hand_out(&joined(&names), unsafe { args::memory_mut(list.cast(), size)? })
    })
}

/// Sets an attribute of an open file, which may be open for reading only, and may have no name.
/// `flags` is 0, LANEFS_XATTR_CREATE or LANEFS_XATTR_REPLACE.
///
/// Errors: EEXIST and ENODATA (by `flags`), ENOSPC (it fits nowhere), E2BIG (more than 65536
/// bytes), ERANGE (the name's length), EOPNOTSUPP (a name without a known prefix), EINVAL (flags),
/// EPERM, EROFS, EUCLEAN, EIO, ENODEV, EBADF, EFAULT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_fsetxattr(
    file: *mut lanefs_file,
    name: *const c_char,
    value: *const c_void,
    size: usize,
    flags: c_int,
) -> c_int {
    call(|| {
        let file = self::file(file)?;
        // SAFETY: a string, and `size` bytes, or null, as the header says.
        let (name, value) = unsafe { (args::os(name)?, args::memory(value, size)?) };
        file.set_xattr(name, value, how_of(flags)?)?;
        Ok(0)
    })
}

/// Removes an attribute of an open file.
///
/// Errors: ENODATA, otherwise as lanefs_fsetxattr.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_fremovexattr(file: *mut lanefs_file, name: *const c_char) -> c_int {
    call(|| {
        // SAFETY: a string or null, as the header says.
        self::file(file)?.remove_xattr(unsafe { args::os(name)? })?;
        Ok(0)
    })
}
