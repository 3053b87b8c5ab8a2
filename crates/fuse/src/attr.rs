//! Attributes of inodes as the kernel takes them.

use crate::owners::Owners;
use crate::wire::{Attr, AttrOut, EntryOut, ROOT_ID, Statx, StatxOut, SxTime};
use lanefs::format::{InodeFlags, S_ISGID, S_ISUID};
use lanefs::{DeviceNumber, FileType, Metadata, Timestamp};

/// Seconds for which the kernel may cache names and attributes: only its own requests change them.
pub(crate) const VALID: u64 = 7 * 24 * 60 * 60;

/// Seconds for which the kernel may cache the attributes of a file that a program may write to. The
/// kernel does not count the blocks that its writeback takes.
const VALID_WRITTEN: u64 = 1;

/// Whether programs may write to a file, so that the kernel may have dirty pages of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writers {
    None,
    /// It is open for writing.
    Some,
    /// With `noopen`, every file may be open.
    Unknown,
}

/// Packs a device number into 32 bits.
pub(crate) fn pack(device: DeviceNumber) -> u32 {
    let DeviceNumber { major, minor } = device;
    minor & 0xFF | (major & 0xFFF) << 8 | (minor & 0xF_FF00) << 12
}

/// Unpacks a device number from 32 bits.
pub(crate) fn unpack(device: u32) -> DeviceNumber {
    DeviceNumber { major: device >> 8 & 0xFFF, minor: device & 0xFF | device >> 12 & 0xF_FF00 }
}

/// Returns the type in a directory entry (`DT_*`).
pub(crate) fn dirent_type(file_type: Option<FileType>) -> u32 {
    file_type.map_or(0, |t| u32::from(t.mode_bits()) >> 12)
}

/// Returns the sectors that the kernel is told. A file that may have dirty pages has at least one:
/// programs (GNU tar) take a file without any for one hole, and do not ask where its data is.
fn sectors(meta: &Metadata, writers: Writers) -> u64 {
    let may_have_pages = meta.is_file() && writers != Writers::None;
    meta.sectors().max(may_have_pages.into())
}

fn attr(meta: &Metadata, owners: Owners, writers: Writers) -> Attr {
    let (uid, gid) = owners.shown(meta);
    let (atime, mtime, ctime) = (meta.atime(), meta.mtime(), meta.ctime());
    Attr {
        ino: meta.ino().into(),
        size: meta.len(),
        blocks: sectors(meta, writers),
        atime: atime.sec,
        mtime: mtime.sec,
        ctime: ctime.sec,
        atimensec: atime.nsec,
        mtimensec: mtime.nsec,
        ctimensec: ctime.nsec,
        mode: meta.mode().into(),
        nlink: meta.nlink().into(),
        uid,
        gid,
        rdev: meta.device().map_or(0, pack),
        blksize: meta.block_size(),
        flags: 0,
    }
}

/// Returns for how many seconds the kernel may cache the attributes. It does not know of the bits
/// of the mode that a write takes away.
fn valid(meta: &Metadata, writers: Writers) -> u64 {
    match writers {
        _ if meta.is_file() && meta.permissions() & (S_ISUID | S_ISGID) != 0 => 0,
        Writers::Some => VALID_WRITTEN,
        Writers::None | Writers::Unknown => VALID,
    }
}

pub(crate) fn attr_out(meta: &Metadata, owners: Owners, writers: Writers) -> AttrOut {
    let attr = attr(meta, owners, writers);
    AttrOut { attr_valid: valid(meta, writers), attr, ..AttrOut::default() }
}

pub(crate) fn entry_out(id: u64, meta: &Metadata, owners: Owners, writers: Writers) -> EntryOut {
    EntryOut {
        nodeid: id,
        // The kernel makes the root by itself, of generation 0, and takes another one for stale.
        generation: if id == ROOT_ID { 0 } else { meta.generation().into() },
        entry_valid: VALID,
        attr_valid: valid(meta, writers),
        attr: attr(meta, owners, writers),
        ..EntryOut::default()
    }
}

/// Returns the answer to a lookup of a missing name. The kernel may cache it: only its own requests
/// make names.
pub(crate) fn no_entry() -> EntryOut {
    EntryOut { entry_valid: VALID, ..EntryOut::default() }
}

fn sx_time(t: Timestamp) -> SxTime {
    SxTime { tv_sec: t.sec, tv_nsec: t.nsec, reserved: 0 }
}

pub(crate) fn statx_out(meta: &Metadata, owners: Owners, writers: Writers) -> StatxOut {
    const BASIC: u32 = 0x7FF;
    const BTIME: u32 = 0x800;
    // Of both, the bits are those of chattr(1).
    const ATTRIBUTES: u64 = 0x4 | 0x10 | 0x20 | 0x40 | 0x800 | 0x10_0000;
    let btime = meta.crtime();
    let (uid, gid) = owners.shown(meta);
    let device = meta.device();
    let stat = Statx {
        mask: BASIC | if btime.is_some() { BTIME } else { 0 },
        blksize: meta.block_size(),
        attributes: u64::from(meta.flags().intersection(InodeFlags::all()).bits()) & ATTRIBUTES,
        attributes_mask: ATTRIBUTES,
        nlink: meta.nlink().into(),
        uid,
        gid,
        mode: meta.mode(),
        ino: meta.ino().into(),
        size: meta.len(),
        blocks: sectors(meta, writers),
        atime: sx_time(meta.atime()),
        btime: sx_time(btime.unwrap_or_default()),
        ctime: sx_time(meta.ctime()),
        mtime: sx_time(meta.mtime()),
        rdev_major: device.map_or(0, |d| d.major),
        rdev_minor: device.map_or(0, |d| d.minor),
        ..Statx::default()
    };
    StatxOut { attr_valid: valid(meta, writers), stat, ..StatxOut::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_go_both_ways() {
        for (major, minor) in [(8, 1), (259, 70_000), (4095, 0xF_FFFF)] {
            let device = DeviceNumber { major, minor };
            assert_eq!(unpack(pack(device)), device);
        }
        assert_eq!(pack(DeviceNumber { major: 8, minor: 17 }), 0x811);
    }
}
