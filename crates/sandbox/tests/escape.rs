//! A confined process tries to get out. Each attempt runs in processes of its own: without the
//! sandbox, where it must succeed; in it, where it must be refused; and on kernels that lack a part
//! of it ([`KERNELS`]), so that each part is known to refuse its own share. Landlock refuses
//! signals from Linux 6.12 on.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "a test fails by panic")]

use nix::sys::ptrace;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mount::{FsOpenFlags, MountFlags, UnmountFlags};
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Pid, Resource, Rlimit};
use seccompiler::{SeccompAction, SeccompFilter};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// SIGSYS, which ends a process that makes a deadly call.
const KILLED: &str = "killed by signal 31";
const DONE: &str = "done";
const EPERM: &str = "errno 1";
const EACCES: &str = "errno 13";

/// What attempts need, made before the process is confined.
struct Cell {
    dir: PathBuf,
    victim: i32,
    socket: rustix::fd::OwnedFd,
    port: u16,
    own: File,
}

type Attempt = fn(&mut Cell) -> io::Result<()>;

/// What a kernel has of the sandbox besides capabilities and no_new_privs.
const KERNELS: [&str; 4] = ["seccomp,landlock", "landlock", "seccomp", ""];

/// What refuses an attempt, as it shows on each of [`KERNELS`]: Landlock, which says so by EACCES.
const LANDLOCK: [&str; 4] = [EACCES, EACCES, DONE, DONE];
/// seccomp, which says so by EPERM.
const SECCOMP: [&str; 4] = [EPERM, DONE, EPERM, DONE];
/// Either of them.
const BOTH: [&str; 4] = [EPERM, EACCES, EPERM, DONE];
/// seccomp, which ends the process, and that there is no capability for it.
const DEADLY: [&str; 4] = [KILLED, EPERM, KILLED, EPERM];

/// Attempts, each with its outcome in the sandbox. An attempt that fails everywhere lacks a
/// capability.
const ATTEMPTS: &[(&str, [&str; 4], Attempt)] = &[
    ("read a file", LANDLOCK, |_| File::open("/etc/passwd").map(drop)),
    ("list a folder", LANDLOCK, |_| fs::read_dir("/etc").map(drop)),
    ("open another block device", LANDLOCK, |_| File::open(block_device()).map(drop)),
    ("make a file", BOTH, |cell| File::create(cell.dir.join("new")).map(drop)),
    ("make a file to read", BOTH, |cell| open(&cell.dir.join("new"), OFlags::CREATE)),
    ("empty a file", BOTH, |cell| open(&cell.dir.join("own"), OFlags::TRUNC)),
    ("make a nameless file", BOTH, |cell| open(&cell.dir, OFlags::TMPFILE | OFlags::WRONLY)),
    ("change a file", BOTH, |cell| File::options().write(true).open(cell.dir.join("own")).map(drop)),
    ("remove a file", BOTH, |cell| fs::remove_file(cell.dir.join("own"))),
    ("rename a file", BOTH, |cell| fs::rename(cell.dir.join("own"), cell.dir.join("other"))),
    ("link a file", BOTH, |cell| fs::hard_link(cell.dir.join("own"), cell.dir.join("other"))),
    ("make a folder", BOTH, |cell| fs::create_dir(cell.dir.join("folder"))),
    ("change an owner", [EPERM; 4], |cell| std::os::unix::fs::chown(cell.dir.join("own"), Some(7), None)),
    ("shorten a file by its path", BOTH, |cell| {
        let path = CString::new(cell.dir.join("own").to_str().unwrap()).unwrap();
        Ok(nix::unistd::truncate(path.as_c_str(), 0)?)
    }),
    ("write below /proc", BOTH, |_| File::options().write(true).open("/proc/self/comm")?.write_all(b"other")),
    ("read the memory of a process", [EACCES; 4], |cell| File::open(of(cell, "mem")).map(drop)),
    ("read the environment of a process", [EACCES; 4], |cell| File::open(of(cell, "environ")).map(drop)),
    ("open a file by way of a process", [EACCES; 4], |cell| {
        File::open(of(cell, "root/etc/passwd")).map(drop)
    }),
    ("start a program", BOTH, |_| Command::new("true").status().map(drop)),
    ("become a program", [KILLED, EACCES, KILLED, DONE], |_| {
        let path = CString::new("/bin/true").unwrap();
        Ok(nix::unistd::execv(&path, &[&path]).map(drop)?)
    }),
    ("make a socket", SECCOMP, |_| {
        Ok(rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).map(drop)?)
    }),
    ("make a pair of sockets", SECCOMP, |_| std::os::unix::net::UnixStream::pair().map(drop)),
    ("connect a socket", BOTH, |cell| {
        let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, cell.port);
        Ok(rustix::net::connect(&cell.socket, &to)?)
    }),
    ("bind a socket", BOTH, |cell| {
        Ok(rustix::net::bind(&cell.socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?)
    }),
    ("make an io_uring", SECCOMP, |_| io_uring::IoUring::new(4).map(drop)),
    ("trace a process", DEADLY, |cell| Ok(ptrace::attach(nix::unistd::Pid::from_raw(cell.victim))?)),
    ("signal a process", [EPERM, EPERM, EPERM, DONE], |cell| {
        Ok(rustix::process::test_kill_process(Pid::from_raw(cell.victim).unwrap())?)
    }),
    ("mount", DEADLY, |cell| {
        Ok(rustix::mount::mount("none", &cell.dir, "tmpfs", MountFlags::empty(), None)?)
    }),
    ("unmount", DEADLY, |cell| {
        match rustix::mount::unmount(&cell.dir, UnmountFlags::DETACH) {
            // It is no mount.
            Err(Errno::INVAL) => Ok(()),
            done => Ok(done?),
        }
    }),
    ("make a file system", DEADLY, |_| {
        Ok(rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).map(drop)?)
    }),
    ("leave a namespace", DEADLY, |_| Ok(nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)?)),
    ("enter a namespace", [KILLED, EACCES, KILLED, EACCES], |cell| {
        let namespace = rustix::fs::open(of(cell, "ns/uts"), OFlags::RDONLY, 0.into());
        // If that is refused, the call is still to be tried.
        let (file, refused) = match namespace {
            Ok(namespace) => (namespace, None),
            Err(e) => (cell.own.try_clone()?.into(), Some(e)),
        };
        let entered = nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWUTS);
        refused.map_or_else(|| Ok(entered?), |e| Err(e.into()))
    }),
    ("become another user", [EPERM; 4], |_| {
        Ok(rustix::thread::set_thread_uid(rustix::thread::Uid::from_raw(7))?)
    }),
    ("take capabilities", [EPERM; 4], |_| {
        let mut sets = rustix::thread::capabilities(None)?;
        sets.effective |= rustix::thread::CapabilitySet::CHOWN;
        sets.permitted |= rustix::thread::CapabilitySet::CHOWN;
        Ok(rustix::thread::set_capabilities(None, sets)?)
    }),
    ("change the policy of a process", SECCOMP, |cell| {
        lanefs_device::set_idle_policy(Some(Pid::from_raw(cell.victim).unwrap()), true)
    }),
    ("bind a process to a processor", SECCOMP, |cell| {
        let all = rustix::thread::sched_getaffinity(None)?;
        Ok(rustix::thread::sched_setaffinity(Pid::from_raw(cell.victim), &all)?)
    }),
    ("change the priority of a process", SECCOMP, |cell| {
        Ok(rustix::process::setpriority_process(Pid::from_raw(cell.victim), 5)?)
    }),
    ("change a limit", SECCOMP, |_| {
        let limit = Rlimit { current: Some(0), maximum: Some(0) };
        Ok(rustix::process::setrlimit(Resource::Core, limit)?)
    }),
];

/// What a server goes on doing.
const ALLOWED: &[(&str, Attempt)] = &[
    ("use an open file", |cell| {
        cell.own.write_all(b"more")?;
        cell.own.rewind()?;
        let mut text = String::new();
        cell.own.read_to_string(&mut text)?;
        assert!(text.ends_with("more"), "{text}");
        cell.own.sync_all()
    }),
    ("look at a process", |cell| {
        assert!(fs::read_to_string(of(cell, "status"))?.contains("Groups:"));
        fs::read(of(cell, "stat")).map(drop)
    }),
    ("look at itself", |_| fs::read("/proc/thread-self/mountinfo").map(drop)),
    ("make a thread", |_| {
        let made = std::thread::Builder::new().name("named".into()).spawn(|| vec![1_u8; 1 << 20].len())?;
        assert_eq!(made.join().unwrap(), 1 << 20);
        Ok(())
    }),
    ("come back from SCHED_IDLE", |_| {
        lanefs_device::set_idle_policy(None, true)?;
        lanefs_device::set_idle_policy(None, false)
    }),
    ("go to a processor", |_| {
        Ok(rustix::thread::sched_setaffinity(None, &rustix::thread::sched_getaffinity(None)?)?)
    }),
    ("wait", |_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        Ok(())
    }),
];

fn open(path: &Path, flags: OFlags) -> io::Result<()> {
    Ok(rustix::fs::open(path, flags, 0o600.into()).map(drop)?)
}

fn of(cell: &Cell, name: &str) -> PathBuf {
    Path::new("/proc").join(cell.victim.to_string()).join(name)
}

fn block_device() -> PathBuf {
    let names = fs::read_dir("/sys/block").into_iter().flatten().flatten().map(|entry| entry.file_name());
    // Of another type it may have no medium.
    let names = names.filter(|name| name.to_string_lossy().starts_with("loop"));
    let mut nodes = names.map(|name| Path::new("/dev").join(name)).filter(|node| node.exists());
    nodes.next().unwrap_or_else(|| "/dev/loop0".into())
}

/// Runs as a test of this binary, in a process of its own: does nothing unless it is told what.
#[test]
fn attempt() {
    let Ok(wanted) = std::env::var("LANEFS_ATTEMPT") else { return };
    let dir = PathBuf::from(std::env::var("LANEFS_DIR").unwrap());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut cell = Cell {
        victim: std::env::var("LANEFS_VICTIM").unwrap().parse().unwrap(),
        socket: rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap(),
        port: listener.local_addr().unwrap().port(),
        own: File::options().read(true).append(true).open(dir.join("own")).unwrap(),
        dir,
    };
    let attempts = ATTEMPTS.iter().map(|(name, _, attempt)| (name, attempt));
    let all = attempts.chain(ALLOWED.iter().map(|(name, attempt)| (name, attempt)));
    let (_, attempt) = { all }.find(|(name, _)| **name == wanted).unwrap();
    if let Ok(kernel) = std::env::var("LANEFS_KERNEL") {
        confine_on(&kernel);
    }
    match attempt(&mut cell) {
        Ok(()) => println!("\noutcome: done"),
        Err(e) => println!("\noutcome: errno {}", e.raw_os_error().unwrap_or(0)),
    }
}

/// Confines this process as on a kernel that has no more than `parts` of the sandbox: the system
/// calls of the others are not there.
fn confine_on(parts: &str) {
    let has = |part: &str| parts.split(',').any(|one| one == part);
    let calls = [("seccomp", libc::SYS_seccomp), ("landlock", libc::SYS_landlock_create_ruleset)];
    let lacking = calls.into_iter().filter(|(part, _)| !has(part)).map(|(_, call)| (call, Vec::new()));
    let lacking: std::collections::BTreeMap<_, _> = lacking.collect();
    if !lacking.is_empty() {
        let (enosys, arch) = (SeccompAction::Errno(libc::ENOSYS as u32), std::env::consts::ARCH);
        let arch = arch.try_into().unwrap();
        let filter = SeccompFilter::new(lacking, SeccompAction::Allow, enosys, arch).unwrap();
        let program: seccompiler::BpfProgram = filter.try_into().unwrap();
        seccompiler::apply_filter(&program).unwrap();
    }
    let missing = lanefs_sandbox::Missing { landlock: !has("landlock"), seccomp: !has("seccomp") };
    assert_eq!(lanefs_sandbox::enter().unwrap(), missing);
}

/// A process that anything may be done to.
struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the outcome of an attempt in a process of its own.
fn outcome(name: &str, kernel: Option<&str>) -> String {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("own"), "own").unwrap();
    let victim = Victim(Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap());
    // In a mount namespace of its own: an attempt that succeeds changes no other.
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "attempt", "--nocapture", "--test-threads=1"]);
    command.env("LANEFS_ATTEMPT", name).env("LANEFS_DIR", dir.path()).env("RUST_BACKTRACE", "0");
    command.env("LANEFS_VICTIM", victim.0.id().to_string());
    if let Some(kernel) = kernel {
        command.env("LANEFS_KERNEL", kernel);
    }
    let out = command.output().unwrap();
    said(&out).unwrap_or_else(|| {
        let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        panic!("{name}: {}\n{text}", out.status)
    })
}

fn said(out: &Output) -> Option<String> {
    if let Some(signal) = out.status.signal() {
        return Some(format!("killed by signal {signal}"));
    }
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("outcome: ")).map(str::to_owned);
    // It became another program, which says nothing.
    line.or_else(|| (out.status.success() && !text.contains("test result")).then(|| "done".into()))
}

#[test]
fn a_confined_process_does_not_get_out() {
    let mut wrong = Vec::new();
    for (name, refusals, _) in ATTEMPTS {
        let free = outcome(name, None);
        let confined = KERNELS.map(|kernel| outcome(name, Some(kernel)));
        if free != DONE || confined != *refusals {
            wrong.push(format!(
                "{name}: without the sandbox {free}, in it {confined:?}, wanted is {refusals:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "on kernels with {KERNELS:?}\n{}", wrong.join("\n"));
}

#[test]
fn a_confined_process_does_its_work() {
    for (name, _) in ALLOWED {
        for kernel in KERNELS {
            assert_eq!(outcome(name, Some(kernel)), DONE, "{name}, with {kernel:?}");
        }
    }
}
