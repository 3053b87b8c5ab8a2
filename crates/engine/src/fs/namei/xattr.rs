//! Extended attributes of inodes.

use crate::error::{Error, Result};
use crate::fs::inode::CachedInode;
use crate::store::txn::credits;
use crate::store::xattr::{self, SetXattr};

/// A virtual attribute: i_version in decimal. Reading it marks the version as seen. It is not
/// listed.
///
/// ext4 stores no attributes of `system.` whose name a program chose.
const I_VERSION: &[u8] = b"system.lanefs.i_version";

/// The most bytes that all attributes of an inode have together: values may overlap, those in
/// inodes of their own may be sparse, and a block of 64 KiB names some thousands of either.
const ALL_MAX: usize = 16 << 20;

fn refuse_virtual(name: &[u8]) -> Result<()> {
    match name == I_VERSION {
        true => Err(Error::NotPermitted("i_version cannot be set")),
        false => Ok(()),
    }
}

impl CachedInode {
    /// Returns the value of the attribute `name`.
    pub(crate) fn xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        if name == I_VERSION {
            return Ok(self.attributes().version.to_string().into_bytes());
        }
        xattr::get(&self.fs, &self.state(), name)
    }

    /// Returns names and values of all attributes that a program can read.
    ///
    /// # Errors
    /// [`Error::XattrsTooLarge`] for more than [`ALL_MAX`] bytes; the errors of a damaged
    /// volume.
    pub(crate) fn xattrs(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        xattr::all(&self.fs, &self.state(), ALL_MAX)
    }

    /// Returns the names of all attributes.
    pub(crate) fn xattr_names(&self) -> Result<Vec<Vec<u8>>> {
        xattr::list(&self.fs, &self.state())
    }

    /// Sets the attribute `name`.
    pub(crate) fn set_xattr(&self, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        self.fs.check_writable()?;
        refuse_virtual(name)?;
        self.check_mutable()?;
        let now = self.fs.now();
        self.change(credits::INODE + credits::XATTR, |txn, inode| {
            xattr::set(txn, inode, name, value, how)?;
            inode.ctime = now;
            Ok(())
        })
    }

    /// Removes the attribute `name`.
    pub(crate) fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        self.fs.check_writable()?;
        refuse_virtual(name)?;
        self.check_mutable()?;
        let now = self.fs.now();
        self.change(credits::INODE + credits::XATTR, |txn, inode| {
            xattr::remove(txn, inode, name)?;
            inode.ctime = now;
            Ok(())
        })
    }
}
