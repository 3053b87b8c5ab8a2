//! How a file is opened: options, shaped like [`std::fs::OpenOptions`].

use super::file::{Access, WriteDurability};
use super::path::{self, AtSymlink};
use super::{At, Dir, File};
use crate::error::{Error, OrCannot, Result};
use crate::fs::data::Caching;
use crate::fs::inode::InodeRef;
use crate::fs::namei::{NewAttr, NewKind, is_dots};
use lanefs_device::os_name::OsStrExt;
use std::path::Path;

/// How to open a file, shaped like [`std::fs::OpenOptions`].
///
/// # Examples
/// ```
/// # let volume = lanefs::Volume::in_memory(16 << 20)?;
/// use lanefs::{Error, NewAttr};
/// let attr = NewAttr { permissions: 0o600, uid: 1000, gid: 1000 };
/// let new = volume.open_options().write(true).create_new(true).attr(attr);
/// new.open("/key")?.write_at(b"secret", 0)?;
/// assert!(matches!(new.open("/key").unwrap_err().kind(), Error::Exists));
/// # Ok::<(), lanefs::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct FileOptions<'v> {
    at: At<'v>,
    access: Access,
    truncate: bool,
    create: bool,
    create_new: bool,
    at_end: AtSymlink,
    attr: NewAttr,
}

impl<'v> FileOptions<'v> {
    pub(super) fn new(at: At<'v>) -> Self {
        let attr = NewAttr { permissions: 0o644, uid: 0, gid: 0 };
        Self {
            at,
            access: Access::NONE,
            truncate: false,
            create: false,
            create_new: false,
            at_end: AtSymlink::Follow,
            attr,
        }
    }

    /// Opens for reading.
    pub fn read(mut self, yes: bool) -> Self {
        self.access.read = yes;
        self
    }

    /// Opens for writing.
    pub fn write(mut self, yes: bool) -> Self {
        self.access.write = yes;
        self
    }

    /// Opens for writing, always at the end.
    pub fn append(mut self, yes: bool) -> Self {
        self.access.append = yes;
        self.access.write |= yes;
        self
    }

    /// Cuts the file to nothing.
    pub fn truncate(mut self, yes: bool) -> Self {
        self.truncate = yes;
        self
    }

    /// Makes the file if there is none.
    pub fn create(mut self, yes: bool) -> Self {
        self.create = yes;
        self
    }

    /// Makes the file; one that exists is an error.
    pub fn create_new(mut self, yes: bool) -> Self {
        self.create_new = yes;
        self
    }

    /// Sets whether a symbolic link at the end of the path is followed. The default is yes.
    pub fn follow(mut self, yes: bool) -> Self {
        self.at_end = if yes { AtSymlink::Follow } else { AtSymlink::NoFollow };
        self
    }

    /// Bypasses the page cache (O_DIRECT). The default is no. Memory and offset may have
    /// any alignment; whole sectors in aligned memory go straight to the device.
    pub fn direct(mut self, yes: bool) -> Self {
        self.access.caching = if yes { Caching::Direct } else { Caching::Cached };
        self
    }

    /// Lets reads and writes of 128 KiB and more bypass the page cache (RWF_DONTCACHE), so that
    /// one pass over a large file leaves the cache to other files. Smaller ones go through the
    /// cache, and so do writes that are not of whole blocks. The default is no. Ends what
    /// [`direct`](Self::direct) has set.
    pub fn uncached(mut self, yes: bool) -> Self {
        self.access.caching = if yes { Caching::Uncached } else { Caching::Cached };
        self
    }

    /// Makes each write durable, with all attributes, before it returns (O_SYNC).
    pub fn sync(mut self, yes: bool) -> Self {
        self.access.durability = if yes { WriteDurability::All } else { WriteDurability::None };
        self
    }

    /// Makes each write durable before it returns (O_DSYNC).
    pub fn dsync(mut self, yes: bool) -> Self {
        self.access.durability = if yes { WriteDurability::Data } else { WriteDurability::None };
        self
    }

    /// Sets mode and owner of a file that is made: 0644, 0:0 unless said otherwise.
    pub fn attr(mut self, attr: NewAttr) -> Self {
        self.attr = attr;
        self
    }

    /// Opens the file.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDir`], [`Error::Loop`]; [`Error::Exists`] with
    /// [`create_new`](Self::create_new); [`Error::IsDir`], and [`Error::Invalid`] for a device,
    /// fifo or socket. To write, also [`Error::ReadOnly`], [`Error::NotPermitted`] for a file with
    /// a hash tree, for an immutable one, and for an append-only one without
    /// [`append`](Self::append), [`Error::TextBusy`] for one that gets a hash tree, and
    /// [`Error::NoSpace`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_bytes(path.as_ref().as_os_str().as_bytes()).or_cannot("open", path)
    }

    fn open_bytes(&self, path: &[u8]) -> Result<File> {
        let fs = self.at.fs;
        let _timer = fs.counters.open.start();
        // A file is made by a call that checks this itself: one that exists may be opened for
        // reading, or is in the way.
        if (self.access.write || self.truncate) && !self.create_new {
            fs.check_writable()?;
        }
        let node = self.find_or_make(path)?;
        let file = File::of_node(node, self.access.write)?.with_access(self.access);
        if self.access.write {
            file.inode().check_change(self.access.append)?;
        }
        if self.truncate {
            file.set_len(0)?;
        }
        Ok(file)
    }

    /// Makes a file without a name in `dir` (O_TMPFILE), and opens it.
    ///
    /// # Errors
    /// [`Error::NotFound`] for a directory that was removed, [`Error::NoSpace`],
    /// [`Error::ReadOnly`].
    pub fn open_nameless(&self, dir: &Dir) -> Result<File> {
        Ok(dir.create_nameless(self.attr)?.with_access(self.access))
    }

    fn find_or_make(&self, path: &[u8]) -> Result<InodeRef> {
        let mut base = self.at.base()?;
        if !self.create && !self.create_new {
            return path::resolve(&base, path, self.at_end);
        }
        let is_dir = || if self.create_new { Error::Exists } else { Error::IsDir };
        let mut path = path.to_vec();
        // A link at the end is followed to the place where the file is, or is to be made.
        for _ in 0..=path::MAX_LINKS {
            let look = || path::place(&base, &path);
            let at = match look() {
                Err(Error::Busy) => return Err(is_dir()),
                place => place?,
            };
            if is_dots(&at.name) {
                return Err(is_dir());
            }
            if at.must_be_dir {
                return Err(Error::IsDir);
            }
            match at.dir.lookup(&at.name) {
                Err(Error::NotFound) => match at.dir.create(&at.name, NewKind::File, self.attr) {
                    // Made by another thread meanwhile.
                    Err(Error::Exists) => {}
                    Err(Error::NotFound) if at.is_stale(look)? => {}
                    made => return made,
                },
                Ok(_) if self.create_new => return Err(Error::Exists),
                Ok(node) if self.at_end == AtSymlink::Follow && node.state().is_symlink() => {
                    path = node.read_link()?;
                    base = at.dir;
                }
                found => return found,
            }
        }
        Err(Error::Loop)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Error, OpenOptions, Result, Volume};
    use lanefs_device::MemDevice;
    use lanefs_format::InodeFlags;
    use std::sync::Arc;

    /// As open(2): the flags decide at the open, not only at the first change.
    #[test]
    fn flags_forbid_to_open_for_writing() {
        let volume = Volume::in_memory(16 << 20).unwrap();
        volume.write("/f", b"content").unwrap();
        let node = volume.root_node().unwrap().lookup("f").unwrap();
        let plain = node.flags();
        let opens = |write, append, truncate| -> Result<()> {
            let options = volume.open_options().read(true).write(write).append(append);
            options.truncate(truncate).open("/f").map(drop)
        };
        let refused = |opened: Result<()>| {
            let e = opened.unwrap_err();
            assert!(matches!(e.kind(), Error::NotPermitted(_)), "{e}");
        };
        node.set_flags(plain | InodeFlags::APPEND).unwrap();
        opens(false, false, false).unwrap();
        opens(true, true, false).unwrap();
        refused(opens(true, false, false));
        refused(opens(true, true, true));
        node.set_flags(plain | InodeFlags::IMMUTABLE).unwrap();
        opens(false, false, false).unwrap();
        refused(opens(true, false, false));
        refused(opens(true, true, false));
        // A mount lets the kernel write late what it has cached.
        node.open().unwrap();
        node.set_flags(plain).unwrap();
        opens(true, false, true).unwrap();
        assert_eq!(volume.read("/f").unwrap(), b"");
    }

    /// On a volume that is open for reading, only a file that has to be made is refused.
    #[test]
    fn a_file_that_exists_is_opened_where_none_can_be_made() {
        let device = Arc::new(MemDevice::new(16 << 20));
        lanefs_mkfs::format(&*device, &lanefs_mkfs::Options::default()).unwrap();
        let volume = OpenOptions::new().write(true).open_device(device.clone()).unwrap();
        volume.write("/f", b"content").unwrap();
        volume.close().unwrap();
        let volume = OpenOptions::new().open_device(device).unwrap();
        let opened = |write, new, path: &str| {
            let options = volume.open_options().read(true).write(write).create(true).create_new(new);
            options.open(path).map(drop).map_err(Error::into_kind)
        };
        opened(false, false, "/f").unwrap();
        assert!(matches!(opened(true, false, "/f"), Err(Error::ReadOnly)));
        assert!(matches!(opened(false, true, "/f"), Err(Error::Exists)));
        assert!(matches!(opened(true, true, "/f"), Err(Error::Exists)));
        for (write, new) in [(false, false), (true, false), (false, true), (true, true)] {
            assert!(matches!(opened(write, new, "/none"), Err(Error::ReadOnly)), "{write} {new}");
        }
    }
}
