//! A mount whose volume is full: write(2) itself says so.

use crate::support::mount::Mount;
use crate::support::{succeed, tool};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

const MIB: u64 = 1 << 20;
/// What may be promised in vain, as docs/mount.md has it.
const IN_VAIN: u64 = 64 * MIB;

fn is_full<T: std::fmt::Debug>(result: io::Result<T>) -> bool {
    match result {
        Ok(_) => false,
        Err(e) if e.raw_os_error() == Some(Errno::NOSPC.raw_os_error()) => true,
        Err(e) => panic!("{e}"),
    }
}

/// Bytes that the volume has for anybody, and for users.
fn free(m: &Mount) -> (u64, u64) {
    let stat = rustix::fs::statvfs(&m.at).unwrap();
    (stat.f_bfree * stat.f_frsize, stat.f_bavail * stat.f_frsize)
}

/// Writes `count` pieces of 1 MiB, whatever is said of each. Returns how many bytes were taken.
fn write_on(file: &mut File, count: usize) -> u64 {
    let piece = vec![1; MIB as usize];
    (0..count).filter(|_| !is_full(file.write(&piece))).count() as u64 * MIB
}

#[test]
fn a_descriptor_that_goes_on_writing_is_told() {
    let m = Mount::new("defaults");
    fs::write(m.path("kept"), vec![7; MIB as usize]).unwrap();
    let kept = OpenOptions::new().read(true).write(true).open(m.path("kept")).unwrap();
    kept.sync_all().unwrap();
    let (there, _) = free(&m);
    let mut file = File::create(m.path("fill")).unwrap();
    let taken = write_on(&mut file, 990);
    assert!(taken <= there + IN_VAIN, "{} MiB were taken, {} MiB were free", taken / MIB, there / MIB);
    // Writes in flight may reserve more than they need, and give it back: then more may be taken.
    let mut lost = false;
    let refused = (0..100).any(|_| {
        lost |= is_full(file.sync_all());
        write_on(&mut file, 1) == 0
    });
    assert!(refused, "nothing is under way, and it goes on");
    assert_eq!(write_on(&mut file, 10), 0, "the last ones were refused");
    // Whatever else asks for its attributes, or sets some.
    for command in ["stat fill", "ls -l .", "chmod 600 fill", "touch -a fill", "ln fill another"] {
        succeed(tool("sh").args(["-c", command]).current_dir(&m.at));
        assert_eq!(write_on(&mut file, 1), 0, "{command}");
    }
    assert!(lost || is_full(file.sync_all()), "something was lost");
    // Allocated blocks can be overwritten, through a descriptor opened before, with the cache.
    kept.write_all_at(&[8; 100_000], 4096).unwrap();
    kept.sync_all().unwrap();
    // A refused write succeeds as soon as there is space.
    file.set_len(10 * MIB).unwrap();
    file.seek(SeekFrom::Start(10 * MIB)).unwrap();
    assert_eq!(write_on(&mut file, 10), 10 * MIB);
    file.sync_all().unwrap();
    drop((file, kept));
    let found = fs::read(m.path("kept")).unwrap();
    assert!(found[..4096] == [7; 4096] && found[4096..104_096] == [8; 100_000]);
    m.umount();
}

/// Of a write past the kernel's cache a full volume takes a part, and says how much: the kernel and
/// lanefs agree on the size, and the next append goes on there.
#[test]
fn the_part_of_a_write_that_fits_is_told() {
    for flag in ["", "+a"] {
        let m = Mount::new("defaults");
        fs::write(m.path("log"), vec![b'a'; 4090]).unwrap();
        if !flag.is_empty() {
            succeed(tool("chattr").arg(flag).arg(m.path("log")));
        }
        let fill = File::create(m.path("fill")).unwrap();
        let mut at = 0;
        for step in [MIB, 4096] {
            while rustix::fs::fallocate(&fill, FallocateFlags::empty(), at, step).is_ok() {
                at += step;
            }
        }
        let mut wanted = vec![b'a'; 4090];
        let mut append = |text: &[u8]| {
            let mut log = OpenOptions::new().append(true).open(m.path("log")).unwrap();
            match log.write(text) {
                Ok(n) => wanted.extend_from_slice(&text[..n]),
                Err(e) => assert_eq!(e.raw_os_error(), Some(Errno::NOSPC.raw_os_error())),
            }
            assert_eq!(log.metadata().unwrap().len(), wanted.len() as u64);
            wanted.len()
        };
        assert_eq!(append(&[b'b'; 100]), 4096, "{flag}");
        assert_eq!(append(&[b'c'; 100]), 4096, "{flag}");
        fill.set_len(0).unwrap();
        fill.sync_all().unwrap();
        drop(fill);
        assert_eq!(append(&[b'd'; 100]), 4196, "{flag}");
        assert!(fs::read(m.path("log")).unwrap() == wanted, "{flag}");
        m.umount();
        assert_eq!(m.image.ok(["cat", "v.img:/log"]).into_bytes(), wanted, "{flag}");
    }
}

#[test]
fn small_files_are_told() {
    let m = Mount::new("defaults");
    let (there, _) = free(&m);
    let bytes = vec![1; 200_000];
    let (mut taken, mut refused) = (0, 0);
    for i in 0..1500 {
        match File::create(m.path(&format!("{i}"))).and_then(|mut file| file.write_all(&bytes)) {
            Ok(()) => taken += bytes.len() as u64,
            e => refused += u64::from(is_full(e)),
        }
    }
    assert!(taken <= there + IN_VAIN, "{} MiB were taken, {} MiB were free", taken / MIB, there / MIB);
    assert!(refused > 500, "{refused}");
    m.umount();
}

/// Of every second file that goes, the space is there at once.
#[test]
fn what_is_removed_makes_room() {
    let m = Mount::new("defaults");
    let name = |i: usize| m.path(&format!("{i}"));
    let fill = |i: usize, len: usize| {
        let mut file = File::create(name(i))?;
        file.write_all(&vec![1; len]).and_then(|()| file.sync_all())
    };
    let count = (0..).find(|i| is_full(fill(*i, 200_000))).unwrap();
    for round in 0..4 {
        (0..count).step_by(2).for_each(|i| fs::remove_file(name(i)).unwrap());
        for i in (0..count).step_by(2) {
            fill(i, 190_000).unwrap_or_else(|e| panic!("round {round}: {i} of {count}: {e}"));
        }
    }
    m.umount();
}

fn as_user(dir: &Path, script: &str) -> bool {
    use std::os::unix::process::CommandExt;
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", script]).current_dir(dir).uid(65534).gid(65534).stderr(std::process::Stdio::null());
    shell.status().unwrap().success()
}

#[test]
fn blocks_kept_for_root_are_kept_for_root() {
    let m = Mount::blank_with(&["-m", "20"]);
    m.image.ok(["mount", "v.img", "m"]);
    fs::set_permissions(&m.at, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let (all, users) = free(&m);
    assert!(all - users > 10 * MIB, "{all} {users}");
    for (file, how) in [("cached", ""), ("direct", "oflag=direct"), ("synced", "conv=fsync")] {
        assert!(!as_user(&m.at, &format!("dd if=/dev/zero of={file} bs=128k count=800 {how}")), "{file}");
        // It may report the lost pages.
        let _ = rustix::fs::syncfs(File::open(&m.at).unwrap());
        let (left, users) = free(&m);
        assert!(left > 10 * MIB && users < MIB, "{file}: {left} {users}");
    }
    assert!(!as_user(&m.at, "fallocate -l 1M more"), "fallocate");
    // Root may take the reserved blocks, whether or not a user has the file open too.
    let mut file = File::create(m.path("of root")).unwrap();
    assert_eq!(write_on(&mut file, 8), 8 * MIB);
    file.sync_all().unwrap();
    drop(file);
    m.umount();
}
