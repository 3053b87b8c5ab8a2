//! What the name of a volume says: the kind of medium, and the part of it.

use std::ffi::OsStr;
use std::path::Path;

/// A medium, as the name of a volume gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium<'a> {
    /// A regular file or a block special file, by its path.
    File(&'a Path),
    /// `pmem:FILE`: a file that is mapped into memory.
    Pmem(&'a Path),
    /// `mem:SIZE`: so many zero bytes in memory, which are lost with the device.
    Mem(u64),
    /// `nbd://HOST/EXPORT`, `nbd+unix:///EXPORT?socket=PATH`: an export of an NBD server, by its
    /// URL without a partition.
    Nbd(&'a str),
    /// `rbd:POOL/IMAGE`: an image of a Ceph cluster, by its URL.
    Rbd(&'a str),
    /// `overlay:base=URL,top=FILE`: a volume that is not written, and a file for what is.
    Overlay {
        /// The name of the volume that is not written.
        base: &'a OsStr,
        /// The file.
        top: &'a Path,
    },
    /// `cached:URL,dir=DIR,size=10G`: a volume whose blocks are kept on this host when they were
    /// read.
    Cached {
        /// The name of the volume.
        below: &'a OsStr,
        /// The folder of the cache.
        dir: &'a Path,
        /// The most bytes that are kept of the volume.
        size: u64,
    },
}

/// A part of a medium, as the name of a volume gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    /// `FILE@2`, `FILE@root`: a partition, as [`PartitionTable::find`](crate::PartitionTable::find)
    /// finds it.
    Partition(&'a OsStr),
    /// `FILE?offset=1M&size=4G`: a range of bytes.
    Bytes {
        /// First byte, a multiple of 512.
        offset: u64,
        /// Length in bytes, a multiple of 512; to the end of the medium for `None`.
        size: Option<u64>,
    },
}
