//! The kernel's overlayfs with its upper and work directory on the judged server, beside the same
//! on the kernel's ext4.

use crate::support::{both, shell};
use lanefs_tests::tree_listing;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// What removes, moves and replaces names of the lower layer, which leaves whiteouts and opaque
/// directories.
const WORK: &str = r#"
    mkdir -p upper work lower/dir/sub lower/gone lower/other merged
    echo one > lower/one; echo two > lower/dir/two; echo three > lower/dir/sub/three; echo four > lower/gone/four
    mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work,redirect_dir=on,index=off,metacopy=off merged
    cd merged
    rm one
    mv dir moved
    rm -r gone
    mkdir gone; echo again > gone/five
    mv moved/two two; mv two other/
    rm moved/sub/three; rmdir moved/sub
    echo more >> other/two
    chmod 700 other; chown 1000:1000 other/two; setfattr -n user.a -v b other/two
    ln other/two linked; ln -s linked symbolic
    echo mine > mine; chown 1000:1000 mine
    setpriv --reuid=1000 --regid=1000 --clear-groups chattr +d mine
    lsattr mine >> ../flags
    find . -type f | sort | while read f; do echo "$f: $(cat "$f")"; done > ../seen
    cd ..
    umount merged
    rm -rf work lower
    # These name the lower file system.
    for name in uuid origin; do
        find upper ! -type l ! -type c -exec setfattr -x trusted.overlay.$name {} + 2>/dev/null || true
    done
"#;

fn work(dir: &Path) -> Vec<lanefs_tests::TreeEntry> {
    shell(dir, WORK);
    assert!(fs::metadata(dir.join("upper/one")).unwrap().file_type().is_char_device());
    let mut tree = tree_listing(dir);
    // Of the moment, and not of the layer.
    tree.iter_mut().for_each(|entry| entry.mtime = (0, 0));
    tree
}

#[test]
fn overlayfs_has_its_upper_directory_on_it() {
    let [kernel, other] = both(64 << 20, work);
    lanefs_tests::assert_same_tree(&kernel, &other);
}
