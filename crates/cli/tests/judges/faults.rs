//! Killed servers, full volumes and unmounts at the wrong moment: programs get an errno, no call
//! hangs, and no synced byte is lost.

use crate::support::{Disk, Image, SIZE, bounded, judged, must, options, output, said, shell};
use lanefs_tests::{Mounted, Server, is_mounted, unmount_soon};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn signal(mounted: &Mounted, signal: Signal) {
    let pid = Pid::from_raw(mounted.pid().unwrap() as i32).unwrap();
    kill_process(pid, signal).unwrap();
}

fn record(thread: usize, n: usize) -> Vec<u8> {
    (0..3000 + n % 2000).map(|i| (thread * 31 + n * 7 + i / 3) as u8).collect()
}

/// One thread's work until the mount dies: appends to one file, each followed by an fsync, and
/// whole files that are made, synced and renamed over the last. What it has been promised goes to
/// `promised`: records and name changes.
fn writer(
    dir: &Path,
    thread: usize,
    promised: &Mutex<(usize, usize)>,
    all: &AtomicUsize,
) -> std::io::Result<()> {
    let mut log = File::create(dir.join(format!("log{thread}")))?;
    log.sync_all()?;
    let folder = File::open(dir)?;
    folder.sync_all()?;
    for n in 0.. {
        log.write_all(&record(thread, n))?;
        if n % 3 == 0 {
            log.sync_data()?
        } else {
            log.sync_all()?
        }
        promised.lock().unwrap().0 = n + 1;
        if n % 4 == 0 {
            let (new, name) = (dir.join(format!("new{thread}")), dir.join(format!("name{thread}")));
            let mut file = File::create(&new)?;
            file.write_all(&record(thread, n))?;
            file.sync_all()?;
            fs::rename(&new, &name)?;
            folder.sync_all()?;
            promised.lock().unwrap().1 = n + 1;
        }
        all.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// What the writers of a mount have been promised, by thread.
type Promised = Vec<Mutex<(usize, usize)>>;

const THREADS: usize = 4;

/// Lets writers work in `round` of the mount until they have synced `count` times; then calls
/// `cut`, and kills the server. Returns what `cut` does, and what the writers have been promised.
fn write_until_killed<T>(
    mounted: Mounted,
    round: &str,
    count: usize,
    cut: impl FnOnce() -> T,
) -> (T, Promised) {
    let dir = mounted.path().join(round);
    fs::create_dir(&dir).unwrap();
    let promised: Promised = (0..THREADS).map(|_| Mutex::default()).collect();
    let all = AtomicUsize::new(0);
    let left = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|t| {
                scope.spawn({
                    let (dir, promised, all) = (&dir, &promised[t], &all);
                    move || writer(dir, t, promised, all)
                })
            })
            .collect();
        while all.load(Ordering::Relaxed) < count && !workers.iter().any(|w| w.is_finished()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let left = cut();
        mounted.kill(|| {
            for worker in workers {
                // As it was caught; never by a full volume.
                let e = worker.join().unwrap().unwrap_err();
                let dead = [Errno::NOTCONN, Errno::CONNABORTED, Errno::IO, Errno::ROFS, Errno::NODEV];
                assert!(dead.iter().any(|d| e.raw_os_error() == Some(d.raw_os_error())), "{e}");
            }
        });
        left
    });
    (left, promised)
}

/// Checks that `dir` has all that was promised.
fn check_promised(dir: &Path, promised: &Promised) {
    for (thread, promised) in promised.iter().enumerate() {
        let (records, names) = *promised.lock().unwrap();
        let wanted: Vec<u8> = (0..records).flat_map(|n| record(thread, n)).collect();
        let log = fs::read(dir.join(format!("log{thread}"))).unwrap_or_default();
        assert!(
            log.len() >= wanted.len() && log[..wanted.len()] == wanted,
            "thread {thread}: of {records} synced records some are lost"
        );
        if names > 0 {
            let content = fs::read(dir.join(format!("name{thread}"))).unwrap();
            // The promised one, or the next.
            let fits = [names - 1, names + 3].iter().any(|&n| content == record(thread, n));
            assert!(fits, "thread {thread}: the file renamed last is not whole ({} bytes)", content.len());
        }
    }
}

fn kill_while_syncing(rounds: usize) {
    let image = Image::new(SIZE, &[]);
    let server = judged();
    for round in 0..rounds {
        let name = format!("round{round}");
        let ((), promised) = write_until_killed(image.mount(&server), &name, 60 + 50 * round, || ());
        let mounted = image.mount(&server);
        check_promised(&mounted.path().join(name), &promised);
        mounted.unmount();
    }
}

/// A killed server leaves what it has written to the kernel; a cut takes what was not flushed.
#[test]
fn a_cut_of_power_loses_no_synced_byte() {
    for seed in 0..3 {
        let image = Image::new(64 << 20, &[]);
        let disk = Disk::new(&image);
        let mounted = disk.mount(options(&judged()));
        let (media, promised) = write_until_killed(mounted, "cut", 100, || disk.cut(seed));
        for medium in media {
            medium.save(&image.path).unwrap();
            let mounted = image.mount(&judged());
            check_promised(&mounted.path().join("cut"), &promised);
            mounted.unmount();
        }
    }
}

#[test]
fn a_killed_mount_loses_no_synced_byte() {
    kill_while_syncing(3);
}

#[test]
#[ignore = "long: make judge-mount"]
fn a_mount_killed_often_loses_no_synced_byte() {
    kill_while_syncing(25);
}

/// A program that uses a dead mount gets an error at once, and a plain unmount removes the mount.
#[test]
fn a_dead_mount_can_be_unmounted() {
    let image = Image::new(SIZE, &[]);
    let mut mounted = image.mount(&judged());
    if mounted.pid().is_none() {
        return;
    }
    let path = mounted.path().join("f");
    let file = File::create(&path).unwrap();
    file.write_all_at(b"synced", 0).unwrap();
    file.sync_all().unwrap();
    signal(&mounted, Signal::KILL);
    mounted.wait();
    let e = fs::metadata(&path).unwrap_err();
    assert_eq!(e.raw_os_error(), Some(Errno::NOTCONN.raw_os_error()), "{e}");
    assert!(file.sync_all().is_err());
    drop(file);
    unmount_soon(mounted.path());
    assert!(!is_mounted(mounted.path()));
    let mounted = image.mount(&judged());
    assert_eq!(fs::read(mounted.path().join("f")).unwrap(), b"synced");
    mounted.unmount();
}

/// SIGTERM and SIGINT write everything out and unmount.
#[test]
fn a_signal_ends_a_mount_cleanly() {
    for end in [Signal::TERM, Signal::INT, Signal::HUP] {
        let image = Image::new(SIZE, &[]);
        let Server::Lanefs(_) = judged() else { return };
        let mut mounted = image.mount(&judged());
        fs::write(mounted.path().join("f"), "written").unwrap();
        signal(&mounted, end);
        let status = mounted.wait();
        assert!(status.success(), "{end:?}: {status}\n{}", mounted.said());
        assert!(!is_mounted(mounted.path()), "{end:?}");
        lanefs_tests::e2fsck_clean(&image.path);
        assert_eq!(lanefs_tests::debugfs(&image.path, "cat /f"), "written");
    }
}

/// Returns whether a process of the group has not ended. A zombie has ended.
fn group_lives(group: Pid) -> bool {
    let group = group.as_raw_nonzero().to_string();
    let stats = fs::read_dir("/proc").unwrap().flatten();
    let stats = stats.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    // "PID (NAME) STATE PARENT GROUP ..."
    stats.into_iter().any(|stat| {
        let mut fields = stat.rsplit(')').next().unwrap().split_whitespace();
        let state = fields.next().unwrap_or_default();
        fields.nth(1) == Some(&group) && !["Z", "X"].contains(&state)
    })
}

/// Clients that die in the middle of requests of all kinds leave a mount that works.
#[test]
fn clients_die_in_the_middle() {
    let image = Image::new(SIZE, &[]);
    let mounted = image.mount(&judged());
    shell(
        mounted.path(),
        "mkdir many; for n in $(seq 500); do echo $n >many/f$n; done; head -c 20M /dev/urandom >big",
    );
    let scripts = [
        "exec dd if=/dev/zero of=d1 bs=1M count=100 status=none",
        "exec dd if=/dev/zero of=d2 bs=1M count=100 oflag=direct status=none",
        "exec dd if=/dev/zero of=d3 bs=4k oflag=sync status=none",
        "exec cat big big big big big big",
        "while :; do find . -printf '%p %s\\n'; done",
        "while :; do cp -r many copy; rm -rf copy; done",
        "while :; do mv big large; mv large big; done",
        "exec flock lock sleep 100",
    ];
    for round in 0..3 {
        for script in scripts {
            let mut command = std::process::Command::new("bash");
            command
                .args(["-c", script])
                .current_dir(mounted.path())
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null());
            use std::os::unix::process::CommandExt;
            let mut child = command.process_group(0).spawn().unwrap();
            std::thread::sleep(Duration::from_millis(20 + 35 * round));
            let group = Pid::from_raw(child.id() as i32).unwrap();
            rustix::process::kill_process_group(group, Signal::KILL).unwrap();
            child.wait().unwrap();
            // Its children are in the middle of requests too.
            while group_lives(group) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        // The lock went with its holder. A writeback that died with a client is told once to the
        // next syncfs.
        shell(
            mounted.path(),
            "[ -e big ] || mv large big; flock -w 60 lock true; rm -rf d1 d2 d3 copy; echo works >f; [ $(cat f) = works ]
            sync -f . || sync -f .",
        );
    }
    let mut command = bounded(60, "find");
    assert_eq!(must(command.arg(mounted.path().join("many")).args(["-type", "f"])).lines().count(), 500);
    mounted.unmount();
}

/// An unmount with an open file is refused; a lazy one is not, the file works on, and its close
/// ends the server.
#[test]
fn an_unmount_with_open_files() {
    let image = Image::new(SIZE, &[]);
    let mut mounted = image.mount(&judged());
    let mut file =
        File::options().read(true).write(true).create_new(true).open(mounted.path().join("open")).unwrap();
    let gone =
        File::options().read(true).write(true).create_new(true).open(mounted.path().join("gone")).unwrap();
    gone.write_all_at(&[7; 100_000], 0).unwrap();
    fs::remove_file(mounted.path().join("gone")).unwrap();
    let out = output(bounded(20, "umount").arg(mounted.path()));
    assert_eq!(out.status.code(), Some(32), "{}", said(&out));
    assert!(said(&out).contains("busy"), "{}", said(&out));
    file.write_all(b"before").unwrap();
    if mounted.pid().is_none() {
        return;
    }
    must(bounded(20, "umount").arg("--lazy").arg(mounted.path()));
    assert!(!is_mounted(mounted.path()));
    file.write_all(b" and after").unwrap();
    file.sync_all().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    let mut byte = [0; 1];
    gone.read_exact_at(&mut byte, 99_999).unwrap();
    assert_eq!(byte, [7]);
    drop((file, gone));
    let status = mounted.wait();
    assert!(status.success(), "{status}\n{}", mounted.said());
    lanefs_tests::e2fsck_clean(&image.path);
    assert_eq!(lanefs_tests::debugfs(&image.path, "cat /open"), "before and after");
}

/// Writes until there is no space. Whatever way a program takes to be told, it is ENOSPC, and what
/// was synced is there.
#[test]
fn a_full_volume_says_so() {
    let image = Image::new(48 << 20, &[]);
    let mounted = image.mount(&judged());
    let root = mounted.path();
    let full = |e: &std::io::Error| e.raw_os_error() == Some(Errno::NOSPC.raw_os_error());
    fs::write(root.join("kept"), vec![1; 1 << 20]).unwrap();
    File::open(root.join("kept")).unwrap().sync_all().unwrap();
    for (round, direct) in [(0, false), (1, false), (2, true)] {
        let path = root.join(format!("filler{round}"));
        if direct {
            let out = output(
                bounded(100, "dd")
                    .args(["if=/dev/zero", "bs=1M", "oflag=direct"])
                    .arg(format!("of={}", path.display())),
            );
            assert!(said(&out).contains("No space left"), "{}", said(&out));
        } else {
            let file = File::create(&path).unwrap();
            let block = vec![9; 1 << 20];
            let mut at = 0;
            let error = loop {
                // With a writeback cache the write may be told late, but never later than the sync.
                if let Err(e) = file.write_all_at(&block, at).and_then(|()| file.sync_data()) {
                    break e;
                }
                at += block.len() as u64;
                assert!(at < 100 << 20, "more than the volume has room for");
            };
            assert!(full(&error), "{error}");
            let text = fs::read(&path).unwrap();
            assert!(text.len() as u64 >= at && text[..at as usize].iter().all(|b| *b == 9));
        }
        // Small files into the remaining space: each failure is reported, at the latest by the
        // sync.
        let error = (0..100_000).find_map(|n| {
            let path = root.join(format!("small{round}.{n}"));
            let made =
                File::create(path).and_then(|mut f| f.write_all(&[3; 5000]).and_then(|()| f.sync_all()));
            made.err()
        });
        let error = error.expect("100,000 small files on a full volume");
        assert!(full(&error), "{error}");
        assert!(fs::read(root.join("kept")).unwrap() == vec![1; 1 << 20]);
        // A writeback that failed is also told to the next syncfs, once: a kernel's FUSE mount
        // cannot reserve at the write, as its ext4 does.
        shell(root, "rm -f filler* small*; sync -f . || sync -f .");
        // Blocks come back when their freeing has committed.
        let again = root.join("again");
        fs::write(&again, vec![5; 20 << 20]).unwrap();
        File::open(&again).unwrap().sync_all().unwrap();
        fs::remove_file(again).unwrap();
    }
    mounted.unmount();
}
