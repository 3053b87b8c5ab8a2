//! The names of partition types that are often met.

use super::PartitionType;
use std::fmt;

const GPT: &[(&str, &str)] = &[
    ("c12a7328-f81f-11d2-ba4b-00a0c93ec93b", "EFI system"),
    ("21686148-6449-6e6f-744e-656564454649", "BIOS boot"),
    ("0fc63daf-8483-4772-8e79-3d69d8477de4", "Linux file system"),
    ("4f68bce3-e8cd-4db1-96e7-fbcaf984b709", "Linux root (x86-64)"),
    ("44479540-f297-41b2-9af7-d131d5f0458a", "Linux root (x86)"),
    ("b921b045-1df0-41c3-af44-4c6f280d3fae", "Linux root (ARM64)"),
    ("69dad710-2ce4-4e3c-b16c-21a1d49abed3", "Linux root (ARM)"),
    ("72ec70a6-cf74-40e6-bd49-4bda08e8f224", "Linux root (RISC-V 64)"),
    ("2c7357ed-ebd2-46d9-aec1-23d437ec2bf5", "Linux root verity (x86-64)"),
    ("df3300ce-d69f-4c92-978c-9bfb0f38d820", "Linux root verity (ARM64)"),
    ("8484680c-9521-48c6-9c11-b0720656f69e", "Linux /usr (x86-64)"),
    ("933ac7e1-2eb4-4f13-b844-0e14e2aef915", "Linux home"),
    ("3b8f8425-20e0-4f3b-907f-1a25a76f98e8", "Linux server data"),
    ("4d21b016-b534-45c2-a9fb-5c16e091fd2d", "Linux variable data"),
    ("bc13c2ff-59e6-4262-a352-b275fd6f7172", "Linux extended boot"),
    ("0657fd6d-a4ab-43c4-84e5-0933c84b4f4f", "Linux swap"),
    ("e6d6d379-f507-44c2-a23c-238f2a3df928", "Linux LVM"),
    ("a19d880f-05fc-4d3b-a006-743f0f84911e", "Linux RAID"),
    ("ca7d7ccb-63ed-4c53-861c-1742536059cc", "Linux LUKS"),
    ("ebd0a0a2-b9e5-4433-87c0-68b6b72699c7", "Microsoft basic data"),
    ("e3c9e316-0b5c-4db8-817d-f92df00215ae", "Microsoft reserved"),
    ("de94bba4-06d1-4d40-a16a-bfd50179d6ac", "Windows recovery"),
];

const MBR: &[(u8, &str)] = &[
    (0x01, "FAT12"),
    (0x04, "FAT16"),
    (0x05, "extended"),
    (0x06, "FAT16"),
    (0x07, "NTFS or exFAT"),
    (0x0B, "FAT32"),
    (0x0C, "FAT32"),
    (0x0E, "FAT16"),
    (0x0F, "extended"),
    (0x82, "Linux swap"),
    (0x83, "Linux"),
    (0x85, "extended"),
    (0x8E, "Linux LVM"),
    (0xEE, "GPT"),
    (0xEF, "EFI system"),
    (0xFD, "Linux RAID"),
];

impl fmt::Display for PartitionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpt(guid) => {
                let name = GPT.iter().find(|(known, _)| known == guid).map(|(_, name)| *name);
                f.write_str(name.unwrap_or(guid))
            }
            Self::Mbr(byte) => match MBR.iter().find(|(known, _)| known == byte) {
                Some((_, name)) => f.write_str(name),
                None => write!(f, "type {byte:02x}"),
            },
        }
    }
}

impl PartitionType {
    /// Returns the code in the table: a GUID, or two digits.
    pub fn code(&self) -> String {
        match self {
            Self::Gpt(guid) => guid.clone(),
            Self::Mbr(byte) => format!("{byte:02x}"),
        }
    }
}
