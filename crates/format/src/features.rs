//! The three sets of feature bits, by name.
//!
//! The names are those of e2fsprogs (`dumpe2fs`, `mke2fs -O`). Every bit that ext4 has ever had is
//! known by name. Only this file decides which features lanefs reads and writes.

// bitflags hands an attribute of a set on to its constants only in part, so it stands here: the
// constants are the bits that the table of names below explains.
#![allow(missing_docs)]

use std::fmt;
use std::str::FromStr;

bitflags::bitflags! {
    /// `s_feature_compat`: a driver that does not know a bit may still write.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Compat: u32 {
        const DIR_PREALLOC = 0x1;
        const IMAGIC_INODES = 0x2;
        const HAS_JOURNAL = 0x4;
        const EXT_ATTR = 0x8;
        const RESIZE_INODE = 0x10;
        const DIR_INDEX = 0x20;
        const LAZY_BG = 0x40;
        const EXCLUDE_INODE = 0x80;
        const EXCLUDE_BITMAP = 0x100;
        const SPARSE_SUPER2 = 0x200;
        const FAST_COMMIT = 0x400;
        const STABLE_INODES = 0x800;
        const ORPHAN_FILE = 0x1000;
        const _ = !0;
    }

    /// `s_feature_incompat`: a driver that does not know a bit must not open the volume.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Incompat: u32 {
        const COMPRESSION = 0x1;
        const FILETYPE = 0x2;
        const RECOVER = 0x4;
        const JOURNAL_DEV = 0x8;
        const META_BG = 0x10;
        const EXTENTS = 0x40;
        const BIT64 = 0x80;
        const MMP = 0x100;
        const FLEX_BG = 0x200;
        const EA_INODE = 0x400;
        const DIRDATA = 0x1000;
        const CSUM_SEED = 0x2000;
        const LARGEDIR = 0x4000;
        const INLINE_DATA = 0x8000;
        const ENCRYPT = 0x1_0000;
        const CASEFOLD = 0x2_0000;
        const _ = !0;
    }

    /// `s_feature_ro_compat`: a driver that does not know a bit may only read.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct RoCompat: u32 {
        const SPARSE_SUPER = 0x1;
        const LARGE_FILE = 0x2;
        const BTREE_DIR = 0x4;
        const HUGE_FILE = 0x8;
        const GDT_CSUM = 0x10;
        const DIR_NLINK = 0x20;
        const EXTRA_ISIZE = 0x40;
        const HAS_SNAPSHOT = 0x80;
        const QUOTA = 0x100;
        const BIGALLOC = 0x200;
        const METADATA_CSUM = 0x400;
        const REPLICA = 0x800;
        const READONLY = 0x1000;
        const PROJECT = 0x2000;
        const SHARED_BLOCKS = 0x4000;
        const VERITY = 0x8000;
        const ORPHAN_PRESENT = 0x1_0000;
        const _ = !0;
    }
}

/// The features that lanefs maintains when it writes. Any other bit makes a volume read-only.
pub const WRITABLE: Features = Features {
    compat: Compat::DIR_PREALLOC
        .union(Compat::IMAGIC_INODES)
        .union(Compat::HAS_JOURNAL)
        .union(Compat::EXT_ATTR)
        .union(Compat::RESIZE_INODE)
        .union(Compat::DIR_INDEX)
        .union(Compat::LAZY_BG)
        .union(Compat::SPARSE_SUPER2)
        .union(Compat::STABLE_INODES)
        .union(Compat::ORPHAN_FILE),
    incompat: Incompat::FILETYPE
        .union(Incompat::RECOVER)
        .union(Incompat::META_BG)
        .union(Incompat::EXTENTS)
        .union(Incompat::BIT64)
        .union(Incompat::MMP)
        .union(Incompat::FLEX_BG)
        .union(Incompat::CSUM_SEED)
        .union(Incompat::LARGEDIR),
    ro_compat: RoCompat::SPARSE_SUPER
        .union(RoCompat::LARGE_FILE)
        .union(RoCompat::BTREE_DIR)
        .union(RoCompat::HUGE_FILE)
        .union(RoCompat::GDT_CSUM)
        .union(RoCompat::DIR_NLINK)
        .union(RoCompat::EXTRA_ISIZE)
        .union(RoCompat::METADATA_CSUM)
        .union(RoCompat::VERITY)
        .union(RoCompat::ORPHAN_PRESENT),
};

/// `incompat` bits that lanefs reads though it does not write them. `compat` and `ro_compat`
/// bits never hinder reading: that is what these sets mean.
pub const READ_ONLY_INCOMPAT: Incompat =
    Incompat::EA_INODE.union(Incompat::INLINE_DATA).union(Incompat::CASEFOLD);

/// The feature bits of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Features {
    /// `s_feature_compat`.
    pub compat: Compat,
    /// `s_feature_incompat`.
    pub incompat: Incompat,
    /// `s_feature_ro_compat`.
    pub ro_compat: RoCompat,
}

/// Names of the features that stand in the way of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Unsupported {
    /// lanefs cannot read the volume: opening fails.
    pub unreadable: Vec<String>,
    /// lanefs cannot write the volume: it is opened read-only.
    pub unwritable: Vec<String>,
}

/// One row of the table of names: set 0, 1 or 2, the bit, the name.
const NAMES: &[(usize, u32, &str)] = &[
    (0, 0x1, "dir_prealloc"),
    (0, 0x2, "imagic_inodes"),
    (0, 0x4, "has_journal"),
    (0, 0x8, "ext_attr"),
    (0, 0x10, "resize_inode"),
    (0, 0x20, "dir_index"),
    (0, 0x40, "lazy_bg"),
    (0, 0x80, "snapshot_inode"),
    (0, 0x100, "snapshot_bitmap"),
    (0, 0x200, "sparse_super2"),
    (0, 0x400, "fast_commit"),
    (0, 0x800, "stable_inodes"),
    (0, 0x1000, "orphan_file"),
    (1, 0x1, "compression"),
    (1, 0x2, "filetype"),
    (1, 0x4, "needs_recovery"),
    (1, 0x8, "journal_dev"),
    (1, 0x10, "meta_bg"),
    (1, 0x40, "extent"),
    (1, 0x80, "64bit"),
    (1, 0x100, "mmp"),
    (1, 0x200, "flex_bg"),
    (1, 0x400, "ea_inode"),
    (1, 0x1000, "dirdata"),
    (1, 0x2000, "metadata_csum_seed"),
    (1, 0x4000, "large_dir"),
    (1, 0x8000, "inline_data"),
    (1, 0x1_0000, "encrypt"),
    (1, 0x2_0000, "casefold"),
    (2, 0x1, "sparse_super"),
    (2, 0x2, "large_file"),
    (2, 0x4, "btree_dir"),
    (2, 0x8, "huge_file"),
    (2, 0x10, "uninit_bg"),
    (2, 0x20, "dir_nlink"),
    (2, 0x40, "extra_isize"),
    (2, 0x80, "snapshot"),
    (2, 0x100, "quota"),
    (2, 0x200, "bigalloc"),
    (2, 0x400, "metadata_csum"),
    (2, 0x800, "replica"),
    (2, 0x1000, "read-only"),
    (2, 0x2000, "project"),
    (2, 0x4000, "shared_blocks"),
    (2, 0x8000, "verity"),
    (2, 0x1_0000, "orphan_present"),
];

/// Other spellings that `mke2fs -O` takes.
const ALIASES: &[(&str, &str)] = &[
    ("extents", "extent"),
    ("gdt_csum", "uninit_bg"),
    ("uninit_groups", "uninit_bg"),
    ("journal", "has_journal"),
    ("largefile", "large_file"),
    ("project_quota", "project"),
];

impl Features {
    /// Returns all three sets as plain words: compat, incompat, ro_compat.
    pub fn words(&self) -> [u32; 3] {
        [self.compat.bits(), self.incompat.bits(), self.ro_compat.bits()]
    }

    /// Returns the features of a superblock's words. Unknown bits are kept.
    pub fn from_words([compat, incompat, ro_compat]: [u32; 3]) -> Self {
        Self {
            compat: Compat::from_bits_retain(compat),
            incompat: Incompat::from_bits_retain(incompat),
            ro_compat: RoCompat::from_bits_retain(ro_compat),
        }
    }

    /// Returns the features that either has.
    pub fn union(&self, other: Features) -> Self {
        Self {
            compat: self.compat | other.compat,
            incompat: self.incompat | other.incompat,
            ro_compat: self.ro_compat | other.ro_compat,
        }
    }

    /// Returns the features of `self` that are not in `other`.
    pub fn minus(&self, other: Features) -> Self {
        Self {
            compat: self.compat.difference(other.compat),
            incompat: self.incompat.difference(other.incompat),
            ro_compat: self.ro_compat.difference(other.ro_compat),
        }
    }

    /// Returns whether no bit is set.
    pub fn is_empty(&self) -> bool {
        self.words() == [0; 3]
    }

    /// Returns the names in the order of the bits: compat, then incompat, then ro_compat. A bit
    /// without a name has the name that e2fsprogs gives it: `FEATURE_C31`, `FEATURE_I20`,
    /// `FEATURE_R17`.
    pub fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        for (set, word) in self.words().into_iter().enumerate() {
            for bit in 0..32 {
                if word >> bit & 1 == 1 {
                    let known = NAMES.iter().find(|n| n.0 == set && n.1 == 1 << bit);
                    names.push(match known {
                        Some(n) => n.2.to_owned(),
                        None => format!("FEATURE_{}{bit}", ["C", "I", "R"][set]),
                    });
                }
            }
        }
        names
    }

    /// Returns the one feature of this name, also by the other spellings of `mke2fs -O`.
    pub fn by_name(name: &str) -> Option<Self> {
        let name = ALIASES.iter().find(|a| a.0 == name).map_or(name, |a| a.1);
        let &(set, bit, _) = NAMES.iter().find(|n| n.2 == name)?;
        let mut words = [0; 3];
        words[set] = bit;
        Some(Self::from_words(words))
    }

    /// Returns the features that prevent reading and writing, by name.
    pub fn unsupported(&self) -> Unsupported {
        let foreign = self.minus(WRITABLE);
        let unreadable =
            Features { incompat: foreign.incompat.difference(READ_ONLY_INCOMPAT), ..Features::default() };
        Unsupported { unreadable: unreadable.names(), unwritable: foreign.minus(unreadable).names() }
    }
}

/// Names with a space between them, as `dumpe2fs` prints them.
impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join(" "))
    }
}

/// A name that no feature has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no such ext4 feature: {0}")]
pub struct UnknownFeature(
    /// The name.
    pub String,
);

/// Features to switch on and off, as `mke2fs -O` takes them: names with commas or spaces between
/// them, `^name` to switch one off, `none` to switch all off that are not named behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FeatureEdit {
    /// Start from nothing (`none`).
    pub clear: bool,
    /// Switched on.
    pub on: Features,
    /// Switched off.
    pub off: Features,
}

impl FeatureEdit {
    /// Returns `base` with the edit applied.
    pub fn apply(&self, base: Features) -> Features {
        let base = if self.clear { Features::default() } else { base };
        base.minus(self.off).union(self.on)
    }
}

impl FromStr for FeatureEdit {
    type Err = UnknownFeature;

    fn from_str(s: &str) -> Result<Self, UnknownFeature> {
        let mut edit = Self::default();
        for word in s.split([',', ' ']).filter(|w| !w.is_empty()) {
            if word == "none" {
                edit = Self { clear: true, ..Self::default() };
                continue;
            }
            let name = word.trim_start_matches(['^', '-', '+']);
            let bit = Features::by_name(name).ok_or_else(|| UnknownFeature(name.to_owned()))?;
            if word.starts_with(['^', '-']) {
                (edit.on, edit.off) = (edit.on.minus(bit), edit.off.union(bit));
            } else {
                (edit.on, edit.off) = (edit.on.union(bit), edit.off.minus(bit));
            }
        }
        Ok(edit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_bit_has_a_name_and_back() {
        for &(set, bit, name) in NAMES {
            let feature = Features::by_name(name).unwrap();
            assert_eq!(feature.words()[set], bit);
            assert_eq!(feature.to_string(), name);
        }
        let unknown = Features::from_words([1 << 31, 1 << 20, 1 << 17]);
        assert_eq!(unknown.to_string(), "FEATURE_C31 FEATURE_I20 FEATURE_R17");
    }

    #[test]
    fn edits_apply_in_order() {
        let edit: FeatureEdit = "^metadata_csum,orphan_file ^extents".parse().unwrap();
        let base = Features::by_name("metadata_csum").unwrap().union(Features::by_name("extent").unwrap());
        assert_eq!(edit.apply(base).to_string(), "orphan_file");
        let none: FeatureEdit = "extent,none,filetype".parse().unwrap();
        assert_eq!(none.apply(base).to_string(), "filetype");
        assert_eq!("nonsense".parse::<FeatureEdit>(), Err(UnknownFeature("nonsense".into())));
    }

    #[test]
    fn unsupported_by_name() {
        let mut f = WRITABLE;
        assert_eq!(f.unsupported(), Unsupported::default());
        f.incompat |= Incompat::INLINE_DATA | Incompat::ENCRYPT | Incompat::from_bits_retain(1 << 30);
        f.ro_compat |= RoCompat::BIGALLOC;
        f.compat |= Compat::FAST_COMMIT;
        let u = f.unsupported();
        assert_eq!(u.unreadable, ["encrypt", "FEATURE_I30"]);
        assert_eq!(u.unwritable, ["fast_commit", "inline_data", "bigalloc"]);
    }
}
