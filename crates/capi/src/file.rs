//! The content of an open file.

use crate::answer::{Failure, Result, call};
use crate::args;
use crate::open::{file, lanefs_file};
use crate::volume::{lanefs_volume, volume};
use lanefs::FallocMode;
use libc::{c_char, c_int, c_void, iovec, ssize_t};

/// For lanefs_fallocate: the size stays (FALLOC_FL_KEEP_SIZE).
pub const LANEFS_FALLOC_KEEP_SIZE: c_int = 0x01;
/// For lanefs_fallocate: free the blocks; with KEEP_SIZE (FALLOC_FL_PUNCH_HOLE).
pub const LANEFS_FALLOC_PUNCH_HOLE: c_int = 0x02;
/// For lanefs_fallocate: take the range out (FALLOC_FL_COLLAPSE_RANGE).
pub const LANEFS_FALLOC_COLLAPSE_RANGE: c_int = 0x08;
/// For lanefs_fallocate: zeros with blocks (FALLOC_FL_ZERO_RANGE).
pub const LANEFS_FALLOC_ZERO_RANGE: c_int = 0x10;
/// For lanefs_fallocate: put a hole in (FALLOC_FL_INSERT_RANGE).
pub const LANEFS_FALLOC_INSERT_RANGE: c_int = 0x20;
/// For lanefs_fallocate: nothing on ext4 (FALLOC_FL_UNSHARE_RANGE).
pub const LANEFS_FALLOC_UNSHARE_RANGE: c_int = 0x40;
/// For lanefs_seek: the next data (SEEK_DATA).
pub const LANEFS_SEEK_DATA: c_int = 3;
/// For lanefs_seek: the next hole (SEEK_HOLE).
pub const LANEFS_SEEK_HOLE: c_int = 4;

/// Reads up to `count` bytes from `offset` on into `buf`; at most 2147479552. How many: fewer than
/// asked for only at the end of the file, 0 behind it. A read sees all of a write of another thread
/// or none of it.
///
/// Errors: EBADF (also: not open for reading), EINVAL (offset), EUCLEAN, EIO, ENODEV, EFAULT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_pread(
    file: *mut lanefs_file,
    buf: *mut c_void,
    count: usize,
    offset: i64,
) -> ssize_t {
    call(|| {
        let (file, offset) = (self::file(file)?, args::offset(offset)?);
        // SAFETY: `count` bytes or null, as the header says.
        let buf = unsafe { args::memory_mut(buf, count)? };
        Ok(file.read_at(buf, offset)?.cast_signed())
    })
}

/// Writes `count` bytes at `offset`; at most 2147479552. How many. A file opened with O_APPEND is
/// written at its end.
///
/// Errors: ENOSPC and EFBIG (a part may have been written), EBADF (also: not open for writing),
/// EROFS, EINVAL (offset), EUCLEAN, EIO, ENODEV, EFAULT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_pwrite(
    file: *mut lanefs_file,
    buf: *const c_void,
    count: usize,
    offset: i64,
) -> ssize_t {
    call(|| {
        let (file, offset) = (self::file(file)?, args::offset(offset)?);
        // SAFETY: `count` bytes or null, as the header says.
        let bytes = unsafe { args::memory(buf, count)? };
        file.write_at(bytes, offset)?;
        Ok(bytes.len().cast_signed())
    })
}

/// Reads as lanefs_pread does into `count` segments, at most 1024, as one read. More than one are
/// copied once more.
///
/// Errors: as lanefs_pread; EINVAL (segments), ENOMEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_preadv(
    file: *mut lanefs_file,
    segments: *const iovec,
    count: c_int,
    offset: i64,
) -> ssize_t {
    call(|| {
        let (file, offset) = (self::file(file)?, args::offset(offset)?);
        // SAFETY: `count` segments or null, as the header says.
        let (segments, total) = unsafe { args::segments(segments, count)? };
        if let [one] = segments {
            // SAFETY: a segment is `iov_len` bytes or null, as the header says.
            let buf = unsafe { args::memory_mut(one.iov_base, one.iov_len)? };
            return Ok(file.read_at(buf, offset)?.cast_signed());
        }
        // Memory for what the file has, however much is asked for. The byte more shows whether the
        // file has grown meanwhile: one read sees all of a write or none of it.
        let left = file.metadata().len().saturating_sub(offset).saturating_add(1);
        let mut whole = args::zeroed(usize::try_from(left).map_or(total, |left| left.min(total)))?;
        let mut done = file.read_at(&mut whole, offset)?;
        if done == whole.len() && done < total {
            whole = args::zeroed(total)?;
            done = file.read_at(&mut whole, offset)?;
        }
        for (segment, part) in args::parts(segments, done) {
            // SAFETY: as above.
            let room = unsafe { args::memory_mut(segment.iov_base, segment.iov_len)? };
            room[..part.len()].copy_from_slice(&whole[part]);
        }
        Ok(done.cast_signed())
    })
}

/// Writes as lanefs_pwrite does from `count` segments, at most 1024, as one write. More than one
/// are copied once more.
///
/// Errors: as lanefs_pwrite; EINVAL (segments), ENOMEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_pwritev(
    file: *mut lanefs_file,
    segments: *const iovec,
    count: c_int,
    offset: i64,
) -> ssize_t {
    call(|| {
        let (file, offset) = (self::file(file)?, args::offset(offset)?);
        // SAFETY: `count` segments or null, as the header says.
        let (segments, total) = unsafe { args::segments(segments, count)? };
        if let [one] = segments {
            // SAFETY: a segment is `iov_len` bytes or null, as the header says.
            let bytes = unsafe { args::memory(one.iov_base, one.iov_len)? };
            file.write_at(bytes, offset)?;
            return Ok(bytes.len().cast_signed());
        }
        let mut whole = args::zeroed(total)?;
        for (segment, part) in args::parts(segments, total) {
            // SAFETY: as above.
            let bytes = unsafe { args::memory(segment.iov_base, segment.iov_len)? };
            whole[part.clone()].copy_from_slice(&bytes[..part.len()]);
        }
        file.write_at(&whole, offset)?;
        Ok(whole.len().cast_signed())
    })
}

/// Cuts or extends an open file to `len` bytes. What is new reads as zeros.
///
/// Errors: EBADF (also: not open for writing), EINVAL (a negative length), EFBIG, EPERM, EROFS,
/// ENOSPC, EIO, ENODEV.
#[unsafe(no_mangle)]
pub extern "C" fn lanefs_ftruncate(file: *mut lanefs_file, len: i64) -> c_int {
    call(|| {
        self::file(file)?.set_len(args::offset(len)?)?;
        Ok(0)
    })
}

/// Cuts or extends the file at `path` to `len` bytes.
///
/// Errors: as lanefs_open and lanefs_ftruncate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_truncate(volume: *mut lanefs_volume, path: *const c_char, len: i64) -> c_int {
    call(|| {
        let (volume, len) = (self::volume(volume)?, args::offset(len)?);
        // SAFETY: a string or null, as the header says.
        let path = unsafe { args::path(path)? };
        volume.open_options().write(true).open(path)?.set_len(len)?;
        Ok(0)
    })
}

/// Makes the content and all attributes of a file durable, and its name.
///
/// Errors: EIO, also for what was written earlier and failed in the background (told once through
/// each handle), ENOSPC, EROFS, EBADF, ENODEV.
#[unsafe(no_mangle)]
pub extern "C" fn lanefs_fsync(file: *mut lanefs_file) -> c_int {
    call(|| {
        self::file(file)?.sync_all()?;
        Ok(0)
    })
}

/// Makes the content and the size of a file durable.
///
/// Errors: as lanefs_fsync.
#[unsafe(no_mangle)]
pub extern "C" fn lanefs_fdatasync(file: *mut lanefs_file) -> c_int {
    call(|| {
        self::file(file)?.sync_data()?;
        Ok(0)
    })
}

/// Changes which blocks the `len` bytes from `offset` on have, as fallocate(2). `mode` is 0 or of
/// LANEFS_FALLOC_*, whose values are those of FALLOC_FL_*.
///
/// Errors: EINVAL (no bytes; what collapse and insert cannot move), EOPNOTSUPP (modes; a file
/// without extents), EBADF, EPERM, EFBIG, ENOSPC (a part may have been done), EROFS, EIO, ENODEV.
#[unsafe(no_mangle)]
pub extern "C" fn lanefs_fallocate(file: *mut lanefs_file, mode: c_int, offset: i64, len: i64) -> c_int {
    call(|| {
        let file = self::file(file)?;
        let (offset, len) = (args::offset(offset)?, args::offset(len)?);
        file.fallocate(falloc_mode(mode)?, offset, len)?;
        Ok(0)
    })
}

fn falloc_mode(mode: c_int) -> Result<FallocMode> {
    const PUNCH: c_int = LANEFS_FALLOC_PUNCH_HOLE | LANEFS_FALLOC_KEEP_SIZE;
    const ZERO_KEEP: c_int = LANEFS_FALLOC_ZERO_RANGE | LANEFS_FALLOC_KEEP_SIZE;
    const UNSHARE_KEEP: c_int = LANEFS_FALLOC_UNSHARE_RANGE | LANEFS_FALLOC_KEEP_SIZE;
    Ok(match mode {
        0 => FallocMode::Allocate,
        LANEFS_FALLOC_KEEP_SIZE => FallocMode::KeepSize,
        PUNCH => FallocMode::PunchHole,
        LANEFS_FALLOC_ZERO_RANGE => FallocMode::ZeroRange,
        ZERO_KEEP => FallocMode::ZeroRangeKeepSize,
        LANEFS_FALLOC_COLLAPSE_RANGE => FallocMode::CollapseRange,
        LANEFS_FALLOC_INSERT_RANGE => FallocMode::InsertRange,
        LANEFS_FALLOC_UNSHARE_RANGE | UNSHARE_KEEP => FallocMode::UnshareRange,
        _ => return Err(Failure::new(libc::EOPNOTSUPP, format!("no mode of fallocate: {mode:#x}"))),
    })
}

/// Finds the first byte at or behind `offset` that is data (LANEFS_SEEK_DATA) or in a hole
/// (LANEFS_SEEK_HOLE: the end of the file at the latest). A file has no position: nothing moves.
///
/// Errors: ENXIO (nothing more; `offset` is at or behind the end), EINVAL (`whence`), EBADF,
/// EUCLEAN, EIO.
#[unsafe(no_mangle)]
pub extern "C" fn lanefs_seek(file: *mut lanefs_file, offset: i64, whence: c_int) -> i64 {
    call(|| {
        let file = self::file(file)?;
        let nothing = |_| Failure::new(libc::ENXIO, format!("a negative place in a file: {offset}"));
        let from = args::offset(offset).map_err(nothing)?;
        let found = match whence {
            LANEFS_SEEK_DATA => file.seek_data(from)?,
            LANEFS_SEEK_HOLE => file.seek_hole(from)?,
            _ => return Err(Failure::invalid("neither LANEFS_SEEK_DATA nor LANEFS_SEEK_HOLE")),
        };
        // No place in a file of ext4 is beyond 2^48 bytes, those of 2^32 blocks of 64 KiB.
        Ok(found.cast_signed())
    })
}

/// Copies up to `len` bytes from `from_offset` of `from` to `to_offset` of `to`; holes stay holes.
/// How many: fewer at the end of `from`, or where a failure came in between.
///
/// Errors: EINVAL (ranges of one file that overlap; offsets), EBADF (also: `to` is for appending),
/// ENOSPC, EFBIG, EROFS, EIO, ENODEV.
#[unsafe(no_mangle)]
pub extern "C" fn lanefs_copy_range(
    from: *mut lanefs_file,
    from_offset: i64,
    to: *mut lanefs_file,
    to_offset: i64,
    len: usize,
) -> ssize_t {
    call(|| {
        let (from, to) = (file(from)?, file(to)?);
        let (from_offset, to_offset) = (args::offset(from_offset)?, args::offset(to_offset)?);
        let done = from.copy_range(from_offset, &to, to_offset, len.min(args::MOST) as u64)?;
        // At most `len`.
        Ok((done as usize).cast_signed())
    })
}
