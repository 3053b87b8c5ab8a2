//! Power cuts during writes and truncations of one file, on a volume full of another file's old
//! data.
//!
//! Every state that the medium can be left in must show the file with a length that it had since
//! the last sync, each byte with a value that it had since then, and never a byte of the old data.

use super::*;
use lanefs_sim::{Image as Medium, RecordingDevice, Shape};
use std::cell::Cell;
use std::sync::{OnceLock, Weak};

/// The content of the free blocks.
const OLD: u8 = 0x5A;

/// The file after the operation of this number. Its bytes are that number.
struct Snapshot {
    op: usize,
    content: Vec<u8>,
}

fn history(node: &InodeRef, device: &Committing, rng: &mut StdRng) -> Vec<Snapshot> {
    let mut now: Vec<u8> = all(node);
    let mut snapshots = vec![Snapshot { op: 0, content: now.clone() }];
    for op in 1..60 {
        let mut cut = None;
        match rng.random_range(0..10) {
            0..6 => {
                let gap = [0, 0, 0, 700, 5000, 40_000][rng.random_range(0..6usize)];
                let len = [1, 90, 1024, 4000, 20_000][rng.random_range(0..5usize)];
                let at = now.len() + gap;
                write(node, at as u64, &vec![op as u8; len]).unwrap();
                now.resize(at, 0);
                now.resize(at + len, op as u8);
            }
            6..8 => {
                let len = rng.random_range(0..=now.len());
                // The tail is zeroed before the new size is durable.
                let mut zeroed = now.clone();
                let end = len.next_multiple_of(1024).min(now.len());
                zeroed[len..end].fill(0);
                cut = Some(zeroed);
                node.content().truncate(len as u64).unwrap();
                now.truncate(len);
            }
            8 => {
                let len = now.len() + rng.random_range(0..9000);
                node.content().truncate(len as u64).unwrap();
                now.resize(len, 0);
            }
            _ => {
                device.commit();
                device.inner.mark(op.to_string());
            }
        }
        snapshots.extend(cut.map(|content| Snapshot { op, content }));
        snapshots.push(Snapshot { op, content: now.clone() });
    }
    snapshots
}

/// Commits before each write of the thread that uses the file. Data is written without a handle, so
/// a commit may come at any time. It exposes blocks that are mapped before they are written.
#[derive(Debug)]
struct Committing {
    inner: Arc<RecordingDevice>,
    fs: OnceLock<Weak<Fs>>,
}

thread_local! {
    static BUSY: Cell<bool> = const { Cell::new(false) };
}

impl Committing {
    fn commit(&self) {
        if let Some(fs) = self.fs.get().and_then(Weak::upgrade)
            && !BUSY.replace(true)
        {
            fs.journal.sync().unwrap();
            BUSY.set(false);
        }
    }
}

impl BlockDevice for Committing {
    forward_to!(inner: size read_only read_at flush discard);

    fn write_at(&self, data: &[u8], offset: u64) -> lanefs_device::Result<()> {
        self.commit();
        self.inner.write_at(data, offset)
    }
}

/// For each byte of the file, the bits of the values that it had from the operation `from` on.
fn values(snapshots: &[Snapshot], from: usize) -> Vec<u64> {
    let mut masks = Vec::new();
    for snapshot in snapshots.iter().filter(|s| s.op >= from) {
        masks.resize(masks.len().max(snapshot.content.len()), 0);
        masks.iter_mut().zip(&snapshot.content).for_each(|(mask, byte)| *mask |= 1 << byte);
    }
    masks
}

#[test]
fn a_cut_shows_a_file_that_was() {
    for (seed, kind) in [KINDS[2], KINDS[3]].into_iter().enumerate() {
        let image = Image::new("4M", &[kind, &["-J", "size=1"]].concat());
        let (old, ino) = (image.file("old"), image.file("a"));
        let fs = image.open();
        let node = fs.inode(old).unwrap();
        assert!(write(&node, 0, &vec![OLD; 8 << 20]).is_err());
        node.content().truncate(0).unwrap();
        drop(node);
        image.close(fs);

        let device = Arc::new(RecordingDevice::new(Medium::from_bytes(std::fs::read(image.path()).unwrap())));
        let committing = Arc::new(Committing { inner: Arc::clone(&device), fs: OnceLock::new() });
        let fs = image.open_on(Arc::clone(&committing) as Arc<dyn BlockDevice>);
        let start = device.mark("0");
        let node = fs.inode(ino).unwrap();
        committing.fs.set(Arc::downgrade(&fs)).unwrap();
        BUSY.set(false);
        let snapshots = history(&node, &committing, &mut StdRng::seed_from_u64(seed as u64));
        drop(node);
        BUSY.set(true);
        fs.close().unwrap();

        let log = device.log();
        let mut masks = (usize::MAX, Vec::new());
        let (mut states, mut different) = (0, std::collections::BTreeSet::new());
        for state in log.crash_states(seed as u64, 4).filter(|state| state.cut > start) {
            let synced: usize = state.marks(&log).next_back().unwrap().1.parse().unwrap();
            let found = Arc::new(state.device());
            let fs = image.open_on(Arc::clone(&found) as Arc<dyn BlockDevice>);
            let content = all(&fs.inode(ino).unwrap());
            fs.close().unwrap();
            assert!(!content.contains(&OLD), "{state}: old data");
            if masks.0 != synced {
                masks = (synced, values(&snapshots, synced));
            }
            let lengths = snapshots.iter().filter(|s| s.op >= synced).map(|s| s.content.len());
            assert!(
                lengths.clone().any(|l| l == content.len()),
                "{state}: {} bytes, synced {synced}",
                content.len()
            );
            let wrong = content.iter().zip(&masks.1).position(|(byte, mask)| mask >> byte & 1 == 0);
            assert_eq!(wrong, None, "{state}: synced {synced}");
            different.insert(content);
            if state.shape == Shape::Ordered {
                found.image().save(image.path()).unwrap();
                let (code, text) = run("e2fsck", &["-fn", &image.path()]);
                assert_eq!(code, 0, "{state}: {text}");
            }
            states += 1;
        }
        assert!(states > 100 && different.len() > 10, "{states} states, {} files", different.len());
    }
}

/// After a cut the file has its whole tree, or no flag and no block behind i_size, wherever commits
/// came in between.
#[test]
fn a_cut_while_a_file_gets_its_tree() {
    let size = 300_001_u64;
    for (seed, kind) in [&["-O", "^orphan_file"], &["-O", "orphan_file"]].into_iter().enumerate() {
        let image = Image::new("4M", &[KINDS[1], &["-J", "size=1"], kind].concat());
        let ino = image.file("a");
        let fs = image.open();
        write(&fs.inode(ino).unwrap(), 0, &vec![7; size as usize]).unwrap();
        image.close(fs);

        let device = Arc::new(RecordingDevice::new(Medium::from_bytes(std::fs::read(image.path()).unwrap())));
        let committing = Arc::new(Committing { inner: Arc::clone(&device), fs: OnceLock::new() });
        let fs = image.open_on(Arc::clone(&committing) as Arc<dyn BlockDevice>);
        let start = device.mark("start");
        let node = fs.inode(ino).unwrap();
        committing.fs.set(Arc::downgrade(&fs)).unwrap();
        BUSY.set(false);
        node.content().enable_verity(&Verity::default(), 0).unwrap();
        committing.commit();
        device.mark("done");
        drop(node);
        BUSY.set(true);
        fs.close().unwrap();

        let log = device.log();
        let mut seen = [0; 2];
        for state in log.crash_states(seed as u64, 4).filter(|state| state.cut > start) {
            let found = Arc::new(state.device());
            let fs = image.open_on(Arc::clone(&found) as Arc<dyn BlockDevice>);
            let node = fs.inode(ino).unwrap();
            assert!(all(&node) == vec![7; size as usize], "{state}");
            let has = node.content().is_verity();
            let behind = node.content().fiemap(size.next_multiple_of(1024)..u64::MAX, 10).unwrap();
            assert_eq!(behind.is_empty(), !has, "{state}");
            assert!(has || !state.marks(&log).any(|(_, mark)| mark == "done"), "{state}");
            seen[usize::from(has)] += 1;
            drop(node);
            fs.close().unwrap();
            if state.shape == Shape::Ordered {
                found.image().save(image.path()).unwrap();
                let (code, text) = run("e2fsck", &["-fn", &image.path()]);
                assert_eq!(code, 0, "{state}: {text}");
            }
        }
        assert!(seen[0] > 20 && seen[1] > 5, "{seen:?}");
    }
}
