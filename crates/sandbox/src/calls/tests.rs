//! What the filters answer, call by call and bit by bit. An interpreter runs them, so that calls
//! are tried too which safe code cannot make, and numbers that no call has.

use super::*;
use libc::{SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, SECCOMP_RET_KILL_PROCESS};

const EPERM: u32 = SECCOMP_RET_ERRNO | libc::EPERM as u32;
const ENOSYS: u32 = SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
/// Higher than the number of any call.
const NUMBERS: c_long = 1024;
/// The bit of calls of the x32 interface.
const X32: c_long = 0x4000_0000;

/// A system call, as a filter sees it: seccomp_data of linux/seccomp.h in words.
fn words(arch: u32, call: c_long, arguments: [u64; 6]) -> [u32; 16] {
    let mut words = [0; 16];
    (words[0], words[1]) = (call as u32, arch);
    for (to, argument) in words[4..].chunks_exact_mut(2).zip(arguments) {
        to.copy_from_slice(&[argument as u32, (argument >> 32) as u32]);
    }
    words
}

/// Runs one filter: the part of classic BPF that there is in filters.
fn run(program: &BpfProgram, data: &[u32; 16]) -> u32 {
    let (mut at, mut register) = (0, 0);
    loop {
        let one = &program[at];
        let jump = |taken: bool| usize::from(if taken { one.jt } else { one.jf });
        at += 1 + match one.code {
            0x20 => {
                register = data[one.k as usize / 4];
                0
            }
            0x54 => {
                register &= one.k;
                0
            }
            0x05 => one.k as usize,
            0x15 => jump(register == one.k),
            0x25 => jump(register > one.k),
            0x35 => jump(register >= one.k),
            0x06 => return one.k,
            code => panic!("instruction {code:#x}"),
        };
    }
}

/// Returns the strictest answer of all filters, as the kernel does: kill, errno, allow.
fn answer_of(programs: &[BpfProgram], data: &[u32; 16]) -> u32 {
    let answers = programs.iter().map(|program| run(program, data));
    answers.min_by_key(|answer| (answer & libc::SECCOMP_RET_ACTION_FULL).cast_signed()).unwrap()
}

fn here() -> ([BpfProgram; 3], u32) {
    let arch = TargetArch::try_from(std::env::consts::ARCH).unwrap();
    let audit = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };
    (filters(arch).unwrap(), audit)
}

/// What the sandbox promises of calls whose arguments count, said once more and in another way.
/// `None` of all other calls.
fn is_promised(call: c_long, [a, b, c, _, e, _]: [u64; 6]) -> Option<bool> {
    let reads = |flags: u64| {
        let flags = flags as i32;
        flags & libc::O_ACCMODE == libc::O_RDONLY
            && flags & (libc::O_CREAT | libc::O_TRUNC | libc::O_PATH) == 0
            && flags & libc::O_TMPFILE & !libc::O_DIRECTORY == 0
    };
    let low = |argument: u64| argument as u32;
    #[cfg(target_arch = "x86_64")]
    if call == libc::SYS_open {
        return Some(reads(b));
    }
    Some(match call {
        libc::SYS_mmap | libc::SYS_mprotect => c as i32 & libc::PROT_EXEC == 0,
        libc::SYS_openat => reads(c),
        // Files, descriptors and memory are shared or copied as the caller likes; the namespaces
        // of clone(2) lie between cgroups and the network.
        libc::SYS_clone => low(a) & 0x0001_0000 != 0 && low(a) & 0x7e02_0000 == 0,
        libc::SYS_sendto => e == 0,
        libc::SYS_prlimit64 => low(a) == 0 && c == 0,
        libc::SYS_tgkill => low(a) == std::process::id(),
        libc::SYS_io_uring_register => low(b) == 3,
        libc::SYS_fcntl => matches!(low(b), 1..=4 | 37 | 1030),
        libc::SYS_ioctl => matches!(low(b), 0x1277 | 0x5421),
        libc::SYS_prctl => matches!(low(a), 15 | 0x5356_4d41 | 0x4155_5856),
        libc::SYS_sched_setaffinity => low(a) == 0,
        libc::SYS_sched_setscheduler => low(a) == 0 && matches!(low(b), 0 | 5),
        _ => return None,
    })
}

/// Returns arguments of each kind: the allowed ones, all bits clear and all bits set.
fn samples() -> Vec<[u64; 6]> {
    let mut all = vec![[0; 6], [u64::MAX; 6]];
    for (_, conditions) in bounded() {
        let mut arguments = [0; 6];
        for only in conditions {
            arguments[usize::from(only.argument)] = only.value;
        }
        all.push(arguments);
    }
    all
}

#[test]
fn every_bit_of_every_argument_counts_as_promised() {
    let (programs, arch) = here();
    let mut wrong = Vec::new();
    for call in (0..NUMBERS).chain(X32..X32 + NUMBERS) {
        let list = |list: &[c_long]| list.contains(&call);
        for sample in samples() {
            // Of other calls no argument is looked at.
            let bits = if is_promised(call, sample).is_some() { 6 * 64 } else { 0 };
            for flipped in 0..=bits {
                let mut arguments = sample;
                if flipped > 0 {
                    arguments[(flipped - 1) / 64] ^= 1 << ((flipped - 1) % 64);
                }
                let expected = match is_promised(call, arguments) {
                    _ if list(DEADLY) => SECCOMP_RET_KILL_PROCESS,
                    _ if list(UNKNOWN) => ENOSYS,
                    Some(true) => SECCOMP_RET_ALLOW,
                    Some(false) => EPERM,
                    None if list(FREE) || list(FREE_OF_OLD) => SECCOMP_RET_ALLOW,
                    None => EPERM,
                };
                let answer = answer_of(&programs, &words(arch, call, arguments));
                if answer != expected {
                    wrong.push(format!("{call} {arguments:x?}: {answer:#x}, promised is {expected:#x}"));
                }
            }
        }
    }
    wrong.truncate(10);
    assert!(wrong.is_empty(), "calls are answered otherwise than promised\n{}", wrong.join("\n"));
}

/// Each of them is a way out, whatever its arguments are: by names, processes, sockets, users,
/// limits, memory with code in it, rings. Some have a pointer where a filter cannot look.
const NEVER: &[c_long] = &[
    libc::SYS_openat2,
    libc::SYS_name_to_handle_at,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_unlinkat,
    libc::SYS_symlinkat,
    libc::SYS_linkat,
    libc::SYS_renameat2,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_truncate,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_fsetxattr,
    libc::SYS_copy_file_range,
    libc::SYS_memfd_create,
    libc::SYS_memfd_secret,
    libc::SYS_pkey_mprotect,
    libc::SYS_remap_file_pages,
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_msgget,
    libc::SYS_semget,
    libc::SYS_mq_open,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_kcmp,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    libc::SYS_setpriority,
    libc::SYS_ioprio_set,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setattr,
    libc::SYS_setpgid,
    libc::SYS_setrlimit,
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_setsockopt,
    libc::SYS_io_uring_setup,
    libc::SYS_io_setup,
    libc::SYS_io_submit,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_capset,
    libc::SYS_personality,
    libc::SYS_seccomp,
    libc::SYS_fanotify_init,
    libc::SYS_quotactl,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_sethostname,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_vhangup,
    libc::SYS_lookup_dcookie,
];

#[test]
fn no_argument_opens_a_way_out() {
    let (programs, arch) = here();
    for call in NEVER.iter().chain(DEADLY) {
        for arguments in samples() {
            let answer = answer_of(&programs, &words(arch, *call, arguments));
            assert!(
                [EPERM, SECCOMP_RET_KILL_PROCESS].contains(&answer),
                "call {call} is allowed: {arguments:x?}"
            );
        }
    }
}

/// Numbers mean other calls there.
#[test]
fn the_calls_of_another_machine_end_the_process() {
    let (programs, arch) = here();
    // i386, and the other of two machines.
    for other in [0x4000_0003, arch ^ 0x89] {
        for call in 0..NUMBERS {
            let answer = answer_of(&programs, &words(other, call, [0; 6]));
            assert_eq!(answer, SECCOMP_RET_KILL_PROCESS, "machine {other:#x}, call {call}");
        }
    }
}

/// A deadly call on another list would still end the process. A bounded call that is also free
/// would lose its bounds.
#[test]
fn the_lists_are_disjoint() {
    let free: Vec<c_long> = FREE.iter().chain(FREE_OF_OLD).copied().collect();
    let bounded: Vec<c_long> = bounded().into_iter().map(|(call, _)| call).collect();
    assert!(DEADLY.iter().all(|call| !free.contains(call) && !bounded.contains(call)));
    assert!(bounded.iter().all(|call| !free.contains(call)));
    // The filter of unknown calls must be the stricter one.
    assert!(UNKNOWN.iter().all(|call| free.contains(call)));
}
