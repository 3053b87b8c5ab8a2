//! The options that save requests, `noopen` and `noxattr`: what programs see is what they see on
//! the kernel's ext4, and the requests are saved.

use crate::support::{Image, SIZE, bounded, judged, must, output, shell};
use lanefs_tests::{Mounted, Server, debugfs};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, SeekFrom, XattrFlags};
use rustix::io::Errno;
use std::fmt::Debug;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// What a program sees, in words.
#[derive(Default)]
struct Seen(Vec<String>);

impl Seen {
    fn note(&mut self, what: &str, value: impl Debug) {
        self.0.push(format!("{what}: {value:?}"));
    }
}

/// What `work` sees on the kernel's ext4 and on lanefs with `option`, which must be the same.
fn agree(option: &str, of_kernel: &str, work: impl Fn(&Path) -> Seen) {
    let [kernel, lanefs] = [Server::Kernel, judged()].map(|server| {
        let image = Image::new(SIZE, &["-b", "4096"]).with(option);
        let mounted = match server {
            Server::Kernel => Mounted::new(&server, &image.path, of_kernel, crate::support::LIMIT),
            _ => image.mount(&server),
        };
        fs::set_permissions(mounted.path(), Permissions::from_mode(0o755)).unwrap();
        let parent = mounted.path().parent().unwrap();
        fs::set_permissions(parent, Permissions::from_mode(0o1777)).unwrap();
        let seen = work(mounted.path());
        mounted.unmount();
        seen.0
    });
    assert_eq!(kernel, lanefs, "the kernel, and lanefs with {option}");
}

/// Whether a user without rights can do `script`.
fn as_nobody(dir: &Path, script: &str) -> bool {
    let mut command = bounded(60, "setpriv");
    command.args(["--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "sh", "-c", script]);
    output(command.current_dir(dir)).status.success()
}

#[test]
fn files_that_nobody_opened_are_as_ever() {
    agree("noopen", "", |root| {
        let mut seen = Seen::default();
        contents(root, &mut seen);
        without_names(root, &mut seen);
        rights(root, &mut seen);
        seen
    });
}

/// O_APPEND, O_TRUNC, O_DIRECT, holes, and what is synced.
fn contents(root: &Path, seen: &mut Seen) {
    let path = root.join("appended");
    let open = || File::options().append(true).create(true).open(&path).unwrap();
    let (mut a, mut b) = (open(), open());
    for n in 0..100 {
        std::io::Write::write_all(&mut a, format!("a{n}").as_bytes()).unwrap();
        std::io::Write::write_all(&mut b, format!("b{n}").as_bytes()).unwrap();
    }
    seen.note("appended", fs::read(&path).unwrap());
    seen.note("append and sync", (a.sync_all().is_ok(), b.sync_data().is_ok()));
    drop(File::options().write(true).truncate(true).open(&path).unwrap());
    seen.note("truncated", (fs::read(&path).unwrap(), b.metadata().unwrap().len()));
    seen.note("truncated to read", File::options().read(true).open(&path).unwrap().metadata().unwrap().len());

    let direct = File::options()
        .read(true)
        .write(true)
        .create(true)
        .custom_flags(OFlags::DIRECT.bits().cast_signed())
        .open(root.join("direct"))
        .unwrap();
    let mut room = vec![7_u8; 3 * 4096];
    let at = room.as_ptr().align_offset(4096);
    direct.write_all_at(&room[at..at + 4096], 8192).unwrap();
    let through = File::options().read(true).write(true).open(root.join("direct")).unwrap();
    let mut buf = [0; 4];
    through.read_exact_at(&mut buf, 8192).unwrap();
    seen.note("a direct write", buf);
    through.write_all_at(b"cached", 8192).unwrap();
    direct.read_exact_at(&mut room[at..at + 4096], 8192).unwrap();
    seen.note("a direct read", &room[at..at + 8]);
    room[at..at + 4096].fill(9);
    direct.write_all_at(&room[at..at + 4096], 8192).unwrap();
    through.read_exact_at(&mut buf, 8192).unwrap();
    seen.note("a direct write of what is cached", buf);
    let hole = rustix::fs::seek(&through, SeekFrom::Data(0)).unwrap();
    through.write_all_at(&[1; 4096], 1 << 20).unwrap();
    seen.note("holes", (hole, rustix::fs::seek(&through, SeekFrom::Data(12288)).unwrap()));
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&through, punch, 0, 1 << 21).unwrap();
    // A file that may be open for writing has a sector: docs/mount.md.
    seen.note("punched", rustix::fs::fstat(&through).unwrap().st_blocks <= 1);
    seen.note("fsync", through.sync_all().is_ok());
    let to =
        File::options().read(true).write(true).create(true).truncate(false).open(root.join("to")).unwrap();
    through.write_all_at(&[3; 5000], 0).unwrap();
    let copied = rustix::fs::copy_file_range(&through, Some(&mut 0), &to, Some(&mut 0), 5000).unwrap();
    seen.note("copied", (copied, fs::read(root.join("to")).unwrap() == [3; 5000]));
}

/// Files that are open and have no name, or another one.
fn without_names(root: &Path, seen: &mut Seen) {
    let path = root.join("gone");
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all_at(b"before", 0).unwrap();
    fs::remove_file(&path).unwrap();
    file.write_all_at(b"after", 6).unwrap();
    let mut buf = [0; 11];
    file.read_exact_at(&mut buf, 0).unwrap();
    seen.note("without a name", (buf, file.metadata().unwrap().nlink(), file.sync_all().is_ok()));
    fs::write(root.join("old"), "old").unwrap();
    fs::write(root.join("new"), "new").unwrap();
    let old = File::open(root.join("old")).unwrap();
    fs::rename(root.join("new"), root.join("old")).unwrap();
    let mut buf = [0; 3];
    old.read_exact_at(&mut buf, 0).unwrap();
    seen.note("replaced", (buf, fs::read(root.join("old")).unwrap()));
    let (rw, mode) = (OFlags::RDWR | OFlags::CLOEXEC, Mode::from_raw_mode(0o644));
    let nameless = rustix::fs::open(root, rw | OFlags::TMPFILE, mode).unwrap();
    rustix::io::write(&nameless, b"named late").unwrap();
    rustix::fs::linkat(&nameless, "", CWD, root.join("late"), AtFlags::EMPTY_PATH).unwrap();
    seen.note("named late", fs::read(root.join("late")).unwrap());
}

/// The rights to open a file, and those that a write takes away.
fn rights(root: &Path, seen: &mut Seen) {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let new = |mode| rustix::fs::open(root.join("locked"), flags, Mode::from_raw_mode(mode));
    let locked = new(0o400).unwrap();
    seen.note("a new file without the right to write", rustix::io::write(&locked, b"x"));
    seen.note("made twice", new(0o400).err());
    seen.note("a directory", File::options().write(true).open(root).map_err(|e| e.raw_os_error()).err());
    fs::write(root.join("program"), "#!/bin/sh\nexit 0\n").unwrap();
    for mode in [0o755, 0o644, 0o4777, 0o6777, 0o2766, 0o4666] {
        let reset = || {
            fs::set_permissions(root.join("program"), Permissions::from_mode(mode)).unwrap();
            fs::metadata(root.join("program")).unwrap().mode()
        };
        let mode_after = |script| {
            reset();
            let done = as_nobody(root, script);
            (done, fs::metadata(root.join("program")).unwrap().mode())
        };
        seen.note("run", (reset(), as_nobody(root, "./program")));
        seen.note("read by others", as_nobody(root, "cat locked"));
        for script in ["echo '#' >> program", ": > program", "cat program", "truncate -s 5 program"] {
            seen.note(script, mode_after(script));
        }
    }
}

/// The kernel opens files that chattr(1) has locked, and caches what is written: nothing of it
/// reaches the volume, and each way to sync says so.
#[test]
fn flags_hold_without_opens() {
    let image = Image::new(SIZE, &[]).with("noopen");
    let mounted = image.mount(&judged());
    let root = mounted.path();
    shell(root, "echo kept > i; echo kept > a; cat i a; chattr +i i; chattr +a a");
    for (name, append) in [("i", false), ("i", true), ("a", false), ("a", true)] {
        let Ok(file) = File::options().write(true).append(append).open(root.join(name)) else { continue };
        let written = file.write_all_at(b"lost", 0).and_then(|()| file.sync_all());
        assert_eq!(written.map_err(|e| e.raw_os_error()), Err(Some(Errno::PERM.raw_os_error())), "{name}");
        let cut = File::options().write(true).truncate(true).open(root.join(name));
        assert!(cut.is_err(), "{name} is cut");
    }
    // The kernel goes by its own size of a file, which the refused writes moved, until it forgets
    // it.
    mounted.unmount();
    let mounted = image.mount(&judged());
    shell(mounted.path(), "chattr -i i; chattr -a a; echo more >> i; echo more >> a");
    mounted.unmount();
    for name in ["/i", "/a"] {
        assert_eq!(debugfs(&image.path, &format!("cat {name}")), "kept\nmore\n", "{name}");
    }
}

/// How many requests lanefs has had.
fn requests(mounted: &Mounted) -> u64 {
    let Server::Lanefs(lanefs) = judged() else { panic!("only lanefs counts requests") };
    let json = must(bounded(60, lanefs).args(["top", "--once", "--json"]).arg(mounted.path()));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    json["requests"].as_u64().unwrap()
}

/// Requests for `script`, which each option saves.
fn saved(option: &str, script: &str, least: u64) {
    let [all, fewer] = ["rw", option].map(|option| {
        let image = Image::new(SIZE, &[]).with(option);
        let mounted = image.mount(&judged());
        shell(mounted.path(), "for i in {1..200}; do echo $i > f$i; done; cat f*; sync");
        let before = requests(&mounted);
        shell(mounted.path(), script);
        let after = requests(&mounted);
        mounted.unmount();
        after - before
    });
    assert!(all >= fewer + least, "{option}: {fewer} of {all} requests");
}

#[test]
fn requests_are_saved() {
    // Of 200 files each open and its end; each first write asks for capabilities, and each chown.
    saved("noopen", "cat f*", 380);
    saved("noxattr", "for f in f*; do echo >> $f; done; chown 1:1 f*", 380);
}

#[test]
fn there_are_no_extended_attributes() {
    let image = Image::new(SIZE, &[]).with("noxattr");
    let mounted = image.mount(&Server::Kernel);
    shell(
        mounted.path(),
        "mkdir d; touch f; setfacl -m u:games:rwx,g::- f; setfacl -d -m u:games:rwx d; chmod 755 .",
    );
    shell(mounted.path(), "setfattr -n user.kept -v value f");
    mounted.unmount();
    let mounted = image.mount(&judged());
    let file = mounted.path().join("f");
    let mut room = [0; 100];
    let refused = Err(Errno::OPNOTSUPP);
    for name in ["user.kept", "security.capability", "trusted.x"] {
        assert_eq!(rustix::fs::getxattr(&file, name, &mut room).map(drop), refused, "{name}");
        assert_eq!(rustix::fs::removexattr(&file, name), refused, "{name}");
    }
    assert_eq!(rustix::fs::setxattr(&file, "user.new", b"x", XattrFlags::empty()), refused);
    assert_eq!(rustix::fs::listxattr(&file, &mut room).map(drop), refused);
    // ACLs can be neither set nor inherited.
    let acl = output(bounded(60, "setfacl").args(["-m", "u:nobody:rwx"]).arg(&file));
    assert!(!acl.status.success(), "an ACL is set");
    shell(mounted.path(), "umask 027; touch d/new");
    let mode = fs::metadata(mounted.path().join("d/new")).unwrap().mode();
    assert_eq!(mode & 0o7777, 0o640, "of a directory with a default ACL");
    mounted.unmount();
    assert!(debugfs(&image.path, "ea_get /f user.kept").contains("value"), "they are kept");

    // The mode alone counts, as on the kernel where no file has an ACL.
    agree("noxattr", "defaults", |root| {
        let mut seen = Seen::default();
        fs::create_dir(root.join("d")).unwrap();
        fs::write(root.join("f"), "f").unwrap();
        for mode in [0o700, 0o750, 0o705] {
            fs::set_permissions(root.join("f"), Permissions::from_mode(mode)).unwrap();
            seen.note("read by others", (mode, as_nobody(root, "cat f")));
        }
        shell(root, "umask 027; touch d/new; mkdir d/dir");
        let mode = |name| fs::metadata(root.join(name)).unwrap().mode();
        seen.note("modes", (mode("d/new"), mode("d/dir"), mode("f")));
        seen
    });
}
