//! Changes of attributes: refused or done as a whole.

use super::create::{NewInode, NewKind, create_credits};
use crate::store::alloc::InodeHint;
use crate::{AtSymlink, Atime, Error, FallocMode, NewAttr, OpenOptions, SetAttr, Volume};
use lanefs_device::MemDevice;
use lanefs_format::{EXT4_LINK_MAX, InodeFlags};
use lanefs_mkfs::Options;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

fn volume() -> Volume {
    let device = MemDevice::new(16 << 20);
    lanefs_mkfs::format(&device, &Options::default()).unwrap();
    OpenOptions::new().write(true).open_device(Arc::new(device)).unwrap()
}

/// A thread that asks for its number would keep what an undo takes back.
#[test]
fn a_number_has_no_inode_before_it_has_a_name() {
    let volume = volume();
    let file = volume.create_file("/f").unwrap();
    let fs = &file.inode().fs;
    let (root, kind) = (fs.root().unwrap(), NewKind::Dir);
    let attr = NewAttr { permissions: 0o755, uid: 0, gid: 0 };
    let made = fs.transact(create_credits(&kind), |txn| {
        let mut new = NewInode::take(txn, &root, InodeHint::Dir { parent: root.ino }, &kind, attr)?;
        new.fill(txn, &root, &kind)?;
        let found = fs.inode(new.inode.ino).is_ok();
        new.undo(txn)?;
        Ok(found)
    });
    assert!(!made.unwrap(), "it was found");
}

#[test]
fn nobody_owns_nothing() {
    const NOBODY: u32 = u32::MAX;
    let volume = volume();
    volume.write("/file", b"content").unwrap();
    let look = || (volume.metadata("/file").unwrap(), volume.read_dir("/").unwrap().len());
    let (before, names) = look();
    for (uid, gid) in [(NOBODY, 5), (5, NOBODY)] {
        let attr = NewAttr { permissions: 0o755, uid, gid };
        let set = SetAttr { uid: Some(uid), gid: Some(gid), permissions: Some(0o4777), ..SetAttr::default() };
        let refused = [
            volume.set_attr("/file", &set, AtSymlink::Follow),
            volume.create_dir_with("/dir", attr),
            volume.open_options().write(true).create_new(true).attr(attr).open("/new").map(drop),
        ];
        for result in refused {
            let e = result.unwrap_err();
            assert!(matches!(e.kind(), Error::Invalid(_)) && e.errno() == 22, "{e}");
        }
        let made = lanefs_mkfs::format(
            &MemDevice::new(16 << 20),
            &Options { root_owner: (uid, gid), ..Options::default() },
        );
        assert!(made.is_err());
    }
    let (after, now) = look();
    assert_eq!((after.uid(), after.gid(), now), (before.uid(), before.gid(), names));
    assert_eq!(after.permissions(), before.permissions());
}

#[test]
fn flags_and_project_are_set_by_one_handle_or_not_at_all() {
    let volume = volume();
    volume.write("/file", b"content").unwrap();
    let node = volume.root_node().unwrap().lookup("file").unwrap();
    let nodump = InodeFlags::NODUMP | InodeFlags::EXTENTS;
    let of = || (node.metadata().flags().contains(InodeFlags::NODUMP), node.metadata().inode().projid);
    let handles = || volume.stats().journal.handles;
    let before = handles();
    // The volume has no projects but 0.
    assert!(node.set_file_attr(Some(nodump), Some(7)).is_err());
    assert!(node.set_file_attr(Some(nodump | InodeFlags::JOURNAL_DATA), Some(0)).is_err());
    assert_eq!(of(), (false, 0));
    let refused = handles();
    node.set_file_attr(Some(nodump), Some(0)).unwrap();
    assert_eq!((of(), handles() - refused), ((true, 0), 1));
    node.set_file_attr(None, Some(0)).unwrap();
    assert_eq!((handles() - refused, refused - before), (1, 1));
}

#[test]
fn a_file_that_lost_its_last_name_gets_no_other() {
    let volume = volume();
    let root = volume.root_node().unwrap();
    let removed = volume.create_file("/removed").unwrap();
    volume.remove_file("/removed").unwrap();
    assert!(matches!(volume.link_file(&removed, "/again").unwrap_err().kind(), Error::NotFound));

    let attr = NewAttr { permissions: 0o644, uid: 0, gid: 0 };
    let nameless = volume.open_dir("/").unwrap().create_nameless(attr).unwrap();
    volume.link_file(&nameless, "/first").unwrap();
    volume.link_file(&nameless, "/second").unwrap();
    volume.remove_file("/first").unwrap();
    volume.remove_file("/second").unwrap();
    assert!(matches!(volume.link_file(&nameless, "/third").unwrap_err().kind(), Error::NotFound));
    assert!(root.lookup("third").is_err());
    volume.close().unwrap();
}

fn long(i: u32) -> String {
    format!("/full/{i:0>200}")
}

/// Returns a volume that is full, and how many names of "/file" its directory "/full" has: there is
/// no room for the next [`long`] one.
fn full_volume() -> (Volume, u32) {
    let device = MemDevice::new(8 << 20);
    let options = Options { block_size: Some(1024), ..Options::default() };
    lanefs_mkfs::format(&device, &options).unwrap();
    let options = OpenOptions::new().write(true).use_reserved(true);
    let volume = options.open_device(Arc::new(device)).unwrap();
    for dir in ["/full", "/other"] {
        volume.create_dir(dir).unwrap();
    }
    volume.write("/file", b"content").unwrap();
    volume.hard_link("/file", "/other/name").unwrap();
    volume.remove_file("/other/name").unwrap();
    let filler = volume.create_file("/filler").unwrap();
    let mut at = 0;
    for len in [1 << 20, 64 << 10, 1024] {
        while filler.fallocate(FallocMode::Allocate, at, len).is_ok() {
            at += len;
        }
    }
    let names = (0..).take_while(|i| volume.hard_link("/file", long(*i)).is_ok()).count() as u32;
    (volume, names)
}

/// A link that finds no room for its name leaves no trace on the file.
#[test]
fn a_link_that_fails_is_not_stamped() {
    let (volume, names) = full_volume();
    let look = || {
        let meta = volume.metadata("/file").unwrap();
        (meta.version(), meta.inode().ctime, meta.nlink())
    };
    let before = look();
    let refused = volume.hard_link("/file", long(names)).unwrap_err();
    assert!(matches!(refused.kind(), Error::NoSpace), "{refused}");
    assert_eq!(look(), before);
    volume.hard_link("/file", "/other/name").unwrap();
    let (version, ctime, nlink) = look();
    assert!(version > before.0 && ctime >= before.1 && nlink == before.2 + 1);
    volume.close().unwrap();
}

/// A link that finds no room for its name takes back its own count only, not another thread's.
#[test]
fn links_that_fail_beside_others_keep_the_count() {
    let (volume, names) = full_volume();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..3000 {
                volume.hard_link("/file", "/other/name").unwrap();
                volume.remove_file("/other/name").unwrap();
            }
            done.store(true, Relaxed);
        });
        while !done.load(Relaxed) {
            assert!(matches!(volume.hard_link("/file", long(names)).unwrap_err().kind(), Error::NoSpace));
        }
    });
    assert_eq!(u32::from(volume.metadata("/file").unwrap().nlink()), 1 + names);
    volume.close().unwrap();
}

#[test]
fn a_name_that_leads_to_an_inode_without_names_ends_a_link() {
    let volume = volume();
    let file = volume.create_file("/a").unwrap();
    volume.hard_link("/a", "/b").unwrap();
    // Two names, and a count of one.
    let node = file.inode();
    let counted = |txn: &mut crate::store::txn::Txn<'_>| {
        node.prepare()?.update(txn, |_, inode| {
            inode.links_count = 1;
            Ok(())
        })
    };
    node.fs.transact(crate::store::txn::credits::INODE, counted).unwrap();
    volume.remove_file("/a").unwrap();
    let dead = |e: Error| assert!(e.to_string().contains(&node.ino.to_string()) && e.errno() == 117, "{e}");
    dead(volume.hard_link("/b", "/c").unwrap_err());
    let root = volume.open_dir("/").unwrap();
    dead(root.hard_link("b", &root, "c").unwrap_err());
}

#[test]
fn a_file_inherits_no_flag_of_directories() {
    let volume = volume();
    volume.create_dir("/d").unwrap();
    let dir = volume.root_node().unwrap().lookup("d").unwrap();
    let flags = InodeFlags::PROJINHERIT | InodeFlags::TOPDIR | InodeFlags::DIRSYNC | InodeFlags::NODUMP;
    dir.set_file_attr(Some(flags | dir.metadata().flags()), None).unwrap();
    volume.create_file("/d/file").unwrap();
    volume.create_dir("/d/dir").unwrap();
    let file = dir.lookup("file").unwrap();
    let of = |node: &crate::Node| node.metadata().flags();
    assert!(of(&file).contains(InodeFlags::NODUMP));
    assert!(!of(&file).intersects(InodeFlags::OF_DIRECTORIES), "{:?}", of(&file));
    assert!(of(&dir.lookup("dir").unwrap()).contains(InodeFlags::PROJINHERIT));
    // chattr(1) reads the flags, and sets them with one more.
    file.set_file_attr(Some(of(&file) | InodeFlags::IMMUTABLE), None).unwrap();
}

#[test]
fn mode_and_owner_take_no_space_where_no_attribute_changes() {
    let volume = volume();
    volume.write("/file", b"content").unwrap();
    // Larger than the spare room of an inode.
    volume.set_xattr("/file", "user.label", &[7; 600], crate::SetXattr::Any).unwrap();
    let filler = volume.create_file("/filler").unwrap();
    let mut at = 0;
    while filler.fallocate(FallocMode::Allocate, at, 1024).is_ok() {
        at += 1024;
    }
    volume.sync().unwrap();
    assert_eq!(volume.statfs().blocks_free, 0);
    let set = SetAttr { uid: Some(5), permissions: Some(0o600), ..SetAttr::default() };
    volume.set_attr("/file", &set, AtSymlink::Follow).unwrap();
    assert_eq!(volume.metadata("/file").unwrap().uid(), 5);
}

/// A directory of one block has no index: its links are counted, and end, also with `dir_nlink`.
#[test]
fn only_an_indexed_directory_has_links_beyond_count() {
    let volume = volume();
    for (dir, files, indexed) in [("/small", 1, false), ("/large", 60, true)] {
        volume.create_dir(dir).unwrap();
        for i in 0..files {
            volume.create_file(format!("{dir}/{i:0>200}")).unwrap();
        }
        let file = volume.open_file(format!("{dir}/{:0>200}", 0)).unwrap();
        let fs = &file.inode().fs;
        let node = fs.inode(volume.metadata(dir).unwrap().ino()).unwrap();
        assert_eq!(node.flags().contains(InodeFlags::INDEX), indexed, "{dir}");
        let fill = |txn: &mut crate::store::txn::Txn<'_>| {
            node.prepare()?.update(txn, |_, inode| {
                inode.links_count = EXT4_LINK_MAX;
                Ok(())
            })
        };
        fs.transact(crate::store::txn::credits::INODE, fill).unwrap();
        let made = volume.create_dir(format!("{dir}/one-more"));
        let links = volume.metadata(dir).unwrap().nlink();
        let refused = made.as_ref().is_err_and(|e| matches!(e.kind(), Error::TooManyLinks));
        let expected = if indexed { (false, 1) } else { (true, EXT4_LINK_MAX) };
        assert_eq!((refused, links), expected, "{dir}: {made:?}");
    }
}

#[test]
fn a_read_moves_the_time_of_an_immutable_inode() {
    let volume = volume();
    volume.write("/f", b"content").unwrap();
    let node = volume.root_node().unwrap().lookup("f").unwrap();
    let plain = node.metadata().flags();
    for (flag, due) in [(InodeFlags::IMMUTABLE, true), (InodeFlags::NOATIME, false)] {
        node.set_file_attr(Some(plain | flag), None).unwrap();
        assert_eq!(node.is_atime_due(Atime::Relative), due, "{flag:?}");
        node.set_file_attr(Some(plain), None).unwrap();
    }
}
