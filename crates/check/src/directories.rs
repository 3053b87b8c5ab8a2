//! The pass over directories: each block, each entry, and the inode that the entry leads to.

use crate::dir_body::{Content, DirBody};
use crate::finding::Structure;
use crate::htree::Index;
use crate::rule::Rule;
use crate::{Check, CheckError};
use lanefs_device::AlignedBuf;
use lanefs_format::EXT4_ROOT_INO;
use lanefs_format::dirent::{self, DirLayout, Dirent};
use lanefs_format::extent::Extent;
use std::collections::{HashMap, HashSet};

/// Bytes of a directory that are read at a time.
const CHUNK: usize = 256 << 10;

/// The state that the checks of a directory's blocks share.
#[derive(Debug)]
struct Names<'a> {
    dir: &'a DirBody,
    index: Option<Index>,
    /// A hash of each name.
    hashes: Vec<u64>,
    dotdot: u32,
}

impl Check {
    /// Checks every directory.
    pub(crate) fn check_directories(&mut self) -> Result<(), CheckError> {
        let bodies = std::mem::take(&mut self.dir_bodies);
        let longest = bodies.iter().flat_map(DirBody::runs).map(|run| run.len).max();
        let mut buf = self.io.chunk(longest.unwrap_or(0).into(), CHUNK);
        for (at, body) in bodies.into_iter().enumerate() {
            let dotdot = match &body.content {
                Content::Inline { head, rest } => self.check_inline_dir(&body, head, rest),
                Content::Blocks { runs, blocks } => self.check_block_dir(&body, runs, *blocks, &mut buf)?,
            };
            if let Some(dir) = self.dirs.get_mut(at) {
                dir.dotdot = dotdot;
            }
        }
        Ok(())
    }

    fn check_block_dir(
        &mut self,
        dir: &DirBody,
        runs: &[Extent],
        blocks: u64,
        buf: &mut AlignedBuf,
    ) -> Result<u32, CheckError> {
        let index = if dir.indexed { self.read_index(dir, runs, blocks)? } else { None };
        let mut names = Names { dir, index, hashes: Vec::new(), dotdot: 0 };
        let block_size = self.layout.block_size() as usize;
        let per_chunk = (buf.len() / block_size) as u32;
        let mut next = 0;
        for run in runs {
            if run.ee_block > next {
                self.findings.add(Structure::Directory { ino: dir.ino }, Rule::DirHole { lblk: next });
            }
            next = run.ee_block.saturating_add(run.len);
            for from in (0..run.len).step_by(per_chunk as usize) {
                let count = per_chunk.min(run.len - from);
                let bytes = &mut buf[..count as usize * block_size];
                self.io.read(run.ee_start + u64::from(from), bytes)?;
                for (n, block) in bytes.chunks_exact(block_size).enumerate() {
                    self.check_dir_block(&mut names, run.ee_block + from + n as u32, block);
                }
            }
        }
        if next == 0 {
            self.findings.add(Structure::Directory { ino: dir.ino }, Rule::DirHole { lblk: 0 });
        }
        let Names { hashes, dotdot, .. } = names;
        self.check_duplicates(dir, runs, hashes)?;
        Ok(dotdot)
    }

    fn check_dir_block(&mut self, names: &mut Names<'_>, lblk: u32, block: &[u8]) {
        let dir = names.dir;
        let structure = Structure::DirBlock { ino: dir.ino, lblk };
        let mut layout = self.dir_layout;
        let mut range = None;
        if let Some(index) = &names.index {
            if lblk == 0 {
                return self.check_root_dots(names, block);
            }
            if index.is_node(lblk) {
                return;
            }
            range = index.leaf(lblk);
            if range.is_none() {
                self.findings.add(Structure::Htree { ino: dir.ino, lblk }, Rule::HtreeNotNamed);
            }
        }
        if layout.checksums
            && let Err(e) = dirent::verify_checksum(block, &layout, dir.seed)
        {
            self.findings.add(structure, e);
            if matches!(e, dirent::DirentError::TailMissing { .. }) {
                layout.checksums = false;
            }
        }
        let hasher = names.index.as_ref().and_then(|index| index.hasher);
        for (n, entry) in dirent::entries(block, &layout).enumerate() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(e) => {
                    self.findings.add(structure, e);
                    return;
                }
            };
            if lblk == 0 && n < 2 {
                self.check_dot(names, n, &entry, block);
                continue;
            }
            if entry.inode == 0 {
                continue;
            }
            let place = Structure::Dirent { ino: dir.ino, lblk, offset: entry.offset };
            if let (Some(range), Some(hasher)) = (range, hasher) {
                let hash = hasher.hash(entry.name).major;
                if hash < range.low || hash > range.high {
                    let (low, high) = (range.low, range.high);
                    self.findings.add(place, Rule::HashRange { hash, low, high });
                }
            }
            if self.check_entry(dir, place, &entry, block) {
                names.hashes.push(name_hash(entry.name));
            }
        }
    }

    /// Checks the dots of an index root, which has no other entries.
    fn check_root_dots(&mut self, names: &mut Names<'_>, block: &[u8]) {
        let layout = DirLayout { checksums: false, ..self.dir_layout };
        for (n, entry) in dirent::entries(block, &layout).map_while(Result::ok).take(2).enumerate() {
            self.check_dot(names, n, &entry, block);
        }
    }

    /// Checks "." (`n` 0) or ".." (`n` 1) of a block that is no index root.
    fn check_dot(&mut self, names: &mut Names<'_>, n: usize, entry: &Dirent<'_>, block: &[u8]) {
        let ino = names.dir.ino;
        let place = Structure::Dirent { ino, lblk: 0, offset: entry.offset };
        let (expected, missing): (&[u8], _) = match n {
            0 => (b".", "the first entry is not \".\""),
            _ => (b"..", "the second entry is not \"..\""),
        };
        if entry.inode == 0 || entry.name != expected {
            return self.findings.add(place, Rule::Dot { what: missing });
        }
        if n == 0 && entry.inode != ino {
            self.findings.add(place, Rule::DotInode { found: entry.inode });
        }
        if n == 0 && entry.rec_len != dirent::MIN_REC_LEN {
            self.findings.add(place, Rule::Dot { what: "the rec_len of \".\" is not 12" });
        }
        let end = entry.offset + dirent::HEADER_LEN + entry.name.len();
        if block.get(end).is_some_and(|byte| *byte != 0) {
            self.findings.add(place, Rule::Dot { what: "no zero byte ends the name" });
        }
        if n == 1 {
            names.dotdot = entry.inode;
        }
        self.check_type(place, entry, block);
        self.lead(entry.inode, true);
    }

    /// Checks an entry in use, and counts it for the inode that it leads to. Returns whether its
    /// name counts.
    fn check_entry(&mut self, dir: &DirBody, place: Structure, entry: &Dirent<'_>, block: &[u8]) -> bool {
        let (ino, max) = (entry.inode, self.layout.inodes_count());
        let mut add = |rule| self.findings.add(place, rule);
        if ino > max {
            add(Rule::TargetRange { ino, max });
            return false;
        }
        if ino != EXT4_ROOT_INO && ino < self.sb.first_ino() {
            add(Rule::ReservedTarget { ino });
            return false;
        }
        if entry.name.is_empty() {
            add(dirent::DirentError::NameEmpty { offset: entry.offset, inode: ino }.into());
        }
        if entry.name == b"." || entry.name == b".." {
            add(Rule::DotName);
        }
        if let Some(&byte) = entry.name.iter().find(|b| matches!(b, 0 | b'/')).filter(|_| !dir.encrypted) {
            add(dirent::DirentError::NameByte { offset: entry.offset, inode: ino, byte }.into());
        }
        if ino == EXT4_ROOT_INO {
            add(Rule::RootTarget);
            return true;
        }
        let note = self.inodes.get(ino);
        if !note.in_use || note.links == 0 && self.orphans.contains(&ino) {
            add(Rule::UnusedTarget { ino });
            return true;
        }
        self.check_type(place, entry, block);
        if let Ok(at) = self.dirs.binary_search_by_key(&ino, |dir| dir.ino) {
            match self.dirs[at].parent {
                0 => self.dirs[at].parent = dir.ino,
                parent => self.findings.add(place, Rule::SecondParent { ino, parent }),
            }
        }
        self.lead(ino, false);
        true
    }

    /// Checks the recorded type of an entry.
    fn check_type(&mut self, place: Structure, entry: &Dirent<'_>, block: &[u8]) {
        let ino = entry.inode;
        let Some(file_type) = self.inodes.get(ino).file_type else { return };
        let found = block.get(entry.offset + 7).copied().unwrap_or_default();
        let expected = if self.dir_layout.file_types { file_type.dirent_type() } else { 0 };
        // 0 says that the type is to be looked up in the inode.
        if found != expected && found != 0 {
            self.findings.add(place, Rule::FileType { found, expected, ino });
        }
    }

    /// Counts an entry for the inode that it leads to. The dots may lead to inodes that are not
    /// in use, of which no other pass knows.
    fn lead(&mut self, ino: u32, dot: bool) {
        if (!dot || self.inodes.get(ino).in_use)
            && let Some(note) = self.inodes.get_mut(ino)
        {
            note.entries = note.entries.saturating_add(1);
        }
    }

    /// Checks that no name is there twice: by hashes first, and where two agree by the names.
    fn check_duplicates(
        &mut self,
        dir: &DirBody,
        runs: &[Extent],
        mut hashes: Vec<u64>,
    ) -> Result<(), CheckError> {
        hashes.sort_unstable();
        let mut twice: HashMap<u64, HashSet<Vec<u8>>> = HashMap::new();
        for pair in hashes.windows(2).filter(|pair| pair[0] == pair[1]) {
            twice.insert(pair[0], HashSet::new());
        }
        if twice.is_empty() {
            return Ok(());
        }
        for run in runs {
            for n in 0..run.len {
                let block = self.io.block(run.ee_start + u64::from(n))?;
                let lblk = run.ee_block + n;
                for entry in dirent::entries(&block, &self.dir_layout).map_while(Result::ok) {
                    let hash = name_hash(entry.name);
                    let Some(names) = twice.get_mut(&hash).filter(|_| entry.inode != 0) else { continue };
                    if !names.insert(entry.name.to_vec()) {
                        let place = Structure::Dirent { ino: dir.ino, lblk, offset: entry.offset };
                        self.findings.add(place, Rule::DuplicateName { hash });
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks a directory that lies in its inode. Returns its parent.
    fn check_inline_dir(&mut self, dir: &DirBody, head: &[u8; 60], rest: &[u8]) -> u32 {
        let parent = crate::io::le32(head, 0);
        self.lead(dir.ino, true);
        self.lead(parent, true);
        let mut seen: HashSet<Vec<u8>> = HashSet::new();
        for (lblk, piece) in (0..).zip([&head[4..], rest]) {
            let layout = DirLayout { block_size: piece.len(), checksums: false, ..self.dir_layout };
            for entry in dirent::entries(piece, &layout) {
                let entry = match entry {
                    Ok(entry) => entry,
                    Err(e) => {
                        self.findings.add(Structure::DirBlock { ino: dir.ino, lblk }, e);
                        break;
                    }
                };
                let place = Structure::Dirent { ino: dir.ino, lblk, offset: entry.offset };
                if entry.inode != 0
                    && self.check_entry(dir, place, &entry, piece)
                    && !seen.insert(entry.name.to_vec())
                {
                    self.findings.add(place, Rule::DuplicateName { hash: name_hash(entry.name) });
                }
            }
        }
        parent
    }
}

/// Returns a hash to tell names apart. Names with equal hashes, of which a crafted directory may
/// have millions, go into a set with a key of its own.
fn name_hash(name: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    name.chunks(8).fold(name.len() as u64, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (hash.rotate_left(23) ^ u64::from_le_bytes(word)).wrapping_mul(FACTOR)
    })
}
