//! Growth of a volume that is mounted: by `lanefs resize`, by resize2fs, and beside programs that
//! write.

use crate::support;
use crate::support::mount::Mount;
use lanefs_tests::Ending;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, Ordering};

const MIB: u64 = 1 << 20;

/// Bytes of the volume, without its fixed metadata.
fn size(m: &Mount) -> u64 {
    let stat = rustix::fs::statvfs(&m.at).unwrap();
    stat.f_blocks * stat.f_frsize
}

/// Makes the file of the volume so many MiB longer. Returns its length.
fn longer(m: &Mount, mib: u64) -> u64 {
    let file = File::options().write(true).open(&m.image.path).unwrap();
    let len = file.metadata().unwrap().len() + mib * MIB;
    file.set_len(len).unwrap();
    len
}

fn refused(m: &Mount, args: &[&str]) -> String {
    let len = m.image.path.metadata().unwrap().len();
    let out = m.image.lanefs([&["resize"], args].concat()).output().unwrap();
    assert!(!out.status.success(), "{args:?}");
    assert_eq!(m.image.path.metadata().unwrap().len(), len, "{args:?}");
    String::from_utf8(out.stderr).unwrap()
}

/// Writes, syncs and reads back beside each kind of growth; then the volume is full of files to its
/// new end.
#[test]
fn a_mounted_volume_grows_beside_programs() {
    for options in ["defaults", "io=direct", "io=buffered,sandbox=off", "mapafter,nodelalloc"] {
        let m = Mount::new(options);
        let (before, len) = (size(&m), m.image.path.metadata().unwrap().len());
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (m, ended) = (&m, &ended);
                scope.spawn(move || {
                    let path = m.path(&format!("file{thread}"));
                    let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
                    let mut found = vec![0; 50_000];
                    for n in 0_u64.. {
                        if ended.load(Ordering::Relaxed) {
                            break;
                        }
                        let (at, name) = (n * 7919 % 3000 * 1000, m.path(&format!("{thread}-{}", n % 50)));
                        file.write_all_at(&vec![n as u8; found.len()], at).unwrap();
                        file.read_exact_at(&mut found, at).unwrap();
                        assert!(found.iter().all(|byte| *byte == n as u8));
                        fs::write(&name, n.to_string()).unwrap();
                        assert_eq!(fs::read_to_string(&name).unwrap(), n.to_string());
                        if n % 20 == 0 {
                            file.sync_all().unwrap();
                        }
                    }
                });
            }
            let _ending = Ending(&ended);
            m.image.ok(["resize", "v.img", "+200M"]);
            m.image.ok(["resize", "m", "+150M", "--json"]);
            longer(&m, 100);
            m.image.ok(["resize", "m"]);
            longer(&m, 64);
            support::succeed(support::tool("resize2fs").arg(&m.image.path));
        });
        assert_eq!(m.image.path.metadata().unwrap().len(), len + 514 * MIB);
        assert!(size(&m) > before + 450 * MIB, "{options}: {} MiB", size(&m) / MIB);
        // All that came can be used.
        let piece = vec![9; MIB as usize];
        let fill = File::create(m.path("fill")).unwrap();
        for at in 0..440 + before / MIB / 2 {
            fill.write_all_at(&piece, at * MIB).unwrap();
        }
        fill.sync_all().unwrap();
        drop(fill);
        m.umount();
    }
}

/// What is refused leaves the file as it is, and says why and what to do.
#[test]
fn what_cannot_grow_says_why() {
    let m = Mount::new("defaults");
    for args in [&["v.img", "min"][..], &["m", "fit+5%"], &["m", "8M"]] {
        let said = refused(&m, args);
        assert!(said.contains("shrinks only while it is closed: unmount it first"), "{said}");
    }
    let said = refused(&m, &["."]);
    assert!(said.contains("not mounted; name a volume, or the directory"), "{said}");
    m.umount();
    for (options, why) in [("ro", "without ro"), ("overlay", "an overlay drops what is written")] {
        m.image.ok(["mount", "v.img", "m", "-o", options]);
        let said = refused(&m, &["m", "+100M"]);
        assert!(said.contains(why), "{said}");
        m.umount();
    }
    m.image.ok(["mount", "v.img", "m", "-o", "fsname=other"]);
    let said = refused(&m, &["m", "+100M"]);
    assert!(said.contains("fsname="), "{said}");
    m.umount();
    m.image.ok(["mount", "pmem:v.img", "m"]);
    let out = m.image.lanefs(["resize", "m", "+100M"]).output().unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(said.contains("grows while closed"), "{said}");
    m.umount();
}

/// A file that has taken the name of a mounted one is another volume, which is closed.
#[test]
fn a_file_that_was_replaced_is_not_the_mounted_one() {
    let m = Mount::new("defaults");
    let (path, moved) = (&m.image.path, m.image.beside("moved.img"));
    fs::rename(path, &moved).unwrap();
    m.image.ok(["mkfs", "v.img", "--size", "50M"]);
    let (len, before) = (moved.metadata().unwrap().len(), size(&m));
    let said = refused(&m, &["m", "+100M"]);
    assert!(said.contains("was renamed"), "{said}");
    m.image.ok(["resize", "v.img", "+100M"]);
    assert_eq!((path.metadata().unwrap().len(), moved.metadata().unwrap().len()), (150 * MIB, len));
    assert_eq!(size(&m), before);
    m.image.fsck();
    fs::rename(&moved, path).unwrap();
    m.umount();
}

/// Another user may not, whatever he may do with files of the mount.
#[test]
fn only_a_user_that_may_unmount_grows() {
    let m = Mount::new("defaults");
    let root = File::open(&m.at).unwrap();
    let before = m.image.path.metadata().unwrap().size();
    let mut as_nobody = support::tool("setpriv");
    as_nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"]);
    as_nobody.args(["perl", "-e"]);
    // perl hands the kernel a variable only.
    as_nobody.arg("my $n = pack('Q', 1 << 20); exit(ioctl(STDIN, 0x40086610, $n) ? 0 : 100 + $!)");
    let status = as_nobody.stdin(root).status().unwrap();
    // It holds the descriptor of the mount.
    drop(as_nobody);
    assert_eq!(status.code(), Some(101), "EPERM");
    assert_eq!(m.image.path.metadata().unwrap().size(), before);
    m.umount();
}

#[test]
fn a_volume_without_a_journal_grows() {
    let m = Mount::blank_with(&["-O", "^has_journal"]);
    m.image.ok(["mount", "v.img", "m"]);
    fs::write(m.path("f"), vec![1; 3 << 20]).unwrap();
    m.image.ok(["resize", "m", "+300M"]);
    fs::write(m.path("g"), vec![2; 200 << 20]).unwrap();
    assert!(fs::read(m.path("f")).unwrap() == vec![1; 3 << 20]);
    m.umount();
}
