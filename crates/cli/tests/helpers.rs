//! mount.lanefs and umount.lanefs, as mount(8) and umount(8) call them: each option is honoured, or
//! refused with a line that says what to do.

use crate::support::mount::{Mount, is_quiet};
use lanefs_fuse::MOUNT_OPTIONS;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Runs a helper in the folder of `m`; its exit status, and what it said.
fn helper(m: &Mount, name: &str, args: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lanefs"));
    let out = command.arg0(name).args(args).current_dir(m.image.beside("")).output().unwrap();
    let said = [out.stdout, out.stderr].concat();
    (out.status.code().unwrap(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn every_option_is_taken_or_refused_with_a_reason() {
    let m = Mount::blank();
    for option in MOUNT_OPTIONS {
        for word in option.examples() {
            let (status, said) = helper(&m, "mount.lanefs", &["v.img", "m", "-f", "-o", &word]);
            match option.refusal() {
                None => assert_eq!((status, said.as_str()), (0, ""), "{word}"),
                Some(why) => {
                    assert!(status == 1 && said.contains(&word) && said.contains(&why), "{status}: {said}");
                    assert_eq!(said.lines().count(), 1, "{said}");
                    // mount(8) -s passes over it.
                    let sloppy = helper(&m, "mount.lanefs", &["v.img", "m", "-fs", "-o", &word]);
                    assert_eq!(sloppy, (0, String::new()), "{word}");
                }
            }
        }
    }
}

#[test]
fn flags_of_the_helpers() {
    let m = Mount::blank();
    for name in ["mount.lanefs", "umount.lanefs"] {
        let args = if name == "mount.lanefs" { &["v.img", "m"][..] } else { &["m"] };
        let refused = [
            ["-N", "/proc/1/ns/mnt", "nsenter --mount=/proc/1/ns/mnt"],
            ["-t", "xfs", "lanefs or fuse.lanefs"],
        ];
        for [flag, value, why] in refused {
            let (status, said) = helper(&m, name, &[args, &[flag, value]].concat());
            assert!(status == 1 && said.contains(why), "{name} {flag}: {status} {said}");
        }
    }
    assert_eq!(
        helper(&m, "mount.lanefs", &["v.img", "m", "-o", "ro", "-w", "-t", "fuse.lanefs"]),
        (0, String::new())
    );
    fs::write(m.path("f"), "written").unwrap();
    let (status, said) = helper(&m, "umount.fuse.lanefs", &["m", "-v", "-t", "fuse.lanefs"]);
    assert!(status == 0 && said.contains("'m' is unmounted"), "{status} {said}");
    let (status, said) = helper(&m, "mount.lanefs", &["v.img", "m", "-rvn"]);
    assert!(status == 0 && said.contains("is mounted at 'm'"), "{status} {said}");
    fs::write(m.path("g"), "refused").unwrap_err();
    m.umount();
    m.image.fsck();
}

#[test]
fn a_mount_in_use_is_made_read_only_or_ended() {
    let m = Mount::new("rw");
    let mut open = File::create(m.path("f")).unwrap();
    open.write_all(b"kept").unwrap();
    open.sync_all().unwrap();
    let reader = File::open(m.path("f")).unwrap();
    drop(open);
    let (status, said) = helper(&m, "umount.lanefs", &["m", "-r"]);
    assert!(status == 0 && said.contains("read-only now"), "{status} {said}");
    fs::write(m.path("g"), "refused").unwrap_err();
    let (status, said) = helper(&m, "umount.lanefs", &["m"]);
    assert!(status == 32 && said.contains("has files of it open"), "{status} {said}");
    let servers = m.servers();
    let (status, said) = helper(&m, "umount.lanefs", &["m", "-f"]);
    assert!(status == 0 && is_quiet(&said, "m", &servers), "{status} {said}");
    assert!(!m.is_mounted() && reader.metadata().is_err());
    m.image.fsck();
    assert_eq!(m.image.ok(["cat", "v.img:/f"]), "kept");
}

#[test]
fn what_a_remount_cannot_change_is_said() {
    let m = Mount::new("rw");
    let why = "lanefs: a remount changes flags only, and not commit=3: unmount it, and mount it again";
    m.image.fails(["mount", "v.img", "m", "-o", "remount,ro,commit=3"], 1, why);
    // mount(8) adds what fstab has.
    let (status, said) = helper(&m, "mount.lanefs", &["v.img", "m", "-o", "remount,ro,commit=3"]);
    assert!(status == 0 && said.contains("not commit=3"), "{status} {said}");
    fs::write(m.path("g"), "refused").unwrap_err();
    m.umount();
}
