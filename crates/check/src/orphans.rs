//! Inodes that wait for their deletion or truncation: the list through `i_dtime`, and the orphan
//! file. They are in use whatever their count of links says, until the volume is opened again.

use crate::block_map::BlockMap;
use crate::finding::Structure;
use crate::map::{MapWalk, Visit};
use crate::rule::Rule;
use crate::{Check, CheckError};
use lanefs_format::extent::Extent;
use lanefs_format::orphan_file::{self, OrphanFile};
use lanefs_format::{Compat, Inode, RoCompat};

impl Check {
    /// Reads the list and the file.
    pub(crate) fn find_orphans(&mut self) -> Result<(), CheckError> {
        let mut ino = self.sb.last_orphan();
        while ino != 0 {
            if !self.note_orphan(Structure::OrphanList, ino) {
                break;
            }
            let Some(inode) = self.read_inode(ino)? else {
                let rule = match self.was_used(ino) {
                    true => Rule::OrphanDamaged { ino },
                    false => Rule::OrphanUnused { ino },
                };
                self.findings.add(Structure::OrphanList, rule);
                break;
            };
            if inode.links_count == 0 && inode.mode == 0 {
                self.findings.add(Structure::OrphanList, Rule::OrphanUnused { ino });
            }
            ino = inode.dtime;
        }
        self.read_orphan_file()
    }

    /// Returns false, with a finding, if the number is no inode or is there already.
    fn note_orphan(&mut self, structure: Structure, ino: u32) -> bool {
        let max = self.layout.inodes_count();
        let rule = if ino < self.sb.first_ino() || ino > max {
            Rule::OrphanRange { ino, max }
        } else if !self.orphans.insert(ino) {
            Rule::OrphanTwice { ino }
        } else {
            return true;
        };
        self.findings.add(structure, rule);
        false
    }

    /// Returns whether the slot of an inode was ever used: whether its content has a meaning.
    fn was_used(&self, ino: u32) -> bool {
        self.layout.inode_slot(ino).is_ok_and(|slot| slot.index < self.used_inodes(slot.group))
    }

    /// Reads an inode by its number; `None` if it or its group is damaged, which another pass says.
    pub(crate) fn read_inode(&self, ino: u32) -> Result<Option<Inode>, CheckError> {
        let Ok(slot) = self.layout.inode_slot(ino) else { return Ok(None) };
        let Some(desc) = self.groups.get(&slot.group) else { return Ok(None) };
        let bytes = self.io.block(desc.inode_table + u64::from(slot.table_block))?;
        let bytes = bytes.get(slot.offset as usize..).unwrap_or_default();
        Ok(Inode::parse(bytes, ino, &self.inode_ctx).ok())
    }

    fn read_orphan_file(&mut self) -> Result<(), CheckError> {
        let ino = self.sb.raw().s_orphan_file_inum.get();
        if !self.sb.has(Compat::ORPHAN_FILE) || ino == 0 {
            return Ok(());
        }
        let Some(inode) = self.read_inode(ino)?.filter(Inode::is_regular) else {
            let what = "the inode of the orphan file is no file in use";
            self.findings.add(Structure::Inode { ino }, Rule::SpecialInode { what });
            return Ok(());
        };
        let seed = inode.seed(&self.csum);
        let mut blocks = Blocks { runs: Vec::new(), seen: BlockMap::new(self.layout) };
        MapWalk { io: &self.io, layout: &self.layout, inode: &inode, seed }.walk(&mut blocks)?;
        let file = OrphanFile::new(&inode, &self.csum);
        let present = self.sb.has_ro(RoCompat::ORPHAN_PRESENT);
        for run in blocks.runs {
            for block in run.ee_start..run.ee_start + u64::from(run.len) {
                let (bytes, structure) = (self.io.block(block)?, Structure::OrphanFile { block });
                if let Err(e) = file.verify(&bytes, block) {
                    self.findings.add(structure, e);
                    continue;
                }
                for orphan in orphan_file::entries(&bytes).filter(|ino| *ino != 0) {
                    if !present {
                        self.findings.add(structure, Rule::OrphanLeft { ino: orphan });
                    }
                    self.note_orphan(structure, orphan);
                }
            }
        }
        Ok(())
    }
}

/// The blocks of a file, each once. Errors of its map are for the pass over inodes to report.
#[derive(Debug)]
struct Blocks {
    runs: Vec<Extent>,
    seen: BlockMap,
}

impl Visit for Blocks {
    fn node(&mut self, block: u64) -> bool {
        self.seen.claim(block, 1).is_none()
    }

    fn data(&mut self, run: Extent) {
        if self.seen.claim(run.ee_start, run.len.into()).is_none() {
            self.runs.push(run);
        }
    }

    fn broken(&mut self, _: Structure, _: Rule) {}
}
