//! Batches by io_uring: one system call submits all runs of a batch.
//!
//! The caller repeats with plain system calls every run that the kernel refused, did in part, or
//! asked to retry. Buffers are not registered: they belong to the callers and differ in each call.
//!
//! Invariants:
//! - A ring belongs to one call at a time. Even after a failure, the call does not return before
//!   the kernel has completed every submitted entry, because the memory is the caller's.
//! - No ring starts a kernel worker thread, which would wake up every five seconds until the
//!   submitting thread ends. All entries are submitted with RWF_NOWAIT, so the kernel refuses an
//!   entry that needs a worker, such as a write into a hole.
#![allow(unsafe_code)]

use super::piece::{Piece, Source, Target};
use io_uring::register::Restriction;
use io_uring::types::Fixed;
use io_uring::{IoUring as Ring, opcode, squeue};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Runs that are with the kernel at once.
const DEPTH: usize = 128;

/// IORING_UNREGISTER_FILES of linux/io_uring.h.
const UNREGISTER_FILES: u8 = 3;

/// The rings of a device: made when first needed, kept for reuse.
#[derive(Default)]
pub(super) struct Rings {
    idle: Mutex<Vec<Ring>>,
    made: AtomicUsize,
    refused: AtomicBool,
}

/// The answers to a run: the kernel's answer (bytes, or a negative errno), `None` if it was not
/// asked.
pub(super) type Answers = Vec<Option<i32>>;

impl Rings {
    /// Makes a ring, so that one knows whether the kernel has them.
    pub(super) fn probe(&self, file: &File) -> std::io::Result<()> {
        let ring = make(file)?;
        self.made.fetch_add(1, Ordering::Relaxed);
        self.idle().push(ring);
        Ok(())
    }

    /// Makes all rings that there will be, for a process that makes none later. They can do nothing
    /// but read and write `file`. After a failure there are none.
    pub(super) fn make_all(&self, file: &File) -> std::io::Result<()> {
        self.refused.store(true, Ordering::Relaxed);
        let rings: Vec<Ring> = (0..most()).map(|_| make_restricted(file)).collect::<Result<_, _>>()?;
        self.made.store(rings.len(), Ordering::Relaxed);
        self.idle().extend(rings);
        Ok(())
    }

    /// Rings on a kernel that has none.
    #[cfg(test)]
    pub(super) fn refused() -> Self {
        let rings = Self::default();
        rings.refused.store(true, Ordering::Relaxed);
        rings
    }

    /// Writes runs: an offset and the pieces that go there.
    pub(super) fn write<'a>(
        &self,
        file: &File,
        runs: impl ExactSizeIterator<Item = (u64, &'a [Source<'a>])>,
    ) -> Answers {
        self.run(file, runs, |(offset, pieces)| {
            let writev = opcode::Writev::new(Fixed(0), Piece::raw(pieces), pieces.len() as u32);
            writev.offset(offset).rw_flags(libc::RWF_NOWAIT).build()
        })
    }

    /// Fills runs: an offset and the pieces that it fills.
    pub(super) fn read<'a, 'b: 'a>(
        &self,
        file: &File,
        runs: impl ExactSizeIterator<Item = (u64, &'a mut [Target<'b>])>,
    ) -> Answers {
        self.run(file, runs, |(offset, pieces)| {
            let readv = opcode::Readv::new(Fixed(0), Piece::raw(pieces), pieces.len() as u32);
            readv.offset(offset).rw_flags(libc::RWF_NOWAIT).build()
        })
    }

    /// Runs the entries that `entry` makes. Their memory lives, and is not used otherwise, until
    /// this returns.
    fn run<R>(
        &self,
        file: &File,
        runs: impl ExactSizeIterator<Item = R>,
        entry: impl Fn(R) -> squeue::Entry,
    ) -> Answers {
        let mut answers = vec![None; runs.len()];
        let Some(mut ring) = self.take(file) else { return answers };
        // SAFETY: the pieces outlive this call (`runs` borrows them), which waits for the kernel;
        // pieces that are read into are borrowed mutably.
        let sound = unsafe { submit_and_finish(&mut ring, runs.map(entry), &mut answers) };
        if sound {
            self.idle().push(ring);
        } else {
            // The ring still holds entries that were never submitted to the kernel; no later call
            // may submit them.
            drop(ring);
            self.made.fetch_sub(1, Ordering::Relaxed);
        }
        answers
    }

    fn take(&self, file: &File) -> Option<Ring> {
        if let Some(ring) = self.idle().pop() {
            return Some(ring);
        }
        if self.refused.load(Ordering::Relaxed) {
            return None;
        }
        if self.made.fetch_add(1, Ordering::Relaxed) >= most() {
            self.made.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        match make(file) {
            Ok(ring) => Some(ring),
            Err(_) => {
                // Not there, forbidden, or out of something: the plain way works always.
                self.refused.store(true, Ordering::Relaxed);
                None
            }
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Ring>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        // The kernel destroys a ring some time after it was closed, and a block device with a
        // registered file stays in use until then: the next open for exclusive use would be
        // refused.
        for ring in self.idle().drain(..) {
            let _ = ring.submitter().unregister_files();
        }
    }
}

impl std::fmt::Debug for Rings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rings({})", self.made.load(Ordering::Relaxed))
    }
}

/// Returns how many rings a device has at most: many threads keep it busy without.
fn most() -> usize {
    (2 * std::thread::available_parallelism().map_or(1, usize::from)).clamp(4, 64)
}

/// Makes a ring with `file` registered as number 0, which takes nothing but reads and writes of it.
/// For a confined process: a system call filter does not see the operations of a ring.
fn make_restricted(file: &File) -> std::io::Result<Ring> {
    let build = |coop: bool| {
        let mut builder = Ring::builder();
        builder.setup_r_disabled();
        if coop {
            builder.setup_coop_taskrun();
        }
        builder.build(DEPTH as u32)
    };
    let ring = build(true)
        .or_else(|e| if e.raw_os_error() == Some(libc::EINVAL) { build(false) } else { Err(e) })?;
    let submitter = ring.submitter();
    submitter.register_files(&[file.as_raw_fd()])?;
    submitter.register_restrictions(&mut [
        Restriction::sqe_op(opcode::Readv::CODE),
        Restriction::sqe_op(opcode::Writev::CODE),
        Restriction::sqe_flags_required(squeue::Flags::FIXED_FILE.bits()),
        Restriction::register_op(UNREGISTER_FILES),
    ])?;
    submitter.register_enable_rings()?;
    Ok(ring)
}

/// Makes a ring with `file` registered as number 0.
fn make(file: &File) -> std::io::Result<Ring> {
    let ring = Ring::builder()
        .setup_coop_taskrun()
        .build(DEPTH as u32)
        .or_else(|e| if e.raw_os_error() == Some(libc::EINVAL) { Ring::new(DEPTH as u32) } else { Err(e) })?;
    ring.submitter().register_files(&[file.as_raw_fd()])?;
    Ok(ring)
}

/// Submits all `entries`, as many as the kernel may have at once and others as those complete, and
/// waits for every entry that the kernel took. Returns whether the ring is as empty as before: if
/// not, entries are left in it that must not be submitted.
///
/// # Safety
/// What the entries point to stays valid, and unused by others where it is written to, until this
/// returns.
unsafe fn submit_and_finish(
    ring: &mut Ring,
    entries: impl Iterator<Item = squeue::Entry>,
    answers: &mut [Option<i32>],
) -> bool {
    let mut entries = entries.zip(0..);
    // Nothing from here on panics or returns before the kernel has given all back.
    let (mut queued, mut taken, mut done, mut patience) = (0, 0, 0, 100);
    let mut more = true;
    loop {
        while more && queued - done < DEPTH {
            // SAFETY: the caller's promise. The queue has room for DEPTH entries, of which some are
            // with the kernel.
            more = entries.next().is_some_and(|(entry, number)| unsafe {
                ring.submission().push(&entry.user_data(number)).is_ok()
            });
            queued += usize::from(more);
        }
        // A part of those under way: then there is room for others.
        let under_way = queued - done;
        let enough = if under_way == DEPTH { DEPTH / 4 } else { under_way };
        match ring.submit_and_wait(enough) {
            Ok(n) => taken += n,
            Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
            Err(_) => {
                // Out of memory, or completions must be reaped first. In-flight entries must be
                // waited for.
                patience -= 1;
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        for completion in ring.completion() {
            done += 1;
            if let Some(answer) = answers.get_mut(completion.user_data() as usize) {
                *answer = Some(completion.result());
            }
        }
        if done == queued && !more {
            return true;
        }
        if done >= taken && patience < 0 {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use io_uring::types::Fd;

    /// The operations that an attacker would try with the rings of a confined process.
    #[test]
    fn restricted_rings_read_and_write_their_file_and_do_nothing_else() {
        let (file, other) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let rings = Rings::default();
        rings.make_all(&file).unwrap();
        let mut ring = rings.take(&file).unwrap();
        let mut run = |entry: squeue::Entry| {
            let mut answer = [None];
            // SAFETY: all that the entries below point to outlives this call, and is only read.
            assert!(unsafe { submit_and_finish(&mut ring, [entry].into_iter(), &mut answer) });
            answer[0].unwrap()
        };
        let iov = libc::iovec { iov_base: c"text".as_ptr().cast_mut().cast(), iov_len: 4 };
        assert_eq!(run(opcode::Writev::new(Fixed(0), &raw const iov, 1).build()), 4);
        let refused = [
            opcode::Nop::new().build(),
            opcode::OpenAt::new(Fd(libc::AT_FDCWD), c"/etc/passwd".as_ptr()).build(),
            opcode::Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).build(),
            opcode::Fsync::new(Fixed(0)).build(),
            opcode::Writev::new(Fd(other.as_raw_fd()), &raw const iov, 1).build(),
        ];
        for entry in refused {
            assert_eq!(run(entry), -libc::EACCES);
        }
        ring.submitter().register_files_update(0, &[other.as_raw_fd()]).unwrap_err();
        ring.submitter().unregister_files().unwrap();
        assert_eq!(other.metadata().unwrap().len(), 0);
        // And no other is made.
        assert_eq!(std::iter::from_fn(|| rings.take(&file)).count(), most() - 1);
    }
}
