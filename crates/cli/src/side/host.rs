//! Files of the machine that lanefs runs on.

use super::{Meta, Outcome, Side, Sink, Source};
use crate::time::Time;
use rustix::fs::{self, AtFlags, CWD, FileType, Gid, Mode, SeekFrom, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes of the longest value and of the longest list of names that Linux has (XATTR_SIZE_MAX, XATTR_LIST_MAX).
const XATTR_MAX: usize = 1 << 16;

/// The host.
#[derive(Debug, Default)]
pub(crate) struct HostSide {
    label: OsString,
}

impl Side for HostSide {
    fn label(&self) -> &OsString {
        &self.label
    }

    fn place(&self) -> Option<u64> {
        None
    }

    fn metadata(&self, path: &Path, follow: bool) -> Outcome<Meta> {
        let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        let s = fs::statx(CWD, path, flags, fs::StatxFlags::BASIC_STATS | fs::StatxFlags::BTIME)?;
        let time = |t: fs::StatxTimestamp| Time { sec: t.tv_sec, nsec: t.tv_nsec };
        Ok(Meta {
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
            btime: (s.stx_mask & fs::StatxFlags::BTIME.bits() != 0).then(|| time(s.stx_btime)),
            version: None,
            device: fs::makedev(s.stx_dev_major, s.stx_dev_minor),
        })
    }

    fn read_dir(&self, path: &Path) -> Outcome<Vec<OsString>> {
        let mut names = std::fs::read_dir(path)?.map(|e| Ok(e?.file_name())).collect::<Outcome<Vec<_>>>()?;
        names.sort();
        Ok(names)
    }

    fn read_link(&self, path: &Path) -> Outcome<OsString> {
        Ok(std::fs::read_link(path)?.into())
    }

    fn resolve(&self, path: &Path) -> Outcome<PathBuf> {
        Ok(path.canonicalize()?)
    }

    fn open(&self, path: &Path) -> Outcome<Box<dyn Source + '_>> {
        Ok(Box::new(HostFile(File::open(path)?)))
    }

    fn create(&self, path: &Path, mode: u32) -> Outcome<Box<dyn Sink + '_>> {
        let file = File::options().write(true).create(true).truncate(true).mode(mode & 0o777).open(path)?;
        Ok(Box::new(HostFile(file)))
    }

    fn mkdir(&self, path: &Path, mode: u32) -> Outcome {
        Ok(fs::mkdir(path, Mode::from_raw_mode(mode & 0o7777))?)
    }

    fn symlink(&self, target: &Path, path: &Path) -> Outcome {
        Ok(fs::symlink(target, path)?)
    }

    fn hard_link(&self, old: &Path, new: &Path) -> Outcome {
        Ok(std::fs::hard_link(old, new)?)
    }

    fn mknod(&self, path: &Path, mode: u32, rdev: (u32, u32)) -> Outcome {
        let dev = fs::makedev(rdev.0, rdev.1);
        Ok(fs::mknodat(CWD, path, FileType::from_raw_mode(mode), Mode::from_raw_mode(mode & 0o7777), dev)?)
    }

    fn rename(&self, old: &Path, new: &Path) -> Outcome {
        Ok(fs::rename(old, new)?)
    }

    fn exchange(&self, one: &Path, other: &Path) -> Outcome {
        Ok(fs::renameat_with(CWD, one, CWD, other, fs::RenameFlags::EXCHANGE)?)
    }

    fn remove_file(&self, path: &Path) -> Outcome {
        Ok(fs::unlink(path)?)
    }

    fn remove_dir(&self, path: &Path) -> Outcome {
        Ok(fs::rmdir(path)?)
    }

    fn set_mode(&self, path: &Path, mode: u32) -> Outcome {
        Ok(fs::chmod(path, Mode::from_raw_mode(mode & 0o7777))?)
    }

    fn set_owner(&self, path: &Path, uid: Option<u32>, gid: Option<u32>) -> Outcome {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        Ok(fs::chownat(CWD, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn set_times(&self, path: &Path, atime: Time, mtime: Time) -> Outcome {
        let spec = |t: Time| Timespec { tv_sec: t.sec, tv_nsec: t.nsec.into() };
        let times = Timestamps { last_access: spec(atime), last_modification: spec(mtime) };
        Ok(fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn list_xattrs(&self, path: &Path) -> Outcome<Vec<OsString>> {
        let mut names = vec![0; XATTR_MAX];
        match fs::llistxattr(path, names.as_mut_slice()) {
            Err(Errno::NOTSUP) => return Ok(Vec::new()),
            len => names.truncate(len?),
        }
        Ok(names
            .split(|b| *b == 0)
            .filter(|n| !n.is_empty())
            .map(|n| OsString::from_vec(n.to_vec()))
            .collect())
    }

    fn get_xattr(&self, path: &Path, name: &OsStr) -> Outcome<Vec<u8>> {
        let mut value = vec![0; XATTR_MAX];
        let len = fs::lgetxattr(path, name.as_bytes(), value.as_mut_slice())?;
        value.truncate(len);
        Ok(value)
    }

    fn set_xattr(&self, path: &Path, name: &OsStr, value: &[u8]) -> Outcome {
        Ok(fs::lsetxattr(path, name.as_bytes(), value, XattrFlags::empty())?)
    }

    fn remove_xattr(&self, path: &Path, name: &OsStr) -> Outcome {
        Ok(fs::lremovexattr(path, name.as_bytes())?)
    }

    fn sync(&self) -> Outcome {
        Ok(())
    }
}

struct HostFile(File);

impl Source for HostFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Outcome<usize> {
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

impl Sink for HostFile {
    fn write_at(&self, offset: u64, data: &[u8]) -> Outcome {
        Ok(self.0.write_all_at(data, offset)?)
    }

    fn set_len(&self, len: u64) -> Outcome {
        Ok(self.0.set_len(len)?)
    }
}
