//! A mount that no program uses: under 32 MiB of memory, some 9 MiB of its program among them, and
//! no wake-ups.

use crate::support::{Image, SIZE, judged, shell};
use lanefs_tests::memory_of;
use std::fs;
use std::time::Duration;

/// Returns how often each thread went to sleep, without the thread that answers `lanefs top`:
/// `top.rs` tests that it sleeps while no client asks.
fn sleeps(pid: u32) -> Vec<(String, u64)> {
    let mut all = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let field = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)).unwrap().trim().to_owned();
        if field("Name:") != "lanefs-watch" {
            all.push((field("Name:"), field("voluntary_ctxt_switches:").parse().unwrap()));
        }
    }
    all
}

#[test]
fn an_idle_mount_sleeps() {
    let image = Image::new(SIZE, &[]);
    let mounted = image.mount(&judged());
    let Some(pid) = mounted.pid() else { return mounted.unmount() };
    shell(mounted.path(), "for n in $(seq 100); do echo $n >f$n; done; cat f*; sync -f .");
    comes_to_rest(pid);
    mounted.unmount();
}

/// Whatever happened before, and however large the log is.
#[test]
fn a_mount_that_was_busy_gives_its_memory_back() {
    // With files that stay, and that the kernel goes on to know, and without.
    for (log, stay) in [("size=64", true), ("size=1024", false)] {
        let image = Image::new(4 << 30, &["-J", log, "-N", "300000"]);
        let mounted = image.mount(&judged());
        let Some(pid) = mounted.pid() else { return mounted.unmount() };
        let mut most = 0;
        // Without files that stay each round does the same again.
        let rounds = if stay { 10 } else { 4 };
        for round in 0..rounds {
            let dirs: Vec<_> = (0..20).map(|n| mounted.path().join(format!("{round}-{n}"))).collect();
            dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
            for (n, dir) in (0..1000).flat_map(|n| dirs.iter().map(move |dir| (n, dir))) {
                drop(fs::File::create(dir.join(format!("file-{n}"))).unwrap());
            }
            most = most.max(memory_of(pid) >> 10);
            dirs.iter().filter(|_| !stay).for_each(|dir| fs::remove_dir_all(dir).unwrap());
        }
        println!("{log}: {most} KiB at work");
        // Its caches have 256 MiB. The rest is for inodes that the kernel knows, and for requests
        // in flight.
        assert!(most < 311 << 10, "{log}: {most} KiB at work");
        comes_to_rest(pid);
        mounted.unmount();
    }
}

/// Waits until the server sleeps, and looks at its memory.
fn comes_to_rest(pid: u32) {
    // What follows the work (commit, checkpoint, writeback by age) has a while to end.
    // How long depends on the machine; a server that never rests is killed after its limit.
    let mut before = sleeps(pid);
    let (mut quiet, mut seconds) = (0, 0);
    while quiet < 10 {
        std::thread::sleep(Duration::from_secs(1));
        let now = sleeps(pid);
        quiet = if now == before { quiet + 1 } else { 0 };
        seconds += 1;
        if seconds % 60 == 0 {
            println!("{seconds} s, never 10 of them without a wake-up: {before:?} and {now:?}");
        }
        before = now;
    }
    let kib = memory_of(pid) >> 10;
    println!("idle: {kib} KiB");
    // Without its program; the bench measures all of what users run.
    assert!(kib < 23 << 10, "an idle mount holds {kib} KiB");
}
