//! Operations done by lanefs.

use super::{Op, OpenHow, Outcome, READ_MAX, RenameHow, Sectors, Seen, Target, XattrHow, content};
use crate::Kind;
use lanefs::{
    AtSymlink, DeviceNumber, FileOptions, FileType, Metadata, NewAttr, RenameFlags, SetAttr, SetTime,
    SetXattr, Timestamp, Volume,
};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// A volume that lanefs has open.
#[derive(Debug)]
pub struct Lane(pub Volume);

impl Target for Lane {
    fn apply(&self, op: &Op) -> Outcome {
        self.run(op).map_err(|e| e.errno())
    }
}

impl Lane {
    /// Applies `op` as [`Target::apply`] does, and returns the whole error of lanefs.
    ///
    /// # Errors
    /// The operation's.
    pub fn run(&self, op: &Op) -> lanefs::Result<Seen> {
        let v = &self.0;
        let attr = |mode: u16| NewAttr { permissions: mode, uid: 0, gid: 0 };
        match op {
            Op::Open { path, how, mode } => {
                with(v.open_options(), *how).attr(attr(*mode)).open(path)?;
            }
            Op::Read { path, offset, len } => return self.read(path, *offset, *len),
            Op::Write { path, offset, len, fill } => {
                let file = by(v.open_options().write(true), *fill).open(path)?;
                file.write_at(&content(*offset, *len, *fill), *offset)?;
            }
            Op::Append { path, len, fill } => {
                let file = by(v.open_options().append(true), *fill).open(path)?;
                file.write_at(&content(0, *len, *fill), 0)?;
            }
            Op::Truncate { path, len } => v.open_options().write(true).open(path)?.set_len(*len)?,
            Op::Fallocate { path, how, offset, len } => {
                v.open_options().write(true).open(path)?.fallocate(*how, *offset, *len)?;
            }
            Op::SeekData { path, offset } => return v.open_file(path)?.seek_data(*offset).map(Seen::Number),
            Op::SeekHole { path, offset } => return v.open_file(path)?.seek_hole(*offset).map(Seen::Number),
            Op::CopyRange { from, offset, to, to_offset, len } => {
                let (from, to) = (v.open_file(from)?, v.open_options().write(true).open(to)?);
                return from.copy_range(*offset, &to, *to_offset, *len).map(Seen::Number);
            }
            // mkdir(2) drops the set-id bits; lanefs makes what it is told.
            Op::Mkdir { path, mode } => v.create_dir_with(path, attr(*mode & 0o1777))?,
            Op::Rmdir { path } => v.remove_dir(path)?,
            Op::Unlink { path } => v.remove_file(path)?,
            Op::Link { from, to } => v.hard_link(from, to)?,
            Op::Symlink { target, path } => v.symlink(target, path)?,
            Op::ReadLink { path } => {
                return Ok(Seen::Bytes(v.read_link(path)?.as_os_str().as_bytes().to_vec()));
            }
            Op::Rename { from, to, how } => v.rename_with(from, to, rename_flags(*how))?,
            Op::Mknod { path, kind, device: (major, minor), mode } => {
                let device = DeviceNumber { major: *major, minor: *minor };
                v.mknod(path, file_type(*kind), device, attr(*mode))?;
            }
            Op::Chmod { path, mode } => {
                let set = SetAttr { permissions: Some(*mode), ..SetAttr::default() };
                v.set_attr(path, &set, AtSymlink::Follow)?;
            }
            Op::Chown { path, uid, gid, follow } => {
                let set = SetAttr { uid: Some(*uid), gid: Some(*gid), ..SetAttr::default() };
                v.set_attr(path, &set, at_symlink(*follow))?;
            }
            Op::Utimes { path, atime, mtime, follow } => {
                let at = |(sec, nsec): (i64, u32)| Some(SetTime::At(Timestamp { sec, nsec }));
                let set = SetAttr { atime: at(*atime), mtime: at(*mtime), ..SetAttr::default() };
                v.set_attr(path, &set, at_symlink(*follow))?;
            }
            Op::SetXattr { path, name, value, how } => {
                v.set_xattr(path, name, value, xattr_mode(*how))?;
            }
            Op::GetXattr { path, name } => return Ok(Seen::Bytes(v.xattr(path, name)?)),
            Op::RemoveXattr { path, name } => v.remove_xattr(path, name)?,
            Op::Stat { path, follow } => {
                let meta = if *follow { v.metadata(path)? } else { v.symlink_metadata(path)? };
                return Ok(stat(&meta));
            }
            Op::Space { path } => return self.space(path),
            Op::List { path } => return self.list(path),
        }
        Ok(Seen::Nothing)
    }

    fn read(&self, path: &Path, offset: u64, len: usize) -> lanefs::Result<Seen> {
        let mut buf = vec![0; len.min(READ_MAX)];
        let n = self.0.open_file(path)?.read_at(&mut buf, offset)?;
        buf.truncate(n);
        Ok(Seen::Bytes(buf))
    }

    fn space(&self, path: &Path) -> lanefs::Result<Seen> {
        let file = self.0.open_file(path)?;
        file.sync_all()?;
        let meta = file.metadata();
        Ok(Seen::Space(Sectors { count: meta.sectors(), block: meta.block_size().into() }))
    }

    fn list(&self, path: &Path) -> lanefs::Result<Seen> {
        let mut names: Vec<_> = self.0.read_dir(path)?.into_iter().map(|e| e.name.into_vec()).collect();
        names.sort();
        Ok(Seen::Names(names.into_iter().map(OsStringExt::from_vec).collect()))
    }
}

/// Adds the flags of an open(2).
fn with(options: FileOptions<'_>, how: OpenHow) -> FileOptions<'_> {
    let OpenHow { write, create, excl, trunc, nofollow } = how;
    options
        .read(true)
        .write(write)
        .create(create)
        .create_new(create && excl)
        .truncate(trunc && write)
        .follow(!nofollow)
}

/// The same bytes come to the file by one way or another.
fn by(options: FileOptions<'_>, fill: u8) -> FileOptions<'_> {
    options.direct(fill % 5 == 4).dsync(fill % 32 == 5)
}

fn stat(meta: &Metadata) -> Seen {
    let kind = kind(meta.file_type());
    Seen::Stat {
        kind,
        mode: meta.permissions().into(),
        uid: meta.uid(),
        gid: meta.gid(),
        nlink: meta.nlink().into(),
        size: if kind == Kind::Directory { 0 } else { meta.len() },
    }
}

fn rename_flags(how: RenameHow) -> RenameFlags {
    match how {
        RenameHow::Replace => RenameFlags::Replace,
        RenameHow::NoReplace => RenameFlags::NoReplace,
        RenameHow::Exchange => RenameFlags::Exchange,
    }
}

fn xattr_mode(how: XattrHow) -> SetXattr {
    match how {
        XattrHow::Any => SetXattr::Any,
        XattrHow::Create => SetXattr::Create,
        XattrHow::Replace => SetXattr::Replace,
    }
}

pub(crate) fn kind(file_type: FileType) -> Kind {
    match file_type {
        FileType::Regular => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharDevice => Kind::CharDevice,
        FileType::BlockDevice => Kind::BlockDevice,
    }
}

fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::Regular,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::Fifo,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
    }
}

fn at_symlink(follow: bool) -> AtSymlink {
    if follow { AtSymlink::Follow } else { AtSymlink::NoFollow }
}
