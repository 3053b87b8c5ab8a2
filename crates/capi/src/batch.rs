//! Reads and writes that are given together.

use crate::answer::{Failure, Result, call};
use crate::args;
use crate::open::{file, lanefs_file};
use crate::table::Open;
use lanefs::{File, Io};
use libc::{c_int, c_void, ssize_t};

/// For lanefs_io: a read.
pub const LANEFS_IO_READ: c_int = 0;
/// For lanefs_io: a write.
pub const LANEFS_IO_WRITE: c_int = 1;

/// A read or a write of lanefs_listio.
#[repr(C)]
pub struct lanefs_io {
    /// The open file.
    pub file: *mut lanefs_file,
    /// LANEFS_IO_READ or LANEFS_IO_WRITE.
    pub opcode: c_int,
    /// Set: what went wrong, as in errno; 0 for nothing.
    pub error: c_int,
    /// The memory. No two of a call overlap, but for those that are only read from.
    pub buf: *mut c_void,
    /// Its length; at most 2147479552 bytes move.
    pub count: usize,
    /// The place in the file.
    pub offset: i64,
    /// Set: how many bytes moved; -1 if it failed.
    pub done: ssize_t,
}

/// Decodes and checks a request.
///
/// # Safety
/// Its memory is as the header says while `'a` lasts.
unsafe fn request<'a>(io: &lanefs_io, file: &'a File) -> Result<Io<'a>> {
    let offset = args::offset(io.offset)?;
    match io.opcode {
        // SAFETY: `count` bytes or null, as the header says.
        LANEFS_IO_READ => Ok(Io::read(file, unsafe { args::memory_mut(io.buf, io.count)? }, offset)),
        // SAFETY: as above.
        LANEFS_IO_WRITE => Ok(Io::write(file, unsafe { args::memory(io.buf, io.count)? }, offset)),
        _ => Err(Failure::invalid("neither LANEFS_IO_READ nor LANEFS_IO_WRITE")),
    }
}

/// Carries out `count` reads and writes of any files, in no order, and waits for all: lio_listio(3)
/// with LIO_WAIT. Each one is lanefs_pread or lanefs_pwrite, and is told what came of it in `done`
/// and `error`. Of files opened with O_DIRECT, on a volume opened with io=direct, the device has
/// all reads at the same time, and all overwrites. Of requests that overlap, none need be whole.
///
/// Errors: EIO (some failed: `error` of each says why; lanefs_last_error is about the first of
/// them), EINVAL (`count`), EFAULT. In `error`: as lanefs_pread and lanefs_pwrite; EINVAL
/// (`opcode`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_listio(list: *mut lanefs_io, count: c_int) -> c_int {
    call(|| {
        // SAFETY: `count` requests or null, as the header says.
        let list = unsafe { args::list(list, count)? };
        // What a panic leaves undone has failed.
        for io in &mut *list {
            (io.done, io.error) = (-1, libc::EIO);
        }
        // Held until all requests are done: a thread that closes one of the files waits.
        let files: Vec<Result<Open<'static, File>>> = list.iter().map(|io| file(io.file)).collect();
        let mut failures = Vec::new();
        let (mut ios, mut places) = (Vec::with_capacity(list.len()), Vec::with_capacity(list.len()));
        for (at, (io, file)) in list.iter().zip(&files).enumerate() {
            let file = match file {
                Ok(file) => &**file,
                Err(e) => {
                    failures.push((at, e.clone()));
                    continue;
                }
            };
            // SAFETY: the memory is the caller's until this returns, as the header says.
            match unsafe { request(io, file) } {
                Ok(io) => {
                    ios.push(io);
                    places.push(at);
                }
                Err(e) => failures.push((at, e)),
            }
        }
        for (at, done) in places.into_iter().zip(File::run_batch(&mut ios)) {
            match done {
                Ok(done) => (list[at].done, list[at].error) = (done.cast_signed(), 0),
                Err(e) => failures.push((at, e.into())),
            }
        }
        for (at, failure) in &failures {
            (list[*at].done, list[*at].error) = (-1, failure.errno());
        }
        match failures.into_iter().min_by_key(|(at, _)| *at) {
            None => Ok(0),
            Some((at, failure)) => {
                Err(Failure::new(libc::EIO, format!("request {at}: {}", failure.message())))
            }
        }
    })
}
