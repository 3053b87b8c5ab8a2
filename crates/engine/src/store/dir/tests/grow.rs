//! Directories that grow through every form, up to the limits of the format.

use super::*;
use crate::store::alloc::{self, Reach};

#[test]
fn every_block_size() {
    // mke2fs makes 64 KiB blocks; the kernel mounts up to the page size.
    for (block, size, names) in
        [(1024, 32, 6000), (4096, 32, 30_000), (16384, 64, 8000), (65536, 128, 20_000)]
    {
        let volume = Volume::new(size << 20, &["-b", &block.to_string()]);
        let mut filled = volume.make();
        for n in 0..names {
            filled.insert(&volume.fs, format!("file-{n}-{:01$}", 0, n % 40 + 1).as_bytes()).unwrap();
        }
        filled.check(&volume.fs);
        assert!(filled.indexed());
        filled.settle(&volume.fs);
        volume.judge();
    }
}

/// Fills a directory with long names until the index is full, and says how deep it was.
fn fill(args: &[&str], size: u64, names: u32) -> (u8, bool) {
    let volume = Volume::new(size, args);
    let mut filled = volume.make();
    let mut full = false;
    for n in 0..names {
        let name = format!("{n:0>200}");
        match filled.insert(&volume.fs, name.as_bytes()) {
            Ok(()) => {}
            Err(Error::DirFull) => {
                full = true;
                break;
            }
            Err(e) => panic!("{e}"),
        }
    }
    let levels = filled.levels(&volume.fs);
    assert!(volume.fs.alloc.free_blocks() > 100, "the volume was full, not the index");
    if full {
        // The directory still works, and names of other hashes still fit.
        filled.remove(&volume.fs, format!("{:0>200}", 5).as_bytes()).unwrap();
        assert!(filled.insert(&volume.fs, format!("{:0>200}", 5).as_bytes()).is_ok());
    }
    filled.check(&volume.fs);
    filled.settle(&volume.fs);
    volume.judge();
    (levels, full)
}

#[test]
fn an_index_of_two_levels_fills_up() {
    assert_eq!(fill(&["-b", "1024", "-N", "64"], 80 << 20, 60_000), (1, true));
}

#[test]
fn large_dir_gives_a_third_level() {
    assert_eq!(fill(&["-b", "1024", "-N", "64", "-O", "large_dir"], 80 << 20, 45_000), (2, false));
}

#[test]
fn a_full_volume_stops_between_two_steps() {
    for (args, size) in [
        (&["-b", "1024", "-N", "64", "-J", "size=1"][..], 4 << 20),
        (&["-b", "1024", "-N", "64", "-O", "^dir_index,^has_journal"], 1 << 20),
    ] {
        let volume = Volume::new(size, args);
        let mut filled = volume.make();
        let mut n = 0;
        loop {
            match filled.insert(&volume.fs, format!("{n:0>120}").as_bytes()) {
                Ok(()) => n += 1,
                Err(Error::NoSpace) => break,
                Err(e) => panic!("{e}"),
            }
        }
        assert!(n > 1000, "{n}");
        // Short names still find room in leaves that are not split.
        let short = (0..200).filter(|n| filled.insert(&volume.fs, format!("{n}").as_bytes()).is_ok()).count();
        assert!(short > 20, "{short}");
        filled.check(&volume.fs);
        filled.settle(&volume.fs);
        volume.judge();
    }
}

/// A directory without extents becomes indexed, for which it needs two blocks that 32 bits can
/// number, and there is one. The test lowers that bound, in place of a volume of more than 16 TiB.
#[test]
fn a_map_of_numbers_grows_by_blocks_that_it_can_number() {
    let volume = Volume::new(64 << 20, &["-b", "1024", "-O", "^extents,^64bit"]);
    let (fs, mut filled) = (&volume.fs, volume.make());
    let name = |n: u32| format!("{n:0>200}").into_bytes();
    for n in 0..4 {
        filled.insert(fs, &name(n)).unwrap();
    }
    assert_eq!(filled.dir.state().size, 1024);
    fs.alloc.set_low_blocks(fs.layout().group_first_block(2).unwrap());
    let mut taken = Vec::new();
    while let Ok(run) = alloc::reserve(fs, 0, 1 << 15, Reach::Low) {
        taken.push(run);
    }
    let last = taken.last_mut().unwrap();
    drop(last.split_off(last.len() - 1));
    let free = fs.alloc.free_blocks();
    assert!(free > 10_000, "{free}");

    let full = filled.insert(fs, &name(4)).unwrap_err();
    assert!(matches!(full, Error::NoSpace), "{full}");
    assert_eq!(fs.alloc.free_blocks(), free);
    assert!(!filled.indexed());
    fs.sync().unwrap();
    drop(taken);
    for n in 4..400 {
        filled.insert(fs, &name(n)).unwrap();
    }
    assert!(filled.indexed());
    // What a growth did not need was given back.
    assert_eq!(fs.alloc.free_on_disk(), fs.alloc.free_blocks());
    filled.check(fs);
    filled.settle(fs);
    volume.judge();
}
