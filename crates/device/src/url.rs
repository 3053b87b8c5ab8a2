//! Volumes by name: a path, or a URL that says what kind of medium it is, and perhaps which part of
//! it. The library, the command, mounts, the C interface and fio's engine all parse names here.
//!
//! - `nbd://HOST/EXPORT`: an export of an NBD server (see [`NbdUrl`](crate::NbdUrl));
//! - `rbd:POOL/IMAGE`: an image of a Ceph cluster (see [`RbdUrl`](crate::RbdUrl));
//! - `overlay:base=URL,top=FILE`, `cached:URL,dir=DIR`: a device over another one (see `stacked`);
//! - `pmem:FILE`: a mapped file; `mem:SIZE`: memory, for tests;
//! - `disk.raw@2`, `disk.raw@root`: a partition;
//! - `disk.raw?offset=1M&size=4G`: a range of bytes.

use crate::errno::{EINVAL, ENOENT, ENOMEM, ENOSPC};
use crate::medium::{Medium, Part};
use crate::nbd::{NbdDevice, NbdUrl, split_part, without_password};
use crate::os_name::OsStrExt;
use crate::parameters::parse_size;
use crate::partition::PartitionTable;
use crate::rbd::{RbdDevice, RbdUrl, partition_of};
use crate::scheme::{OVERLAY, is_nbd, is_rbd, is_stacked};
use crate::stacked::{self, innermost, layers};
use crate::window::Window;
use crate::{
    BlockDevice, CowDevice, DeviceError, FileDevice, FileOptions, MemDevice, Op, PmemDevice, Result,
};
use std::ffi::OsStr;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The name of a volume, parsed: a medium, and perhaps a part of it.
///
/// # Examples
/// ```
/// use lanefs_device::{Medium, Part, VolumeUrl};
/// use std::ffi::OsStr;
/// use std::path::Path;
///
/// let url = VolumeUrl::parse(OsStr::new("disk.raw?offset=1M&size=4G"))?;
/// assert_eq!(url.medium, Medium::File(Path::new("disk.raw")));
/// assert_eq!(url.part, Some(Part::Bytes { offset: 1 << 20, size: Some(4 << 30) }));
///
/// let url = VolumeUrl::parse(OsStr::new("nbd://server/export@2"))?;
/// assert_eq!(url.medium, Medium::Nbd("nbd://server/export"));
/// assert_eq!(url.part, Some(Part::Partition(OsStr::new("2"))));
/// # Ok::<(), lanefs_device::DeviceError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeUrl<'a> {
    /// The medium that the volume is on.
    pub medium: Medium<'a>,
    /// The part of the medium that the volume occupies; all of it for `None`.
    pub part: Option<Part<'a>>,
}

impl<'a> VolumeUrl<'a> {
    /// Parses the name of a volume.
    ///
    /// Sizes are numbers of bytes, or of a unit: K, M, G, T (powers of 1024). A path that begins as
    /// one of the schemes is written `./mem:...`.
    ///
    /// A path that exists as written is a path. Otherwise an `@` separates a partition only behind
    /// a file that exists, the longest one, so the name of a new file may contain one.
    ///
    /// # Errors
    /// [`Op::Open`] (EINVAL) for a malformed size, range or URL, and for `pmem:` without a path.
    pub fn parse(name: &'a OsStr) -> Result<Self> {
        let shown = without_password(name);
        let refuse =
            |why: &str| Err(DeviceError::at_path(Op::Open, Path::new(&shown), EINVAL, why.to_owned()));
        let bytes = name.as_bytes();
        if is_stacked(bytes) {
            let parsed = stacked::parse(name).and_then(|(medium, below)| {
                Self::parse(below).map_err(|e| e.to_string())?;
                Ok(Self { medium, part: None })
            });
            return parsed.or_else(|why| refuse(&why));
        }
        if is_nbd(bytes) || is_rbd(bytes) {
            let parse = if is_rbd(bytes) { parse_rbd } else { parse_nbd };
            return match name.to_str().map(parse) {
                Some(Ok(url)) => Ok(url),
                Some(Err(why)) => refuse(&why),
                None => refuse("is not UTF-8"),
            };
        }
        if let Some(size) = bytes.strip_prefix(b"mem:") {
            return match parse_size(size) {
                Some(size) if size > 0 => Ok(Self { medium: Medium::Mem(size), part: None }),
                _ => refuse("needs a size: mem:64M, mem:1G"),
            };
        }
        let mapped = bytes.strip_prefix(b"pmem:");
        if mapped == Some(b"") {
            return refuse("needs a file: pmem:FILE");
        }
        let Some((path, part)) = split(OsStr::from_bytes(mapped.unwrap_or(bytes))) else {
            return refuse("needs a range in units of 512 bytes: FILE?offset=1M&size=4G");
        };
        let medium = if mapped.is_some() { Medium::Pmem(path) } else { Medium::File(path) };
        Ok(Self { medium, part })
    }

    /// Returns whether a volume of that name is written on a server: the name begins as the URL of
    /// an export of an NBD server or of an image of a Ceph cluster, or is that of a cache of one.
    pub fn names_server(name: &OsStr) -> bool {
        let is_overlay = |name: &OsStr| name.as_bytes().starts_with(OVERLAY);
        Self::reaches_server(name) && !layers(name).any(is_overlay)
    }

    /// Returns whether a volume of that name needs a server: as
    /// [`names_server`](Self::names_server) does, and for overlays too.
    pub fn reaches_server(name: &OsStr) -> bool {
        let medium = innermost(name).as_bytes();
        is_nbd(medium) || is_rbd(medium)
    }

    /// Returns whether a volume of that name needs a Ceph cluster.
    pub fn reaches_image(name: &OsStr) -> bool {
        is_rbd(innermost(name).as_bytes())
    }

    /// Returns whether a name is that of a device over another one.
    pub fn is_stacked(name: &OsStr) -> bool {
        is_stacked(name.as_bytes())
    }

    /// Returns the path of the volume's file, `None` for memory, for a remote volume, and for a
    /// device over another one.
    pub fn path(&self) -> Option<&'a Path> {
        match self.medium {
            Medium::File(path) | Medium::Pmem(path) => Some(path),
            Medium::Mem(_) | Medium::Nbd(_) | Medium::Rbd(_) => None,
            Medium::Overlay { .. } | Medium::Cached { .. } => None,
        }
    }

    /// Returns the range of the file that the volume occupies, `None` for all of it.
    ///
    /// For a partition it opens the file without a lock and reads the partition table. An export of
    /// a server has no file: the answer is `None`.
    ///
    /// # Errors
    /// The errors of [`FileOptions::open`]; no such partition (ENOENT), with a message that lists
    /// the partitions; a partition table that is missing or damaged, and a range beyond the end
    /// (EINVAL).
    pub fn window(&self) -> Result<Option<Range<u64>>> {
        let (Some(path), Some(part)) = (self.path(), self.part) else { return Ok(None) };
        let disk = FileOptions::new().read_only(true).unlocked(true).open(path)?;
        part.range(&disk, path).map(Some)
    }
}

impl Part<'_> {
    /// Returns the bytes of `disk` that the part is. Messages call the disk `path`.
    fn range(self, disk: &dyn BlockDevice, path: &Path) -> Result<Range<u64>> {
        let refuse = |errno, why: String| DeviceError::at_path(Op::Open, path, errno, why);
        let end = disk.size();
        let range = match self {
            Part::Bytes { offset, size: None } => offset..end,
            Part::Bytes { offset, size: Some(size) } => offset..offset.saturating_add(size),
            Part::Partition(wanted) => {
                let table = PartitionTable::read(disk).map_err(|e| match e.op {
                    Op::Open => refuse(EINVAL, e.to_string()),
                    _ => e,
                })?;
                let table = table.ok_or_else(|| refuse(EINVAL, "has no partition table".into()))?;
                let found = table.find(&wanted.to_string_lossy());
                found.map_err(|why| refuse(ENOENT, why))?.range()
            }
        };
        if range.start >= range.end || range.end > end {
            let (first, behind) = (range.start, range.end);
            let why = format!("has {end} bytes, the volume would be bytes {first} to {behind}");
            return Err(refuse(EINVAL, why));
        }
        Ok(range)
    }
}

/// Reads the URL of an export, and the part behind it.
fn parse_nbd(name: &str) -> std::result::Result<VolumeUrl<'_>, String> {
    let (url, part) = split_part(name);
    let range = NbdUrl::parse(url)?.range.map(|(offset, size)| Part::Bytes { offset, size });
    let part = match (part.map(|part| Part::Partition(OsStr::new(part))), range) {
        (Some(_), Some(_)) => return Err("names a partition and a range".into()),
        (part, range) => part.or(range),
    };
    Ok(VolumeUrl { medium: Medium::Nbd(url), part })
}

/// Reads the URL of an image, and the part in it, as it is written there.
fn parse_rbd(name: &str) -> std::result::Result<VolumeUrl<'_>, String> {
    let range = RbdUrl::parse(name)?.range.map(|(offset, size)| Part::Bytes { offset, size });
    let part = partition_of(name).map(|part| Part::Partition(OsStr::new(part)));
    Ok(VolumeUrl { medium: Medium::Rbd(name), part: part.or(range) })
}

/// Splits a path from the part behind it. Returns `None` for a range that cannot be read.
fn split(name: &OsStr) -> Option<(&Path, Option<Part<'_>>)> {
    let whole = Some((Path::new(name), None));
    if Path::new(name).symlink_metadata().is_ok() {
        return whole;
    }
    let bytes = name.as_bytes();
    let before = |at: usize| Path::new(OsStr::from_bytes(&bytes[..at]));
    let is_query = |rest: &[u8]| rest.starts_with(b"offset=") || rest.starts_with(b"size=");
    if let Some(at) = bytes.iter().rposition(|b| *b == b'?')
        && at > 0
        && is_query(&bytes[at + 1..])
    {
        return Some((before(at), Some(parse_range(&bytes[at + 1..])?)));
    }
    // A `:/` begins a path inside the volume, so no partition is named with one.
    let is_name = |name: &[u8]| !name.windows(2).any(|two| two == b":/");
    let ats = (1..bytes.len().saturating_sub(1)).rev().filter(|at| bytes[*at] == b'@');
    let at = ats.into_iter().find(|at| is_name(&bytes[at + 1..]) && may_be_disk(before(*at)));
    let Some(at) = at else { return whole };
    Some((before(at), Some(Part::Partition(OsStr::from_bytes(&bytes[at + 1..])))))
}

/// Returns whether a path leads to what may hold partitions.
fn may_be_disk(path: &Path) -> bool {
    let Ok(meta) = path.metadata() else { return false };
    #[cfg(unix)]
    let is_block = std::os::unix::fs::FileTypeExt::is_block_device(&meta.file_type());
    #[cfg(not(unix))]
    let is_block = false;
    meta.is_file() || is_block
}

fn parse_range(query: &[u8]) -> Option<Part<'_>> {
    let (mut offset, mut size) = (None, None);
    for pair in query.split(|b| *b == b'&') {
        let (to, value) = match (pair.strip_prefix(b"offset="), pair.strip_prefix(b"size=")) {
            (Some(value), _) => (&mut offset, value),
            (_, Some(value)) => (&mut size, value),
            _ => return None,
        };
        let value = parse_size(value).filter(|value| value.is_multiple_of(512))?;
        if to.replace(value).is_some() {
            return None;
        }
    }
    Some(Part::Bytes { offset: offset.unwrap_or(0), size: if size == Some(0) { return None } else { size } })
}

/// Opens the volume of a name, as [`VolumeUrl::parse`] reads it.
///
/// A `mem:` volume is new and empty each time. For a part of a file only that part is locked: other
/// parts may be open at the same time. A writer claims a block special file whole.
///
/// # Errors
/// The errors of [`VolumeUrl::parse`], [`VolumeUrl::window`], [`FileOptions::open`],
/// [`PmemDevice::open`], [`NbdDevice::open`], [`RbdDevice::open`], [`CowDevice::open`] and
/// `CachedDevice::open`.
///
/// # Examples
/// ```
/// use lanefs_device::{BlockDevice, FileOptions, open_url};
///
/// let device = open_url("mem:64M", &FileOptions::new())?;
/// assert_eq!(device.size(), 64 << 20);
/// # Ok::<(), lanefs_device::DeviceError>(())
/// ```
pub fn open_url(name: impl AsRef<OsStr>, options: &FileOptions) -> Result<Arc<dyn BlockDevice>> {
    let name = name.as_ref();
    let url = VolumeUrl::parse(name)?;
    let window = url.window()?;
    let options = options.clone().window(window.clone());
    Ok(match (url.medium, window) {
        (Medium::File(path), None) => Arc::new(options.open(path)?),
        (Medium::File(path), Some(window)) => {
            Arc::new(Window::<FileDevice>::new(options.open(path)?, window)?)
        }
        (Medium::Pmem(path), _) => Arc::new(PmemDevice::open_with(&options, path)?),
        (Medium::Mem(size), _) => Arc::new(memory(name, size)?),
        (Medium::Nbd(export), _) => return open_nbd(export, url.part, &options),
        (Medium::Rbd(image), _) => return open_rbd(image, url.part, &options),
        (Medium::Overlay { base, top }, _) => Arc::new(CowDevice::open(base, top, &options)?),
        (Medium::Cached { below, dir, size }, _) => return open_cached(below, dir, size, &options),
    })
}

#[cfg(target_os = "linux")]
fn open_cached(name: &OsStr, dir: &Path, size: u64, options: &FileOptions) -> Result<Arc<dyn BlockDevice>> {
    crate::CachedDevice::open(name, dir, size, options)
}

/// Opens the volume itself: holes in files, which bound a cache, are made in other ways elsewhere.
#[cfg(not(target_os = "linux"))]
fn open_cached(name: &OsStr, _: &Path, _: u64, options: &FileOptions) -> Result<Arc<dyn BlockDevice>> {
    open_url(name, options)
}

/// Opens an export, or a part of it: the table of its partitions is read from the export itself.
fn open_nbd(url: &str, part: Option<Part<'_>>, options: &FileOptions) -> Result<Arc<dyn BlockDevice>> {
    let name = match part {
        Some(Part::Partition(name)) => name.to_str(),
        _ => None,
    };
    let mut device = NbdDevice::open(url, name, options)?;
    let range = part.map(|part| part.range(&device, Path::new(url))).transpose()?;
    if let (Some(_), Some(bytes)) = (name, &range) {
        device.claim_bytes(bytes.clone())?;
    }
    range_of(device, range)
}

/// Opens an image, or a part of it.
fn open_rbd(url: &str, part: Option<Part<'_>>, options: &FileOptions) -> Result<Arc<dyn BlockDevice>> {
    let device = RbdDevice::open(url, options)?;
    let range = range_in_image(url, part, &device)?;
    range_of(device, range)
}

/// Returns the bytes of an image that a part of it is. The name of a partition is percent-encoded
/// in the URL, and the part has it as it is there.
fn range_in_image(url: &str, part: Option<Part<'_>>, image: &dyn BlockDevice) -> Result<Option<Range<u64>>> {
    let name = RbdUrl::parse(url).ok().and_then(|url| url.partition);
    let part = name.as_deref().map(|name| Part::Partition(OsStr::new(name))).or(part);
    part.map(|part| part.range(image, Path::new(url))).transpose()
}

/// Returns a device, or a range of it.
fn range_of<D: BlockDevice + 'static>(device: D, range: Option<Range<u64>>) -> Result<Arc<dyn BlockDevice>> {
    Ok(match range {
        Some(range) => Arc::new(Window::new(device, range)?),
        None => Arc::new(device),
    })
}

/// Creates a volume of `size` zero bytes by its name, and replaces an existing one.
///
/// A part of a file, a remote volume, and one below another device must exist and have at least
/// `size` bytes. They keep their content.
///
/// # Errors
/// The errors of [`open_url`] and [`FileOptions::create`]; a part or an export that is smaller
/// (ENOSPC); a `mem:` of another size (EINVAL).
///
/// # Examples
/// ```
/// use lanefs_device::{BlockDevice, FileOptions, create_url, open_url};
///
/// # let dir = tempfile::tempdir()?;
/// let disk = dir.path().join("disk.img");
/// drop(create_url(&disk, 4 << 20, &FileOptions::new())?);
/// let part = format!("{}?offset=1M&size=1M", disk.display());
/// assert_eq!(open_url(&part, &FileOptions::new())?.size(), 1 << 20);
/// assert!(create_url(&part, 2 << 20, &FileOptions::new()).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn create_url(name: impl AsRef<OsStr>, size: u64, options: &FileOptions) -> Result<Arc<dyn BlockDevice>> {
    let name = name.as_ref();
    let refuse = |errno, own| {
        let why = format!("has {own} bytes, {size} are asked for");
        Err(DeviceError::at_path(Op::Open, Path::new(name), errno, why))
    };
    let url = VolumeUrl::parse(name)?;
    let exists = !matches!(url.medium, Medium::File(_) | Medium::Pmem(_) | Medium::Mem(_));
    if url.part.is_some() || exists {
        let device = open_url(name, options)?;
        return if device.size() < size { refuse(ENOSPC, device.size()) } else { Ok(device) };
    }
    Ok(match url.medium {
        Medium::File(path) => Arc::new(options.create(path, size)?),
        Medium::Pmem(path) => Arc::new(PmemDevice::create(path, size)?),
        Medium::Mem(own) if own == size => Arc::new(memory(name, size)?),
        Medium::Mem(own) => return refuse(EINVAL, own),
        _ => return open_url(name, options),
    })
}

/// Makes a device in memory of a size that a user may have mistyped: more than there is fails the
/// open and does not end the process.
fn memory(name: &OsStr, size: u64) -> Result<MemDevice> {
    let too_large = || DeviceError::at_path(Op::Open, Path::new(name), ENOMEM, "is more than there is");
    let len = usize::try_from(size).map_err(|_| too_large())?;
    Vec::<u8>::new().try_reserve_exact(len).map_err(|_| too_large())?;
    Ok(MemDevice::new(len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LINUX_FILE_SYSTEM, NewPartition, write_gpt};

    #[test]
    fn names() {
        let parse = |name: &'static str| VolumeUrl::parse(OsStr::new(name)).map(|url| url.medium);
        assert_eq!(parse("a/b.img").unwrap(), Medium::File(Path::new("a/b.img")));
        assert_eq!(parse("pmem:/dev/shm/a").unwrap(), Medium::Pmem(Path::new("/dev/shm/a")));
        assert_eq!(parse("./mem:1G").unwrap(), Medium::File(Path::new("./mem:1G")));
        for (name, size) in [
            ("mem:1", 1),
            ("mem:3k", 3 << 10),
            ("mem:64M", 64 << 20),
            ("mem:1G", 1 << 30),
            ("mem:2T", 2 << 40),
        ] {
            assert_eq!(parse(name).unwrap(), Medium::Mem(size));
        }
        let image = "rbd:p/i@s?id=x&partition=2";
        let url = VolumeUrl::parse(OsStr::new(image)).unwrap();
        assert_eq!(url.medium, Medium::Rbd(image));
        assert_eq!((url.part, url.path()), (Some(Part::Partition(OsStr::new("2"))), None));
        for name in [
            "rbd:p",
            "mem:",
            "mem:0",
            "mem:M",
            "mem:1X",
            "mem:-1",
            "mem:+1",
            "mem:1 G",
            "mem:99999999T",
            "pmem:",
        ] {
            let e = parse(name).unwrap_err();
            assert!(e.errno() == EINVAL && e.to_string().starts_with(name), "{e}");
        }
    }

    #[test]
    fn a_partition_of_an_image_has_any_name() {
        let disk = MemDevice::new(8 << 20);
        let (start, size, uuid) = (2 << 20, 2 << 20, [1; 16]);
        let part = NewPartition { kind: LINUX_FILE_SYSTEM, uuid, start, size, name: "a b&c".into() };
        write_gpt(&disk, [7; 16], &[part]).unwrap();
        let range = |name: &str| {
            let url = VolumeUrl::parse(OsStr::new(name)).unwrap();
            range_in_image(name, url.part, &disk).unwrap()
        };
        for name in ["rbd:p/i?partition=a%20b%26c", "rbd:p/i?partition=%31", "rbd:p/i?offset=2M&size=2M"] {
            assert_eq!(range(name), Some(start..start + size), "{name}");
        }
        assert_eq!(range("rbd:p/i"), None);
    }

    #[test]
    fn media() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v.img");
        let pmem = format!("pmem:{}", path.display());
        let options = FileOptions::new();
        let made = create_url(&pmem, 1 << 20, &options).unwrap();
        assert!(made.mapped().is_some());
        made.write_at(b"here", 7).unwrap();
        drop(made);
        let plain = open_url(&path, &options).unwrap();
        assert!(plain.mapped().is_none());
        let mut seen = [0; 4];
        plain.read_at(&mut seen, 7).unwrap();
        assert_eq!(&seen, b"here");
        assert_eq!(open_url(&pmem, &options).unwrap_err().op, Op::Lock);
        drop(plain);
        assert!(open_url(&pmem, &options.clone().read_only(true).direct(true)).unwrap().read_only());

        assert_eq!(create_url("mem:1M", 1 << 20, &options).unwrap().size(), 1 << 20);
        assert_eq!(create_url("mem:1M", 2 << 20, &options).unwrap_err().errno(), EINVAL);
        assert_eq!(open_url("mem:16777215T", &options).unwrap_err().errno(), ENOMEM);
    }
}
