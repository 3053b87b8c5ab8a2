//! Directories with changed bytes: each operation returns a result or an error, never panics, and
//! always ends.

use super::*;
use proptest::prelude::*;

struct Sample {
    bytes: Vec<u8>,
    dir: u32,
    child: u32,
    /// Bytes of the volume where blocks of the directory start.
    blocks: Vec<usize>,
    names: Vec<Vec<u8>>,
}

/// Returns a volume without checksums that would catch each change first.
fn sample(names: u32, args: &[&str]) -> Sample {
    let volume = Volume::new(4 << 20, &[&["-b", "1024", "-O", "^metadata_csum,^has_journal"], args].concat());
    let mut filled = volume.make();
    let names: Vec<_> = (0..names).map(|n| format!("{n} of some length {n}").into_bytes()).collect();
    for name in &names {
        filled.insert(&volume.fs, name).unwrap();
    }
    let (dir, child, state) = (filled.dir.ino, filled.files[0].ino, filled.dir.state().clone());
    let count = (state.size / 1024) as u32;
    let blocks = (0..count).map(|lblk| match map::lookup(&volume.fs, &state, lblk).unwrap() {
        map::Mapping::Mapped { block, .. } => block as usize * 1024,
        map::Mapping::Hole { .. } => panic!("a hole"),
    });
    let blocks = blocks.collect();
    filled.settle(&volume.fs);
    let Volume { fs, device, .. } = volume;
    fs.close().unwrap();
    Sample { bytes: device.to_bytes(), dir, child, blocks, names }
}

impl Sample {
    /// Runs every operation on the directory of a volume that has `changes`.
    fn use_it(&self, changes: &[(usize, usize, u8)]) {
        let mut bytes = self.bytes.clone();
        for &(block, at, byte) in changes {
            // Every other block is the root or the first leaf, most changes are near the start.
            let block = if block % 2 == 0 { block / 2 % 2 } else { block };
            let at = if at % 4 == 0 { at } else { at % 64 };
            bytes[self.blocks[block % self.blocks.len()] + at % 1024] = byte;
        }
        let device = Arc::new(MemDevice::from_bytes(bytes));
        let fs = open(&device);
        let Ok(dir) = fs.inode(self.dir) else { return };
        let mut listed = 0;
        let _ = read_dir(&fs, &dir.state(), 0, &mut |entry| {
            assert!((1..=255).contains(&entry.name.len()) && entry.ino != 0);
            listed += 1;
            ControlFlow::Continue(())
        });
        assert!(listed <= self.blocks.len() * 1024 / 12 + 2, "{listed}");
        let _ = is_empty(&fs, &dir.state());
        for (i, name) in self.names.iter().enumerate() {
            let ended = fs.transact(64, |txn| {
                let _ = dir.update(txn, |txn, inode| {
                    let _ = lookup(&fs, inode, name);
                    if i % 3 == 0 {
                        let _ = remove(txn, inode, name);
                    }
                    let new = format!("a new name, {i}, of some length").into_bytes();
                    if let Ok(Lookup::Vacant(slot)) = find(&fs, inode, &new) {
                        let entry = NewEntry { name: &new, child: self.child, file_type: FileType::Regular };
                        let _ = insert(txn, inode, slot, &entry);
                    }
                    let _ = replace(txn, inode, b"..", 2, FileType::Directory);
                    Ok(())
                });
                Ok(())
            });
            if ended.is_err() {
                return;
            }
        }
    }
}

#[test]
fn changed_bytes_of_an_index() {
    let sample = sample(120, &[]);
    assert!(sample.blocks.len() > 4);
    proptest!(ProptestConfig::with_cases(150), |(
        changes in prop::collection::vec((any::<usize>(), any::<usize>(), any::<u8>()), 1..5)
    )| sample.use_it(&changes));
}

#[test]
fn changed_bytes_of_a_linear_directory() {
    let sample = sample(60, &["-O", "^dir_index"]);
    proptest!(ProptestConfig::with_cases(150), |(
        changes in prop::collection::vec((any::<usize>(), any::<usize>(), any::<u8>()), 1..5)
    )| sample.use_it(&changes));
}

/// An index that leads to one leaf over and over, or to itself.
#[test]
fn circles_end() {
    let sample = sample(120, &[]);
    let root = sample.blocks[0];
    let levels = (0, 30, 1);
    for target in 0..3 {
        let count = u16::from_le_bytes([sample.bytes[root + 34], sample.bytes[root + 35]]);
        let mut changes: Vec<_> = (0..usize::from(count)).map(|i| (0, 36 + 8 * i, target)).collect();
        sample.use_raw(&changes);
        changes.push(levels);
        sample.use_raw(&changes);
    }
}

fn lists(fs: &Fs, inode: &Inode) -> Result<()> {
    read_dir(fs, inode, 0, &mut |_| ControlFlow::Continue(()))
}

impl Sample {
    fn hash(&self, name: &[u8]) -> u32 {
        let fs = open(&Arc::new(MemDevice::from_bytes(self.bytes.clone())));
        fs.dirs().hasher.hash(name).major
    }

    /// Returns the volume with an index of `leaves`, over all of which the hash of the name "a"
    /// goes on. Each of them has that name alone, many times, for `child`.
    fn of_one_hash(&self, child: u32, leaves: &[usize]) -> Arc<MemDevice> {
        let (mut bytes, hash) = (self.bytes.clone(), self.hash(b"a"));
        let root = &mut bytes[self.blocks[0]..][..1024];
        root[34..36].copy_from_slice(&(leaves.len() as u16).to_le_bytes());
        for (i, (entry, leaf)) in root[32..].chunks_exact_mut(8).zip(leaves).enumerate() {
            entry[4..].copy_from_slice(&(*leaf as u32).to_le_bytes());
            if i > 0 {
                entry[..4].copy_from_slice(&(hash | 1).to_le_bytes());
            }
        }
        for leaf in leaves {
            for (i, entry) in bytes[self.blocks[*leaf]..][..1020].chunks_exact_mut(12).enumerate() {
                let rec_len = if i == 84 { 16_u16 } else { 12 };
                let [low, high] = rec_len.to_le_bytes();
                entry[..4].copy_from_slice(&child.to_le_bytes());
                entry[4..].copy_from_slice(&[low, high, 1, 1, b'a', 0, 0, 0]);
            }
        }
        Arc::new(MemDevice::from_bytes(bytes))
    }
}

/// Of a name with the hash, or of none.
#[test]
fn an_index_that_repeats_a_leaf_is_refused() {
    let sample = sample(120, &[]);
    for child in [sample.child, 0] {
        let fs = open(&sample.of_one_hash(child, &[1; 124]));
        let dir = fs.inode(sample.dir).unwrap();
        let listed = lists(&fs, &dir.state());
        let is_repeat = |e: &Error| matches!(e, Error::Dir(DirError::Repeat { lblk: 1, .. }));
        assert!(listed.as_ref().is_err_and(is_repeat), "{listed:?}");
        let empty = is_empty(&fs, &dir.state());
        let found = find(&fs, &dir.state(), b"a");
        if child == 0 {
            assert!(empty.as_ref().is_err_and(is_repeat), "{empty:?}");
            assert!(found.as_ref().is_err_and(is_repeat), "{found:?}");
        } else {
            assert!(!empty.unwrap() && found.unwrap().found().unwrap().ino == child);
        }
    }
}

/// A listing keeps the names of one hash, from leaves that differ, until it has all of them.
#[test]
fn names_of_one_hash_are_bounded() {
    let sample = sample(400, &[]);
    let leaves: Vec<usize> = (1..sample.blocks.len()).collect();
    assert!((10..124).contains(&leaves.len()), "{leaves:?}");
    let fs = open(&sample.of_one_hash(sample.child, &leaves[..5]));
    let mut cookies = Vec::new();
    read_dir(&fs, &fs.inode(sample.dir).unwrap().state(), 0, &mut |entry| {
        cookies.push(entry.cookie);
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(cookies.len() == 2 + 5 * 85 && cookies.is_sorted_by(|a, b| a < b));
    let fs = open(&sample.of_one_hash(sample.child, &leaves));
    let listed = lists(&fs, &fs.inode(sample.dir).unwrap().state());
    assert!(matches!(listed, Err(Error::Dir(DirError::EqualHashes { most: 500, .. }))), "{listed:?}");
}

#[test]
fn a_map_that_repeats_a_leaf_is_refused() {
    let volume = Volume::new(8 << 20, &["-b", "1024", "-O", "^dir_index"]);
    let filled = volume.make();
    let (fs, good) = (&volume.fs, filled.dir.state().clone());
    let map::Mapping::Mapped { block, .. } = map::lookup(fs, &good, 0).unwrap() else { panic!("a hole") };
    // Four extents of one block each.
    let mut i_block = good.i_block;
    i_block[2] = 4;
    for (lblk, extent) in (0_u32..).zip(i_block[12..].chunks_exact_mut(12)) {
        let (lblk, start) = (lblk.to_le_bytes(), (block as u32).to_le_bytes());
        extent.copy_from_slice(&[&lblk[..], &[1, 0, 0, 0], &start].concat());
    }
    let bad = Inode { size: 4096, i_block, ..good };
    for error in [
        lists(fs, &bad).unwrap_err(),
        find(fs, &bad, b"a name").unwrap_err(),
        is_empty(fs, &bad).unwrap_err(),
    ] {
        assert!(matches!(error, Error::Dir(DirError::Repeat { lblk: 1, .. })), "{error}");
    }
}

impl Sample {
    fn use_raw(&self, changes: &[(usize, usize, u8)]) {
        let mut bytes = self.bytes.clone();
        for &(block, at, byte) in changes {
            bytes[self.blocks[block] + at] = byte;
        }
        Sample { bytes, blocks: self.blocks.clone(), names: self.names.clone(), ..*self }.use_it(&[]);
    }
}

#[test]
fn checksums_are_verified() {
    let volume = Volume::new(8 << 20, &["-b", "1024"]);
    let mut filled = volume.make();
    for n in 0..200 {
        filled.insert(&volume.fs, format!("name {n}").as_bytes()).unwrap();
    }
    let state = filled.dir.state().clone();
    let (ino, fs) = (filled.dir.ino, &volume.fs);
    let at = |lblk| match map::lookup(fs, &state, lblk).unwrap() {
        map::Mapping::Mapped { block, .. } => block as usize * 1024,
        map::Mapping::Hole { .. } => panic!("a hole"),
    };
    let places = [at(0) + 39, at(1) + 12];
    filled.settle(fs);
    let Volume { fs, device, .. } = volume;
    fs.close().unwrap();
    for place in places {
        let mut bytes = device.to_bytes();
        bytes[place] ^= 0x40;
        let fs = open(&Arc::new(MemDevice::from_bytes(bytes)));
        let dir = fs.inode(ino).unwrap();
        let listed = read_dir(&fs, &dir.state(), 0, &mut |_| ControlFlow::Continue(()));
        let said = listed.unwrap_err();
        assert!(said.to_string().contains("checksum"), "{said}");
        assert_eq!(said.errno(), 117);
    }
}

/// A directory of one block becomes indexed when that is full, and its dots go into the index.
#[test]
fn a_directory_without_dots_stops_no_other() {
    for (name, at) in [(".", 8), ("..", 12 + 8)] {
        let volume = Volume::new(8 << 20, &["-b", "1024"]);
        let (fs, mut filled) = (&volume.fs, volume.make());
        let rename = |txn: &mut Txn<'_>| {
            let inode = filled.dir.state();
            let dir = Dir::new(fs, &inode)?;
            dir.change(txn, &dir.leaf(0)?, Role::Leaf, |bytes| {
                bytes[at] = b'x';
                Ok(())
            })
        };
        fs.transact(1, rename).unwrap();
        let full = (0..100).find_map(|n| filled.insert(fs, format!("{n:0>200}").as_bytes()).err());
        let missing = match &full {
            Some(Error::Dir(DirError::Dots { name, .. })) => *name,
            _ => "none",
        };
        assert_eq!(missing, name, "{full:?}");
        assert!(!fs.journal.has_ended() && !filled.indexed(), "{name}");
        fs.sync().unwrap();
    }
}

/// Another thread has broken a root that was verified, as through a directory with the same block.
#[test]
fn a_broken_root_is_locked_once() {
    let sample = sample(120, &[]);
    let fs = open(&Arc::new(MemDevice::from_bytes(sample.bytes)));
    let inode = fs.inode(sample.dir).unwrap().state().clone();
    let (root, _) = Dir::new(&fs, &inode).unwrap().root().unwrap();
    fs.transact(1, |txn| {
        // The version of the hash.
        txn.write(&root)?[28] = 0xEE;
        Ok(())
    })
    .unwrap();
    let (done, ended) = std::sync::mpsc::channel();
    for writes in [false, true] {
        let (fs, inode, root, done) = (Arc::clone(&fs), inode.clone(), root.clone(), done.clone());
        std::thread::spawn(move || {
            for _ in 0..20_000 {
                match writes {
                    true => fs.transact(1, |txn| txn.write(&root).map(drop)).unwrap(),
                    false => assert!(Dir::new(&fs, &inode).unwrap().root().is_err()),
                }
            }
            done.send(()).unwrap();
        });
    }
    for _ in 0..2 {
        ended.recv_timeout(std::time::Duration::from_secs(60)).expect("the threads wait for each other");
    }
}
