//! Directories of volumes that mke2fs made, changed through transactions, judged by e2fsck.
//!
//! Names lead to a few files whose i_links_count is set at the end, so that e2fsck can count.

use super::*;
use crate::OpenOptions;
use crate::fs::Fs;
use crate::fs::inode::InodeRef;
use crate::fs::namei::{NewAttr, NewKind};
use lanefs_device::{BlockDevice, MemDevice};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

mod collisions;
mod cookies;
mod damage;
mod grow;

const ATTR: NewAttr = NewAttr { permissions: 0o755, uid: 0, gid: 0 };

struct Volume {
    fs: Arc<Fs>,
    device: Arc<MemDevice>,
    temp: tempfile::TempDir,
}

/// A directory and the files that its names lead to.
struct Filled {
    dir: InodeRef,
    files: Vec<InodeRef>,
    /// Names of each file.
    links: Vec<u16>,
    names: BTreeMap<Vec<u8>, usize>,
}

fn run(program: &str, args: &[&str], path: &PathBuf) -> String {
    let out = Command::new(program).args(args).arg(path).env("LC_ALL", "C").output().expect(program);
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{program} {args:?}: {}\n{text}", out.status);
    text
}

fn open(device: &Arc<MemDevice>) -> Arc<Fs> {
    let device: Arc<dyn BlockDevice> = Arc::<MemDevice>::clone(device);
    Fs::open(device, OpenOptions::new().write(true)).unwrap()
}

impl Volume {
    fn new(size: u64, args: &[&str]) -> Self {
        Self::tuned(size, args, &[])
    }

    /// `tune`: arguments of a tune2fs run afterwards.
    fn tuned(size: u64, args: &[&str], tune: &[&str]) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("volume");
        std::fs::File::create(&path).unwrap().set_len(size).unwrap();
        run("mke2fs", &[&["-q", "-F", "-t", "ext4"], args].concat(), &path);
        if !tune.is_empty() {
            run("tune2fs", tune, &path);
        }
        let device = Arc::new(MemDevice::from_bytes(std::fs::read(&path).unwrap()));
        Self { fs: open(&device), device, temp }
    }

    fn reopen(self) -> Self {
        let Self { fs, device, temp } = self;
        fs.close().unwrap();
        drop(fs);
        Self { fs: open(&device), device, temp }
    }

    fn make(&self) -> Filled {
        let root = self.fs.root().unwrap();
        let dir = root.create(b"dir", NewKind::Dir, ATTR).unwrap();
        let file = |name: &str| root.create(name.as_bytes(), NewKind::File, ATTR).unwrap();
        let files: Vec<_> = ["file1", "file2", "file3", "file4"].map(file).into();
        Filled { dir, links: vec![1; files.len()], files, names: BTreeMap::new() }
    }

    /// Closes the volume and has e2fsck check it.
    fn judge(self) {
        self.fs.close().unwrap();
        let path = self.temp.path().join("judged");
        std::fs::write(&path, self.device.to_bytes()).unwrap();
        run("e2fsck", &["-fn"], &path);
    }
}

fn found(txn: &Txn<'_>, inode: &Inode, name: &[u8]) -> Result<FoundEntry> {
    find(txn.store(), inode, name)?.found()
}

/// Looks up `name` and removes it. Returns its entry.
fn remove(txn: &mut Txn<'_>, inode: &Inode, name: &[u8]) -> Result<FoundEntry> {
    let found = found(txn, inode, name)?;
    super::remove(txn, inode, &found, name)?;
    Ok(found)
}

/// Looks up `name` and makes it lead to another inode.
fn replace(txn: &mut Txn<'_>, inode: &Inode, name: &[u8], child: u32, kind: FileType) -> Result<()> {
    let found = found(txn, inode, name)?;
    super::replace(txn, inode, &found, name, child, kind)
}

impl Filled {
    fn insert(&mut self, fs: &Fs, name: &[u8]) -> Result<()> {
        let file = self.names.len() % self.files.len();
        let (dir, child) = (&self.dir, self.files[file].ino);
        let slot = find(fs, &dir.state(), name)?.vacant()?;
        // One more for the inode, and one that must be left over.
        let credits = slot.credits(fs, &dir.state()) + 2;
        fs.transact(credits, |txn| {
            let entry = NewEntry { name, child, file_type: FileType::Regular };
            let out = dir.update(txn, |txn, inode| insert(txn, inode, slot, &entry));
            assert!(txn.credits() >= 1, "{} credits were not enough", credits - 1);
            out
        })?;
        self.links[file] += 1;
        self.names.insert(name.to_vec(), file);
        Ok(())
    }

    fn remove(&mut self, fs: &Fs, name: &[u8]) -> Result<()> {
        let found = fs.transact(CREDITS_REMOVE + 1, |txn| {
            self.dir.update(txn, |txn, inode| remove(txn, inode, name))
        })?;
        let file = self.names.remove(name).expect("a name that was not there has been removed");
        assert_eq!(found.ino, self.files[file].ino);
        self.links[file] -= 1;
        Ok(())
    }

    fn lookup(&self, fs: &Fs, name: &[u8]) -> Option<u32> {
        lookup(fs, &self.dir.state(), name).unwrap().map(|found| found.ino)
    }

    fn type_of(&self, fs: &Fs, name: &[u8]) -> Option<FileType> {
        let mut recorded = None;
        read_dir(fs, &self.dir.state(), 0, &mut |entry| {
            if entry.name == name {
                recorded = entry.file_type;
            }
            ControlFlow::Continue(())
        })
        .unwrap();
        recorded
    }

    fn list(&self, fs: &Fs) -> Vec<(Vec<u8>, u32)> {
        let mut all = Vec::new();
        read_dir(fs, &self.dir.state(), 0, &mut |entry| {
            all.push((entry.name.to_vec(), entry.ino));
            ControlFlow::Continue(())
        })
        .unwrap();
        all
    }

    /// Checks that the names that were added are there, by lookup and by listing.
    fn check(&self, fs: &Fs) {
        let mut listed = self.list(fs);
        let all = listed.len();
        listed.sort();
        listed.dedup();
        assert_eq!(listed.len(), all, "a name was listed twice");
        assert_eq!(&listed[0], &(b".".to_vec(), self.dir.ino));
        assert_eq!(&listed[1], &(b"..".to_vec(), 2));
        let expected: Vec<_> =
            self.names.iter().map(|(name, &file)| (name.clone(), self.files[file].ino)).collect();
        assert!(listed[2..] == expected, "{} names listed, {} expected", all - 2, expected.len());
        for (name, ino) in expected {
            assert_eq!(self.lookup(fs, &name), Some(ino));
        }
    }

    /// Writes the link counts, and lets go of the nodes.
    fn settle(self, fs: &Fs) {
        for (file, links) in self.files.iter().zip(self.links) {
            fs.transact(1, |txn| {
                file.update(txn, |_, inode| {
                    inode.links_count = links;
                    Ok(())
                })
            })
            .unwrap();
        }
    }

    fn indexed(&self) -> bool {
        self.dir.state().flags.contains(lanefs_format::InodeFlags::INDEX)
    }

    fn levels(&self, fs: &Fs) -> u8 {
        Dir::new(fs, &self.dir.state()).unwrap().root().unwrap().1.indirect_levels
    }
}

#[test]
fn random_names_come_and_go() {
    for (args, seed) in [
        (&["-b", "1024"][..], 1),
        (&["-b", "4096"], 2),
        (&["-b", "1024", "-O", "^metadata_csum,^dir_index"], 3),
        (&["-b", "2048", "-O", "^metadata_csum,^extents,^64bit"], 4),
        (&["-b", "1024", "-O", "^filetype"], 5),
    ] {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut volume = Volume::new(32 << 20, args);
        let mut filled = volume.make();
        let rounds = if args.len() > 2 { 4000 } else { 12_000 };
        for round in 0..rounds {
            let name: Vec<u8> = if rng.random_bool(0.02) {
                vec![b'a' + rng.random_range(0..26); rng.random_range(200..=255)]
            } else {
                format!("{:x}", rng.random_range(0..6000_u32)).repeat(rng.random_range(1..6)).into_bytes()
            };
            let there = filled.names.contains_key(&name);
            // Three phases: growing, even, shrinking.
            let grow = rng.random_bool([0.9, 0.5, 0.15][round * 3 / rounds]);
            match (grow, there) {
                (true, false) => filled.insert(&volume.fs, &name).unwrap(),
                (true, true) => assert!(matches!(filled.insert(&volume.fs, &name), Err(Error::Exists))),
                (false, true) => filled.remove(&volume.fs, &name).unwrap(),
                (false, false) => assert!(matches!(filled.remove(&volume.fs, &name), Err(Error::NotFound))),
            }
            if !grow && !filled.names.is_empty() && rng.random_bool(0.8) {
                let nth = rng.random_range(0..filled.names.len());
                let name = filled.names.keys().nth(nth).unwrap().clone();
                filled.remove(&volume.fs, &name).unwrap();
            }
            if round % (rounds / 4) == 0 {
                filled.check(&volume.fs);
            }
        }
        filled.check(&volume.fs);
        assert_eq!(filled.indexed(), !args.iter().any(|a| a.contains("^dir_index")));
        let Filled { dir, files, links, names } = filled;
        let (dir_ino, numbers): (u32, Vec<u32>) = (dir.ino, files.iter().map(|f| f.ino).collect());
        drop((dir, files));
        volume = volume.reopen();
        let node = |ino| volume.fs.inode(ino).unwrap();
        let filled =
            Filled { dir: node(dir_ino), files: numbers.into_iter().map(node).collect(), links, names };
        filled.check(&volume.fs);
        filled.settle(&volume.fs);
        volume.judge();
    }
}

#[test]
fn replace_reaches_names_and_dots() {
    let volume = Volume::new(8 << 20, &["-b", "1024"]);
    let mut filled = volume.make();
    for n in 0..3 {
        let name = format!("name{n}");
        filled.insert(&volume.fs, name.as_bytes()).unwrap();
    }
    for round in 0..2 {
        let replace = |name: &[u8], ino, kind| {
            let dir = &filled.dir;
            let replaced = volume.fs.transact(CREDITS_REMOVE + 1, |txn| {
                dir.update(txn, |txn, inode| replace(txn, inode, name, ino, kind))
            });
            replaced.unwrap();
        };
        replace(b"name1", filled.dir.ino, FileType::Directory);
        replace(b"..", 11, FileType::Directory);
        assert_eq!(filled.lookup(&volume.fs, b"name1"), Some(filled.dir.ino));
        assert_eq!(filled.type_of(&volume.fs, b"name1"), Some(FileType::Directory));
        assert_eq!(filled.lookup(&volume.fs, b".."), Some(11));
        assert_eq!(filled.lookup(&volume.fs, b"."), Some(filled.dir.ino));
        replace(b"..", 2, FileType::Directory);
        replace(b"name1", filled.files[1].ino, FileType::Regular);
        assert_eq!(filled.type_of(&volume.fs, b"name1"), Some(FileType::Regular));
        filled.check(&volume.fs);
        assert_eq!(filled.indexed(), round == 1);
        for n in 100..200 * (1 - round) {
            filled.insert(&volume.fs, format!("more{n}").as_bytes()).unwrap();
        }
    }
    filled.settle(&volume.fs);
    volume.judge();
}

#[test]
fn empty_is_told_from_full() {
    for args in [&["-b", "1024"][..], &["-b", "1024", "-O", "^dir_index"]] {
        let volume = Volume::new(8 << 20, args);
        let mut filled = volume.make();
        let empty = |filled: &Filled| is_empty(&volume.fs, &filled.dir.state()).unwrap();
        assert!(empty(&filled));
        let names: Vec<_> = (0..300).map(|n| format!("a name of some length {n}").into_bytes()).collect();
        for name in &names {
            filled.insert(&volume.fs, name).unwrap();
            assert!(!empty(&filled));
        }
        for name in &names {
            assert!(!empty(&filled));
            filled.remove(&volume.fs, name).unwrap();
        }
        assert!(empty(&filled));
        filled.check(&volume.fs);
        filled.settle(&volume.fs);
        volume.judge();
    }
}

#[test]
fn places_that_changed_are_noticed() {
    let volume = Volume::new(8 << 20, &["-b", "1024"]);
    let mut filled = volume.make();
    for name in ["one", "two", "three"] {
        filled.insert(&volume.fs, name.as_bytes()).unwrap();
    }
    let fs = &volume.fs;
    let found = find(fs, &filled.dir.state(), b"two").unwrap().found().unwrap();
    filled.remove(fs, b"two").unwrap();
    let dir = &filled.dir;
    let gone = fs.transact(2, |txn| dir.update(txn, |txn, inode| super::remove(txn, inode, &found, b"two")));
    assert!(matches!(gone, Err(Error::Dir(DirError::Moved { .. }))), "{gone:?}");
    let dots = find(fs, &dir.state(), b"nothing").unwrap().found();
    assert!(matches!(dots, Err(Error::NotFound)));
    filled.check(fs);
}

#[test]
fn names_are_checked() {
    let volume = Volume::new(8 << 20, &["-b", "1024"]);
    let mut filled = volume.make();
    let long = [b'x'; 256];
    for name in [&b""[..], b"a/b", b"a\0b"] {
        assert!(matches!(filled.insert(&volume.fs, name), Err(Error::Invalid(_))));
    }
    assert!(matches!(filled.insert(&volume.fs, &long), Err(Error::NameTooLong { len: 256 })));
    filled.insert(&volume.fs, &long[1..]).unwrap();
    filled.insert(&volume.fs, b"\xff\x01\n").unwrap();
    filled.check(&volume.fs);
    filled.settle(&volume.fs);
    volume.judge();
}
#[test]
fn many_threads_look_at_once() {
    let volume = Volume::new(16 << 20, &["-b", "1024"]);
    let mut filled = volume.make();
    for n in 0..5000 {
        filled.insert(&volume.fs, format!("name {n}").as_bytes()).unwrap();
    }
    let filled = &filled;
    let fs = &volume.fs;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let _shared = filled.dir.share();
                for n in (thread..5000).step_by(3) {
                    let name = format!("name {n}").into_bytes();
                    let expected = filled.files[filled.names[&name]].ino;
                    assert_eq!(filled.lookup(fs, &name), Some(expected));
                    assert_eq!(filled.lookup(fs, format!("no name {n}").as_bytes()), None);
                }
                assert_eq!(filled.list(fs).len(), 5002);
            });
        }
    });
}

#[test]
fn directories_that_cannot_be_are_refused() {
    use lanefs_format::InodeFlags;
    let volume = Volume::new(8 << 20, &["-b", "1024"]);
    let filled = volume.make();
    let (fs, good) = (&volume.fs, filled.dir.state().clone());
    let errors = |inode: &Inode| {
        let listed = read_dir(fs, inode, 0, &mut |_| ControlFlow::Continue(())).unwrap_err();
        let found = find(fs, inode, b"a name").unwrap_err();
        assert_eq!(listed.to_string(), found.to_string());
        assert_eq!(is_empty(fs, inode).unwrap_err().to_string(), found.to_string());
        found
    };
    for flag in [InodeFlags::ENCRYPT, InodeFlags::CASEFOLD, InodeFlags::INLINE_DATA] {
        let error = errors(&Inode { flags: good.flags | flag, ..good.clone() });
        assert!(matches!(error, Error::NotSupported(_)), "{error}");
    }
    for size in [0, 1025, 1 << 40] {
        let error = errors(&Inode { size, ..good.clone() });
        assert!(matches!(error, Error::Dir(DirError::Size { size: s, .. }) if s == size), "{error}");
    }
    // More blocks than the volume has.
    let error = errors(&Inode { size: 0xffff_fc00, ..good.clone() });
    assert!(matches!(error, Error::Dir(DirError::Blocks { blocks: 0x3f_ffff, bound: 8192, .. })), "{error}");
    let error = find(fs, &Inode { size: 2048, ..good.clone() }, b"a name").unwrap_err();
    assert!(matches!(error, Error::Dir(DirError::Hole { lblk: 1, .. })), "{error}");
    // Removed while it is open: it has no names, and accepts none.
    let gone = Inode { size: 0, links_count: 0, ..good.clone() };
    assert!(find(fs, &gone, b"a name").unwrap().found().is_err());
    assert!(is_empty(fs, &gone).unwrap());
    // Not an index: a plain first block.
    let error = errors(&Inode { flags: good.flags | InodeFlags::INDEX, ..good });
    assert!(matches!(error, Error::Dir(DirError::Index { .. })), "{error}");
}

#[test]
fn a_directory_without_dotdot_stays_where_it_is() {
    use crate::fs::namei::RenameFlags;
    let volume = Volume::new(8 << 20, &["-b", "1024"]);
    let filled = volume.make();
    let (fs, dir) = (&volume.fs, &filled.dir);
    let child = dir.create(b"child", NewKind::Dir, ATTR).unwrap();
    let without = |txn: &mut Txn<'_>| child.update(txn, |txn, inode| remove(txn, inode, b"..").map(drop));
    fs.transact(4, without).unwrap();
    let root = fs.root().unwrap();
    for flags in [RenameFlags::Replace, RenameFlags::Exchange] {
        let to: &[u8] = if flags == RenameFlags::Exchange { b"file1" } else { b"moved" };
        let moved = dir.rename(b"child", &root, to, flags);
        assert!(matches!(moved, Err(Error::Dir(DirError::Dots { name: "..", .. }))), "{moved:?}");
        assert_eq!(filled.lookup(fs, b"child"), Some(child.ino));
        assert!(matches!(root.lookup(b"moved"), Err(Error::NotFound)));
    }
}
