//! Linux's error numbers, which lanefs gives on every system: what the kernel's ext4 answers has no
//! number elsewhere.

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

/// Returns the errno of a system's error, `None` if it has none.
#[cfg(target_os = "linux")]
pub fn of(e: &io::Error) -> Option<i32> {
    e.raw_os_error()
}

/// Returns the errno of a system's error, `None` if Linux has none of this kind.
#[cfg(not(target_os = "linux"))]
pub fn of(e: &io::Error) -> Option<i32> {
    e.raw_os_error()?;
    KINDS.iter().find(|(_, kind)| *kind == e.kind()).map(|(errno, _)| *errno)
}

/// Returns the kind of error of an errno.
#[cfg(target_os = "linux")]
pub fn kind(errno: i32) -> io::ErrorKind {
    io::Error::from_raw_os_error(errno).kind()
}

/// Returns the kind of error of an errno.
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
