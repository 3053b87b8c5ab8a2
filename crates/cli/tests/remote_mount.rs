//! A mount of a volume on an NBD server: its server is confined, and a lost connection is made
//! again by the broker.

use crate::support::mount::{Mount, Namespace};
use crate::support::{Image, succeed, tool};
use lanefs_sim::{Image as Medium, NbdServer, NbdSettings};
use lanefs_tests::{Served, copy_file, e2fsck_clean};
use std::fs::{self, File};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

fn serve(socket: &Path, image: &Path) -> Served {
    Served::nbdkit(socket, &["file", image.to_str().unwrap()])
}

#[test]
fn a_mount_survives_a_server_that_is_killed() {
    let m = Mount::blank();
    let socket = m.image.beside("s");
    let server = serve(&socket, &m.image.path);
    // By a name that the process finds from another directory too.
    m.image.ok(["mount", "nbd+unix:///?socket=s", "m", "-o", "sandbox=require"]);
    let table = fs::read_to_string("/proc/thread-self/mounts").unwrap();
    let line = table.lines().find(|line| line.contains(m.at.to_str().unwrap())).unwrap();
    assert!(line.starts_with(&format!("nbd+unix:///?socket={} ", socket.display())), "{line}");
    // What a server sends gives no rights.
    assert!(line.contains("nosuid") && line.contains("nodev"), "{line}");
    let mut file = File::create(m.path("f")).unwrap();
    file.write_all(&[1; 3_000_000]).unwrap();
    file.sync_all().unwrap();
    let again = m.image.lanefs(["ls", &server.url("", ":/")]).output().unwrap();
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(said.contains("is in use: the process"), "{said}");

    let mut server = server;
    for round in 0..3u8 {
        drop(server);
        server = serve(&socket, &m.image.path);
        file.write_all(&[round; 1_000_000]).unwrap();
        fs::write(m.path(&format!("new {round}")), b"later").unwrap();
        file.sync_all().unwrap();
    }
    drop(file);
    m.umount();
    drop(server);
    m.image.fsck();
    assert!(m.image.debugfs("stat /f").contains("Size: 6000000"));
    assert_eq!(m.image.ok(["cat", "v.img:/new 2"]), "later");
}

/// The server stays away: programs are told, the mount ends, and e2fsck has nothing to say.
#[test]
fn a_mount_whose_server_is_gone_fails_and_ends() {
    let m = Mount::blank();
    let socket = m.image.beside("s");
    let server = serve(&socket, &m.image.path);
    m.image.ok(["mount", &server.url("", "&reconnect=1"), "m"]);
    let mut before = File::create(m.path("before")).unwrap();
    before.write_all(b"synced").unwrap();
    before.sync_all().unwrap();
    drop(before);
    drop(server);
    fails_and_ends(&m);
    has_what_was_synced(&m.image);
}

/// Writes to a mount whose server takes nothing any more, and unmounts it.
fn fails_and_ends(m: &Mount) {
    let mut file = File::create(m.path("f")).unwrap();
    file.write_all(&[1; 100_000]).unwrap();
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
    drop(file);
    let out = m.image.lanefs(["umount", "m"]).output().unwrap();
    assert!(!m.is_mounted(), "{out:?}");
}

/// Recovers the volume, and judges it.
fn has_what_was_synced(image: &Image) {
    let recovered = image.lanefs(["recover", "v.img"]).output().unwrap();
    assert!(recovered.status.success(), "{recovered:?}");
    image.fsck();
    assert_eq!(image.ok(["cat", "v.img:/before"]), "synced");
}

/// The server fails all writes from a moment on: a program that syncs is told, the mount ends, and
/// e2fsck has nothing to say.
#[test]
fn a_mount_whose_server_fails_writes_is_told_and_ends() {
    let m = Mount::blank();
    let (socket, failing) = (m.image.beside("s"), m.image.beside("failing"));
    let when = format!("error-file={}", failing.display());
    let rates = ["error-pwrite-rate=100%", "error-zero-rate=100%"];
    let file = m.image.path.to_str().unwrap();
    let server = Served::nbdkit(&socket, &["--filter=error", "file", file, rates[0], rates[1], &when]);
    m.image.ok(["mount", &server.url("", ""), "m"]);
    let mut before = File::create(m.path("before")).unwrap();
    before.write_all(b"synced").unwrap();
    before.sync_all().unwrap();
    drop(before);

    fs::write(&failing, "").unwrap();
    fails_and_ends(&m);
    drop(server);
    has_what_was_synced(&m.image);
}

/// Makes a file of 8 MB durable on a mount. Returns it, open, and its content.
fn synced(m: &Mount) -> (File, Vec<u8>) {
    let content: Vec<u8> = (0..8_000_000u32).map(|i| (i / 7) as u8).collect();
    let mut file = File::create(m.path("f")).unwrap();
    file.write_all(&content).unwrap();
    file.sync_all().unwrap();
    (file, content)
}

/// Recovers what a server held when it was killed, lets e2fsck judge it, and compares the file.
fn holds_what_was_synced(image: &Image, copy: &Path, content: &[u8]) {
    let name = copy.file_name().unwrap().to_str().unwrap();
    let recovered = image.lanefs(["recover", name]).output().unwrap();
    assert!(recovered.status.success(), "{recovered:?}");
    e2fsck_clean(copy);
    image.ok(["cp", &format!("{name}:/f"), "back"]);
    assert!(fs::read(image.beside("back")).unwrap() == content);
}

/// What was synced over several connections is in the server's file when the server is killed: it
/// writes nothing there before a flush. e2fsck judges a copy of that moment after recovery. The
/// mount goes on with the next server.
#[test]
fn what_was_synced_over_several_connections_is_in_the_file() {
    let m = Mount::blank();
    let (image, socket) = (&m.image, m.image.beside("s"));
    let filters = ["--filter=multi-conn", "--filter=cache", "file", image.path.to_str().unwrap()];
    let args = [&filters[..], &["multi-conn-mode=emulate", "cache=writeback"]].concat();
    let server = Served::nbdkit(&socket, &args);
    image.ok(["mount", &server.url("", "&connections=3"), "m"]);
    let (file, content) = synced(&m);
    drop(server);
    let copy = image.beside("copy.img");
    copy_file(&image.path, &copy);
    let server = Served::nbdkit(&socket, &args);
    fs::write(m.path("g"), b"later").unwrap();
    drop(file);
    m.umount();
    drop(server);
    assert_eq!(image.ok(["cat", "v.img:/g"]), "later");
    holds_what_was_synced(image, &copy, &content);
}

/// A server has a cache for each connection, and a flush covers that of its own: more connections
/// than one would lose what was synced.
#[test]
fn what_was_synced_is_durable_where_a_flush_covers_one_connection() {
    let m = Mount::blank();
    let image = &m.image;
    let medium = Medium::from_bytes(fs::read(&image.path).unwrap());
    let server = NbdServer::start(&image.beside(""), medium, NbdSettings::default()).unwrap();
    image.ok(["mount", &server.url("&connections=3"), "m"]);
    let (file, content) = synced(&m);
    // What a kill would leave at least.
    let durable = server.durable();
    drop(file);
    m.unmount("m");
    let copy = image.beside("copy.img");
    fs::write(&copy, durable.to_bytes()).unwrap();
    holds_what_was_synced(image, &copy, &content);
    assert_eq!(server.connections(), 1);
}

/// A test that fails leaves no server of a mount, which would wait for its NBD server for a minute.
#[test]
fn a_panic_leaves_no_process() {
    let mut there = 0;
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let m = Mount::blank();
        let server = serve(&m.image.beside("s"), &m.image.path);
        m.image.ok(["mount", &server.url("", ""), "m"]);
        fs::write(m.path("f"), b"not synced").unwrap();
        there = Namespace::of("thread-self").unwrap().processes().len();
        drop(server);
        panic!("on purpose");
    }));
    assert!(panicked.is_err() && there > 0, "{there} processes");
    let left = Namespace::of("thread-self").unwrap().processes();
    assert!(left.is_empty(), "{left:?}");
}

/// qemu-nbd without `--shared` serves one client. Another host, which is a network namespace here,
/// gets one line, and the first goes on.
#[test]
#[ignore = "make judge-remote"]
fn qemu_nbd_serves_one_host_at_a_time() {
    let m = Mount::blank();
    let server = Served::qemu_nbd(&m.image.beside("s"), &["--format=raw", m.image.path.to_str().unwrap()]);
    let url = server.url("x", "");
    m.image.ok(["mount", &url, "m"]);
    let mut file = File::create(m.path("f")).unwrap();
    file.write_all(b"of the first host").unwrap();
    file.sync_all().unwrap();
    let elsewhere = |args: &[&str]| {
        let mut command = tool("unshare");
        command.args(["--net", env!("CARGO_BIN_EXE_lanefs")]).args(args).current_dir(m.image.beside(""));
        command
    };
    let brief = format!("{url}&timeout=1");
    for (command, doing, code) in [("ls", "open", 2), ("mkdir", "open for writing", 1)] {
        let out = elsewhere(&[command, &format!("{brief}:/d")]).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        let why = "the NBD server has not greeted for 1 s: it may serve all the clients that it admits \
                   (qemu-nbd: --shared=N)";
        assert_eq!(said, format!("lanefs: cannot {doing} '{brief}': {why}\n"));
        assert_eq!(out.status.code(), Some(code), "{said}");
    }
    file.write_all(b", who goes on").unwrap();
    file.sync_all().unwrap();
    drop(file);
    m.umount();
    let read = succeed(&mut elsewhere(&["cat", &format!("{url}:/f")]));
    assert_eq!(String::from_utf8_lossy(&read.stdout), "of the first host, who goes on");
    succeed(&mut elsewhere(&["mkdir", &format!("{url}:/d")]));
    drop(server);
    m.image.fsck();
}

/// An overlay over a cache over a server, mounted by a confined process; the commit of it.
#[test]
fn a_stack_over_a_server_is_mounted() {
    let m = Mount::blank();
    let (image, socket) = (&m.image, m.image.beside("s"));
    let server = serve(&socket, &image.path);
    let before = fs::read(&image.path).unwrap();
    let name = "overlay:base=cached:nbd+unix:///?socket=s,dir=cache,size=8M,top=mine.top";
    for round in 0..2u8 {
        image.ok(["mount", "-o", "sandbox=require", name, "m"]);
        for i in 0..200 {
            let file = m.path(&format!("f{i}"));
            if round == 1 {
                assert_eq!(fs::read(&file).unwrap(), vec![i; 10_000], "f{i}");
            }
            fs::write(&file, vec![i + round; 10_000]).unwrap();
        }
        File::open(m.path("f1")).unwrap().sync_all().unwrap();
        image.ok(["umount", "m"]);
    }
    image.ok(["check", name]);
    let cache = fs::read_dir(image.beside("cache")).unwrap().count();
    assert_eq!(cache, 1);
    drop(server);
    assert!(fs::read(&image.path).unwrap() == before, "the base was written");
    let server = serve(&socket, &image.path);
    image.ok(["commit", "mine.top"]);
    drop(server);
    image.fsck();
    assert_eq!(image.debugfs("cat /f7"), "\u{8}".repeat(10_000));
}
