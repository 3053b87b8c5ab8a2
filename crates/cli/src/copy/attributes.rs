//! Owner, mode, times and extended attributes of a copy.
//!
//! Invariant: a copy that loses its access list grants its group no more than the list did. The
//! group's bits of a mode beside a list are the mask of the list, which may be wider.

use super::{Options, Pair};
use crate::failure::{Failure, OrCannot, Res};
use crate::quote::quoted;
use crate::side::OpenInode;
use lanefs_format::acl::{self, Acl, Tag};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

const ACCESS_LIST: &str = "system.posix_acl_access";

/// Sets owner, extended attributes, mode and times of `node`, the copy, in an order in which none
/// undoes another. Goes on behind one that cannot be read or set, and returns the first failure.
///
/// Without its owner a copy has no set-id bits. ACLs are kept as the mode is. They take the place
/// of those that the copy has from its directory, or from a file that it overwrites. Other extended
/// attributes are those of the source if they are to be kept.
pub(super) fn set(options: Options, pair: &Pair<'_>, node: &dyn OpenInode) -> Res {
    if !options.preserve {
        return Ok(());
    }
    let meta = pair.meta;
    let mut mode = meta.mode & 0o7777;
    let mut done: Res = Ok(());
    if let Err(e) = node.set_owner(Some(meta.uid), Some(meta.gid)) {
        mode &= 0o1777;
        // A user that may not change the owner, or has no number for it, keeps the file.
        if !e.is(Errno::PERM) && !e.is(Errno::INVAL) {
            done = Err(Failure::cannot("preserve ownership of", pair.dst_name(), e));
        }
    }
    let mut kept = Vec::new();
    match pair.from.xattrs_of(pair.src, meta).or_cannot("read attributes of", pair.src_name()) {
        Ok(all) => kept.extend(all.into_iter().filter(|(name, _)| options.archive || is_list(name))),
        Err(failure) => {
            // There may be a list among them.
            mode = without_list(mode, b"");
            done = done.and(Err(failure));
        }
    }
    if !meta.is_symlink() {
        let own = acl::own((mode & 0o777) as u16, meta.is_dir());
        for (name, list) in own.filter(|(name, _)| !kept.iter().any(|(known, _)| known == name)) {
            done = done.and(set_xattr(pair, node, OsStr::new(name), &list.to_xattr(), false));
        }
    }
    for (name, value) in &kept {
        let set = set_xattr(pair, node, name, value, is_list(name));
        if set.is_err() && name == ACCESS_LIST {
            mode = without_list(mode, value);
        }
        done = done.and(set);
    }
    if !meta.is_symlink() {
        done = done.and(node.set_mode(mode).or_cannot("preserve permissions of", pair.dst_name()));
    }
    done.and(node.set_times(meta.atime, meta.mtime).or_cannot("preserve times of", pair.dst_name()))
}

/// Returns whether an extended attribute is an ACL.
fn is_list(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"system.posix_acl_")
}

/// Sets an extended attribute. Leaves out what only root may set, and what the other file system
/// does not know, as cp -a does, unless it is `needed`.
fn set_xattr(pair: &Pair<'_>, node: &dyn OpenInode, name: &OsStr, value: &[u8], needed: bool) -> Res {
    match node.set_xattr(name, value) {
        Err(e) if !needed && (e.is(Errno::PERM) || e.is(Errno::NOTSUP)) => Ok(()),
        set => {
            let verb = format!("set attribute {} of", quoted(name.as_bytes()));
            set.or_cannot(&verb, pair.dst_name())
        }
    }
}

/// Returns the mode of a copy that lacks `list`, its access list: the group keeps what the list
/// granted it.
fn without_list(mode: u32, list: &[u8]) -> u32 {
    let group = Acl::from_xattr(list).map_or(0, |list| {
        let perm = |tag| list.entries.iter().find(|entry| entry.tag == tag).map(|entry| entry.perm);
        perm(Tag::GroupObj).unwrap_or(0) & perm(Tag::Mask).unwrap_or(7)
    });
    mode & !0o070 | u32::from(group) << 3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_keeps_what_its_list_granted() {
        let list = |entries: &[(Tag, u8)]| {
            let entries = entries.iter().map(|&(tag, perm)| acl::AclEntry { tag, perm }).collect();
            Acl { entries }.to_xattr()
        };
        let (owner, other) = ((Tag::UserObj, 6), (Tag::Other, 4));
        let wide = [owner, (Tag::User(5), 7), (Tag::GroupObj, 4), (Tag::Mask, 7), other];
        assert_eq!(without_list(0o2674, &list(&wide)), 0o2644);
        let narrow = [owner, (Tag::User(5), 7), (Tag::GroupObj, 7), (Tag::Mask, 1), other];
        assert_eq!(without_list(0o614, &list(&narrow)), 0o614);
        assert_eq!(without_list(0o664, &list(&[owner, (Tag::GroupObj, 6), other])), 0o664);
        assert_eq!(without_list(0o674, b"no list"), 0o604);
    }
}
