//! Mounts whose requests come by io_uring (`uring`). Where the kernel has no such requests, what is
//! tested is that the mount is refused. The judge `exercise.rs` has fsx on such a mount.

use crate::support::mount::{Mount, ended};
use lanefs_tests::{FUSE_URING, FuseUring};
use rustix::fs::{SeekFrom, seek};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// A mount with `uring`, and the kernel's switch for it. `None` where that cannot be switched on:
/// the mount has been refused there.
fn mounted(options: &str) -> Option<(Mount, FuseUring)> {
    let m = Mount::blank();
    let Some(on) = FuseUring::set(true) else {
        refused(&m);
        return None;
    };
    m.image.ok(["mount", "v.img", "m", "-o", options]);
    Some((m, on))
}

/// Checks that a mount is refused, in one line that says what is missing.
fn refused(m: &Mount) {
    let why = if Path::new(FUSE_URING).exists() { FUSE_URING } else { "Linux 6.14" };
    for options in ["uring", "uring,sandbox=off"] {
        let out = m.image.lanefs(["mount", "v.img", "m", "-o", options]).output().unwrap();
        let said = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(32), "{said}");
        assert!(said.contains("mount option 'uring'") && said.contains(why), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(!m.is_mounted());
    }
}

#[test]
fn where_it_is_switched_off_the_mount_is_refused_and_says_how_to_switch_it_on() {
    let m = Mount::blank();
    let _off = FuseUring::set(false);
    refused(&m);
    m.image.fsck();
}

/// Writes files, renames some, syncs some, and reads all again.
fn use_files(root: &Path, name: &str, count: usize) {
    let content = |n: usize| vec![n as u8; n * 7919 % 300_000];
    for n in 0..count {
        let path = root.join(format!("{name}{n}"));
        let mut file = File::create(&path).unwrap();
        file.write_all(&content(n)).unwrap();
        if n % 4 == 0 {
            file.sync_all().unwrap();
        }
        if n % 3 == 0 {
            fs::rename(&path, root.join(format!("{name}{n}.moved"))).unwrap();
        }
    }
    for n in 0..count {
        let moved = if n % 3 == 0 { ".moved" } else { "" };
        assert!(fs::read(root.join(format!("{name}{n}{moved}"))).unwrap() == content(n), "{name}{n}");
    }
}

#[test]
fn programs_side_by_side_find_what_they_wrote() {
    for options in ["uring", "uring,sandbox=off,threads=1", "uring,nofollow_cpu"] {
        let Some((m, _on)) = mounted(options) else { return };
        thread::scope(|scope| {
            for job in 0..8 {
                let root = &m.at;
                scope.spawn(move || use_files(root, &format!("job{job}-"), 40));
            }
        });
        let said = m.image.ok(["top", "m", "--once", "--json"]);
        assert!(said.contains("\"queues\":") && !said.contains("\"queues\":0,"), "{said}");
        m.unmount("m");
        m.image.ok(["mount", "v.img", "m"]);
        assert_eq!(fs::read_dir(&m.at).unwrap().count(), 8 * 40 + 1, "{options}");
        m.umount();
    }
}

/// Requests that are served after a notice to the kernel, which takes requests itself, from more
/// programs than the mount has threads.
#[test]
fn programs_that_need_the_kernel_to_write_back_first_do_not_wait_for_each_other() {
    let Some((m, _on)) = mounted("uring,threads=2") else { return };
    thread::scope(|scope| {
        for job in 0..24 {
            let path = m.path(&format!("f{job}"));
            scope.spawn(move || {
                let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
                let direct = File::options().read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
                for round in 0..20_u8 {
                    file.write_all_at(&[round; 8192], u64::from(round) * 16_384).unwrap();
                    // Under so many, one may be told to try again.
                    match seek(&file, SeekFrom::Hole(u64::from(round) * 16_384)) {
                        Ok(at) => assert!(at >= u64::from(round) * 16_384 + 8192),
                        Err(e) => assert_eq!(e, rustix::io::Errno::AGAIN),
                    }
                    let mut buf = vec![0; 4096 * 3];
                    let at = buf.as_ptr().align_offset(4096);
                    match direct.read_at(&mut buf[at..at + 8192], u64::from(round) * 16_384) {
                        Ok(n) => assert!(n == 8192 && buf[at..at + n].iter().all(|byte| *byte == round)),
                        Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::WouldBlock),
                    }
                }
                file.read_to_end(&mut Vec::new()).unwrap();
            });
        }
    });
    m.umount();
}

/// Runs writers, and `end` in their midst. The writers get errors from then on, and end.
fn under_load(m: &Mount, end: impl FnOnce()) {
    thread::scope(|scope| {
        for job in 0..6 {
            let path = m.path(&format!("load{job}"));
            scope.spawn(move || {
                let began = Instant::now();
                for n in 0_u64.. {
                    let written = File::create(&path).and_then(|mut file| {
                        file.write_all(&vec![n as u8; 100_000])?;
                        if n % 3 == 0 { file.sync_all() } else { Ok(()) }
                    });
                    // Below a mount that is gone lies a folder, where writing succeeds.
                    if written.is_err() || began.elapsed() > Duration::from_secs(4) {
                        break;
                    }
                }
            });
        }
        thread::sleep(Duration::from_millis(500));
        end();
    });
}

#[test]
fn a_server_that_is_told_to_end_under_load_leaves_a_consistent_volume() {
    let Some((m, _on)) = mounted("uring") else { return };
    let server = Pid::from_raw(m.servers()[0]).unwrap();
    under_load(&m, || {
        kill_process(server, Signal::TERM).unwrap();
        ended(server);
    });
    assert!(!m.is_mounted());
    m.image.fsck();
}

#[test]
fn a_server_that_is_killed_under_load_leaves_programs_an_error_and_a_volume_to_recover() {
    let Some((m, _on)) = mounted("uring") else { return };
    let server = Pid::from_raw(m.servers()[0]).unwrap();
    under_load(&m, || {
        kill_process(server, Signal::KILL).unwrap();
        ended(server);
    });
    if m.is_mounted() {
        assert!(fs::read_dir(&m.at).is_err());
        m.unmount("m");
    }
    m.image.ok(["mount", "v.img", "m"]);
    m.umount();
}
