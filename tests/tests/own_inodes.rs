//! Inodes that the file system itself uses are reached by no name, as on the kernel's ext4; and a
//! rename leaves a whiteout.

use lanefs::{FileType, RenameFlags, Volume};
use lanefs_tests::{LoopMount, debugfs, debugfs_write, e2fsck_clean, mke2fs, open, writing};
use rustix::io::Errno;

/// What lanefs and the kernel say to a look at `/d/name`, where a request of debugfs has made it
/// lead to an inode of its own.
fn refused(args: &[&str], requests: impl Fn(&str) -> Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("v.img");
    mke2fs(&image, 16 << 20, &[&["-t", "ext4", "-b", "4096"], args].concat());
    let volume = open(writing(), &image).unwrap();
    volume.create_dir("/d").unwrap();
    volume.write("/d/file", b"content").unwrap();
    volume.close().unwrap();
    let file = debugfs(&image, "stat /d/file");
    let ino = file.split_whitespace().nth(1).unwrap();
    for request in requests(ino) {
        debugfs_write(&image, &request);
    }
    let volume = Volume::open_read_only(&image).unwrap();
    let said = volume.metadata("/d/name").unwrap_err();
    assert_eq!(said.errno(), Errno::UCLEAN.raw_os_error(), "{args:?}: {said}");
    volume.close().unwrap();
    let mounted = LoopMount::new(&image, "ro");
    let kernel = std::fs::metadata(mounted.path().join("d/name")).unwrap_err();
    assert_eq!(kernel.raw_os_error(), Some(Errno::UCLEAN.raw_os_error()), "{args:?}");
    mounted.unmount();
}

#[test]
fn names_do_not_lead_to_inodes_of_the_file_system() {
    // The orphan file is the first inode behind lost+found.
    refused(&["-O", "orphan_file"], |_| vec!["link <12> /d/name".into()]);
    refused(&[], |_| vec!["link <8> /d/name".into()]);
    for field in ["usr_quota_inum", "grp_quota_inum", "prj_quota_inum"] {
        refused(&[], |ino| vec![format!("set_super_value {field} {ino}"), format!("link <{ino}> /d/name")]);
    }
}

#[test]
fn a_rename_leaves_a_whiteout() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("v.img");
    mke2fs(&image, 16 << 20, &["-t", "ext4", "-b", "4096"]);
    let volume = open(writing(), &image).unwrap();
    let whiteout = |replace| RenameFlags::Whiteout { replace, uid: 7, gid: 8 };
    volume.create_dir("/d").unwrap();
    volume.create_dir("/d/sub").unwrap();
    volume.write("/d/file", b"moves").unwrap();
    volume.write("/taken", b"goes").unwrap();
    let taken = volume.rename_with("/d/file", "/taken", whiteout(false)).unwrap_err();
    assert!(matches!(taken.kind(), lanefs::Error::Exists), "{taken}");
    volume.rename_with("/d/file", "/taken", whiteout(true)).unwrap();
    volume.rename_with("/d/sub", "/sub", whiteout(false)).unwrap();
    assert_eq!(volume.read("/taken").unwrap(), b"moves");
    assert!(volume.metadata("/sub").unwrap().is_dir());
    for name in ["/d/file", "/d/sub"] {
        let meta = volume.metadata(name).unwrap();
        let device = meta.device().unwrap();
        assert_eq!((meta.file_type(), meta.permissions()), (FileType::CharDevice, 0));
        assert_eq!((device.major, device.minor, meta.uid(), meta.gid()), (0, 0, 7, 8));
    }
    assert_eq!(volume.metadata("/d").unwrap().nlink(), 2);
    volume.close().unwrap();
    e2fsck_clean(&image);
}
