//! The scheduling policy of a thread.
//!
//! It is here, and not where it is used, because no safe crate that is well kept has the call, and
//! this crate may use `unsafe`.
#![allow(unsafe_code)]

use rustix::thread::Pid;
use std::io;

/// Makes a thread, the caller for `None`, run only while its processor has nothing else to do
/// (SCHED_IDLE), or again as all others do (SCHED_OTHER).
///
/// # Errors
/// EPERM for the way back, if the process may not change its priorities (CAP_SYS_NICE,
/// RLIMIT_NICE); ESRCH if there is no such thread.
pub fn set_idle_policy(thread: Option<Pid>, idle: bool) -> io::Result<()> {
    let policy = if idle { libc::SCHED_IDLE } else { libc::SCHED_OTHER };
    // SAFETY: all zeroes are a valid value of this plain structure, and the one that both policies
    // ask for.
    let param: libc::sched_param = unsafe { std::mem::zeroed() };
    // The system call itself, which means one thread: in POSIX the function means a process, and
    // musl refuses it. SAFETY: the kernel only reads `param`, which outlives the call.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_setscheduler, Pid::as_raw(thread), policy, &raw const param) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
