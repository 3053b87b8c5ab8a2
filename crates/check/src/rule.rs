//! The rules that a volume can break, beyond those of the codec.
//!
//! A rule inside of one structure is an error of [`lanefs_format`], and stands here as it is. A
//! rule between structures has a line in the table below: its name, its numbers and its text.

use lanefs_format::FormatError;
use lanefs_format::dirent::DirentError;
use lanefs_format::extent::ExtentError;
use lanefs_format::htree::HtreeError;
use lanefs_format::jbd2::Jbd2Error;
use lanefs_format::xattr::XattrFormatError;
use std::fmt;

/// Makes the enum, the names and the texts of the rules out of one table.
macro_rules! rules {
    (codec { $($codec:ident($error:ty),)* } own { $($name:ident $({ $($field:ident: $type:ty),* })? => $text:literal,)* }) => {
        /// A rule that is broken, with the numbers in it.
        #[derive(Debug, Clone, PartialEq)]
        #[non_exhaustive]
        #[allow(missing_docs, reason = "each text names its fields")]
        pub enum Rule {
            $($codec($error),)*
            $($name $({ $($field: $type),* })?,)*
        }

        impl Rule {
            /// Returns the name of the rule, which does not change when its text does.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$codec(_) => stringify!($codec),)*
                    $(Self::$name $({ $($field: _),* })? => stringify!($name),)*
                }
            }
        }

        impl fmt::Display for Rule {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$codec(error) => error.fmt(f),)*
                    $(Self::$name $({ $($field),* })? => write!(f, $text),)*
                }
            }
        }

        $(impl From<$error> for Rule {
            fn from(error: $error) -> Self {
                Self::$codec(error)
            }
        })*
    };
}

rules! {
    codec {
        Format(FormatError),
        Extent(ExtentError),
        Dirent(DirentError),
        Htree(HtreeError),
        Xattr(XattrFormatError),
        Jbd2(Jbd2Error),
    }
    own {
        NotChecked { what: &'static str } => "not checked: {what}",

        // The superblock and its copies.
        ReservedBlocks { found: u64, max: u64 } => "s_r_blocks_count is {found}, at most {max}",
        FreeBlocksTotal { found: u64, counted: u64 } => "s_free_blocks_count is {found}, {counted} are free",
        FreeInodesTotal { found: u32, counted: u64 } => "s_free_inodes_count is {found}, {counted} are free",
        JournalUuid => "s_journal_uuid is set, and the volume has no journal on another device",
        NeedsFeature { feature: &'static str, what: &'static str } => "{what} needs the feature {feature}",
        FeaturePair { feature: &'static str, other: &'static str } => "the feature {feature} does not go with {other}",
        SignedAndUnsignedHash => "s_flags says that hashes are signed and that they are unsigned",
        OtherVolume => "the copy describes another volume",
        Copy { text: String } => "the copy is damaged: {text}",
        Mmp { seq: u32, host: String } =>
            "mmp_seq is {seq:#x}: host '{host}' uses the volume, or has not closed it",

        // Groups.
        OutsideGroup { field: &'static str, block: u64, first: u64, end: u64 } =>
            "{field} is at block {block}, outside the group's {first}..{end}, and there is no flex_bg",
        MetadataOverlap { field: &'static str, block: u64 } =>
            "{field} takes block {block}, which other metadata has",
        UninitWithoutChecksum => "bg_flags or bg_itable_unused say that something was never written, but descriptors have no checksums",
        InodesInUninit { counted: u32 } => "INODE_UNINIT is set, and {counted} inodes are in use",
        BlocksInUninit { block: u64 } => "BLOCK_UNINIT is set, and block {block} is in use",
        FreeBlocks { found: u32, counted: u32 } => "bg_free_blocks_count is {found}, {counted} are free",
        FreeInodes { found: u32, counted: u32 } => "bg_free_inodes_count is {found}, {counted} are free",
        UsedDirs { found: u32, counted: u32 } => "bg_used_dirs_count is {found}, {counted} directories are in use",
        UsedButFree { first: u64, count: u64 } => "{count} in use are marked as free, the first is {first}",
        FreeButUsed { first: u64, count: u64 } => "{count} that nothing uses are marked as in use, the first is {first}",
        Padding { bit: usize } => "bit {bit}, beyond the last, is not set",

        // Inodes.
        DeletedWithoutTime => "i_links_count is 0 with a mode, and i_dtime is 0",
        DeletionTime { dtime: u32 } => "i_dtime is {dtime} in an inode in use",
        NoType { mode: u16 } => "i_mode {mode:#o} has no file type, and i_links_count is not 0",
        BadBlocksInode => "the inode of bad blocks has a mode, an owner, links, attributes or inline data",
        ReservedNotClear => "a reserved inode without a use has links or blocks",
        ReservedInUse { mode: u16 } => "a reserved inode without a use has i_mode {mode:#o}",
        SpecialInode { what: &'static str } => "{what}",
        FragmentAddress { found: u32 } => "obso_faddr is {found}, must be 0",
        ExtraIsizeSmall { found: u16 } => "i_extra_isize is {found}, at least 4 if not 0",
        FlagsNotOfType { flags: u32, what: &'static str } => "i_flags has {flags:#x}, which {what} cannot have",
        FlagNeedsFeature { flag: &'static str, feature: &'static str } => "flag {flag} needs the feature {feature}",
        FlagPair { flag: &'static str, other: &'static str } => "flag {flag} does not go with {other}",
        Size { found: u64, why: &'static str, bound: u64 } => "i_size is {found}: {why} {bound}",
        SizeHigh { found: u32 } =>
            "i_size_high is {found}, must be 0: no regular file, and no feature large_dir",
        BlocksHigh { found: u32 } => "l_i_blocks_high is {found}, must be 0 without the feature huge_file",
        Blocks { found: u64, counted: u64 } => "i_blocks is {found}, {counted} sectors are mapped",
        SymlinkTarget { len: u64, size: u64 } => "the target has {len} bytes without a zero, i_size is {size}",
        SymlinkBlock => "the target is not in one written block",
        BlockAddress { lblk: u64, block: u64, first: u64, end: u64 } =>
            "logical block {lblk} is at {block}, outside of {first}..{end}",
        ClaimedTwice { block: u64, count: u64 } => "{count} blocks that are claimed already, the first is {block}",
        ClusterPlace { lblk: u64, block: u64 } =>
            "logical block {lblk} is at {block}, another place than it has in its cluster",
        BlockMapped => "has a block map, and the feature bigalloc wants extents",
        BeyondMax { lblk: u64, max: u64 } => "logical block {lblk} is beyond the last possible, {max}",
        EhMax { found: u16, bound: usize } => "eh_max is {found}, the node has room for {bound}",
        IndexStart { entry: usize, found: u32, child: u32 } =>
            "entry {entry} starts at logical block {found}, its child at {child}",
        UnwrittenDir { lblk: u32 } => "logical block {lblk} of a directory is unwritten",

        // Extended attributes.
        XattrAddress { block: u64, first: u64, end: u64 } =>
            "i_file_acl is {block}, outside of {first}..{end}",
        XattrRefcount { found: u32, counted: u32 } => "h_refcount is {found}, {counted} inodes use the block",
        XattrNameIndex { index: u8 } => "an entry has e_name_index {index}",
        XattrValues { start: usize } => "the value at {start} overlaps another one",
        XattrEmptyValue { start: usize, end: usize } => "an empty value is at {start}, beyond the end at {end}",
        XattrNoHash => "an entry of a block has no e_hash",
        XattrValueInode { ino: u32 } => "inode {ino} holds a value, but is no inode for one",
        XattrValueRefcount { found: u64, counted: u32 } =>
            "the count of users in i_ctime and l_i_version is {found}, {counted} attributes have the value",

        // Directories.
        DirHole { lblk: u32 } => "logical block {lblk} is not mapped",
        DirSize { found: u64, blocks: u64 } => "i_size is {found}, {blocks} blocks are mapped",
        Dot { what: &'static str } => "{what}",
        DotInode { found: u32 } => "\".\" leads to inode {found}",
        DotDot { found: u32, parent: u32 } => "\"..\" leads to inode {found}, the entry is in {parent}",
        ReservedTarget { ino: u32 } => "leads to the reserved inode {ino}",
        TargetRange { ino: u32, max: u32 } => "leads to inode {ino}, beyond the volume's {max}",
        UnusedTarget { ino: u32 } => "leads to inode {ino}, which is not in use",
        RootTarget => "leads to the root",
        DotName => "is named \".\" or \"..\" and is not the first or the second",
        FileType { found: u8, expected: u8, ino: u32 } =>
            "file_type is {found}, inode {ino} is of type {expected}",
        SecondParent { ino: u32, parent: u32 } => "leads to directory {ino}, which {parent} has already",
        DuplicateName { hash: u64 } => "its name is there twice (hash {hash:#018x})",
        InlineData { what: &'static str } => "{what}",

        // The htree.
        IndexWithoutFeature => "flag INDEX is set without the feature dir_index",
        HtreeChild { entry: usize, lblk: u32, blocks: u64 } => "entry {entry} leads to block {lblk}, the directory has {blocks}",
        HtreeTwice { lblk: u32 } => "block {lblk} is named twice",
        HtreeNotNamed => "no index entry names the block",
        HtreeOrder { hash: u32, low: u32, high: u32 } => "hash {hash:#010x} lies outside of the node's {low:#010x}..={high:#010x}",
        HashRange { hash: u32, low: u32, high: u32 } =>
            "the name's hash {hash:#010x} lies outside of the leaf's {low:#010x}..={high:#010x}",

        // Names and links.
        NoRoot => "the root is not a directory in use",
        Unconnected => "no path from the root leads to it",
        Links { found: u16, counted: u32 } => "i_links_count is {found}, {counted} entries lead to it",
        Lost { links: u16 } => "no entry leads to it, i_links_count is {links}",

        // Orphans, the journal and other special inodes.
        OrphanRange { ino: u32, max: u32 } => "holds inode {ino}, the volume has inodes {max}",
        OrphanTwice { ino: u32 } => "holds inode {ino} twice",
        OrphanDamaged { ino: u32 } => "holds inode {ino}, which is damaged: what comes behind it is not known",
        OrphanUnused { ino: u32 } => "holds inode {ino}, which is free",
        OrphanLeft { ino: u32 } => "holds inode {ino}, but orphan_present is not set",
        Log { text: String } => "{text}",
        LogMissing => "has_journal is set, and neither an inode nor a device is named",
        LogErrno { errno: i32 } => "s_errno is {errno}: the log was aborted",
        LogRoom { left: u32, min: u32 } => "fast commits leave {left} blocks of the log, {min} are needed",
        LogUsers { users: u32 } => "s_nr_users is {users}, a volume's own log has 1",
        LogVersion { at: usize } => "byte {at} of a superblock of version 1 is not 0",
        ResizeEntry { block: u64, entry: u64, found: u32, expected: u32 } =>
            "block {block}, entry {entry} is {found}, must be {expected}",
    }
}

impl Rule {
    /// Returns whether the text says itself which structure it is about.
    pub(crate) fn names_structure(&self) -> bool {
        matches!(self, Self::Format(_) | Self::Extent(_))
    }
}
