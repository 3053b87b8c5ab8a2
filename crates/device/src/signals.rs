//! Signals belong to the program: no thread of the library takes one.
//!
//! A thread inherits the signals that the thread blocks that starts it. The library starts a thread
//! while it holds a [`BlockedSignals`].

#![allow(unsafe_code, reason = "the masks of threads are set by libc calls")]

#[cfg(unix)]
use std::mem::MaybeUninit;

/// Blocks the signals of the calling thread until it is dropped. A thread that the caller starts
/// meanwhile inherits the blocked mask and keeps it. Does nothing on systems without signals.
///
/// Signals that a fault of the thread itself raises are left alone. Blocked, they would end the
/// program without its handler.
#[derive(Debug)]
#[must_use]
pub struct BlockedSignals {
    #[cfg(unix)]
    before: libc::sigset_t,
}

impl BlockedSignals {
    /// Blocks all signals of the calling thread but those of its own faults.
    #[cfg(unix)]
    #[expect(clippy::new_without_default, reason = "it changes the thread")]
    pub fn new() -> Self {
        const FAULTS: [libc::c_int; 6] =
            [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: sigfillset initialises `all` for the calls behind it, and pthread_sigmask
        // initialises `before`. Neither fails for these arguments.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            for fault in FAULTS {
                libc::sigdelset(all.as_mut_ptr(), fault);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
            Self { before: before.assume_init() }
        }
    }

    /// Does nothing.
    #[cfg(not(unix))]
    #[expect(clippy::new_without_default, reason = "as where there are signals")]
    pub fn new() -> Self {
        Self {}
    }
}

#[cfg(unix)]
impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: `before` is a mask that the thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}
