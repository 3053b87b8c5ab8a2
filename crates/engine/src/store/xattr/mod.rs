//! Extended attributes of an inode.
//!
//! An attribute lies in the spare room of its inode, which is preferred, or in one attribute block
//! (`i_file_acl`). A change reads both lists and computes both new ones before it writes anything.
//! It writes the block before the inode, because only the block can fail.
//!
//! The caller holds the inode's lock and writes the inode afterwards. [`share`] handles blocks that
//! several inodes share.

mod acl;
mod block;
mod share;
#[cfg(test)]
mod tests;
mod value;

pub(crate) use acl::{chmod_acl, inherit_acl};
pub(crate) use share::Sharing;

use crate::error::{Error, Result, XattrError};
use crate::store::Store;
use crate::store::txn::Txn;
use lanefs_format::xattr::{self as codec, Attr, Name, Value, index};
use lanefs_format::{Compat, Inode, Superblock};
use std::collections::BTreeSet;
use value::Stored;

/// When [`Volume::set_xattr`](crate::Volume::set_xattr) makes and when it replaces an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SetXattr {
    /// Makes or replaces it.
    #[default]
    Any,
    /// The attribute must not exist (`XATTR_CREATE`).
    Create,
    /// The attribute must exist (`XATTR_REPLACE`).
    Replace,
}

/// Returns the value of the attribute `name`, prefix included. ACLs have the form that programs
/// use.
///
/// # Errors
/// [`Error::NoData`]; [`Error::NotSupported`] for a prefix that ext4 does not store.
pub(crate) fn get(store: &Store, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
    if refuses_user(inode, name) {
        return Err(Error::NoData);
    }
    let name = Name::parse(name)?;
    match is_acl(name) {
        true => Ok(acl::get(store, inode, name)?.ok_or(Error::NoData)?.to_xattr()),
        false => find(store, inode, name)?.ok_or(Error::NoData),
    }
}

/// Returns the names of all attributes that programs see, prefixes included.
pub(crate) fn list(store: &Store, inode: &Inode) -> Result<Vec<Vec<u8>>> {
    let shown = |attr: &Attr<'_>| attr.name.full().filter(|_| store.acl || !is_acl(attr.name));
    let mut names = Vec::new();
    each_place(store, inode, |attrs| {
        names.extend(attrs.iter().filter_map(shown));
        Ok(())
    })?;
    Ok(names)
}

/// Returns names and values of all attributes for which [`get`] returns a value, in the order of
/// [`list`]. Parses each place once.
///
/// # Errors
/// [`Error::XattrsTooLarge`] for more than `max` bytes, as the entries have them; the errors of a
/// damaged volume.
pub(crate) fn all(store: &Store, inode: &Inode, max: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let (mut left, mut seen, mut found) = (max, BTreeSet::new(), Vec::new());
    each_place(store, inode, |attrs| {
        for attr in attrs {
            let Some(name) = readable(store, inode, attr.name) else { continue };
            // Of two with one name, `get` returns the first.
            if !seen.insert(name.clone()) {
                continue;
            }
            let value = Stored::of(attr.value);
            left = left.checked_sub(name.len() + value.len()).ok_or(Error::XattrsTooLarge)?;
            found.push((name, is_acl(attr.name), value));
        }
        Ok(())
    })?;
    let mut all = Vec::with_capacity(found.len());
    for (name, of_acl, value) in found {
        let bytes = value.read(store, inode.ino)?;
        let value = match of_acl {
            true => acl::decode(inode.ino, &bytes)?.map(|acl| acl.to_xattr()),
            false => Some(bytes),
        };
        all.extend(value.map(|value| (name, value)));
    }
    Ok(all)
}

/// Sets the attribute `name`, prefix included.
///
/// An access ACL sets the mode too, and is not stored if the mode says it all.
///
/// # Errors
/// [`Error::Exists`] and [`Error::NoData`] by `how`; [`Error::XattrsTooLarge`] if it fits in
/// neither place; [`Error::NoSpace`] if no block is free; [`Error::ValueTooBig`];
/// [`Error::NotPermitted`] for `user.` on anything but files and directories. With any of them
/// nothing has changed.
pub(crate) fn set(
    txn: &mut Txn<'_>,
    inode: &mut Inode,
    name: &[u8],
    value: &[u8],
    how: SetXattr,
) -> Result<()> {
    if value.len() > codec::XATTR_SIZE_MAX {
        return Err(Error::ValueTooBig { len: value.len() });
    }
    if refuses_user(inode, name) {
        return Err(Error::NotPermitted("user attributes of a special file"));
    }
    let name = Name::parse(name)?;
    match name.index {
        index::POSIX_ACL_ACCESS | index::POSIX_ACL_DEFAULT => acl::set(txn, inode, name, value),
        _ => change(txn, inode, name, Some(value), how),
    }
}

/// Removes the attribute `name`, prefix included.
///
/// # Errors
/// [`Error::NoData`] if there is none, but not for ACLs.
pub(crate) fn remove(txn: &mut Txn<'_>, inode: &mut Inode, name: &[u8]) -> Result<()> {
    if refuses_user(inode, name) {
        return Err(Error::NotPermitted("user attributes of a special file"));
    }
    let name = Name::parse(name)?;
    match name.index {
        index::POSIX_ACL_ACCESS | index::POSIX_ACL_DEFAULT => acl::remove(txn, inode, name),
        _ => change(txn, inode, name, None, SetXattr::Replace),
    }
}

/// Releases the attribute block of an inode that is being deleted.
pub(crate) fn free_all(txn: &mut Txn<'_>, inode: &mut Inode) -> Result<()> {
    block::replace(txn, inode, None)
}

/// Reads what [`free_all`] will change besides the inode. While the result is held, freeing does no
/// I/O.
pub(crate) fn hold_for_free(store: &Store, inode: &Inode) -> Result<impl Sized + use<>> {
    block::hold_for_free(store, inode)
}

/// Returns whether `name` is a `user.` attribute of an inode that can have none: only files and
/// directories can.
fn refuses_user(inode: &Inode, name: &[u8]) -> bool {
    name.starts_with(b"user.") && !inode.is_regular() && !inode.is_dir()
}

fn is_acl(name: Name<'_>) -> bool {
    matches!(name.index, index::POSIX_ACL_ACCESS | index::POSIX_ACL_DEFAULT)
}

/// Returns the whole name of a stored attribute; `None` if no program can read it: its name is none
/// that a program can give, or the inode can have no attribute of that kind.
fn readable(store: &Store, inode: &Inode, name: Name<'_>) -> Option<Vec<u8>> {
    let full = name.full().filter(|full| Name::parse(full).is_ok())?;
    let allowed = match is_acl(name) {
        true => acl::check_allowed(store, inode).is_ok(),
        false => !refuses_user(inode, &full),
    };
    allowed.then_some(full)
}

fn in_inode(inode: &Inode) -> Result<Vec<Attr<'_>>> {
    codec::parse_inode(&inode.xattr_area)
        .map_err(|source| XattrError::Inode { ino: inode.ino, source }.into())
}

/// Calls `each` with the attributes in the inode, then with those in its block. The block's buffer
/// is locked meanwhile, so `each` locks no other and does no I/O.
fn each_place(store: &Store, inode: &Inode, mut each: impl FnMut(&[Attr<'_>]) -> Result<()>) -> Result<()> {
    each(&in_inode(inode)?)?;
    let Some(buffer) = block::of(store, inode)? else { return Ok(()) };
    let bytes = buffer.read();
    let attrs = block::parse(inode.ino, buffer.block(), &bytes)?;
    each(&attrs)
}

/// Returns the stored bytes of one attribute.
fn find(store: &Store, inode: &Inode, name: Name<'_>) -> Result<Option<Vec<u8>>> {
    let found = match in_inode(inode)?.iter().find(|a| a.name == name) {
        Some(attr) => Some(Stored::of(attr.value)),
        None => find_in_block(store, inode, name)?,
    };
    found.map(|value| value.read(store, inode.ino)).transpose()
}

fn find_in_block(store: &Store, inode: &Inode, name: Name<'_>) -> Result<Option<Stored>> {
    let Some(buffer) = block::of(store, inode)? else { return Ok(None) };
    let bytes = buffer.read();
    let attrs = block::parse(inode.ino, buffer.block(), &bytes)?;
    Ok(attrs.iter().find(|a| a.name == name).map(|a| Stored::of(a.value)))
}

/// Sets (or with no `value` removes) one attribute by its stored name and form.
fn change(
    txn: &mut Txn<'_>,
    inode: &mut Inode,
    name: Name<'_>,
    value: Option<&[u8]>,
    how: SetXattr,
) -> Result<()> {
    let store = txn.store();
    let buffer = block::of(store, inode)?;
    let (new_inode, new_block) = {
        let bytes = buffer.as_ref().map(|b| b.read());
        let inner = in_inode(inode)?;
        let outer = match (&buffer, &bytes) {
            (Some(buffer), Some(bytes)) => block::parse(inode.ino, buffer.block(), bytes)?,
            _ => Vec::new(),
        };
        let old = inner.iter().chain(&outer).find(|a| a.name == name);
        match (old, how, value) {
            (Some(_), SetXattr::Create, _) => return Err(Error::Exists),
            (None, SetXattr::Replace, _) => return Err(Error::NoData),
            (None, _, None) => return Ok(()),
            _ => {}
        }
        if let Some(Attr { value: Value::Inode { .. }, .. }) = old {
            return Err(Error::NotSupported(
                "changing a value that has an inode of its own (ea_inode)".into(),
            ));
        }
        let new = value.map(|value| Attr::new(name, value));
        if let (Some(old), Some(new)) = (old, &new)
            && old.same(new)
        {
            return Ok(());
        }
        let mut area = vec![0; room(inode)];
        let in_outer = outer.iter().any(|a| a.name == name);
        if codec::encode_inode(&mut area, &edited(&inner, name, new)) {
            (
                area,
                in_outer
                    .then(|| edited(&outer, name, None))
                    .map(|list| block::encode(store, list))
                    .transpose()?,
            )
        } else {
            // Only setting an attribute can exceed the room: a list with one attribute less is not
            // longer.
            let list = block::encode(store, edited(&outer, name, new))?;
            if !codec::encode_inode(&mut area, &edited(&inner, name, None)) {
                return Err(Error::XattrsTooLarge);
            }
            (area, Some(list))
        }
    };
    if let Some(content) = new_block {
        block::replace(txn, inode, content)?;
    }
    inode.xattr_area = new_inode;
    inode.ctime = store.now();
    if value.is_some() { note_feature(txn) } else { Ok(()) }
}

/// Sets `ext_attr` in the superblock, which the first attribute of a volume needs.
fn note_feature(txn: &Txn<'_>) -> Result<()> {
    let store = txn.store();
    if store.has(Compat::EXT_ATTR) || store.sb.lock().has(Compat::EXT_ATTR) {
        return Ok(());
    }
    store.write_super(txn, Superblock::set_ext_attr)
}

/// Returns the bytes that the inode has for attributes.
fn room(inode: &Inode) -> usize {
    inode.xattr_area.len()
}

/// Returns `list` with `name` replaced in its place or appended, or without it.
fn edited<'a>(list: &[Attr<'a>], name: Name<'_>, new: Option<Attr<'a>>) -> Vec<Attr<'a>> {
    let mut list = list.to_vec();
    match (new, list.iter().position(|a| a.name == name)) {
        (Some(new), Some(at)) => list[at] = new,
        (Some(new), None) => list.push(new),
        (None, _) => list.retain(|a| a.name != name),
    }
    list
}
