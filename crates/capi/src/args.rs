//! Converts the arguments of C into Rust's. A null pointer or a number out of range is a
//! [`Failure`], never a panic.
//!
//! The functions that follow a pointer are unsafe: the caller guarantees that it points at what the
//! header says.

use crate::answer::{Failure, Result};
use libc::{c_char, c_void, iovec};
use std::ffi::{CStr, OsStr};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Bytes that one read or write takes at most, as in the kernel: what is asked beyond is not done,
/// and the answer says so.
pub(crate) const MOST: usize = 0x7fff_f000;

/// Segments that one preadv or pwritev takes (IOV_MAX).
const SEGMENTS: usize = 1024;

fn fault() -> Failure {
    Failure::new(libc::EFAULT, "a null pointer")
}

/// Returns a string that must be there.
///
/// # Safety
/// `at` is null or points at a string with its NUL, which no thread changes while `'a` lasts.
pub(crate) unsafe fn bytes<'a>(at: *const c_char) -> Result<&'a [u8]> {
    if at.is_null() {
        return Err(fault());
    }
    // SAFETY: not null, and the rest is the caller's word.
    Ok(unsafe { CStr::from_ptr(at) }.to_bytes())
}

/// Returns a path that must be there.
///
/// # Safety
/// `at` must be valid for [`bytes`].
pub(crate) unsafe fn path<'a>(at: *const c_char) -> Result<&'a Path> {
    // SAFETY: the caller's word.
    Ok(Path::new(unsafe { os(at) }?))
}

/// Returns a name that must be there.
///
/// # Safety
/// `at` must be valid for [`bytes`].
pub(crate) unsafe fn os<'a>(at: *const c_char) -> Result<&'a OsStr> {
    // SAFETY: the caller's word.
    Ok(OsStr::from_bytes(unsafe { bytes(at) }?))
}

/// Returns a list of options, which may be missing.
///
/// # Safety
/// `at` must be valid for [`bytes`].
pub(crate) unsafe fn options<'a>(at: *const c_char) -> Result<&'a str> {
    if at.is_null() {
        return Ok("");
    }
    // SAFETY: the caller's word.
    let bytes = unsafe { bytes(at) }?;
    std::str::from_utf8(bytes).map_err(|_| Failure::invalid("the options are not UTF-8"))
}

/// Returns memory to read from.
///
/// # Safety
/// `at` is null or points at `len` bytes that no thread changes while `'a` lasts.
pub(crate) unsafe fn memory<'a>(at: *const c_void, len: usize) -> Result<&'a [u8]> {
    match len {
        0 => Ok(&[]),
        _ if at.is_null() => Err(fault()),
        // SAFETY: not null, no longer than memory can be, and the rest is the caller's word.
        len => Ok(unsafe { std::slice::from_raw_parts(at.cast(), len.min(MOST)) }),
    }
}

/// Returns memory to write to.
///
/// # Safety
/// `at` is null or points at `len` bytes that no other thread uses while `'a` lasts.
pub(crate) unsafe fn memory_mut<'a>(at: *mut c_void, len: usize) -> Result<&'a mut [u8]> {
    match len {
        0 => Ok(&mut []),
        _ if at.is_null() => Err(fault()),
        // SAFETY: not null, no longer than memory can be, and the rest is the caller's word.
        len => Ok(unsafe { std::slice::from_raw_parts_mut(at.cast(), len.min(MOST)) }),
    }
}

/// Puts `value` where C wants it.
///
/// # Safety
/// `at` is null or points at room for a `T`.
pub(crate) unsafe fn give<T>(at: *mut T, value: T) -> Result<()> {
    if at.is_null() {
        return Err(fault());
    }
    // SAFETY: not null, and the rest is the caller's word.
    unsafe { at.write(value) };
    Ok(())
}

/// Returns the segments of a preadv or pwritev, and how many bytes they have together.
///
/// # Safety
/// `at` is null or points at `count` segments that no thread changes while `'a` lasts.
pub(crate) unsafe fn segments<'a>(at: *const iovec, count: i32) -> Result<(&'a [iovec], usize)> {
    let count = usize::try_from(count).ok().filter(|count| *count <= SEGMENTS);
    let count = count.ok_or_else(|| Failure::invalid("more than 1024 segments, or fewer than none"))?;
    if count == 0 {
        return Ok((&[], 0));
    }
    if at.is_null() {
        return Err(fault());
    }
    // SAFETY: not null, and the rest is the caller's word.
    let segments = unsafe { std::slice::from_raw_parts(at, count) };
    let total = segments.iter().try_fold(0, |sum: usize, segment| sum.checked_add(segment.iov_len));
    let total = total.filter(|total| isize::try_from(*total).is_ok());
    Ok((segments, total.ok_or_else(|| Failure::invalid("more bytes than memory can have"))?.min(MOST)))
}

/// Returns the segments that hold `total` bytes of a file, each with the bytes that lie in it. The
/// last ones may hold none.
pub(crate) fn parts(segments: &[iovec], total: usize) -> impl Iterator<Item = (&iovec, Range<usize>)> {
    let mut at = 0;
    segments.iter().map(move |segment| {
        let here = at..at + segment.iov_len.min(total - at);
        at = here.end;
        (segment, here)
    })
}

/// Returns a list that is read and written.
///
/// # Safety
/// `at` is null or points at `count` values that no other thread uses while `'a` lasts.
pub(crate) unsafe fn list<'a, T>(at: *mut T, count: i32) -> Result<&'a mut [T]> {
    match usize::try_from(count).map_err(|_| Failure::invalid("fewer than none"))? {
        0 => Ok(&mut []),
        _ if at.is_null() => Err(fault()),
        // SAFETY: not null, and the rest is the caller's word.
        count => Ok(unsafe { std::slice::from_raw_parts_mut(at, count) }),
    }
}

/// Returns a checked place in a file.
pub(crate) fn offset(offset: i64) -> Result<u64> {
    u64::try_from(offset).map_err(|_| Failure::invalid(format!("a negative place in a file: {offset}")))
}

/// Returns `len` zero bytes, or ENOMEM.
pub(crate) fn zeroed(len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(len)
        .map_err(|_| Failure::new(libc::ENOMEM, format!("no memory for {len} bytes")))?;
    bytes.resize(len, 0);
    Ok(bytes)
}

/// Copies as much of `text` as there is room for, with a NUL behind it, as snprintf(3) does. How
/// long it is without the NUL.
pub(crate) fn print(text: &[u8], room: &mut [u8]) -> usize {
    if let Some(last) = room.len().checked_sub(1) {
        let fits = text.len().min(last);
        room[..fits].copy_from_slice(&text[..fits]);
        room[fits] = 0;
    }
    text.len()
}
