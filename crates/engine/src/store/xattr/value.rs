//! The value of an attribute, copied out of its entry.
//!
//! Hazard: a value may lie in an inode of its own (`ea_inode`). Reading it does I/O and locks other
//! buffers, so the buffer that holds the entry is not locked meanwhile.

use crate::error::{Error, Result, XattrError};
use crate::store::{Store, io};
use lanefs_format::InodeFlags;
use lanefs_format::xattr::Value;

/// The most bytes of a value that a program can read or write (`XATTR_SIZE_MAX`).
const VALUE_MAX: u32 = 64 << 10;

/// A value, or where it lies.
#[derive(Debug)]
pub(super) enum Stored {
    Bytes(Vec<u8>),
    /// The first `size` bytes of an inode.
    Inode {
        ino: u32,
        size: u32,
    },
}

impl Stored {
    pub(super) fn of(value: Value<'_>) -> Self {
        match value {
            Value::Bytes(bytes) => Self::Bytes(bytes.to_vec()),
            Value::Inode { ino, size } => Self::Inode { ino, size },
        }
    }

    /// Returns how many bytes the value has by its entry.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Inode { size, .. } => *size as usize,
        }
    }

    /// Returns the bytes of the value, which is of an attribute of inode `ino`. The caller has
    /// locked no buffer.
    ///
    /// # Errors
    /// [`XattrError::ValueInode`]; the device's.
    pub(super) fn read(self, store: &Store, ino: u32) -> Result<Vec<u8>> {
        let (value_ino, size) = match self {
            Self::Bytes(bytes) => return Ok(bytes),
            Self::Inode { ino, size } => (ino, size),
        };
        let broken = |rule| Error::from(XattrError::ValueInode { ino, value_ino, rule });
        if !store.inode_ctx.ea_inode {
            return Err(broken("needs the feature ea_inode, which the volume lacks"));
        }
        let holder = store.read_inode(value_ino)?;
        if !holder.flags.contains(InodeFlags::EA_INODE) {
            return Err(broken("lacks the flag of an attribute's inode"));
        }
        if holder.size != u64::from(size) {
            return Err(broken("has another size than e_value_size"));
        }
        if size > VALUE_MAX {
            return Err(broken("has more than the 65536 bytes that a value can have"));
        }
        let mut value = vec![0; size as usize];
        let n = io::read_inode(store, &holder, 0, &mut value)?;
        if n == value.len() { Ok(value) } else { Err(broken("ends early")) }
    }
}
