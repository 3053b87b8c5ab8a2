//! `make install` and `make uninstall`: uninstall removes exactly the files that install made.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A target folder with the command that was built, and a library that only has its name.
fn built() -> tempfile::TempDir {
    let target = tempfile::tempdir().unwrap();
    let debug = target.path().join("debug");
    fs::create_dir(&debug).unwrap();
    lanefs_tests::copy_file(env!("CARGO_BIN_EXE_lanefs"), debug.join("lanefs"));
    for library in ["liblanefs_capi.so", "liblanefs_capi.a"] {
        fs::write(debug.join(library), "").unwrap();
    }
    target
}

fn path_of(script: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts").join(script)
}

fn run(command: &mut Command, target: &Path, dest: &Path) -> Output {
    command.env("CARGO_TARGET_DIR", target).env("DESTDIR", dest).env("PREFIX", "/opt/lane fs");
    command.env_remove("LIBDIR").output().unwrap()
}

fn script(name: &str, args: &[&str], target: &Path, dest: &Path) -> Output {
    run(Command::new(path_of(name)).args(args), target, dest)
}

fn succeed(out: &Output) {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// All names below `dir`.
fn names(dir: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut left = vec![dir.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(next).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                left.push(entry.path());
            }
            found.insert(entry.path().strip_prefix(dir).unwrap().to_owned());
        }
    }
    found
}

#[test]
fn uninstall_removes_exactly_what_install_put_there() {
    let (target, dest) = (built(), tempfile::tempdir().unwrap());
    let prefix = dest.path().join("opt/lane fs");
    // Files that were there before, and an empty folder that the installation uses.
    fs::create_dir_all(prefix.join("share/man/man5")).unwrap();
    fs::create_dir_all(prefix.join("bin")).unwrap();
    fs::write(prefix.join("bin/other"), "kept").unwrap();
    let before = names(dest.path());
    let list = prefix.join("share/lanefs/installed");

    succeed(&script("install.sh", &["debug"], target.path(), dest.path()));
    let installed = names(dest.path());
    for name in ["bin/lanefs", "sbin/mount.lanefs", "lib/liblanefs.so", "include/lanefs.h"] {
        assert!(installed.contains(&Path::new("opt/lane fs").join(name)), "{name}: {installed:?}");
    }
    for page in ["man1/lanefs.1", "man5/lanefs-mount-options.5", "man8/umount.fuse.lanefs.8"] {
        assert!(prefix.join("share/man").join(page).exists(), "{page}");
    }
    // An earlier version had a file and two folders more, and another program uses one of these.
    let (empty, used) = (prefix.join("share/empty"), prefix.join("share/used"));
    fs::write(prefix.join("bin/lanefs-old"), "").unwrap();
    fs::create_dir(empty).unwrap();
    fs::create_dir(&used).unwrap();
    fs::write(used.join("theirs"), "kept").unwrap();
    let known = fs::read_to_string(&list).unwrap();
    let more = ["f /opt/lane fs/bin/lanefs-old", "d /opt/lane fs/share/empty", "d /opt/lane fs/share/used"];
    fs::write(&list, format!("{known}{}\n", more.join("\n"))).unwrap();
    succeed(&script("install.sh", &["debug"], target.path(), dest.path()));
    assert_eq!(fs::read_to_string(&list).unwrap(), format!("{known}{}\n", more[2]));
    fs::remove_file(used.join("theirs")).unwrap();
    succeed(&script("install.sh", &["debug"], target.path(), dest.path()));
    assert_eq!(names(dest.path()), installed);
    assert_eq!(fs::read_to_string(&list).unwrap(), known);

    // A folder in which another program has put something stays.
    let theirs = prefix.join("share/fish/theirs");
    fs::write(&theirs, "kept").unwrap();
    succeed(&script("uninstall.sh", &[], target.path(), dest.path()));
    assert_eq!(fs::read(&theirs).unwrap(), b"kept");
    fs::remove_dir_all(prefix.join("share/fish")).unwrap();
    assert_eq!(names(dest.path()), before);
    let again = script("uninstall.sh", &[], target.path(), dest.path());
    assert!(!again.status.success() && String::from_utf8_lossy(&again.stderr).contains("nothing to remove"));
}

#[test]
fn what_is_installed_is_for_all_users() {
    let (target, dest) = (built(), tempfile::tempdir().unwrap());
    let mut install = Command::new("sh");
    install.args(["-c", "umask 077; exec \"$0\" debug"]).arg(path_of("install.sh"));
    succeed(&run(&mut install, target.path(), dest.path()));
    for name in names(dest.path()) {
        let meta = fs::symlink_metadata(dest.path().join(&name)).unwrap();
        let (mode, wanted) = (meta.permissions().mode(), if meta.is_dir() { 0o555 } else { 0o444 });
        assert_eq!(mode & wanted, wanted, "{}: {mode:o}", name.display());
    }
}
