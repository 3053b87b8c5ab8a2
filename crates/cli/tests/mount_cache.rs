//! What the kernel has cached of a mount and not written back, as other programs see it.

use crate::support;
use crate::support::mount::Mount;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

const LEN: usize = 1 << 20;
const SECTORS: u64 = LEN as u64 / 512;

fn sectors(file: &File) -> u64 {
    file.metadata().unwrap().blocks()
}

/// A program that takes a file without sectors for one hole, as GNU tar does, would lose all of
/// it. New, there before, and cut at its open, the file has attributes that the kernel has cached
/// from before the write.
#[test]
fn a_file_that_is_open_for_writing_is_no_hole() {
    for options in ["defaults", "noopen"] {
        let m = Mount::new(options);
        for (name, content) in [("empty", ""), ("sparse", ""), ("cut", "old")] {
            fs::write(m.path(name), content).unwrap();
        }
        File::options().write(true).open(m.path("sparse")).unwrap().set_len(2 * LEN as u64).unwrap();
        // The kernel keeps for long what it asks for now: the close is over.
        sleep(Duration::from_millis(1200));
        for name in ["empty", "sparse", "cut"] {
            fs::metadata(m.path(name)).unwrap();
        }
        let names = ["new", "empty", "sparse", "cut"];
        let files = names.map(|name| {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(name == "cut");
            options.open(m.path(name)).unwrap()
        });
        let content = vec![7; LEN];
        for (file, name) in files.iter().zip(names) {
            file.metadata().unwrap();
            file.write_all_at(&content, 0).unwrap();
            assert!(sectors(file) > 0, "{options}: {name}");
        }
        let script = "mkdir out; tar -cS -C m -f t.tar new empty sparse cut; tar -x -C out -f t.tar";
        support::succeed(Command::new("sh").args(["-euc", script]).current_dir(m.image.beside("")));
        for (file, name) in files.iter().zip(names) {
            let archived = fs::read(m.image.beside("out").join(name)).unwrap();
            assert!(archived[..LEN] == content, "{options}: {name}");
            file.sync_all().unwrap();
            assert!(sectors(file) > 0, "{options}: {name} is synced");
            // With `noopen` the kernel asks again at the close.
            while options == "defaults" && sectors(file) < SECTORS {
                sleep(Duration::from_millis(20));
            }
        }
        drop(files);
        for name in names {
            assert!(fs::metadata(m.path(name)).unwrap().blocks() >= SECTORS, "{options}: {name} is closed");
        }
        m.umount();
    }
}

/// The kernel had cached how many sectors the file has, for as long as nothing changes it.
#[test]
fn a_file_that_grows_while_it_is_open_has_more_sectors() {
    let m = Mount::new("defaults");
    let path = m.path("f");
    fs::write(&path, b"old").unwrap();
    sleep(Duration::from_millis(1200));
    assert_eq!(fs::metadata(&path).unwrap().blocks(), 8);
    let mut file = File::options().append(true).open(&path).unwrap();
    file.write_all(&vec![7; LEN]).unwrap();
    file.sync_all().unwrap();
    while fs::metadata(&path).unwrap().blocks() < SECTORS {
        sleep(Duration::from_millis(20));
    }
    drop(file);
    m.umount();
}
