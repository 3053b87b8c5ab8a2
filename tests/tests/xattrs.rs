//! Extended attributes and ACLs, against the kernel: what it wrote is read, what it says to an
//! operation lanefs says too, and what lanefs wrote it reads.

use lanefs::{AtSymlink, NewAttr, SetAttr, SetXattr, Volume};
use lanefs_format::acl::{Acl, AclEntry, Tag};
use lanefs_tests::{LoopMount, debugfs, dumpe2fs, e2fsck_clean, mke2fs, open, run, writing};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rustix::fs::{AtFlags, CWD, Mode, XattrFlags, chmodat, lremovexattr, lsetxattr};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

const CONFIGS: [&[&str]; 6] = [
    &[],
    &["-b", "1024", "-I", "256"],
    &["-b", "1024", "-I", "128"],
    &["-b", "4096", "-I", "128", "-O", "^metadata_csum"],
    &["-b", "1024", "-I", "512", "-O", "^metadata_csum,^64bit"],
    &["-t", "ext3", "-b", "2048"],
];

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

fn image(dir: &Path, name: &str, args: &[&str]) -> PathBuf {
    let path = dir.join(name);
    let ext4 = if args.contains(&"-t") { &[][..] } else { &["-t", "ext4"] };
    let args: Vec<&str> = ext4.iter().chain(args).copied().collect();
    mke2fs(&path, 32 << 20, &args);
    path
}

type Attrs = BTreeMap<String, Vec<u8>>;

fn of_kernel(path: &Path) -> Attrs {
    let names = xattr::list(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    names.map(|n| (n.to_str().unwrap().into(), xattr::get(path, &n).unwrap().unwrap())).collect()
}

fn of_lanefs(volume: &Volume, path: &str) -> Attrs {
    let all = volume.xattrs(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let attrs: Attrs = all.iter().map(|(n, v)| (n.to_str().unwrap().into(), v.clone())).collect();
    assert_eq!(attrs.len(), all.len(), "{path}: a name twice");
    attrs
}

fn acl(entries: &[(Tag, u8)]) -> Vec<u8> {
    Acl { entries: entries.iter().map(|&(tag, perm)| AclEntry { tag, perm }).collect() }.to_xattr()
}

#[test]
fn reads_what_the_kernel_wrote() {
    let dir = tempfile::tempdir().unwrap();
    for (n, config) in CONFIGS.iter().enumerate() {
        let image = image(dir.path(), &format!("{n}.img"), config);
        let mount = LoopMount::new(&image, "");
        let names = ["a", "b", "c"];
        for name in names {
            let path = mount.path().join(name);
            fs::write(&path, name).unwrap();
            for (attr, len) in [
                ("user.short", 3),
                ("user.empty", 0),
                ("trusted.x", 200),
                ("security.y", 400),
                ("gnu.translator", 12),
            ] {
                xattr::set(&path, attr, &vec![b'v'; len]).unwrap();
            }
            let list = [
                (Tag::UserObj, 6),
                (Tag::User(1000), 7),
                (Tag::GroupObj, 4),
                (Tag::Mask, 5),
                (Tag::Other, 0),
            ];
            xattr::set(&path, ACCESS, &acl(&list)).unwrap();
        }
        xattr::set(mount.path().join("c"), "user.own", b"differs").unwrap();
        let expected: Vec<_> = names.iter().map(|name| of_kernel(&mount.path().join(name))).collect();
        mount.unmount();
        let volume = Volume::open_read_only(&image).unwrap();
        for (name, expected) in names.iter().zip(expected) {
            assert_eq!(of_lanefs(&volume, name), expected, "{name} with {config:?}");
            assert!(expected.len() >= 6);
        }
        let missing = volume.xattr("a", "user.none").unwrap_err();
        assert_eq!(missing.errno(), libc::ENODATA);
        assert_eq!(volume.xattr("a", "nothing.known").unwrap_err().errno(), libc::EOPNOTSUPP);
    }
}

/// An operation of the differential test.
#[derive(Debug, Clone)]
enum Op {
    Set(&'static str, &'static str, Vec<u8>, SetXattr),
    Remove(&'static str, &'static str),
    Chmod(&'static str, u16),
}

const FILES: [&str; 6] = ["a", "b", "c", "dir", "link", "fifo"];
const NAMES: [&str; 11] = [
    "user.a",
    "user.bb",
    "user.a-name-that-takes-a-good-deal-of-room-in-an-inode-and-is-longer-than-most-names-are",
    "trusted.overlay.opaque",
    "security.lane",
    "gnu.translator",
    "user.z",
    ACCESS,
    DEFAULT,
    "user.",
    "unknown.x",
];

fn random_op(rng: &mut StdRng) -> Op {
    let file = FILES.choose(rng).unwrap();
    let name = NAMES.choose(rng).unwrap();
    match rng.random_range(0..10) {
        0 => Op::Chmod(FILES[..4].choose(rng).unwrap(), rng.random_range(0..0o10000)),
        1 | 2 => Op::Remove(file, name),
        _ if name.starts_with("system") => {
            let perm = |rng: &mut StdRng| rng.random_range(0..8);
            let mut list =
                vec![(Tag::UserObj, perm(rng)), (Tag::GroupObj, perm(rng)), (Tag::Other, perm(rng))];
            if rng.random_bool(0.7) {
                list.insert(1, (Tag::User(rng.random_range(0..2000)), perm(rng)));
                list.insert(3, (Tag::Mask, perm(rng)));
            }
            if rng.random_bool(0.1) {
                list.swap(0, 1);
            }
            if rng.random_bool(0.1) {
                list.clear();
            }
            Op::Set(file, name, acl(&list), SetXattr::Any)
        }
        _ => {
            let len =
                *[0, 1, 4, 30, 31, 70, 200, 900, 1000, 1900, 3900, 4040, 5000, 66_000].choose(rng).unwrap();
            let fill = rng.random_range(b'a'..=b'c');
            let how =
                *[SetXattr::Any, SetXattr::Any, SetXattr::Create, SetXattr::Replace].choose(rng).unwrap();
            Op::Set(file, name, vec![fill; len], how)
        }
    }
}

fn kernel_does(root: &Path, op: &Op) -> i32 {
    let done = match op {
        Op::Set(file, name, value, how) => {
            let flags = match how {
                SetXattr::Any => XattrFlags::empty(),
                SetXattr::Create => XattrFlags::CREATE,
                SetXattr::Replace => XattrFlags::REPLACE,
            };
            lsetxattr(root.join(file), *name, value, flags)
        }
        Op::Remove(file, name) => lremovexattr(root.join(file), *name),
        Op::Chmod(file, mode) => {
            chmodat(CWD, root.join(file), Mode::from_raw_mode((*mode).into()), AtFlags::empty())
        }
    };
    done.err().map_or(0, rustix::io::Errno::raw_os_error)
}

fn lanefs_does(volume: &Volume, op: &Op) -> i32 {
    let done = match op {
        Op::Set(file, name, value, how) => volume.set_xattr(file, name, value, *how),
        Op::Remove(file, name) => volume.remove_xattr(file, name),
        Op::Chmod(file, mode) => volume.set_attr(
            file,
            &SetAttr { permissions: Some(*mode), ..SetAttr::default() },
            AtSymlink::Follow,
        ),
    };
    done.err().map_or(0, |e| e.errno())
}

/// What is refused first: bytes that are no list, or the file that can have none.
#[test]
fn an_acl_that_is_none_of_a_file_that_has_none() {
    let dir = tempfile::tempdir().unwrap();
    let theirs = image(dir.path(), "theirs", &[]);
    let mount = LoopMount::new(&theirs, "");
    std::os::unix::fs::symlink("nowhere", mount.path().join("link")).unwrap();
    mount.unmount();
    let ours = dir.path().join("ours");
    fs::copy(&theirs, &ours).unwrap();
    let (mount, volume) = (LoopMount::new(&theirs, ""), open(writing(), &ours).unwrap());
    let entry = [1, 0, 6, 0, 255, 255, 255, 255];
    let values: [&[u8]; 7] = [
        &[],
        &[168, 168],
        &[9, 0, 0, 0],
        &[2, 0, 0, 0],
        &[2, 0, 0, 0, 1],
        &[&[2, 0, 0, 0][..], &entry].concat(),
        &[&[2, 0, 0, 0][..], &entry, &entry].concat(),
    ];
    for name in [ACCESS, "system.posix_acl_default"] {
        for value in values {
            let op = Op::Set("link", name, value.to_vec(), SetXattr::Any);
            assert_eq!(lanefs_does(&volume, &op), kernel_does(mount.path(), &op), "{op:?}");
        }
    }
    mount.unmount();
}

#[test]
fn says_what_the_kernel_says() {
    let dir = tempfile::tempdir().unwrap();
    for (n, config) in CONFIGS.iter().enumerate() {
        let seed = 7_000 + n as u64;
        let mut rng = StdRng::seed_from_u64(seed);
        let theirs = image(dir.path(), &format!("{n}.theirs"), config);
        let mount = LoopMount::new(&theirs, "");
        for file in &FILES[..3] {
            fs::write(mount.path().join(file), file).unwrap();
        }
        fs::create_dir(mount.path().join("dir")).unwrap();
        std::os::unix::fs::symlink("nowhere", mount.path().join("link")).unwrap();
        rustix::fs::mknodat(CWD, mount.path().join("fifo"), rustix::fs::FileType::Fifo, Mode::RUSR, 0)
            .unwrap();
        mount.unmount();
        let ours = dir.path().join(format!("{n}.ours"));
        fs::copy(&theirs, &ours).unwrap();

        let mount = LoopMount::new(&theirs, "");
        let volume = open(writing(), &ours).unwrap();
        for step in 0..600 {
            let op = random_op(&mut rng);
            let (kernel, lanefs) = (kernel_does(mount.path(), &op), lanefs_does(&volume, &op));
            let shown: String = format!("{op:?}").chars().take(160).collect();
            assert_eq!(lanefs, kernel, "errno at step {step}, seed {seed}, {config:?}: {shown}");
            let (Op::Set(file, ..) | Op::Remove(file, _) | Op::Chmod(file, _)) = op;
            let meta = fs::symlink_metadata(mount.path().join(file)).unwrap();
            let ours = volume.symlink_metadata(file).unwrap();
            assert_eq!(
                u32::from(ours.mode()),
                meta.permissions().mode(),
                "step {step}, seed {seed}: {shown}"
            );
            assert_eq!(ours.sectors(), meta.blocks(), "i_blocks at step {step}, seed {seed}: {shown}");
        }
        let expected: Vec<_> = FILES.iter().map(|file| of_kernel(&mount.path().join(file))).collect();
        assert!(
            expected.iter().map(BTreeMap::len).sum::<usize>() > 8,
            "the sequence left something to compare"
        );
        mount.unmount();
        for (file, expected) in FILES.iter().zip(&expected) {
            assert_eq!(&of_lanefs(&volume, file), expected, "{file}, seed {seed}, {config:?}");
        }
        volume.close().unwrap();
        e2fsck_clean(&ours);
        let mount = LoopMount::new(&ours, "");
        for (file, expected) in FILES.iter().zip(&expected) {
            assert_eq!(
                &of_kernel(&mount.path().join(file)),
                expected,
                "{file} read by the kernel, seed {seed}"
            );
        }
        // And the kernel goes on where lanefs stopped: it changes what lanefs laid out.
        for file in &FILES[..4] {
            for name in xattr::list(mount.path().join(file)).unwrap().collect::<Vec<_>>() {
                xattr::remove(mount.path().join(file), &name).unwrap();
            }
            xattr::set(mount.path().join(file), "user.after", &[b'k'; 300]).unwrap();
        }
        mount.unmount();
        e2fsck_clean(&ours);
    }
}

fn acl_block(image: &Path, file: &str) -> u64 {
    let stat = debugfs(image, &format!("stat {file}"));
    let (_, rest) = stat.split_once("File ACL: ").unwrap();
    rest.split_whitespace().next().unwrap().parse().unwrap()
}

fn free_blocks(image: &Path) -> u64 {
    let listed = dumpe2fs(image, &["-h"]);
    let line = listed.lines().find(|l| l.starts_with("Free blocks:")).unwrap();
    line.split_whitespace().last().unwrap().parse().unwrap()
}

#[test]
fn equal_lists_share_a_block_up_to_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let image = image(dir.path(), "x.img", &["-b", "1024", "-N", "4096"]);
    let volume = open(writing(), &image).unwrap();
    volume.create_dir("/many").unwrap();
    volume.close().unwrap();
    let before = free_blocks(&image);
    let volume = open(writing(), &image).unwrap();
    let value = vec![b's'; 400];
    for i in 0..1030 {
        volume.create_file(format!("/many/{i}")).unwrap();
        volume.set_xattr(format!("/many/{i}"), "user.shared", &value, SetXattr::Create).unwrap();
    }
    volume.close().unwrap();
    e2fsck_clean(&image);
    let blocks: Vec<u64> =
        [0, 1, 1023, 1024, 1029].iter().map(|i| acl_block(&image, &format!("/many/{i}"))).collect();
    assert!(blocks[0] != 0 && blocks[0] == blocks[1] && blocks[1] == blocks[2], "{blocks:?}");
    assert!(blocks[3] != blocks[0] && blocks[3] == blocks[4], "{blocks:?}");

    // A change takes a file out of the crowd, and leaves the others as they are.
    let volume = open(writing(), &image).unwrap();
    volume.set_xattr("/many/1", "user.shared", b"mine", SetXattr::Replace).unwrap();
    assert_eq!(volume.xattr("/many/0", "user.shared").unwrap(), value);
    volume.set_xattr("/many/1", "user.shared", &value, SetXattr::Replace).unwrap();
    for i in 0..1030 {
        volume.remove_file(format!("/many/{i}")).unwrap();
    }
    volume.remove_dir("/many").unwrap();
    volume.create_dir("/many").unwrap();
    volume.close().unwrap();
    e2fsck_clean(&image);
    assert!(free_blocks(&image) >= before, "{} blocks were free, {} are", before, free_blocks(&image));
}

#[test]
fn new_names_inherit_as_the_kernel_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let lists = [
        vec![(Tag::UserObj, 7), (Tag::GroupObj, 5), (Tag::Other, 1)],
        vec![
            (Tag::UserObj, 7),
            (Tag::User(5), 6),
            (Tag::GroupObj, 5),
            (Tag::Group(6), 7),
            (Tag::Mask, 6),
            (Tag::Other, 0),
        ],
    ];
    let modes = [0o777u16, 0o640, 0o000, 0o7751];
    for (n, config) in CONFIGS.iter().enumerate() {
        let (theirs, ours) = (dir.path().join(format!("{n}.theirs")), dir.path().join(format!("{n}.ours")));
        image(dir.path(), &format!("{n}.theirs"), config);
        let mount = LoopMount::new(&theirs, "");
        for (i, list) in lists.iter().enumerate() {
            let path = mount.path().join(format!("d{i}"));
            fs::create_dir(&path).unwrap();
            xattr::set(&path, DEFAULT, &acl(list)).unwrap();
        }
        mount.unmount();
        fs::copy(&theirs, &ours).unwrap();
        let mount = LoopMount::new(&theirs, "");
        let volume = open(writing(), &ours).unwrap();
        // In a child of its own: the umask belongs to the process. With a default list it counts
        // for nothing.
        let root = mount.path().to_str().unwrap();
        for i in 0..lists.len() {
            for mode in modes {
                let script = format!(
                    "import os; r='{root}/d{i}/'; os.umask(0o77); os.close(os.open(r+'f{mode}', os.O_CREAT|os.O_WRONLY, {mode})); \
                     os.mkdir(r+'d{mode}', {mode}); os.mkfifo(r+'p{mode}', {mode})"
                );
                run("python3", &["-c", &script]);
                let attr = NewAttr { permissions: mode, uid: 0, gid: 0 };
                let open = volume.open_dir(format!("/d{i}")).unwrap();
                open.create_new_file(format!("f{mode}"), attr).unwrap();
                // What mkdir(2) takes of a mode: no set-id bits.
                open.create_dir(format!("d{mode}"), NewAttr { permissions: mode & 0o1777, ..attr }).unwrap();
                let fifo = lanefs::FileType::Fifo;
                open.mknod(format!("p{mode}"), fifo, lanefs::DeviceNumber { major: 0, minor: 0 }, attr)
                    .unwrap();
                for kind in ["f", "d", "p"] {
                    let name = format!("d{i}/{kind}{mode}");
                    let meta = fs::symlink_metadata(mount.path().join(&name)).unwrap();
                    let found = volume.symlink_metadata(&name).unwrap();
                    assert_eq!(
                        u32::from(found.mode()),
                        meta.permissions().mode(),
                        "mode of {name}, {config:?}"
                    );
                    assert_eq!(
                        of_lanefs(&volume, &name),
                        of_kernel(&mount.path().join(&name)),
                        "{name}, {config:?}"
                    );
                }
            }
        }
        mount.unmount();
        volume.close().unwrap();
        e2fsck_clean(&ours);
    }
}

#[test]
fn a_full_volume_says_so_and_stays_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.img");
    mke2fs(&path, 2 << 20, &["-t", "ext4", "-b", "1024", "-O", "^has_journal", "-N", "3000", "-m", "0"]);
    let volume = open(writing(), &path).unwrap();
    let mut refused = 0;
    for i in 0..2500 {
        let name = format!("/{i}");
        if volume.create_file(&name).is_err() {
            break;
        }
        let value = format!("{i}-").repeat(100);
        match volume.set_xattr(&name, "user.big", value.as_bytes(), SetXattr::Any) {
            Ok(()) => assert_eq!(refused, 0, "a block became free by itself"),
            Err(e) => {
                assert_eq!(e.errno(), libc::ENOSPC, "{name}");
                assert!(of_lanefs(&volume, &name).is_empty(), "{name}: a refused value is not half there");
                refused += 1;
            }
        }
        if refused > 20 {
            break;
        }
    }
    assert!(refused > 0, "the volume never got full");
    // In the inode there is room still.
    volume.set_xattr("/0", "user.small", b"s", SetXattr::Create).unwrap();
    volume.close().unwrap();
    e2fsck_clean(&path);
}

/// Of inodes that tune2fs made larger, the kernel takes 32 bytes of the new room before it reads
/// attributes.
#[test]
fn attributes_of_enlarged_inodes_are_where_the_kernel_looks() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["-I", "128", "-O", "^flex_bg,^metadata_csum,^resize_inode,^orphan_file,^metadata_csum_seed"];
    let image = image(dir.path(), "v", &args);
    let mount = LoopMount::new(&image, "");
    fs::write(mount.path().join("f"), "f").unwrap();
    mount.unmount();
    // tune2fs wants a volume that was checked after its last use.
    run("e2fsck", &["-fp", image.to_str().unwrap()]);
    run("tune2fs", &["-I", "256", image.to_str().unwrap()]);
    let volume = open(writing(), &image).unwrap();
    let root = volume.open_dir("/").unwrap();
    root.lookup("f").unwrap().set_xattr("user.a", b"by lanefs", SetXattr::Any).unwrap();
    drop(root);
    volume.close().unwrap();
    e2fsck_clean(&image);
    for _ in 0..2 {
        let mount = LoopMount::new(&image, "");
        let path = mount.path().join("f");
        assert_eq!(of_kernel(&path), Attrs::from([("user.a".into(), b"by lanefs".to_vec())]));
        // The kernel writes the inode.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        mount.unmount();
        e2fsck_clean(&image);
    }
}

/// The superblock says that there are attributes, as after the kernel's first one: `e2fsck` takes
/// away those of a volume that does not. On a volume of revision 0, which has no features, too.
#[test]
fn the_first_attribute_of_a_volume_sets_its_feature() {
    let dir = tempfile::tempdir().unwrap();
    let kinds: [&[&str]; 3] =
        [&["-O", "^ext_attr", "-I", "128"], &["-O", "^ext_attr", "-I", "256"], &["-t", "ext2", "-r", "0"]];
    for (n, kind) in kinds.iter().enumerate() {
        let image = image(dir.path(), &format!("{n}.img"), kind);
        let volume = open(writing(), &image).unwrap();
        volume.write("/f", b"").unwrap();
        volume.sync().unwrap();
        assert!(!dumpe2fs(&image, &["-h"]).contains("ext_attr"), "{kind:?}");
        volume.set_xattr("/f", "user.large", &[7; 300], SetXattr::Any).unwrap();
        volume.close().unwrap();
        e2fsck_clean(&image);
        assert!(dumpe2fs(&image, &["-h"]).contains("ext_attr"), "{kind:?}");
        let mount = LoopMount::new(&image, "ro");
        assert_eq!(of_kernel(&mount.path().join("f"))["user.large"], [7; 300]);
    }
}
