//! Trees of many extents: if blocks are added or freed in order, leaves are at least half full.

use super::*;

/// Blocks of 1 KiB hold 84 extents.
const FULL: u64 = 84;
const EXTENTS: u64 = 10_000;

/// Makes a file of [`EXTENTS`] extents or more. Returns how many blocks its map takes.
fn map_blocks(blocks: u64, fill: impl Fn(&InodeRef)) -> u64 {
    let image = Image::new("40M", &["-t", "ext4", "-b", "1024", "-O", "^has_journal"]);
    let ino = image.file("f");
    let fs = image.open();
    let node = fs.inode(ino).unwrap();
    fill(&node);
    let map = node.state().blocks / 2 - blocks;
    drop(node);
    image.close(fs);
    map
}

#[test]
fn a_file_whose_extents_are_parted_in_order_fills_its_leaves() {
    let at = |i: u64| i * 2048;
    let written = map_blocks(EXTENTS, |node| {
        (0..EXTENTS).for_each(|i| write(node, at(i), &[1; 1024]).unwrap());
    });
    let punched = map_blocks(EXTENTS, |node| {
        write(node, 0, &vec![1; at(EXTENTS) as usize]).unwrap();
        let punch = |i| node.content().fallocate(FallocMode::PunchHole, at(i), 1024).unwrap();
        (0..EXTENTS).for_each(punch);
    });
    let converted = map_blocks(2 * EXTENTS, |node| {
        node.content().fallocate(FallocMode::Allocate, 0, at(EXTENTS)).unwrap();
        (0..EXTENTS).for_each(|i| write(node, at(i), &[1; 1024]).unwrap());
    });
    let least = EXTENTS / FULL;
    assert!(written <= least + least / 10, "{written}");
    // The file begins with several extents, and a leaf that grows in the middle is split there.
    assert!(punched <= 2 * least, "{punched}");
    // Twice as many extents: those written, and those between them.
    assert!(converted <= 2 * 2 * least, "{converted}");
}
