//! Good volumes to damage: full of structures, closed or with a journal that waits for recovery.

use crate::exercise::options;
use crate::ops::{Lane, Op, OpenHow, Target, XattrHow};
use crate::specimen;
use crate::{
    Verdict, Victim, change_all, e2fsck, e2fsck_clean, explained, fixed_options, memory_dir, mke2fs,
    read_all, run,
};
use lanefs::{Resize, Verity, mmp};
use lanefs_device::BlockDevice;
use lanefs_format::Tuning;
use lanefs_sim::{Image, OverlayDevice};
use std::sync::Arc;

/// The [`specimen`] on a volume made with these arguments of mke2fs; `dirty`: the power went while
/// some of it was being removed.
///
/// # Panics
/// If the volume is not a good one.
pub fn large_victim(args: &[&str], dirty: bool) -> Victim {
    victim(24 << 20, args, &specimen(), dirty)
}

/// Returns a victim as [`large_victim`] does, of a few files on a volume of `size` bytes: quick to
/// use.
///
/// # Panics
/// If the volume is not a good one.
pub fn small_victim(size: u64, args: &[&str], dirty: bool) -> Victim {
    let args: Vec<&str> = ["-t", "ext4", "-N", "256"].iter().chain(args).copied().collect();
    victim(size, &args, &few(), dirty)
}

/// The same volume with a block of multiple-mount protection (MMP).
///
/// # Panics
/// If tune2fs cannot be run.
pub fn with_mmp(victim: &Victim) -> Victim {
    let dir = memory_dir();
    let path = dir.path().join("volume");
    std::fs::write(&path, victim.bytes()).unwrap();
    run("env", &["E2FSPROGS_FAKE_TIME=1000000000", "tune2fs", "-O", "mmp", path.to_str().unwrap()]);
    Victim::new(std::fs::read(&path).unwrap())
}

/// Returns the same volume, of which a file has a hash tree (fs-verity).
fn with_verity(victim: &Victim) -> Victim {
    let dir = memory_dir();
    let path = dir.path().join("volume");
    std::fs::write(&path, victim.bytes()).unwrap();
    let volume = fixed_options().open(&path).unwrap();
    volume.open_file("/files/medium").unwrap().enable_verity(&Verity::default()).unwrap();
    volume.close().unwrap();
    e2fsck_clean(&path);
    Victim::new(std::fs::read(&path).unwrap())
}

/// Returns a small volume that `mke2fs -d` fills, with features that lanefs only reads.
fn victim_of_mke2fs(args: &[&str]) -> Victim {
    let dir = memory_dir();
    let (path, tree) = (dir.path().join("volume"), dir.path().join("tree"));
    std::fs::create_dir_all(tree.join("many")).unwrap();
    std::fs::create_dir(tree.join("few")).unwrap();
    // Content with room in the map of an inode, with room behind that, and without.
    for (name, len) in [("few/small", 40), ("few/medium", 120), ("large", 30_000)] {
        std::fs::write(tree.join(name), vec![7; len]).unwrap();
    }
    for i in 0..70 {
        std::fs::write(tree.join(format!("many/a name of some length, number {i}")), b"").unwrap();
    }
    std::os::unix::fs::symlink("s".repeat(300), tree.join("link")).unwrap();
    let args = [&["-t", "ext4", "-N", "256", "-d", tree.to_str().unwrap()], args].concat();
    mke2fs(&path, 2 << 20, &args);
    e2fsck_clean(&path);
    Victim::new(std::fs::read(&path).unwrap())
}

/// Small volumes with what few volumes have: blocks of 4 KiB, descriptors in groups of their own
/// (`meta_bg`), multiple mount protection, a hash tree, clusters, content in inodes.
///
/// # Panics
/// If one of them is not a good one.
pub fn rare_victims() -> Vec<Victim> {
    let plain = small_victim(1 << 20, &["-b", "1024", "-O", "^has_journal,metadata_csum"], false);
    let groups = ["-b", "1024", "-g", "512", "-O", "^has_journal,meta_bg,^resize_inode"];
    vec![
        small_victim(2 << 20, &["-b", "4096", "-O", "^has_journal,metadata_csum"], false),
        small_victim(3 << 20, &groups, false),
        with_mmp(&plain),
        with_verity(&plain),
        victim_of_mke2fs(&["-b", "1024", "-O", "^has_journal,bigalloc", "-C", "4096"]),
        victim_of_mke2fs(&["-b", "1024", "-O", "^has_journal,inline_data"]),
    ]
}

/// What the free blocks of a [`patterned`] volume hold. No file does.
pub const OLD: u8 = 0xDB;

/// A volume of `size` bytes, made with these arguments of mke2fs, whose free blocks are full of
/// [`OLD`] data.
///
/// # Panics
/// If the volume is not a good one.
pub fn patterned(size: u64, args: &[&str]) -> Image {
    let dir = memory_dir();
    let path = dir.path().join("volume");
    mke2fs(&path, size, args);
    let volume = fixed_options().open(&path).unwrap();
    let file = volume.create_file("/pattern").unwrap();
    let (mut at, mut junk) = (0, vec![OLD; 256 << 10]);
    while !junk.is_empty() {
        match file.write_at(&junk, at) {
            Ok(()) => at += junk.len() as u64,
            // The rest in smaller pieces.
            Err(_) => junk.truncate(junk.len() / 2),
        }
    }
    file.sync_all().unwrap();
    drop(file);
    volume.remove_file("/pattern").unwrap();
    volume.close().unwrap();
    e2fsck_clean(&path);
    Image::from_bytes(std::fs::read(&path).unwrap())
}

/// Uses what `script` makes of a volume, in both ways.
///
/// # Panics
/// If lanefs does, or says nothing of what is wrong, or writes to a volume that it refuses.
pub fn damage_and_use(victim: &Victim, script: &[u8], mend: bool) {
    let image = Image::from_bytes(victim.damaged(script, mend));
    // Refused or judged: no input makes a pass panic.
    let _ = lanefs_check::check(Arc::new(OverlayDevice::new(image.clone())), &Default::default());
    for write in [false, true] {
        let device = Arc::new(OverlayDevice::new(image.clone()));
        let shared: Arc<dyn BlockDevice> = Arc::clone(&device) as _;
        let verdict = if write { change_all(shared) } else { read_all(shared) };
        if matches!(verdict, Verdict::Refused(_)) || !write {
            assert!(device.image().to_bytes() == image.to_bytes(), "it was written: {verdict:?}");
        }
    }
}

/// A change of a volume that no program has open.
type OfflineChange = fn(Arc<dyn BlockDevice>) -> lanefs::Result<()>;

const OFFLINE_CHANGES: [OfflineChange; 7] = [
    |device| {
        let mut resize = Resize::open(device, options())?;
        let least = resize.minimum()?;
        resize.shrink(least)
    },
    |device| {
        let mut resize = Resize::open(device, options())?;
        let size = resize.size();
        resize.shrink(size - size / 8)
    },
    |device| {
        let mut resize = Resize::open(device, options())?;
        let size = resize.device_size();
        resize.grow(size, None)
    },
    |device| {
        let volume = options().write(true).open_device(device)?;
        let tuning = Tuning { label: Some(b"tuned".to_vec()), reserved_blocks: Some(7), ..Tuning::default() };
        let tuned = volume.tune(&tuning);
        tuned.and(volume.close())
    },
    |device| mmp::enable(device, options(), 5),
    |device| mmp::disable(device, options()),
    |device| mmp::clear(device, options(), false),
];

/// Bytes that a device has behind its volume, which may grow there.
const BEHIND: usize = 1 << 20;

fn is_clean(device: Arc<dyn BlockDevice>) -> bool {
    lanefs_check::check(device, &Default::default()).is_ok_and(|report| report.is_clean())
}

/// Gives what `script` makes of a volume another size, other settings or multiple mount protection,
/// or takes that away: `which` says what.
///
/// # Panics
/// If lanefs does, or says nothing of what is wrong, or damages a volume that was sound.
pub fn damage_and_change_offline(victim: &Victim, script: &[u8], mend: bool, which: usize) {
    let mut bytes = victim.damaged(script, mend);
    bytes.resize(bytes.len() + BEHIND, 0);
    let device = Arc::new(OverlayDevice::new(Image::from_bytes(bytes)));
    let was_clean = is_clean(Arc::clone(&device) as _);
    let changed = OFFLINE_CHANGES[which % OFFLINE_CHANGES.len()](Arc::clone(&device) as _);
    let said = changed.map_err(|e| explained(&e));
    assert!(!was_clean || is_clean(device), "a sound volume is damaged by change {which}: {said:?}");
}

fn victim(size: u64, args: &[&str], content: &[Op], dirty: bool) -> Victim {
    let dir = memory_dir();
    let path = dir.path().join("volume");
    mke2fs(&path, size, args);
    let device = Arc::new(OverlayDevice::new(Image::from_bytes(std::fs::read(&path).unwrap())));
    let shared: Arc<dyn BlockDevice> = Arc::clone(&device) as _;
    let lane = Lane(fixed_options().open_device(shared).unwrap());
    lane.apply_all(content);
    let bytes = if dirty {
        lane.0.sync().unwrap();
        lane.0.create_dir_all("/not/yet/checkpointed").unwrap();
        // An orphan, and freed blocks that the journal revokes.
        let open = lane.0.open_file("/files/medium").unwrap();
        lane.0.remove_file("/files/medium").unwrap();
        lane.0.remove_dir_all("/many").unwrap();
        lane.0.sync().unwrap();
        let bytes = device.image().to_bytes();
        drop(open);
        bytes
    } else {
        lane.0.close().unwrap();
        device.image().to_bytes()
    };
    std::fs::write(&path, &bytes).unwrap();
    let (code, said) = e2fsck(&path, if dirty { &["-fy"] } else { &["-fn"] });
    assert!(code <= i32::from(dirty), "the good volume is damaged: {said}");
    Victim::new(bytes)
}

/// Content for small volumes: some extents in a tree of nodes, an indexed directory, attributes in
/// a block, links.
fn few() -> Vec<Op> {
    let mut ops = Vec::new();
    let how = OpenHow { create: true, write: true, ..OpenHow::default() };
    for dir in ["files", "many", "files/sub"] {
        ops.push(Op::Mkdir { path: dir.into(), mode: 0o755 });
    }
    for file in ["files/small", "files/medium", "files/pieces", "files/sub/attributes"] {
        ops.push(Op::Open { path: file.into(), how, mode: 0o644 });
    }
    ops.push(Op::Write { path: "files/small".into(), offset: 0, len: 100, fill: 1 });
    ops.push(Op::Write { path: "files/medium".into(), offset: 0, len: 30_000, fill: 2 });
    for i in 0..100 {
        ops.push(Op::Write { path: "files/pieces".into(), offset: i * 2048, len: 100, fill: 3 });
    }
    // Blocks of two levels above it, where the map is not of extents.
    ops.push(Op::Write { path: "files/pieces".into(), offset: 400_000, len: 100, fill: 3 });
    for i in 0..70 {
        let path = format!("many/a name of some length, number {i}").into();
        ops.push(Op::Open { path, how, mode: 0o644 });
    }
    for (name, len) in [("user.small", 10), ("user.large", 600)] {
        let (path, name, value) = ("files/sub/attributes".into(), name.into(), vec![b'v'; len]);
        ops.push(Op::SetXattr { path, name, value, how: XattrHow::Any });
    }
    ops.push(Op::Link { from: "files/small".into(), to: "files/sub/link".into() });
    ops.push(Op::Symlink { target: "small".into(), path: "files/fast".into() });
    ops.push(Op::Symlink { target: "s".repeat(300).into(), path: "files/slow".into() });
    ops
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RegionKind;

    /// What the fuzzers damage holds every structure that there is.
    #[test]
    fn small_victims_have_everything() {
        let closed = small_victim(1 << 20, &["-b", "1024", "-O", "^has_journal,metadata_csum"], false);
        let args = ["-b", "1024", "-J", "size=1", "-O", "orphan_file"];
        let dirty = small_victim(3 << 20, &args, true);
        let mapped = small_victim(1 << 20, &["-b", "1024", "-O", "^has_journal,^extents,^64bit"], false);
        let shared = with_mmp(&closed);
        let all = [&closed, &dirty, &mapped, &shared];
        let kinds: Vec<_> = all.iter().flat_map(|v| v.regions()).map(|r| r.kind).collect();
        for kind in [
            RegionKind::ExtentNode,
            RegionKind::Indirect,
            RegionKind::DirBlock,
            RegionKind::DxRoot,
            RegionKind::Xattr,
            RegionKind::Orphan,
            RegionKind::Mmp,
            RegionKind::JournalDescriptor,
            RegionKind::JournalCommit,
            RegionKind::JournalRevoke,
            RegionKind::JournalData,
        ] {
            assert!(kinds.contains(&kind), "no {kind:?}");
        }
        assert!(kinds.iter().filter(|kind| **kind == RegionKind::Indirect).count() >= 3, "one level only");
        for victim in all {
            damage_and_use(victim, &[], true);
        }
    }

    /// Checksums that are made anew leave these volumes sound, and so does every change of them.
    #[test]
    fn rare_victims_are_sound() {
        let victims = rare_victims();
        let plain = small_victim(3 << 20, &["-b", "1024", "-J", "size=1", "-O", "orphan_file"], false);
        for (number, victim) in victims.iter().chain([&plain]).enumerate() {
            let image = Image::from_bytes(victim.damaged(&[], true));
            assert!(is_clean(Arc::new(OverlayDevice::new(image))), "{number}");
            damage_and_use(victim, &[], true);
            (0..OFFLINE_CHANGES.len()).for_each(|which| damage_and_change_offline(victim, &[], true, which));
        }
    }

    /// What recovery can replay and the journal cannot go on with is refused before it is replayed.
    #[test]
    fn a_log_too_small_is_not_recovered() {
        let victim = small_victim(3 << 20, &["-b", "1024", "-J", "size=1"], true);
        let mut kinds: Vec<_> = victim.regions().iter().map(|r| r.kind).collect();
        kinds.sort();
        kinds.dedup();
        let kind = kinds.iter().position(|k| *k == RegionKind::JournalSuper).unwrap();
        // s_maxlen, big-endian.
        let script = [kind as u8, 0, 0, 0x10, 0, 9, 0x84, 0x03, 0];
        damage_and_use(&victim, &script, true);
        let image = Image::from_bytes(victim.damaged(&script, true));
        let Verdict::Refused(said) = change_all(Arc::new(OverlayDevice::new(image))) else {
            panic!("a log of 900 blocks is used");
        };
        assert!(said.contains("at least 1024"), "{said}");
    }
}
