//! The content of an inode: its map and the blocks that it claims, its size, its link target.

use crate::block_map::BlockMap;
use crate::dir_body::{Content, Dir, DirBody};
use crate::finding::{Findings, Structure};
use crate::map::{MapWalk, Visit};
use crate::rule::Rule;
use crate::{Check, CheckError};
use lanefs_format::extent::{Extent, MAX_BLOCKS};
use lanefs_format::{EXT4_ROOT_INO, FileType, Inode, InodeFlags, Layout, RoCompat};

/// Bytes of `i_block`, where a fast symlink and inline data begin.
const I_BLOCK: u64 = 60;
/// Files from this size on need the feature `large_file`.
const LARGE_FILE: u64 = 1 << 31;

impl Check {
    /// Checks the attributes and the map of an inode, and claims their blocks.
    pub(crate) fn check_contents(&mut self, inode: &Inode) -> Result<(), CheckError> {
        self.note_size(inode);
        let (inline, values) = self.check_xattr_area(inode);
        let own = values + self.claim_xattr_block(inode)?;
        let file_type = FileType::from_mode(inode.mode);
        let fast = inode.fast_symlink(&self.inode_ctx);
        let has_map = match file_type {
            Some(FileType::Regular | FileType::Directory) | None => true,
            Some(FileType::Symlink) => fast.is_none(),
            Some(_) => false,
        };
        if inode.flags.contains(InodeFlags::INLINE_DATA) {
            self.check_inline(inode, inline);
            self.check_blocks(inode, own);
            return Ok(());
        }
        if let Some(target) = fast {
            self.check_target(inode, &inode.i_block, target.len() as u64);
        }
        if !has_map {
            self.check_blocks(inode, own);
            return Ok(());
        }
        let is_dir = file_type == Some(FileType::Directory);
        let shared = self.sb.has_ro(RoCompat::SHARED_BLOCKS);
        let mut claims = Claims {
            ino: inode.ino,
            layout: &self.layout,
            blocks: &mut self.blocks,
            findings: &mut self.findings,
            keep: is_dir || file_type == Some(FileType::Symlink),
            is_dir,
            has_extents: inode.flags.contains(InodeFlags::EXTENTS),
            shared,
            runs: Vec::new(),
            mapped: own,
            end: 0,
            written_end: 0,
            last: None,
        };
        let seed = inode.seed(&self.csum);
        MapWalk { io: &self.io, layout: &self.layout, inode, seed }.walk(&mut claims)?;
        let Claims { runs, mapped, end, written_end, .. } = claims;
        self.check_blocks(inode, mapped);
        self.check_block_mapped(inode, file_type);
        self.check_size(inode, file_type, end, written_end);
        match file_type {
            // What was removed while it was in use waits for its deletion, which may have begun:
            // its entries or its target do not count.
            Some(FileType::Directory | FileType::Symlink) if inode.links_count == 0 => {}
            Some(FileType::Directory) => {
                let blocks = inode.size / u64::from(self.layout.block_size());
                self.push_dir(inode, Content::Blocks { runs, blocks });
            }
            Some(FileType::Symlink) => self.check_slow_target(inode, &runs)?,
            _ => {}
        }
        Ok(())
    }

    /// Checks an inode without a type: it has no map, whatever is in `i_block`.
    pub(crate) fn check_without_map(&mut self, inode: &Inode) -> Result<(), CheckError> {
        let own = self.claim_xattr_block(inode)?;
        self.check_blocks(inode, own);
        Ok(())
    }

    /// Notes a file that is so large that it needs a feature.
    pub(crate) fn note_size(&mut self, inode: &Inode) {
        self.large_file |= inode.is_regular() && inode.size >= LARGE_FILE;
    }

    fn check_blocks(&mut self, inode: &Inode, mapped: u64) {
        let counted = mapped * u64::from(self.layout.block_size() / 512);
        if inode.blocks != counted {
            self.findings
                .add(Structure::Inode { ino: inode.ino }, Rule::Blocks { found: inode.blocks, counted });
        }
    }

    /// Checks that a file or a directory with blocks has extents on a volume with clusters: the
    /// kernel allocates no cluster for a block map. Attributes have a cluster of their own.
    fn check_block_mapped(&mut self, inode: &Inode, file_type: Option<FileType>) {
        let grows = matches!(file_type, Some(FileType::Regular | FileType::Directory));
        let is_named = inode.ino == EXT4_ROOT_INO || inode.ino >= self.sb.first_ino();
        let cluster = u64::from(self.layout.block_size() / 512) << self.layout.cluster_bits();
        let attributes = if inode.file_acl == 0 { 0 } else { cluster };
        let has_data = inode.blocks != attributes;
        let is_table = !inode.flags.contains(InodeFlags::EXTENTS);
        if self.sb.has_ro(RoCompat::BIGALLOC) && grows && is_named && has_data && is_table {
            self.findings.add(Structure::Inode { ino: inode.ino }, Rule::BlockMapped);
        }
    }

    /// Checks `i_size` against the end of the map, in blocks, and of its written part.
    fn check_size(&mut self, inode: &Inode, file_type: Option<FileType>, end: u64, written_end: u64) {
        let block_size = u64::from(self.layout.block_size());
        let (found, structure) = (inode.size, Structure::Inode { ino: inode.ino });
        let most = self.max_blocks(inode).saturating_mul(block_size);
        let mut add = |why, bound| self.findings.add(structure, Rule::Size { found, why, bound });
        match file_type {
            Some(FileType::Directory) if inode.links_count == 0 => {}
            Some(FileType::Directory) if found % block_size != 0 => add("not a multiple of", block_size),
            Some(FileType::Directory) if found / block_size != end => {
                add("the map ends at", end * block_size)
            }
            Some(FileType::Regular) => {
                let least = written_end.saturating_sub(1) * block_size;
                let waits = self.orphans.contains(&inode.ino) || inode.flags.contains(InodeFlags::VERITY);
                if found < least && !waits {
                    add("blocks are written up to", least);
                }
                if found > most {
                    add("the map can reach to", most);
                }
            }
            _ => {}
        }
    }

    /// Returns the blocks that the map of an inode can reach.
    fn max_blocks(&self, inode: &Inode) -> u64 {
        if inode.flags.contains(InodeFlags::EXTENTS) {
            return MAX_BLOCKS.into();
        }
        let n = u64::from(self.layout.block_size() / 4);
        12 + n + n * n + n * n * n
    }

    /// Keeps a directory for the next pass; they come in the order of their numbers.
    fn push_dir(&mut self, inode: &Inode, content: Content) {
        let seed = inode.seed(&self.csum);
        self.dirs.push(Dir { ino: inode.ino, parent: 0, dotdot: 0 });
        self.dir_bodies.push(DirBody::new(inode, seed, content));
    }

    /// Checks data that lies in the inode itself; `rest` is the value of its attribute.
    fn check_inline(&mut self, inode: &Inode, rest: Option<Vec<u8>>) {
        let structure = Structure::Inode { ino: inode.ino };
        let Some(rest) = rest else {
            let what = "INLINE_DATA is set, and there is no attribute system.data";
            return self.findings.add(structure, Rule::InlineData { what });
        };
        let room = I_BLOCK + rest.len() as u64;
        if inode.size > room || inode.is_dir() && inode.size != room {
            self.findings
                .add(structure, Rule::Size { found: inode.size, why: "inline data has", bound: room });
        }
        if inode.is_symlink() {
            let target = [&inode.i_block[..], &rest].concat();
            self.check_target(inode, &target, inode.size);
        }
        if inode.is_dir() && inode.links_count > 0 {
            self.push_dir(inode, Content::Inline { head: inode.i_block, rest });
        }
    }

    /// Checks that the target of a symlink has no zero byte before its end and one behind it.
    fn check_target(&mut self, inode: &Inode, bytes: &[u8], size: u64) {
        if inode.flags.contains(InodeFlags::ENCRYPT) {
            return;
        }
        let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()) as u64;
        if len != size || size == 0 {
            self.findings.add(Structure::Inode { ino: inode.ino }, Rule::SymlinkTarget { len, size });
        }
    }

    fn check_slow_target(&mut self, inode: &Inode, runs: &[Extent]) -> Result<(), CheckError> {
        let block_size = u64::from(self.layout.block_size());
        match runs {
            [run] if run.ee_block == 0 && run.len == 1 && !run.unwritten && inode.size < block_size => {
                let bytes = self.io.block(run.ee_start)?;
                self.check_target(inode, &bytes, inode.size);
            }
            _ => self.findings.add(Structure::Inode { ino: inode.ino }, Rule::SymlinkBlock),
        }
        Ok(())
    }
}

/// The claims of the blocks of one inode.
#[derive(Debug)]
struct Claims<'a> {
    ino: u32,
    layout: &'a Layout,
    blocks: &'a mut BlockMap,
    findings: &'a mut Findings,
    is_dir: bool,
    has_extents: bool,
    /// Several files may have a block (`shared_blocks`).
    shared: bool,
    /// Whether the runs are wanted.
    keep: bool,
    /// The runs of which no block was claimed before, in order.
    runs: Vec<Extent>,
    /// Blocks of whole clusters.
    mapped: u64,
    /// The logical block behind the last.
    end: u64,
    /// As `end`, of written blocks.
    written_end: u64,
    /// The last block of the run before: its logical number, and its place.
    last: Option<(u64, u64)>,
}

impl Claims<'_> {
    /// Returns the number of the cluster that a block is in.
    fn cluster(&self, block: u64) -> u64 {
        (block - self.layout.first_data_block()) >> self.layout.cluster_bits()
    }

    /// Claims a run, but for its first cluster if that is `claimed` by the same inode. Returns
    /// false, with a finding, if some of it was claimed before.
    fn claim(&mut self, block: u64, len: u64, claimed: Option<u64>) -> bool {
        let (bits, first) = (self.layout.cluster_bits(), self.layout.first_data_block());
        let (mut from, to) = (self.cluster(block), (block - first + len).div_ceil(1 << bits));
        if bits > 0 && claimed == Some(from) {
            from += 1;
        }
        self.mapped += (to - from) << bits;
        let (start, blocks) = (first + (from << bits), (to - from) << bits);
        if blocks == 0 {
            return true;
        }
        let end = (start + blocks).min(self.layout.blocks_count());
        let Some(conflict) = self.blocks.claim(start, end - start) else { return true };
        if !self.shared {
            let rule = Rule::ClaimedTwice { block: conflict.block, count: conflict.count << bits };
            self.findings.add(Structure::Inode { ino: self.ino }, rule);
        }
        false
    }

    /// Checks that the blocks of a run have the same places in a cluster as in the file, and that
    /// the run before did not put the same cluster of the file elsewhere. As e2fsck does, it counts
    /// places from block 0; [`cluster`](Self::cluster) counts from the first data block.
    fn check_clusters(&mut self, run: &Extent) {
        let bits = self.layout.cluster_bits();
        let (lblk, block) = (u64::from(run.ee_block), run.ee_start);
        let is_split = |last: (u64, u64)| last.0 >> bits == lblk >> bits && last.1 >> bits != block >> bits;
        if (lblk ^ block) & ((1 << bits) - 1) != 0 || bits > 0 && self.last.is_some_and(is_split) {
            let structure = Structure::Inode { ino: self.ino };
            self.findings.add(structure, Rule::ClusterPlace { lblk, block });
        }
    }
}

impl Visit for Claims<'_> {
    fn node(&mut self, block: u64) -> bool {
        // A node shares its cluster with no data.
        self.claim(block, 1, None)
    }

    fn data(&mut self, run: Extent) {
        self.end = self.end.max(run.end());
        if !run.unwritten {
            self.written_end = self.written_end.max(run.end());
        } else if self.is_dir {
            let structure = Structure::Inode { ino: self.ino };
            self.findings.add(structure, Rule::UnwrittenDir { lblk: run.ee_block });
        }
        // e2fsck wants this of extents alone.
        if self.has_extents {
            self.check_clusters(&run);
        }
        let len = u64::from(run.len);
        let before = self.last.map(|(_, block)| self.cluster(block));
        self.last = Some((run.end().saturating_sub(1), (run.ee_start + len).saturating_sub(1)));
        if self.claim(run.ee_start, len, before) && self.keep {
            self.runs.push(run);
        }
    }

    fn broken(&mut self, structure: Structure, rule: Rule) {
        self.findings.add(structure, rule);
    }
}
