//! Many threads at once on one volume with a small journal and commits in between: no thread waits
//! for ever, and lanefs, the kernel and e2fsck see the same tree in the end.
//!
//! `LANEFS_SEED` gives each thread the same operations again, not the same order between them.
//! `LANEFS_THREAD_OPS` is the number of operations of each thread (1500).

use lanefs_sim::seed_from_env;
use lanefs_tests::{
    Lane, LoopMount, Outcome, RandomOps, assert_same_tree, e2fsck_clean, mke2fs, modes, open, patiently,
    settled, tree_listing, volume_listing,
};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

const THREADS: u64 = 8;

fn storm(args: &[&str], block: u64, stream: u64) {
    let seed = seed_from_env("LANEFS_SEED");
    let ops: usize = std::env::var("LANEFS_THREAD_OPS").map_or(1500, |n| n.parse().expect("a number"));
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("volume");
    mke2fs(&image, 64 << 20, args);
    let modes = modes();
    let mode = &modes[stream as usize % modes.len()];
    let options = mode.options().commit_interval(Duration::from_millis(20));
    let lane = Arc::new(Lane(open(options, &image).unwrap()));
    let (done, all_done) = channel();
    for thread in 0..THREADS {
        let (lane, done) = (Arc::clone(&lane), done.clone());
        let mut draw = RandomOps::new(seed.rng(stream * 100 + thread), block);
        std::thread::spawn(move || {
            for i in 0..ops {
                let op = draw.draw();
                let outcome: Outcome = lane.run(&op).map_err(|e| {
                    let damage = [libc::EUCLEAN, libc::EIO].contains(&e.errno());
                    assert!(!damage, "thread {thread}, operation {i}: {op:?}: {e}");
                    e.errno()
                });
                draw.learn(&op, &outcome);
                if i % 200 == 0 {
                    lane.0.sync().unwrap();
                }
            }
            drop(lane);
            let _ = done.send(());
        });
    }
    drop(done);
    for n in 0..THREADS {
        let said = patiently(&all_done);
        assert!(said.is_ok(), "{n} of {THREADS} threads came to their end: {said:?}");
    }
    // A thread has let go of the volume before it said that it was done.
    let lane = Arc::into_inner(lane).unwrap();
    let listing = settled(volume_listing(&lane.0).unwrap());
    lane.0.close().unwrap();
    e2fsck_clean(&image);
    let mount = LoopMount::new(&image, "ro");
    assert_same_tree(&settled(tree_listing(mount.path())), &listing);
    mount.unmount();
    println!("{} files", listing.len());
}

#[test]
fn a_small_journal() {
    storm(&["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "orphan_file,metadata_csum_seed"], 1024, 1);
}

#[test]
fn indirect_blocks_and_an_orphan_list() {
    storm(&["-t", "ext3", "-b", "1024", "-J", "size=1"], 1024, 2);
}

#[test]
fn defaults() {
    storm(&["-t", "ext4", "-b", "4096"], 4096, 3);
}

#[test]
fn without_a_journal() {
    storm(&["-t", "ext4", "-b", "4096", "-O", "^has_journal"], 4096, 4);
}
