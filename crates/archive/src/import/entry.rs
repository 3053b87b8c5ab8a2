//! One entry of a volume for one member: made, and given what the member has.

use crate::member::{Kind, Member};
use lanefs::device::os_name::OsStrExt;
use lanefs::{DeviceNumber, Dir, File, FileType, NewAttr, Node, SetAttr, SetTime};
use lanefs_format::acl;
use std::ffi::OsStr;

/// How a member arrived.
pub(super) enum Made {
    /// A file, to be filled.
    File(File),
    New,
    /// A directory that was there before.
    Joined,
}

/// Makes what a member is, under a name that is not there yet.
pub(super) fn make_new(dir: &Dir, name: &OsStr, member: &Member) -> lanefs::Result<Made> {
    let attr = NewAttr { permissions: member.mode, uid: member.uid, gid: member.gid };
    let device = |file_type, major: u32, minor: u32| {
        dir.mknod(name, file_type, DeviceNumber { major, minor }, attr).map(|_| Made::New)
    };
    match &member.kind {
        Kind::File { .. } => dir.create_new_file(name, attr).map(Made::File),
        Kind::Dir => dir.create_dir(name, attr).map(|_| Made::New),
        Kind::Symlink(target) => {
            let attr = NewAttr { permissions: 0o777, ..attr };
            dir.symlink(OsStr::from_bytes(target), name, attr).map(|_| Made::New)
        }
        Kind::CharDevice(major, minor) => device(FileType::CharDevice, *major, *minor),
        Kind::BlockDevice(major, minor) => device(FileType::BlockDevice, *major, *minor),
        Kind::Fifo => device(FileType::Fifo, 0, 0),
        Kind::Socket => device(FileType::Socket, 0, 0),
        Kind::HardLink(_) => Ok(Made::New),
    }
}

/// Gives the member ACLs of its own where it would inherit them from its directory: an access ACL
/// that agrees with the mode, and an empty default ACL.
pub(super) fn disinherit(member: &mut Member) {
    if matches!(member.kind, Kind::Symlink(_)) {
        return;
    }
    for (name, list) in acl::own(member.mode, member.kind == Kind::Dir) {
        let name = name.as_bytes();
        if !member.xattrs.iter().any(|(known, _)| known == name) {
            member.xattrs.push((name.to_vec(), list.to_xattr()));
        }
    }
}

/// Returns all attributes to set, whatever the new entry inherited from its directory.
pub(super) fn attributes(member: &Member) -> SetAttr {
    let time = Some(SetTime::At(member.mtime));
    let link = matches!(member.kind, Kind::Symlink(_));
    SetAttr {
        permissions: (!link).then_some(member.mode),
        uid: Some(member.uid),
        gid: Some(member.gid),
        atime: time,
        mtime: time,
        ..SetAttr::default()
    }
}

/// Returns the inode of `name` in `dir`; an empty name is that of the target directory itself.
pub(super) fn node_of(dir: &Dir, name: &[u8]) -> lanefs::Result<Node> {
    if name.is_empty() { Ok(dir.node()) } else { dir.lookup(OsStr::from_bytes(name)) }
}

/// Removes the attributes that a directory has from a lower layer, and that the member has not.
pub(super) fn drop_xattrs(node: &Node, member: &Member) -> lanefs::Result<()> {
    for (name, _) in node.xattrs()? {
        if !member.xattrs.iter().any(|(kept, _)| kept == name.as_bytes()) {
            node.remove_xattr(&name)?;
        }
    }
    Ok(())
}
