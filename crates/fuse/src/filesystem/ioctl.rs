//! ioctl(2): flags as of chattr(1), projects, trimming.
//!
//! A program's own commands come as it sends them, by any handle, also one for reading only or of a
//! read-only bind mount. The commands that change flags it cannot send: the kernel takes these
//! exact numbers for itself, checks owner, capability and mount, and then asks here. So a command
//! is compared in all of its bits, and what the kernel is said to have checked of the caller is
//! checked again. FIEMAP the kernel answers itself (EOPNOTSUPP).

use super::{Filesystem, Outcome, Stage};
use crate::caller::Capability;
use crate::fault::{Answer, Fault};
use crate::notifier::Notice;
use crate::request::{Outbox, Request};
use crate::wire::{IoctlIn, IoctlOut};
use lanefs::format::InodeFlags;
use lanefs::{Metadata, Node};
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

// Commands of linux/fs.h on a 64-bit machine.
const GETFLAGS: u32 = 0x8008_6601;
const SETFLAGS: u32 = 0x4008_6602;
const GETVERSION: u32 = 0x8008_7601;
const FSGETXATTR: u32 = 0x801C_581F;
const FSSETXATTR: u32 = 0x401C_5820;
const FITRIM: u32 = 0xC018_5879;

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
const XFLAGS: [(InodeFlags, u32); 7] = [
    (InodeFlags::IMMUTABLE, 0x8),
    (InodeFlags::APPEND, 0x10),
    (InodeFlags::SYNC, 0x20),
    (InodeFlags::NOATIME, 0x40),
    (InodeFlags::NODUMP, 0x80),
    (InodeFlags::PROJINHERIT, 0x200),
    (InodeFlags::DAX, 0x8000),
];

impl Filesystem {
    pub(super) fn ioctl(&self, r: &mut Request<'_>, out: &mut Outbox, stage: Stage) -> Answer<Outcome> {
        let args: IoctlIn = r.take()?;
        let input = r.bytes(args.in_size as usize)?;
        let node = self.node(r.header.nodeid)?;
        let meta = node.metadata();
        let answer = match args.cmd {
            GETFLAGS => u64::from((meta.flags() & InodeFlags::USER_VISIBLE).bits()).as_bytes().to_vec(),
            SETFLAGS => {
                let (flags, _) = u32::read_from_prefix(input).map_err(|_| Fault(Errno::INVAL))?;
                let flags = InodeFlags::from_bits_retain(flags);
                return self.set_flags(r, &node, &meta, flags, None, stage, out);
            }
            GETVERSION => u64::from(meta.generation()).as_bytes().to_vec(),
            FSGETXATTR => {
                let has = XFLAGS.iter().filter(|(flag, _)| meta.flags().contains(*flag));
                let xflags = has.map(|(_, x)| x).sum();
                let projid = meta.inode().projid;
                FsXattr { xflags, projid, ..FsXattr::default() }.as_bytes().to_vec()
            }
            FSSETXATTR => {
                let (set, _) = FsXattr::read_from_prefix(input).map_err(|_| Fault(Errno::INVAL))?;
                let mut flags = meta.flags() & InodeFlags::USER_VISIBLE;
                for (flag, x) in XFLAGS {
                    flags.set(flag, set.xflags & x != 0);
                }
                return self.set_flags(r, &node, &meta, flags, Some(set.projid), stage, out);
            }
            FITRIM => self.trim(r, input)?.as_bytes().to_vec(),
            _ => return Err(Fault(Errno::NOTTY)),
        };
        out.put(&IoctlOut::default())?;
        out.put_bytes(answer.get(..args.out_size as usize).unwrap_or(&answer))?;
        Ok(Outcome::Answered)
    }

    /// Sets flags and project of an inode.
    #[allow(clippy::too_many_arguments, reason = "the two commands that set flags share it")]
    fn set_flags(
        &self,
        r: &Request<'_>,
        node: &Node,
        meta: &Metadata,
        flags: InodeFlags,
        project: Option<u32>,
        stage: Stage,
        out: &mut Outbox,
    ) -> Answer<Outcome> {
        let caller = self.caller(&r.header);
        let hardens = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
        let changes = meta.flags() ^ flags;
        if !caller.owns(meta.uid()) || changes.intersects(hardens) && !caller.has(Capability::LinuxImmutable)
        {
            return Err(Fault(Errno::PERM));
        }
        let becomes_immutable = (changes & flags).contains(InodeFlags::IMMUTABLE);
        if becomes_immutable && stage == Stage::Fresh && self.handles.is_written(node.ino()) {
            // The kernel first writes back the pages that became dirty while writes were allowed.
            return Ok(Outcome::NoticeFirst(Notice::Content { node: r.header.nodeid, offset: 0, len: 0 }));
        }
        let changed = project.is_none() || !(changes & InodeFlags::USER_VISIBLE).is_empty();
        node.set_file_attr(changed.then_some(flags), project)?;
        self.settle(r.clone())?;
        out.put(&IoctlOut::default())?;
        // The kernel does not know that the time of the last change moved.
        Ok(Outcome::AfterNotice(Notice::Attributes(r.header.nodeid)))
    }

    /// Trims free space, within the bounds that ext4 sets.
    fn trim(&self, r: &Request<'_>, input: &[u8]) -> Answer<TrimRange> {
        if !self.caller(&r.header).has(Capability::SysAdmin) {
            return Err(Fault(Errno::PERM));
        }
        let (range, _) = TrimRange::read_from_prefix(input).map_err(|_| Fault(Errno::INVAL))?;
        let sb = self.volume.info().superblock;
        let block = u64::from(sb.block_size());
        let group = u64::from(sb.raw().s_blocks_per_group.get());
        let bad =
            range.start / block >= sb.blocks_count() || range.len < block || range.minlen / block > group;
        if bad {
            return Err(Fault(Errno::INVAL));
        }
        let end = range.start.saturating_add(range.len);
        let len = self.volume.trim(range.start..end, range.minlen)?;
        Ok(TrimRange { len, ..range })
    }
}
