//! No serving thread waits for another request: runs the operations that would hang, with one
//! serving thread and with many. No user has all of the threads.

use crate::support::{Disk, Image, LIMIT, bounded, compile, judged, must, options};
use lanefs_tests::{Mounted, Server};
use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

fn waits(threads: u32, args: &[&str]) {
    let server = Server::Lanefs(env!("CARGO_BIN_EXE_lanefs").into());
    let image = Image::new(64 << 20, &["-b", "4096"]);
    let program = compile(&image, "waits.c");
    let options = format!("{},threads={threads}", options(&server));
    let mounted = Mounted::new(&server, &image.path, &options, LIMIT);
    let at = mounted.path().join(if args[0] == "fault" || args[0] == "mix" { "file" } else { "" });
    must(bounded(LIMIT.as_secs() as u32, program).arg(args[0]).arg(at).args(&args[1..]));
    mounted.unmount();
}

#[test]
fn a_fault_of_a_direct_map_at_the_end_of_a_file() {
    for threads in [1, 2, 64] {
        waits(threads, &["fault"]);
    }
}

#[test]
fn many_ask_for_what_the_kernel_has_cached() {
    for threads in [1, 2, 64] {
        waits(threads, &["seek", "70"]);
        waits(threads, &["read", "70"]);
    }
}

#[test]
fn direct_writes_are_seen_by_buffered_reads() {
    for threads in [1, 64] {
        waits(threads, &["mix", "4000"]);
    }
}

/// A disk does not answer, and a user waits for it with more reads than the mount has threads. Then
/// the user moves a file to another directory.
#[test]
fn what_one_user_waits_for_delays_no_other() {
    let image = Image::new(64 << 20, &["-b", "4096"]);
    let program = compile(&image, "waits.c");
    let disk = Disk::new(&image);
    let mounted = disk.mount(options(&judged()));
    std::fs::write(mounted.path().join("file"), vec![1; 1 << 20]).unwrap();
    mounted.unmount();
    // Nothing of it is cached.
    let mounted = disk.mount(options(&judged()));
    let path = mounted.path().join("file");
    let [from, to] = ["file.from", "file.to"].map(|name| mounted.path().join(name));
    for dir in [&from, &to] {
        std::fs::create_dir(dir).unwrap();
        std::fs::set_permissions(dir, Permissions::from_mode(0o777)).unwrap();
    }
    for name in ["one", "other"] {
        std::fs::write(from.join(name), name).unwrap();
    }
    // Neither of the renames is to wait for a commit.
    File::open(&from).unwrap().sync_all().unwrap();
    let mut crowd = bounded(LIMIT.as_secs() as u32, program);
    crowd.arg("crowd").arg(&path).arg("100").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut crowd = crowd.spawn().unwrap();
    crowd.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    disk.pause();
    crowd.stdin.take().unwrap().write_all(b"+").unwrap();
    // Until all of them have asked.
    thread::sleep(Duration::from_secs(2));
    // The connection is made again for a minute.
    must(bounded(2, "stat").arg("-f").arg(mounted.path()));
    // The kernel has one lock for all renames between directories of a mount, and looks the new
    // name up while it has that lock.
    must(bounded(2, "mv").args([from.join("other"), to.join("other")]));
    assert!(to.join("new").exists(), "the user's rename is done");
    assert!(crowd.try_wait().unwrap().is_none(), "they still wait");
    disk.resume();
    assert!(crowd.wait().unwrap().success());
    mounted.unmount();
}
