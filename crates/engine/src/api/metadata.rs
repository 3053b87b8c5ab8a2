//! The attributes of an inode, as stat(2) returns them.

use crate::fs::inode::CachedInode;
use lanefs_format::{DeviceNumber, FileType, Inode, InodeFlags, Timestamp};

/// Attributes of an inode at one moment.
///
/// # Examples
/// ```
/// # let volume = lanefs::Volume::in_memory(16 << 20)?;
/// volume.write("/file", b"12345")?;
/// let meta = volume.metadata("/file")?;
/// println!("inode {}: {} bytes, mode {:o}", meta.ino(), meta.len(), meta.permissions());
/// assert!(meta.is_file() && meta.nlink() == 1);
/// # Ok::<(), lanefs::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Metadata {
    inode: Inode,
    block_size: u32,
}

impl Metadata {
    pub(super) fn of(node: &CachedInode) -> Self {
        Self { inode: node.attributes(), block_size: node.fs.block_size }
    }

    /// Returns the inode's number.
    pub fn ino(&self) -> u32 {
        self.inode.ino
    }

    /// Returns the type of the inode: regular where the mode holds no known type.
    pub fn file_type(&self) -> FileType {
        FileType::from_mode(self.inode.mode).unwrap_or(FileType::Regular)
    }

    /// Returns whether the inode is a directory.
    pub fn is_dir(&self) -> bool {
        self.inode.is_dir()
    }

    /// Returns whether the inode is a regular file.
    pub fn is_file(&self) -> bool {
        self.inode.is_regular()
    }

    /// Returns whether the inode is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.inode.is_symlink()
    }

    /// Returns i_size in bytes.
    pub fn len(&self) -> u64 {
        self.inode.size
    }

    /// Returns whether i_size is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns i_mode: the file type and the permissions.
    pub fn mode(&self) -> u16 {
        self.inode.mode
    }

    /// Returns the permissions: the low 12 bits of the mode.
    pub fn permissions(&self) -> u16 {
        self.inode.mode & 0o7777
    }

    /// Returns the user id of the owner.
    pub fn uid(&self) -> u32 {
        self.inode.uid
    }

    /// Returns the group id.
    pub fn gid(&self) -> u32 {
        self.inode.gid
    }

    /// Returns the number of names: 1 for a directory with too many subdirectories to count.
    pub fn nlink(&self) -> u16 {
        self.inode.links_count
    }

    /// Returns the allocated space in sectors of 512 bytes. The content of a file that is in the
    /// inode itself counts, although it takes no block: programs take a file without sectors for
    /// one hole.
    pub fn sectors(&self) -> u64 {
        let is_inline = self.is_file() && self.flags().contains(InodeFlags::INLINE_DATA);
        let inline = if is_inline { self.len().div_ceil(512) } else { 0 };
        self.inode.blocks.saturating_add(inline)
    }

    /// Returns the block size of the volume in bytes.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Returns the device of a device file, `None` for any other inode.
    pub fn device(&self) -> Option<DeviceNumber> {
        self.inode.device()
    }

    /// Returns the time of the last read.
    pub fn atime(&self) -> Timestamp {
        self.inode.atime
    }

    /// Returns the time of the last change of the content.
    pub fn mtime(&self) -> Timestamp {
        self.inode.mtime
    }

    /// Returns the time of the last change of the inode.
    pub fn ctime(&self) -> Timestamp {
        self.inode.ctime
    }

    /// Returns the time of creation, `None` if the inode has no room for it.
    pub fn crtime(&self) -> Option<Timestamp> {
        self.inode.has_crtime().then_some(self.inode.crtime)
    }

    /// Returns i_flags, as chattr(1) shows them.
    pub fn flags(&self) -> InodeFlags {
        self.inode.flags
    }

    /// Returns i_generation.
    pub fn generation(&self) -> u32 {
        self.inode.generation
    }

    /// Returns i_version. Reading the attributes of a file marks its version as seen; the first
    /// change of the file after that makes a new version.
    pub fn version(&self) -> u64 {
        self.inode.version
    }

    /// Returns the decoded inode, for tools that show more fields of it.
    pub fn inode(&self) -> &Inode {
        &self.inode
    }
}
