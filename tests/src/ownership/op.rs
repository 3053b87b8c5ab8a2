//! The operations.

use lanefs::{AtSymlink, Atime, DeviceNumber, FileType, NewKind};
use lanefs::{
    Error, FallocMode, Io, Modifier, NewAttr, RenameFlags, Result, SetAttr, SetTime, SetXattr, Timestamp,
    Volume,
};
use lanefs_format::InodeFlags;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Bytes of a script for one operation: kind, path, other path, place, length.
pub(super) const STEP: usize = 5;

/// Flags that chattr sets, of which some refuse the operations that come later.
const FLAGS: [InodeFlags; 4] =
    [InodeFlags::NODUMP, InodeFlags::APPEND, InodeFlags::PROJINHERIT, InodeFlags::IMMUTABLE];

/// The modes of fallocate that give or take blocks without moving others.
const FALLOC: [FallocMode; 6] = [
    FallocMode::Allocate,
    FallocMode::KeepSize,
    FallocMode::PunchHole,
    FallocMode::ZeroRange,
    FallocMode::ZeroRangeKeepSize,
    FallocMode::UnshareRange,
];

/// An operation.
#[derive(Debug)]
pub(super) struct Op {
    kind: u8,
    path: PathBuf,
    other: PathBuf,
    /// A name that is not there yet.
    fresh: PathBuf,
    at: u64,
    len: usize,
}

impl Op {
    pub(super) fn of(script: &[u8], step: usize, paths: &[PathBuf]) -> Self {
        let path = |byte: u8| paths[usize::from(byte) % paths.len()].clone();
        let other = path(script[2]);
        let place = u64::from(script[3]);
        Self {
            kind: script[0] % 36,
            path: path(script[1]),
            fresh: other.join(format!("made by step {step}")),
            other,
            // Near and far, aligned and not.
            at: if place < 192 { place * 512 } else { (place - 190) << 17 },
            len: usize::from(script[4]) * 97 + 1,
        }
    }

    /// The inodes that the operation may change: what its paths lead to, and the directories that
    /// hold them.
    pub(super) fn owners(&self, volume: &Volume) -> BTreeSet<u32> {
        let dirs = [&self.path, &self.other, &self.fresh].map(|path| path.parent().unwrap_or(Path::new("/")));
        let paths = [&self.path, &self.other, &self.fresh].map(PathBuf::as_path);
        let of = |path: &Path| [volume.symlink_metadata(path), volume.metadata(path)];
        let all = paths.into_iter().chain(dirs).flat_map(of);
        all.filter_map(Result::ok).map(|meta| meta.ino()).collect()
    }

    pub(super) fn carry_out(&self, volume: &Volume) -> Result<()> {
        let Self { path, other, fresh, at, len, .. } = self;
        let bytes = vec![0xA7; *len];
        let attr = NewAttr { permissions: 0o700, uid: 1, gid: 2 };
        let open = || volume.open_options().read(true).write(true).open(path);
        match self.kind {
            0 => open()?.write_at(&bytes, *at),
            1 => open()?.with_direct(true).write_at(&vec![0xA8; 4096], at & !4095),
            2 => {
                let file = open()?;
                file.write_at(&bytes, file.metadata().len())?;
                file.sync_all()
            }
            3 => open()?.set_len(*at),
            4..=6 => open()?.fallocate(FALLOC[len % FALLOC.len()], *at, 1 + *len as u64),
            7 => open()?.fallocate(FallocMode::CollapseRange, at & !4095, 4096),
            8 => open()?.fallocate(FallocMode::InsertRange, at & !4095, 4096),
            9 => volume.write(fresh, &bytes),
            10 => volume.create_dir(fresh),
            11 => volume.symlink("s".repeat(1 + len % 900), fresh),
            12 => volume.hard_link(path, fresh),
            13 => volume.rename(path, fresh),
            14 => volume.rename(path, other),
            15 => volume.rename_with(path, other, RenameFlags::Exchange),
            16 => volume.remove_file(path),
            17 => volume.remove_dir(path),
            18 => volume.set_xattr(path, "user.meddled", &bytes[..*len % 3000], SetXattr::Any),
            19 => volume.xattrs(path)?.first().map_or(Ok(()), |(name, _)| volume.remove_xattr(path, name)),
            20..=27 => self.set_or_look(volume),
            28 => open()?.write_late(&bytes, *at),
            29 => {
                let to = volume.open_options().read(true).write(true).open(other)?;
                open()?.copy_range(*at, &to, at / 2, *len as u64).map(drop)
            }
            30 => {
                let (file, mut read) = (open()?.with_direct(true), vec![0; 4096]);
                let ios = &mut [Io::write(&file, &[0xA9; 4096], at & !4095), Io::read(&file, &mut read, 0)];
                lanefs::File::run_batch(ios).into_iter().try_for_each(|done| done.map(drop))
            }
            31 => {
                let file = volume.open_dir(other)?.create_nameless(attr)?;
                file.write_at(&bytes, *at)?;
                volume.link_file(&file, fresh)
            }
            32 => {
                let (file, mut read) = (open()?.with_direct(len % 2 == 0), vec![0; 4096]);
                file.try_read_at(&mut read, *at)?;
                file.try_write_at(&read, at & !4095).map(drop)
            }
            33 => volume.mknod(
                fresh,
                FileType::CharDevice,
                DeviceNumber { major: 300, minor: *len as u32 },
                attr,
            ),
            _ => self.by_node(volume, attr),
        }
    }
    /// Makes, lists, renames and removes by inode, as a mount does.
    fn by_node(&self, volume: &Volume, attr: NewAttr) -> Result<()> {
        let node = |path: &Path| volume.node_at(volume.symlink_metadata(path)?.ino());
        let (dir, name) = (node(&self.other)?, self.fresh.file_name().unwrap_or_default());
        let made = dir.create(name, NewKind::Dir, attr, 0o022)?;
        let file = made.create(name, NewKind::File, attr, 0o022)?;
        file.open()?.write_at(b"by node", self.at)?;
        file.set_xattr(OsStr::new("user.a"), b"1", SetXattr::Create)?;
        file.xattr_names()?;
        file.remove_xattr(OsStr::new("user.a"))?;
        file.drop_privileges(Modifier::Other)?;
        file.accessed(Atime::Strict)?;
        let other = OsStr::new("other");
        made.link_file(&file, other)?;
        made.rename(name, &made, other, RenameFlags::Replace)?;
        let mut names = Vec::new();
        made.read_dir_from(0, |entry| {
            names.push(entry.name.to_owned());
            ControlFlow::Continue(())
        })?;
        for name in names.iter().filter(|name| *name != "." && *name != "..") {
            made.lookup(name)?;
            made.remove_file(name)?;
        }
        file.sync_all()?;
        if self.kind == 34 { dir.remove_dir(name).map(drop) } else { made.set_len(0) }
    }

    /// Sets what an inode says of itself, or looks at the volume, which changes nothing.
    fn set_or_look(&self, volume: &Volume) -> Result<()> {
        let Self { path, at, len, .. } = self;
        let node = || volume.node_at(volume.symlink_metadata(path)?.ino());
        match self.kind {
            20 => volume.set_attr(
                path,
                &SetAttr { permissions: Some(*len as u16 & 0o7777), ..SetAttr::default() },
                AtSymlink::NoFollow,
            ),
            21 => {
                let time = SetTime::At(Timestamp { sec: *at as i64 - 5000, nsec: 7 });
                let (atime, mtime, by) = (Some(time), Some(SetTime::Now), Modifier::Member);
                let set = SetAttr {
                    uid: Some(*len as u32),
                    gid: Some(70_000),
                    atime,
                    mtime,
                    by,
                    ..SetAttr::default()
                };
                volume.set_attr(path, &set, AtSymlink::NoFollow)
            }
            22 => node()?.set_flags(FLAGS[len % FLAGS.len()]),
            23 => node()?.set_file_attr(None, Some(*len as u32)),
            24 => volume.set_xattr(path, "system.posix_acl_access", &acl(*len as u16), SetXattr::Any),
            25 => volume.trim(0..u64::MAX, 1).map(drop),
            26 => {
                let file = volume.open_file(path)?;
                file.fiemap(0..u64::MAX, 1000)?;
                let found = [file.seek_data(*at), file.seek_hole(*at)];
                file.next_data(*at)?;
                found.into_iter().try_for_each(|found| found.map(drop))
            }
            _ => {
                volume.fragmentation()?;
                volume.extents(path)?;
                let text = volume.stats().to_string();
                if text.is_empty() { Err(Error::Invalid("no statistics")) } else { Ok(()) }
            }
        }
    }
}

/// An ACL that gives a user what `bits` say, in the form that programs use.
fn acl(bits: u16) -> Vec<u8> {
    let entries =
        [(1, 7, u32::MAX), (2, bits & 7, 1000), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 1, u32::MAX)];
    let bytes = entries.iter().flat_map(|(tag, permissions, id): &(u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    });
    2_u32.to_le_bytes().into_iter().chain(bytes).collect()
}
