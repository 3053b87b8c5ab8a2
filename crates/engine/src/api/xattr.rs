//! Extended attributes: the same five operations on paths ([`Volume`], [`At`]), inodes ([`Node`])
//! and open files ([`File`]).
//!
//! A name is whole: "user.mime", not "mime". Operations on paths do not follow a symbolic link at
//! the end.

use super::at::bytes;
use super::{At, AtSymlink, File, Node, Volume};
use crate::error::{Error, OrCannot, Result};
use crate::store::xattr::SetXattr;
use lanefs_device::os_name::{OsStrExt, OsStringExt};
use lanefs_format::xattr::XATTR_NAME_MAX;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Checks the length of an attribute's name, before the path is looked up.
fn checked(name: &impl AsRef<OsStr>) -> Result<&[u8]> {
    let name = name.as_ref().as_bytes();
    if (1..=XATTR_NAME_MAX).contains(&name.len()) { Ok(name) } else { Err(Error::Range) }
}

impl Volume {
    /// Returns the value of an extended attribute. Symbolic links are not followed, here and in
    /// the other calls on attributes.
    ///
    /// `system.lanefs.i_version` is [`Metadata::version`](crate::Metadata::version) in decimal
    /// digits, for programs that can only read attributes by a path. It is not listed and cannot be
    /// set.
    ///
    /// # Errors
    /// [`Error::NoData`] if there is none of that name; [`Error::Range`] for a name of no byte or
    /// more than 255.
    pub fn xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<Vec<u8>> {
        self.at().xattr(path, name)
    }

    /// Returns names and values of all extended attributes for which [`xattr`](Self::xattr) returns
    /// a value. A damaged volume may have others, which [`xattr_names`](Self::xattr_names) returns.
    ///
    /// # Errors
    /// The errors of damaged attributes.
    pub fn xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<(OsString, Vec<u8>)>> {
        self.at().xattrs(path)
    }

    /// Returns the names of all extended attributes.
    ///
    /// # Errors
    /// The errors of damaged attributes.
    pub fn xattr_names(&self, path: impl AsRef<Path>) -> Result<Vec<OsString>> {
        self.at().xattr_names(path)
    }

    /// Sets an extended attribute; `how` says whether it may or must exist.
    ///
    /// # Errors
    /// [`Error::XattrsTooLarge`] if it fits nowhere; [`Error::Exists`] or [`Error::NoData`] if
    /// `how` asks for it; [`Error::Range`] for a name of no byte or more than 255.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// use lanefs::SetXattr;
    /// volume.write("/file", b"")?;
    /// volume.set_xattr("/file", "user.mime", b"text/plain", SetXattr::Any)?;
    /// assert_eq!(volume.xattr("/file", "user.mime")?, b"text/plain");
    /// assert_eq!(volume.xattr_names("/file")?, ["user.mime"]);
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        self.at().set_xattr(path, name, value, how)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoData`] if there is none of that name; [`Error::Range`] for a name of no byte or
    /// more than 255.
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<()> {
        self.at().remove_xattr(path, name)
    }
}

impl At<'_> {
    fn link_node(self, path: &impl AsRef<Path>) -> Result<Node> {
        Ok(Node { node: self.node(bytes(path), AtSymlink::NoFollow)? })
    }

    /// Returns the value of an extended attribute, as [`Volume::xattr`] does for paths from the
    /// root.
    ///
    /// # Errors
    /// [`Error::NoData`] if there is none of that name; [`Error::Range`] for a name of no byte or
    /// more than 255.
    pub fn xattr(self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<Vec<u8>> {
        let found = checked(&name).and_then(|_| self.link_node(&path)?.xattr(&name));
        found.or_cannot("read an attribute of", path)
    }

    /// Returns names and values of all extended attributes, as [`Volume::xattrs`] does for paths
    /// from the root.
    ///
    /// # Errors
    /// The errors of damaged attributes.
    pub fn xattrs(self, path: impl AsRef<Path>) -> Result<Vec<(OsString, Vec<u8>)>> {
        self.link_node(&path).and_then(|node| node.xattrs()).or_cannot("read the attributes of", path)
    }

    /// Returns the names of all extended attributes, as [`Volume::xattr_names`] does for paths from
    /// the root.
    ///
    /// # Errors
    /// The errors of damaged attributes.
    pub fn xattr_names(self, path: impl AsRef<Path>) -> Result<Vec<OsString>> {
        self.link_node(&path).and_then(|node| node.xattr_names()).or_cannot("list the attributes of", path)
    }

    /// Sets an extended attribute, as [`Volume::set_xattr`] does for paths from the root.
    ///
    /// # Errors
    /// [`Error::XattrsTooLarge`] if it fits nowhere; [`Error::Exists`] or [`Error::NoData`] if
    /// `how` asks for it; [`Error::Range`] for a name of no byte or more than 255.
    pub fn set_xattr(
        self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        let set = checked(&name).and_then(|_| self.link_node(&path)?.set_xattr(&name, value, how));
        set.or_cannot("set an attribute of", path)
    }

    /// Removes an extended attribute, as [`Volume::remove_xattr`] does for paths from the root.
    ///
    /// # Errors
    /// [`Error::NoData`] if there is none of that name; [`Error::Range`] for a name of no byte or
    /// more than 255.
    pub fn remove_xattr(self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<()> {
        let removed = checked(&name).and_then(|_| self.link_node(&path)?.remove_xattr(&name));
        removed.or_cannot("remove an attribute of", path)
    }
}

impl Node {
    /// Returns the value of an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoData`] if there is none of that name; [`Error::XattrName`] for a name that no
    /// attribute can have.
    pub fn xattr(&self, name: impl AsRef<OsStr>) -> Result<Vec<u8>> {
        self.node.xattr(name.as_ref().as_bytes())
    }

    /// Returns names and values of all extended attributes.
    ///
    /// # Errors
    /// The errors of damaged attributes.
    pub fn xattrs(&self) -> Result<Vec<(OsString, Vec<u8>)>> {
        let attrs = self.node.xattrs()?;
        Ok(attrs.into_iter().map(|(name, value)| (OsString::from_vec(name), value)).collect())
    }

    /// Returns the names of all extended attributes.
    ///
    /// # Errors
    /// The errors of damaged attributes.
    pub fn xattr_names(&self) -> Result<Vec<OsString>> {
        Ok(self.node.xattr_names()?.into_iter().map(OsString::from_vec).collect())
    }

    /// Sets an extended attribute; `how` says whether it may or must exist.
    ///
    /// # Errors
    /// [`Error::XattrsTooLarge`] if it fits nowhere; [`Error::Exists`] or [`Error::NoData`] if
    /// `how` asks for it; [`Error::XattrName`] for a name that no attribute can have.
    pub fn set_xattr(&self, name: impl AsRef<OsStr>, value: &[u8], how: SetXattr) -> Result<()> {
        self.node.set_xattr(name.as_ref().as_bytes(), value, how)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoData`] if there is none of that name; [`Error::XattrName`] for a name that no
    /// attribute can have.
    pub fn remove_xattr(&self, name: impl AsRef<OsStr>) -> Result<()> {
        self.node.remove_xattr(name.as_ref().as_bytes())
    }
}

/// The file may be open for reading only, as for fsetxattr(2).
impl File {
    /// Returns the value of an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoData`] if there is none of that name; [`Error::XattrName`] for a name that no
    /// attribute can have.
    pub fn xattr(&self, name: impl AsRef<OsStr>) -> Result<Vec<u8>> {
        self.node().xattr(name)
    }

    /// Returns names and values of all extended attributes.
    ///
    /// # Errors
    /// The errors of damaged attributes.
    pub fn xattrs(&self) -> Result<Vec<(OsString, Vec<u8>)>> {
        self.node().xattrs()
    }

    /// Returns the names of all extended attributes.
    ///
    /// # Errors
    /// The errors of damaged attributes.
    pub fn xattr_names(&self) -> Result<Vec<OsString>> {
        self.node().xattr_names()
    }

    /// Sets an extended attribute; `how` says whether it may or must exist.
    ///
    /// # Errors
    /// [`Error::XattrsTooLarge`] if it fits nowhere; [`Error::Exists`] or [`Error::NoData`] if
    /// `how` asks for it; [`Error::XattrName`] for a name that no attribute can have.
    pub fn set_xattr(&self, name: impl AsRef<OsStr>, value: &[u8], how: SetXattr) -> Result<()> {
        self.node().set_xattr(name, value, how)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoData`] if there is none of that name; [`Error::XattrName`] for a name that no
    /// attribute can have.
    pub fn remove_xattr(&self, name: impl AsRef<OsStr>) -> Result<()> {
        self.node().remove_xattr(name)
    }
}
