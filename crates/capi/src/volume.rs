//! Volumes: open, close, sync, free space, statistics.

use crate::answer::{Failure, Result, call};
use crate::args;
use crate::table::{Open, Table};
use lanefs::device::BlockedSignals;
use lanefs::{OpenOptions, Volume};
use libc::{c_char, c_int, ssize_t};

/// An open volume.
pub struct lanefs_volume {
    _private: [u8; 0],
}

static VOLUMES: Table<Volume> = Table::new(1);

/// Returns the volume behind a handle.
pub(crate) fn volume(handle: *mut lanefs_volume) -> Result<Open<'static, Volume>> {
    VOLUMES.get(handle.addr()).ok_or_else(not_open)
}

fn not_open() -> Failure {
    Failure::new(libc::EBADF, "no open volume")
}

/// Space and inodes of a volume, as statfs(2) has them.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct lanefs_statfs {
    /// Bytes of a block.
    pub f_bsize: u64,
    /// Blocks that files can have.
    pub f_blocks: u64,
    /// Blocks that are free.
    pub f_bfree: u64,
    /// Blocks that are free and not reserved for root.
    pub f_bavail: u64,
    /// Inodes.
    pub f_files: u64,
    /// Inodes that are free.
    pub f_ffree: u64,
    /// Bytes of the longest name.
    pub f_namelen: u64,
    /// The volume's UUID.
    pub f_uuid: [u8; 16],
}

/// Returns the version of the library that runs, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn lanefs_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Opens a volume for reading and writing, recovers it if it was not closed, and locks it against
/// other openers of all processes.
///
/// `name` is the path of a file or of a block device, a partition in one (`disk.raw@2`),
/// `pmem:FILE`, the same mapped, or an `nbd:`, `rbd:`, `overlay:` or `cached:` URL: docs/images.md
/// and docs/remote.md. `options` is a list of words as mount(8) takes them, with commas between:
/// `ro`, `noload`, `commit=30`, `dioread_lock`, `nodelalloc`, `locking=range`, `cache=64M`, ...:
/// docs/c-library.md has them all. NULL is the same as "".
///
/// Errors: EINVAL (an unknown option, which the message names; no ext4 volume), ENOENT, EACCES,
/// EISDIR, EBUSY (another opener or a mount has it), EUCLEAN (it breaks a rule of the format),
/// EOPNOTSUPP (it needs a feature that lanefs does not have), EMFILE, EIO, EFAULT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_open_volume(
    name: *const c_char,
    options: *const c_char,
) -> *mut lanefs_volume {
    call(|| {
        // SAFETY: strings or null, as the header says.
        let (name, options) = unsafe { (args::os(name)?, args::options(options)?) };
        let volume = {
            // The threads of a volume are started here.
            let _signals = BlockedSignals::new();
            OpenOptions::new().write(true).mount_options(options)?.open_url(name)?
        };
        match VOLUMES.insert(volume) {
            Ok(handle) => Ok(std::ptr::without_provenance_mut(handle)),
            Err(volume) => {
                volume.close()?;
                Err(Failure::new(libc::EMFILE, "too many open volumes"))
            }
        }
    })
}

/// Makes everything durable, empties the journal and marks the volume as clean. Waits for calls
/// that use the volume, and for changes of content that have begun.
///
/// Files and directories that are still open are to be closed as ever. Until the last of them is,
/// the volume stays locked against other openers, they may be read, and to change anything through
/// them is ENODEV.
///
/// Errors: EIO: the handle is gone all the same, and the next opener recovers the volume. EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn lanefs_close_volume(volume: *mut lanefs_volume) -> c_int {
    call(|| {
        let volume = VOLUMES.remove(volume.addr()).ok_or_else(not_open)?;
        volume.close()?;
        Ok(0)
    })
}

/// Makes everything that was done durable, as syncfs(2).
///
/// Errors: EIO, ENOSPC, EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn lanefs_sync(volume: *mut lanefs_volume) -> c_int {
    call(|| {
        self::volume(volume)?.sync()?;
        Ok(0)
    })
}

/// Puts how full the volume is into `out`.
///
/// Errors: EBADF, EFAULT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_statfs(volume: *mut lanefs_volume, out: *mut lanefs_statfs) -> c_int {
    call(|| {
        let of = self::volume(volume)?.statfs();
        let statfs = lanefs_statfs {
            f_bsize: of.block_size.into(),
            f_blocks: of.blocks,
            f_bfree: of.blocks_free,
            f_bavail: of.blocks_available,
            f_files: of.inodes,
            f_ffree: of.inodes_free,
            f_namelen: of.name_max.into(),
            f_uuid: of.uuid,
        };
        // SAFETY: room for one or null, as the header says.
        unsafe { args::give(out, statfs)? };
        Ok(0)
    })
}

/// Puts what the volume counted and timed since it was opened into `buf`, as JSON with a NUL at its
/// end: handles, commits, histograms in nanoseconds. What does not fit into `size` bytes is cut
/// off.
///
/// Returns the bytes of the whole text without its NUL, as snprintf(3) does; -1 if it fails.
///
/// Errors: EBADF, EFAULT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_stats(volume: *mut lanefs_volume, buf: *mut c_char, size: usize) -> ssize_t {
    call(|| {
        let json = self::volume(volume)?.stats().to_json();
        // SAFETY: `size` bytes or null, as the header says.
        let room = unsafe { args::memory_mut(buf.cast(), size)? };
        Ok(args::print(json.as_bytes(), room).cast_signed())
    })
}

/// Tells the device which bytes of the volume no file has (fstrim): of the `len` bytes from `start`
/// on, runs of at least `least` bytes. How many bytes; -1 if it fails.
///
/// Errors: EROFS, EIO, EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn lanefs_trim(volume: *mut lanefs_volume, start: u64, len: u64, least: u64) -> i64 {
    call(|| {
        let volume = self::volume(volume)?;
        // A volume has fewer bytes than an i64 can count.
        Ok(volume.trim(start..start.saturating_add(len), least)?.cast_signed())
    })
}
