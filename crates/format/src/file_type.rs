//! File types: the high bits of `i_mode`, and the numbers of device files.

/// The type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum FileType {
    Fifo,
    CharDevice,
    Directory,
    BlockDevice,
    Regular,
    Symlink,
    Socket,
}

/// The set-user-id bit of `i_mode`.
pub const S_ISUID: u16 = 0o4000;
/// The set-group-id bit of `i_mode`: a file in a directory with it gets the directory's group.
pub const S_ISGID: u16 = 0o2000;
/// The bits of `i_mode` that hold the type.
pub const S_IFMT: u16 = 0o170_000;

impl FileType {
    /// Decodes `i_mode`; `None` if the bits mean nothing.
    pub fn from_mode(mode: u16) -> Option<Self> {
        Some(match mode & S_IFMT {
            0o010_000 => Self::Fifo,
            0o020_000 => Self::CharDevice,
            0o040_000 => Self::Directory,
            0o060_000 => Self::BlockDevice,
            0o100_000 => Self::Regular,
            0o120_000 => Self::Symlink,
            0o140_000 => Self::Socket,
            _ => return None,
        })
    }

    /// Returns the bits for `i_mode`.
    pub fn mode_bits(self) -> u16 {
        match self {
            Self::Fifo => 0o010_000,
            Self::CharDevice => 0o020_000,
            Self::Directory => 0o040_000,
            Self::BlockDevice => 0o060_000,
            Self::Regular => 0o100_000,
            Self::Symlink => 0o120_000,
            Self::Socket => 0o140_000,
        }
    }

    /// Returns the type in a directory entry (`EXT4_FT_*`).
    pub fn dirent_type(self) -> u8 {
        match self {
            Self::Regular => 1,
            Self::Directory => 2,
            Self::CharDevice => 3,
            Self::BlockDevice => 4,
            Self::Fifo => 5,
            Self::Socket => 6,
            Self::Symlink => 7,
        }
    }

    /// Decodes the type in a directory entry; `None` for 0 (not known there) and for undefined
    /// values.
    pub fn from_dirent_type(value: u8) -> Option<Self> {
        Some(match value {
            1 => Self::Regular,
            2 => Self::Directory,
            3 => Self::CharDevice,
            4 => Self::BlockDevice,
            5 => Self::Fifo,
            6 => Self::Socket,
            7 => Self::Symlink,
            _ => return None,
        })
    }
}

/// The number of a device file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceNumber {
    /// The driver: 12 bits.
    pub major: u32,
    /// The device: 20 bits.
    pub minor: u32,
}

impl DeviceNumber {
    /// Returns whether an inode can hold it.
    #[must_use]
    pub fn fits(self) -> bool {
        self.major <= 0xFFF && self.minor <= 0xF_FFFF
    }

    /// Decodes the first two words of `i_block`: the old form of 8 and 8 bits in the first, or the
    /// new form in the second.
    pub(crate) fn decode(old: u32, new: u32) -> Self {
        if old != 0 {
            return Self { major: old >> 8 & 0xFF, minor: old & 0xFF };
        }
        Self { major: new >> 8 & 0xFFF, minor: new & 0xFF | new >> 12 & 0xF_FF00 }
    }

    /// Encodes the first two words of `i_block`, in the old form where the number fits that. Bits
    /// that no inode can hold are lost.
    pub(crate) fn encode(self) -> (u32, u32) {
        let (major, minor) = (self.major & 0xFFF, self.minor & 0xF_FFFF);
        if major < 256 && minor < 256 {
            return (major << 8 | minor, 0);
        }
        (0, minor & 0xFF | major << 8 | (minor & !0xFF) << 12)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_of_both_forms() {
        for (major, minor) in [(8, 1), (255, 255), (256, 0), (259, 70_000), (4095, 0xF_FFFF)] {
            let dev = DeviceNumber { major, minor };
            let (old, new) = dev.encode();
            assert_eq!(old != 0, major < 256 && minor < 256);
            assert_eq!(DeviceNumber::decode(old, new), dev);
        }
        // What glibc's makedev packs into 32 bits.
        assert_eq!(DeviceNumber { major: 259, minor: 70_000 }.encode(), (0, 0x1111_0370));
    }

    #[test]
    fn types_go_both_ways() {
        for bits in 0..16u16 {
            if let Some(t) = FileType::from_mode(bits << 12 | 0o644) {
                assert_eq!(t.mode_bits(), bits << 12);
                assert_eq!(FileType::from_dirent_type(t.dirent_type()), Some(t));
            }
        }
    }
}
