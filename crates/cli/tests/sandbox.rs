//! The sandbox of a mount's server: which rights it has given up, and that the mount works without
//! them.

use crate::support;
use crate::support::mount::Mount;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process};
use seccompiler::{SeccompAction, SeccompFilter};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Output};

/// CAP_SYS_NICE, the only capability that a server may keep.
const SYS_NICE: u64 = 1 << 23;

/// A field of the status of each thread of a process.
fn of_threads(process: u32, field: &str) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    let statuses = threads.filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok());
    let value = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix(field)).map(str::trim);
        line.unwrap_or_else(|| panic!("{field} is not in {status}")).to_owned()
    };
    statuses.map(value).collect()
}

fn end(mut server: Child) {
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    assert!(server.wait().unwrap().success());
}

/// Does some of all that a mount can do.
fn use_it(m: &Mount) {
    fs::create_dir(m.path("d")).unwrap();
    fs::write(m.path("d/f"), vec![7; 3 << 20]).unwrap();
    File::open(m.path("d/f")).unwrap().sync_all().unwrap();
    fs::rename(m.path("d/f"), m.path("f")).unwrap();
    assert_eq!(fs::read(m.path("f")).unwrap(), vec![7; 3 << 20]);
    // What the server asks its broker.
    support::succeed(support::tool("fstrim").arg(&m.at));
    support::succeed(support::tool("chattr").arg("+i").arg(m.path("f")));
    support::succeed(support::tool("chattr").arg("-i").arg(m.path("f")));
    m.image.ok(["top", "m", "--once", "--json"]);
}

#[test]
fn all_threads_of_a_server_are_confined() {
    let m = Mount::blank();
    let server = m.serve();
    use_it(&m);
    let all = |field| of_threads(server.id(), field);
    assert!(all("Seccomp:").iter().all(|mode| mode == "2"), "{:?}", all("Seccomp:"));
    assert!(all("NoNewPrivs:").iter().all(|on| on == "1"), "{:?}", all("NoNewPrivs:"));
    for field in ["CapEff:", "CapPrm:", "CapInh:", "CapBnd:", "CapAmb:"] {
        let sets = all(field);
        let few = |set: &String| u64::from_str_radix(set, 16).unwrap() & !SYS_NICE == 0;
        assert!(!sets.is_empty() && sets.iter().all(few), "{field} {sets:?}");
    }
    end(server);
    assert!(!m.is_mounted());
    m.image.fsck();
}

#[test]
fn off_is_honoured_and_everything_works_without() {
    let m = Mount::new("sandbox=off");
    use_it(&m);
    let [server] = m.servers()[..] else { panic!("servers: {:?}", m.servers()) };
    assert!(of_threads(server as u32, "Seccomp:").iter().all(|mode| mode == "0"));
    assert!(of_threads(server as u32, "NoNewPrivs:").iter().all(|on| on == "0"));
    m.umount();
}

/// Mounts on a kernel that does not have a system call.
fn mounted_without(m: &Mount, call: i64, options: &str) -> Output {
    let mut mount = m.image.lanefs(["mount", "v.img", "m", "-o", options]);
    std::thread::scope(|scope| {
        let lacking = scope.spawn(|| {
            let rules = [(call, Vec::new())].into();
            let enosys = SeccompAction::Errno(rustix::io::Errno::NOSYS.raw_os_error() as u32);
            let arch = std::env::consts::ARCH.try_into().unwrap();
            let filter = SeccompFilter::new(rules, SeccompAction::Allow, enosys, arch).unwrap();
            let program: seccompiler::BpfProgram = filter.try_into().unwrap();
            // For this thread, and the programs that it starts.
            seccompiler::apply_filter(&program).unwrap();
            mount.output().unwrap()
        });
        lacking.join().unwrap()
    })
}

/// landlock_create_ruleset(2).
const LANDLOCK: i64 = 444;
#[cfg(target_arch = "x86_64")]
const SECCOMP: i64 = 317;
#[cfg(not(target_arch = "x86_64"))]
const SECCOMP: i64 = 277;

#[test]
fn a_kernel_that_lacks_something_is_told_of_and_refused_if_it_is_required() {
    for (call, lacks) in [(LANDLOCK, "no Landlock"), (SECCOMP, "no seccomp filters")] {
        let m = Mount::blank();
        let out = mounted_without(&m, call, "");
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        let line =
            format!("lanefs: this kernel has {lacks}; the server of this mount is confined by the rest\n");
        assert_eq!((said.as_str(), out.status.code()), (line.as_str(), Some(0)));
        use_it(&m);
        m.umount();
        let out = mounted_without(&m, call, "sandbox=require");
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        let line = format!(
            "lanefs: cannot mount 'v.img' at 'm': mount option 'sandbox=require': this kernel has {lacks}\n"
        );
        assert_eq!((said.as_str(), out.status.code()), (line.as_str(), Some(32)));
        assert!(!m.is_mounted());
        m.image.fsck();
    }
    let m = Mount::new("sandbox=require");
    use_it(&m);
    m.umount();
}

/// It serves on, allows nothing that it would have to ask for, and is unmounted by others.
#[test]
fn a_server_outlives_its_broker() {
    let m = Mount::blank();
    let server = m.serve();
    let device = fs::metadata(&m.at).unwrap().dev();
    m.kill_broker(server.id());
    fs::write(m.path("f"), "still served").unwrap();
    let trim = support::tool("fstrim").arg(&m.at).output().unwrap();
    assert!(!trim.status.success(), "the capability of the caller is not known");
    assert_eq!(fs::metadata(&m.at).unwrap().dev(), device);
    m.unmount("m");
    assert!({ server }.wait().unwrap().success());
    assert_eq!(m.image.ok(["cat", "v.img:/f"]), "still served");
    m.image.fsck();
}

/// The files that a process has open, with their numbers.
fn files_of(process: u32) -> Vec<(i32, PathBuf)> {
    let entries = fs::read_dir(format!("/proc/{process}/fd")).unwrap().flatten();
    let number = |entry: &fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    let files = entries.filter_map(|entry| Some((number(&entry)?, fs::read_link(entry.path()).ok()?)));
    files.collect()
}

#[test]
fn a_server_has_no_file_of_its_caller_and_none_of_the_kernels() {
    let m = Mount::blank();
    let leaked = m.image.beside("leaked").canonicalize().unwrap_or_else(|_| m.image.beside("leaked"));
    let file = File::create(&leaked).unwrap();
    fcntl_setfd(&file, FdFlags::empty()).unwrap();
    let server = m.serve();
    m.image.ok(["top", "m", "--once", "--json"]);
    for process in [server.id(), m.broker_of(server.id()).as_raw_nonzero().get().cast_unsigned()] {
        let files = files_of(process);
        assert!(files.iter().all(|(_, path)| !path.ends_with("leaked")), "{process}: {files:?}");
    }
    let files = files_of(server.id());
    assert!(files.iter().all(|(_, path)| !path.starts_with("/sys")), "{files:?}");
    assert!(files.contains(&(0, "/dev/null".into())), "{files:?}");
    end(server);
    // A volume can be named as one of them.
    let volume = File::open(&m.image.path).unwrap();
    fcntl_setfd(&volume, FdFlags::empty()).unwrap();
    m.image.ok(["mount", &format!("/dev/fd/{}", volume.as_raw_fd()), "m"]);
    drop((file, volume));
    m.umount();
}

/// The mount covers the folder of its socket, and no thread serves the mount when the server uses
/// the folder.
#[test]
fn a_mount_may_cover_what_its_server_uses() {
    for options in ["sandbox=require", "sandbox=off"] {
        for dir in ["/run", "/sys"] {
            let m = Mount::blank();
            m.image.ok(["mount", "v.img", dir, "-o", options]);
            fs::write(format!("{dir}/f"), options).unwrap();
            m.unmount(dir);
            assert_eq!(m.image.ok(["cat", "v.img:/f"]), options);
            m.image.fsck();
        }
    }
}
