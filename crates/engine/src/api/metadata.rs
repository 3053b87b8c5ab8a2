//! What stat(2) tells of an inode.

use crate::fs::inode::Node;
use lanefs_format::{DeviceNumber, FileType, Inode, InodeFlags, Timestamp};

/// Attributes of an inode at one moment.
#[derive(Debug, Clone)]
pub struct Metadata {
    inode: Inode,
    block_size: u32,
}

impl Metadata {
    pub(super) fn of(node: &Node) -> Self {
        Self { inode: node.attributes(), block_size: node.fs.block_size }
    }

    /// The inode's number.
    pub fn ino(&self) -> u32 {
        self.inode.ino
    }

    /// Returns the type of the inode: regular where the mode holds no known type.
    pub fn file_type(&self) -> FileType {
        FileType::from_mode(self.inode.mode).unwrap_or(FileType::Regular)
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.inode.is_dir()
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.inode.is_regular()
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.inode.is_symlink()
    }

    /// i_size in bytes.
    pub fn len(&self) -> u64 {
        self.inode.size
    }

    /// Whether i_size is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// i_mode: file type and permissions.
    pub fn mode(&self) -> u16 {
        self.inode.mode
    }

    /// The low 12 bits of the mode.
    pub fn permissions(&self) -> u16 {
        self.inode.mode & 0o7777
    }

    /// Owner.
    pub fn uid(&self) -> u32 {
        self.inode.uid
    }

    /// Group.
    pub fn gid(&self) -> u32 {
        self.inode.gid
    }

    /// Names. 1 for a directory with too many subdirectories to count.
    pub fn nlink(&self) -> u16 {
        self.inode.links_count
    }

    /// Space taken, in sectors of 512 bytes.
    pub fn sectors(&self) -> u64 {
        self.inode.blocks
    }

    /// Bytes of a block of the volume.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// The device that a device file stands for.
    pub fn device(&self) -> Option<DeviceNumber> {
        self.inode.device()
    }

    /// Time of the last read.
    pub fn atime(&self) -> Timestamp {
        self.inode.atime
    }

    /// Time of the last change of the content.
    pub fn mtime(&self) -> Timestamp {
        self.inode.mtime
    }

    /// Time of the last change of the inode.
    pub fn ctime(&self) -> Timestamp {
        self.inode.ctime
    }

    /// Time of birth, where the inode has room for it.
    pub fn crtime(&self) -> Option<Timestamp> {
        self.inode.has_crtime().then_some(self.inode.crtime)
    }

    /// i_flags, as chattr(1) shows them.
    pub fn flags(&self) -> InodeFlags {
        self.inode.flags
    }

    /// i_generation.
    pub fn generation(&self) -> u32 {
        self.inode.generation
    }

    /// Returns i_version. Reading the attributes of a file marks its version as seen; the first
    /// change of the file after that makes a new version.
    pub fn version(&self) -> u64 {
        self.inode.version
    }

    /// The decoded inode, for tools that show more of it.
    pub fn inode(&self) -> &Inode {
        &self.inode
    }
}
