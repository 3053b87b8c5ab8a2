//! The index of a directory: which leaf may hold which hashes.

use crate::dir_body::DirBody;
use crate::finding::Structure;
use crate::rule::Rule;
use crate::{Check, CheckError};
use lanefs_format::extent::Extent;
use lanefs_format::hash::NameHasher;
use lanefs_format::htree::{self, DxKind, DxView};
use lanefs_format::{Compat, HashFlags, Incompat};
use std::collections::HashSet;

/// Hashes from `low` to `high`, both of them included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HashSpan {
    pub(crate) low: u32,
    pub(crate) high: u32,
}

/// An index that has been read.
#[derive(Debug)]
pub(crate) struct Index {
    /// `None` if the hashes of names cannot be made anew.
    pub(crate) hasher: Option<NameHasher>,
    /// Logical blocks of nodes, sorted.
    nodes: Vec<u32>,
    /// Logical blocks of leaves with what they may hold, sorted.
    leaves: Vec<(u32, HashSpan)>,
}

impl Index {
    /// Returns whether a block is an index node.
    pub(crate) fn is_node(&self, lblk: u32) -> bool {
        self.nodes.binary_search(&lblk).is_ok()
    }

    /// Returns the hashes that a leaf may hold; `None` if the index has no such leaf.
    pub(crate) fn leaf(&self, lblk: u32) -> Option<HashSpan> {
        let at = self.leaves.binary_search_by_key(&lblk, |leaf| leaf.0).ok()?;
        self.leaves.get(at).map(|leaf| leaf.1)
    }
}

/// An index that is being read.
#[derive(Debug)]
struct Descent<'a> {
    dir: &'a DirBody,
    runs: &'a [Extent],
    blocks: u64,
    index: Index,
    /// Blocks that the index has named.
    seen: HashSet<u32>,
}

impl Check {
    /// Reads the index of a directory, from its root down. `None` if it has none that holds.
    pub(crate) fn read_index(
        &mut self,
        dir: &DirBody,
        runs: &[Extent],
        blocks: u64,
    ) -> Result<Option<Index>, CheckError> {
        if !self.sb.has(Compat::DIR_INDEX) {
            self.findings.add(Structure::Directory { ino: dir.ino }, Rule::IndexWithoutFeature);
        }
        let Some(place) = place_of(runs, 0) else { return Ok(None) };
        let root = self.io.block(place)?;
        let max_levels = if self.sb.has_in(Incompat::LARGEDIR) { 2 } else { 1 };
        let verified = match dir.encrypted && dir.folded {
            true => htree::verify_siphash_root(&root, &self.dir_layout, max_levels, dir.seed)
                .map(|levels| (None, levels)),
            false => htree::verify_root(&root, &self.dir_layout, max_levels, dir.seed)
                .map(|info| (Some(info.hash_version), info.indirect_levels)),
        };
        let (version, levels) = match verified {
            Ok(verified) => verified,
            Err(e) => {
                self.findings.add(Structure::Htree { ino: dir.ino, lblk: 0 }, e);
                return Ok(None);
            }
        };
        let unsigned = self.sb.flags().contains(HashFlags::UNSIGNED_HASH);
        // Other names than those that are stored were hashed.
        let version = version.filter(|_| !(dir.encrypted || dir.folded));
        let hasher = version.map(|version| NameHasher::new(version, unsigned, self.sb.hash_seed()));
        let index = Index { hasher, nodes: Vec::new(), leaves: Vec::new() };
        let mut descent = Descent { dir, runs, blocks, index, seen: HashSet::new() };
        let span = HashSpan { low: 0, high: u32::MAX };
        self.descend(&mut descent, 0, &DxView::new(&root, DxKind::Root), levels, span)?;
        let mut index = descent.index;
        index.nodes.sort_unstable();
        index.leaves.sort_unstable_by_key(|leaf| leaf.0);
        Ok(Some(index))
    }

    /// Follows the entries of an index block, which hold the hashes of `span`. `levels` of nodes
    /// lie below it.
    fn descend(
        &mut self,
        descent: &mut Descent<'_>,
        lblk: u32,
        view: &DxView<'_>,
        levels: u8,
        span: HashSpan,
    ) -> Result<(), CheckError> {
        let ino = descent.dir.ino;
        let structure = Structure::Htree { ino, lblk };
        for entry in 0..view.count() {
            let Some(found) = view.get(entry) else { break };
            let low = if entry == 0 { span.low } else { found.hash & !1 };
            // A hash that goes on in the next leaf may be in this one too.
            let high = match view.get(entry + 1) {
                Some(next) if next.hash & 1 == 1 => next.hash & !1,
                Some(next) => next.hash.saturating_sub(1),
                None => span.high,
            };
            if low < span.low || low > span.high {
                let (hash, low, high) = (found.hash, span.low, span.high);
                self.findings.add(structure, Rule::HtreeOrder { hash, low, high });
            }
            let child = found.block;
            let place = place_of(descent.runs, child).filter(|_| u64::from(child) < descent.blocks);
            let Some(place) = place else {
                let rule = Rule::HtreeChild { entry, lblk: child, blocks: descent.blocks };
                self.findings.add(structure, rule);
                continue;
            };
            if !descent.seen.insert(child) {
                self.findings.add(structure, Rule::HtreeTwice { lblk: child });
                continue;
            }
            if levels == 0 {
                descent.index.leaves.push((child, HashSpan { low, high }));
                continue;
            }
            descent.index.nodes.push(child);
            let block = self.io.block(place)?;
            if let Err(e) = htree::verify_node(&block, &self.dir_layout, descent.dir.seed) {
                self.findings.add(Structure::Htree { ino, lblk: child }, e);
                continue;
            }
            let view = DxView::new(&block, DxKind::Node);
            self.descend(descent, child, &view, levels - 1, HashSpan { low, high })?;
        }
        Ok(())
    }
}

/// Returns where a logical block lies.
fn place_of(runs: &[Extent], lblk: u32) -> Option<u64> {
    let at = runs.partition_point(|run| run.ee_block <= lblk).checked_sub(1)?;
    let run = runs.get(at)?;
    let offset = lblk - run.ee_block;
    (offset < run.len).then(|| run.ee_start + u64::from(offset))
}
