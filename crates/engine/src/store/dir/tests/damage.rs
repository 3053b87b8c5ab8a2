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
