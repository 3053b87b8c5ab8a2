//! Extended attributes of inodes.

use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::fs::inode::Node;
use crate::store::txn::credits;
use crate::store::xattr::{self, SetXattr};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// A virtual attribute: i_version in decimal. Reading it marks the version as seen. It is not
/// listed.
///
/// ext4 stores no attributes of `system.` whose name a program chose.
const I_VERSION: &[u8] = b"system.lanefs.i_version";

fn refuse_virtual(name: &[u8]) -> Result<()> {
    match name == I_VERSION {
        true => Err(Error::NotPermitted("i_version cannot be set")),
        false => Ok(()),
    }
}

impl Fs {
    /// The value of the attribute `name`.
    pub(crate) fn xattr(&self, node: &Node, name: &[u8]) -> Result<Vec<u8>> {
        if name == I_VERSION {
            return Ok(node.attributes().version.to_string().into_bytes());
        }
        xattr::get(self, node.ino, &node.state(), name)
    }

    /// All attributes with their values.
    pub(crate) fn xattrs(&self, node: &Node) -> Result<Vec<(OsString, Vec<u8>)>> {
        let inode = node.state();
        let names = xattr::list(self, node.ino, &inode)?;
        let with_value = |name: Vec<u8>| {
            Ok((OsString::from_vec(name.clone()), xattr::get(self, node.ino, &inode, &name)?))
        };
        names.into_iter().map(with_value).collect()
    }

    /// Sets the attribute `name`.
    pub(crate) fn set_xattr(&self, node: &Node, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        self.check_writable()?;
        refuse_virtual(name)?;
        node.check_mutable()?;
        let now = self.now();
        self.change(node, credits::INODE + credits::XATTR, |txn, inode| {
            xattr::set(txn, node.ino, inode, name, value, how)?;
            inode.ctime = now;
            Ok(())
        })
    }

    /// Removes the attribute `name`.
    pub(crate) fn remove_xattr(&self, node: &Node, name: &[u8]) -> Result<()> {
        self.check_writable()?;
        refuse_virtual(name)?;
        node.check_mutable()?;
        let now = self.now();
        self.change(node, credits::INODE + credits::XATTR, |txn, inode| {
            xattr::remove(txn, node.ino, inode, name)?;
            inode.ctime = now;
            Ok(())
        })
    }
}
