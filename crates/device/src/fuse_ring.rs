//! The io_uring by which one thread gets requests of FUSE and answers them.
//!
//! A ring has one command in flight, and the command one piece of memory: [`FuseRing::register`]
//! lends the memory to the kernel, which completes the command when it has written a request there.
//! [`FuseRing::commit`] answers that request and lends the memory again, in one system call.
//!
//! - While the kernel has the memory, no reference to it exists.
//! - Memory that the kernel still has is never freed: it could write there at any time.
//! - A ring takes nothing but commands. Its maker may be confined afterwards, so that no filter of
//!   system calls sees what it is asked for.
#![allow(unsafe_code)]

use crate::AlignedBuf;
use io_uring::register::Restriction;
use io_uring::squeue::Entry128;
use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Commands of linux/fuse.h.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;

/// The place of `len` in an entry of linux/io_uring.h.
const SQE_LEN: usize = 24;

/// The memory of a ring: where the kernel writes header and content of a request.
#[derive(Debug, Clone, Copy)]
pub struct FuseRingLayout {
    /// Bytes of the header, at the beginning.
    pub header: usize,
    /// The place of the content, which reaches to the end.
    pub content: usize,
    /// Bytes of all.
    pub len: usize,
}

/// A ring with one command. See the head of this file.
pub struct FuseRing {
    ring: IoUring<Entry128, cqueue::Entry>,
    memory: Option<ManuallyDrop<AlignedBuf>>,
    /// Header and content, which the kernel reads while it takes REGISTER.
    parts: Box<[libc::iovec; 2]>,
    in_kernel: bool,
}

// SAFETY: the pointers of `parts` lead into `memory`, which the ring owns; the kernel reads `parts`
// only in a call that borrows the ring.
unsafe impl Send for FuseRing {}

impl FuseRing {
    /// Makes a ring.
    ///
    /// # Errors
    /// The system's: ENOSYS or EPERM where it has no io_uring for this process.
    pub fn new() -> io::Result<Self> {
        let mut builder = IoUring::<Entry128, cqueue::Entry>::builder();
        let ring = builder.setup_r_disabled().setup_coop_taskrun().build(2)?;
        let submitter = ring.submitter();
        submitter.register_restrictions(&mut [Restriction::sqe_op(opcode::UringCmd80::CODE)])?;
        submitter.register_enable_rings()?;
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Ok(Self { ring, memory: None, parts: Box::new([none; 2]), in_kernel: false })
    }

    /// Has the kernel deliver requests of `queue` to new memory of this layout, from the next
    /// [`wait`](Self::wait) of this thread on.
    ///
    /// # Errors
    /// EINVAL for a layout whose parts do not fit, and for a ring that is registered already.
    pub fn register(&mut self, device: BorrowedFd<'_>, queue: u16, layout: FuseRingLayout) -> io::Result<()> {
        let FuseRingLayout { header, content, len } = layout;
        if header > content || content >= len || self.memory.is_some() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let memory = self.memory.insert(ManuallyDrop::new(AlignedBuf::zeroed(len)));
        let base = memory.as_mut_ptr();
        // SAFETY: `content` lies inside of the memory, as was checked.
        let content_at = unsafe { base.add(content) };
        *self.parts = [
            libc::iovec { iov_base: base.cast(), iov_len: header },
            libc::iovec { iov_base: content_at.cast(), iov_len: len - content },
        ];
        self.push(device, REGISTER, queue, 0)
    }

    /// Answers the request number `id` of `queue` by what its memory holds, and lends the memory to
    /// the kernel for the next one, from the next [`submit`](Self::submit) on.
    ///
    /// # Errors
    /// EINVAL if the kernel has the memory.
    pub fn commit(&mut self, device: BorrowedFd<'_>, queue: u16, id: u64) -> io::Result<()> {
        self.push(device, COMMIT_AND_FETCH, queue, id)
    }

    /// Hands a command to the kernel. Does not wait for a request.
    ///
    /// # Errors
    /// The system's.
    pub fn submit(&self) -> io::Result<()> {
        again_if_interrupted(|| self.ring.submit())
    }

    /// Hands a command to the kernel, if there is one, and waits until a request is there.
    ///
    /// # Errors
    /// The kernel's answer to the command: ENOTCONN or ECANCELED when the connection has ended. The
    /// ring then has no command any more.
    pub fn wait(&mut self) -> io::Result<()> {
        loop {
            if let Some(completion) = self.ring.completion().next() {
                self.in_kernel = false;
                return match completion.result() {
                    0.. => Ok(()),
                    errno => Err(io::Error::from_raw_os_error(-errno)),
                };
            }
            if !self.in_kernel {
                return Err(io::Error::from_raw_os_error(libc::EINVAL));
            }
            again_if_interrupted(|| self.ring.submit_and_wait(1))?;
        }
    }

    /// Returns the memory, `None` while the kernel has it.
    pub fn memory(&mut self) -> Option<&mut [u8]> {
        if self.in_kernel { None } else { self.memory.as_mut().map(|memory| &mut memory[..]) }
    }

    fn push(&mut self, device: BorrowedFd<'_>, command: u32, queue: u16, id: u64) -> io::Result<()> {
        if self.in_kernel {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // struct fuse_uring_cmd_req: flags, number of the request, queue.
        let mut words = [0; 80];
        words[8..16].copy_from_slice(&id.to_ne_bytes());
        words[16..18].copy_from_slice(&queue.to_ne_bytes());
        let parts = (command == REGISTER).then_some(self.parts.as_ptr());
        let entry = opcode::UringCmd80::new(Fd(device.as_raw_fd()), command).cmd(words);
        let mut entry = entry.addr(parts.map(|parts| parts.expose_provenance() as u64)).build();
        let count = if parts.is_some() { self.parts.len() as u32 } else { 0 };
        // SAFETY: an Entry128 is the 128 bytes of struct io_uring_sqe, of which `len` has 4 at this
        // place; the builder has no word for it.
        unsafe { (&raw mut entry).cast::<u8>().add(SQE_LEN).cast::<u32>().write(count) };
        // SAFETY: memory and `parts` have addresses of their own, and live until the command has
        // completed: the memory is freed only when the kernel does not have it, and `parts` is read
        // by the call that submits, which borrows the ring.
        unsafe { self.ring.submission().push(&entry) }.map_err(|_| io::ErrorKind::WouldBlock)?;
        self.in_kernel = true;
        Ok(())
    }
}

impl Drop for FuseRing {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take().filter(|_| !self.in_kernel) {
            drop(ManuallyDrop::into_inner(memory));
        }
    }
}

impl std::fmt::Debug for FuseRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FuseRing(in_kernel: {})", self.in_kernel)
    }
}

fn again_if_interrupted(call: impl Fn() -> io::Result<usize>) -> io::Result<()> {
    loop {
        match call() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            result => return result.map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    const LAYOUT: FuseRingLayout = FuseRingLayout { header: 288, content: 8192, len: 16_384 };

    #[test]
    fn memory_is_lent_until_the_command_has_completed() {
        let no_connection = tempfile::tempfile().unwrap();
        let mut ring = FuseRing::new().unwrap();
        assert!(ring.memory().is_none() && ring.wait().is_err());
        ring.register(no_connection.as_fd(), 0, LAYOUT).unwrap();
        assert!(ring.memory().is_none());
        assert!(ring.commit(no_connection.as_fd(), 0, 1).is_err(), "a second command");
        assert!(ring.wait().is_err(), "a file that is no connection");
        assert_eq!(ring.memory().unwrap().len(), LAYOUT.len);
        assert!(ring.register(no_connection.as_fd(), 0, LAYOUT).is_err(), "a second registration");
    }

    #[test]
    fn a_layout_whose_parts_do_not_fit_is_refused() {
        let file = tempfile::tempfile().unwrap();
        for layout in [
            FuseRingLayout { header: 8193, ..LAYOUT },
            FuseRingLayout { content: 16_384, ..LAYOUT },
            FuseRingLayout { len: 0, ..LAYOUT },
        ] {
            assert!(FuseRing::new().unwrap().register(file.as_fd(), 0, layout).is_err(), "{layout:?}");
        }
    }
}
