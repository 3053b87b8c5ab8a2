//! Filled to the last block by many threads at once: a write that was taken is kept, whatever is
//! full by the time that its blocks are chosen, and what is free can be used.
//!
//! `LANEFS_SEED` gives each thread the same operations again, not the same order between them.

use lanefs::{AtSymlink, Error, FallocMode, OpenOptions, SetAttr, SetXattr, Volume};
use lanefs_sim::seed_from_env;
use lanefs_tests::{LoopMount, Mode, Watchdog, e2fsck_clean, mke2fs, modes, open, writing};
use rand::Rng;
use rand::rngs::StdRng;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

const THREADS: u64 = 16;

/// The longest file. All together need more than there is.
const MAX: usize = 2 << 20;

/// A file's bytes, and those of which nothing is known: a write that failed may have been done in
/// part.
struct Model {
    bytes: Vec<u8>,
    unknown: Vec<bool>,
}

impl Model {
    fn put(&mut self, at: usize, bytes: &[u8], taken: bool) {
        let end = at + bytes.len();
        if taken {
            let size = self.bytes.len().max(end);
            self.bytes.resize(size, 0);
            self.unknown.resize(size, false);
            self.bytes[at..end].copy_from_slice(bytes);
            self.unknown[at..end].fill(false);
        } else {
            // It may have been done in part behind the end, which then is somewhere there.
            let size = self.bytes.len().max(end);
            self.bytes.resize(size, 0);
            self.unknown.resize(size, true);
            self.unknown[at..end].fill(true);
        }
    }

    /// The first byte that is not as it was taken.
    fn wrong(&self, found: &[u8]) -> Option<usize> {
        (0..self.bytes.len()).find(|&i| !self.unknown[i] && found.get(i) != Some(&self.bytes[i]))
    }
}

fn path(thread: u64) -> String {
    format!("/file{thread}")
}

/// Writes until the volume has been full several times.
fn fill(volume: &Volume, thread: u64, mut rng: StdRng) -> Model {
    let file = volume.open_options().read(true).write(true).create(true).open(path(thread)).unwrap();
    let mut model = Model { bytes: Vec::new(), unknown: Vec::new() };
    let mut full = 0;
    while full < 12 {
        // Smaller and smaller, for the last blocks.
        let longest = [40_000, 9000, 1500][full / 4];
        let len = rng.random_range(1..longest);
        let at = match rng.random_range(0..3) {
            0 => rng.random_range(0..MAX - len),
            _ => model.bytes.len().min(MAX - len),
        };
        let bytes = vec![rng.random_range(1..=255); len];
        match file.write_at(&bytes, at as u64) {
            Ok(()) => model.put(at, &bytes, true),
            Err(Error::NoSpace) => {
                model.put(at, &bytes, false);
                full += 1;
            }
            Err(e) => panic!("{}: {e}", path(thread)),
        }
        if rng.random_range(0..100) == 0 {
            file.sync_data().unwrap_or_else(|e| panic!("{}: a write was taken, and now: {e}", path(thread)));
        }
        // All of its file is written, and it is not full yet.
        if full == 0 && rng.random_range(0..3000) == 0 {
            break;
        }
    }
    file.sync_all().unwrap_or_else(|e| panic!("{}: a write was taken, and now: {e}", path(thread)));
    model
}

fn run(image: &Path, mode: &Mode, stream: u64) {
    let seed = seed_from_env("LANEFS_SEED");
    let volume = open(mode.options(), image).unwrap();
    let models: Vec<Model> = std::thread::scope(|scope| {
        let worker = |t| {
            let (volume, rng) = (&volume, seed.rng(stream * 100 + t));
            scope.spawn(move || fill(volume, t, rng))
        };
        let workers: Vec<_> = (0..THREADS).map(worker).collect();
        workers.into_iter().map(|w| w.join().unwrap()).collect()
    });
    let check = |volume: &Volume, when: &str| {
        for (t, model) in models.iter().enumerate() {
            let found = volume.read(path(t as u64)).unwrap();
            let wrong = model.wrong(&found);
            assert!(
                wrong.is_none(),
                "{mode}: {}: byte {wrong:?} of {} {when}",
                path(t as u64),
                model.bytes.len()
            );
        }
    };
    check(&volume, "at the end");
    // What is still free is not much.
    let last = volume.create_file("/last").unwrap();
    let mut at = 0;
    while last.write_at(&[7; 1000], at).is_ok() {
        at += 1000;
    }
    last.sync_all().unwrap();
    let (free, all) = (volume.statfs().blocks_free, volume.statfs().blocks);
    assert!(free * 50 < all, "{mode}: {free} of {all} blocks are free, and cannot be used");
    drop(last);
    volume.close().unwrap();
    e2fsck_clean(image);
    let volume = open(writing(), image).unwrap();
    check(&volume, "as opened");
    // All of it comes back.
    (0..THREADS).for_each(|t| volume.remove_file(path(t)).unwrap());
    volume.close().unwrap();
    e2fsck_clean(image);
}

fn every_mode(args: &[&str], stream: u64) {
    for mode in modes() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("volume");
        mke2fs(&image, 10 << 20, args);
        let _watchdog = Watchdog::new(format!("{args:?} {mode}"));
        run(&image, &mode, stream);
    }
}

#[test]
fn extents() {
    every_mode(&["-t", "ext4", "-b", "1024", "-J", "size=1"], 1);
}

#[test]
fn large_blocks() {
    every_mode(&["-t", "ext4", "-b", "4096", "-O", "^has_journal"], 2);
}

#[test]
fn indirect_blocks() {
    every_mode(&["-t", "ext3", "-b", "1024", "-J", "size=1"], 3);
}

/// What a full volume can take again right behind a removal: nothing waits for the next commit, but
/// the thread that writes out may have a file for a moment longer.
#[test]
fn what_was_freed_can_be_had_at_once() {
    for mode in modes() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("volume");
        mke2fs(&image, 40 << 20, &["-t", "ext4", "-b", "1024", "-J", "size=4"]);
        let _watchdog = Watchdog::new(mode.to_string());
        let volume = open(mode.options().commit_interval(Duration::from_secs(3600)), &image).unwrap();
        let name = |i: usize| format!("/file{i}");
        let count = (0..).find(|i| volume.write(name(*i), &[7; 200_000]).is_err()).unwrap();
        assert!(count > 150, "{mode}: {count}");
        for round in 0..3 {
            // What is only in memory has claims, which are not free.
            volume.sync().unwrap();
            let free = volume.statfs().blocks_free;
            (0..count).step_by(2).for_each(|i| volume.remove_file(name(i)).unwrap());
            let (freed, wanted) =
                (|| volume.statfs().blocks_free - free, count as u64 / 2 * (190_000 / 1024));
            let _ = (0..6000).any(|_| {
                freed() >= wanted || {
                    std::thread::sleep(Duration::from_millis(10));
                    false
                }
            });
            assert!(freed() >= wanted, "{mode}: round {round}: {} blocks", freed());
            for i in (0..count).step_by(2) {
                volume
                    .write(name(i), &[8; 190_000])
                    .unwrap_or_else(|e| panic!("{mode}: round {round}: {i}: {e}"));
            }
        }
        volume.close().unwrap();
        e2fsck_clean(&image);
    }
}

/// An ACL whose mask a chmod changes: the owner, user 1000, the group, the mask, others.
fn acl() -> Vec<u8> {
    let entries =
        [(1u16, 6u16, u32::MAX), (2, 6, 1000), (4, 4, u32::MAX), (0x10, 6, u32::MAX), (0x20, 4, u32::MAX)];
    let bytes = entries.iter().flat_map(|(tag, permissions, id)| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    });
    2u32.to_le_bytes().into_iter().chain(bytes).collect()
}

/// A file capability (version 2): CAP_NET_RAW.
fn capability() -> Vec<u8> {
    [0x0200_0001u32, 1 << 13, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Operations on names and attributes that need a block, when all that there is was freed just now.
#[test]
fn names_and_attributes_take_what_was_freed() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("volume");
    mke2fs(&image, 16 << 20, &["-t", "ext4", "-b", "1024", "-J", "size=1", "-I", "128"]);
    let options = OpenOptions::new().write(true).commit_interval(Duration::from_secs(3600));
    let volume = open(options, &image).unwrap();
    for name in ["/ready", "/linked"] {
        volume.write(name, b"content").unwrap();
    }
    // Directories without room for a long name: it takes a block.
    for dir in ["/a", "/b", "/c"] {
        volume.create_dir(dir).unwrap();
        (0..4).for_each(|i| volume.write(format!("{dir}/{i}{}", "n".repeat(230)), b"").unwrap());
    }
    // Pairs that share a block: one that changes needs a block of its own.
    for name in ["/acl", "/removed", "/owned"] {
        for name in [name.to_string(), format!("{name}2")] {
            volume.write(&name, b"content").unwrap();
            volume.set_xattr(&name, "user.a", name.trim_end_matches('2').as_bytes(), SetXattr::Any).unwrap();
            volume.set_xattr(&name, "user.b", &[2; 100], SetXattr::Any).unwrap();
            volume.set_xattr(&name, "system.posix_acl_access", &acl(), SetXattr::Any).unwrap();
            volume.set_xattr(&name, "security.capability", &capability(), SetXattr::Any).unwrap();
        }
    }
    // What is only in memory would have claims to give back.
    volume.sync().unwrap();
    let long = "x".repeat(240);
    let mut spare = 0;
    let mut after_a_removal = |what: &str, op: &dyn Fn() -> lanefs::Result<()>| {
        // To the last block, which the files then give back with all of their others. A block that
        // is left when the map of a file needs one too goes to the next file.
        let names: Vec<String> = (0..)
            .map_while(|n| (volume.statfs().blocks_free > 0).then(|| format!("/fill{spare}-{n}")))
            .inspect(|name| {
                let mut at = 0;
                let fill = volume.open_options().read(true).write(true).create(true).open(name).unwrap();
                for len in [1 << 20, 64 << 10, 1024] {
                    while fill.fallocate(FallocMode::Allocate, at, len).is_ok() {
                        at += len;
                    }
                }
                fill.sync_all().unwrap();
            })
            .collect();
        assert!(matches!(op().map_err(Error::into_kind), Err(Error::NoSpace)), "{what} takes a block");
        names.iter().for_each(|name| volume.remove_file(name).unwrap());
        op().unwrap_or_else(|e| panic!("{what}: {e}"));
        spare += 1;
    };
    after_a_removal("mkdir", &|| volume.create_dir("/new"));
    after_a_removal("symlink", &|| volume.symlink("t".repeat(100), "/symlink"));
    after_a_removal("create", &|| volume.write(format!("/a/{long}"), b""));
    after_a_removal("link", &|| volume.hard_link("/linked", format!("/b/{long}")));
    after_a_removal("rename", &|| volume.rename("/ready", format!("/c/{long}")));
    after_a_removal("setxattr", &|| volume.set_xattr("/linked", "user.x", &[1; 300], SetXattr::Any));
    let (mode, owner) = (Some(0o640), Some(1000));
    let (chmod, chown) =
        (SetAttr { permissions: mode, ..SetAttr::default() }, SetAttr { uid: owner, ..SetAttr::default() });
    after_a_removal("chmod of an ACL", &|| volume.set_attr("/acl", &chmod, AtSymlink::Follow));
    after_a_removal("removexattr", &|| volume.remove_xattr("/removed", "user.b"));
    after_a_removal("chown of a capability", &|| volume.set_attr("/owned", &chown, AtSymlink::Follow));
    volume.close().unwrap();
    e2fsck_clean(&image);
}

/// Preallocation takes the last block though dirty pages hold claims for the worst maps that could
/// come of them.
#[test]
fn preallocation_takes_what_claims_hold_too_much() {
    for mode in modes() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("volume");
        mke2fs(&image, 16 << 20, &["-t", "ext4", "-b", "1024", "-J", "size=1"]);
        let _watchdog = Watchdog::new(mode.to_string());
        let volume = open(mode.options().use_reserved(true), &image).unwrap();
        let dirty: Vec<_> = (0..100).map(|i| volume.create_file(format!("/dirty{i}")).unwrap()).collect();
        dirty.iter().for_each(|file| file.write_at(&[7; 1000], 0).unwrap());
        let all = volume.open_options().read(true).write(true).create(true).open("/all").unwrap();
        let mut at = 0;
        for len in [1 << 20, 64 << 10, 1024] {
            while all.fallocate(FallocMode::Allocate, at, len).is_ok() {
                at += len;
            }
        }
        volume.sync().unwrap();
        // One, if its map is full: the map would need a block besides.
        let free = volume.statfs().blocks_free;
        assert!(free <= 1, "{mode}: {free} blocks were not to be had");
        drop((dirty, all));
        volume.close().unwrap();
        e2fsck_clean(&image);
    }
}

/// A file that cannot fit is refused before it has taken what others need.
#[test]
fn preallocation_that_cannot_fit_takes_no_block() {
    for mode in modes() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("volume");
        mke2fs(&image, 16 << 20, &["-t", "ext4", "-b", "1024", "-J", "size=1"]);
        let volume = open(mode.options(), &image).unwrap();
        let file = volume.create_file("/large").unwrap();
        let free = volume.statfs().blocks_free;
        for how in [FallocMode::Allocate, FallocMode::KeepSize, FallocMode::ZeroRange] {
            let done = file.fallocate(how, 0, 1 << 30);
            assert!(matches!(done, Err(Error::NoSpace)), "{mode}, {how:?}: {done:?}");
        }
        assert_eq!((volume.statfs().blocks_free, file.metadata().len()), (free, 0), "{mode}");
        file.fallocate(FallocMode::Allocate, 0, 8 << 20).unwrap();
        volume.close().unwrap();
        e2fsck_clean(&image);
    }
}

/// Writes a file to the last block through a mount of the kernel, removes it, and copies as much of
/// its size there as the kernel takes through another mount: in the same one it gives nobody the
/// freed blocks before its commit, for which it does not always wait. Returns how much that is.
fn replaced_by_kernel(image: &Path) -> u64 {
    let mount = LoopMount::new(image, "");
    let old = mount.path().join("old");
    let mut file = std::fs::File::create(&old).unwrap();
    for len in [1 << 20, 64 << 10, 1024] {
        while file.write_all(&vec![7; len]).is_ok() {}
    }
    file.sync_all().unwrap();
    let size = file.metadata().unwrap().len();
    drop(file);
    std::fs::remove_file(&old).unwrap();
    mount.unmount();

    let mount = LoopMount::new(image, "");
    let new = mount.path().join("new");
    let mut file = std::fs::File::create(&new).unwrap();
    (0..size / 1024).take_while(|_| file.write_all(&[8; 1024]).is_ok()).for_each(drop);
    file.sync_all().unwrap();
    let fits = file.metadata().unwrap().len();
    assert!(fits + (256 << 10) > size, "the kernel takes {fits} of {size} bytes");
    drop(file);
    mount.unmount();
    fits
}

/// `rm old; cp another new` on a volume without a block to spare: what the kernel fits, lanefs
/// fits.
#[test]
fn a_copy_fits_where_a_file_of_its_size_was() {
    for args in [
        &["-t", "ext4", "-b", "1024", "-m", "0", "-J", "size=4"][..],
        &["-t", "ext4", "-b", "4096", "-m", "0", "-J", "size=4"],
        &["-t", "ext3", "-b", "1024", "-m", "0", "-J", "size=4"],
    ] {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("volume");
        mke2fs(&image, 40 << 20, args);
        let size = replaced_by_kernel(&image);
        for mode in modes() {
            let _watchdog = Watchdog::new(format!("{args:?} {mode}"));
            let volume = open(mode.options(), &image).unwrap();
            volume.remove_file("/new").unwrap();
            let file = volume.create_file("/new").unwrap();
            for at in (0..size).step_by(128 << 10) {
                let len = (size - at).min(128 << 10);
                let written = file.write_at(&vec![9; len as usize], at);
                written.unwrap_or_else(|e| panic!("{args:?} {mode}: {at} of {size}: {e}"));
            }
            file.sync_all().unwrap();
            drop(file);
            let found = volume.read("/new").unwrap();
            assert!(found.len() as u64 == size && found.iter().all(|&b| b == 9), "{args:?} {mode}");
            volume.close().unwrap();
            e2fsck_clean(&image);
        }
    }
}
