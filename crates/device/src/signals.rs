//! Signals belong to the program: no thread of the library takes one.

use std::mem::MaybeUninit;

/// Blocks the signals of the calling thread until it is dropped. A thread that the caller starts
/// meanwhile inherits the blocked mask and keeps it.
///
/// Signals that a fault of the thread itself raises are left alone. Blocked, they would end the
/// program without its handler.
#[derive(Debug)]
pub(crate) struct Blocked {
    before: libc::sigset_t,
}

impl Blocked {
    pub(crate) fn new() -> Self {
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
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: `before` is a mask that the thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}
