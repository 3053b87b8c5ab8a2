//! A mount of a volume on an NBD server: its server is confined, and a lost connection is made
//! again by the broker.

use crate::support::mount::Mount;
use lanefs_tests::Served;
use std::fs::{self, File};
use std::io::Write;
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
    let mut file = File::create(m.path("f")).unwrap();
    file.write_all(&[1; 100_000]).unwrap();
    assert!(file.sync_all().is_err());
    drop(file);
    let out = m.image.lanefs(["umount", "m"]).output().unwrap();
    assert!(!m.is_mounted(), "{out:?}");
    let recovered = m.image.lanefs(["recover", "v.img"]).output().unwrap();
    assert!(recovered.status.success(), "{recovered:?}");
    m.image.fsck();
    assert_eq!(m.image.ok(["cat", "v.img:/before"]), "synced");
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
