//! The fields of a superblock that a user may change later: those that tune2fs sets and that no
//! other structure of the volume depends on.

use super::Superblock;
use crate::checksum::ext4_chksum;
use crate::hash::HashVersion;
use crate::{Compat, Incompat, RoCompat, mmp};

/// Bytes of `s_volume_name`.
const LABEL_MAX: usize = 16;
/// Bytes of `s_mount_opts`, without the zero behind them.
const MOUNT_OPTS_MAX: usize = 63;

/// New values of fields of the superblock; `None` leaves a field as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tuning {
    /// `s_volume_name`: at most 16 bytes, none of them zero.
    pub label: Option<Vec<u8>>,
    /// `s_uuid`. Checksums of metadata depend on it, unless `s_checksum_seed` is in use.
    pub uuid: Option<[u8; 16]>,
    /// Whether checksums begin with `s_checksum_seed` instead of the UUID (`metadata_csum_seed`).
    pub checksum_seed: Option<bool>,
    /// Blocks that only the privileged may take: at most half of all.
    pub reserved_blocks: Option<u64>,
    /// The user besides root that may take them.
    pub reserved_uid: Option<u16>,
    /// The group that may take them.
    pub reserved_gid: Option<u16>,
    /// What the kernel does when it finds an error.
    pub errors: Option<ErrorBehavior>,
    /// Mounts until e2fsck checks the volume; 65535 is never.
    pub max_mount_count: Option<u16>,
    /// Seconds until e2fsck checks the volume; 0 is never.
    pub check_interval: Option<u32>,
    /// Bits of `s_default_mount_opts`.
    pub default_mount_options: Option<BitEdit>,
    /// `s_mount_opts`: options for a mount by the kernel, at most 63 bytes.
    pub mount_options: Option<Vec<u8>>,
    /// The hash by which new directories are indexed.
    pub hash_version: Option<HashVersion>,
}

/// A change of bits of a word: `clear` is taken away first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BitEdit {
    /// Bits that become 0.
    pub clear: u32,
    /// Bits that become 1.
    pub set: u32,
}

/// `s_errors`: what the kernel does when it finds an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorBehavior {
    /// It goes on.
    Continue = 1,
    /// It mounts the volume read-only.
    RemountReadOnly = 2,
    /// It panics.
    Panic = 3,
}

/// The reason why a superblock is not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TuningError {
    /// A label that `s_volume_name` cannot hold.
    #[error("a label has at most 16 bytes, none of them zero")]
    Label,
    /// Options that `s_mount_opts` cannot hold.
    #[error("mount options of the volume have at most 63 bytes, none of them zero")]
    MountOptions,
    /// More reserved blocks than half of the volume.
    #[error("{blocks} reserved blocks, at most {max} of this volume may be reserved")]
    ReservedBlocks {
        /// Blocks asked for.
        blocks: u64,
        /// Half of the volume.
        max: u64,
    },
    /// Each checksum of the volume depends on its UUID.
    #[error(
        "the checksums of the volume depend on its UUID: set the feature metadata_csum_seed first, or let \
         tune2fs -U write all of them anew"
    )]
    UuidInChecksums,
    /// Each checksum of a group descriptor depends on the UUID.
    #[error(
        "the checksums of the group descriptors (uninit_bg) depend on the UUID: tune2fs -U writes them anew"
    )]
    UuidInDescriptors,
    /// `stable_inodes`: encrypted files depend on the UUID.
    #[error("the volume has the feature stable_inodes: encrypted files depend on its UUID")]
    UuidIsStable,
    /// `metadata_csum_seed` without `metadata_csum`.
    #[error("metadata_csum_seed needs metadata_csum")]
    NoChecksums,
    /// The seed is not the one that the UUID gives.
    #[error(
        "the UUID has changed since the feature metadata_csum_seed was set, and the checksums of the volume \
         depend on the first one: tune2fs -O ^metadata_csum_seed writes all of them anew"
    )]
    SeedInUse,
}

impl Superblock {
    /// Changes the fields that `tuning` names, or none of them.
    ///
    /// # Errors
    /// [`TuningError`]: a value that the field cannot have, or on which checksums depend.
    pub fn tune(&mut self, tuning: &Tuning) -> Result<(), TuningError> {
        let mut tuned = self.clone();
        tuned.tune_names(tuning)?;
        tuned.tune_reserved(tuning)?;
        tuned.tune_numbers(tuning);
        *self = tuned;
        Ok(())
    }

    /// Changes label, mount options, and the UUID with what depends on it.
    fn tune_names(&mut self, tuning: &Tuning) -> Result<(), TuningError> {
        if let Some(label) = &tuning.label {
            fits(label, LABEL_MAX).ok_or(TuningError::Label)?;
            self.set_label(label);
        }
        if let Some(options) = &tuning.mount_options {
            fits(options, MOUNT_OPTS_MAX).ok_or(TuningError::MountOptions)?;
            self.raw.s_mount_opts = [0; MOUNT_OPTS_MAX + 1];
            super::fields::copy_cut(&mut self.raw.s_mount_opts, options);
        }
        if tuning.checksum_seed == Some(true) {
            self.set_checksum_seed()?;
        }
        if let Some(uuid) = tuning.uuid.filter(|uuid| *uuid != self.raw.s_uuid) {
            self.check_uuid_is_free()?;
            self.raw.s_uuid = uuid;
        }
        if tuning.checksum_seed == Some(false) {
            self.clear_checksum_seed()?;
        }
        Ok(())
    }

    fn set_checksum_seed(&mut self) -> Result<(), TuningError> {
        if !self.has_ro(RoCompat::METADATA_CSUM) {
            return Err(TuningError::NoChecksums);
        }
        if !self.has_in(Incompat::CSUM_SEED) {
            self.raw.s_checksum_seed = ext4_chksum(!0, &self.raw.s_uuid).into();
            self.set_incompat(Incompat::CSUM_SEED, true);
        }
        Ok(())
    }

    fn clear_checksum_seed(&mut self) -> Result<(), TuningError> {
        if self.has_in(Incompat::CSUM_SEED) {
            if self.raw.s_checksum_seed != ext4_chksum(!0, &self.raw.s_uuid) {
                return Err(TuningError::SeedInUse);
            }
            self.raw.s_checksum_seed = 0.into();
            self.set_incompat(Incompat::CSUM_SEED, false);
        }
        Ok(())
    }

    /// Returns the MMP block (`s_mmp_block`, not checked) and the seconds between two updates
    /// (`s_mmp_update_interval`, 5 for 0), `None` without multiple mount protection.
    pub fn mmp(&self) -> Option<(u64, u16)> {
        let interval = mmp::update_interval(self.raw.s_mmp_update_interval.get());
        self.has_in(Incompat::MMP).then(|| (self.raw.s_mmp_block.get(), interval))
    }

    /// Sets the MMP block and the seconds between two updates, at most 300; `None` ends multiple
    /// mount protection.
    pub fn set_mmp(&mut self, mmp: Option<(u64, u16)>) {
        let (block, interval) = mmp.unwrap_or_default();
        self.set_incompat(Incompat::MMP, mmp.is_some());
        self.raw.s_mmp_block = block.into();
        self.raw.s_mmp_update_interval = interval.min(mmp::EXT4_MMP_MAX_UPDATE_INTERVAL).into();
    }

    fn set_incompat(&mut self, bit: Incompat, on: bool) {
        let mut bits = self.features().incompat;
        bits.set(bit, on);
        self.raw.s_feature_incompat = bits.bits().into();
    }

    /// Checks that no stored checksum depends on the UUID.
    fn check_uuid_is_free(&self) -> Result<(), TuningError> {
        if self.has(Compat::STABLE_INODES) {
            return Err(TuningError::UuidIsStable);
        }
        if self.has_ro(RoCompat::METADATA_CSUM) {
            return self.has_in(Incompat::CSUM_SEED).then_some(()).ok_or(TuningError::UuidInChecksums);
        }
        if self.has_ro(RoCompat::GDT_CSUM) {
            return Err(TuningError::UuidInDescriptors);
        }
        Ok(())
    }

    fn tune_reserved(&mut self, tuning: &Tuning) -> Result<(), TuningError> {
        if let Some(blocks) = tuning.reserved_blocks {
            let max = self.blocks_count() / 2;
            if blocks > max {
                return Err(TuningError::ReservedBlocks { blocks, max });
            }
            self.raw.s_r_blocks_count_lo = (blocks as u32).into();
            if self.has_in(Incompat::BIT64) {
                self.raw.s_r_blocks_count_hi = ((blocks >> 32) as u32).into();
            }
        }
        if let Some(uid) = tuning.reserved_uid {
            (self.raw.s_def_resuid, self.raw.s_def_resuid_hi) = (uid.into(), 0.into());
        }
        if let Some(gid) = tuning.reserved_gid {
            (self.raw.s_def_resgid, self.raw.s_def_resgid_hi) = (gid.into(), 0.into());
        }
        Ok(())
    }

    fn tune_numbers(&mut self, tuning: &Tuning) {
        let raw = &mut self.raw;
        if let Some(errors) = tuning.errors {
            raw.s_errors = (errors as u16).into();
        }
        if let Some(count) = tuning.max_mount_count {
            raw.s_max_mnt_count = count.into();
        }
        if let Some(seconds) = tuning.check_interval {
            raw.s_checkinterval = seconds.into();
        }
        if let Some(BitEdit { clear, set }) = tuning.default_mount_options {
            raw.s_default_mount_opts = (raw.s_default_mount_opts.get() & !clear | set).into();
        }
        if let Some(version) = tuning.hash_version {
            raw.s_def_hash_version = version.to_raw();
        }
    }
}

fn fits(text: &[u8], max: usize) -> Option<()> {
    (text.len() <= max && !text.contains(&0)).then_some(())
}
