//! Hostile maps of indirect blocks: a few blocks of numbers lead to each other over and over.

use super::*;
use crate::error::Corrupt;

#[test]
fn a_walk_along_a_map_that_repeats_ends() {
    let image = Image::new("16M", KINDS[4]);
    let (tables, full, empty) = (image.file("tables"), image.file("full"), image.file("empty"));
    let fs = image.open();
    let node = fs.inode(tables).unwrap();
    write(&node, 0, &[1; 5 * 4096]).unwrap();
    let places = [0, 1, 2, 3, 4].map(|n: u64| {
        let extents = node.content().fiemap(n * 4096..(n + 1) * 4096, 1).unwrap();
        (extents[0].physical / 4096) as u32
    });
    // One of data, all of it in one block, and one that leads to it. One of holes, and two levels
    // above it.
    let numbers = [places[0], places[0], 0, places[2], places[3]].map(|n| n.to_le_bytes().repeat(1024));
    write(&node, 0, &numbers.concat()).unwrap();
    drop(node);
    image.close(fs);
    for (ino, field, value) in [
        (full, "block[DIND]", places[1].into()),
        (full, "size", 1 << 30),
        (empty, "block[TIND]", places[4].into()),
        (empty, "size", 1_u64 << 42),
    ] {
        image.debugfs(&format!("sif <{ino}> {field} {value}"));
    }

    let fs = image.open();
    let is_told = |e: &Error| matches!(e, Error::Corrupt(Corrupt::MapRuns { bound: 8208, .. }));
    let node = fs.inode(full).unwrap();
    let file = node.content();
    assert_eq!(file.seek_data(0).unwrap(), 1036 * 4096);
    assert_eq!(file.next_data(0).unwrap(), Some((1036 * 4096, 1037 * 4096)));
    let hole = file.seek_hole(1036 * 4096);
    assert!(hole.as_ref().is_err_and(is_told), "{hole:?}");
    let extents = file.fiemap(0..u64::MAX, usize::MAX);
    assert!(extents.as_ref().is_err_and(is_told), "{extents:?}");
    assert_eq!(file.fiemap(0..u64::MAX, 100).unwrap().len(), 100);
    drop(node);

    let node = fs.inode(empty).unwrap();
    let file = node.content();
    assert_eq!(file.seek_hole(0).unwrap(), 0);
    let (data, next) = (file.seek_data(0), file.next_data(0));
    assert!(data.as_ref().is_err_and(is_told) && next.as_ref().is_err_and(is_told), "{data:?} {next:?}");
}
