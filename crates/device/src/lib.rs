//! Block devices: the bytes of a volume, in and out.
//!
//! [`BlockDevice`] is all that the layers above know of a medium. Everything that has been written
//! is volatile until [`BlockDevice::flush`] returns; between two flushes the medium may keep any
//! part of the writes, in any order, torn at 512 bytes.
//!
//! ```
//! use lanefs_device::{BlockDevice, FileDevice};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("disk.img");
//! let device = FileDevice::create(&path, 1 << 30)?;
//! device.write_at(b"written", 1024)?;
//! device.flush()?;
//!
//! let second = FileDevice::open(&path).unwrap_err();
//! assert!(second.to_string().ends_with("disk.img: is in use: this process has it open"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod block_device;
mod buf;
mod error;
mod file;
mod inherited;
mod mem;
mod overlay;
mod paced;
mod page_pool;
mod partition;
mod pmem;
mod policy;
mod url;
mod window;

pub use block_device::{BlockDevice, ReadOp, WriteOp, check_range};
pub use buf::AlignedBuf;
pub use error::{DeviceError, Op, Result};
#[doc(hidden)]
pub use file::IN_THIS_PROCESS;
pub use file::{Cached, FileDevice, FileOptions, IoUring, claimed_device, lock_holders};
pub use inherited::inherited_files;
pub use mem::MemDevice;
pub use overlay::Overlay;
pub use paced::{Pace, PacedDevice};
pub use page_pool::release_free_memory;
pub use partition::{Partition, PartitionTable, PartitionType};
pub use pmem::{Lent, Mapped, Persistence, PmemDevice};
pub use policy::set_idle_policy;
pub use url::{Medium, Part, VolumeUrl, create_url, open_url};
pub use window::Window;
