//! A directory of the host, held by a descriptor.
//!
//! Invariants:
//! - A name below is reached through no symbolic link.
//! - What a name holds is checked ([`guard`]) before it is overwritten.
//!
//! Hazard: other users may change the tree meanwhile. [`Folder::beneath_as`] refuses a directory
//! that took the place of another.

use super::{Error, Identity, Object, Overwrite, Result, guard};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{self, AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// How directories are opened: to resolve names from, which asks for no right to read them.
const DIR: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// Longest path that is given to the kernel at once; it takes 4,095 bytes.
const PATH_PIECE: usize = 4000;

/// An open directory, the only way to make, replace or remove a name on the host.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// use lanefs_archive::Overwrite;
/// use lanefs_archive::host::Folder;
/// let folder = Folder::open(dir.path(), Overwrite::NoVolumes)?;
/// folder.make_dir(c"etc", 0o755)?;
/// let file = folder.beneath(b"etc")?.create(c"hostname", 0o644)?;
/// file.write_at(b"lane\n", 0)?;
/// assert_eq!(std::fs::read(dir.path().join("etc/hostname"))?, b"lane\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Folder {
    object: Object,
    overwrite: Overwrite,
}

impl Folder {
    /// Opens a directory that the user named. Links are followed.
    ///
    /// # Errors
    /// The errors of open(2).
    pub fn open(path: &Path, overwrite: Overwrite) -> Result<Self> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let fd = fs::openat(CWD, path, DIR, Mode::empty())?;
        Ok(Self { object: Object::path(fd), overwrite })
    }

    /// Returns the folder of an open directory.
    pub(crate) fn of(fd: OwnedFd) -> Self {
        Self { object: Object::path(fd), overwrite: Overwrite::default() }
    }

    /// Opens the directory at `path` below, through no link, however long the path is. An empty
    /// path is the directory itself.
    ///
    /// # Errors
    /// [`Error::LinkInTheWay`]; those of openat2(2).
    pub fn beneath(&self, path: &[u8]) -> Result<Self> {
        let mut here = fs::openat(&self.object, c".", DIR, Mode::empty())?;
        for piece in pieces(path) {
            here = open_beneath(&here, piece)?;
        }
        Ok(Self { object: Object::path(here), overwrite: self.overwrite })
    }

    /// Opens the directory at `path` below as [`beneath`](Self::beneath) does, and checks that it
    /// is still the inode `identity`.
    ///
    /// # Errors
    /// [`Error::Replaced`]: another directory has its name. [`Error::LinkInTheWay`]; those of
    /// openat2(2).
    pub fn beneath_as(&self, path: &[u8], identity: Identity) -> Result<Self> {
        let folder = self.beneath(path)?;
        folder.object.must_be(identity)?;
        Ok(folder)
    }

    /// Returns the directory as an inode whose attributes can be set.
    #[must_use]
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// Converts the folder into its inode.
    #[must_use]
    pub fn into_object(self) -> Object {
        self.object
    }

    /// Returns the inode behind a name, not followed.
    ///
    /// # Errors
    /// The errors of openat(2).
    pub fn find(&self, name: &CStr) -> Result<Object> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Object::path(fs::openat(&self.object, name, flags, Mode::empty())?))
    }

    /// Opens a file to read, not followed.
    ///
    /// # Errors
    /// The errors of openat(2).
    pub fn open_file(&self, name: &CStr) -> Result<OwnedFd> {
        self.open_to_read(name, OFlags::empty())
    }

    /// Opens a directory to read its names, not followed.
    ///
    /// # Errors
    /// The errors of openat(2).
    pub fn open_dir(&self, name: &CStr) -> Result<OwnedFd> {
        self.open_to_read(name, OFlags::DIRECTORY)
    }

    fn open_to_read(&self, name: &CStr, flags: OFlags) -> Result<OwnedFd> {
        let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(fs::openat(&self.object, name, flags, Mode::empty())?)
    }

    /// Makes a file, in place of the entry that has the name now.
    ///
    /// # Errors
    /// [`Error::Protected`]: that entry may not be overwritten. The errors of openat(2) and
    /// unlinkat(2).
    pub fn create(&self, name: &CStr, mode: u32) -> Result<Object> {
        self.afresh(name, || self.create_new(name, mode))
    }

    /// Makes a file under a name that is free.
    ///
    /// # Errors
    /// The errors of openat(2).
    pub(super) fn create_new(&self, name: &CStr, mode: u32) -> Result<Object, Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = fs::openat(&self.object, name, flags, Mode::from_raw_mode(mode & 0o777))?;
        Ok(Object::open(fd))
    }

    /// Makes a file as [`create`](Self::create) does, but an existing regular file with one name
    /// stays the same inode, and is emptied. Without `keep` that holds only for a file of this
    /// user, and one that this user may not write to is replaced, as it is with
    /// [`Overwrite::All`].
    ///
    /// # Errors
    /// [`Error::Protected`]: the entry may not be overwritten. The errors of openat(2),
    /// ftruncate(2) and unlinkat(2).
    pub fn create_or_empty(&self, name: &CStr, mode: u32, keep: bool) -> Result<Object> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        match fs::openat(&self.object, name, flags, Mode::empty()) {
            Ok(fd) => {
                let object = Object::open(fd);
                let one_name = object.is_regular()? && object.stat()?.st_nlink == 1;
                if one_name && (keep || object.is_ours_alone()?) {
                    guard::check(&object, self.overwrite)?;
                    object.empty()?;
                    return Ok(object);
                }
            }
            Err(Errno::ACCESS) if keep && self.overwrite == Overwrite::NoVolumes => {
                return Err(Errno::ACCESS.into());
            }
            Err(_) => {}
        }
        self.create(name, mode)
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// The errors of mkdirat(2).
    pub fn make_dir(&self, name: &CStr, mode: u32) -> Result {
        Ok(fs::mkdirat(&self.object, name, Mode::from_raw_mode(mode & 0o7777))?)
    }

    /// Makes a symbolic link, in place of the entry that has the name now.
    ///
    /// # Errors
    /// [`Error::Protected`]: that entry may not be overwritten. [`Error::Replaced`]: another
    /// process has replaced the link. The errors of symlinkat(2) and unlinkat(2).
    pub fn symlink(&self, target: &CStr, name: &CStr) -> Result<Object> {
        self.afresh(name, || fs::symlinkat(target, &self.object, name))?;
        self.just_made(name, FileType::Symlink, (0, 0))
    }

    /// Makes a device file, a pipe or a socket, in place of the entry that has the name now. `mode`
    /// has the type too; `device` is its major and minor number.
    ///
    /// # Errors
    /// [`Error::Protected`]: that entry may not be overwritten. [`Error::Replaced`]: another
    /// process has replaced the new one. The errors of mknodat(2) and unlinkat(2).
    pub fn mknod(&self, name: &CStr, mode: u32, device: (u32, u32)) -> Result<Object> {
        let kind = FileType::from_raw_mode(mode);
        let mode = Mode::from_raw_mode(mode & 0o777);
        let number = fs::makedev(device.0, device.1);
        self.afresh(name, || fs::mknodat(&self.object, name, kind, mode, number))?;
        self.just_made(name, kind, device)
    }

    /// Gives an inode another name here, in place of the entry that has the name now.
    ///
    /// # Errors
    /// [`Error::Protected`]: that entry may not be overwritten. The errors of linkat(2) and
    /// unlinkat(2).
    pub fn link(&self, object: &Object, name: &CStr) -> Result {
        let from = object.proc_path();
        self.afresh(name, || fs::linkat(CWD, from.as_str(), &self.object, name, AtFlags::SYMLINK_FOLLOW))
    }

    /// Removes a name that is no directory.
    ///
    /// # Errors
    /// The errors of unlinkat(2).
    pub fn remove_file(&self, name: &CStr) -> Result {
        Ok(fs::unlinkat(&self.object, name, AtFlags::empty())?)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// The errors of unlinkat(2).
    pub fn remove_dir(&self, name: &CStr) -> Result {
        Ok(fs::unlinkat(&self.object, name, AtFlags::REMOVEDIR)?)
    }

    /// Renames an entry; both names may be in one directory. With `exchange` they change places.
    ///
    /// # Errors
    /// The errors of renameat2(2).
    pub fn rename(&self, old: &CStr, to: &Self, new: &CStr, exchange: bool) -> Result {
        let flags = if exchange { fs::RenameFlags::EXCHANGE } else { fs::RenameFlags::empty() };
        Ok(fs::renameat_with(&self.object, old, &to.object, new, flags)?)
    }

    /// Renames an entry of this directory to a name in it that is free.
    ///
    /// # Errors
    /// `EEXIST`: something has the name. The errors of renameat2(2).
    pub(super) fn rename_to_free(&self, old: &CStr, new: &CStr) -> Result {
        Ok(fs::renameat_with(&self.object, old, &self.object, new, fs::RenameFlags::NOREPLACE)?)
    }

    /// Removes a name that is to be overwritten.
    ///
    /// # Errors
    /// [`Error::Protected`]: it may not be. The errors of unlinkat(2).
    pub fn displace(&self, name: &CStr) -> Result {
        self.replaceable(name)?;
        self.remove_file(name)
    }

    /// Returns the inode behind a name that is to be overwritten, not followed.
    ///
    /// # Errors
    /// [`Error::Protected`]: it may not be overwritten. `EISDIR`: it is a directory. The errors of
    /// openat(2).
    pub(super) fn replaceable(&self, name: &CStr) -> Result<Object> {
        let object = self.find(name)?;
        match FileType::from_raw_mode(object.stat()?.st_mode) {
            FileType::Directory => return Err(Errno::ISDIR.into()),
            FileType::RegularFile => guard::check(&object, self.overwrite)?,
            // A device file is gone with its name, and what the device holds is not.
            _ => {}
        }
        Ok(object)
    }

    /// Runs `make`. If the name exists, removes the entry and runs it again.
    fn afresh<T>(&self, name: &CStr, make: impl Fn() -> Result<T, Errno>) -> Result<T> {
        match make() {
            Err(Errno::EXIST) => {
                self.displace(name)?;
                Ok(make()?)
            }
            made => Ok(made?),
        }
    }

    /// Opens the inode that the caller has just made. Refuses any other inode, which another
    /// process with write access to this directory could have put there, so that no attribute is
    /// set of it.
    fn just_made(&self, name: &CStr, kind: FileType, device: (u32, u32)) -> Result<Object> {
        let object = self.find(name)?;
        let stat = object.stat()?;
        let found = FileType::from_raw_mode(stat.st_mode);
        let is_device = matches!(kind, FileType::CharacterDevice | FileType::BlockDevice);
        if found != kind
            || stat.st_nlink != 1
            || stat.st_uid != rustix::process::geteuid().as_raw()
            || is_device && stat.st_rdev != fs::makedev(device.0, device.1)
        {
            return Err(Error::Replaced);
        }
        Ok(object)
    }
}

/// Returns the C string of a name. Refuses a name with a NUL or a slash, `.` and `..`.
///
/// # Errors
/// [`Error::System`] with `EINVAL`.
pub fn c_name(name: &OsStr) -> Result<CString> {
    let bytes = name.as_bytes();
    if matches!(bytes, b"" | b"." | b"..") || bytes.contains(&b'/') {
        return Err(Errno::INVAL.into());
    }
    CString::new(bytes).map_err(|_| Errno::INVAL.into())
}

/// Returns the names in a directory that is open for reading.
pub(crate) fn names_in(dir: impl AsFd) -> Result<Vec<OsString>, Errno> {
    let mut names = Vec::new();
    for entry in fs::Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(OsString::from_vec(name.to_vec()));
        }
    }
    Ok(names)
}

/// Splits a path where it becomes too long for one call. No piece has a `..`, checked by the
/// kernel (`RESOLVE_BENEATH`) for each.
fn pieces(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = path;
    std::iter::from_fn(move || {
        while let Some((b'/', tail)) = rest.split_first() {
            rest = tail;
        }
        if rest.is_empty() {
            return None;
        }
        let end = match rest.get(..PATH_PIECE) {
            Some(head) => head.iter().rposition(|b| *b == b'/').unwrap_or(PATH_PIECE),
            None => rest.len(),
        };
        let (piece, tail) = rest.split_at(end);
        rest = tail;
        Some(piece)
    })
}

fn open_beneath(dir: &OwnedFd, path: &[u8]) -> Result<OwnedFd> {
    let path = OsStr::from_bytes(path);
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match fs::openat2(dir, path, DIR, Mode::empty(), resolve) {
        // Before Linux 5.6, and where a sandbox knows no openat2: name by name.
        Err(Errno::NOSYS | Errno::PERM) => {
            let mut here = fs::openat(dir, c".", DIR, Mode::empty())?;
            for name in Path::new(path).components() {
                let name = c_name(name.as_os_str())?;
                here = fs::openat(&here, &name, DIR | OFlags::NOFOLLOW, Mode::empty())?;
            }
            Ok(here)
        }
        Err(Errno::LOOP) => Err(Error::LinkInTheWay),
        opened => Ok(opened?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_paths_are_split_at_slashes() {
        let path = "name/".repeat(5000);
        let split: Vec<&[u8]> = pieces(path.as_bytes()).collect();
        assert!(split.iter().all(|p| p.len() <= PATH_PIECE && !p.starts_with(b"/")));
        let whole = split.join(&b"/"[..]);
        assert!(whole.trim_ascii_end() == path.as_bytes() && split.len() > 6);
        assert_eq!(pieces(b"//").count(), 0);
        assert_eq!(pieces(&[b'n'; 9000]).next().map(<[u8]>::len), Some(PATH_PIECE), "the kernel refuses it");
    }

    #[test]
    fn nothing_leads_out() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir_all(dir.path().join("in/sub")).expect("mkdir");
        std::os::unix::fs::symlink("sub", dir.path().join("in/link")).expect("symlink");
        let folder = Folder::open(&dir.path().join("in"), Overwrite::default()).expect("a folder");
        assert!(folder.beneath(b"sub").is_ok());
        for path in [&b".."[..], b"sub/../..", b"link", b"/", b"sub/../link/x"] {
            assert!(folder.beneath(path).is_err() || path == b"/", "{path:?}");
        }
        for name in ["", ".", "..", "a/b", "a\0b"] {
            assert!(c_name(OsStr::new(name)).is_err(), "{name}");
        }
    }
}
