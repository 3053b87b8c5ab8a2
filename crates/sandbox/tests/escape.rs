//! A confined process tries to get out. Each attempt runs in a process of its own, first without
//! the sandbox, where it must succeed, and then in it, where it must be refused.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "a test fails by panic")]

use nix::sys::ptrace;
use rustix::io::Errno;
use rustix::mount::{FsOpenFlags, MountFlags, UnmountFlags};
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Pid, Resource, Rlimit};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// SIGSYS, which ends a process that makes a deadly call.
const KILLED: &str = "killed by signal 31";
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

/// Attempts, and what the sandbox makes of each.
const ATTEMPTS: &[(&str, &str, Attempt)] = &[
    ("read a file", EACCES, |_| File::open("/etc/passwd").map(drop)),
    ("list a folder", EACCES, |_| fs::read_dir("/etc").map(drop)),
    ("open another block device", EACCES, |_| File::open(block_device()).map(drop)),
    ("make a file", EPERM, |cell| File::create(cell.dir.join("new")).map(drop)),
    ("make a nameless file", EPERM, |cell| {
        let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::WRONLY;
        Ok(rustix::fs::open(&cell.dir, flags, 0o600.into()).map(drop)?)
    }),
    ("change a file", EPERM, |cell| File::options().write(true).open(cell.dir.join("own")).map(drop)),
    ("remove a file", EPERM, |cell| fs::remove_file(cell.dir.join("own"))),
    ("rename a file", EPERM, |cell| fs::rename(cell.dir.join("own"), cell.dir.join("other"))),
    ("link a file", EPERM, |cell| fs::hard_link(cell.dir.join("own"), cell.dir.join("other"))),
    ("make a folder", EPERM, |cell| fs::create_dir(cell.dir.join("folder"))),
    ("change an owner", EPERM, |cell| std::os::unix::fs::chown(cell.dir.join("own"), Some(7), None)),
    ("shorten a file by its path", EPERM, |cell| {
        let path = CString::new(cell.dir.join("own").to_str().unwrap()).unwrap();
        Ok(nix::unistd::truncate(path.as_c_str(), 0)?)
    }),
    ("write below /proc", EPERM, |_| fs::write("/proc/self/comm", "other")),
    ("read the memory of a process", EACCES, |cell| File::open(of(cell, "mem")).map(drop)),
    ("read the environment of a process", EACCES, |cell| File::open(of(cell, "environ")).map(drop)),
    ("open a file by way of a process", EACCES, |cell| File::open(of(cell, "root/etc/passwd")).map(drop)),
    ("start a program", EPERM, |_| Command::new("true").status().map(drop)),
    ("become a program", KILLED, |_| {
        let path = CString::new("/bin/true").unwrap();
        Ok(nix::unistd::execv(&path, &[&path]).map(drop)?)
    }),
    ("make a socket", EPERM, |_| {
        Ok(rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).map(drop)?)
    }),
    ("make a pair of sockets", EPERM, |_| std::os::unix::net::UnixStream::pair().map(drop)),
    ("connect a socket", EPERM, |cell| {
        let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, cell.port);
        Ok(rustix::net::connect(&cell.socket, &to)?)
    }),
    ("bind a socket", EPERM, |cell| {
        Ok(rustix::net::bind(&cell.socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?)
    }),
    ("make an io_uring", EPERM, |_| io_uring::IoUring::new(4).map(drop)),
    ("trace a process", KILLED, |cell| Ok(ptrace::attach(nix::unistd::Pid::from_raw(cell.victim))?)),
    ("signal a process", EPERM, |cell| {
        Ok(rustix::process::test_kill_process(Pid::from_raw(cell.victim).unwrap())?)
    }),
    ("mount", KILLED, |cell| {
        nix::sched::unshare(nix::sched::CloneFlags::empty())?;
        Ok(rustix::mount::mount("none", &cell.dir, "tmpfs", MountFlags::empty(), None)?)
    }),
    ("unmount", KILLED, |cell| {
        match rustix::mount::unmount(&cell.dir, UnmountFlags::DETACH) {
            // It is no mount.
            Err(Errno::INVAL) => Ok(()),
            done => Ok(done?),
        }
    }),
    ("make a file system", KILLED, |_| {
        Ok(rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).map(drop)?)
    }),
    ("leave a namespace", KILLED, |_| Ok(nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)?)),
    ("enter a namespace", KILLED, |cell| {
        let namespace = rustix::fs::open(of(cell, "ns/mnt"), rustix::fs::OFlags::PATH, 0.into());
        // Already refused.
        let namespace = namespace.unwrap_or_else(|_| cell.own.try_clone().unwrap().into());
        match nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNS) {
            Err(nix::errno::Errno::EBADF | nix::errno::Errno::EINVAL) => Ok(()),
            done => Ok(done?),
        }
    }),
    ("become another user", EPERM, |_| Ok(rustix::thread::set_thread_uid(rustix::thread::Uid::from_raw(7))?)),
    ("take capabilities", EPERM, |_| {
        let mut sets = rustix::thread::capabilities(None)?;
        sets.effective |= rustix::thread::CapabilitySet::CHOWN;
        sets.permitted |= rustix::thread::CapabilitySet::CHOWN;
        Ok(rustix::thread::set_capabilities(None, sets)?)
    }),
    ("change the policy of a process", EPERM, |cell| {
        lanefs_device::set_idle_policy(Some(Pid::from_raw(cell.victim).unwrap()), true)
    }),
    ("bind a process to a processor", EPERM, |cell| {
        let all = rustix::thread::sched_getaffinity(None)?;
        Ok(rustix::thread::sched_setaffinity(Pid::from_raw(cell.victim), &all)?)
    }),
    ("change the priority of a process", EPERM, |cell| {
        Ok(rustix::process::setpriority_process(Pid::from_raw(cell.victim), 5)?)
    }),
    ("change a limit", EPERM, |_| {
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
    if std::env::var_os("LANEFS_CONFINED").is_some() {
        assert_eq!(lanefs_sandbox::enter().unwrap(), lanefs_sandbox::Missing::default());
    }
    match attempt(&mut cell) {
        Ok(()) => println!("\noutcome: done"),
        Err(e) => println!("\noutcome: errno {}", e.raw_os_error().unwrap_or(0)),
    }
}

/// A process that anything may be done to.
struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What came of an attempt in a process of its own.
fn outcome(name: &str, confined: bool) -> String {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("own"), "own").unwrap();
    let victim = Victim(Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap());
    // In a mount namespace of its own: an attempt that succeeds changes no other.
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "attempt", "--nocapture", "--test-threads=1"]);
    command.env("LANEFS_ATTEMPT", name).env("LANEFS_DIR", dir.path()).env("RUST_BACKTRACE", "0");
    command.env("LANEFS_VICTIM", victim.0.id().to_string());
    if confined {
        command.env("LANEFS_CONFINED", "1");
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
    for (name, refusal, _) in ATTEMPTS {
        let (free, confined) = (outcome(name, false), outcome(name, true));
        if (free.as_str(), confined.as_str()) != ("done", *refusal) {
            wrong.push(format!("{name}: without the sandbox {free}, in it {confined}, wanted {refusal}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn a_confined_process_does_its_work() {
    for (name, _) in ALLOWED {
        assert_eq!(outcome(name, true), "done", "{name}");
    }
}
