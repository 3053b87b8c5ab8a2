//! Volumes whose metadata is wrong about where fixed metadata lies, or whether an inode is free: no
//! write reaches it.

use super::*;
use crate::error::Zone;
use crate::error::{Corrupt, Error};
use crate::fs::namei::{NewAttr, NewKind};
use crate::store::alloc;
use std::ops::Range;

/// Descriptors that debugfs changes stay valid.
const NO_CHECKSUMS: [&str; 6] = ["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^uninit_bg"];

fn number(text: &str) -> u64 {
    text.split_whitespace().find_map(|n| n.parse().ok()).unwrap_or_else(|| panic!("{text}"))
}

/// Fills `ino` to the last block. Returns how many bytes it has then.
fn fill(fs: &Arc<Fs>, ino: u32) -> u64 {
    let node = fs.inode(ino).unwrap();
    let mut at = 0;
    loop {
        match write(&node, at, &[5; 64 << 10]) {
            Ok(()) => at += 64 << 10,
            Err(Error::NoSpace) => break,
            Err(e) => panic!("{e}"),
        }
    }
    let mut room = vec![0; at as usize];
    assert_eq!(read(&node, 0, &mut room).unwrap() as u64, at);
    at
}

/// Returns how many of `blocks` hold only bytes that [`fill`] writes.
fn overwritten(fs: &Fs, blocks: Range<u64>) -> usize {
    let mut block = vec![0; fs.block_size as usize];
    let mut hit = |b| fs.device.read_at(&mut block, fs.byte_of(b)).is_ok() && block.iter().all(|b| *b == 5);
    blocks.filter(|b| hit(*b)).count()
}

fn refused(image: &Image, write: bool) -> Error {
    let device = Arc::new(FileDevice::open(PathBuf::from(image.path())).unwrap());
    Fs::open(device, OpenOptions::new().write(write)).unwrap_err()
}

/// s_state says afterwards that there were errors.
fn close_with_errors(image: &Image, fs: Arc<Fs>) {
    fs.close().unwrap();
    drop(fs);
    let text = run("dumpe2fs", &["-h", &image.path()]).1;
    assert!(text.contains("with errors"), "{text}");
}

#[test]
fn a_bitmap_that_has_the_log_as_free() {
    let image = Image::new("64M", &["-t", "ext4", "-b", "1024", "-J", "size=4"]);
    let ino = image.file("f");
    let first = number(&image.debugfs("bmap <8> 0"));
    image.debugfs(&format!("freeb {first} 4096"));
    let fs = image.open();
    assert!(fill(&fs, ino) > 30 << 20, "the other groups serve");
    assert_eq!(overwritten(&fs, first..first + 4096), 0);
    close_with_errors(&image, fs);
}

/// With flex_bg, the tables of group 3 lie in group 0: another group's metadata, as far as its
/// bitmap goes.
#[test]
fn a_bitmap_that_has_another_groups_tables_as_free() {
    for part in ["block_bitmap", "inode_bitmap", "inode_table"] {
        let image = Image::new("64M", &["-t", "ext4", "-b", "1024", "-J", "size=4"]);
        let ino = image.file("f");
        let fs = image.open();
        let desc = alloc::read_desc(&fs, 3).unwrap();
        image.close(fs);
        let first = match part {
            "block_bitmap" => desc.block_bitmap,
            "inode_bitmap" => desc.inode_bitmap,
            _ => desc.inode_table + 2,
        };
        image.debugfs(&format!("freeb {first} 1"));
        let fs = image.open();
        let mut before = vec![0; 1024];
        fs.device.read_at(&mut before, fs.byte_of(first)).unwrap();
        fill(&fs, ino);
        let runs = alloc::free_runs(&fs, 0, |_| {});
        assert!(runs.is_err(), "{part}: the group of {first} is lost, not {runs:?}");
        assert_eq!(overwritten(&fs, first..first + 1), 0, "{part}");
        close_with_errors(&image, fs);
    }
}

/// An extent that leads into the inode table of a group far away, which its descriptor has moved
/// there.
#[test]
fn an_inode_table_in_the_middle_of_a_file() {
    let image = Image::new(
        "64M",
        &["-t", "ext4", "-b", "1024", "-O", "^flex_bg,^resize_inode,^metadata_csum,^uninit_bg"],
    );
    let ino = image.file("f");
    let fs = image.open();
    let node = fs.inode(ino).unwrap();
    write(&node, 0, &vec![6; 1 << 20]).unwrap();
    drop(node);
    image.close(fs);
    let block = number(&image.debugfs("bmap f 0"));
    image.debugfs(&format!("set_bg 5 inode_table {block}"));
    let fs = image.open();
    let node = fs.inode(ino).unwrap();
    let e = write(&node, 0, &[8; 1024]).unwrap_err();
    let zone = Zone::InodeTable(5);
    assert!(
        matches!(&e, Error::Corrupt(Corrupt::SystemZone { block: b, zone: z }) if (*b, *z) == (block, zone)),
        "{e}"
    );
}

#[test]
fn descriptors_that_overlap_are_refused() {
    let image = Image::new("64M", &NO_CHECKSUMS);
    let fs = image.open();
    let desc = |group| alloc::read_desc(&fs, group).unwrap();
    let (table, bitmap, journal) =
        (desc(2).inode_table, desc(4).block_bitmap, number(&image.debugfs("bmap <8> 3")));
    image.close(fs);
    for (field, block, whose) in [
        ("inode_table", table + 1, "the inode table of group 2"),
        ("inode_bitmap", bitmap, "the block bitmap of group 4"),
        ("block_bitmap", journal, "the journal"),
        ("block_bitmap", 2, "the superblock or the descriptors in group 0"),
    ] {
        let copy = Image::new("64M", &NO_CHECKSUMS);
        std::fs::copy(image.path(), copy.path()).unwrap();
        copy.debugfs(&format!("set_bg 5 {field} {block}"));
        let e = refused(&copy, true);
        assert!(matches!(e, Error::Corrupt(Corrupt::ZonesOverlap { .. })), "{e}");
        let e = e.to_string();
        assert!(e.contains(whose) && e.contains("of group 5"), "{e}");
        // Valid structures can still be read.
        let device = Arc::new(FileDevice::open(PathBuf::from(copy.path())).unwrap());
        Fs::open(device, OpenOptions::new()).unwrap();
    }
}

#[test]
fn a_damaged_descriptor_is_refused_for_writing_only() {
    let image = Image::new("64M", &["-t", "ext4", "-b", "1024"]);
    image.debugfs("set_bg 5 checksum 1234");
    let e = refused(&image, true);
    assert!(e.to_string().contains("group 5") || e.to_string().contains("descriptor 5"), "{e}");
    let device = Arc::new(FileDevice::open(PathBuf::from(image.path())).unwrap());
    let fs = Fs::open(device, OpenOptions::new()).unwrap();
    fs.inode(crate::store::ROOT_INO).unwrap();
}

/// A descriptor that counts more inodes as never used than as free, or all inodes of the root's
/// group as never used.
#[test]
fn a_descriptor_that_has_live_inodes_as_never_used() {
    const ATTR: NewAttr = NewAttr { permissions: 0o755, uid: 0, gid: 0 };
    for (field, value) in [("itable_unused", 2048), ("flags", 5)] {
        let image = Image::new("64M", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg"]);
        image.file("f");
        let group = |command: &str| {
            let commands = image.dir.path().join("commands");
            std::fs::write(&commands, format!("{command}\nset_bg 0 checksum calc\n")).unwrap();
            run("debugfs", &["-w", "-f", commands.to_str().unwrap(), &image.path()]);
        };
        group(&format!("set_bg 0 {field} {value}"));
        let fs = image.open();
        let before: Vec<_> = (11..=12).map(|ino| fs.read_inode(ino).unwrap()).collect();
        {
            let root = fs.inode(crate::store::ROOT_INO).unwrap();
            let file = root.create(b"beside", NewKind::File, ATTR).unwrap();
            assert!(fs.layout().inode_slot(file.ino).unwrap().group > 0, "{field}: inode {}", file.ino);
        }
        assert!((11..=12).map(|ino| fs.read_inode(ino).unwrap()).eq(before), "{field}");
        close_with_errors(&image, fs);
    }
}

/// An inode bitmap that has reserved inodes, lost+found and a file as free.
#[test]
fn an_inode_bitmap_that_has_live_inodes_as_free() {
    const ATTR: NewAttr = NewAttr { permissions: 0o755, uid: 0, gid: 0 };
    for options in [&["-t", "ext4", "-b", "1024", "-O", "orphan_file"][..], &["-t", "ext3", "-b", "1024"]] {
        let image = Image::new("64M", options);
        let file = image.file("f");
        for ino in 3..=file {
            image.debugfs(&format!("freei <{ino}>"));
        }
        let fs = image.open();
        let before: Vec<_> = (1..=file)
            .map(|ino| fs.read_inode(ino).ok().map(|i| (i.mode, i.links_count, i.i_block)))
            .collect();
        {
            let root = fs.inode(crate::store::ROOT_INO).unwrap();
            let file = root.create(b"beside", NewKind::File, ATTR).unwrap();
            assert!(fs.layout().inode_slot(file.ino).unwrap().group > 0, "inode {}", file.ino);
            for n in 0..20 {
                let dir = root.create(format!("d{n}").as_bytes(), NewKind::Dir, ATTR).unwrap();
                let file = dir.create(b"f", NewKind::File, ATTR).unwrap();
                assert!(fs.layout().inode_slot(dir.ino).unwrap().group > 0, "inode {}", dir.ino);
                assert!(fs.layout().inode_slot(file.ino).unwrap().group > 0, "inode {}", file.ino);
            }
        }
        fs.journal.sync().unwrap();
        for (ino, before) in (1..=file).zip(before) {
            let now = fs.read_inode(ino).ok().map(|i| (i.mode, i.links_count, i.i_block));
            assert!(ino == 2 || now == before, "inode {ino}");
        }
        close_with_errors(&image, fs);
    }
}
