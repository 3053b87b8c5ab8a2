//! The tree against a model: a map from logical block to block of the volume.
//!
//! Nodes of seven entries make deep trees of few blocks; space, credits and the inverse of
//! allocation are counted by [`Mem`].

use super::*;
use crate::error::{Error, Result};
use crate::store::map::testing::{Mem, Wild};
use crate::store::map::{ChangeBlocks, Mapping, Progress, ReadBlocks};
use crate::store::txn::BlockKind;
use lanefs_format::extent::{
    At, Bounds, Entry, Extent, ExtentError, Index, MAX_BLOCKS, MAX_DEPTH, Node, NodeRef, ROOT_SIZE as ROOT,
    empty_root, set_checksum, verify_checksum,
};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::ops::Range;

const OWNER: Owner = Owner { ino: 12, seed: Some(99) };
/// Seven entries and the checksum.
const BLOCK: usize = 100;
/// Data lies below.
const NODES_FROM: u64 = 1 << 40;

/// A file: its tree, and what the tree should say.
struct File {
    mem: Mem,
    root: [u8; ROOT],
    model: BTreeMap<u32, (u64, bool)>,
    blocks: i64,
}

impl File {
    fn new(space: usize) -> Self {
        Self {
            mem: Mem::new(BLOCK, NODES_FROM, space),
            root: empty_root(),
            model: BTreeMap::new(),
            blocks: 0,
        }
    }

    fn depth(&self) -> u16 {
        NodeRef::new(&self.root, At { ino: OWNER.ino, block: 0 }).unwrap().eh_depth
    }

    fn with<R>(&mut self, credits: u32, f: impl FnOnce(&mut Tree<'_, Mem>) -> R) -> R {
        self.mem.begin(credits);
        let mut tree = Tree::new(&mut self.mem, OWNER, BlockKind::Data, &mut self.root);
        let result = f(&mut tree);
        self.blocks += tree.delta;
        result
    }

    fn insert(&mut self, e: Extent) -> Result<()> {
        let splits = splits(&self.mem, OWNER, &self.root, e.ee_block, 1).unwrap();
        let (space, nodes) = (self.mem.space, self.mem.nodes.len());
        let neighbours = [e.ee_block.wrapping_sub(1), e.ee_block.wrapping_add(e.len)];
        let may_join = neighbours.iter().any(|lblk| self.model.contains_key(lblk));
        let inserted = self.with(insert_credits(self.depth()), |t| t.insert(e));
        if matches!(inserted, Err(Error::NoSpace)) {
            assert!(space < splits, "{splits} nodes were foretold, there were {space} blocks");
        }
        inserted?;
        if !may_join {
            assert_eq!(self.mem.nodes.len(), nodes + splits);
        }
        for n in 0..e.len {
            assert!(self.model.insert(e.ee_block + n, (e.ee_start + u64::from(n), e.unwritten)).is_none());
        }
        Ok(())
    }

    fn remove(&mut self, range: Range<u32>, extra: u32) -> Result<()> {
        self.mem.freed.clear();
        loop {
            let credits = remove_credits(self.depth()) + extra;
            let progress = self.with(credits, |t| t.remove(range.clone()));
            let gone: Vec<u32> = self.model.range(range.clone()).map(|(k, _)| *k).collect();
            for lblk in gone {
                if self.mem.freed.remove(&self.model[&lblk].0) {
                    self.model.remove(&lblk);
                }
            }
            assert!(self.mem.freed.is_empty(), "freed what was not in the range: {:?}", self.mem.freed);
            match progress? {
                Progress::Done => break,
                Progress::More => {}
                Progress::Stopped(e) => return Err(e),
            }
            self.check();
        }
        assert_eq!(self.model.range(range).next(), None);
        Ok(())
    }

    fn convert(&mut self, range: Range<u32>, unwritten: bool) -> Result<()> {
        self.with(insert_credits(self.depth()), |t| t.convert(range.clone(), unwritten))?;
        self.model.range_mut(range).for_each(|(_, v)| v.1 = unwritten);
        Ok(())
    }

    /// Removes `range` and moves the blocks behind it into its place.
    fn collapse(&mut self, range: Range<u32>, extra: u32) -> Result<()> {
        self.remove(range.clone(), extra)?;
        let by = range.end - range.start;
        let mut from = range.end;
        while !self.with(insert_credits(self.depth()) + 1 + extra, |t| t.shift_left(&mut from, by))?.is_done()
        {
            // Half way, the tree has the same blocks.
            let model = std::mem::take(&mut self.model);
            let moved = |k: u32| if (range.end..from).contains(&k) { k - by } else { k };
            self.model = model.iter().map(|(k, v)| (moved(*k), *v)).collect();
            self.check();
            self.model = model;
        }
        let behind = self.model.split_off(&range.end);
        self.model.extend(behind.into_iter().map(|(k, v)| (k - by, v)));
        Ok(())
    }

    /// Moves the blocks from `at` on by `by` blocks.
    fn make_room(&mut self, at: u32, by: u32, extra: u32) -> Result<()> {
        self.with(insert_credits(self.depth()), |t| t.part(at, by))?;
        self.check();
        let mut end = MAX_BLOCKS;
        let credits = |depth| insert_credits(depth) + 1 + extra;
        while !self.with(credits(self.depth()), |t| t.shift_right(at, &mut end, by))?.is_done() {}
        let behind = self.model.split_off(&at);
        self.model.extend(behind.into_iter().map(|(k, v)| (k + by, v)));
        Ok(())
    }

    fn extents(&self, bytes: &[u8], block: u64, bounds: &Bounds, out: &mut Vec<Extent>) -> i64 {
        let node = NodeRef::new(bytes, At { ino: OWNER.ino, block }).unwrap();
        node.check(bounds).unwrap();
        if block != 0 {
            verify_checksum(bytes, OWNER.seed.unwrap(), At { ino: OWNER.ino, block }).unwrap();
        }
        assert!(block == 0 || !node.entries.is_empty());
        assert_eq!(
            bounds.depth.map_or(0, |_| bounds.logical.start),
            match bounds.depth {
                Some(_) => node.entries[0].key(),
                None => 0,
            }
        );
        if node.eh_depth == 0 {
            out.extend(node.entries.iter().map(Entry::extent));
            return 0;
        }
        let mut nodes = 0;
        for (n, e) in node.entries.iter().enumerate() {
            let child = e.index().ei_leaf;
            let bounds = bounds.child(node.eh_depth, node.entries, n);
            nodes += 1 + self.extents(&self.mem.nodes[&child], child, &bounds, out);
        }
        nodes
    }

    /// Checks that the whole tree equals the model, and owns every node that exists.
    fn check(&self) {
        let mut extents = Vec::new();
        let nodes = self.extents(&self.root, 0, &Bounds::root(self.mem.limits()), &mut extents);
        assert_eq!(nodes as usize, self.mem.nodes.len());
        assert_eq!(nodes as usize, self.mem.used.len());
        assert_eq!(self.blocks, nodes + self.model.len() as i64);
        let mut found = BTreeMap::new();
        for e in &extents {
            assert!(e.len <= e.max_len());
            for n in 0..e.len {
                found.insert(e.ee_block + n, (e.ee_start + u64::from(n), e.unwritten));
            }
        }
        assert_eq!(found, self.model);
    }

    fn check_lookup(&self, lblk: u32) {
        let mapping = lookup(&self.mem, OWNER, &self.root, lblk).unwrap();
        match (mapping, self.model.get(&lblk)) {
            (Mapping::Hole { len, .. }, None) => {
                let next = self.model.range(lblk..).next().map_or(MAX_BLOCKS, |(k, _)| *k);
                assert!(len >= 1 && len <= next - lblk);
            }
            (Mapping::Mapped { block, len, unwritten }, Some(want)) => {
                assert_eq!((block, unwritten), *want);
                let last = lblk + len - 1;
                assert_eq!(self.model[&last], (block + u64::from(len) - 1, unwritten));
            }
            (found, want) => panic!("block {lblk}: {found:?}, should be {want:?}"),
        }
    }
}

fn extent(ee_block: u32, len: u32, ee_start: u64, unwritten: bool) -> Extent {
    Extent { ee_block, len, unwritten, ee_start }
}

/// Random operations on one file, and what they have met.
struct RandomOps {
    rng: StdRng,
    file: File,
    /// Blocks of the file that operations are about.
    span: u32,
    /// The next block of data that is free for certain.
    data: u64,
    no_space: u32,
}

impl RandomOps {
    /// Notes an operation that found no space. It may fail in no other way.
    fn done(&mut self, done: Result<()>) {
        match done {
            Ok(()) => {}
            Err(Error::NoSpace) => self.no_space += 1,
            Err(e) => panic!("{e}"),
        }
    }

    /// Inserts an extent into the hole at `lblk`. One that is mapped already is refused.
    fn insert(&mut self, lblk: u32) {
        let Self { rng, file, data, .. } = self;
        let hole = file.model.range(lblk..).next().map_or(u32::MAX, |(k, _)| *k) - lblk;
        if hole == 0 || file.model.contains_key(&lblk) {
            let wrong = file.with(1000, |t| t.insert(extent(lblk, 1, 1, false)));
            assert!(matches!(wrong, Err(Error::Extent(ExtentError::Mapped { .. }))));
            return;
        }
        let most = if rng.random() { 1 } else { 90 };
        let len = rng.random_range(1..=hole.min(most));
        // Sometimes next to the neighbour's blocks, so that extents join.
        let left = lblk.checked_sub(1).and_then(|l| file.model.get(&l)).copied();
        let (start, unwritten) = match left {
            Some((block, unwritten)) if rng.random() && !file.taken(block + 1, len) => (block + 1, unwritten),
            _ => {
                *data += 1000;
                (*data, rng.random())
            }
        };
        let before = (file.root, file.mem.nodes.clone());
        let done = file.insert(extent(lblk, len, start, unwritten));
        if done.is_err() {
            assert_eq!(before, (file.root, file.mem.nodes.clone()));
        }
        self.done(done);
    }

    fn remove(&mut self, lblk: u32) {
        let Self { rng, file, span, .. } = self;
        let width = if rng.random_ratio(1, 20) { *span } else { rng.random_range(1..60) };
        let done = file.remove(lblk..lblk + width, rng.random_range(0..20));
        self.done(done);
    }

    /// Makes a part of the extent at `lblk` written if it is unwritten, and the other way round.
    fn convert(&mut self, lblk: u32) {
        let Self { rng, file, .. } = self;
        let found = lookup(&file.mem, OWNER, &file.root, lblk).unwrap();
        if let Mapping::Mapped { len, unwritten, .. } = found {
            let len = rng.random_range(1..=len);
            let done = file.convert(lblk..lblk + len, !unwritten);
            self.done(done);
        }
    }

    /// Collapses a range, or makes room for one.
    fn shift(&mut self, lblk: u32) {
        let Self { rng, file, .. } = self;
        let (by, extra) = (rng.random_range(1..40), rng.random_range(0..20));
        let done = match rng.random() {
            true => file.collapse(lblk..lblk + by, extra),
            false => file.make_room(lblk, by, extra),
        };
        self.done(done);
    }
}

#[test]
fn random_operations_agree_with_the_model() {
    let mut deepest = 0;
    for seed in 0..60 {
        let space = if seed % 4 == 0 { 8 } else { 1 << 20 };
        let span = [300, 3000, 40_000][seed as usize % 3];
        let rng = StdRng::seed_from_u64(seed);
        let mut random = RandomOps { rng, file: File::new(space), span, data: 1000, no_space: 0 };
        for step in 0..1700 {
            let lblk = random.rng.random_range(0..span);
            let grow = if step < 1100 { 7 } else { 3 };
            match random.rng.random_range(0..11) {
                10 => random.shift(lblk),
                n if n < grow => random.insert(lblk),
                n if n < 9 => random.remove(lblk),
                _ => random.convert(lblk),
            }
            deepest = deepest.max(random.file.depth());
            if step % 50 == 0 {
                random.file.check();
            }
            random.file.check_lookup(random.rng.random_range(0..span + 100));
        }
        let RandomOps { mut file, no_space, .. } = random;
        file.check();
        assert_eq!(no_space > 0, space == 8, "seed {seed}: {no_space} times no space");
        file.remove(0..MAX_BLOCKS, 5).unwrap();
        file.check();
        assert_eq!(file.root, empty_root());
        assert_eq!(file.blocks, 0);
    }
    assert!(deepest >= 4, "the trees were at most {deepest} deep");
}

impl File {
    fn taken(&self, start: u64, len: u32) -> bool {
        self.model.values().any(|(b, _)| (start..start + u64::from(len)).contains(b))
    }
}

#[test]
fn blocks_in_order_fill_the_leaves() {
    let mut file = File::new(1 << 20);
    for n in 0..700 {
        file.insert(extent(n * 2, 1, u64::from(n) * 3 + 1, false)).unwrap();
    }
    file.check();
    // 700 entries in leaves of seven, 100 in indexes of seven, and the levels above.
    assert!(file.mem.nodes.len() <= 100 + 15 + 3 + 1, "{} nodes", file.mem.nodes.len());
    let mut file = File::new(1 << 20);
    for n in (0..700).rev() {
        file.insert(extent(n * 2, 1, u64::from(n) * 3 + 1, false)).unwrap();
    }
    file.check();
    assert!(file.mem.nodes.len() <= 100 + 15 + 3 + 1, "{} nodes", file.mem.nodes.len());
}

#[test]
fn a_tree_of_depth_five_does_not_grow() {
    let mut file = File::new(1 << 30);
    let mut n = 0;
    // In order, so that every node is full: 4 * 7^5 extents.
    let error = loop {
        if let Err(e) = file.insert(extent(n * 2, 1, u64::from(n) * 3 + 1, false)) {
            break e;
        }
        n += 1;
    };
    assert!(matches!(error, Error::FileTooBig));
    assert_eq!((n, file.depth()), (4 * 7u32.pow(5), MAX_DEPTH));
    file.check();
}

/// A file with two full leaves, and their blocks.
fn two_leaves() -> (File, [u64; 2]) {
    let mut file = File::new(100);
    for n in 0..14 {
        file.insert(extent(n * 2, 1, u64::from(n) * 3 + 1, false)).unwrap();
    }
    let root = NodeRef::new(&file.root, At { ino: OWNER.ino, block: 0 }).unwrap();
    let leaves: Vec<u64> = root.entries.iter().map(|e| e.index().ei_leaf).collect();
    (file, leaves.try_into().unwrap())
}

impl File {
    /// Damages a node, or mends it again.
    fn flip(&mut self, node: u64) {
        self.mem.nodes.get_mut(&node).unwrap()[20] ^= 1;
    }
}

#[test]
fn a_damaged_leaf_is_in_the_way_of_nothing_beside_it() {
    let (mut file, [first, second]) = two_leaves();
    file.flip(first);
    file.remove(14..MAX_BLOCKS, 100).unwrap();
    assert!(!file.mem.nodes.contains_key(&second));
    let mark = file.mem.mark();
    assert!(matches!(file.with(100, |t| t.remove(0..14)), Ok(Progress::Stopped(_))));
    assert_eq!(file.mem.mark(), mark);
    file.flip(first);
    file.check();
}

#[test]
fn a_leaf_that_is_free_already_keeps_its_data() {
    let (mut file, [_, second]) = two_leaves();
    file.mem.used.remove(&second);
    let mark = file.mem.mark();
    assert!(matches!(file.with(100, |t| t.remove(14..MAX_BLOCKS)), Ok(Progress::Stopped(_))));
    assert_eq!(file.mem.mark(), mark);
    file.mem.used.insert(second);
    file.check();
    // And a leaf that cannot be freed stays a leaf, where its entries would fit into the root.
    let (mut file, [first, _]) = two_leaves();
    file.remove(4..14, 0).unwrap();
    file.mem.used.remove(&first);
    file.remove(14..MAX_BLOCKS, 100).unwrap();
    file.mem.used.insert(first);
    file.check();
}

#[test]
fn a_damaged_leaf_stops_a_shift_between_two_leaves() {
    let (mut file, [first, second]) = two_leaves();
    file.remove(0..2, 0).unwrap();
    file.flip(second);
    let mut from = 2;
    assert!(matches!(file.with(100, |t| t.shift_left(&mut from, 2)), Ok(Progress::Stopped(_))));
    file.flip(second);
    let before = file.model.split_off(&14);
    let moved = std::mem::replace(&mut file.model, before);
    file.model.extend(moved.into_iter().map(|(k, v)| (k - 2, v)));
    file.check();

    file.flip(first);
    let mut end = MAX_BLOCKS;
    assert!(matches!(file.with(100, |t| t.shift_right(0, &mut end, 2)), Ok(Progress::Stopped(_))));
    file.flip(first);
    let moved = file.model.split_off(&14);
    file.model.extend(moved.into_iter().map(|(k, v)| (k + 2, v)));
    file.check();
}

/// Makes a file of leaves, each with its key, eh_max and entries, as another program made them.
fn crafted<const N: usize>(leaves: [(u32, u16, Vec<Extent>); N]) -> File {
    let mut file = File::new(100);
    let at = |block| At { ino: OWNER.ino, block };
    let mut index: Vec<Entry> = Vec::new();
    for (ei_leaf, (ei_block, eh_max, extents)) in (NODES_FROM..).zip(leaves) {
        let mut bytes = vec![0; BLOCK];
        let leaf = Node { eh_depth: 0, eh_max, entries: extents.into_iter().map(Entry::from).collect() };
        leaf.encode(&mut bytes, at(ei_leaf)).unwrap();
        set_checksum(&mut bytes, OWNER.seed.unwrap(), at(ei_leaf)).unwrap();
        index.push(Index { ei_block, ei_leaf }.into());
        file.mem.nodes.insert(ei_leaf, bytes);
        file.mem.used.insert(ei_leaf);
    }
    Node { eh_depth: 1, eh_max: 4, entries: index }.encode(&mut file.root, at(0)).unwrap();
    file
}

/// To free it as data and as a node would be one time too many.
#[test]
fn a_leaf_that_maps_itself_stops_a_removal() {
    let mut file = crafted([(0, 7, vec![extent(0, 3, NODES_FROM, false)])]);
    let mark = file.mem.mark();
    let stopped = file.with(100, |t| t.remove(0..MAX_BLOCKS));
    let own = |e: &Error| matches!(e, Error::Extent(ExtentError::OwnNode { block: NODES_FROM, .. }));
    assert!(matches!(&stopped, Ok(Progress::Stopped(e)) if own(e)), "{stopped:?}");
    assert_eq!(file.mem.mark(), mark);
}

#[test]
fn a_shift_passes_an_empty_leaf() {
    let mut file = crafted([
        (0, 7, vec![extent(0, 3, 1, false)]),
        (10, 7, Vec::new()),
        (20, 7, vec![extent(25, 1, 9, false)]),
        (30, 7, Vec::new()),
    ]);
    let mut end = MAX_BLOCKS;
    assert!(file.with(1000, |t| t.shift_right(0, &mut end, 2)).unwrap().is_done());
    for (lblk, at) in [(2, 1), (27, 9)] {
        let mapped = lookup(&file.mem, OWNER, &file.root, lblk).unwrap();
        assert!(matches!(mapped, Mapping::Mapped { block, .. } if block == at), "{lblk}: {mapped:?}");
    }
}

/// Two nodes of one entry have no room for three.
#[test]
fn a_leaf_with_room_for_one_entry_is_not_split_in_three() {
    let mut file = crafted([(0, 1, vec![extent(0, 3, 1, true)])]);
    let mark = file.mem.mark();
    assert!(matches!(file.with(100, |t| t.convert(1..2, false)), Err(Error::Extent(_))));
    assert_eq!(file.mem.mark(), mark);
}

#[test]
fn lengths_at_the_bound() {
    let mut file = File::new(10);
    file.insert(extent(0, 32768, 1, false)).unwrap();
    file.insert(extent(32768, 1, 32769, false)).unwrap();
    file.check();
    assert!(matches!(file.insert(extent(40000, 32768, 50000, true)), Err(Error::FileTooBig)));
    file.insert(extent(40000, 32767, 50000, true)).unwrap();
    file.insert(extent(72767, 1, 82767, true)).unwrap();
    file.check();
    // The whole longest extent to unwritten and back: one block does not fit.
    file.convert(0..32768, true).unwrap();
    file.check();
    let last = MAX_BLOCKS - 1;
    file.insert(extent(last, 1, 7_000_000, false)).unwrap();
    assert!(matches!(lookup(&file.mem, OWNER, &file.root, MAX_BLOCKS), Err(Error::FileTooBig)));
    file.check_lookup(last);
    assert!(matches!(file.insert(extent(last - 9, 11, 1, false)), Err(Error::FileTooBig)));
    file.check();
}

/// Damaged nodes: whatever the bytes, an answer or an error.
fn try_all(root: [u8; ROOT], nodes: BTreeMap<u64, Vec<u8>>, lblk: u32) {
    let mut wild = Wild::new(BLOCK, nodes).trusting();
    let owner = Owner { seed: None, ..OWNER };
    let _ = lookup(&wild, owner, &root, lblk);
    for op in 0..6 {
        let mut root = root;
        let mut tree = Tree::new(&mut wild, owner, BlockKind::Data, &mut root);
        let _ = match op {
            0 => tree.insert(extent(lblk, 1, 1, false)),
            1 => tree.convert(lblk..lblk.saturating_add(1), true),
            2 => tree.shift_left(&mut lblk.clone(), 3).map(|_| ()),
            3 => tree.shift_right(lblk / 2, &mut MAX_BLOCKS.clone(), 3).map(|_| ()),
            4 => tree.part(lblk, 3),
            _ => tree.remove(lblk / 2..MAX_BLOCKS).map(|_| ()),
        };
    }
}

fn near_node(size: usize) -> impl Strategy<Value = Vec<u8>> {
    let entry = prop_oneof![
        // Small numbers, so that many entries are almost right.
        (0u32..40, 0u16..4, 0u32..9).prop_map(|(b, len, start)| {
            let mut e = b.to_le_bytes().to_vec();
            e.extend(len.to_le_bytes());
            e.extend([0; 2]);
            e.extend(start.to_le_bytes());
            e
        }),
        (0u32..40, 0u32..9).prop_map(|(b, leaf)| {
            let mut e = b.to_le_bytes().to_vec();
            e.extend(leaf.to_le_bytes());
            e.extend([0; 4]);
            e
        }),
        proptest::collection::vec(any::<u8>(), 12),
    ];
    (0u16..9, 0u16..9, 0u16..7, proptest::collection::vec(entry, 8)).prop_map(
        move |(n, max, depth, mut entries)| {
            entries.sort_by_key(|e| u32::from_le_bytes([e[0], e[1], e[2], e[3]]));
            let mut bytes = 0xF30Au16.to_le_bytes().to_vec();
            for v in [n, max, depth, 0, 0] {
                bytes.extend(v.to_le_bytes());
            }
            bytes.extend(entries.concat());
            bytes.resize(size, 0);
            bytes
        },
    )
}

proptest! {
    #[test]
    fn damaged_nodes_give_errors(
        root in prop_oneof![near_node(ROOT), proptest::collection::vec(any::<u8>(), ROOT)],
        nodes in proptest::collection::vec(near_node(BLOCK), 7),
        lblk in 0u32..50,
    ) {
        let nodes = nodes.into_iter().enumerate().map(|(n, b)| (n as u64 + 1, b)).collect();
        try_all(root.try_into().unwrap(), nodes, lblk);
    }
}
