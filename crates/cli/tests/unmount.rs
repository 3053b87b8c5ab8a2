//! umount, signals and remount: they act on the mount that is meant, and on no other mount that has
//! taken its place or covers it.

use crate::support::mount::Mount;
use crate::support::{succeed, tool};
use lanefs_tests::{LoopDevice, released};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Mounts a tmpfs with a file in it at `dir`, as another program would.
fn stranger(dir: &Path) {
    succeed(tool("mount").args(["-t", "tmpfs", "stranger"]).arg(dir));
    fs::write(dir.join("theirs"), b"kept").unwrap();
}

fn umount(dir: &Path) {
    succeed(tool("umount").arg("-i").arg(dir));
}

fn end(mut server: Child) {
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    assert!(server.wait().unwrap().success());
}

fn content(m: &Mount, name: &str) -> String {
    m.image.fsck();
    m.image.ok(["cat".to_owned(), m.image.at(name)])
}

/// A process with a mount namespace of its own, a copy of this one, until it is killed.
struct Namespace(Child);

impl Namespace {
    fn new() -> Self {
        let mut command = tool("unshare");
        command.args(["--mount", "--propagation", "private", "cat"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // Once it answers, it is cat.
        child.stdin.as_mut().unwrap().write_all(b"?").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        Self(child)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_signal_spares_the_mount_that_covers_it() {
    let m = Mount::blank();
    let server = m.serve();
    let mut held = File::create(m.path("ours")).unwrap();
    held.write_all(b"cached by the kernel").unwrap();
    stranger(&m.at);
    end(server);
    assert_eq!(fs::read(m.path("theirs")).unwrap(), b"kept");
    assert_eq!(content(&m, "/ours"), "cached by the kernel");
    umount(&m.at);
    drop(held);
    // The dead mount below.
    m.umount();
}

#[test]
fn a_signal_spares_the_mount_that_has_its_place_and_ends_it_where_it_is() {
    let m = Mount::blank();
    let (moved, bound) = (m.image.beside("moved"), m.image.beside("bound"));
    fs::create_dir(&moved).unwrap();
    fs::create_dir(&bound).unwrap();
    for how in ["--move", "--bind"] {
        let server = m.serve();
        fs::write(m.path("ours"), how).unwrap();
        let to = if how == "--move" { &moved } else { &bound };
        succeed(tool("mount").arg(how).arg(&m.at).arg(to));
        if how == "--bind" {
            umount(&m.at);
        }
        stranger(&m.at);
        end(server);
        assert_eq!(fs::read(m.path("theirs")).unwrap(), b"kept");
        umount(&m.at);
        assert_eq!(fs::read_dir(to).unwrap().count(), 0, "it is unmounted where it was");
        assert_eq!(content(&m, "/ours"), how);
    }
}

#[test]
fn only_mounts_of_lanefs_are_unmounted_and_remounted() {
    let m = Mount::new("defaults");
    stranger(&m.at);
    let why = "m: the mount there is not of lanefs but of type tmpfs";
    m.image.fails(["umount", "m"], 32, &format!("lanefs: cannot unmount 'm': {why}"));
    m.image.fails(["umount", "-l", "m"], 32, &format!("lanefs: cannot unmount 'm': {why}"));
    let text = format!("lanefs: cannot mount 'v.img' at 'm': {why}");
    m.image.fails(["mount", "v.img", "m", "-o", "remount,ro"], 32, &text);
    fs::write(m.path("theirs"), b"still writable").unwrap();
    umount(&m.at);
    fs::create_dir(m.path("inside")).unwrap();
    m.image.fails(["umount", "m/inside"], 32, "lanefs: cannot unmount 'm/inside': m/inside: not mounted");
    m.umount();
}

fn flags(m: &Mount) -> String {
    let table = fs::read_to_string("/proc/thread-self/mounts").unwrap();
    let at = m.at.canonicalize().unwrap();
    let line = table.lines().rfind(|line| line.split(' ').nth(1) == at.to_str()).expect("mounted").to_owned();
    line.split(' ').nth(3).unwrap().split(",user_id").next().unwrap().to_owned()
}

#[test]
fn a_remount_keeps_what_it_does_not_name() {
    let m = Mount::new("nosuid,nodev,noexec,noatime");
    assert_eq!(flags(&m), "rw,nosuid,nodev,noexec,noatime");
    for (words, expected) in [
        ("remount,ro", "ro,nosuid,nodev,noexec,noatime"),
        ("remount", "ro,nosuid,nodev,noexec,noatime"),
        ("remount,rw,suid", "rw,nodev,noexec,noatime"),
        ("remount,exec,noatime", "rw,nodev,noatime"),
        ("remount,nosymfollow", "rw,nodev,noatime,nosymfollow"),
        ("remount,user,symfollow", "rw,nosuid,nodev,noexec,noatime"),
    ] {
        m.image.ok(["mount", "v.img", "m", "-o", words]);
        assert_eq!(flags(&m), expected, "{words}");
    }
    // The server decides on times of the last read, and knows what it began with.
    for word in ["relatime", "strictatime", "nodiratime"] {
        let why = format!(
            "lanefs: cannot mount 'v.img' at 'm': m: {word} is an option of a mount from its beginning; unmount it, and mount it again"
        );
        m.image.fails(["mount", "v.img", "m", "-o", &format!("remount,{word}")], 32, &why);
    }
    m.umount();
}

/// Its server shares the lock of the volume, and takes writes all the same.
#[test]
fn an_overlay_is_remounted() {
    let m = Mount::new("overlay,nosuid,nodev");
    for (words, expected) in [
        ("remount,noexec", "rw,nosuid,nodev,noexec,relatime"),
        ("remount,ro", "ro,nosuid,nodev,noexec,relatime"),
        ("remount,rw,exec", "rw,nosuid,nodev,relatime"),
    ] {
        m.image.ok(["mount", "v.img", "m", "-o", words]);
        assert_eq!(flags(&m), expected, "{words}");
    }
    fs::write(m.path("f"), "new").unwrap();
    m.unmount("m");
    m.image.ok(["mount", "v.img", "m", "-o", "ro"]);
    let why = "lanefs: cannot mount 'v.img' at 'm': m: ";
    let out = m.image.lanefs(["mount", "v.img", "m", "-o", "remount,rw"]).output().unwrap();
    assert!(
        String::from_utf8_lossy(&out.stderr).starts_with(why) && out.status.code() == Some(32),
        "{out:?}"
    );
    m.umount();
}

/// As the kernel's mount(8) does for its own.
#[test]
fn what_users_may_mount_is_nosuid_and_nodev() {
    let m = Mount::new("user,exec");
    assert_eq!(flags(&m), "rw,nosuid,nodev,relatime");
    m.umount();
}

/// Root mounts a file that another user owns, and a file of its own.
#[test]
fn a_volume_of_another_user_is_nosuid_and_nodev() {
    let m = Mount::blank();
    let program = m.image.beside("id");
    fs::copy("/usr/bin/id", &program).unwrap();
    m.image.ok(["cp", program.to_str().unwrap(), "v.img:/id"]);
    m.image.ok(["chmod", "4755", "v.img:/id"]);
    for dir in [m.image.beside(""), m.at.clone()] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    }
    for (owner, words, expected) in [
        (0, "", "rw,relatime"),
        (0, "untrusted", "rw,nosuid,nodev,relatime"),
        (0, "untrusted,suid", "rw,nodev,relatime"),
        (65534, "", "rw,nosuid,nodev,relatime"),
        (65534, "defaults,noatime", "rw,nosuid,nodev,noatime"),
        (65534, "suid", "rw,nodev,relatime"),
        (65534, "suid,dev", "rw,relatime"),
        (65534, "trusted", "rw,relatime"),
        (65534, "dev", "rw,nosuid,relatime"),
    ] {
        std::os::unix::fs::chown(&m.image.path, Some(owner), None).unwrap();
        m.image.ok(["mount", "v.img", "m", "-o", words]);
        assert_eq!(flags(&m), expected, "owned by {owner}, {words:?}");
        let mut id = Command::new("setpriv");
        id.args(["--reuid", "7", "--regid", "7", "--clear-groups"]).arg(m.path("id")).arg("-u");
        let user = succeed(&mut id).stdout;
        let gives_rights = !expected.contains("nosuid");
        assert_eq!(user, if gives_rights { &b"0\n"[..] } else { b"7\n" }, "owned by {owner}, {words:?}");
        m.umount();
    }
}

/// The node of a loop device is root's in any case.
#[test]
fn a_loop_device_is_of_the_owner_of_the_file_behind_it() {
    let m = Mount::blank();
    let volume = LoopDevice::new(&m.image.path);
    let nested = LoopDevice::new(volume.path());
    let flags_of = |device: &LoopDevice| {
        m.image.ok(["mount", device.path().to_str().unwrap(), "m"]);
        let flags = flags(&m);
        m.unmount_of(device.path(), "m");
        flags
    };
    for (owner, expected) in [(0, "rw,relatime"), (65533, "rw,nosuid,nodev,relatime")] {
        std::os::unix::fs::chown(&m.image.path, Some(owner), None).unwrap();
        assert_eq!(flags_of(&volume), expected, "owned by {owner}");
        assert_eq!(flags_of(&nested), expected, "owned by {owner}, behind two");
    }
    // Which file of root is behind it is not known any more.
    std::os::unix::fs::chown(&m.image.path, Some(0), None).unwrap();
    let moved = m.image.beside("moved");
    fs::hard_link(&m.image.path, &moved).unwrap();
    fs::remove_file(&m.image.path).unwrap();
    fs::write(&m.image.path, "another").unwrap();
    assert_eq!(flags_of(&volume), "rw,nosuid,nodev,relatime");
    drop((nested, volume));
    fs::rename(moved, &m.image.path).unwrap();
    m.image.fsck();
}

#[test]
fn another_type_is_honoured_and_found_again() {
    let m = Mount::new("subtype=ours");
    let table = fs::read_to_string("/proc/thread-self/mounts").unwrap();
    assert!(table.contains(" fuse.ours "), "{table}");
    m.unmount("m");
    m.image.fsck();
}

#[test]
fn umount_waits_for_its_own_server_only() {
    // Its server closes soon: a mount right behind waits five seconds.
    let m = Mount::in_memory();
    // A bind mount beside: its server goes on.
    let server = m.serve();
    let bound = m.image.beside("bound");
    fs::create_dir(&bound).unwrap();
    succeed(tool("mount").arg("--bind").arg(&m.at).arg(&bound));
    m.unmount("m");
    fs::write(bound.join("f"), b"still served").unwrap();
    m.unmount("bound");
    assert_eq!(content(&m, "/f"), "still served");
    assert!({ server }.wait().unwrap().success());
    // Another mount right behind, before the umount looks.
    for _ in 0..5 {
        m.image.ok(["mount", "v.img", "m"]);
        let mut umount = m.image.lanefs(["umount", "m"]).spawn().unwrap();
        while m.is_mounted() {}
        m.image.ok(["mount", "v.img", "bound"]);
        assert!(umount.wait().unwrap().success());
        m.unmount("bound");
    }
    // A dead mount beside a living one of the same volume.
    let mut server = m.serve();
    server.kill().unwrap();
    server.wait().unwrap();
    released(&m.image.path);
    m.image.ok(["mount", "v.img", "bound"]);
    m.unmount("m");
    m.unmount("bound");
    m.image.fsck();
}

#[test]
fn umount_says_what_holds_the_mount_and_a_signal_ends_it_all_the_same() {
    let m = Mount::blank();
    let server = m.serve();
    let pid = Pid::from_child(&server);
    let held = File::create(m.path("held")).unwrap();
    let out = m.image.lanefs(["umount", "m"]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    let this = format!("process {} (", std::process::id());
    assert!(said.contains("busy") && said.contains(&this) && said.contains("has files of it open"), "{said}");
    drop(held);

    let other = Namespace::new();
    fs::write(m.path("f"), b"written out").unwrap();
    let mut umount = m.image.lanefs(["umount", "m"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(umount.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let holder = format!("process {} (cat) has it in another mount namespace", other.0.id());
    assert!(
        line.contains(&holder) && line.contains(&format!("SIGTERM to process {}", server.id())),
        "{line}"
    );
    // Closed, although the other namespace still has it.
    kill_process(pid, Signal::TERM).unwrap();
    assert!(umount.wait().unwrap().success());
    assert!({ server }.wait().unwrap().success());
    assert_eq!(content(&m, "/f"), "written out");
    assert!(!m.image.debugfs("features").contains("needs_recovery"));
    drop(other);
}

#[test]
fn a_volume_is_free_when_its_killed_server_has_gone() {
    let m = Mount::blank();
    for _ in 0..10 {
        let mut server = m.serve();
        let mut file = File::create(m.path("f")).unwrap();
        file.write_all(&vec![7; 8 << 20]).unwrap();
        let writer =
            std::thread::spawn(
                move || while file.write_all(&[1; 1 << 16]).is_ok() && file.sync_data().is_ok() {},
            );
        std::thread::sleep(std::time::Duration::from_millis(50));
        server.kill().unwrap();
        server.wait().unwrap();
        released(&m.image.path);
        m.image.ok(["recover", "v.img"]);
        writer.join().unwrap();
        m.unmount("m");
    }
    m.image.fsck();
}

/// The device fails when the volume is closed: here a disk of the host that is full.
#[test]
fn an_unmount_whose_volume_cannot_be_closed_fails() {
    let m = Mount::in_memory();
    let fill = |name: &str| {
        let mut file = File::create(m.image.beside(name)).unwrap();
        while file.write_all(&[7; 1 << 16]).is_ok() {}
        file
    };
    let file = fill("filler");
    file.set_len(file.metadata().unwrap().len() - (4 << 20)).unwrap();
    m.image.ok(["mount", "v.img", "m"]);
    fs::write(m.path("f"), vec![7; 16 << 20]).unwrap();
    // Of these four mebibytes nothing is left, whatever was written back already.
    drop((file, fill("more")));
    let full = "No space left on device";
    let out = m.image.lanefs(["umount", "m"]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(
        said.contains("'m' is unmounted, and its volume was not closed: ") && said.contains(full),
        "{said}"
    );
    assert_eq!(out.status.code(), Some(32));
    for name in ["filler", "more"] {
        fs::remove_file(m.image.beside(name)).unwrap();
    }
    m.image.ok(["recover", "v.img"]);
    m.image.fsck();
    // Again, without a failure.
    m.image.ok(["mount", "v.img", "m"]);
    fs::write(m.path("f"), "small").unwrap();
    m.umount();
}

/// It has nothing to write out, which could take longer than the command waits.
#[test]
fn the_volume_of_a_killed_server_is_waited_for() {
    let m = Mount::blank();
    for _ in 0..10 {
        let mut server = m.serve();
        server.kill().unwrap();
        server.wait().unwrap();
        m.image.ok(["recover", "v.img"]);
        m.unmount("m");
    }
    m.image.fsck();
}

/// A user without root has an image that the kernel has mounted by way of a loop device.
#[test]
fn an_owner_without_root_sees_that_the_kernel_has_his_image() {
    let m = Mount::blank();
    for path in [m.image.beside(""), m.image.path.clone()] {
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
    }
    lanefs_tests::copy_file(env!("CARGO_BIN_EXE_lanefs"), m.image.beside("lanefs"));
    let as_user = |args: &[&str]| {
        let mut command = tool("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "./lanefs"]).args(args);
        command.current_dir(m.image.beside("")).output().unwrap()
    };
    let kernel = lanefs_tests::LoopMount::new(&m.image.path, "");
    // By another name of the same file.
    fs::hard_link(&m.image.path, m.image.beside("same.img")).unwrap();
    for name in ["v.img:/d", "same.img:/d"] {
        let out = as_user(&["mkdir", name]);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(said.contains(&format!("in use: mounted by way of {}", kernel.device())), "{said}");
    }
    kernel.unmount();
    assert!(as_user(&["mkdir", "v.img:/d"]).status.success());
    m.image.fsck();
}
