//! Opens `cached:URL,dir=DIR,size=10G`.

use super::CachedDevice;
use super::head::KnownHead;
use super::store::{State, Store, is_marked};
use crate::checksum::checksum;
use crate::errno::{EBUSY, EIO};
use crate::identity::BaseIdentity;
use crate::url::open_url;
use crate::{BlockDevice, DeviceError, FileOptions, Op, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a reader waits for a cache that another opener has.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a file has the mark of a writer that has died, once the next opener has locked it.
const MARKED: Duration = Duration::from_millis(200);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(20);
/// The end of the name of each cache.
const SUFFIX: &str = ".lanefs-cache";

impl CachedDevice {
    /// Opens a volume by its name, and the cache of it in the folder `dir`, which is made if it is
    /// missing. A reader that cannot share the cache, because a writer has it, returns the volume
    /// itself; so does one that takes no lock.
    ///
    /// # Errors
    /// The errors of [`open_url`] for the volume; EBUSY for a writer while readers have the cache;
    /// the system's for the folder and the file.
    pub fn open(below: &OsStr, dir: &Path, size: u64, options: &FileOptions) -> Result<Arc<dyn BlockDevice>> {
        let base = open_url(below, options)?;
        if options.unlocked { Ok(base) } else { Self::over(base, below, dir, size) }
    }

    /// Opens the cache of a volume that is open, and has the name `below`.
    pub(super) fn over(
        base: Arc<dyn BlockDevice>,
        below: &OsStr,
        dir: &Path,
        size: u64,
    ) -> Result<Arc<dyn BlockDevice>> {
        let below = crate::absolute::absolute_name(below).unwrap_or_else(|_| below.to_owned());
        let path = dir.join(file_name(&below));
        let failed = |e: io::Error| {
            let errno = e.raw_os_error().unwrap_or(EIO);
            DeviceError::at_path(Op::Open, &path, errno, e.to_string())
        };
        make(dir).map_err(failed)?;
        let (file, is_alone) = match (acquire(&path, base.read_only()).map_err(failed)?, base.read_only()) {
            (Some(held), _) => held,
            (None, true) => return Ok(base),
            (None, false) => {
                let why = "the cache is in use by another process, which reads the volume by it";
                return Err(DeviceError::at_path(Op::Lock, &path, EBUSY, why));
            }
        };
        let head = KnownHead::read(&*base)?;
        let Some(identity) = head.identity() else { return Ok(base) };
        let store = Store::new(&path, file.try_clone().map_err(failed)?, identity.size, size)?;
        match (store.state(&identity), is_alone) {
            // Readers may have filled it while another host wrote.
            (State::Same, true) if !base.read_only() && head.is_unclosed() => {
                store.reset(&identity).map_err(failed)?;
            }
            (State::Same, _) => {}
            (State::Other, true) => store.reset(&identity).map_err(failed)?,
            // Others have it, with the base as it was.
            (State::Other, false) => return Ok(base),
        }
        if is_alone {
            remove_others(dir, &path, size);
        }
        if !base.read_only() {
            store.mark(&identity).map_err(failed)?;
        } else if is_alone && !share(&file, &store, &identity).map_err(failed)? {
            return Ok(base);
        }
        let (below, dir) = (below.to_string_lossy(), dir.display());
        let name = format!("cached:{below},dir={dir},size={size}");
        Ok(Arc::new(Self::new(base, store, head, name)))
    }
}

/// Locks the file of a cache: alone, or for a reader with other readers. Returns the file and
/// whether it is alone, `None` if others have it.
///
/// The first of several readers has the file alone for a moment, so the others try again for a
/// while, unless the file has had the mark of a writer for longer than an emptying takes.
fn acquire(path: &Path, read_only: bool) -> io::Result<Option<(File, bool)>> {
    let start = Instant::now();
    let mut marked = None;
    loop {
        let file = open_file(path)?;
        let is_alone = lock(&file, FlockOperation::NonBlockingLockExclusive)?;
        if is_alone || read_only && lock(&file, FlockOperation::NonBlockingLockShared)? {
            // Another process may have removed it before it was locked.
            if file.metadata()?.nlink() > 0 {
                return Ok(Some((file, is_alone)));
            }
            continue;
        }
        marked = if is_marked(&file) { marked.or_else(|| Some(Instant::now())) } else { None };
        let has_writer = marked.is_some_and(|since| since.elapsed() > MARKED);
        if !read_only || has_writer || start.elapsed() > PATIENCE {
            return Ok(None);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Lets other readers have the file too. Returns false if it is lost: the kernel gives the lock up
/// before it takes the shared one, and a writer may come between.
pub(super) fn share(file: &File, store: &Store, identity: &BaseIdentity) -> io::Result<bool> {
    Ok(lock(file, FlockOperation::NonBlockingLockShared)? && store.state(identity) == State::Same)
}

/// Makes the folder, for this user alone: what is in it is taken for the volume.
fn make(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

fn open_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("is no regular file")),
    }
}

/// Locks the file. Returns false if others have it.
fn lock(file: &File, how: FlockOperation) -> io::Result<bool> {
    match flock(file, how) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Returns the name of the file for a volume: readable, and with a checksum of all of its name.
fn file_name(below: &OsStr) -> String {
    let bytes = below.as_encoded_bytes();
    let kept = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    let text: String = below.to_string_lossy().chars().rev().take(80).map(kept).collect();
    let text: String = text.chars().rev().collect();
    format!("{text}-{:016x}{SUFFIX}", checksum(0, bytes))
}

/// Removes caches of other volumes that no process has, the oldest first, until all fit the bound.
fn remove_others(dir: &Path, own: &Path, limit: u64) {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let is_cache = |path: &PathBuf| path != own && path.to_string_lossy().ends_with(SUFFIX);
    let meta =
        |path: PathBuf| path.symlink_metadata().ok().map(|meta| (meta.mtime(), meta.blocks() * 512, path));
    let mut others: Vec<_> = entries.map(|e| e.path()).filter(is_cache).filter_map(meta).collect();
    others.sort_unstable();
    let mut total: u64 = others.iter().map(|(_, bytes, _)| bytes).sum();
    for (_, bytes, path) in others {
        if total <= limit {
            return;
        }
        if matches!(remove_unused(&path, remove), Ok(true)) {
            total -= bytes;
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    std::fs::remove_file(path)
}

/// Removes the file of a cache by `remove`, unless a process has it. Holds it meanwhile: a process
/// that has opened it gets the lock when the file has no name any more, and makes a new one.
pub(super) fn remove_unused(path: &Path, remove: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<bool> {
    let file = open_file(path)?;
    // A file without a name was removed by another process, and the name may be of a new one.
    let is_free = lock(&file, FlockOperation::NonBlockingLockExclusive)? && file.metadata()?.nlink() > 0;
    if is_free {
        remove(path)?;
    }
    Ok(is_free)
}
