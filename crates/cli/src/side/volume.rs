//! Files of a volume, through the engine.
//!
//! Paths may be longer than the engine takes: it looks the end of one up from an open directory.

use super::{Meta, OpenInode, Outcome, Side, Sink, Source, Xattrs};
use crate::failure::{Cause, Failure, Res};
use crate::location::VolumeName;
use crate::stats::StatsArg;
use crate::time::Time;
use lanefs::{
    At, AtSymlink, DeviceNumber, Dir, FileType, NewAttr, Node, RenameFlags, SetAttr, SetTime, SetXattr,
    Timestamp, Volume,
};
use lanefs_archive::check_owner;
use rustix::io::Errno;
use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Longest path that is given to the engine at once; it takes 4,095 bytes.
const PATH_PIECE: usize = 4000;

/// A volume. New files belong to root (0:0): the user that runs lanefs need not exist inside.
#[derive(Debug)]
pub(crate) struct VolumeSide {
    /// The directory of the last path that was too long, by its path: a walk stays in one for a
    /// while. Closed before the volume is.
    last: RefCell<Option<(PathBuf, Dir)>>,
    volume: RefCell<Option<Volume>>,
    label: OsString,
    place: u64,
}

impl VolumeSide {
    /// Returns the side of a volume. `place` tells the volumes of one command apart.
    pub(crate) fn new(volume: Volume, name: &VolumeName, place: u64) -> Self {
        let mut label = name.clone();
        label.push(":");
        Self { last: RefCell::default(), volume: RefCell::new(Some(volume)), label, place }
    }

    /// Runs `f` on the volume.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&Volume) -> lanefs::Result<T>) -> Outcome<T> {
        match &*self.volume.borrow() {
            Some(volume) => Ok(f(volume)?),
            None => Err(lanefs::Error::Closed.into()),
        }
    }

    /// Runs `f` with the operations that begin where a path begins for the engine, and the path
    /// from there.
    fn at<T>(&self, path: &Path, f: impl FnOnce(At<'_>, &Path) -> lanefs::Result<T>) -> Outcome<T> {
        let (dir, path) = self.locate(path)?;
        self.with(|v| f(begin(dir.as_ref(), v), path))
    }

    /// Opens a file to read and write. With `new`, makes one of that mode if none is there.
    pub(crate) fn open_to_write(&self, path: &Path, new: Option<u32>) -> Outcome<lanefs::File> {
        self.at(path, |at, path| {
            let options = at.open_options().read(true).write(true).create(new.is_some());
            options.attr(attr(new.unwrap_or(0))).open(path)
        })
    }

    /// Returns the directory where a path begins for the engine, `None` for the root, and the path
    /// from there.
    fn locate<'p>(&self, path: &'p Path) -> Outcome<(Option<Dir>, &'p Path)> {
        let Some((above, name)) = split(path) else { return Ok((None, path)) };
        if let Some((known, dir)) = &*self.last.borrow()
            && known == above
        {
            return Ok((Some(dir.clone()), name));
        }
        let dir = self.open_dir(above)?;
        *self.last.borrow_mut() = Some((above.into(), dir.clone()));
        Ok((Some(dir), name))
    }

    /// Opens a directory, piece by piece of its path from the root.
    fn open_dir(&self, path: &Path) -> Outcome<Dir> {
        let mut dir = self.with(|v| v.open_dir("/"))?;
        let mut rest = path.as_os_str().as_bytes();
        loop {
            while let Some((b'/', tail)) = rest.split_first() {
                rest = tail;
            }
            if rest.is_empty() {
                return Ok(dir);
            }
            let end = match rest.get(..PATH_PIECE) {
                Some(head) => head.iter().rposition(|b| *b == b'/').unwrap_or(PATH_PIECE),
                None => rest.len(),
            };
            let (piece, tail) = rest.split_at(end);
            dir = dir.at().open_dir(OsStr::from_bytes(piece))?;
            rest = tail;
        }
    }

    /// Forgets the directory of the last long path. To be called before a name is taken away, by
    /// which that path may go.
    fn forget(&self) {
        *self.last.borrow_mut() = None;
    }

    fn rename_with(&self, old: &Path, new: &Path, flags: RenameFlags) -> Outcome {
        self.forget();
        let ((from, old), (to, new)) = (self.locate(old)?, self.locate(new)?);
        self.with(|v| begin(from.as_ref(), v).rename(old, begin(to.as_ref(), v), new, flags))
    }

    /// Prints what the volume counted and timed, if that is wanted.
    pub(crate) fn print(&self, stats: &StatsArg) -> Res {
        let name = self.label.as_encoded_bytes();
        let name = name.strip_suffix(b":").unwrap_or(name);
        self.volume.borrow().as_ref().map_or(Ok(()), |volume| stats.print(volume, name))
    }

    /// Ends the use of the volume. All changes are durable after that.
    pub(crate) fn close(&self) -> Res {
        let name = self.label.as_encoded_bytes();
        let name = name.strip_suffix(b":").unwrap_or(name);
        self.forget();
        match self.volume.take() {
            Some(volume) => volume.close().map_err(|e| Failure::cannot("close", name, e)),
            None => Ok(()),
        }
    }
}

/// Returns the operations on paths that begin at a directory, `None` for the root.
fn begin<'a>(dir: Option<&'a Dir>, volume: &'a Volume) -> At<'a> {
    dir.map_or_else(|| volume.at(), Dir::at)
}

/// Splits a path that is too long for the engine into the path of a directory and the last name,
/// with the slashes behind it.
fn split(path: &Path) -> Option<(&Path, &Path)> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() <= PATH_PIECE {
        return None;
    }
    let end = bytes.iter().rposition(|b| *b != b'/')?;
    let slash = bytes[..end].iter().rposition(|b| *b == b'/')?;
    let [above, name] = [&bytes[..slash], &bytes[slash + 1..]].map(|part| Path::new(OsStr::from_bytes(part)));
    Some((above, name))
}

/// Leaves out the operation, the path and the device that the error names: the message says them
/// itself.
impl From<lanefs::Error> for Cause {
    fn from(e: lanefs::Error) -> Self {
        let mut e = e.into_kind();
        if let lanefs::Error::Device(e) = &mut e {
            e.device = None;
        }
        let errno = Errno::from_raw_os_error(e.errno());
        // Of a device it is damage below the volume, as that of the top of an overlay.
        let foreign = matches!(
            e,
            lanefs::Error::Format(lanefs::format::FormatError::BadMagic { .. }) | lanefs::Error::Device(_)
        );
        let mut cause = match errno {
            Errno::UCLEAN if !foreign => Cause::text(format!("{e}; e2fsck -f may mend the volume")),
            _ => Cause::text(e.to_string()),
        };
        cause.errno = Some(errno);
        cause
    }
}

impl From<Timestamp> for Time {
    fn from(t: Timestamp) -> Self {
        Self { sec: t.sec, nsec: t.nsec }
    }
}

impl From<Time> for Timestamp {
    fn from(t: Time) -> Self {
        Self { sec: t.sec, nsec: t.nsec }
    }
}

fn attr(mode: u32) -> NewAttr {
    NewAttr { permissions: (mode & 0o7777) as u16, uid: 0, gid: 0 }
}

impl Side for VolumeSide {
    fn label(&self) -> &OsString {
        &self.label
    }

    fn place(&self) -> Option<u64> {
        Some(self.place)
    }

    fn metadata(&self, path: &Path, at_end: AtSymlink) -> Outcome<Meta> {
        let m = self.at(path, |at, path| at.metadata(path, at_end))?;
        Ok(Meta {
            ino: m.ino().into(),
            mode: m.mode().into(),
            nlink: m.nlink().into(),
            uid: m.uid(),
            gid: m.gid(),
            rdev: m.device().map_or((0, 0), |d| (d.major, d.minor)),
            size: m.len(),
            blocks: m.sectors(),
            block_size: m.block_size().into(),
            atime: m.atime().into(),
            mtime: m.mtime().into(),
            ctime: m.ctime().into(),
            btime: m.crtime().map(Time::from),
            version: Some(m.version()),
            device: self.place,
        })
    }

    fn read_dir(&self, path: &Path) -> Outcome<Vec<OsString>> {
        let entries = self.at(path, |at, path| at.read_dir(path))?;
        Ok(entries.into_iter().map(|e| e.name).collect())
    }

    fn read_link(&self, path: &Path) -> Outcome<OsString> {
        Ok(self.at(path, |at, path| at.read_link(path))?.into())
    }

    fn resolve(&self, path: &Path) -> Outcome<PathBuf> {
        // As the kernel counts: a path goes through 40 links at most.
        let mut path = path.to_path_buf();
        for _ in 0..=40 {
            if !self.metadata(&path, AtSymlink::NoFollow)?.is_symlink() {
                return Ok(path);
            }
            let target = PathBuf::from(self.read_link(&path)?);
            // Not textually: `..` behind a link leads to the parent of what the link leads to.
            path = path.parent().unwrap_or(Path::new("/")).join(target);
        }
        Err(Errno::LOOP.into())
    }

    fn open(&self, path: &Path) -> Outcome<Box<dyn Source + '_>> {
        let file = self.at(path, |at, path| at.open_file(path))?;
        Ok(Box::new(file))
    }

    fn create(&self, path: &Path, mode: u32, _keep: bool) -> Outcome<Box<dyn Sink + '_>> {
        let file = self.at(path, |at, path| {
            at.open_options().read(true).write(true).create(true).truncate(true).attr(attr(mode)).open(path)
        })?;
        Ok(Box::new(file))
    }

    fn mkdir(&self, path: &Path, mode: u32) -> Outcome {
        self.at(path, |at, path| at.create_dir(path, attr(mode)))
    }

    fn symlink(&self, target: &Path, path: &Path) -> Outcome<Box<dyn OpenInode + '_>> {
        self.at(path, |at, path| at.symlink(target, path))?;
        self.node(path, None)
    }

    fn hard_link(&self, old: &Path, _: (u64, u64), new: &Path) -> Outcome {
        // The volume is locked: no other process changes what the path leads to.
        let ((from, old), (to, new)) = (self.locate(old)?, self.locate(new)?);
        self.with(|v| begin(from.as_ref(), v).hard_link(old, begin(to.as_ref(), v), new))
    }

    fn mknod(&self, path: &Path, mode: u32, (major, minor): (u32, u32)) -> Outcome<Box<dyn OpenInode + '_>> {
        let Some(kind) = FileType::from_mode(mode as u16) else { return Err(Errno::INVAL.into()) };
        self.at(path, |at, path| at.mknod(path, kind, DeviceNumber { major, minor }, attr(mode)))?;
        self.node(path, None)
    }

    fn node(&self, path: &Path, expected: Option<(u64, u64)>) -> Outcome<Box<dyn OpenInode + '_>> {
        // The volume is locked: no other process changes what the path leads to.
        let ino = expected.map_or_else(
            || self.metadata(path, AtSymlink::NoFollow).map(|meta| meta.ino),
            |(_, ino)| Ok(ino),
        )?;
        let ino = u32::try_from(ino).map_err(|_| Errno::STALE)?;
        Ok(Box::new(self.with(|v| v.node_at(ino))?))
    }

    fn rename(&self, old: &Path, new: &Path) -> Outcome {
        self.rename_with(old, new, RenameFlags::Replace)
    }

    fn exchange(&self, one: &Path, other: &Path) -> Outcome {
        self.rename_with(one, other, RenameFlags::Exchange)
    }

    fn remove_file(&self, path: &Path) -> Outcome {
        self.forget();
        self.at(path, |at, path| at.remove_file(path))
    }

    fn remove_dir(&self, path: &Path) -> Outcome {
        self.forget();
        self.at(path, |at, path| at.remove_dir(path))
    }

    fn list_xattrs(&self, path: &Path) -> Outcome<Vec<OsString>> {
        Ok(self.at(path, |at, path| at.xattrs(path))?.into_iter().map(|(name, _)| name).collect())
    }

    fn get_xattr(&self, path: &Path, name: &OsStr) -> Outcome<Vec<u8>> {
        self.at(path, |at, path| at.xattr(path, name))
    }

    fn xattrs_of(&self, _path: &Path, meta: &Meta) -> Outcome<Xattrs> {
        let ino = u32::try_from(meta.ino).map_err(|_| Errno::STALE)?;
        self.with(|v| v.node_at(ino)?.xattrs())
    }

    fn remove_xattr(&self, path: &Path, name: &OsStr) -> Outcome {
        self.at(path, |at, path| at.remove_xattr(path, name))
    }

    fn sync(&self) -> Outcome {
        self.with(|v| v.sync())
    }
}

/// A value that keeps an inode of a volume.
trait KeepsInode {
    fn inode(&self) -> Node;
}

impl KeepsInode for Node {
    fn inode(&self) -> Node {
        self.clone()
    }
}

impl KeepsInode for lanefs::File {
    fn inode(&self) -> Node {
        self.node()
    }
}

impl<I: KeepsInode> OpenInode for I {
    fn id(&self) -> Outcome<(u64, u64)> {
        Ok((0, self.inode().ino().into()))
    }

    fn set_mode(&self, mode: u32) -> Outcome {
        Ok(self.inode().set_attr(&mode_of(mode))?)
    }

    fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Outcome {
        Ok(self.inode().set_attr(&owner_of(uid, gid)?)?)
    }

    fn set_times(&self, atime: Time, mtime: Time) -> Outcome {
        Ok(self.inode().set_attr(&times_of(atime, mtime))?)
    }

    fn set_xattr(&self, name: &OsStr, value: &[u8]) -> Outcome {
        Ok(self.inode().set_xattr(name, value, SetXattr::Any)?)
    }
}

fn mode_of(mode: u32) -> SetAttr {
    SetAttr { permissions: Some((mode & 0o7777) as u16), ..SetAttr::default() }
}

fn owner_of(uid: Option<u32>, gid: Option<u32>) -> Outcome<SetAttr> {
    check_owner(uid, gid).map_err(|e| Cause::text(e.to_string()))?;
    Ok(SetAttr { uid, gid, ..SetAttr::default() })
}

fn times_of(atime: Time, mtime: Time) -> SetAttr {
    let at = |t: Time| Some(SetTime::At(t.into()));
    SetAttr { atime: at(atime), mtime: at(mtime), ..SetAttr::default() }
}

impl Source for lanefs::File {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Outcome<usize> {
        Ok(lanefs::File::read_at(self, buf, offset)?)
    }

    fn next_data(&self, offset: u64) -> Outcome<Option<(u64, u64)>> {
        Ok(lanefs::File::next_data(self, offset)?)
    }
}

impl Sink for lanefs::File {
    fn write_at(&self, data: &[u8], offset: u64) -> Outcome {
        Ok(lanefs::File::write_at(self, data, offset)?)
    }

    fn set_len(&self, len: u64) -> Outcome {
        Ok(lanefs::File::set_len(self, len)?)
    }

    fn keeps_holes(&self) -> Outcome<bool> {
        Ok(true)
    }
}
