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

mod absolute;
mod block_device;
mod buf;
#[cfg(target_os = "linux")]
mod cache;
mod checksum;
mod cow;
pub mod errno;
mod error;
#[cfg(target_os = "linux")]
mod file;
mod file_options;
mod forward;
mod host;
mod identity;
#[cfg(target_os = "linux")]
mod inherited;
#[cfg(target_os = "linux")]
mod loop_device;
mod medium;
mod mem;
mod memory;
mod name_claim;
mod nbd;
mod open_here;
#[doc(hidden)]
pub mod os_name;
mod overlay;
mod paced;
mod page_pool;
mod parameters;
mod partition;
#[cfg(target_os = "linux")]
mod pmem;
#[cfg(target_os = "linux")]
mod policy;
#[cfg(not(target_os = "linux"))]
mod portable;
mod rbd;
mod scheme;
mod signals;
mod stacked;
#[cfg(not(target_os = "linux"))]
mod unmapped;
mod url;
mod window;

pub use absolute::absolute_name;
pub use block_device::{BlockDevice, ReadOp, RepeatCheck, RepeatGuard, WriteOp, check_range};
pub use buf::AlignedBuf;
#[cfg(target_os = "linux")]
pub use cache::CachedDevice;
pub use cow::CowDevice;
pub use error::{DeviceError, Op, Result};
#[doc(hidden)]
#[cfg(target_os = "linux")]
pub use file::IN_THIS_PROCESS;
#[cfg(target_os = "linux")]
pub use file::{FileDevice, claimed_device, lengthen, lock_holders, resize_mounted};
pub use file_options::{Cached, FileOptions, IoUring};
pub use host::{host_name, memory_size};
#[cfg(target_os = "linux")]
pub use inherited::inherited_files;
pub use medium::{Medium, Part};
pub use mem::MemDevice;
pub use nbd::{
    ExportFlags, NbdAddress, NbdDevice, NbdError, NbdExport, NbdFailure, NbdUrl, without_password,
};
#[cfg(unix)]
pub use nbd::{dial, dial_by};
#[cfg(unix)]
pub use open_here::is_inode_open_here;
pub use open_here::is_open_here;
pub use overlay::Overlay;
pub use paced::{Pace, PacedDevice};
pub use page_pool::release_free_memory;
pub use parameters::absolute_url;
pub use partition::{
    GPT_BACKUP, LINUX_FILE_SYSTEM, NewPartition, Partition, PartitionTable, PartitionType, write_gpt,
};
#[cfg(target_os = "linux")]
pub use pmem::{Lent, Mapped, Persistence, PmemDevice};
#[cfg(target_os = "linux")]
pub use policy::set_idle_policy;
#[cfg(not(target_os = "linux"))]
pub use portable::FileDevice;
pub use rbd::{RbdDevice, RbdError, RbdFailure, RbdUrl};
#[doc(hidden)]
pub use signals::BlockedSignals;
pub use stacked::{innermost, layers};
#[cfg(not(target_os = "linux"))]
use unmapped::PmemDevice;
#[cfg(not(target_os = "linux"))]
pub use unmapped::{Lent, Mapped, Persistence};
pub use url::{VolumeUrl, create_url, open_url};
pub use window::Window;

/// The user id for a medium whose owner cannot be told.
pub(crate) const UNKNOWN_OWNER: u32 = 65534;
