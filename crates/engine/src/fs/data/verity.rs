//! Content that a hash tree vouches for (fs-verity): blocks are verified when they are read from
//! the device, and only then cached. So all reads of such a file go through the page cache.
//!
//! The digests that blocks must have are collected before their pages are locked: the thread that
//! collects them locks pages of the tree, and a thread locks pages of one file only.
//!
//! A hole is compared with the tree at the highest levels that it covers: the digest of a block of
//! the tree that has only digests of zeros stands for all blocks below it.

use super::content::Content;
use crate::error::{Error, Result, VerityError};
use crate::fs::file::cache::Segment;
use crate::fs::file::verity::{Verity, algorithm, tree_of};
use crate::store::io;
use crate::store::map::{self, Mapping};
use lanefs_format::InodeFlags;
use lanefs_format::extent::MAX_BLOCKS;
use lanefs_format::verity::{DESCRIPTOR_SIZE, MAX_DESCRIPTOR, VerityDescriptor, VerityHash, tree_start};
use std::ops::Range;

/// The digests that blocks of a file must have.
pub(super) struct Expected<'v> {
    verity: &'v Verity,
    ino: u32,
    /// The first block that has one, in blocks of the tree.
    first: u64,
    digests: Vec<u8>,
}

impl<'n> Content<'n> {
    /// Returns whether a hash tree vouches for the content.
    pub(crate) fn is_verity(self) -> bool {
        self.node.flags().contains(InodeFlags::VERITY)
    }

    /// Returns the algorithm of the file's hash tree and the digest of its descriptor, which stands
    /// for the content.
    ///
    /// # Errors
    /// [`Error::NoData`] for a file without a tree; those of a damaged descriptor.
    pub(crate) fn measure_verity(self) -> Result<(VerityHash, Vec<u8>)> {
        let verity = self.verity()?.ok_or(Error::NoData)?;
        let hash = verity.descriptor.hash;
        Ok((hash, algorithm(hash).digest(&verity.descriptor.encode())))
    }

    /// Returns the digests that `blocks` must have; `None` for a file without a hash tree. The
    /// caller has locked no pages.
    ///
    /// # Errors
    /// The device's; a damaged map, descriptor or tree.
    pub(super) fn expected(self, blocks: &Range<u32>) -> Result<Option<Expected<'n>>> {
        let Some(verity) = self.verity()? else { return Ok(None) };
        let below = self.blocks_of_tree(verity, blocks);
        let (first, mut digests) = (below.start, Vec::new());
        self.collect(verity, 0, below, &mut digests)?;
        Ok(Some(Expected { verity, ino: self.node.ino, first, digests }))
    }

    /// Returns the data of `blocks` before the end of the file, in blocks of the tree.
    fn blocks_of_tree(self, verity: &Verity, blocks: &Range<u32>) -> Range<u64> {
        let block = u64::from(verity.tree.block_size());
        let byte = |lblk: u32| u64::from(lblk) * u64::from(self.fs().block_size);
        byte(blocks.start) / block..byte(blocks.end).min(verity.descriptor.data_size).div_ceil(block)
    }

    /// Verifies that `hole`, blocks that the map does not have, is zeros by the hash tree too. Does
    /// nothing for a file without a tree. The caller has locked no pages.
    ///
    /// # Errors
    /// [`VerityError::Data`]: the first block that is not; those of [`expected`](Self::expected).
    pub(super) fn verify_hole(self, hole: Range<u32>) -> Result<()> {
        let Some(verity) = self.verity()? else { return Ok(()) };
        if verity.is_known_hole(&hole) {
            return Ok(());
        }
        let below = self.blocks_of_tree(verity, &hole);
        if let Some(block) = self.first_not_zero(verity, &zero_digests(verity), 0, below)? {
            return Err(VerityError::Data { ino: self.node.ino, block }.into());
        }
        verity.know_hole(hole);
        Ok(())
    }

    /// Returns the first of `below`, blocks of the level below `level` or of the data, whose digest
    /// is not that of a hole. `zeros` has the digests of holes, of the data and of each level.
    fn first_not_zero(
        self,
        verity: &Verity,
        zeros: &[Vec<u8>],
        level: usize,
        below: Range<u64>,
    ) -> Result<Option<u64>> {
        let per_block = verity.tree.per_block();
        // The blocks of `level` that have digests of the range only.
        let whole = below.start.div_ceil(per_block)..below.end / per_block;
        if level >= verity.tree.depth() || whole.is_empty() {
            return self.search_not_zero(verity, zeros, level, below);
        }
        let (head, tail) = (below.start..whole.start * per_block, whole.end * per_block..below.end);
        if let Some(found) = self.search_not_zero(verity, zeros, level, head)? {
            return Ok(Some(found));
        }
        if let Some(above) = self.first_not_zero(verity, zeros, level + 1, whole)? {
            let first = above * per_block;
            return self.search_not_zero(verity, zeros, level, first..first + per_block);
        }
        self.search_not_zero(verity, zeros, level, tail)
    }

    /// Searches as [`first_not_zero`](Self::first_not_zero) does, but looks at each digest.
    fn search_not_zero(
        self,
        verity: &Verity,
        zeros: &[Vec<u8>],
        level: usize,
        below: Range<u64>,
    ) -> Result<Option<u64>> {
        let (first, mut digests) = (below.start, Vec::new());
        self.collect(verity, level, below, &mut digests)?;
        let zero = zeros.get(level).map_or(&[][..], Vec::as_slice);
        let mut each = digests.chunks_exact(verity.tree.algorithm().digest_size());
        Ok(each.position(|digest| digest != zero).map(|at| first + at as u64))
    }

    fn verity(self) -> Result<Option<&'n Verity>> {
        if !self.is_verity() {
            return Ok(None);
        }
        let known = &self.file.verity;
        if let Some(verity) = known.get() {
            return Ok(Some(verity));
        }
        let (descriptor, start) = self.descriptor()?;
        Ok(Some(known.get_or_init(|| Verity::new(&self.fs().pages, self.node.ino, descriptor, start))))
    }

    /// Reads the descriptor. Returns where the tree begins too.
    fn descriptor(self) -> Result<(VerityDescriptor, u64)> {
        let (ino, block) = (self.node.ino, u64::from(self.fs().block_size));
        if !map::is_tree(&self.node.state()) {
            return Err(VerityError::NoExtents { ino }.into());
        }
        let last = MAX_BLOCKS - 1;
        let end = match self.map(last)? {
            Mapping::Hole { before, .. } => last - before,
            Mapping::Mapped { .. } => MAX_BLOCKS,
        };
        let end = u64::from(end) * block;
        let place = |len, rule| Error::from(VerityError::Place { ino, len, end, rule });
        let size = self.file.size();
        let start = tree_start(size).filter(|start| *start < end);
        let start = start.ok_or_else(|| place(0, "no block lies behind i_size"))?;
        let mut len = [0; 4];
        self.read_behind(&mut len, end - 4)?;
        let len = u32::from_le_bytes(len);
        if !(DESCRIPTOR_SIZE..=MAX_DESCRIPTOR).contains(&(len as usize)) {
            return Err(place(len, "256 to 16384 are allowed"));
        }
        let at = (end - 4).checked_sub(len.into()).map(|at| at / block * block);
        let at = at.filter(|at| *at >= start).ok_or_else(|| place(len, "it begins before the tree"))?;
        let mut bytes = vec![0; len as usize];
        self.read_behind(&mut bytes, at)?;
        let descriptor = VerityDescriptor::parse(&bytes, size, self.fs().block_size)
            .map_err(|error| VerityError::Descriptor { ino, error })?;
        let tree = tree_of(&descriptor);
        if start.checked_add(tree.size()).and_then(|end| end.checked_next_multiple_of(block)) != Some(at) {
            return Err(place(len, "it does not follow the tree"));
        }
        Ok((descriptor, start))
    }

    /// Reads from the device what lies behind i_size.
    fn read_behind(self, buf: &mut [u8], at: u64) -> Result<()> {
        let ops = io::plan_read(self.fs(), at, buf, |lblk| self.map(lblk))?;
        io::read(self.fs(), ops, io::ReadPath::AsOpened)
    }

    /// Adds to `digests` those of `below`, blocks of the level below `level` or of the data.
    fn collect(self, verity: &Verity, level: usize, below: Range<u64>, digests: &mut Vec<u8>) -> Result<()> {
        let tree = &verity.tree;
        if below.is_empty() {
            return Ok(());
        }
        if level == tree.depth() {
            digests.extend_from_slice(&verity.descriptor.root_hash);
            return Ok(());
        }
        let (size, per_block) = (tree.algorithm().digest_size(), tree.per_block());
        let mut next = below.start;
        for block in tree.above(level, &below) {
            let end = (next / per_block + 1).saturating_mul(per_block).min(below.end);
            let at = (next % per_block) as usize * size;
            let before = digests.len();
            digests.resize(before + (end - next) as usize * size, 0);
            self.read_tree(verity, (level, block), at, &mut digests[before..])?;
            next = end;
        }
        Ok(())
    }

    /// Copies from byte `at` of a block of the tree on. Reads and verifies the block if it is not
    /// cached.
    fn read_tree(self, verity: &Verity, place: (usize, u64), at: usize, out: &mut [u8]) -> Result<()> {
        let (level, block) = place;
        let Verity { tree, blocks, .. } = verity;
        let (ino, size) = (self.node.ino, tree.block_size() as usize);
        let page = u32::try_from(block).map_err(|_| Error::FileTooBig)?;
        let offset = block * u64::from(self.fs().block_size) + at as u64;
        if blocks.read(offset, out) == out.len() {
            return Ok(());
        }
        let mut expected = Vec::new();
        let number = tree.in_level(level, block);
        self.collect(verity, level + 1, number..number + 1, &mut expected)?;
        let mut span = blocks.span(page..page.saturating_add(1));
        span.fill(page..page.saturating_add(1), |segments| {
            for segment in segments {
                let (stored, rest) = segment.buf.split_at_mut(size.min(segment.buf.len()));
                rest.fill(0);
                self.read_behind(stored, verity.start + block * size as u64)?;
                if tree.digests(stored) != expected {
                    return Err(VerityError::Tree { ino, block }.into());
                }
            }
            Ok::<(), Error>(())
        })?;
        span.copy_out(out, offset);
        Ok(())
    }
}

/// Returns the digests of blocks of a hole: of zeros, then of a block of the tree that has only
/// such digests, and so on for each level.
fn zero_digests(verity: &Verity) -> Vec<Vec<u8>> {
    let tree = &verity.tree;
    let zeros = tree.digests(&vec![0; tree.block_size() as usize]);
    let above = |digest: &Vec<u8>| Some(tree.digests(&digest.repeat(tree.per_block() as usize)));
    std::iter::successors(Some(zeros), above).take(tree.depth() + 1).collect()
}

impl Expected<'_> {
    /// Checks blocks that were read from the device, with zeros behind i_size.
    ///
    /// # Errors
    /// [`VerityError::Data`]: the first block that is wrong.
    pub(super) fn check(&self, segments: &[Segment<'_>], volume_block: u32) -> Result<()> {
        let tree = &self.verity.tree;
        for segment in segments {
            let start = u64::from(segment.lblk) * u64::from(volume_block) / u64::from(tree.block_size());
            let made = tree.digests(segment.buf);
            self.check_each(
                made.chunks_exact(tree.algorithm().digest_size()),
                start.saturating_sub(self.first),
            )?;
        }
        Ok(())
    }

    /// Checks the digests of the blocks from the one with number `skipped` on.
    fn check_each<'d>(&self, made: impl Iterator<Item = &'d [u8]>, skipped: u64) -> Result<()> {
        let count = usize::try_from(skipped).unwrap_or(usize::MAX);
        let expected = self.digests.chunks_exact(self.verity.tree.algorithm().digest_size()).skip(count);
        match made.zip(expected).position(|(made, expected)| made != expected) {
            Some(at) => {
                let block = self.first + skipped + at as u64;
                Err(VerityError::Data { ino: self.ino, block }.into())
            }
            None => Ok(()),
        }
    }
}
