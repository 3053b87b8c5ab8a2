//! Converts a result into its form for C: -1 or null, errno, and a message for people.

use libc::{c_char, c_int, ssize_t};
use std::cell::RefCell;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A call that failed.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    errno: c_int,
    message: String,
}

/// Result of a call before it becomes C's.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(errno: c_int, message: impl Into<String>) -> Self {
        Self { errno, message: message.into() }
    }

    pub(crate) fn errno(&self) -> c_int {
        self.errno
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(libc::EINVAL, message)
    }
}

impl From<lanefs::Error> for Failure {
    fn from(e: lanefs::Error) -> Self {
        Self::new(e.errno(), e.to_string())
    }
}

/// A type that a function of the header returns.
pub(crate) trait Answer {
    /// The value that says that the call failed.
    const FAILED: Self;
}

impl Answer for c_int {
    const FAILED: Self = -1;
}

impl Answer for i64 {
    const FAILED: Self = -1;
}

impl Answer for ssize_t {
    const FAILED: Self = -1;
}

impl<T> Answer for *mut T {
    const FAILED: Self = std::ptr::null_mut();
}

thread_local! {
    /// The message of the last call of this thread that failed.
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs a call, and turns what comes of it into C's terms. Nothing unwinds out of it.
pub(crate) fn call<T: Answer>(run: impl FnOnce() -> Result<T>) -> T {
    // What a panic leaves half done is behind the locks of the engine, which are not poisoned; the
    // error says to stop.
    let failure = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(answer)) => return answer,
        Ok(Err(failure)) => failure,
        Err(payload) => {
            // Its destructor is anybody's code.
            std::mem::forget(payload);
            Failure::new(libc::EIO, "lanefs failed inside: this is a bug")
        }
    };
    let message = CString::new(failure.message.replace('\0', "")).unwrap_or_default();
    // A thread that is ending has no message any more.
    let _ = LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            *last = message;
        }
    });
    set_errno(failure.errno);
    T::FAILED
}

fn set_errno(errno: c_int) {
    // SAFETY: the address is that of the calling thread's own errno.
    unsafe { *libc::__errno_location() = errno };
}

/// Describes the last failed call of this thread for people, in English. It says more than
/// strerror(errno), such as which structure of the volume breaks which rule. Never NULL; empty if
/// no call has failed. Valid until the next call of this thread that fails, or the thread's end.
/// Does not change errno.
#[unsafe(no_mangle)]
pub extern "C" fn lanefs_last_error() -> *const c_char {
    const NOTHING: &std::ffi::CStr = c"";
    LAST.try_with(|last| last.try_borrow().map_or(NOTHING.as_ptr(), |last| last.as_ptr()))
        .unwrap_or(NOTHING.as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn last() -> String {
        // SAFETY: valid until this thread's next failure.
        unsafe { CStr::from_ptr(lanefs_last_error()) }.to_str().unwrap().to_owned()
    }

    fn errno() -> i32 {
        std::io::Error::last_os_error().raw_os_error().unwrap()
    }

    #[test]
    fn failures_reach_the_thread_that_called() {
        assert_eq!(call(|| Ok(7)), 7);
        assert_eq!(call::<c_int>(|| Err(Failure::new(libc::ENOSPC, "no\0 room"))), -1);
        assert_eq!((errno(), last().as_str()), (libc::ENOSPC, "no room"));
        std::thread::spawn(|| assert_eq!(last(), "")).join().unwrap();
        assert!(call::<*mut u8>(|| Err(lanefs::Error::NotFound.into())).is_null());
        assert_eq!((errno(), last().as_str()), (libc::ENOENT, "No such file or directory"));
        // A success leaves it.
        assert_eq!(call(|| Ok(7)), 7);
        assert_eq!(last(), "No such file or directory");
    }

    #[test]
    fn a_panic_ends_at_the_border() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("the payload's own");
            }
        }
        assert_eq!(call::<i64>(|| std::panic::panic_any(Bomb)), -1);
        assert_eq!(errno(), libc::EIO);
        assert!(last().contains("bug"));
    }
}
