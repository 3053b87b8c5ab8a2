//! Open directories.
//!
//! A listing goes by cookies: a batch of entries is taken from the engine under the directory's
//! lock, and handed out one by one, so that C may change the directory between two of them.

use crate::answer::{Failure, Result, call};
use crate::args;
use crate::table::{Open, Table};
use crate::volume::{lanefs_volume, volume};
use lanefs::{At, Dir, DirEntry, FileType};
use libc::{c_char, c_int};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;

/// Entries that are taken at a time.
const BATCH: usize = 128;

/// An open directory.
pub struct lanefs_dir {
    _private: [u8; 0],
}

static DIRS: Table<Listing> = Table::new(3);

pub(crate) struct Listing {
    dir: Dir,
    place: Mutex<ListingPlace>,
}

impl Listing {
    /// Returns operations on paths that begin at the directory.
    pub(crate) fn at(&self) -> At<'_> {
        self.dir.at()
    }
}

/// Where a listing is.
#[derive(Default)]
struct ListingPlace {
    /// Of the last entry in `ahead`, or where to begin.
    cookie: u64,
    ahead: VecDeque<DirEntry>,
}

/// Returns the open directory of a handle. A thread that closes it waits until the answer is
/// dropped.
pub(crate) fn dir(handle: *mut lanefs_dir) -> Result<Open<'static, Listing>> {
    DIRS.get(handle.addr()).ok_or_else(not_open)
}

/// Makes a handle for a directory.
pub(crate) fn keep_dir(dir: Dir) -> Result<*mut lanefs_dir> {
    let full = |_| Failure::new(libc::EMFILE, "too many open directories");
    let handle = DIRS.insert(Listing { dir, place: Mutex::default() }).map_err(full)?;
    Ok(std::ptr::without_provenance_mut(handle))
}

fn not_open() -> Failure {
    Failure::new(libc::EBADF, "no open directory")
}

/// A name in a directory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lanefs_dirent {
    /// The inode that it leads to.
    pub d_ino: u64,
    /// Where to go on listing behind this entry: for lanefs_seekdir.
    pub d_off: u64,
    /// The inode's type: DT_REG, DT_DIR, ... of <dirent.h>; DT_UNKNOWN if the directory does not
    /// note types.
    pub d_type: u8,
    /// The name, with a NUL at its end.
    pub d_name: [c_char; 256],
}

/// Opens a directory for listing. A symbolic link at the end is followed.
///
/// Errors: ENOENT, ENOTDIR, ELOOP, ENAMETOOLONG, EUCLEAN, EIO, ENODEV, EMFILE, EBADF, EFAULT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_opendir(volume: *mut lanefs_volume, path: *const c_char) -> *mut lanefs_dir {
    call(|| {
        let volume = self::volume(volume)?;
        // SAFETY: a string or null, as the header says.
        keep_dir(volume.open_dir(unsafe { args::path(path)? })?)
    })
}

/// Puts the next entry into `out`, "." and ".." too: 1; 0 at the end; -1 if it fails. An entry that
/// is made or removed meanwhile may or may not be seen; all others are seen once. Threads that
/// share one handle share its place.
///
/// Errors: EUCLEAN, EIO, ENODEV, EBADF, EFAULT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_readdir(dir: *mut lanefs_dir, out: *mut lanefs_dirent) -> c_int {
    call(|| {
        let open = self::dir(dir)?;
        if out.is_null() {
            return Err(Failure::new(libc::EFAULT, "a null pointer"));
        }
        let mut place = open.place.lock();
        if place.ahead.is_empty() {
            let (from, mut batch) = (place.cookie, VecDeque::with_capacity(BATCH));
            open.dir.read_dir_from(from, |e| {
                let (name, ino, file_type, cookie) = (e.name.to_owned(), e.ino, e.file_type, e.cookie);
                batch.push_back(DirEntry { name, ino, file_type, cookie });
                if batch.len() < BATCH { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            place.cookie = batch.back().map_or(from, |last| last.cookie);
            place.ahead = batch;
        }
        let Some(entry) = place.ahead.pop_front() else { return Ok(0) };
        // SAFETY: room for one, as the header says.
        unsafe { args::give(out, dirent_of(&entry))? };
        Ok(1)
    })
}

fn dirent_of(entry: &DirEntry) -> lanefs_dirent {
    let mut d_name = [0; 256];
    // A name has 255 bytes at most.
    for (to, &from) in d_name.iter_mut().take(255).zip(entry.name.as_bytes()) {
        *to = from as c_char;
    }
    let d_type = match entry.file_type {
        None => libc::DT_UNKNOWN,
        Some(FileType::Fifo) => libc::DT_FIFO,
        Some(FileType::CharDevice) => libc::DT_CHR,
        Some(FileType::Directory) => libc::DT_DIR,
        Some(FileType::BlockDevice) => libc::DT_BLK,
        Some(FileType::Regular) => libc::DT_REG,
        Some(FileType::Symlink) => libc::DT_LNK,
        Some(FileType::Socket) => libc::DT_SOCK,
    };
    lanefs_dirent { d_ino: entry.ino.into(), d_off: entry.cookie, d_type, d_name }
}

/// Goes to a place in a directory: a `d_off`, or 0 for its start.
///
/// Errors: EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn lanefs_seekdir(dir: *mut lanefs_dir, place: u64) -> c_int {
    call(|| {
        let open = self::dir(dir)?;
        *open.place.lock() = ListingPlace { cookie: place, ahead: VecDeque::new() };
        Ok(0)
    })
}

/// Closes a directory, when all calls that use it have returned.
///
/// Errors: EBADF, also for a directory that was closed before.
#[unsafe(no_mangle)]
pub extern "C" fn lanefs_closedir(dir: *mut lanefs_dir) -> c_int {
    call(|| {
        DIRS.remove(dir.addr()).ok_or_else(not_open)?;
        Ok(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Each call on a path from a directory on holds what [`dir`] returns until it is done.
    #[test]
    fn a_close_waits_for_the_users_of_a_directory() {
        let volume = lanefs::Volume::in_memory(16 << 20).unwrap();
        let handle = keep_dir(volume.open_dir("/").unwrap()).unwrap();
        let (open, address) = (dir(handle).unwrap(), handle.addr());
        let closer = std::thread::spawn(move || lanefs_closedir(std::ptr::without_provenance_mut(address)));
        // No call begins any more.
        while dir(handle).is_ok() {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(50));
        assert!(!closer.is_finished() && open.at().exists("/").unwrap());
        drop(open);
        assert_eq!(closer.join().unwrap(), 0);
    }
}
