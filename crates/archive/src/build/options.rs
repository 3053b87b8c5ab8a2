//! The options of a build.

use super::size::VolumeSize;
use crate::import::FsVerity;
use crate::{Cause, ImportOptions};
use lanefs::format::{Features, RoCompat};
use lanefs::mkfs::Options;
use lanefs::{Timestamp, Verity};
use std::sync::Arc;
use uuid::Uuid;

/// Options of a build. By default a volume that fits, without a partition table and without a tree
/// of dm-verity.
///
/// ```
/// use lanefs_archive::{BuildOptions, VerityOptions, VolumeSize};
/// use lanefs::{Timestamp, mkfs};
/// // The same bytes each time.
/// let mut volume = mkfs::Options { label: b"root".to_vec(), ..Default::default() };
/// volume.uuid = Some([7; 16]);
/// let options = BuildOptions::new()
///     .volume(volume)
///     .size(VolumeSize::FitPercent(10))
///     .time(Timestamp { sec: 1_700_000_000, nsec: 0 })
///     .verity(VerityOptions::default());
/// ```
#[derive(Debug, Clone, Default)]
pub struct BuildOptions {
    pub(super) import: ImportOptions,
    volume: Options,
    pub(super) size: VolumeSize,
    pub(super) time: Option<Timestamp>,
    pub(super) gpt: bool,
    pub(super) verity: Option<VerityOptions>,
    pub(super) overwrite: bool,
    pub(super) keep: bool,
    fs_verity: Option<FsVerity>,
}

/// The tree of dm-verity that a build makes: SHA-256, and blocks of 4096 bytes.
#[derive(Debug, Clone, Default)]
pub struct VerityOptions {
    pub(super) salt: Option<Vec<u8>>,
    pub(super) uuid: Option<[u8; 16]>,
}

impl VerityOptions {
    /// Returns a tree with salt and UUID that follow from the volume's UUID.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the salt, at most 256 bytes.
    #[must_use]
    pub fn salt(mut self, salt: impl Into<Vec<u8>>) -> Self {
        self.salt = Some(salt.into());
        self
    }

    /// Sets the UUID of the tree.
    #[must_use]
    pub fn uuid(mut self, uuid: [u8; 16]) -> Self {
        self.uuid = Some(uuid);
        self
    }
}

impl BuildOptions {
    /// Returns the options of a volume that fits.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how the source is taken.
    #[must_use]
    pub fn import(mut self, import: ImportOptions) -> Self {
        self.import = import;
        self
    }

    /// Sets what volume is made. Its size and its number of inodes are those of
    /// [`size`](Self::size). Where the options do not say otherwise, blocks have 4096 bytes, and
    /// none are reserved for root.
    #[must_use]
    pub fn volume(mut self, volume: Options) -> Self {
        self.volume = volume;
        self
    }

    /// Sets the size of the volume.
    #[must_use]
    pub fn size(mut self, size: VolumeSize) -> Self {
        self.size = size;
        self
    }

    /// Sets the time that everything in the volume is stamped with; no time of the source is later.
    /// With it and a UUID ([`Options::uuid`]), the same source gives the same bytes.
    #[must_use]
    pub fn time(mut self, time: Timestamp) -> Self {
        self.time = Some(time);
        self
    }

    /// Makes a disk with a GPT whose only partition, at 1 MiB, is the volume. It is named like the
    /// volume's label.
    #[must_use]
    pub fn gpt(mut self, yes: bool) -> Self {
        self.gpt = yes;
        self
    }

    /// Makes a tree of dm-verity behind the volume.
    #[must_use]
    pub fn verity(mut self, verity: VerityOptions) -> Self {
        self.verity = Some(verity);
        self
    }

    /// Gives a hash tree of fs-verity to each regular file whose path, with a slash before it, is
    /// `wanted`, and the volume the feature `verity`.
    #[must_use]
    pub fn fs_verity(
        mut self,
        verity: Verity,
        wanted: impl Fn(&[u8]) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.fs_verity = Some(FsVerity { verity, wanted: Arc::new(wanted) });
        self
    }

    /// Lets the new file take the place of a regular file.
    #[must_use]
    pub fn overwrite(mut self, yes: bool) -> Self {
        self.overwrite = yes;
        self
    }

    /// Keeps what was made of the file by an error or a cancel; without it, nothing stays. A file
    /// of the tree that was not whole by then is left out.
    #[must_use]
    pub fn keep(mut self, yes: bool) -> Self {
        self.keep = yes;
        self
    }

    /// Returns the options of the volume but for its size, and how the source is taken.
    pub(super) fn settled(&self) -> Result<(Options, ImportOptions), Cause> {
        let mut volume = self.volume.clone();
        volume.uuid.get_or_insert_with(|| Uuid::new_v4().into_bytes());
        volume.block_size.get_or_insert(4096);
        volume.reserved_percent.get_or_insert(0.0);
        if self.fs_verity.is_some() {
            let verity = Features { ro_compat: RoCompat::VERITY, ..Features::default() };
            if volume.features.off.ro_compat.contains(RoCompat::VERITY) {
                return Err(lanefs::Error::Invalid("hash trees of files without the feature verity").into());
            }
            volume.features.on = volume.features.on.union(verity);
        }
        let import = self.import.clone().fs_verity(self.fs_verity.clone());
        let Some(time) = self.time else { return Ok((volume, import)) };
        volume.time = Some(time.sec.max(0).unsigned_abs());
        Ok((volume, import.newest(time)))
    }
}
