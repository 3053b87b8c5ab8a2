//! Attributes: stat, chmod, chown, utimes.

use crate::answer::{Failure, Result, call};
use crate::args;
use crate::open::{file, lanefs_file, permissions};
use crate::volume::{lanefs_volume, volume};
use lanefs::{AtSymlink, Metadata, SetAttr, SetTime, Timestamp};
use libc::{c_char, c_int, gid_t, mode_t, timespec, uid_t};

/// Attributes of an inode. The names are those of stat(2).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lanefs_stat {
    /// Inode number.
    pub st_ino: u64,
    /// Type (S_IFMT) and permissions.
    pub st_mode: u32,
    /// Names. 1 for a directory with too many subdirectories to count.
    pub st_nlink: u32,
    /// Owner.
    pub st_uid: u32,
    /// Group.
    pub st_gid: u32,
    /// Of a device file: the driver.
    pub st_rdev_major: u32,
    /// Of a device file: the device.
    pub st_rdev_minor: u32,
    /// Bytes of the content.
    pub st_size: i64,
    /// Space taken, in sectors of 512 bytes.
    pub st_blocks: i64,
    /// Bytes of a block.
    pub st_blksize: u32,
    /// i_flags, as chattr(1) shows them (FS_*_FL).
    pub st_flags: u32,
    /// i_generation.
    pub st_gen: u32,
    /// Not 0 if st_btim is known.
    pub st_has_btime: u32,
    /// i_version: the first change of the file after a call that returned it increments it; this
    /// call returns it.
    pub st_version: u64,
    /// Time of the last read.
    pub st_atim: timespec,
    /// Time of the last change of the content.
    pub st_mtim: timespec,
    /// Time of the last change of the inode.
    pub st_ctim: timespec,
    /// Time of birth.
    pub st_btim: timespec,
}

pub(crate) fn stat_of(meta: &Metadata) -> lanefs_stat {
    let device = meta.device().unwrap_or(lanefs::DeviceNumber { major: 0, minor: 0 });
    let birth = meta.crtime();
    lanefs_stat {
        st_ino: meta.ino().into(),
        st_mode: meta.mode().into(),
        st_nlink: meta.nlink().into(),
        st_uid: meta.uid(),
        st_gid: meta.gid(),
        st_rdev_major: device.major,
        st_rdev_minor: device.minor,
        // Sizes of files are below 2^63: the engine refuses others.
        st_size: meta.len().cast_signed(),
        st_blocks: meta.sectors().cast_signed(),
        st_blksize: meta.block_size(),
        st_flags: meta.flags().bits(),
        st_gen: meta.generation(),
        st_has_btime: birth.is_some().into(),
        st_version: meta.version(),
        st_atim: timespec_of(meta.atime()),
        st_mtim: timespec_of(meta.mtime()),
        st_ctim: timespec_of(meta.ctime()),
        st_btim: timespec_of(birth.unwrap_or(Timestamp { sec: 0, nsec: 0 })),
    }
}

fn timespec_of(time: Timestamp) -> timespec {
    timespec { tv_sec: time.sec as libc::time_t, tv_nsec: time.nsec as libc::c_long }
}

/// Puts what there is to know of the inode at `path` into `out`; a symbolic link at the end is
/// followed.
///
/// Errors: ENOENT, ENOTDIR, ELOOP, ENAMETOOLONG, EUCLEAN, EIO, ENODEV, EBADF, EFAULT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_stat(
    volume: *mut lanefs_volume,
    path: *const c_char,
    out: *mut lanefs_stat,
) -> c_int {
    // SAFETY: passed on as they came.
    unsafe { stat_at(volume, path, AtSymlink::Follow, out) }
}

/// Reads attributes as lanefs_stat does, without following a symbolic link at the end.
///
/// Errors: as lanefs_stat.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_lstat(
    volume: *mut lanefs_volume,
    path: *const c_char,
    out: *mut lanefs_stat,
) -> c_int {
    // SAFETY: passed on as they came.
    unsafe { stat_at(volume, path, AtSymlink::NoFollow, out) }
}

unsafe fn stat_at(
    volume: *mut lanefs_volume,
    path: *const c_char,
    at_end: AtSymlink,
    out: *mut lanefs_stat,
) -> c_int {
    call(|| {
        let volume = self::volume(volume)?;
        // SAFETY: a string or null, as the header says.
        let path = unsafe { args::path(path)? };
        let meta = volume.at().metadata(path, at_end)?;
        // SAFETY: room for one or null, as the header says.
        unsafe { args::give(out, stat_of(&meta))? };
        Ok(0)
    })
}

/// Puts what there is to know of an open file into `out`.
///
/// Errors: EBADF, EFAULT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_fstat(file: *mut lanefs_file, out: *mut lanefs_stat) -> c_int {
    call(|| {
        let stat = stat_of(&self::file(file)?.metadata());
        // SAFETY: room for one or null, as the header says.
        unsafe { args::give(out, stat)? };
        Ok(0)
    })
}

/// Sets the permissions of what is at `path`, the low 12 bits of `mode`; a symbolic link at the end
/// is followed.
///
/// Errors: ENOENT, ENOTDIR, ELOOP, ENAMETOOLONG, EPERM (immutable), EROFS, ENOSPC, EUCLEAN, EIO,
/// ENODEV, EBADF, EFAULT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_chmod(
    volume: *mut lanefs_volume,
    path: *const c_char,
    mode: mode_t,
) -> c_int {
    let set = SetAttr { permissions: Some(permissions(mode)), ..SetAttr::default() };
    // SAFETY: passed on as they came.
    unsafe { set_at(volume, path, Ok(Some(set)), AtSymlink::Follow) }
}

/// Sets the permissions of an open file.
///
/// Errors: EPERM (immutable), EROFS, ENOSPC, EIO, ENODEV, EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn lanefs_fchmod(file: *mut lanefs_file, mode: mode_t) -> c_int {
    set_of(file, Ok(Some(SetAttr { permissions: Some(permissions(mode)), ..SetAttr::default() })))
}

/// Sets owner and group of what is at `path`; (uid_t)-1 and (gid_t)-1 leave them. A symbolic link
/// at the end is followed. Takes set-user-id and set-group-id from a file, as the kernel does, but
/// not if both are left: then only the time of the last change of the inode is set.
///
/// Errors: as lanefs_chmod.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_chown(
    volume: *mut lanefs_volume,
    path: *const c_char,
    uid: uid_t,
    gid: gid_t,
) -> c_int {
    // SAFETY: passed on as they came.
    unsafe { set_at(volume, path, Ok(Some(owner(uid, gid))), AtSymlink::Follow) }
}

/// Changes the owner as lanefs_chown does, without following a symbolic link at the end.
///
/// Errors: as lanefs_chmod.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_lchown(
    volume: *mut lanefs_volume,
    path: *const c_char,
    uid: uid_t,
    gid: gid_t,
) -> c_int {
    // SAFETY: passed on as they came.
    unsafe { set_at(volume, path, Ok(Some(owner(uid, gid))), AtSymlink::NoFollow) }
}

/// Sets owner and group of an open file; as lanefs_chown.
///
/// Errors: as lanefs_fchmod.
#[unsafe(no_mangle)]
pub extern "C" fn lanefs_fchown(file: *mut lanefs_file, uid: uid_t, gid: gid_t) -> c_int {
    set_of(file, Ok(Some(owner(uid, gid))))
}

pub(crate) fn owner(uid: uid_t, gid: gid_t) -> SetAttr {
    let given = |id: u32| (id != u32::MAX).then_some(id);
    SetAttr { uid: given(uid), gid: given(gid), ..SetAttr::default() }
}

/// Sets the times of the last read (`times[0]`) and the last change of the content (`times[1]`) of
/// what is at `path`. A tv_nsec of UTIME_NOW or UTIME_OMIT of <sys/stat.h> means that; `times` of
/// NULL is now for both. If both are UTIME_OMIT, the call does nothing and does not look at `path`.
/// `flags` is 0 or AT_SYMLINK_NOFOLLOW of <fcntl.h>.
///
/// Errors: as lanefs_chmod; EINVAL (nanoseconds, flags).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_utimens(
    volume: *mut lanefs_volume,
    path: *const c_char,
    times: *const timespec,
    flags: c_int,
) -> c_int {
    let at_end = if flags == libc::AT_SYMLINK_NOFOLLOW { AtSymlink::NoFollow } else { AtSymlink::Follow };
    let set = if at_end == AtSymlink::Follow && flags != 0 {
        Err(Failure::invalid(format!("flags that utimens does not have: {flags:#x}")))
    } else {
        // SAFETY: two of them or null, as the header says.
        unsafe { times_of(times) }
    };
    // SAFETY: passed on as they came.
    unsafe { set_at(volume, path, set, at_end) }
}

/// Sets the times of an open file as lanefs_utimens does.
///
/// Errors: as lanefs_fchmod; EINVAL (nanoseconds).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_futimens(file: *mut lanefs_file, times: *const timespec) -> c_int {
    // SAFETY: two of them or null, as the header says.
    set_of(file, unsafe { times_of(times) })
}

/// Decodes the two times of a utimens: `None` if both are omitted, when Linux does nothing.
///
/// # Safety
/// `times` is null or points at two of them.
pub(crate) unsafe fn times_of(times: *const timespec) -> Result<Option<SetAttr>> {
    let (atime, mtime) = if times.is_null() {
        (Some(SetTime::Now), Some(SetTime::Now))
    } else {
        // SAFETY: not null, and that there are two is the caller's word.
        let (atime, mtime) = unsafe { (times.read(), times.add(1).read()) };
        (time_of(atime)?, time_of(mtime)?)
    };
    let some = atime.is_some() || mtime.is_some();
    Ok(some.then(|| SetAttr { atime, mtime, ..SetAttr::default() }))
}

fn time_of(time: timespec) -> Result<Option<SetTime>> {
    match time.tv_nsec {
        libc::UTIME_NOW => Ok(Some(SetTime::Now)),
        libc::UTIME_OMIT => Ok(None),
        nsec => match u32::try_from(nsec).ok().filter(|nsec| *nsec < 1_000_000_000) {
            Some(nsec) => Ok(Some(SetTime::At(Timestamp { sec: time.tv_sec, nsec }))),
            None => Err(Failure::invalid(format!("{nsec} nanoseconds are no part of a second"))),
        },
    }
}

unsafe fn set_at(
    volume: *mut lanefs_volume,
    path: *const c_char,
    set: Result<Option<SetAttr>>,
    at_end: AtSymlink,
) -> c_int {
    call(|| {
        let Some(set) = set.transpose() else { return Ok(0) };
        let volume = self::volume(volume)?;
        // SAFETY: a string or null, as the header says.
        let path = unsafe { args::path(path)? };
        volume.set_attr(path, &set?, at_end)?;
        Ok(0)
    })
}

fn set_of(file: *mut lanefs_file, set: Result<Option<SetAttr>>) -> c_int {
    call(|| {
        let Some(set) = set.transpose() else { return Ok(0) };
        self::file(file)?.set_attr(&set?)?;
        Ok(0)
    })
}
