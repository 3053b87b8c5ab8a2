//! Block devices: the bytes of a volume, in and out.
//!
//! [`BlockDevice`] is all that the layers above know of a medium. Everything that has been
//! written is volatile until [`BlockDevice::flush`] returns; between two flushes the medium may
//! keep any part of what was written, in any order, torn at 512 bytes.

mod block_device;
mod buf;
mod error;
mod file;
mod mem;

pub use block_device::{BlockDevice, ReadOp, WriteOp};
pub use buf::AlignedBuf;
pub use error::{DeviceError, Op, Result};
pub use file::{FileDevice, FileOptions};
pub use mem::MemDevice;
