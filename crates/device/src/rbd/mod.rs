//! A volume in an RBD image of a Ceph cluster, by the cluster's own library.
//!
//! `library` loads librados and librbd at run time, and has their C interface. `cluster` has a
//! connection and its pool, `image` an open image with its lock. [`RbdDevice`] is the block device.
//! Only the first three have `unsafe` code.
//!
//! Invariants:
//! - A device for writing holds the image's exclusive lock from its open to its drop. librbd is
//!   told never to give it up, so a write without the lock fails.
//! - A reader has no lock. The writers of this host look for its name (see `name_claim`) once they
//!   have the lock; it looks for the lock once it has its name.
//! - The lock of another client is broken only on demand, and that client is blocklisted first: the
//!   OSDs reject what it still sends.

#[cfg(all(feature = "rbd", unix))]
mod cluster;
mod device;
mod error;
#[cfg(all(feature = "rbd", unix))]
mod image;
#[cfg(all(feature = "rbd", unix))]
mod library;
mod url;

pub use device::RbdDevice;
pub use error::{RbdError, RbdFailure};
pub use url::RbdUrl;
pub(crate) use url::partition_of;
