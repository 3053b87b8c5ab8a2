//! The superblock and its copies.

use crate::finding::{Finding, Findings, Structure};
use crate::rule::Rule;
use crate::{Check, CheckError};
use lanefs_device::{AlignedBuf, BlockDevice};
use lanefs_format::{
    Compat, EXT4_MMP_SEQ_CLEAN, Features, FormatError, HashFlags, Incompat, Mmp, MmpState, RoCompat,
    SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock,
};

/// Features whose structures the check knows.
const KNOWN: Features = Features {
    compat: Compat::from_bits_retain(0x1FFF).difference(Compat::EXCLUDE_INODE.union(Compat::EXCLUDE_BITMAP)),
    incompat: Incompat::FILETYPE
        .union(Incompat::RECOVER)
        .union(Incompat::META_BG)
        .union(Incompat::EXTENTS)
        .union(Incompat::BIT64)
        .union(Incompat::MMP)
        .union(Incompat::FLEX_BG)
        .union(Incompat::EA_INODE)
        .union(Incompat::CSUM_SEED)
        .union(Incompat::LARGEDIR)
        .union(Incompat::INLINE_DATA)
        .union(Incompat::ENCRYPT)
        .union(Incompat::CASEFOLD),
    ro_compat: RoCompat::from_bits_retain(0x1_FFFF)
        .difference(RoCompat::HAS_SNAPSHOT.union(RoCompat::REPLICA)),
};

/// Reads the superblock. `None` after a finding that leaves nothing to check.
///
/// # Errors
/// No superblock at all, a feature that the check does not know, or the device's failure.
pub(crate) fn read(
    device: &dyn BlockDevice,
    findings: &mut Findings,
) -> Result<Option<Superblock>, CheckError> {
    let (at, end) = (SUPERBLOCK_OFFSET as usize, SUPERBLOCK_OFFSET as usize + SUPERBLOCK_SIZE);
    // Whole and aligned, as a direct device wants it.
    let mut bytes = AlignedBuf::zeroed(4096);
    let need = bytes.len();
    if device.size() < need as u64 {
        let len = device.size() as usize;
        return Err(CheckError::NotVolume(FormatError::Truncated { what: "superblock", len, need }));
    }
    device.read_at(&mut bytes, 0)?;
    let parsed =
        Superblock::parse(&bytes[at..end]).and_then(|sb| sb.check_device(device.size()).map(|()| sb));
    let sb = match parsed {
        Ok(sb) => sb,
        Err(e @ FormatError::BadMagic { .. }) => return Err(CheckError::NotVolume(e)),
        Err(e) => {
            findings.add(Structure::Superblock, e);
            return Ok(None);
        }
    };
    let unknown = sb.features().minus(KNOWN);
    if !unknown.is_empty() {
        return Err(CheckError::Features(unknown.to_string()));
    }
    Ok(Some(sb))
}

impl Check {
    /// Checks what the codec leaves open: rules between fields, copies, the MMP block.
    pub(crate) fn check_superblock(&mut self) -> Result<(), CheckError> {
        let max = self.sb.blocks_count() / 2;
        let mut add = |rule| self.findings.add(Structure::Superblock, rule);
        if self.sb.reserved_blocks_count() > max {
            add(Rule::ReservedBlocks { found: self.sb.reserved_blocks_count(), max });
        }
        if self.sb.flags().contains(HashFlags::SIGNED_HASH | HashFlags::UNSIGNED_HASH) {
            add(Rule::SignedAndUnsignedHash);
        }
        let csum = self.sb.has_ro(RoCompat::METADATA_CSUM);
        if csum && self.sb.has_ro(RoCompat::GDT_CSUM) {
            add(Rule::FeaturePair { feature: "metadata_csum", other: "uninit_bg" });
        }
        if self.sb.has_in(Incompat::CSUM_SEED) && !csum {
            add(Rule::NeedsFeature { feature: "metadata_csum", what: "metadata_csum_seed" });
        }
        if self.sb.has(Compat::RESIZE_INODE) && self.sb.has_in(Incompat::META_BG) {
            add(Rule::FeaturePair { feature: "resize_inode", other: "meta_bg" });
        }
        if self.sb.raw().s_journal_inum != 0 && !self.sb.has(Compat::HAS_JOURNAL) {
            add(Rule::NeedsFeature { feature: "has_journal", what: "s_journal_inum" });
        }
        let has_device = self.sb.has(Compat::HAS_JOURNAL) && self.sb.raw().s_journal_inum == 0;
        if self.sb.raw().s_journal_uuid != [0; 16] && !has_device {
            add(Rule::JournalUuid);
        }
        if self.sb.has_ro(RoCompat::ORPHAN_PRESENT) && !self.sb.has(Compat::ORPHAN_FILE) {
            add(Rule::NeedsFeature { feature: "orphan_file", what: "orphan_present" });
        }
        self.check_backups()?;
        self.check_mmp()
    }

    /// Checks that each copy is one, and of this volume.
    fn check_backups(&mut self) -> Result<(), CheckError> {
        let mut bytes = AlignedBuf::zeroed(self.layout.block_size() as usize);
        for group in 1..self.layout.group_count() {
            let Some(block) = self.layout.super_location(group) else { continue };
            self.io.read(block, &mut bytes)?;
            let structure = Structure::Backup { group };
            match Superblock::parse(&bytes) {
                Ok(copy) if copy.same_volume(&self.sb) => {}
                Ok(_) => self.findings.add(structure, Rule::OtherVolume),
                Err(e) => self.findings.add(structure, Rule::Copy { text: e.to_string() }),
            }
        }
        Ok(())
    }

    fn check_mmp(&mut self) -> Result<(), CheckError> {
        let block = self.sb.raw().s_mmp_block.get();
        if !self.sb.has_in(Incompat::MMP) || block == 0 {
            return Ok(());
        }
        let structure = Structure::Mmp { block };
        if let Err(e) = self.layout.check_blocks(block, 1) {
            self.findings.add(structure, e);
            return Ok(());
        }
        match Mmp::parse(&self.io.shared_block(block)?, block, &self.csum) {
            // Another process of this host, which holds its commits.
            Ok(mmp) if self.held && mmp.state() == MmpState::Held => {}
            Ok(mmp) => {
                if mmp.seq != EXT4_MMP_SEQ_CLEAN {
                    let rule = Rule::Mmp { seq: mmp.seq, host: shown(&mmp.nodename) };
                    self.findings.unchecked.push(Finding { structure, rule });
                }
                self.mmp = Some((block, mmp));
            }
            Err(e) => self.findings.add(structure, e),
        }
        Ok(())
    }

    /// Looks at the MMP block once more, behind the other passes.
    ///
    /// # Errors
    /// [`CheckError::InUse`]: the block has changed, so findings may be artefacts of changes.
    pub(crate) fn check_still(&self) -> Result<(), CheckError> {
        let Some((block, before)) = &self.mmp else { return Ok(()) };
        let host = match Mmp::parse(&self.io.shared_block(*block)?, *block, &self.csum) {
            Ok(now) if now == *before => return Ok(()),
            Ok(now) => now,
            Err(_) => before.clone(),
        };
        Err(CheckError::InUse { host: shown(&host.nodename), device: shown(&host.bdevname) })
    }
}

/// Returns a name of the MMP block as text for a line.
fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).escape_debug().to_string()
}
