//! Why a request fails: the errno that the kernel hands to the program.

use rustix::io::Errno;

/// A failed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault(pub(crate) Errno);

/// Result of a request.
pub(crate) type Answer<T = ()> = Result<T, Fault>;

impl From<lanefs::Error> for Fault {
    fn from(e: lanefs::Error) -> Self {
        Self(Errno::from_raw_os_error(e.errno()))
    }
}

impl From<Errno> for Fault {
    fn from(e: Errno) -> Self {
        Self(e)
    }
}
