//! A write that was taken is kept, however full the volume is by the time that it is written out.

use super::*;
use crate::alloc;

const BLOCK: usize = 1024;

/// A file of four unwritten extents, as many as its inode has room for, on a volume without a free block.
fn full() -> (Image, Arc<Fs>, NodeRef, Vec<alloc::Reserved>) {
    let image = Image::new("8M", KINDS[1]);
    let (ino, other) = (image.file("a"), image.file("full"));
    let fs = image.open();
    let node = fs.node(ino).unwrap();
    for i in 0..4 {
        fallocate(&node, FallocMode::KeepSize, i * 100 * BLOCK as u64, 20 * BLOCK as u64).unwrap();
    }
    let filler = fs.node(other).unwrap();
    assert!(matches!(write(&filler, 0, &vec![1; 16 << 20]), Err(Error::NoSpace)));
    let mut at = filler.file().size();
    while write(&filler, at, &[1; BLOCK]).is_ok() {
        at += BLOCK as u64;
    }
    drop(filler);
    sync_all(&node).unwrap();
    // What was left for nodes.
    let held = std::iter::from_fn(|| alloc::reserve(&fs, 0, 1).ok()).collect();
    assert_eq!(fs.alloc.free_blocks(), 0);
    (image, fs, node, held)
}

fn taken(written: &Result<()>) -> bool {
    match written {
        Ok(()) => true,
        Err(Error::NoSpace) => false,
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn a_write_into_unwritten_blocks_that_was_taken_is_written_out() {
    for direct in [false, true] {
        let (image, fs, node, held) = full();
        let mut model = vec![0; 400 * BLOCK];
        // In the middle of each: a node is needed, or several.
        for i in 0..4 {
            for at in [3, 9, 15] {
                let at = (i * 100 + at) * BLOCK;
                let written = match direct {
                    true => write(&node, at as u64, &[7; BLOCK]),
                    false => buffered::write(&node, at as u64, &[7; BLOCK]),
                };
                if taken(&written) {
                    model[at..at + BLOCK].fill(7);
                }
            }
        }
        sync_all(&node).unwrap();
        model.truncate(node.file().size() as usize);
        assert!(all(&node) == model);
        // As soon as there is space it goes on.
        drop(held);
        let filler = fs.node(node.ino + 1).unwrap();
        truncate(&filler, 1 << 20).unwrap();
        drop(filler);
        buffered::write(&node, 3 * BLOCK as u64, &[9; BLOCK]).unwrap();
        sync_all(&node).unwrap();
        drop(node);
        image.close(fs);
    }
}

/// A hole inside of an extent needs a node: the punch says so, and nothing is lost.
#[test]
fn a_punch_that_finds_no_space_changes_nothing() {
    let (image, fs, node, held) = full();
    let full = fs.node(node.ino + 1).unwrap();
    let before = all(&full);
    for (node, at) in [(&node, 5), (&full, 7)] {
        for _ in 0..2 {
            let punched = fallocate(node, FallocMode::PunchHole, at * BLOCK as u64, BLOCK as u64);
            assert!(matches!(punched, Ok(()) | Err(Error::NoSpace)), "{punched:?}");
            sync_all(node).unwrap();
        }
    }
    let mut after = all(&full);
    assert!(after.len() == before.len() && [0, 1].contains(&after[7 * BLOCK]));
    let byte = after[7 * BLOCK];
    after[7 * BLOCK..8 * BLOCK].copy_from_slice(&before[7 * BLOCK..8 * BLOCK]);
    assert!(after == before && before[7 * BLOCK] == 1, "{byte}");
    drop(held);
    // From the end on none is needed.
    fallocate(&full, FallocMode::PunchHole, 0, 2 << 20).unwrap();
    drop((node, full));
    image.close(fs);
}
