//! The seccomp filters: which system calls are left.
//!
//! Three filters, of which the strictest answer counts:
//! - [`DEADLY`] ends the process. Only an attacker asks for these.
//! - [`UNKNOWN`] is as on a kernel without these calls, and the C library takes another way.
//! - All calls but [`FREE`] and [`bounded`] fail with EPERM.
//!
//! The kernel (5.11 and later) knows that a call of [`FREE`] is allowed without running a filter.
//! So nearly all calls of a server cost as much as without filters.

use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};
use std::collections::BTreeMap;

/// Calls that end the process: other programs, other processes, mounts, namespaces, the kernel
/// itself.
const DEADLY: &[c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_open_by_handle_at,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
];

/// Calls whose flags lie in memory, where no filter can look. The C library falls back to clone(2).
const UNKNOWN: &[c_long] = &[libc::SYS_clone3];

/// Calls that are allowed whatever their arguments are.
const FREE: &[c_long] = &[
    // Open files: the volume, the mount's connection, pipes.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_lseek,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_flock,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_chdir,
    libc::SYS_io_uring_enter,
    // Open sockets.
    libc::SYS_listen,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_ppoll,
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_msync,
    libc::SYS_membarrier,
    // Threads.
    libc::SYS_clone3,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_setsid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_getparam,
    libc::SYS_getcpu,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Signals that arrive.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    // Time and chance.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    // What the system is.
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getrusage,
];

/// Calls of [`FREE`] that newer machines do not have.
#[cfg(target_arch = "x86_64")]
const FREE_OF_OLD: &[c_long] =
    &[libc::SYS_poll, libc::SYS_dup2, libc::SYS_time, libc::SYS_getrlimit, libc::SYS_arch_prctl];
#[cfg(not(target_arch = "x86_64"))]
const FREE_OF_OLD: &[c_long] = &[];

/// A condition on one argument of a system call.
struct Only {
    argument: u8,
    len: SeccompCmpArgLen,
    mask: u64,
    value: u64,
}

/// Returns the condition that an argument of 32 bits is `value`.
const fn equal(argument: u8, value: u64) -> Only {
    Only { argument, len: SeccompCmpArgLen::Dword, mask: u32::MAX as u64, value }
}

/// Returns the condition that the bits of `mask` in an argument of 64 bits are `value`.
const fn masked(argument: u8, mask: u64, value: u64) -> Only {
    Only { argument, len: SeccompCmpArgLen::Qword, mask, value }
}

/// BLKDISCARD of linux/fs.h.
const BLKDISCARD: u64 = 0x1277;
/// FIONBIO of asm-generic/ioctls.h: the C libraries disagree about its type.
const FIONBIO: u64 = 0x5421;
/// PR_SET_VMA of linux/prctl.h, by which the C library names its memory.
const PR_SET_VMA: u64 = 0x5356_4d41;
/// PR_GET_AUXV of linux/prctl.h: what the kernel told this process when it began.
const PR_GET_AUXV: u64 = 0x4155_5856;
/// IORING_UNREGISTER_FILES of linux/io_uring.h.
const UNREGISTER_FILES: u64 = 3;
/// O_TMPFILE without the flag of a folder that is part of it.
const TMPFILE: i32 = libc::O_TMPFILE & !libc::O_DIRECTORY;

/// Returns the calls that are allowed for some arguments only. Each line is one way.
fn bounded() -> Vec<(c_long, Vec<Only>)> {
    let no_code = || vec![masked(2, libc::PROT_EXEC as u64, 0)];
    let changes = libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | libc::O_PATH | TMPFILE;
    let namespaces = libc::CLONE_NEWNS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET;
    let mut all = vec![
        (libc::SYS_mmap, no_code()),
        (libc::SYS_mprotect, no_code()),
        // For reading.
        (libc::SYS_openat, vec![masked(2, changes as u64, libc::O_RDONLY as u64)]),
        // A thread, and no process.
        (
            libc::SYS_clone,
            vec![masked(0, (libc::CLONE_THREAD | namespaces) as u64, libc::CLONE_THREAD as u64)],
        ),
        // No address: what the socket is connected to.
        (libc::SYS_sendto, vec![masked(4, u64::MAX, 0)]),
        // To look at a limit of its own.
        (libc::SYS_prlimit64, vec![equal(0, 0), masked(2, u64::MAX, 0)]),
        (libc::SYS_tgkill, vec![equal(0, u64::from(std::process::id()))]),
        (libc::SYS_io_uring_register, vec![equal(1, UNREGISTER_FILES)]),
    ];
    #[cfg(target_arch = "x86_64")]
    all.push((libc::SYS_open, vec![masked(1, changes as u64, libc::O_RDONLY as u64)]));
    let one_of = |call, argument, values: &[u64]| -> Vec<(c_long, Vec<Only>)> {
        values.iter().map(|value| (call, vec![equal(argument, *value)])).collect()
    };
    let commands = [
        libc::F_DUPFD_CLOEXEC,
        libc::F_GETFD,
        libc::F_SETFD,
        libc::F_GETFL,
        libc::F_SETFL,
        // The end of a partition's lock.
        libc::F_OFD_SETLK,
    ];
    all.extend(one_of(libc::SYS_fcntl, 1, &commands.map(|command| command as u64)));
    all.extend(one_of(libc::SYS_ioctl, 1, &[BLKDISCARD, FIONBIO]));
    all.extend(one_of(libc::SYS_prctl, 0, &[libc::PR_SET_NAME as u64, PR_SET_VMA, PR_GET_AUXV]));
    // Of the calling thread.
    all.push((libc::SYS_sched_setaffinity, vec![equal(0, 0)]));
    for policy in [libc::SCHED_OTHER as u64, libc::SCHED_IDLE as u64] {
        all.push((libc::SYS_sched_setscheduler, vec![equal(0, 0), equal(1, policy)]));
    }
    all
}

type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

fn always(calls: &[c_long]) -> Rules {
    calls.iter().map(|call| (*call, Vec::new())).collect()
}

fn allowed() -> Result<Rules, BackendError> {
    let mut rules = always(FREE);
    rules.extend(always(FREE_OF_OLD));
    for (call, conditions) in bounded() {
        let compare = |only: Only| {
            let op = SeccompCmpOp::MaskedEq(only.mask);
            SeccompCondition::new(only.argument, only.len, op, only.value)
        };
        let conditions = conditions.into_iter().map(compare).collect::<Result<_, _>>()?;
        rules.entry(call).or_default().push(SeccompRule::new(conditions)?);
    }
    Ok(rules)
}

/// Returns the three filters.
fn filters(arch: TargetArch) -> Result<[BpfProgram; 3], BackendError> {
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    let unknown = SeccompAction::Errno(libc::ENOSYS as u32);
    Ok([
        SeccompFilter::new(always(DEADLY), SeccompAction::Allow, SeccompAction::KillProcess, arch)?
            .try_into()?,
        SeccompFilter::new(always(UNKNOWN), SeccompAction::Allow, unknown, arch)?.try_into()?,
        SeccompFilter::new(allowed()?, refused, SeccompAction::Allow, arch)?.try_into()?,
    ])
}

/// Returns whether the kernel, and this crate for this processor, have seccomp filters.
///
/// # Errors
/// The errors of a seccomp that is there.
pub(crate) fn confine() -> Result<bool, Error> {
    let Ok(arch) = TargetArch::try_from(std::env::consts::ARCH) else { return Ok(false) };
    for program in filters(arch)? {
        match seccompiler::apply_filter(&program) {
            Err(Error::Seccomp(e)) if is_missing(&e) => return Ok(false),
            done => done?,
        }
    }
    Ok(true)
}

/// Returns whether the kernel has no such call, or no filters.
fn is_missing(e: &std::io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL))
}

#[cfg(test)]
mod tests;
