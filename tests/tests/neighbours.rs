//! Threads that share a volume and no name: each keeps a model of its own directory, which must be
//! as it was left, before and after a close, whatever the others did to the groups, the journal and
//! the inode tables that all share. (`threads.rs` lets all operations loose on shared names.)
//!
//! `LANEFS_LONG` makes each thread do so many times as much.

use lanefs::{Error, Volume};
use lanefs_sim::{Seed, seed_from_env};
use lanefs_tests::{Watchdog, e2fsck_clean, long, mke2fs, open, volume_lines, writing};
use rand::Rng;
use rand::rngs::StdRng;
use std::collections::BTreeMap;

const THREADS: u64 = 8;

/// Operations of a thread.
const STEPS: usize = 1500;

/// Works in a directory of its own and keeps a model of it.
fn own_step(volume: &Volume, root: &str, model: &mut BTreeMap<String, Vec<u8>>, rng: &mut StdRng) {
    let name = format!("{root}/f{}", rng.random_range(0..40));
    if rng.random_range(0..3) == 0 {
        let removed = volume.remove_file(&name).is_ok();
        assert_eq!(removed, model.remove(&name).is_some(), "{name}");
    } else {
        let content = vec![rng.random(); rng.random_range(0..9000)];
        match volume.write(&name, &content).map_err(Error::into_kind) {
            Ok(()) => drop(model.insert(name, content)),
            Err(Error::NoSpace) => {
                let _ = volume.remove_file(&name);
                model.remove(&name);
            }
            Err(e) => panic!("{name}: {e}"),
        }
    }
}

fn run(args: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("volume.img");
    mke2fs(&image, 48 << 20, args);
    let seed: Seed = seed_from_env("LANEFS_SEED");
    let watchdog = Watchdog::new(format!("{args:?}, seed {:#x}", seed.value()));
    let volume = open(writing(), &image).unwrap();
    let models: Vec<BTreeMap<String, Vec<u8>>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|t| {
                let (volume, mut rng) = (&volume, seed.rng(t));
                scope.spawn(move || {
                    let root = format!("/own{t}");
                    volume.create_dir(&root).unwrap();
                    let mut model = BTreeMap::new();
                    for _ in 0..STEPS * long() {
                        own_step(volume, &root, &mut model, &mut rng);
                        if rng.random_range(0..50) == 0 {
                            volume.sync().unwrap();
                        }
                    }
                    model
                })
            })
            .collect();
        workers.into_iter().map(|w| w.join().unwrap()).collect()
    });
    drop(watchdog);
    let check = |volume: &Volume| {
        for (t, model) in models.iter().enumerate() {
            let names = volume.read_dir(format!("/own{t}")).unwrap();
            assert_eq!(names.len(), model.len(), "/own{t}");
            for (name, content) in model {
                assert!(&volume.read(name).unwrap() == content, "{name} is not as it was left");
            }
        }
    };
    check(&volume);
    let before = volume_lines(&volume);
    volume.close().unwrap();
    e2fsck_clean(&image);
    let volume = Volume::open_read_only(&image).unwrap();
    check(&volume);
    assert_eq!(volume_lines(&volume), before);
}

#[test]
fn a_small_journal() {
    run(&["-t", "ext4", "-b", "1024", "-J", "size=1"]);
}

#[test]
fn an_orphan_file() {
    run(&["-t", "ext4", "-b", "4096", "-O", "orphan_file", "-J", "size=4"]);
}

#[test]
fn no_journal() {
    run(&["-t", "ext4", "-b", "1024", "-O", "^has_journal"]);
}
