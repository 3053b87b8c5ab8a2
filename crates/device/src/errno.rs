//! Linux's error numbers, on every system.
//!
//! lanefs reports an error by the number that the kernel's ext4 answers with. Other systems have
//! other numbers, or none for some of these errors.
//!
//! ```
//! use lanefs_device::errno;
//!
//! let missing = std::fs::File::open("no such file").unwrap_err();
//! assert_eq!(errno::of(&missing), Some(errno::ENOENT));
//! assert_eq!(errno::kind(errno::ENOENT), std::io::ErrorKind::NotFound);
//! ```

use std::io;

macro_rules! numbers {
    ($($name:ident)*) => { $(
        #[allow(missing_docs, reason = "errno(3) has them")]
        pub const $name: i32 = linux_raw_sys::errno::$name.cast_signed();
    )* };
}

numbers! {
    E2BIG EACCES EAGAIN EBADF EBUSY EEXIST EFBIG EINVAL EIO EISDIR ELOOP EMFILE EMLINK ENAMETOOLONG
    ENODATA ENODEV ENOENT ENOMEM ENOSPC ENOTDIR ENOTEMPTY ENXIO EOPNOTSUPP EPERM ERANGE EROFS ESTALE
    ETXTBSY EUCLEAN EXDEV
}

/// Returns the errno of an error of the operating system.
///
/// Returns `None` for an error that a library made, such as one of [`io::Error::other`].
#[cfg(target_os = "linux")]
pub fn of(e: &io::Error) -> Option<i32> {
    e.raw_os_error()
}

/// Returns Linux's errno for an error of the operating system, found by its kind.
///
/// Returns `None` for an error that a library made, such as one of [`io::Error::other`], and for a
/// kind that no errno here has.
#[cfg(not(target_os = "linux"))]
pub fn of(e: &io::Error) -> Option<i32> {
    e.raw_os_error()?;
    KINDS.iter().find(|(_, kind)| *kind == e.kind()).map(|(errno, _)| *errno)
}

/// Returns the kind of the errors with this errno.
#[cfg(target_os = "linux")]
pub fn kind(errno: i32) -> io::ErrorKind {
    io::Error::from_raw_os_error(errno).kind()
}

/// Returns the kind of the errors with this errno, [`io::ErrorKind::Other`] for a number that is
/// not among those of this module.
#[cfg(not(target_os = "linux"))]
pub fn kind(errno: i32) -> io::ErrorKind {
    KINDS.iter().find(|(number, _)| *number == errno).map_or(io::ErrorKind::Other, |(_, kind)| *kind)
}

/// The first of two numbers with one kind is the one that the kind stands for.
#[cfg(any(test, not(target_os = "linux")))]
const KINDS: [(i32, io::ErrorKind); 23] = {
    use io::ErrorKind as Kind;
    [
        (E2BIG, Kind::ArgumentListTooLong),
        (EACCES, Kind::PermissionDenied),
        (EPERM, Kind::PermissionDenied),
        (EAGAIN, Kind::WouldBlock),
        (EBUSY, Kind::ResourceBusy),
        (EEXIST, Kind::AlreadyExists),
        (EFBIG, Kind::FileTooLarge),
        (EINVAL, Kind::InvalidInput),
        (EISDIR, Kind::IsADirectory),
        (EMLINK, Kind::TooManyLinks),
        (ENAMETOOLONG, Kind::InvalidFilename),
        (ENOENT, Kind::NotFound),
        (ENOMEM, Kind::OutOfMemory),
        (ENOSPC, Kind::StorageFull),
        (ENOTDIR, Kind::NotADirectory),
        (ENOTEMPTY, Kind::DirectoryNotEmpty),
        (EOPNOTSUPP, Kind::Unsupported),
        (EROFS, Kind::ReadOnlyFilesystem),
        (ESTALE, Kind::StaleNetworkFileHandle),
        (ETXTBSY, Kind::ExecutableFileBusy),
        (EXDEV, Kind::CrossesDevices),
        (EIO, Kind::Other),
        (EIO, Kind::UnexpectedEof),
    ]
};

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_those_of_linux() {
        for (errno, expected) in KINDS.into_iter().filter(|(errno, _)| *errno != EIO) {
            assert_eq!(kind(errno), expected, "{errno}");
        }
    }
}
