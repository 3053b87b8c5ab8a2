//! fs-verity: hash trees of files.

use super::{File, Node};
use crate::error::{Error, Result};
use crate::fs::data::Verity;
use crate::fs::inode::InodeRef;
use lanefs_format::verity::VerityHash;

impl File {
    /// Gives the file a hash tree (fs-verity). From then on its content cannot change, and each
    /// block is verified when it is read. The volume gets the feature `verity` if it lacks it: the
    /// kernel then mounts it from Linux 5.4 on.
    ///
    /// The content is read once. Other reads of the file go on meanwhile; changes of its content,
    /// also through this handle, are refused with [`Error::TextBusy`]. After a crash the file has
    /// its whole tree, or none; on a volume without a journal it may have the flag and a part of
    /// the tree, and reading it fails.
    ///
    /// # Errors
    /// [`Error::Exists`] if it has one; [`Error::TextBusy`] while another handle has it open for
    /// writing; [`Error::NotSupported`] for a file without extents; [`Error::Invalid`] for a block
    /// size or salt that cannot be; [`Error::NotPermitted`] for an immutable or append-only inode;
    /// [`Error::NoSpace`], [`Error::FileTooBig`]; the journal's and the device's.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// use lanefs::{Error, Verity, VerityHash};
    /// volume.write("/app", b"signed")?;
    /// let file = volume.open_file("/app")?;
    /// file.enable_verity(&Verity::default())?;
    /// let (hash, digest) = file.measure_verity()?;
    /// assert_eq!((hash, digest.len()), (VerityHash::Sha256, 32));
    /// let refused = volume.write("/app", b"other").unwrap_err();
    /// assert!(matches!(refused.kind(), Error::NotPermitted(_)));
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn enable_verity(&self, verity: &Verity) -> Result<()> {
        enable(self.inode(), verity, u32::from(self.counts_as_writer()))
    }

    /// Returns the hash algorithm of the file's hash tree, and the digest that stands for its
    /// content: that of `fsverity digest`.
    ///
    /// # Errors
    /// [`Error::NoData`] for a file without a tree; [`Error::Verity`] for a damaged one; the
    /// device's.
    pub fn measure_verity(&self) -> Result<(VerityHash, Vec<u8>)> {
        self.inode().content().measure_verity()
    }
}

impl Node {
    /// Gives the file a hash tree, as [`File::enable_verity`] does, while no handle has it open for
    /// writing.
    ///
    /// # Errors
    /// The errors of [`File::enable_verity`]; [`Error::TextBusy`] while any handle has the file
    /// open for writing; [`Error::IsDir`] and [`Error::Invalid`] for an inode that is not a regular
    /// file.
    pub fn enable_verity(&self, verity: &Verity) -> Result<()> {
        enable(regular(&self.node)?, verity, 0)
    }

    /// Returns what [`File::measure_verity`] does.
    ///
    /// # Errors
    /// [`Error::NoData`] for a file without a tree and for an inode that is not a regular file;
    /// [`Error::Verity`] for a damaged tree; the device's.
    pub fn measure_verity(&self) -> Result<(VerityHash, Vec<u8>)> {
        regular(&self.node).map_err(|_| Error::NoData)?.content().measure_verity()
    }
}

fn enable(node: &InodeRef, verity: &Verity, own: u32) -> Result<()> {
    node.content().enable_verity(verity, own)
}

fn regular(node: &InodeRef) -> Result<&InodeRef> {
    match node.is_dir() {
        true => Err(Error::IsDir),
        false if !node.state().is_regular() => Err(Error::Invalid("only a file has a hash tree")),
        false => Ok(node),
    }
}
