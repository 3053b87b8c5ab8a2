//! POSIX ACLs of an inode, and how they and the mode follow each other.
//!
//! The access list's owner, group class (the mask, or the owning group without one) and others are
//! the nine bits of the mode. A list with no more entries than the mode has is not stored.

use super::{SetXattr, change, find};
use crate::error::{Error, Result, XattrError};
use crate::store::Store;
use crate::store::txn::Txn;
use lanefs_format::acl::{Acl, AclError};
use lanefs_format::xattr::Name;
use lanefs_format::{FileType, Inode};

const NO_DEFAULT: Error = Error::AccessDenied("a default ACL on something that is no directory");

/// Returns the stored list of this name.
pub(super) fn get(store: &Store, inode: &Inode, name: Name<'_>) -> Result<Option<Acl>> {
    check_allowed(store, inode)?;
    match find(store, inode, name)? {
        None => Ok(None),
        Some(bytes) => decode(inode.ino, &bytes),
    }
}

/// Returns the list of inode `ino` that is stored as `bytes`; `None` if it has no entries.
pub(super) fn decode(ino: u32, bytes: &[u8]) -> Result<Option<Acl>> {
    match Acl::from_disk(bytes) {
        Ok(acl) if acl.entries.is_empty() => Ok(None),
        Ok(acl) => Ok(Some(acl)),
        Err(source) => Err(XattrError::Acl { ino, source }.into()),
    }
}

/// Sets the list of this name from a program's value.
pub(super) fn set(txn: &mut Txn<'_>, inode: &mut Inode, name: Name<'_>, value: &[u8]) -> Result<()> {
    let parsed = Acl::from_xattr(value);
    // Bytes that are no list at all are refused before the inode's type is checked.
    let listed =
        matches!(parsed, Ok(_) | Err(AclError::Order { .. } | AclError::Incomplete | AclError::Id { .. }));
    if listed || value.is_empty() {
        check_allowed(txn.store(), inode)?;
    }
    let acl = match parsed {
        Ok(acl) => acl,
        // An empty value is a list without entries.
        Err(_) if value.is_empty() => Acl { entries: Vec::new() },
        Err(e @ AclError::Version { .. }) => return Err(Error::NotSupported(e.to_string())),
        // Bytes that are a list, even an invalid one, are refused for the inode's type first.
        Err(AclError::Order { .. } | AclError::Incomplete | AclError::Id { .. })
            if name == Name::ACL_DEFAULT && !inode.is_dir() =>
        {
            return Err(NO_DEFAULT);
        }
        Err(_) => return Err(Error::Invalid("an ACL that is not valid")),
    };
    if name == Name::ACL_ACCESS {
        store_access(txn, inode, &acl)
    } else if inode.is_dir() {
        store(txn, inode, name, &acl)
    } else if acl.entries.is_empty() {
        Ok(())
    } else {
        Err(NO_DEFAULT)
    }
}

/// Removes the list of this name, if there is one. The mode stays.
pub(super) fn remove(txn: &mut Txn<'_>, inode: &mut Inode, name: Name<'_>) -> Result<()> {
    check_allowed(txn.store(), inode)?;
    change(txn, inode, name, None, SetXattr::Any)
}

/// Checks that the inode can have an ACL: symbolic links have none, and no inode where ACLs do not
/// count.
pub(super) fn check_allowed(store: &Store, inode: &Inode) -> Result<()> {
    if !store.acl {
        return Err(Error::NotSupported("ACLs of a volume that was opened with noacl".into()));
    }
    match FileType::from_mode(inode.mode) {
        Some(FileType::Symlink) => Err(Error::NotSupported("an ACL of a symbolic link".into())),
        _ => Ok(()),
    }
}

fn store(txn: &mut Txn<'_>, inode: &mut Inode, name: Name<'_>, acl: &Acl) -> Result<()> {
    let value = (!acl.entries.is_empty()).then(|| acl.to_disk());
    change(txn, inode, name, value.as_deref(), SetXattr::Any)
}

/// Sets the access list, and the mode that follows from it. The empty list leaves the mode
/// unchanged.
fn store_access(txn: &mut Txn<'_>, inode: &mut Inode, acl: &Acl) -> Result<()> {
    let none = Acl::default();
    store(txn, inode, Name::ACL_ACCESS, if acl.is_extended() { acl } else { &none })?;
    if !acl.entries.is_empty() {
        inode.mode = inode.mode & !0o777 | acl.mode_bits();
        inode.ctime = txn.store().now();
    }
    Ok(())
}

/// Updates the access list after a change of the inode's mode.
pub(crate) fn chmod_acl(txn: &mut Txn<'_>, inode: &mut Inode) -> Result<()> {
    if inode.is_symlink() || !txn.store().acl {
        return Ok(());
    }
    let Some(mut acl) = get(txn.store(), inode, Name::ACL_ACCESS)? else { return Ok(()) };
    acl.chmod(inode.mode);
    store_access(txn, inode, &acl)
}

/// Applies the default list of the directory to a new inode: a mode no wider than both, an access
/// list, and for a directory the default list. Without a default list nothing changes.
///
/// A creator's umask counts only in directories without a default list; the caller applies it.
pub(crate) fn inherit_acl(txn: &mut Txn<'_>, dir: &Inode, inode: &mut Inode) -> Result<()> {
    if inode.is_symlink() || !txn.store().acl {
        return Ok(());
    }
    let Some(default) = get(txn.store(), dir, Name::ACL_DEFAULT)? else { return Ok(()) };
    let mut access = default.clone();
    inode.mode = access.inherit(inode.mode);
    if inode.is_dir() {
        store(txn, inode, Name::ACL_DEFAULT, &default)?;
    }
    if access.is_extended() { store(txn, inode, Name::ACL_ACCESS, &access) } else { Ok(()) }
}
