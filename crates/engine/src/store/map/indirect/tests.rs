//! The map of indirect blocks against a model.

use super::*;
use crate::error::IndirectError;
use crate::error::{Error, Result};
use crate::store::map::testing::{Mem, Wild};
use crate::store::map::{Mapping, Progress};
use crate::store::txn::BlockKind;
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::ops::Range;

const INO: u32 = 12;
/// Five numbers a block: 12 + 5 + 25 + 125 logical blocks.
const BLOCK: usize = 20;
const ALL: u32 = 167;
const NODES_FROM: u64 = 1 << 24;

struct File {
    mem: Mem,
    root: [u8; ROOT_SIZE],
    model: BTreeMap<u32, u64>,
    blocks: i64,
}

impl File {
    fn new(space: usize) -> Self {
        let mem = Mem::new(BLOCK, NODES_FROM, space);
        Self { mem, root: [0; ROOT_SIZE], model: BTreeMap::new(), blocks: 0 }
    }

    fn with<R>(&mut self, credits: u32, f: impl FnOnce(&mut Table<'_, Mem>) -> R) -> R {
        self.mem.begin(credits);
        let mut table = Table::new(&mut self.mem, INO, BlockKind::Data, &mut self.root);
        let result = f(&mut table);
        self.blocks += table.delta;
        result
    }

    fn insert(&mut self, lblk: u32, block: u64, len: u32) -> Result<()> {
        self.with(insert_credits(BLOCK, len), |t| t.insert(lblk, block, len))?;
        (0..len).for_each(|n| assert!(self.model.insert(lblk + n, block + u64::from(n)).is_none()));
        Ok(())
    }

    fn remove(&mut self, range: Range<u32>, extra: u32) {
        loop {
            let progress = self.with(REMOVE_CREDITS + extra, |t| t.remove(range.clone())).unwrap();
            let gone: Vec<u32> = self.model.range(range.clone()).map(|(k, _)| *k).collect();
            for lblk in gone {
                if self.mem.freed.remove(&self.model[&lblk]) {
                    self.model.remove(&lblk);
                }
            }
            assert!(self.mem.freed.is_empty());
            match progress {
                Progress::Done => break,
                Progress::More => {}
                Progress::Stopped(e) => panic!("{e}"),
            }
            self.check();
        }
        assert_eq!(self.model.range(range).next(), None);
    }

    fn count(&self, block: u32, level: u32) -> usize {
        let below = numbers(&self.mem.nodes[&u64::from(block)]).into_iter().filter(|n| *n != 0);
        1 + if level > 1 { below.map(|n| self.count(n, level - 1)).sum() } else { 0 }
    }

    fn check(&self) {
        for lblk in 0..ALL {
            match (lookup(&self.mem, INO, &self.root, lblk).unwrap(), self.model.get(&lblk)) {
                (Mapping::Hole { len, .. }, None) => {
                    assert!(len >= 1 && self.model.range(lblk..lblk.saturating_add(len)).next().is_none());
                }
                (Mapping::Mapped { block, len, unwritten: false }, Some(want)) => {
                    assert_eq!(block, *want);
                    (0..len).for_each(|n| assert_eq!(self.model[&(lblk + n)], block + u64::from(n)));
                }
                (found, want) => panic!("block {lblk}: {found:?}, should be {want:?}"),
            }
        }
        let roots = (1..=3).map(|level| (number(&self.root, 11 + level as usize), level));
        let nodes: usize = roots.filter(|(b, _)| *b != 0).map(|(b, level)| self.count(b, level)).sum();
        assert_eq!((nodes, nodes), (self.mem.nodes.len(), self.mem.used.len()));
        assert_eq!(self.blocks, (nodes + self.model.len()) as i64);
    }
}

#[test]
fn geometry_of_the_block_sizes() {
    assert_eq!(max_blocks(1024), 12 + 256 + 256 * 256 + 256 * 256 * 256);
    assert_eq!(max_blocks(4096), 12 + 1024 + 1024 * 1024 + 1024 * 1024 * 1024);
    assert_eq!(max_blocks(65536), u32::MAX);
    assert_eq!(slot(1024, 11), Some((11, 0, 11)));
    assert_eq!(slot(1024, 12), Some((12, 1, 12)));
    assert_eq!(slot(1024, 268), Some((13, 2, 268)));
    assert_eq!(slot(1024, 268 + 65536), Some((14, 3, 268 + 65536)));
    assert_eq!(slot(1024, max_blocks(1024)), None);
    assert_eq!(max_blocks(BLOCK), ALL);
}

/// Five numbers a block: block 42 is the first below the third level, whose first and last numbers
/// are in use.
#[test]
fn a_hole_over_many_numbers_is_one() {
    let mut file = File::new(1000);
    file.insert(42, 1000, 1).unwrap();
    file.insert(166, 2000, 1).unwrap();
    let hole = |lblk| match lookup(&file.mem, INO, &file.root, lblk).unwrap() {
        Mapping::Hole { len, .. } => len,
        Mapping::Mapped { .. } => 0,
    };
    // In a block of numbers of data, in one of the second level, in that of the third.
    assert_eq!([43, 47, 50, 67, 100, 141].map(hole), [4, 20, 17, 75, 42, 1]);
}

/// Blocks of numbers are counted as they are made.
#[test]
fn blocks_of_numbers_for_a_file_without_holes() {
    for len in 1..=ALL {
        let mut file = File::new(1000);
        file.insert(0, 1000, len).unwrap();
        assert_eq!(number_blocks(BLOCK, len.into()), file.mem.nodes.len() as u64, "{len} blocks");
    }
}

/// Freed as data of another block of numbers, it is not written.
#[test]
fn a_block_of_numbers_that_is_free_stops_a_removal() {
    let mut file = File::new(100);
    file.insert(13, 1000, 8).unwrap();
    let (first, second) = (u64::from(number(&file.root, 12)), number(&file.root, 13));
    let second = u64::from(numbers(&file.mem.nodes[&u64::from(second)])[0]);
    set_number(file.mem.nodes.get_mut(&second).unwrap(), 4, first as u32);
    file.mem.nodes.remove(&first);
    let stopped = file.with(1000, |t| t.remove(0..ALL));
    assert!(matches!(&stopped, Ok(Progress::Stopped(Error::NotFound))), "{stopped:?}");
    assert!(!file.mem.used.contains(&first) && !file.mem.used.contains(&second));
}

/// To free it as data and to write it then would overwrite the block's next owner.
#[test]
fn a_block_that_maps_itself_or_its_parent_stops_a_removal() {
    for (above, lblk) in [(0, 13), (0, 18), (1, 18)] {
        let mut file = File::new(100);
        file.insert(lblk, 1000, 3).unwrap();
        let mut path = vec![u64::from(number(&file.root, if lblk < 17 { 12 } else { 13 }))];
        if lblk >= 17 {
            path.push(numbers(&file.mem.nodes[&path[0]])[0].into());
        }
        let leaf = path.pop().unwrap();
        let own = if above == 0 { leaf } else { path[0] } as u32;
        set_number(file.mem.nodes.get_mut(&leaf).unwrap(), 2, own);
        let stopped = file.with(1000, |t| t.remove(0..ALL));
        let is_own =
            |e: &Error| matches!(e, Error::Indirect(IndirectError::OwnTable { block, .. }) if *block == own);
        assert!(matches!(&stopped, Ok(Progress::Stopped(e)) if is_own(e)), "{stopped:?}");
    }
}

#[test]
fn random_operations_agree_with_the_model() {
    for seed in 0..60 {
        let mut rng = StdRng::seed_from_u64(seed);
        let space = if seed % 4 == 0 { 6 } else { 1 << 20 };
        let mut file = File::new(space);
        let (mut data, mut no_space) = (1000, 0);
        for _ in 0..400 {
            let lblk = rng.random_range(0..ALL);
            if rng.random_ratio(6, 10) {
                let hole = file.model.range(lblk..).next().map_or(ALL, |(k, _)| *k) - lblk;
                if hole == 0 {
                    let wrong = file.with(100, |t| t.insert(lblk, 1, 1));
                    assert!(matches!(wrong, Err(Error::Indirect(IndirectError::Mapped { .. }))));
                    continue;
                }
                let len = rng.random_range(1..=hole.min(40));
                data += 1000;
                let before = (file.root, file.mem.nodes.clone());
                match file.insert(lblk, data, len) {
                    Ok(()) => {}
                    Err(Error::NoSpace) => {
                        no_space += 1;
                        assert_eq!(before, (file.root, file.mem.nodes.clone()));
                    }
                    Err(e) => panic!("{e}"),
                }
            } else {
                let width = if rng.random_ratio(1, 10) { ALL } else { rng.random_range(1..30) };
                file.remove(lblk..lblk + width, rng.random_range(0..10));
            }
            file.check();
        }
        assert_eq!(no_space > 0, space == 6, "seed {seed}: {no_space} times no space");
        file.remove(0..u32::MAX, 3);
        file.check();
        assert_eq!((file.root, file.blocks), ([0; ROOT_SIZE], 0));
    }
}

#[test]
fn bounds_of_the_map() {
    let mut file = File::new(100);
    assert!(matches!(file.insert(ALL - 1, 5, 2), Err(Error::FileTooBig)));
    assert!(matches!(file.insert(0, MAX_PHYSICAL - 1, 2), Err(Error::NoSpace)));
    file.insert(ALL - 1, 5, 1).unwrap();
    file.check();
    assert!(matches!(lookup(&file.mem, INO, &file.root, ALL), Err(Error::FileTooBig)));
    // The number of a block of numbers that lies outside.
    set_number(&mut file.root, 12, u32::MAX);
    file.mem = Mem::new(BLOCK, 2, 0);
    assert!(lookup(&file.mem, INO, &file.root, 0).is_ok());
}

proptest! {
    /// Whatever the bytes, and wherever the numbers lead: an answer or an error.
    #[test]
    fn wild_numbers_end(
        root in proptest::collection::vec(0u32..9, 15),
        nodes in proptest::collection::vec(proptest::collection::vec(0u32..9, 5), 7),
        from in 0u32..ALL,
    ) {
        let bytes = |numbers: &[u32]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
        let nodes = (1..).zip(nodes.iter().map(|n| bytes(n))).collect();
        let mut file = Wild::new(BLOCK, nodes).taking(4);
        let mut root: [u8; ROOT_SIZE] = bytes(&root).try_into().unwrap();
        for lblk in 0..ALL {
            let _ = lookup(&file, INO, &root, lblk);
        }
        let mut copy = root;
        let _ = Table::new(&mut file, INO, BlockKind::Data, &mut copy).insert(from, 3, 5);
        let _ = Table::new(&mut file, INO, BlockKind::Data, &mut root).remove(from..u32::MAX);
    }
}
