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

pub(crate) use acl::{chmod_acl, inherit_acl};
pub(crate) use share::Sharing;

use crate::error::{Error, Result, XattrError};
use crate::store::txn::Txn;
use crate::store::{Store, io};
use lanefs_format::xattr::{self as codec, Attr, Name, Value, index};
use lanefs_format::{Compat, Inode, InodeFlags, Superblock};

/// The most bytes of a value that a program can read or write (`XATTR_SIZE_MAX`).
const VALUE_MAX: u32 = 64 << 10;

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
    match name.index {
        index::POSIX_ACL_ACCESS | index::POSIX_ACL_DEFAULT => {
            Ok(acl::get(store, inode, name)?.ok_or(Error::NoData)?.to_xattr())
        }
        _ => find(store, inode, name)?.ok_or(Error::NoData),
    }
}

/// Returns the names of all attributes that programs see, prefixes included.
pub(crate) fn list(store: &Store, inode: &Inode) -> Result<Vec<Vec<u8>>> {
    let is_acl = |name: &Name<'_>| matches!(name.index, index::POSIX_ACL_ACCESS | index::POSIX_ACL_DEFAULT);
    let shown = |attr: &Attr<'_>| attr.name.full().filter(|_| store.acl || !is_acl(&attr.name));
    let mut names: Vec<_> = in_inode(inode)?.iter().filter_map(shown).collect();
    if let Some(buffer) = block::of(store, inode)? {
        let bytes = buffer.read();
        names.extend(block::parse(inode.ino, buffer.block(), &bytes)?.iter().filter_map(shown));
    }
    Ok(names)
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

fn in_inode(inode: &Inode) -> Result<Vec<Attr<'_>>> {
    codec::parse_inode(&inode.xattr_area)
        .map_err(|source| XattrError::Inode { ino: inode.ino, source }.into())
}

/// Returns the stored bytes of one attribute.
fn find(store: &Store, inode: &Inode, name: Name<'_>) -> Result<Option<Vec<u8>>> {
    if let Some(attr) = in_inode(inode)?.iter().find(|a| a.name == name) {
        return value_of(store, inode.ino, attr).map(Some);
    }
    let Some(buffer) = block::of(store, inode)? else { return Ok(None) };
    let bytes = buffer.read();
    let attrs = block::parse(inode.ino, buffer.block(), &bytes)?;
    let Some(found) = attrs.iter().find(|a| a.name == name) else { return Ok(None) };
    value_of(store, inode.ino, found).map(Some)
}

fn value_of(store: &Store, ino: u32, attr: &Attr<'_>) -> Result<Vec<u8>> {
    let (value_ino, size) = match attr.value {
        Value::Bytes(bytes) => return Ok(bytes.to_vec()),
        Value::Inode { ino, size } => (ino, size),
    };
    let broken = |rule| Error::from(XattrError::ValueInode { ino, value_ino, rule });
    let holder = store.read_inode(value_ino)?;
    if !holder.flags.contains(InodeFlags::EA_INODE) {
        return Err(broken("lacks the flag of an attribute's inode"));
    }
    if holder.size != u64::from(size) {
        return Err(broken("has another size than e_value_size"));
    }
    if size > VALUE_MAX {
        return Err(broken("has more than the 65536 bytes that a value can have"));
    }
    let mut value = vec![0; size as usize];
    let n = io::read_inode(store, &holder, 0, &mut value)?;
    if n == value.len() { Ok(value) } else { Err(broken("ends early")) }
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
