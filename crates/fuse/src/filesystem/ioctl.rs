//! ioctl(2): flags as of chattr(1), projects, trimming.
//!
//! The kernel lets through what says in its number how many bytes go in and out; FIEMAP is not among it, and it answers
//! that itself (EOPNOTSUPP).

use super::Filesystem;
use crate::fault::{Answer, Fault};
use crate::request::{Outbox, Request};
use crate::wire::{IoctlIn, IoctlOut};
use lanefs::format::InodeFlags;
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

// Numbers of linux/fs.h, without the size where that differs between machines.
const GETFLAGS: u32 = 0x6601;
const SETFLAGS: u32 = 0x6602;
const GETVERSION: u32 = 0x7601;
const FSGETXATTR: u32 = 0x581F;
const FSSETXATTR: u32 = 0x5820;
const FITRIM: u32 = 0x5879;

/// Flags that chattr(1) sees (`EXT4_FL_USER_VISIBLE`).
const VISIBLE: u32 = 0x705B_DFFF;

/// struct fsxattr.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct FsXattr {
    xflags: u32,
    extsize: u32,
    nextents: u32,
    projid: u32,
    cowextsize: u32,
    pad: [u8; 8],
}

/// struct fstrim_range.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct TrimRange {
    start: u64,
    len: u64,
    minlen: u64,
}

/// Flags of both worlds: of chattr(1), and of struct fsxattr.
const XFLAGS: [(InodeFlags, u32); 6] = [
    (InodeFlags::IMMUTABLE, 0x8),
    (InodeFlags::APPEND, 0x10),
    (InodeFlags::SYNC, 0x20),
    (InodeFlags::NOATIME, 0x40),
    (InodeFlags::NODUMP, 0x80),
    (InodeFlags::PROJINHERIT, 0x200),
];

impl Filesystem {
    pub(super) fn ioctl(&self, r: &mut Request<'_>, out: &mut Outbox) -> Answer {
        let args: IoctlIn = r.take()?;
        let input = r.bytes(args.in_size as usize)?;
        let answer = self.command(r, args.cmd & 0xFFFF, input)?;
        out.put(&IoctlOut::default())?;
        out.put_bytes(answer.get(..args.out_size as usize).unwrap_or(&answer))
    }

    fn command(&self, r: &Request<'_>, number: u32, input: &[u8]) -> Answer<Vec<u8>> {
        let node = self.nodes.get(r.header.nodeid)?;
        let meta = node.metadata();
        match number {
            GETFLAGS => Ok(u64::from(meta.flags().bits() & VISIBLE).as_bytes().to_vec()),
            SETFLAGS => {
                let (flags, _) = u32::read_from_prefix(input).map_err(|_| Fault(Errno::INVAL))?;
                node.set_flags(InodeFlags::from_bits_retain(flags))?;
                Ok(Vec::new())
            }
            GETVERSION => Ok(u64::from(meta.generation()).as_bytes().to_vec()),
            FSGETXATTR => {
                let has = XFLAGS.iter().filter(|(flag, _)| meta.flags().contains(*flag));
                let xflags = has.map(|(_, x)| x).sum();
                let projid = meta.inode().projid;
                Ok(FsXattr { xflags, projid, ..FsXattr::default() }.as_bytes().to_vec())
            }
            FSSETXATTR => {
                let (set, _) = FsXattr::read_from_prefix(input).map_err(|_| Fault(Errno::INVAL))?;
                let mut flags = meta.flags();
                for (flag, x) in XFLAGS {
                    flags.set(flag, set.xflags & x != 0);
                }
                node.set_project(set.projid)?;
                if flags != meta.flags() {
                    node.set_flags(flags)?;
                }
                Ok(Vec::new())
            }
            FITRIM => {
                if r.header.uid != 0 {
                    return Err(Fault(Errno::PERM));
                }
                let (range, _) = TrimRange::read_from_prefix(input).map_err(|_| Fault(Errno::INVAL))?;
                let end = range.start.saturating_add(range.len);
                let len = self.volume.trim(range.start..end, range.minlen)?;
                Ok(TrimRange { len, ..range }.as_bytes().to_vec())
            }
            _ => Err(Fault(Errno::NOTTY)),
        }
    }
}
