//! The files that a process was started with.
#![allow(unsafe_code)]

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Takes the files that this process was started with, but for the three standard ones, so that
/// they can be closed. No program that it starts has them any more. Finds none without `/proc`.
pub fn inherited_files() -> Vec<OwnedFd> {
    let names = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers: Vec<RawFd> = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.into_iter().filter(|number| *number > libc::STDERR_FILENO).filter_map(take).collect()
}

/// Takes a file that an exec has left open: one without FD_CLOEXEC.
fn take(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: two calls with numbers, which read and set a flag of a file.
    let is_inherited = unsafe {
        libc::fcntl(number, libc::F_GETFD) == 0 && libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) == 0
    };
    // SAFETY: no value in this process owns it. The standard library and rustix open files with
    // FD_CLOEXEC; that is so with this one too from now on, so that it is taken once.
    is_inherited.then(|| unsafe { OwnedFd::from_raw_fd(number) })
}
