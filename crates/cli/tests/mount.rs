//! mount: programs on a mounted volume, how a mount begins and how it ends.

use crate::support;
use crate::support::mount::Mount;
use rustix::fs::{AtFlags, CWD, Dir, FallocateFlags, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;
use std::time::Duration;

#[test]
fn what_programs_write_is_on_the_volume() {
    let m = Mount::new("defaults");
    fs::create_dir(m.path("d")).unwrap();
    fs::write(m.path("d/file"), b"content").unwrap();
    fs::hard_link(m.path("d/file"), m.path("other")).unwrap();
    symlink("d/file", m.path("link")).unwrap();
    assert_eq!(fs::read(m.path("link")).unwrap(), b"content");
    assert_eq!(fs::metadata(m.path("other")).unwrap().nlink(), 2);
    fs::rename(m.path("d"), m.path("e")).unwrap();
    fs::set_permissions(m.path("other"), fs::Permissions::from_mode(0o4640)).unwrap();
    let held = File::options().read(true).write(true).open(m.path("other")).unwrap();
    fs::remove_file(m.path("other")).unwrap();
    fs::remove_file(m.path("e/file")).unwrap();
    held.write_all_at(b"is still there", 0).unwrap();
    let mut buf = [0; 14];
    held.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!((&buf[..], held.metadata().unwrap().nlink()), (&b"is still there"[..], 0));
    drop(held);
    fs::write(m.path("e/last"), vec![7; 3_000_000]).unwrap();
    assert!(
        fs::metadata(m.path("e/last")).unwrap().blocks() >= 3_000_000 / 512,
        "not written out is no hole"
    );
    m.umount();
    assert_eq!(m.image.ok(["ls", "v.img:/e"]), "last\n");
    assert!(m.image.debugfs("stat /e/last").contains("Size: 3000000"));
}

/// Of each descriptor that the server has of its volume: whether it writes, and whether it goes
/// past the page cache.
fn descriptors(m: &Mount) -> Vec<(bool, bool)> {
    let server = m.servers()[0];
    let image = m.image.path.canonicalize().unwrap();
    let fds = fs::read_dir(format!("/proc/{server}/fd")).unwrap().flatten().map(|fd| fd.path());
    let flags = fds.filter(|fd| fs::read_link(fd).is_ok_and(|to| to == image)).map(|fd| {
        let info = fs::read_to_string(fd.to_str().unwrap().replace("/fd/", "/fdinfo/")).unwrap();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
        let flags = OFlags::from_bits_retain(u32::from_str_radix(flags.trim(), 8).unwrap());
        (flags.contains(OFlags::RDWR), flags.contains(OFlags::DIRECT))
    });
    let mut flags: Vec<(bool, bool)> = flags.collect();
    flags.sort_unstable();
    flags
}

#[test]
fn large_pieces_by_direct_io() {
    large_pieces("io=direct", &[(true, true)]);
    // The one past the cache is for the block that multiple mount protection shares with others.
    large_pieces("io=buffered", &[(true, false), (true, true)]);
    // The one through the cache is for small reads.
    large_pieces("", &[(false, false), (true, true)]);
}

fn large_pieces(options: &str, expected: &[(bool, bool)]) {
    const LEN: usize = (5 << 20) + 12_345;
    let m = Mount::new(options);
    assert_eq!(descriptors(&m), expected, "{options}");

    let dev = fs::metadata(&m.at).unwrap().dev();
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    let bdi = |name| fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/{name}")).unwrap();
    let told = ["read_ahead_kb", "min_ratio", "max_ratio"].map(|name| bdi(name).trim().to_owned());
    assert_eq!(told, ["2048", "2", "2"]);

    let mut content: Vec<u8> = (0..LEN).map(|i| (i / 4096 * 7 + i) as u8).collect();
    fs::write(m.path("f"), &content).unwrap();
    let file = File::options().write(true).open(m.path("f")).unwrap();
    file.sync_all().unwrap();
    for (at, len) in [(100, 300_000), (1 << 20, 1 << 20), (LEN - 10, 400_000)] {
        file.write_all_at(&vec![9; len], at as u64).unwrap();
        content.resize(content.len().max(at + len), 0);
        content[at..at + len].fill(9);
    }
    drop(file);
    m.umount();
    m.image.ok(["mount", "v.img", "m"]);
    assert!(fs::read(m.path("f")).unwrap() == content);
    m.umount();
}

#[test]
fn what_only_linux_asks_for() {
    let m = Mount::new("defaults");
    let rw = OFlags::RDWR | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o644);
    let nameless = rustix::fs::open(&m.at, rw | OFlags::TMPFILE, mode).unwrap();
    rustix::io::write(&nameless, b"named late").unwrap();
    rustix::fs::linkat(&nameless, "", CWD, m.path("late"), AtFlags::EMPTY_PATH).unwrap();
    assert_eq!(fs::read(m.path("late")).unwrap(), b"named late");

    fs::write(m.path("one"), b"1").unwrap();
    fs::write(m.path("two"), b"2").unwrap();
    let rename = |flags| rustix::fs::renameat_with(CWD, m.path("one"), CWD, m.path("two"), flags);
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(m.path("one")).unwrap(), b"2");
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(Errno::EXIST));

    let file = rustix::fs::open(m.path("sparse"), rw | OFlags::CREATE, mode).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
    // Cached by the kernel, which asks for holes without writing it out.
    rustix::io::pwrite(&file, &[1; 8192], 512 << 10).unwrap();
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)).unwrap(), 512 << 10);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 0, 1 << 20).unwrap();
    // While it is open for writing, the kernel may have content of it that lanefs does not have.
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_blocks, 1);

    rustix::fs::setxattr(m.path("one"), "user.mime", b"text", XattrFlags::CREATE).unwrap();
    let again = rustix::fs::setxattr(m.path("one"), "user.mime", b"text", XattrFlags::CREATE);
    assert_eq!(again, Err(Errno::EXIST));
    let mut value = [0; 8];
    assert_eq!(rustix::fs::getxattr(m.path("one"), "user.mime", &mut value).unwrap(), 4);

    let statx =
        rustix::fs::statx(CWD, m.path("one"), AtFlags::empty(), rustix::fs::StatxFlags::BTIME).unwrap();
    assert!(statx.stx_btime.tv_sec > 1_700_000_000, "{}", statx.stx_btime.tv_sec);
    let flags = rustix::fs::IFlags::IMMUTABLE;
    let one = File::open(m.path("one")).unwrap();
    let had = rustix::fs::ioctl_getflags(&one).unwrap();
    rustix::fs::ioctl_setflags(&one, had | flags).unwrap();
    assert_eq!(fs::remove_file(m.path("one")).unwrap_err().raw_os_error(), Some(Errno::PERM.raw_os_error()));
    rustix::fs::ioctl_setflags(&one, had).unwrap();
    fs::remove_file(m.path("one")).unwrap();
    drop((nameless, file, one));
    m.umount();
}

#[test]
fn a_large_directory_is_listed_while_it_is_emptied() {
    let m = Mount::new("defaults");
    for i in 0..2000 {
        File::create(m.path(&format!("name-{i}"))).unwrap();
    }
    let mut removed = 0;
    for entry in fs::read_dir(&m.at).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "lost+found" {
            fs::remove_file(entry.path()).unwrap();
            removed += 1;
        }
    }
    assert_eq!(removed, 2000);
    assert_eq!(fs::read_dir(&m.at).unwrap().count(), 1);
    m.umount();
}

#[test]
fn a_default_acl_comes_before_the_umask() {
    let m = Mount::new("defaults");
    let script = "mkdir plain acl && setfacl -m d:u:1234:rwx,d:m:rwx acl && umask 077 && touch plain/f acl/f \
                  && stat -c %a plain/f acl/f && getfacl -cn acl/f | grep 1234";
    let out = support::succeed(Command::new("sh").args(["-c", script]).current_dir(&m.at));
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(text.lines().collect::<Vec<_>>(), ["600", "664", "user:1234:rwx\t#effective:rw-"]);
    m.umount();
}

#[test]
fn with_noacl_no_acl_is_seen_or_inherited() {
    let m = Mount::new("defaults");
    let sh = |script| {
        let out = support::succeed(Command::new("sh").args(["-euc", script]).current_dir(m.image.beside("")));
        String::from_utf8(out.stdout).unwrap()
    };
    sh("mkdir m/d; setfacl -m d:u:5:rwx,u:5:rwx m/d");
    m.umount();
    m.image.ok(["mount", "v.img", "m", "-o", "noacl"]);
    let script = "umask 022; touch m/d/f; stat -c %a m/d/f; getfattr -dm- m/d; \
                  for does in '-n' '-x'; do LC_ALL=C setfattr $does system.posix_acl_default m/d 2>&1 || :; done";
    let no = "setfattr: m/d: Operation not supported\n";
    assert_eq!(sh(script), format!("644\n{no}{no}"));
    m.umount();
    m.image.ok(["mount", "v.img", "m"]);
    assert!(sh("getfacl -cn m/d").contains("default:user:5:rwx"));
    m.umount();
}

#[test]
fn a_writer_takes_set_user_id_away() {
    let m = Mount::new("defaults");
    fs::write(m.path("tool"), b"#!").unwrap();
    fs::set_permissions(m.path("tool"), fs::Permissions::from_mode(0o4777)).unwrap();
    fs::set_permissions(m.image.beside(""), fs::Permissions::from_mode(0o755)).unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo changed >> tool"]).current_dir(&m.at).uid(65534).gid(65534);
    support::succeed(&mut shell);
    assert_eq!(fs::metadata(m.path("tool")).unwrap().permissions().mode() & 0o7777, 0o777);
    m.umount();
}

#[test]
fn a_full_volume_says_so_and_lives_on() {
    let m = Mount::new("defaults");
    let mut file = File::create(m.path("fill")).unwrap();
    let piece = vec![1; 1 << 20];
    let filled = (0..1000).try_for_each(|_| file.write_all(&piece).and_then(|()| file.sync_data()));
    assert_eq!(filled.unwrap_err().raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    drop(file);
    fs::remove_file(m.path("fill")).unwrap();
    fs::write(m.path("after"), &piece).unwrap();
    m.umount();
}

#[test]
fn wrong_use_is_told_in_a_line() {
    let m = Mount::blank();
    let fails = |args: &[&str], code: i32, part: &str| {
        let out = m.image.lanefs(args).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(said.contains(part) && said.trim_end().lines().count() == 1, "{args:?}: {said}");
        assert_eq!(out.status.code(), Some(code), "{args:?}: {said}");
    };
    fails(&["mount", "v.img", "m", "-o", "fast"], 1, "'fast'");
    fails(&["mount", "v.img", "m", "-o", "data=journal"], 1, "'data=journal'");
    fails(&["mount", "none.img", "m"], 32, "No such file");
    fails(&["mount", "v.img", "none"], 32, "No such file");
    fails(&["mount", "v.img", "v.img"], 32, "Not a directory");
    fails(&["umount", "m"], 32, "not mounted");
    fs::write(m.image.beside("text"), [b'x'; 10_000]).unwrap();
    fails(&["mount", "text", "m"], 32, "holds no ext4 volume but text");
    m.image.ok(["mount", "v.img", "m"]);
    fails(&["mount", "v.img", "m"], 32, "in use");
    fails(&["ls", "v.img:/"], 2, "in use");
    let held = File::create(m.path("held")).unwrap();
    fails(&["umount", "m"], 32, "busy");
    drop(held);
    m.umount();
}

#[test]
fn read_only_and_remounted() {
    let m = Mount::new("ro");
    assert_eq!(File::create(m.path("f")).unwrap_err().raw_os_error(), Some(Errno::ROFS.raw_os_error()));
    // Its server cannot write: it is said at once, and not by each write.
    let why = "lanefs: cannot mount 'v.img' at 'm': m: the volume was opened ro; unmount it, and mount it again without";
    m.image.fails(["mount", "v.img", "m", "-o", "remount,rw"], 32, why);
    m.image.ok(["mount", "v.img", "m", "-o", "remount,ro,noexec"]);
    m.umount();
    m.image.ok(["mount", "v.img", "m"]);
    m.image.ok(["mount", "v.img", "m", "-o", "remount,ro"]);
    assert_eq!(File::create(m.path("f")).unwrap_err().raw_os_error(), Some(Errno::ROFS.raw_os_error()));
    m.image.ok(["mount", "v.img", "m", "-o", "remount,rw"]);
    File::create(m.path("f")).unwrap();
    m.umount();
}

#[test]
fn what_must_be_durable_is_so_from_the_beginning() {
    for word in ["sync", "dirsync"] {
        let m = Mount::new("defaults");
        let why = format!(
            "lanefs: cannot mount 'v.img' at 'm': m: {word} is an option of a mount from its beginning; unmount it, and mount it again"
        );
        m.image.fails(["mount", "v.img", "m", "-o", &format!("remount,{word}")], 32, &why);
        m.umount();
        m.image.ok(["mount", "v.img", "m", "-o", word]);
        m.image.ok(["mount", "v.img", "m", "-o", &format!("remount,{word},noexec")]);
        m.umount();
    }
}

#[test]
fn mount_and_umount_find_it_by_its_names() {
    let m = Mount::blank();
    let lanefs = env!("CARGO_BIN_EXE_lanefs");
    for kind in ["lanefs", "fuse.lanefs"] {
        let (mount, umount) =
            (m.image.beside(&format!("mount.{kind}")), m.image.beside(&format!("umount.{kind}")));
        symlink(lanefs, &mount).unwrap();
        symlink(lanefs, &umount).unwrap();
        let options = "rw,noatime,nofail,x-test.word";
        support::succeed(Command::new(mount).arg(&m.image.path).arg(&m.at).args(["-o", options]));
        let table = fs::read_to_string("/proc/thread-self/mounts").unwrap();
        let line = table.lines().find(|l| l.contains(m.at.to_str().unwrap())).expect("mounted");
        assert!(line.starts_with(m.image.path.to_str().unwrap()) && line.contains("noatime"), "{line}");
        fs::write(m.path("f"), kind).unwrap();
        support::succeed(Command::new(umount).arg(&m.at));
        m.image.fsck();
    }
}

#[test]
fn a_signal_ends_it_cleanly() {
    let m = Mount::blank();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut server = m.serve();
        let name = format!("{signal:?}");
        fs::write(m.path(&name), b"not synced").unwrap();
        // A program still has a file open.
        let held = File::open(m.path(&name)).unwrap();
        kill_process(Pid::from_child(&server), signal).unwrap();
        assert!(server.wait().unwrap().success());
        assert!(!m.is_mounted());
        drop(held);
        m.image.fsck();
        assert_eq!(m.image.ok(["cat".to_owned(), m.image.at(&format!("/{name}"))]), "not synced");
        assert!(!m.image.debugfs("features").contains("needs_recovery"));
    }
}

/// The kernel does not stamp a write past its cache, and stores its own, older time later.
#[test]
fn a_write_past_the_cache_keeps_its_time() {
    let m = Mount::new("defaults");
    let script = "
        for f in direct log touched; do echo old >$f; touch -d 2001-01-01 $f; done; sync
        dd if=/dev/zero of=direct conv=notrunc oflag=direct bs=4096 count=1 status=none
        chattr +a log; echo new >>log; chattr -a log
        dd if=/dev/zero of=touched conv=notrunc oflag=direct bs=4096 count=1 status=none
        touch -m -d 2002-02-02 touched
        mv direct d; mv log l; mv touched t; sync";
    support::succeed(Command::new("sh").args(["-euc", script]).current_dir(&m.at));
    m.umount();
    m.image.ok(["mount", "v.img", "m"]);
    let year = |name: &str| {
        let out = support::succeed(Command::new("date").args(["+%Y", "-r"]).arg(m.path(name)));
        String::from_utf8(out.stdout).unwrap().trim().parse::<u32>().unwrap()
    };
    assert!(
        year("d") > 2020 && year("l") > 2020 && year("t") == 2002,
        "{} {} {}",
        year("d"),
        year("l"),
        year("t")
    );
    m.umount();
}

#[test]
fn killed_it_loses_nothing_that_was_synced() {
    let m = Mount::blank();
    let mut server = m.serve();
    let file = File::create(m.path("ledger")).unwrap();
    file.write_all_at(&[5; 100_000], 0).unwrap();
    file.sync_all().unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    let gone = fs::metadata(m.path("ledger")).unwrap_err().raw_os_error();
    assert_eq!(gone, Some(Errno::NOTCONN.raw_os_error()));
    drop(file);
    lanefs_tests::released(&m.image.path);
    m.unmount("m");
    assert!(!m.is_mounted());
    m.image.ok(["mount", "v.img", "m"]);
    assert_eq!(fs::read(m.path("ledger")).unwrap(), vec![5; 100_000]);
    m.umount();
}

#[test]
fn a_user_mounts_his_own() {
    let m = Mount::blank();
    for path in [m.image.beside(""), m.image.path.clone(), m.at.clone()] {
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
    }
    // Where the user can run it.
    lanefs_tests::copy_file(env!("CARGO_BIN_EXE_lanefs"), m.image.beside("lanefs"));
    // The device is for all, as udev has it: in a mount namespace, for a machine without udev has
    // it for root only.
    let script = r#"
        mount --make-rprivate /
        mkdir dev; mount -t tmpfs tmpfs dev; mknod -m 666 dev/fuse c 10 229; mount --bind dev/fuse /dev/fuse
        user() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
        user ./lanefs chown 65534:65534 v.img:/
        user ./lanefs mount v.img m
        user touch m/mine
        findmnt -no VFS-OPTIONS m | grep -q '^rw,nosuid,nodev,'
        # The only ones that a word of his could take away.
        ! user ./lanefs mount -o remount,suid,dev v.img m || exit 1
        findmnt -no VFS-OPTIONS m | grep -q '^rw,nosuid,nodev,'
        user ./lanefs umount m
    "#;
    let mut alone = support::tool("unshare");
    support::succeed(alone.args(["--mount", "bash", "-euc", script]).current_dir(m.image.beside("")));
    assert!(m.image.ok(["ls", "v.img:/"]).contains("mine"));
    m.image.fsck();
}

#[test]
fn idle_it_sleeps() {
    let m = Mount::new("commit=1");
    fs::write(m.path("f"), b"something to write out").unwrap();
    let [server] = m.servers()[..] else { panic!("servers: {:?}", m.servers()) };
    let switches = || -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{server}/task")).unwrap().flatten();
        let status = tasks.filter_map(|t| fs::read_to_string(t.path().join("status")).ok());
        status
            // Not the thread that answers clients of this machine: `top.rs` tests it.
            .filter(|s| !s.contains("lanefs-watch"))
            .flat_map(|s| {
                s.lines().filter(|l| l.starts_with("voluntary")).map(str::to_owned).collect::<Vec<_>>()
            })
            .collect()
    };
    // The server may still have work to do, but it comes to rest.
    let mut before = switches();
    loop {
        thread::sleep(Duration::from_secs(3));
        let now = switches();
        if now == before {
            break;
        }
        before = now;
    }
    let kib = lanefs_tests::memory_of(server as u32) >> 10;
    // 32 MiB with the mapped part of its program.
    assert!(kib < 23 << 10, "{kib} KiB");
    m.umount();
}

/// A program sees a time as the inode will store it: in whole seconds if the inode has no room for
/// parts of a second.
#[test]
fn times_are_as_fine_as_the_inodes() {
    let m = Mount::blank_with(&["-I", "128"]);
    m.image.ok(["mount", "v.img", "m"]);
    let file = File::create(m.path("f")).unwrap();
    let time = std::time::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    file.set_modified(time).unwrap();
    let meta = file.metadata().unwrap();
    assert_eq!((meta.mtime(), meta.mtime_nsec()), (1_000_000_000, 0));
    drop(file);
    m.umount();
}

/// The kernel caches the listing of a directory with its `..`, and goes by the directory's times,
/// which no rename moves.
#[test]
fn a_directory_with_another_parent_lists_that_parent() {
    let m = Mount::new("defaults");
    for dir in ["a", "b", "a/d", "a/f"] {
        fs::create_dir(m.path(dir)).unwrap();
    }
    let [a, b] = ["a", "b"].map(|dir| fs::metadata(m.path(dir)).unwrap().ino());
    let parent = |dir: &str| {
        let listing = Dir::read_from(File::open(m.path(dir)).unwrap()).unwrap();
        let entries: Vec<_> = listing.map(Result::unwrap).collect();
        entries.iter().find(|entry| entry.file_name() == c"..").unwrap().ino()
    };
    // Twice each: the second listing comes from the cache.
    for dir in ["a/d", "a/d", "a/f", "a/f"] {
        assert_eq!(parent(dir), a, "{dir}");
    }
    fs::rename(m.path("a/d"), m.path("b/d")).unwrap();
    assert_eq!(parent("b/d"), b);
    rustix::fs::renameat_with(CWD, m.path("a/f"), CWD, m.path("b/d"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!((parent("a/f"), parent("b/d")), (a, b));
    m.umount();
}

#[test]
fn direct_and_mapped_content_agree() {
    let m = Mount::new("defaults");
    fs::write(m.path("f"), vec![1; 64 << 10]).unwrap();
    let mut options = File::options();
    options.read(true).write(true).custom_flags(OFlags::DIRECT.bits() as i32);
    let direct = options.open(m.path("f")).unwrap();
    let mut page = lanefs_device::AlignedBuf::zeroed(4096);
    page.fill(2);
    direct.write_all_at(&page, 8192).unwrap();
    let content = fs::read(m.path("f")).unwrap();
    assert!(content[8192..12288].iter().all(|b| *b == 2) && content[12288] == 1);
    let cached = File::options().write(true).open(m.path("f")).unwrap();
    cached.write_all_at(&[3; 100], 8200).unwrap();
    direct.read_exact_at(&mut page, 8192).unwrap();
    assert_eq!((page[7], page[8], page[107], page[108]), (2, 3, 3, 2));
    drop((direct, cached));
    m.umount();
}
