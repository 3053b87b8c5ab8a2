//! check: output, JSON and exit status, held against e2fsck's.

use crate::support::mount::Mount;
use crate::support::{Image, succeed, tool};
use lanefs_tests::LoopMount;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Runs check, and returns its exit status and what it printed.
fn check(v: &Image, args: &[&str]) -> (Option<i32>, String) {
    let out = v.lanefs([&["check"], args].concat()).output().expect("lanefs");
    assert!(out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
    (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned())
}

fn e2fsck(v: &Image) -> Option<i32> {
    tool("e2fsck").arg("-fn").arg(&v.path).output().expect("e2fsck").status.code()
}

#[test]
fn a_whole_volume_is_clean_and_stays_as_it_is() {
    let v = Image::new();
    let before = fs::read(&v.path).expect("the image");
    let (code, said) = check(&v, &["v.img"]);
    assert_eq!((code, e2fsck(&v)), (Some(0), Some(0)));
    assert!(said.starts_with("'v.img': clean; ") && said.lines().count() == 1, "{said}");
    let (code, said) = check(&v, &["--json", "v.img:/"]);
    let json: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((code, &json["clean"], &json["directories"]), (Some(0), &true.into(), &2.into()));
    assert!(before == fs::read(&v.path).expect("the image"));
}

#[test]
fn findings_have_structure_number_and_rule() {
    let v = Image::new();
    succeed(tool("debugfs").args(["-w", "-R", "set_inode_field / links_count 7"]).arg(&v.path));
    let (code, said) = check(&v, &["v.img"]);
    assert_eq!((code, e2fsck(&v)), (Some(4), Some(4)));
    assert!(
        said.starts_with("inode 2: i_links_count is 7, 3 entries lead to it\n'v.img': 1 finding; "),
        "{said}"
    );
    let (code, said) = check(&v, &["--json", "v.img"]);
    let json: Value = serde_json::from_str(&said).expect("JSON");
    let finding = &json["findings"][0];
    assert_eq!((code, &json["clean"], &json["count"]), (Some(4), &false.into(), &1.into()));
    assert_eq!((&finding["structure"], &finding["inode"]), (&"inode".into(), &2.into()));
    assert_eq!(finding["rule"], "Links");
}

#[test]
fn what_cannot_be_checked_ends_with_eight() {
    let v = Image::new();
    fs::write(v.beside("zeros"), vec![0; 1 << 20]).expect("write");
    v.fails(["check", "missing"], 8, "lanefs: cannot open 'missing': No such file or directory; lanefs mkfs --size 1G VOLUME makes a volume");
    let zeros = "superblock: s_magic is 0x0000, not 0xef53: not an ext2, ext3 or ext4 volume";
    v.fails(["check", "zeros"], 8, &format!("lanefs: cannot check 'zeros': {zeros}"));
    let out = v.lanefs(["check"]).output().expect("lanefs");
    assert_eq!(out.status.code(), Some(16));
}

/// A volume that another program than a mount has open for writing changes under the check, and is
/// refused in one line.
#[test]
fn a_volume_that_a_program_writes_is_refused() {
    let v = Image::new();
    let volume = lanefs::Volume::open(&v.path).expect("the volume");
    let out = v.lanefs(["check", "v.img"]).output().expect("lanefs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(8), "{said}");
    assert!(said.lines().count() == 1 && said.contains("is in use"), "{said}");
    volume.close().expect("closed");
    assert_eq!(check(&v, &["v.img"]).0, Some(0));
}

/// A journal that was not replayed is replayed in memory.
#[test]
fn a_volume_that_was_not_closed_is_checked_as_recovered() {
    let v = Image::new();
    let volume = lanefs::Volume::open(&v.path).expect("the volume");
    volume.create_dir("/dir").expect("a directory");
    volume.sync().expect("synced");
    fs::copy(&v.path, v.beside("copy.img")).expect("a copy");
    volume.close().expect("closed");
    let (code, said) = check(&v, &["copy.img"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("journal replayed in memory") && said.contains("(3 directories)"), "{said}");
}

/// Files in the directory `many` beside those of [`change`].
const MANY: u32 = 4000;

/// Makes one random change to one of a few files and directories below `dir`, or to one of many
/// beside it. A name that is missing, or exists already, is no failure.
fn change(dir: &Path, rng: &mut StdRng) -> std::io::Result<()> {
    if rng.random() {
        let path = dir.join(format!("../many/{}", rng.random_range(0..MANY)));
        return fs::remove_file(&path).or_else(|_| fs::write(path, vec![7; rng.random_range(0..5000)]));
    }
    let name = |rng: &mut StdRng| dir.join(format!("n{}", rng.random_range(0..12)));
    let path = name(rng);
    match rng.random_range(0..10) {
        0 => fs::rename(path, name(rng)),
        1 => fs::remove_file(path),
        2 => fs::remove_dir_all(path),
        3 => fs::create_dir(path),
        4 => fs::hard_link(path, name(rng)),
        5 => std::os::unix::fs::symlink("x".repeat(rng.random_range(1..300)), path),
        6 => File::options().write(true).open(path)?.set_len(rng.random_range(0..3_000_000)),
        7 => fs::write(path.join(format!("deep{}", rng.random_range(0..400))), "in it"),
        8 => File::options().write(true).open(path)?.sync_all(),
        _ => {
            let file = File::options().write(true).create(true).truncate(false).open(path)?;
            let bytes = vec![7; rng.random_range(1..200_000)];
            file.write_all_at(&bytes, rng.random_range(0..2_000_000))
        }
    }
}

/// Threads change a mounted volume all the time. Each check of it meets another state, and finds
/// nothing: what it finds would be an artefact.
#[test]
fn a_mounted_volume_is_clean_whenever_it_is_checked() {
    // Much to read, and a log that soon is written over.
    let m = Mount::blank_with(&["-b", "1024", "-J", "size=1"]);
    let volume = lanefs::Volume::open(&m.image.path).unwrap();
    volume.create_dir("/many").unwrap();
    for n in 0..MANY {
        volume.write(format!("/many/{n}"), b"content").unwrap();
    }
    volume.close().unwrap();
    m.image.ok(["mount", "v.img", "m"]);
    let ended = AtomicBool::new(false);
    let end_after = |rounds: &dyn Fn()| {
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(rounds));
        ended.store(true, Relaxed);
        checked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            // Two share a directory.
            let dir = m.path(&format!("d{}", thread / 2));
            let _ = fs::create_dir(&dir);
            let ended = &ended;
            scope.spawn(move || {
                let mut rng = StdRng::seed_from_u64(thread);
                while !ended.load(Relaxed) {
                    let _ = change(&dir, &mut rng);
                    // Two of the threads have each change committed.
                    if thread % 2 == 0 {
                        File::open(&dir).unwrap().sync_all().unwrap();
                    }
                }
            });
        }
        end_after(&|| {
            for round in 0..50 {
                let began = Instant::now();
                let (code, said) = check(&m.image, &["v.img"]);
                assert_eq!(code, Some(0), "round {round}: {said}");
                assert!(said.contains("in use: this is its last commit"), "{said}");
                assert!(began.elapsed() < Duration::from_secs(60), "round {round}");
            }
        });
    });
    let (_, said) = check(&m.image, &["--json", "v.img"]);
    let json: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&json["live"], &json["clean"]), (&true.into(), &true.into()));
    m.umount();
    assert!(!check(&m.image, &["v.img"]).1.contains("in use:"));
}

/// A check beside the mount finds damage in a directory that no program uses, by each name of the
/// volume.
#[test]
fn a_damaged_volume_is_reported_while_it_is_mounted() {
    let m = Mount::blank();
    let volume = lanefs::Volume::open(&m.image.path).unwrap();
    volume.create_dir("/unused").unwrap();
    volume.close().unwrap();
    succeed(tool("debugfs").args(["-w", "-R", "set_inode_field /unused links_count 7"]).arg(&m.image.path));
    m.image.ok(["mount", "v.img", "m"]);
    fs::write(m.path("used"), "it goes on").unwrap();
    fs::hard_link(&m.image.path, m.image.beside("link.img")).unwrap();
    for name in ["v.img", "link.img", "pmem:v.img"] {
        let (code, said) = check(&m.image, &[name]);
        assert_eq!(code, Some(4), "{said}");
        assert!(said.contains(": i_links_count is 7, 2 entries lead to it\n") && said.contains("1 finding;"));
    }
    m.image.ok(["umount", "m"]);
}

/// The socket of the process that serves the volume, where root's are.
fn socket_of(m: &Mount) -> PathBuf {
    let servers = m.servers();
    let mut sockets = fs::read_dir("/run/lanefs").unwrap().map(|entry| entry.unwrap().path());
    let serves = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        servers.iter().any(|pid| name.starts_with(&format!("{pid}-")))
    };
    sockets.find(serves).expect("a socket")
}

/// Asks for the device to be held, and waits until it is.
fn hold(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(b"GET /hold HTTP/1.0\r\n\r\n").unwrap();
    let mut text = Vec::new();
    while !text.ends_with(b"held\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        text.extend(byte);
    }
    stream
}

/// A check that dies lets the mount go on; several check at the same time; an unmount that comes
/// meanwhile waits.
#[test]
fn a_mount_goes_on_when_its_check_has_ended() {
    let m = Mount::new("commit=300");
    let socket = socket_of(&m);
    let dead = hold(&socket);
    // Not committed, so not there.
    fs::create_dir(m.path("later")).unwrap();
    let before = fs::read(&m.image.path).unwrap();
    let waiting = std::thread::spawn({
        let path = m.at.clone();
        move || File::open(path).unwrap().sync_all().unwrap()
    });
    // Time for the commit that must not happen. `top` still gets its answer.
    std::thread::sleep(Duration::from_millis(200));
    m.image.ok(["top", "v.img", "--once", "--json"]);
    assert!(before == fs::read(&m.image.path).unwrap(), "a commit went past the hold");
    drop(dead);
    waiting.join().unwrap();
    let checks: Vec<_> = (0..3).map(|_| m.image.lanefs(["check", "v.img"]).output()).collect();
    for out in checks {
        let out = out.unwrap();
        assert!(out.status.success() && String::from_utf8_lossy(&out.stdout).contains("(3 directories)"));
    }
    let last = hold(&socket);
    let image = m.image.lanefs(["umount", "m"]).spawn();
    drop(last);
    assert!(image.unwrap().wait().unwrap().success());
    m.image.fsck();
}

/// Changes that wait for the check leave threads for all else.
#[test]
fn a_lookup_is_answered_while_changes_wait_for_a_check() {
    let m = Mount::blank_with(&["-J", "size=4"]);
    m.image.ok(["mount", "v.img", "m"]);
    for dir in ["0", "1", "2", "3"] {
        fs::create_dir(m.path(dir)).unwrap();
    }
    let held = hold(&socket_of(&m));
    let (made, ended) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for dir in 0..3 {
            let (made, ended, dir) = (&made, &ended, m.path(&dir.to_string()));
            scope.spawn(move || {
                while !ended.load(Relaxed) {
                    fs::create_dir(dir.join(made.fetch_add(1, Relaxed).to_string())).unwrap();
                }
            });
        }
        // The transaction is full when no more are made.
        let mut before = usize::MAX;
        while std::mem::replace(&mut before, made.load(Relaxed)) != made.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(300));
        }
        let (answer, answered) = mpsc::channel();
        let other = m.path("3/none");
        scope.spawn(move || answer.send(other.exists()));
        let found = answered.recv_timeout(Duration::from_secs(10));
        ended.store(true, Relaxed);
        drop(held);
        assert_eq!(found, Ok(false));
    });
    m.umount();
    m.image.fsck();
}

/// Without a journal there is no committed state.
#[test]
fn a_mounted_volume_without_a_journal_is_refused() {
    let m = Mount::blank_with(&["-O", "^has_journal"]);
    m.image.ok(["mount", "v.img", "m"]);
    let why = "it has no journal, which would keep a state for the check. Unmount it";
    m.image.fails(["check", "v.img"], 8, &format!("lanefs: cannot check 'v.img': is in use: {why}"));
    m.umount();
}

/// What the kernel has mounted for writing is refused, by the image's name and by the device's,
/// until it is frozen.
#[test]
fn a_volume_that_the_kernel_has_mounted_is_checked_while_it_is_frozen() {
    for options in [&["-b", "4096"][..], &["-O", "^has_journal"]] {
        let v = Image::mke2fs(options, None);
        let mount = LoopMount::new(&v.path, "");
        fs::write(mount.path().join("file"), "content").unwrap();
        for name in ["v.img", mount.device()] {
            let out = v.lanefs(["check", name]).output().unwrap();
            let said = String::from_utf8_lossy(&out.stderr);
            assert_eq!(out.status.code(), Some(8), "{said}");
            let way = if options[0] == "-b" { "fsfreeze --freeze" } else { "mount it read-only" };
            assert!(said.lines().count() == 1 && said.contains(way), "{said}");
        }
        if options[0] == "-b" {
            succeed(tool("fsfreeze").arg("--freeze").arg(mount.path()));
            let checked = ["v.img", mount.device()].map(|name| check(&v, &[name]));
            succeed(tool("fsfreeze").arg("--unfreeze").arg(mount.path()));
            for (code, said) in checked {
                assert!(code == Some(0) && said.contains("in use:"), "{said}");
            }
        }
        mount.unmount();
        let mount = LoopMount::new(&v.path, "ro");
        assert_eq!(check(&v, &["v.img"]).0, Some(0));
        mount.unmount();
    }
}
