//! The options of a new volume.

use crate::{MkfsError, Usage};
use lanefs_format::features::FeatureEdit;
use lanefs_format::{Compat, Features, Incompat, RoCompat};

/// The generation of the file system: which features it starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub enum FsType {
    Ext2,
    Ext3,
    #[default]
    Ext4,
}

impl FsType {
    /// Returns the features of a volume of this type if nothing else is asked for.
    pub fn features(self) -> Features {
        let mut f = Features {
            compat: Compat::RESIZE_INODE | Compat::DIR_INDEX | Compat::EXT_ATTR,
            incompat: Incompat::FILETYPE,
            ro_compat: RoCompat::SPARSE_SUPER | RoCompat::LARGE_FILE,
        };
        if self != Self::Ext2 {
            f.compat |= Compat::HAS_JOURNAL;
        }
        if self == Self::Ext4 {
            f.incompat |= Incompat::EXTENTS | Incompat::FLEX_BG | Incompat::BIT64;
            f.ro_compat |=
                RoCompat::HUGE_FILE | RoCompat::METADATA_CSUM | RoCompat::DIR_NLINK | RoCompat::EXTRA_ISIZE;
        }
        f
    }
}

/// The options of a new volume. [`Options::default`] asks for the volume that `mke2fs -t ext4`
/// makes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Options {
    /// The generation (`-t`).
    pub fs_type: FsType,
    /// Bytes of the volume; the device's size if `None`. Cut to whole blocks.
    pub size: Option<u64>,
    /// Bytes in a block (`-b`).
    pub block_size: Option<u32>,
    /// Bytes in an inode (`-I`).
    pub inode_size: Option<u16>,
    /// Bytes for every inode (`-i`).
    pub inode_ratio: Option<u32>,
    /// Inodes (`-N`); beats the ratio.
    pub inode_count: Option<u32>,
    /// The volume's name, at most 16 bytes (`-L`).
    pub label: Vec<u8>,
    /// The UUID (`-U`); a random one if `None`.
    pub uuid: Option<[u8; 16]>,
    /// The seed of directory hashes (`-E hash_seed`); if `None`, it follows from
    /// the UUID where one is given, and is random else.
    pub hash_seed: Option<[u8; 16]>,
    /// Features to switch on and off (`-O`).
    pub features: FeatureEdit,
    /// Percent of blocks that only the privileged may take (`-m`); 5 if `None`.
    pub reserved_percent: Option<f64>,
    /// MiB of the journal (`-J size`); by the volume's size if `None`.
    pub journal_size: Option<u32>,
    /// The usage type (`-T`); by the volume's size if `None`.
    pub usage: Option<Usage>,
    /// Seconds since 1970 that all times get; the system's clock if `None`. The command gives
    /// `SOURCE_DATE_EPOCH` here.
    pub time: Option<u64>,
    /// Seconds between two updates of the MMP block (`-E mmp_update_interval`), at most 300; 5 if
    /// `None`. Counts with the feature `mmp`.
    pub mmp_update_interval: Option<u16>,
    /// Owner and group of the root directory (`-E root_owner`).
    pub root_owner: (u32, u32),
    /// Do not tell the medium first that its old content is of no worth (`-E nodiscard`).
    pub keep: bool,
}

/// Parses a size as mke2fs does: a number, then nothing for bytes, or one of K, M, G, T and P,
/// small or large.
///
/// # Errors
/// [`MkfsError::Size`] if it is none, or beyond 64 bits.
pub fn parse_size(s: &str) -> Result<u64, MkfsError> {
    let err = || MkfsError::Size(s.to_owned());
    let digits = s.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match s[digits.len()..].to_ascii_lowercase().trim_end_matches("ib") {
        "" | "b" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        _ => return Err(err()),
    };
    let n: u64 = digits.parse().map_err(|_| err())?;
    n.checked_mul(1 << shift).ok_or_else(err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("2G").unwrap(), 2 << 30);
        assert_eq!(parse_size("15t").unwrap(), 15 << 40);
        assert_eq!(parse_size("512").unwrap(), 512);
        assert_eq!(parse_size("3MiB").unwrap(), 3 << 20);
        for bad in ["", "G", "1X", "1 G", "-1", "99999999P"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_default_is_that_of_mke2fs_1_47_0() {
        let names = FsType::Ext4.features().to_string();
        let want = "has_journal ext_attr resize_inode dir_index filetype extent 64bit flex_bg \
                    sparse_super large_file huge_file dir_nlink extra_isize metadata_csum";
        assert_eq!(names, want);
    }
}
