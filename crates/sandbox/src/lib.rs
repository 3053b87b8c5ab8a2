//! The sandbox of a process that has opened all that it needs: it keeps its open files, and gets
//! nothing new.
//!
//! [`enter`] confines the calling thread and the threads that it makes afterwards, in this order:
//! `privileges` drops capabilities, `files` is the Landlock domain, `calls` are the seccomp
//! filters. None of it can be undone.
//!
//! What a confined process still can do:
//! - read, write and trim its open files, among them the volume, and use its open sockets;
//! - read files below `/proc` that need no right over another process;
//! - make threads, take memory that holds no code, wait, and end.
//!
//! Hazards:
//! - Threads that exist already stay outside. So it is called before the first thread is made.
//! - A system call of an io_uring is seen by Landlock and not by seccomp. So no ring can be made,
//!   and the rings that exist must be restricted.

#![forbid(unsafe_code)]

mod calls;
mod files;
mod privileges;

use rustix::io::Errno;

/// The parts of the sandbox that the kernel lacks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Missing {
    /// There is no Landlock: files that the user may read can be opened for reading.
    pub landlock: bool,
    /// There is no seccomp filter: all system calls are there.
    pub seccomp: bool,
}

impl Missing {
    /// Returns one line that names what is missing, `None` if nothing is.
    pub fn text(self) -> Option<&'static str> {
        match (self.landlock, self.seccomp) {
            (false, false) => None,
            (true, false) => Some("this kernel has no Landlock"),
            (false, true) => Some("this kernel has no seccomp filters"),
            (true, true) => Some("this kernel has neither Landlock nor seccomp filters"),
        }
    }
}

/// The reason why a process cannot be confined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Capabilities could not be dropped.
    #[error("capabilities: {0}")]
    Privileges(#[source] Errno),
    /// Landlock is there and failed.
    #[error("Landlock: {0}")]
    Landlock(#[from] landlock::RulesetError),
    /// seccomp is there and failed.
    #[error("seccomp: {0}")]
    Seccomp(#[source] seccompiler::Error),
}

/// Confines the calling thread, and all threads that it makes from now on. Returns what the kernel
/// does not have; the rest is in force then.
///
/// # Errors
/// [`Error`]. A part of it is in force then.
pub fn enter() -> Result<Missing, Error> {
    privileges::drop_all().map_err(Error::Privileges)?;
    let landlock = !files::confine()?;
    let seccomp = !calls::confine().map_err(Error::Seccomp)?;
    Ok(Missing { landlock, seccomp })
}
