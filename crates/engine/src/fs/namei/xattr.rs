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

/// The most bytes that all attributes of an inode have together: values in inodes of their own may
/// be sparse, and a block of 64 KiB names some thousands of them.
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

    /// Returns names and values of all attributes.
    ///
    /// # Errors
    /// [`Error::XattrsTooLarge`] for more than [`ALL_MAX`] bytes; the errors of a damaged
    /// volume.
    pub(crate) fn xattrs(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let inode = self.state();
        let mut left = ALL_MAX;
        let with_value = |name: Vec<u8>| {
            let value = xattr::get(&self.fs, &inode, &name)?;
            left = left.checked_sub(name.len() + value.len()).ok_or(Error::XattrsTooLarge)?;
            Ok((name, value))
        };
        xattr::list(&self.fs, &inode)?.into_iter().map(with_value).collect()
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
