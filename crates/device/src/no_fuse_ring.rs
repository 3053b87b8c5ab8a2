//! Rings of FUSE where there are none: crate `io-uring` is for processors of 64 bits.

use std::io;
use std::os::fd::BorrowedFd;

/// The memory of a ring: where the kernel writes header and content of a request.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct FuseRingLayout {
    pub header: usize,
    pub content: usize,
    pub len: usize,
}

/// A ring with one command: none can be made.
#[derive(Debug)]
pub enum FuseRing {}

#[allow(missing_docs, clippy::missing_errors_doc)]
impl FuseRing {
    pub fn new() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub fn register(&mut self, _: BorrowedFd<'_>, _: u16, _: FuseRingLayout) -> io::Result<()> {
        match *self {}
    }

    pub fn commit(&mut self, _: BorrowedFd<'_>, _: u16, _: u64) -> io::Result<()> {
        match *self {}
    }

    pub fn submit(&self) -> io::Result<()> {
        match *self {}
    }

    pub fn wait(&mut self) -> io::Result<()> {
        match *self {}
    }

    pub fn memory(&mut self) -> Option<&mut [u8]> {
        match *self {}
    }
}
