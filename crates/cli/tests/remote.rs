//! Volumes on nbdkit: made, filled and read by lanefs over NBD. `nbdcopy` fetches what the server
//! holds then, and e2fsck and debugfs judge it.

use crate::support::{Image, feed, succeed, tool};
use lanefs_tests::{Served, e2fsck_clean};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// A folder with a server's socket, `s`.
pub(crate) fn bench() -> (Image, PathBuf) {
    let image = Image::new();
    let socket = image.beside("s");
    (image, socket)
}

/// Fetches an export to a file beside the image.
pub(crate) fn fetched(image: &Image, url: &str) -> PathBuf {
    let file = image.beside("copy.img");
    succeed(tool("nbdcopy").arg(url).arg(&file));
    file
}

#[test]
fn a_volume_is_made_filled_and_read_over_nbd() {
    let (image, socket) = bench();
    let server = Served::nbdkit(&socket, &["memory", "96M"]);
    let url = server.url("", "");
    image.ok(["mkfs", "-q", "-L", "remote", &url]);
    let tree = image.beside("tree");
    fs::create_dir_all(tree.join("d/e")).unwrap();
    let large: Vec<u8> = (0..20_000_000u32).map(|i| (i / 7) as u8).collect();
    fs::write(tree.join("d/large"), &large).unwrap();
    (0..300).for_each(|i| fs::write(tree.join(format!("d/e/{i}")), format!("{i}\n")).unwrap());
    image.ok(["import", "tree", &format!("{url}:/")]);
    let written = feed(&mut image.lanefs(["cp", "-", &format!("{url}:/piped")]), b"by a pipe");
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    assert_eq!(image.ok(["cat", &format!("{url}:/d/e/299")]), "299\n");
    assert_eq!(image.ok(["ls", &format!("{url}:/d")]), "e\nlarge\n");
    image.ok(["cp", &format!("{url}:/d/large"), "back"]);
    assert!(fs::read(image.beside("back")).unwrap() == large);
    assert!(image.ok(["info", &url]).contains("remote"));
    image.ok(["check", &url]);

    let copy = fetched(&image, &url);
    e2fsck_clean(&copy);
    assert_eq!(image.ok(["cat", "copy.img:/piped"]), "by a pipe");
    assert!(lanefs_tests::debugfs(&copy, "stat /d/large").contains("Size: 20000000"));
}

/// As on another host.
#[test]
fn a_volume_is_used_over_tcp() {
    let image = Image::new();
    let server = Served::nbdkit_by_tcp(&["memory", "64M"]);
    let url = server.url("disk", "");
    image.ok(["mkfs", "-q", "-L", "far", &url]);
    assert!(image.ok(["info", &server.url("disk", "&timeout=9")]).contains("far"));
    let large: Vec<u8> = (0..5_000_000u32).map(|i| (i / 7) as u8).collect();
    fs::write(image.beside("f"), &large).unwrap();
    image.ok(["cp", "f", &format!("{url}:/f")]);
    image.ok(["cp", &format!("{url}:/f"), "back"]);
    assert!(fs::read(image.beside("back")).unwrap() == large);
    let copy = fetched(&image, &url);
    e2fsck_clean(&copy);
    assert!(lanefs_tests::debugfs(&copy, "stat /f").contains("Size: 5000000"));
}

/// What mke2fs made in a file is edited by way of a server, and a partition of a disk too.
#[test]
fn files_behind_a_server_are_edited_in_place() {
    let (image, socket) = bench();
    let server = Served::nbdkit(&socket, &["file", image.path.to_str().unwrap()]);
    fs::write(image.beside("new"), vec![5; 3_000_000]).unwrap();
    image.ok(["cp", "new", &server.url("", ":/new")]);
    image.ok(["mkdir", &server.url("", ":/d")]);
    image.ok(["mv", &server.url("", ":/new"), &server.url("", ":/d/moved")]);
    drop(server);
    image.fsck();
    assert!(image.debugfs("stat /d/moved").contains("Size: 3000000"));

    let disk = image.beside("d.raw");
    fs::File::create(&disk).unwrap().set_len(64 << 20).unwrap();
    succeed(tool("sgdisk").args(["--new=1:1M:+8M", "--new=2:16M:+32M", "--change-name=2:root"]).arg(&disk));
    let server = Served::nbdkit(&socket, &["file", disk.to_str().unwrap()]);
    let part = server.url("", "@root");
    image.ok(["mkfs", "-q", &part]);
    image.ok(["cp", "new", &format!("{part}:/new")]);
    assert!(image.ok(["info", &server.url("", "")]).contains("root"));
    let range = server.url("", "&offset=16M&size=32M");
    assert_eq!(image.ok(["ls", &format!("{range}:/")]), "lost+found\nnew\n");
    drop(server);
    assert_eq!(image.ok(["ls", "d.raw@2:/"]), "lost+found\nnew\n");
    succeed(
        Command::new("dd")
            .args(["if=d.raw", "of=p", "bs=1M", "skip=16", "count=32", "status=none"])
            .current_dir(image.beside("")),
    );
    e2fsck_clean(image.beside("p"));
}

/// The server is killed again and again while files are copied. Its file outlives it.
#[test]
fn a_copy_survives_a_server_that_is_killed() {
    let (image, socket) = bench();
    let file = image.path.to_str().unwrap().to_owned();
    let start = || Served::nbdkit(&socket, &["--filter=delay", "file", &file, "wdelay=2ms"]);
    let mut server = start();
    let target = server.url("", ":/");
    fs::create_dir(image.beside("tree")).unwrap();
    (0..40).for_each(|i| fs::write(image.beside(&format!("tree/{i}")), vec![i; 300_000]).unwrap());
    let mut import = image.lanefs(["import", "tree", &target]).spawn().unwrap();
    let mut kills = 0;
    while import.try_wait().unwrap().is_none() {
        thread::sleep(Duration::from_millis(60));
        drop(server);
        thread::sleep(Duration::from_millis(30));
        server = start();
        kills += 1;
    }
    assert!(import.wait().unwrap().success() && kills > 1, "{kills} kills");
    drop(server);
    image.fsck();
    for i in 0..40u8 {
        image.ok(["cp", &format!("v.img:/{i}"), "back"]);
        assert!(fs::read(image.beside("back")).unwrap() == vec![i; 300_000], "{i}");
    }
}

/// A process that was stopped for longer than `timeout=`, as by a freezer of containers, has not
/// waited for the server meanwhile.
#[test]
fn a_command_that_was_stopped_goes_on() {
    let (image, socket) = bench();
    let server = Served::nbdkit(&socket, &["--filter=delay", "memory", "96M", "wdelay=5ms", "rdelay=5ms"]);
    let target = server.url("", "&timeout=1&reconnect=0");
    image.ok(["mkfs", "-q", &target]);
    fs::create_dir(image.beside("tree")).unwrap();
    (0..60).for_each(|i| fs::write(image.beside(&format!("tree/{i}")), vec![i; 300_000]).unwrap());
    let mut import = image.lanefs(["import", "tree", &format!("{target}:/")]).spawn().unwrap();
    let signal = |name: &str, process: u32| succeed(tool("kill").arg(name).arg(process.to_string()));
    let mut stops = 0;
    while import.try_wait().unwrap().is_none() {
        thread::sleep(Duration::from_millis(25));
        if stops < 4 && import.try_wait().unwrap().is_none() {
            signal("-STOP", import.id());
            thread::sleep(Duration::from_millis(1500));
            signal("-CONT", import.id());
            stops += 1;
        }
    }
    assert!(import.wait().unwrap().success() && stops > 1, "{stops} stops");
    image.ok(["check", &target]);
}

#[test]
fn what_cannot_be_opened_is_told_in_a_line() {
    let (image, socket) = bench();
    let place = socket.display();
    let missing = format!("nbd+unix:///x?socket={place}");
    let refused = |url: &str, why: &str| {
        image.fails(["ls", &format!("{url}:/")], 2, &format!("lanefs: cannot open '{url}': {why}"));
    };
    refused(&missing, &format!("no NBD server answers: {place}: No such file or directory"));
    refused("nbd://127.0.0.1:1/x", "no NBD server answers: 127.0.0.1:1: Connection refused");
    refused(
        "nbd://h/x?colour=red",
        "has a parameter \"colour\": there are socket, connections, timeout, \
        reconnect, unflushed, tls-certificates, tls-hostname, offset, size",
    );
    let secret = "nbd://user:secret@h/x";
    let out = image.lanefs(["ls", &format!("{secret}:/")]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(said.contains("user:***@h/x") && said.contains("no passwords"), "{said}");
    assert!(!said.contains("secret") && said.lines().count() == 1, "{said}");

    let server = Served::nbdkit(&socket, &["--readonly", "file", image.path.to_str().unwrap()]);
    let url = server.url("", "");
    let why = "the NBD server lets this export be read only";
    let message = format!("lanefs: cannot open for writing '{url}': {why}");
    image.fails(["mkdir", &format!("{url}:/d")], 1, &message);
    assert_eq!(image.ok(["ls", &format!("{url}:/")]), "lost+found\n");
    drop(server);

    // The export ends before the volume does, and holds what is no volume.
    let server =
        Served::nbdkit(&socket, &["--filter=truncate", "file", image.path.to_str().unwrap(), "truncate=32M"]);
    let out = image.lanefs(["ls", &server.url("", ":/")]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && said.lines().count() == 1 && said.contains("33554432"), "{said}");
    drop(server);
    let server = Served::nbdkit(&socket, &["memory", "64M"]);
    let (url, other) = (server.url("", ""), server.url("other", ""));
    refused(&url, "it holds no ext4 volume but zeros; lanefs mkfs makes a volume");
    image.ok(["mkfs", "-q", &other]);
    let again = image.lanefs(["mkfs", "-q", &other]).output().unwrap();
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(said.contains("--force makes a new one in its place"), "{said}");
    let why = "has 67108864 bytes, 1073741824 are asked for";
    let message = format!("lanefs: cannot make a volume in '{other}': {why}");
    image.fails(["mkfs", "-q", "--force", "--size", "1G", &other], 1, &message);
}

#[test]
fn the_exports_of_a_server_are_listed() {
    let (image, socket) = bench();
    let folder = image.beside("exports");
    fs::create_dir(&folder).unwrap();
    for (name, size) in [("a.img", 3 << 20), ("b.img", 64 << 20)] {
        fs::File::create(folder.join(name)).unwrap().set_len(size).unwrap();
    }
    let server = Served::nbdkit(&socket, &["file", &format!("dir={}", folder.display())]);
    let all = format!("nbd+unix://?socket={}", socket.display());
    let listed = image.ok(["info", &all]);
    let words: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(words.iter().any(|line| line.ends_with(&["a.img"])), "{listed}");
    assert!(words.iter().any(|line| line[0].starts_with("64") && line.ends_with(&["b.img"])), "{listed}");
    image.ok(["mkfs", "-q", &server.url("b.img", "")]);
    let out = image.lanefs(["ls", &server.url("c.img", ":/")]).output().unwrap();
    assert!(!out.status.success());
    drop(server);
    e2fsck_clean(folder.join("b.img"));
}

/// A key and a certificate for `localhost`, by an authority of its own, in the names of libnbd.
fn certificates(image: &Image, dir: &str) -> PathBuf {
    let at = image.beside(dir);
    fs::create_dir(&at).unwrap();
    let script = "
        openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca-key.pem -out ca-cert.pem
        openssl req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout server-key.pem -out server.csr
        printf 'subjectAltName=DNS:localhost\\nbasicConstraints=CA:FALSE\\n' > extensions
        openssl x509 -req -in server.csr -CA ca-cert.pem -CAkey ca-key.pem -CAcreateserial -days 2 \\
            -extfile extensions -out server-cert.pem";
    succeed(tool("sh").args(["-euc", script]).current_dir(&at));
    at
}

#[test]
fn tls_is_verified_on_both_sides() {
    let (image, socket) = bench();
    let at = certificates(&image, "tls");
    let other = certificates(&image, "other");
    let tls = format!("--tls-certificates={}", at.display());
    let server = Served::nbdkit(&socket, &["--tls=require", &tls, "memory", "64M"]);
    let plain = server.url("", "");
    let url = |dir: &PathBuf, more: &str| {
        format!("{}&tls-certificates={}{more}", plain.replace("nbd+unix", "nbds+unix"), dir.display())
    };
    let good = url(&at, "");
    image.ok(["mkfs", "-q", &good]);
    fs::write(image.beside("f"), vec![3; 5_000_000]).unwrap();
    image.ok(["cp", "f", &format!("{good}:/f")]);
    image.ok(["cp", &format!("{good}:/f"), "g"]);
    assert!(fs::read(image.beside("g")).unwrap() == vec![3; 5_000_000]);
    image.ok(["check", &good]);
    let refused = |url: &str, word: &str| {
        let out = image.lanefs(["ls", &format!("{url}:/")]).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && said.lines().count() == 1 && said.contains(word), "{said}");
    };
    refused(&plain, "the NBD server wants TLS: nbds://");
    refused(&url(&other, ""), "TLS: invalid peer certificate");
    refused(&url(&at, "&tls-hostname=elsewhere"), "TLS: invalid peer certificate");
    refused(&url(&image.beside("nowhere"), ""), "ca-cert.pem");
    drop(server);
    let _server = Served::nbdkit(&socket, &["--tls=off", "memory", "64M"]);
    refused(&good, "the NBD server has no TLS");
}

/// A signal a second after the first ends an import that the first one cannot end: it closes a
/// volume whose server is stopped. Of two signals at once, as timeout(1) sends them, the second
/// ends nothing.
#[test]
fn a_second_signal_ends_an_import_that_hangs() {
    let (image, socket) = bench();
    let server = Served::nbdkit(&socket, &["memory", "96M"]);
    let url = server.url("", "");
    image.ok(["mkfs", "-q", &url]);
    fs::create_dir(image.beside("tree")).unwrap();
    fs::write(image.beside("tree/f"), vec![7; 4 << 20]).unwrap();
    succeed(
        tool("tar").args(["-cf"]).arg(image.beside("t.tar")).arg("-C").arg(image.beside("tree")).arg("f"),
    );
    let tar = fs::read(image.beside("t.tar")).unwrap();
    let mut command = image.lanefs(["import", "-", &format!("{url}:/")]);
    let mut import = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut pipe = import.stdin.take().unwrap();
    pipe.write_all(&tar[..3 << 20]).unwrap();
    let status = format!("/proc/{}/status", import.id());
    let catches_int = || {
        let status = fs::read_to_string(&status).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(caught.trim(), 16).unwrap() & 1 << (Signal::INT.as_raw() - 1) != 0
    };
    while !catches_int() {
        thread::sleep(Duration::from_millis(5));
    }
    let (pid, server) = (Pid::from_child(&import), Pid::from_raw(server.id() as i32).unwrap());
    kill_process(server, Signal::STOP).unwrap();
    (0..2).for_each(|_| kill_process(pid, Signal::INT).unwrap());
    thread::sleep(Duration::from_millis(1500));
    let hangs = import.try_wait().unwrap().is_none();
    kill_process(pid, Signal::INT).unwrap();
    let ended = (0..100).find_map(|_| {
        thread::sleep(Duration::from_millis(50));
        import.try_wait().unwrap()
    });
    kill_process(server, Signal::CONT).unwrap();
    import.wait().unwrap();
    assert_eq!((hangs, ended.map(|status| status.code())), (true, Some(Some(130))));
}
