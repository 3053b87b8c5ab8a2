//! Extended attributes of inodes.

use crate::error::Result;
use crate::inode::Node;
use crate::txn::credits;
use crate::volume::Fs;
use crate::xattr::{self, SetXattr};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

impl Fs {
    /// The value of the attribute `name`.
    pub(crate) fn xattr(&self, node: &Node, name: &[u8]) -> Result<Vec<u8>> {
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
        node.check_mutable()?;
        let mut txn = self.start(credits::INODE + credits::XATTR)?;
        let now = self.now();
        node.update(&mut txn, |txn, inode| {
            xattr::set(txn, node.ino, inode, name, value, how)?;
            inode.ctime = now;
            Ok(())
        })
    }

    /// Removes the attribute `name`.
    pub(crate) fn remove_xattr(&self, node: &Node, name: &[u8]) -> Result<()> {
        self.check_writable()?;
        node.check_mutable()?;
        let mut txn = self.start(credits::INODE + credits::XATTR)?;
        let now = self.now();
        node.update(&mut txn, |txn, inode| {
            xattr::remove(txn, node.ino, inode, name)?;
            inode.ctime = now;
            Ok(())
        })
    }
}
