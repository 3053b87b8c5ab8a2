//! What lanefs has to know by itself where the kernel asks less (`noopen`, `noxattr`). The judge
//! `requests.rs` compares all that programs see.

use crate::support::mount::Mount;
use rustix::fs::{IFlags, XattrFlags};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, chown};
use std::path::Path;

const CAPABILITY: &str = "security.capability";
/// CAP_SETUID, in force (revision 2).
const SETUID: [u8; 20] = [1, 0, 0, 2, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// A change of a file, and its name.
type Change = (&'static str, fn(&Path));

fn has_capability(path: &Path) -> bool {
    rustix::fs::getxattr(path, CAPABILITY, &mut [0_u8; 100]).is_ok()
}

/// Without extended attributes the kernel drops no capability before a write, so lanefs does: the
/// volume may be mounted with them later.
#[test]
fn a_change_drops_capabilities_that_the_kernel_does_not_know() {
    let m = Mount::new("defaults");
    let changes: [Change; 6] = [
        ("written", |path| File::options().write(true).open(path).unwrap().write_all_at(b"x", 3).unwrap()),
        ("appended", |path| File::options().append(true).open(path).unwrap().write_all(b"x").unwrap()),
        ("cut", |path| drop(File::create(path).unwrap())),
        ("longer", |path| File::options().write(true).open(path).unwrap().set_len(9000).unwrap()),
        ("given", |path| chown(path, Some(1), Some(1)).unwrap()),
        ("read", |path| drop(fs::read(path).unwrap())),
    ];
    for (name, _) in changes {
        fs::write(m.path(name), vec![7; 5000]).unwrap();
        rustix::fs::setxattr(m.path(name), CAPABILITY, &SETUID, XattrFlags::empty()).unwrap();
        assert!(has_capability(&m.path(name)));
    }
    m.umount();
    for options in ["noxattr", "noxattr,noopen"] {
        m.image.ok(["mount", "v.img", "m", "-o", options]);
        for (name, change) in changes {
            change(&m.path(name));
        }
        m.umount();
        m.image.ok(["mount", "v.img", "m"]);
        for (name, _) in changes {
            assert_eq!(has_capability(&m.path(name)), name == "read", "{options}: {name}");
            rustix::fs::setxattr(m.path(name), CAPABILITY, &SETUID, XattrFlags::empty()).unwrap();
        }
        m.umount();
    }
}

/// What was written before chattr +a or +i is written back, though no open file says so.
#[test]
fn what_was_written_before_a_flag_is_kept_without_opens() {
    for options in ["defaults", "noopen"] {
        let m = Mount::new(options);
        for (name, flag) in [("a", IFlags::APPEND), ("i", IFlags::IMMUTABLE)] {
            let mut file = File::options().append(true).create(true).open(m.path(name)).unwrap();
            file.write_all(b"before").unwrap();
            // By this descriptor: another one that is closed would write the pages back.
            let flags = rustix::fs::ioctl_getflags(&file).unwrap();
            rustix::fs::ioctl_setflags(&file, flags | flag).unwrap();
            file.sync_all().unwrap_or_else(|e| panic!("{options}: {name}: {e}"));
            drop(file);
        }
        m.umount();
        for name in ["/a", "/i"] {
            assert_eq!(m.image.debugfs(&format!("cat {name}")), "before", "{options}: {name}");
        }
    }
}
