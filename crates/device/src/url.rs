//! Volumes by name: a path, or a URL that says what kind of medium it is.

use crate::{BlockDevice, DeviceError, FileOptions, MemDevice, Op, PmemDevice, Result};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// The location that a volume's name gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium<'a> {
    /// A regular file or a block special file, by its path.
    File(&'a Path),
    /// `pmem:FILE`: the same, mapped.
    Pmem(&'a Path),
    /// `mem:SIZE`: zeros in memory, which end with the process.
    Mem(u64),
}

impl<'a> Medium<'a> {
    /// Reads a volume's name. `mem:` wants a number of bytes, or of a unit: K, M, G, T (powers of
    /// 1024). A path that begins so is written `./mem:...`.
    ///
    /// # Errors
    /// [`Op::Open`] (EINVAL) for a size that is none, or no path behind `pmem:`.
    pub fn parse(name: &'a OsStr) -> Result<Self> {
        let refuse =
            |why: &str| Err(DeviceError::at_path(Op::Open, Path::new(name), libc::EINVAL, why.to_owned()));
        let bytes = name.as_bytes();
        if let Some(path) = bytes.strip_prefix(b"pmem:") {
            return match path {
                b"" => refuse("needs a file: pmem:FILE"),
                path => Ok(Self::Pmem(Path::new(OsStr::from_bytes(path)))),
            };
        }
        if let Some(size) = bytes.strip_prefix(b"mem:") {
            return match parse_size(size) {
                Some(size) => Ok(Self::Mem(size)),
                None => refuse("needs a size: mem:64M, mem:1G"),
            };
        }
        Ok(Self::File(Path::new(name)))
    }

    /// The file that it is in; none for memory.
    pub fn path(&self) -> Option<&'a Path> {
        match *self {
            Self::File(path) | Self::Pmem(path) => Some(path),
            Self::Mem(_) => None,
        }
    }
}

fn parse_size(text: &[u8]) -> Option<u64> {
    let unit = match text.last()?.to_ascii_uppercase() {
        b'0'..=b'9' => 0,
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        b'T' => 40,
        _ => return None,
    };
    let digits = &text[..text.len() - usize::from(unit > 0)];
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    number.checked_mul(1 << unit).filter(|&size| size > 0)
}

/// Opens the volume of that name (see [`Medium::parse`]). `mem:` is new and empty each time.
///
/// # Errors
/// As [`Medium::parse`], [`FileOptions::open`] and [`PmemDevice::open`].
///
/// ```
/// use lanefs_device::{BlockDevice, FileOptions, open_url};
///
/// let device = open_url("mem:64M", &FileOptions::new())?;
/// assert_eq!(device.size(), 64 << 20);
/// # Ok::<(), lanefs_device::DeviceError>(())
/// ```
pub fn open_url(name: impl AsRef<OsStr>, options: &FileOptions) -> Result<Arc<dyn BlockDevice>> {
    let name = name.as_ref();
    Ok(match Medium::parse(name)? {
        Medium::File(path) => Arc::new(options.open(path)?),
        Medium::Pmem(path) => Arc::new(PmemDevice::open_with(options, path)?),
        Medium::Mem(size) => Arc::new(memory(name, size)?),
    })
}

/// Creates a volume of `size` zero bytes of that name, and replaces an existing one.
///
/// # Errors
/// As [`open_url`] and [`FileOptions::create`]; a `mem:` of another size (EINVAL).
pub fn create_url(name: impl AsRef<OsStr>, size: u64, options: &FileOptions) -> Result<Arc<dyn BlockDevice>> {
    let name = name.as_ref();
    Ok(match Medium::parse(name)? {
        Medium::File(path) => Arc::new(options.create(path, size)?),
        Medium::Pmem(path) => Arc::new(PmemDevice::create(path, size)?),
        Medium::Mem(own) if own == size => Arc::new(memory(name, size)?),
        Medium::Mem(own) => {
            let why = format!("has {own} bytes, {size} are asked for");
            return Err(DeviceError::at_path(Op::Open, Path::new(name), libc::EINVAL, why));
        }
    })
}

/// Memory of a size that a user may have mistyped: more than there is ends the open, not the
/// process.
fn memory(name: &OsStr, size: u64) -> Result<MemDevice> {
    let too_large = || DeviceError::at_path(Op::Open, Path::new(name), libc::ENOMEM, "is more than there is");
    let len = usize::try_from(size).map_err(|_| too_large())?;
    Vec::<u8>::new().try_reserve_exact(len).map_err(|_| too_large())?;
    Ok(MemDevice::new(len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let parse = |name: &'static str| Medium::parse(OsStr::new(name));
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
        for name in
            ["mem:", "mem:0", "mem:M", "mem:1X", "mem:-1", "mem:+1", "mem:1 G", "mem:99999999T", "pmem:"]
        {
            let e = parse(name).unwrap_err();
            assert!(e.errno() == libc::EINVAL && e.to_string().starts_with(name), "{e}");
        }
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
        assert_eq!(create_url("mem:1M", 2 << 20, &options).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(open_url("mem:16777215T", &options).unwrap_err().errno(), libc::ENOMEM);
    }
}
