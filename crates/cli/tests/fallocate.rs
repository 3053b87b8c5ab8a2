//! fallocate and fstrim against debugfs and e2fsck.

use crate::support::{Image, field, succeed, tool};
use std::os::unix::fs::MetadataExt;

#[test]
fn ranges_are_allocated_punched_zeroed_taken_out_and_put_in() {
    let v = Image::mke2fs(&["-b", "4096"], None);
    let stat = |what: &str| field(&v.debugfs("stat f"), what).to_owned();
    v.ok(["fallocate", "-l", "1M", "v.img:/f"]);
    assert_eq!((stat("Size:"), stat("Blockcount:")), ("1048576".to_owned(), "2048".to_owned()));
    v.ok(["fallocate", "-n", "-o", "1M", "-l", "64k", "v.img:/f"]);
    assert_eq!((stat("Size:"), stat("Blockcount:")), ("1048576".to_owned(), "2176".to_owned()));
    v.ok(["fallocate", "-p", "-o", "64k", "-l", "128k", "v.img:/f"]);
    assert_eq!((stat("Size:"), stat("Blockcount:")), ("1048576".to_owned(), "1920".to_owned()));
    v.ok(["fallocate", "-z", "-o", "64k", "-l", "64k", "v.img:/f"]);
    assert_eq!(stat("Blockcount:"), "2048");
    v.ok(["fallocate", "-c", "-l", "64k", "v.img:/f"]);
    assert_eq!((stat("Size:"), stat("Blockcount:")), ("983040".to_owned(), "1920".to_owned()));
    v.ok(["fallocate", "-i", "-o", "4k", "-l", "64k", "v.img:/f"]);
    assert_eq!((stat("Size:"), stat("Blockcount:")), ("1048576".to_owned(), "1920".to_owned()));
    v.fsck();
    v.fails(
        ["fallocate", "-p", "-l", "1", "v.img:/none"],
        1,
        "lanefs: cannot allocate 'v.img:/none': No such file or directory",
    );
    v.fails(
        ["fallocate", "-c", "-l", "1", "v.img:/f"],
        1,
        "lanefs: cannot allocate 'v.img:/f': Invalid argument (a range that is not whole blocks)",
    );
}

#[test]
fn a_new_file_has_the_mode_that_the_umask_leaves() {
    let v = Image::new();
    for (umask, mode) in [("077", "600\n"), ("002", "664\n")] {
        for made in ["fallocate -l 4096", "truncate -s 4096"] {
            let script = format!("umask {umask}; \"$0\" {made} v.img:/f");
            let mut bash = tool("bash");
            bash.args(["-c", &script, env!("CARGO_BIN_EXE_lanefs")]).current_dir(v.beside(""));
            succeed(&mut bash);
            assert_eq!(v.ok(["stat", "-c", "%a", "v.img:/f"]), mode, "{umask}: {made}");
            v.ok(["rm", "v.img:/f"]);
        }
    }
}

#[test]
fn trimming_gives_the_free_space_back() {
    let v = Image::mke2fs(&["-b", "4096"], None);
    let sectors = || std::fs::metadata(&v.path).expect("the image").blocks();
    std::fs::write(v.beside("junk"), vec![7; 4 << 20]).expect("write");
    v.ok(["cp", "junk", "v.img:/f"]);
    v.ok(["rm", "v.img:/f"]);
    let before = sectors();
    assert!(v.ok(["fstrim", "-v", "v.img"]).contains("bytes) trimmed"));
    assert!(sectors() + (3 << 11) < before, "{} of {before} sectors", sectors());
    v.fsck();
}
