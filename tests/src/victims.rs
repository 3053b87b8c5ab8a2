//! Good volumes to damage: full of structures, closed or with a journal that waits for recovery.

use crate::ops::{Lane, Op, OpenHow, Target, XattrHow};
use crate::specimen;
use crate::{
    Verdict, Victim, change_all, e2fsck, e2fsck_clean, fixed_options, memory_dir, mke2fs, read_all, run,
};
use lanefs_device::BlockDevice;
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
