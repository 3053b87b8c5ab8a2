//! A folder of this machine as the source of an import.
//!
//! The walk goes by open directories, follows no symbolic link, and takes names in the order of
//! their bytes. An ordinary user may own a file or folder whose mode does not let its owner read
//! it: the import gives the owner that right for a moment.
//!
//! Invariants:
//! - Of the directories on the way down, only the last few are open. A directory that was closed is
//!   opened again beneath the folder, and must be the same inode.
//! - A mode is changed through a descriptor, never by name.
//! - A file or directory is read only if it is the inode whose metadata is sent.
//!
//! Hazard: the volume that is filled may lie in the folder. It is left out, because it changes
//! while it is read.

use crate::host::{Attributed, Folder, Identity, data_ranges, names_in};
use crate::member::{Kind, Member, Ranges, Xattrs};
use crate::path::shown;
use crate::pipe::{Gone, Outlet, PIECE, PipeItem};
use crate::walk::{Step, Walk};
use crate::{Action, Cause, Error, Place};
use lanefs::device::is_inode_open_here;
use lanefs_format::Timestamp;
use rustix::buffer::spare_capacity;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{CStr, CString, OsString};
use std::os::unix::ffi::OsStrExt;

/// Directories on the way down that are open at once, at most, but for those whose mode has to
/// be restored.
const OPEN_DIRS: usize = 16;

/// A directory on the way down.
struct Level {
    /// `None`: closed for a while.
    dir: Option<Opened>,
    identity: Identity,
}

/// Sends what is in `root`, with the data of files if `content` is wanted. `name` stands before
/// paths in errors.
pub(super) fn send(root: &OwnedFd, name: &[u8], content: bool, out: &mut Outlet) -> Result<(), Gone> {
    let mut sender = Sender { name, out, content, links: HashMap::new() };
    let again = || rustix::io::fcntl_dupfd_cloexec(root, 0);
    let opened = names_in(root).and_then(|names| Ok((names, fs::fstat(root)?, again()?, again()?)));
    let (names, stat, first, root) = match opened {
        Ok(opened) => opened,
        Err(e) => {
            return sender.out.push(PipeItem::Failed(Error::new(
                Action::Read,
                Place::Host(name.to_vec()),
                Cause::from(e),
            )));
        }
    };
    let root = Folder::of(root);
    let mut walk = Walk::new();
    let level = Level { dir: Some(Opened { fd: first, restore: None }), identity: Identity::of(&stat) };
    // The kernel's trees have no circle; a bind mount may show a directory at two places.
    let _ = walk.enter("".as_ref(), None, level);
    walk.fill(names);
    while let Some(step) = walk.next() {
        let Step::Name { name, .. } = step else { continue };
        let (path, depth) = (walk.path_of(&name), walk.depth());
        let above = &path[..walk.path().len()];
        let Some(level) = walk.dir_at(depth) else { return Ok(()) };
        let dir = match &level.dir {
            Some(dir) => dir,
            None => match root.beneath_as(above, level.identity) {
                Ok(again) => level.dir.insert(Opened { fd: again.into_object().into(), restore: None }),
                Err(e) => {
                    sender.skip(above, e)?;
                    walk.leave();
                    continue;
                }
            },
        };
        let c_name = CString::new(name.as_bytes()).unwrap_or_default();
        match sender.name(&dir.fd, &c_name, &path)? {
            Ok(Some((dir, identity, names))) => {
                let _ = walk.enter(&name, None, Level { dir: Some(dir), identity });
                walk.fill(names);
                close_one(&mut walk);
            }
            Ok(None) => {}
            Err(e) => sender.skip(&path, e)?,
        }
    }
    Ok(())
}

/// Closes the directory that has been open for longest, where too many are.
fn close_one(walk: &mut Walk<Level>) {
    if let Some(depth) = walk.depth().checked_sub(OPEN_DIRS)
        && let Some(level) = walk.dir_at(depth)
        && level.dir.as_ref().is_some_and(|dir| dir.restore.is_none())
    {
        level.dir = None;
    }
}

/// The reading thread's state.
struct Sender<'a> {
    name: &'a [u8],
    out: &'a mut Outlet,
    /// The data of files is wanted.
    content: bool,
    /// The first path of every file with more than one name.
    links: HashMap<(u64, u64), Vec<u8>>,
}

/// A directory and the names in it.
type Below = (Opened, Identity, Vec<OsString>);
/// A directory to go down into.
type Down = Option<Below>;

impl Sender<'_> {
    /// Leaves a name out.
    fn skip(&mut self, path: &[u8], cause: impl Into<Cause>) -> Result<(), Gone> {
        let error = self.failed(path, cause);
        self.out.push(PipeItem::Skipped(error))
    }

    /// Leaves out the file that was sent last, a part of whose data was sent.
    fn skip_incomplete(&mut self, path: &[u8], cause: impl Into<Cause>) -> Result<(), Gone> {
        let error = self.failed(path, cause);
        self.out.push(PipeItem::Incomplete(error))
    }

    fn failed(&self, path: &[u8], cause: impl Into<Cause>) -> Error {
        Error::new(Action::Read, Place::Host([self.name, b"/", shown(path)].concat()), cause)
    }

    /// Sends one name, and says where to go down. Looks again at a name that led to another inode
    /// when it was opened: an automounter mounts what is opened.
    fn name(&mut self, dir: &OwnedFd, name: &CStr, path: &[u8]) -> Result<Result<Down, Cause>, Gone> {
        match self.name_once(dir, name, path)? {
            Err(Cause::Host(e)) if e.is(Errno::STALE) => self.name_once(dir, name, path),
            sent => Ok(sent),
        }
    }

    fn name_once(&mut self, dir: &OwnedFd, name: &CStr, path: &[u8]) -> Result<Result<Down, Cause>, Gone> {
        let stat = match fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(e) => return Ok(Err(e.into())),
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        let id = (stat.st_dev, stat.st_ino);
        let linked = stat.st_nlink > 1 && kind != FileType::Directory;
        if let Some(first) = self.links.get(&id).filter(|_| linked) {
            let member = member_of(path, &stat, Kind::HardLink(first.clone()), Vec::new());
            return self.out.push(PipeItem::Member(member)).map(|()| Ok(None));
        }
        let sent = match kind {
            FileType::RegularFile => self.file(dir, name, path, &stat)?,
            FileType::Directory => match enter(dir, name, path, &stat) {
                Ok((member, down)) => {
                    return self.out.push(PipeItem::Member(member)).map(|()| Ok(Some(down)));
                }
                Err(e) => Err(e.into()),
            },
            _ => match other(dir, name, path, &stat, kind) {
                Ok(member) => self.out.push(PipeItem::Member(member)).map(|()| Ok(true))?,
                Err(e) => Err(e.into()),
            },
        };
        // No other name can lead to a file that is left out.
        if linked && matches!(sent, Ok(true)) {
            self.links.insert(id, path.to_vec());
        }
        Ok(sent.map(|_| None))
    }

    /// Sends a file. Returns whether all of its data was sent.
    fn file(
        &mut self,
        dir: &OwnedFd,
        name: &CStr,
        path: &[u8],
        stat: &Stat,
    ) -> Result<Result<bool, Cause>, Gone> {
        let size = stat.st_size.unsigned_abs();
        let (file, xattrs, data) = match open_file(dir, name, stat, size) {
            Ok(opened) => opened,
            Err(e) => return Ok(Err(e)),
        };
        let kind = Kind::File { size, data: data.clone() };
        self.out.push(PipeItem::Member(member_of(path, stat, kind, xattrs)))?;
        for (start, len) in data.into_iter().filter(|_| self.content) {
            let mut at = start;
            while at < start + len {
                let want = (start + len - at).min(PIECE as u64) as usize;
                let mut bytes = Vec::with_capacity(want);
                match rustix::io::pread(&file.fd, spare_capacity(&mut bytes), at) {
                    Err(Errno::INTR) => continue,
                    Err(e) => return self.skip_incomplete(path, e).map(|()| Ok(false)),
                    Ok(0) => return self.skip_incomplete(path, Cause::Shrank).map(|()| Ok(false)),
                    // The memory may have room for more, and the file may have grown.
                    Ok(_) => bytes.truncate(want),
                }
                let offset = at;
                at += bytes.len() as u64;
                self.out.push(PipeItem::Data { offset, bytes })?;
            }
        }
        Ok(Ok(true))
    }
}

/// Opens a file of `size` bytes. Returns its attributes and its data ranges too.
fn open_file(dir: &OwnedFd, name: &CStr, stat: &Stat, size: u64) -> Result<(Opened, Xattrs, Ranges), Cause> {
    let file = open(dir, name, stat, OFlags::empty(), Mode::RUSR)?;
    let Identity { device, inode } = Identity::of(stat);
    if is_inode_open_here(device, inode) {
        return Err(Cause::SourceInUse);
    }
    let xattrs = Attributed::File(file.fd.as_fd()).all()?;
    let full = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512) >= size;
    let data = match size {
        0 => Vec::new(),
        _ if full => vec![(0, size)],
        _ => data_ranges(&file.fd, size)?,
    };
    Ok((file, xattrs, data))
}

fn enter(dir: &OwnedFd, name: &CStr, path: &[u8], stat: &Stat) -> Result<(Member, Below), Errno> {
    let opened = open(dir, name, stat, OFlags::DIRECTORY, Mode::RUSR | Mode::XUSR)?;
    let xattrs = Attributed::File(opened.fd.as_fd()).all()?;
    let names = names_in(&opened.fd)?;
    Ok((member_of(path, stat, Kind::Dir, xattrs), (opened, Identity::of(stat), names)))
}

fn other(dir: &OwnedFd, name: &CStr, path: &[u8], stat: &Stat, kind: FileType) -> Result<Member, Errno> {
    let (major, minor) = (fs::major(stat.st_rdev), fs::minor(stat.st_rdev));
    let kind = match kind {
        FileType::Symlink => Kind::Symlink(fs::readlinkat(dir, name, Vec::new())?.into_bytes()),
        FileType::CharacterDevice => Kind::CharDevice(major, minor),
        FileType::BlockDevice => Kind::BlockDevice(major, minor),
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        _ => return Err(Errno::OPNOTSUPP),
    };
    let xattrs = Attributed::name(dir, name).all()?;
    Ok(member_of(path, stat, kind, xattrs))
}

fn member_of(path: &[u8], stat: &Stat, kind: Kind, xattrs: Xattrs) -> Member {
    Member {
        path: path.to_vec(),
        kind,
        mode: (stat.st_mode & 0o7777) as u16,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: Timestamp { sec: stat.st_mtime, nsec: u32::try_from(stat.st_mtime_nsec).unwrap_or(0) },
        xattrs,
    }
}

/// A file or directory that is open to read. Dropping it restores its mode: a directory needs the
/// changed mode as long as names in it are looked up.
struct Opened {
    fd: OwnedFd,
    restore: Option<Mode>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        // The mode could be set before, and `drop` has no caller that could be told of a failure.
        if let Some(mode) = self.restore {
            let _ = fs::fchmod(&self.fd, mode);
        }
    }
}

/// Opens a file or directory to read. `rights` are the mode bits that its owner needs for that.
///
/// # Errors
/// `ESTALE`: the name leads to another inode by now than that of `stat`. Those of openat(2) and
/// chmod(2).
fn open(dir: &OwnedFd, name: &CStr, stat: &Stat, flags: OFlags, rights: Mode) -> Result<Opened, Errno> {
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(stat.st_mode);
    let user = rustix::process::geteuid();
    let own = user.as_raw() == stat.st_uid;
    let is_meant = |fd: &OwnedFd| match Identity::of(&fs::fstat(fd)?) == Identity::of(stat) {
        true => Ok(()),
        false => Err(Errno::STALE),
    };
    match fs::openat(dir, name, flags, Mode::empty()) {
        // A directory that may be read and not searched opens, and is of no use.
        Ok(fd) if mode.contains(rights) || !own || user.is_root() || !flags.contains(OFlags::DIRECTORY) => {
            return is_meant(&fd).map(|()| Opened { fd, restore: None });
        }
        Ok(fd) => {
            is_meant(&fd)?;
            fs::fchmod(&fd, mode | rights)?;
            return Ok(Opened { fd, restore: Some(mode) });
        }
        Err(Errno::ACCESS) if own && !mode.contains(rights) => {}
        Err(e) => return Err(e),
    }
    // Held, so that it is this inode whose mode changes, and no other that takes its name.
    let held = fs::openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    is_meant(&held)?;
    let path = format!("/proc/self/fd/{}", held.as_raw_fd());
    fs::chmod(&path, mode | rights)?;
    match fs::open(&path, flags - OFlags::NOFOLLOW, Mode::empty()) {
        Ok(fd) => Ok(Opened { fd, restore: Some(mode) }),
        Err(e) => {
            fs::chmod(&path, mode)?;
            Err(e)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_inode_than_was_looked_at_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let dir = OwnedFd::from(std::fs::File::open(folder.path()).unwrap());
        let stat = |name: &CStr| fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        std::fs::write(at("file"), "public").unwrap();
        std::fs::create_dir(at("dir")).unwrap();
        let (file, below) = (stat(c"file"), stat(c"dir"));
        assert!(open_file(&dir, c"file", &file, 6).is_ok());
        assert!(enter(&dir, c"dir", b"dir", &below).is_ok());
        for name in ["file", "dir"] {
            std::fs::rename(at(name), at(&format!("old-{name}"))).unwrap();
        }
        std::fs::write(at("file"), "secret").unwrap();
        std::fs::create_dir(at("dir")).unwrap();
        let is_stale = |cause: &Cause| {
            let Cause::Host(host) = cause else { return false };
            host.raw_os_error() == Some(Errno::STALE.raw_os_error())
        };
        assert!(open_file(&dir, c"file", &file, 6).is_err_and(|cause| is_stale(&cause)));
        assert!(enter(&dir, c"dir", b"dir", &below).is_err_and(|e| e == Errno::STALE));
    }
}
