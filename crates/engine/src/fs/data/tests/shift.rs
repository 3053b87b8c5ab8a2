//! Power cuts while a file of very many extents is shifted, which takes several handles.
//!
//! Each block holds its number. Every state must have the blocks that were not removed, each once
//! and in order, at their old or at their new place.

use super::*;
use crate::fs::data::FallocMode;
use lanefs_sim::{Image as Medium, RecordingDevice, Shape};
use std::ops::Range;

const BLOCK: u64 = 1024;

/// Blocks of the file, every other one a hole.
const N: u64 = 48_000;

/// Returns the numbers in the file, by the blocks where they lie.
fn numbers(node: &InodeRef) -> Vec<(u64, u64)> {
    let content = all(node);
    let number = |bytes: &[u8]| u64::from_le_bytes(*bytes.first_chunk().unwrap());
    let mut found = Vec::new();
    for (block, bytes) in (0..).zip(content.chunks(BLOCK as usize)) {
        let first = number(bytes);
        assert!(bytes.chunks_exact(8).all(|b| number(b) == first), "block {block} is a mixture");
        if first != 0 {
            found.push((block, first));
        }
    }
    found
}

/// Cuts the power while `blocks` are collapsed, or inserted as holes.
fn cut(mode: FallocMode, blocks: Range<u64>) {
    let image = Image::new("64M", &[KINDS[1], &["-J", "size=1"]].concat());
    let ino = image.file("a");
    let fs = image.open();
    let node = fs.inode(ino).unwrap();
    for i in 0..N / 2 {
        // Coprime to their number, so that leaves split and none is full.
        let block = i * 4001 % (N / 2) * 2;
        write(&node, block * BLOCK, &(block + 1).to_le_bytes().repeat(BLOCK as usize / 8)).unwrap();
    }
    drop(node);
    image.close(fs);

    let device = Arc::new(RecordingDevice::new(Medium::from_bytes(std::fs::read(image.path()).unwrap())));
    let fs = image.open_on(Arc::clone(&device) as Arc<dyn BlockDevice>);
    let node = fs.inode(ino).unwrap();
    let (size, start) = (node.file().size(), device.mark("shift"));
    let (len, restarts) = (blocks.end - blocks.start, fs.journal.stats().restarts);
    node.content().fallocate(mode, blocks.start * BLOCK, len * BLOCK).unwrap();
    assert!(fs.journal.stats().restarts > restarts, "all went into one handle");
    node.sync_all().unwrap();
    device.mark("done");
    let new_size = node.file().size();
    drop(node);
    fs.close().unwrap();
    let log = device.log();

    let collapse = mode == FallocMode::CollapseRange;
    let moved = |number: u64| if collapse { number - len } else { number + len };
    let taken = |number: u64| collapse && blocks.contains(&number);
    let behind = |number: u64| number >= if collapse { blocks.end } else { blocks.start };
    let (mut before, mut half, mut after) = (0, 0, 0);
    for state in log.crash_states(1, 2).filter(|state| state.cut > start) {
        let found = Arc::new(state.device());
        let fs = image.open_on(Arc::clone(&found) as Arc<dyn BlockDevice>);
        let node = fs.inode(ino).unwrap();
        let (seen, is) = (numbers(&node), node.file().size());
        assert!([size, new_size].contains(&is), "{state}: {is} bytes");
        let mut kept = (0..N).step_by(2).filter(|n| !taken(*n)).peekable();
        let (mut old, mut new) = (0, 0);
        for (block, number) in seen.iter().map(|(block, number)| (*block, number - 1)) {
            if taken(number) {
                assert_eq!(block, number, "{state}");
                continue;
            }
            assert_eq!(Some(number), kept.next(), "{state}: at block {block}");
            match block {
                _ if !behind(number) => assert_eq!(block, number, "{state}"),
                _ if block == number => old += 1,
                _ => {
                    assert_eq!(block, moved(number), "{state}: {number}");
                    new += 1;
                }
            }
        }
        assert_eq!(kept.next(), None, "{state}: is missing");
        match (old, new) {
            (_, 0) => before += 1,
            (0, _) => after += 1,
            _ => half += 1,
        }
        let done = state.marks(&log).next_back().unwrap().1 == "done";
        assert!(!done || (old, is) == (0, new_size), "{state}: {old} are where they were");
        drop(node);
        fs.close().unwrap();
        if state.shape == Shape::Ordered {
            found.image().save(image.path()).unwrap();
            let (code, text) = run("e2fsck", &["-fn", &image.path()]);
            assert_eq!(code, 0, "{state}: {text}");
        }
    }
    println!("{mode:?}: {before} states before it, {half} in it, {after} after it");
    assert!(before > 0 && half > 0 && after > 0, "{before} {half} {after}");
}

#[test]
fn a_cut_in_a_collapse_of_many_handles() {
    cut(FallocMode::CollapseRange, 5..12);
}

#[test]
fn a_cut_in_an_insertion_of_many_handles() {
    cut(FallocMode::InsertRange, 101..111);
}
