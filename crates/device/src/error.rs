//! What a device says when an operation fails.

use std::{fmt, io};

/// Result of a device operation.
pub type Result<T> = std::result::Result<T, DeviceError>;

/// The operation that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Opening the device.
    Open,
    /// Taking the lock that keeps a second opener out.
    Lock,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Making what was written durable.
    Flush,
    /// Giving space back.
    Discard,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Op::Open => "open",
            Op::Lock => "lock",
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Discard => "discard",
        })
    }
}

/// A failed device operation: what was asked, where, and what the system said.
#[derive(Debug, thiserror::Error)]
#[error("{op} of {len} bytes at byte {offset}: {source}")]
pub struct DeviceError {
    /// What was asked.
    pub op: Op,
    /// First byte of the range, 0 for operations on the whole device.
    pub offset: u64,
    /// Length of the range in bytes, 0 for operations on the whole device.
    pub len: u64,
    /// The system's reason.
    pub source: io::Error,
}

impl DeviceError {
    /// A failure of `op` on `len` bytes at `offset`.
    pub fn new(op: Op, offset: u64, len: u64, source: io::Error) -> Self {
        Self { op, offset, len, source }
    }

    /// A range that does not lie inside a device of `size` bytes.
    pub fn out_of_range(op: Op, offset: u64, len: u64, size: u64) -> Self {
        let msg = format!("beyond the end of the device ({size} bytes)");
        Self::new(op, offset, len, io::Error::new(io::ErrorKind::UnexpectedEof, msg))
    }
}
