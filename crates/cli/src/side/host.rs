//! Files of the machine that lanefs runs on.
//!
//! A [`HostSide`] belongs to one path that the user named. The kernel resolves that path with its
//! links. Names below it are resolved from an open directory, and through no link.

use super::{Meta, OpenInode, Outcome, Side, Sink, Source, Xattrs};
use crate::time::Time;
use lanefs::AtSymlink;
use lanefs_archive::Overwrite;
use lanefs_archive::host::{self, Folder, Identity, Object, c_name};
use lanefs_device::{is_inode_open_here, is_open_here};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{self, AtFlags, CWD, FileType, Mode, OFlags, SeekFrom, Statx, StatxFlags};
use rustix::io::Errno;
use std::cell::{OnceCell, RefCell};
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Bytes of the longest value and of the longest list of names that Linux has (XATTR_SIZE_MAX,
/// XATTR_LIST_MAX).
const XATTR_MAX: usize = 1 << 16;

/// The host, from a path on that the user named.
#[derive(Debug)]
pub(crate) struct HostSide {
    label: OsString,
    named: PathBuf,
    overwrite: Overwrite,
    /// The named directory, once something below it was asked for.
    root: OnceCell<Rc<Folder>>,
    /// The directory below it that was used last: a walk stays in one for a while.
    last: RefCell<Option<(PathBuf, Rc<Folder>)>>,
}

impl HostSide {
    pub(crate) fn new(named: &Path, overwrite: Overwrite) -> Self {
        Self {
            label: OsString::new(),
            named: named.into(),
            overwrite,
            root: OnceCell::new(),
            last: RefCell::default(),
        }
    }

    /// Returns the part of a path below the path that the user named; empty for that path itself.
    fn below<'a>(&self, path: &'a Path) -> Outcome<&'a Path> {
        path.strip_prefix(&self.named).map_err(|_| Errno::XDEV.into())
    }

    /// Returns whether this is the path that the user named.
    fn is_named(&self, path: &Path) -> bool {
        self.below(path).is_ok_and(|below| below.as_os_str().is_empty())
    }

    /// Returns the directory of a path, open, and the last name.
    fn locate(&self, path: &Path) -> Outcome<(Rc<Folder>, CString)> {
        let below = self.below(path)?;
        if let (Some(dir), Some(name)) = (below.parent(), below.file_name()) {
            return Ok((self.folder(dir)?, c_name(name)?));
        }
        match (path.parent(), path.file_name()) {
            (Some(dir), Some(name)) => Ok((Rc::new(Folder::open(dir, self.overwrite)?), c_name(name)?)),
            // `/`, `.`, `..` and what ends in one of them.
            _ => Ok((Rc::new(Folder::open(path, self.overwrite)?), c".".into())),
        }
    }

    /// Returns an open directory below the path that the user named.
    fn folder(&self, below: &Path) -> Outcome<Rc<Folder>> {
        let root = match self.root.get() {
            Some(root) => root,
            None => {
                let opened = Folder::open(&self.named, self.overwrite)?;
                self.root.get_or_init(|| Rc::new(opened))
            }
        };
        if below.as_os_str().is_empty() {
            return Ok(root.clone());
        }
        if let Some((path, folder)) = &*self.last.borrow()
            && path == below
        {
            return Ok(folder.clone());
        }
        let folder = Rc::new(root.beneath(below.as_os_str().as_bytes())?);
        *self.last.borrow_mut() = Some((below.into(), folder.clone()));
        Ok(folder)
    }

    fn find(&self, path: &Path) -> Outcome<Object> {
        let (folder, name) = self.locate(path)?;
        Ok(folder.find(&name)?)
    }

    /// Opens to read what `open` opens by a name in its directory.
    fn open_to_read(
        &self,
        path: &Path,
        flags: OFlags,
        open: fn(&Folder, &CStr) -> host::Result<OwnedFd>,
    ) -> Outcome<OwnedFd> {
        if self.is_named(path) {
            let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC;
            return Ok(fs::open(path, flags, Mode::empty())?);
        }
        let (folder, name) = self.locate(path)?;
        Ok(open(&folder, &name)?)
    }

    /// Opens the inode at a path whose metadata is `meta`, for its attributes.
    fn inode(&self, path: &Path, meta: &Meta) -> Outcome<OwnedFd> {
        let is_meant =
            |inode: &OwnedFd| fs::fstat(inode).is_ok_and(|stat| meta.id() == (stat.st_dev, stat.st_ino));
        let mut inode = OwnedFd::from(self.find(path)?);
        if !is_meant(&inode) && self.is_named(path) {
            inode = fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        }
        if is_meant(&inode) { Ok(inode) } else { Err(host::Error::Replaced.into()) }
    }
}

/// Returns the magic link that leads to an open file whatever its name is.
fn proc_path(file: impl AsFd) -> String {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}

/// Returns the names of the attributes of what `path` leads to.
fn xattr_names(path: &str) -> Result<Vec<OsString>, Errno> {
    let mut names = vec![0; XATTR_MAX];
    match fs::listxattr(path, names.as_mut_slice()) {
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        len => names.truncate(len?),
    }
    let names = names.split(|b| *b == 0).filter(|name| !name.is_empty());
    Ok(names.map(|name| OsString::from_vec(name.to_vec())).collect())
}

/// Returns the value of an attribute of what `path` leads to.
fn xattr_value(path: &str, name: &OsStr) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; XATTR_MAX];
    let len = fs::getxattr(path, name.as_bytes(), value.as_mut_slice())?;
    value.truncate(len);
    Ok(value)
}

/// Returns whether this process has what an open file is open as a volume too: a file, or a block
/// device.
pub(crate) fn is_file_open_here(file: impl AsFd) -> Outcome<bool> {
    let stat = fs::fstat(&file)?;
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => is_open_here(proc_path(&file)),
        _ => is_inode_open_here(stat.st_dev, stat.st_ino),
    })
}

fn meta_of(s: &Statx) -> Meta {
    let time = |t: fs::StatxTimestamp| Time { sec: t.tv_sec, nsec: t.tv_nsec };
    Meta {
        ino: s.stx_ino,
        mode: u32::from(s.stx_mode),
        nlink: s.stx_nlink.into(),
        uid: s.stx_uid,
        gid: s.stx_gid,
        rdev: (s.stx_rdev_major, s.stx_rdev_minor),
        size: s.stx_size,
        blocks: s.stx_blocks,
        block_size: s.stx_blksize.into(),
        atime: time(s.stx_atime),
        mtime: time(s.stx_mtime),
        ctime: time(s.stx_ctime),
        btime: (s.stx_mask & StatxFlags::BTIME.bits() != 0).then(|| time(s.stx_btime)),
        version: None,
        device: fs::makedev(s.stx_dev_major, s.stx_dev_minor),
    }
}

impl Side for HostSide {
    fn label(&self) -> &OsString {
        &self.label
    }

    fn place(&self) -> Option<u64> {
        None
    }

    /// Reads attributes. Does not follow a link below the path that the user named, whatever
    /// `at_end` says.
    fn metadata(&self, path: &Path, at_end: AtSymlink) -> Outcome<Meta> {
        let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        if at_end == AtSymlink::Follow && self.is_named(path) {
            return Ok(meta_of(&fs::statx(CWD, path, AtFlags::empty(), mask)?));
        }
        let (folder, name) = self.locate(path)?;
        Ok(meta_of(&fs::statx(folder.object(), &name, AtFlags::SYMLINK_NOFOLLOW, mask)?))
    }

    fn is_open_here(&self, path: &Path, meta: &Meta) -> bool {
        match meta.kind() {
            0o060000 => is_open_here(path),
            _ => is_inode_open_here(meta.device, meta.ino),
        }
    }

    fn read_dir(&self, path: &Path) -> Outcome<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in fs::Dir::read_from(self.open_to_read(path, OFlags::DIRECTORY, Folder::open_dir)?)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                names.push(OsString::from_vec(name.to_vec()));
            }
        }
        names.sort();
        Ok(names)
    }

    fn read_link(&self, path: &Path) -> Outcome<OsString> {
        let (folder, name) = self.locate(path)?;
        let target = fs::readlinkat(folder.object(), &name, Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()))
    }

    fn resolve(&self, path: &Path) -> Outcome<PathBuf> {
        Ok(path.canonicalize()?)
    }

    fn open(&self, path: &Path) -> Outcome<Box<dyn Source + '_>> {
        Ok(Box::new(HostFile(File::from(self.open_to_read(path, OFlags::empty(), Folder::open_file)?))))
    }

    fn create(&self, path: &Path, mode: u32, keep: bool) -> Outcome<Box<dyn Sink + '_>> {
        if self.is_named(path) {
            return Ok(Box::new(host::create_named(path, mode, keep, self.overwrite)?));
        }
        let (folder, name) = self.locate(path)?;
        Ok(Box::new(folder.create_or_empty(&name, mode, keep)?))
    }

    fn mkdir(&self, path: &Path, mode: u32) -> Outcome {
        let (folder, name) = self.locate(path)?;
        Ok(folder.make_dir(&name, mode)?)
    }

    fn symlink(&self, target: &Path, path: &Path) -> Outcome<Box<dyn OpenInode + '_>> {
        let (folder, name) = self.locate(path)?;
        let target = CString::new(target.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
        Ok(Box::new(folder.symlink(&target, &name)?))
    }

    fn hard_link(&self, old: &Path, (device, inode): (u64, u64), new: &Path) -> Outcome {
        let (folder, name) = self.locate(new)?;
        let object = self.find(old)?;
        object.must_be(Identity { device, inode })?;
        Ok(folder.link(&object, &name)?)
    }

    fn mknod(&self, path: &Path, mode: u32, rdev: (u32, u32)) -> Outcome<Box<dyn OpenInode + '_>> {
        let (folder, name) = self.locate(path)?;
        Ok(Box::new(folder.mknod(&name, mode, rdev)?))
    }

    fn node(&self, path: &Path, expected: Option<(u64, u64)>) -> Outcome<Box<dyn OpenInode + '_>> {
        // A named target may be a link to the directory that was filled.
        let object = if self.is_named(path) && self.metadata(path, AtSymlink::Follow)?.is_dir() {
            Folder::open(path, self.overwrite)?.into_object()
        } else {
            self.find(path)?
        };
        if let Some((device, inode)) = expected {
            object.must_be(Identity { device, inode })?;
        }
        Ok(Box::new(object))
    }

    fn rename(&self, old: &Path, new: &Path) -> Outcome {
        let ((from, old), (to, new)) = (self.locate(old)?, self.locate(new)?);
        Ok(from.rename(&old, &to, &new, false)?)
    }

    fn exchange(&self, one: &Path, other: &Path) -> Outcome {
        let ((from, one), (to, other)) = (self.locate(one)?, self.locate(other)?);
        Ok(from.rename(&one, &to, &other, true)?)
    }

    fn remove_file(&self, path: &Path) -> Outcome {
        let (folder, name) = self.locate(path)?;
        Ok(folder.remove_file(&name)?)
    }

    fn remove_dir(&self, path: &Path) -> Outcome {
        let (folder, name) = self.locate(path)?;
        Ok(folder.remove_dir(&name)?)
    }

    fn displace(&self, path: &Path) -> Outcome {
        let (folder, name) = self.locate(path)?;
        Ok(folder.displace(&name)?)
    }

    fn list_xattrs(&self, path: &Path) -> Outcome<Vec<OsString>> {
        Ok(xattr_names(&self.find(path)?.proc_path())?)
    }

    fn get_xattr(&self, path: &Path, name: &OsStr) -> Outcome<Vec<u8>> {
        Ok(xattr_value(&self.find(path)?.proc_path(), name)?)
    }

    fn xattrs_of(&self, path: &Path, meta: &Meta) -> Outcome<Xattrs> {
        let inode = self.inode(path, meta)?;
        let link = proc_path(&inode);
        let with_value = |name: OsString| xattr_value(&link, &name).map(|value| (name, value));
        Ok(xattr_names(&link)?.into_iter().map(with_value).collect::<Result<Xattrs, Errno>>()?)
    }

    fn remove_xattr(&self, path: &Path, name: &OsStr) -> Outcome {
        Ok(self.find(path)?.remove_xattr(name)?)
    }

    fn sync(&self) -> Outcome {
        // What was copied is in one file system: that of the folder of the name. A link of that
        // name may be what was copied.
        let is_link = self.named.is_symlink();
        let dir = match self.named.parent().filter(|_| is_link || !self.named.is_dir()) {
            Some(dir) if dir.as_os_str().is_empty() => Path::new("."),
            Some(dir) => dir,
            None => &self.named,
        };
        match fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(dir) => Ok(fs::syncfs(dir)?),
            // A directory that may be written and not read.
            Err(Errno::ACCESS) => {
                fs::sync();
                Ok(())
            }
            Err(e) => Err(e.into()),
        }
    }
}

struct HostFile(File);

impl Source for HostFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Outcome<usize> {
        match self.0.read_at(buf, offset) {
            // A pipe has no offsets.
            Err(e) if e.raw_os_error() == Some(Errno::SPIPE.raw_os_error()) => Ok((&self.0).read(buf)?),
            read => Ok(read?),
        }
    }

    fn next_data(&self, offset: u64) -> Outcome<Option<(u64, u64)>> {
        match fs::seek(&self.0, SeekFrom::Data(offset)) {
            Ok(start) => Ok(Some((start, fs::seek(&self.0, SeekFrom::Hole(start))?))),
            Err(Errno::NXIO) => Ok(None),
            // Not every file can tell; then all of it is data, to an end that reading finds.
            Err(Errno::INVAL | Errno::SPIPE) => Ok(Some((offset, u64::MAX))),
            Err(e) => Err(e.into()),
        }
    }
}

impl OpenInode for Object {
    fn id(&self) -> Outcome<(u64, u64)> {
        let Identity { device, inode } = self.identity()?;
        Ok((device, inode))
    }

    fn set_mode(&self, mode: u32) -> Outcome {
        Ok(self.set_mode(mode)?)
    }

    fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Outcome {
        Ok(self.set_owner(uid, gid)?)
    }

    fn set_times(&self, atime: Time, mtime: Time) -> Outcome {
        Ok(self.set_times(atime.into(), mtime.into())?)
    }

    fn set_xattr(&self, name: &OsStr, value: &[u8]) -> Outcome {
        Ok(self.set_xattr(name, value)?)
    }
}

impl Sink for Object {
    fn write_at(&self, data: &[u8], offset: u64) -> Outcome {
        Ok(self.write_at(data, offset)?)
    }

    fn set_len(&self, len: u64) -> Outcome {
        Ok(self.set_len(len)?)
    }

    fn keeps_holes(&self) -> Outcome<bool> {
        Ok(self.is_regular()?)
    }
}
