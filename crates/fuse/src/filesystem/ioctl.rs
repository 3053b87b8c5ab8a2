//! ioctl(2): flags as of chattr(1), projects, trimming, fs-verity, growth. The kernel itself
//! refuses FIEMAP.
//!
//! Hazard: a program's own commands come by any handle, also of a read-only bind mount. The kernel
//! takes the exact numbers that change flags for itself, and checks owner, capability and mount. So
//! a command is compared in all of its bits, and the caller is checked again.

use super::{Filesystem, Outcome, Stage};
use crate::buffers::Outbox;
use crate::caller::Capability;
use crate::fault::{Answer, Fault};
use crate::notifier::Notice;
use crate::request::{Command, Ioctl, Request, VerityArgs};
use crate::wire::{FsXattr, InHeader, IoctlOut, TrimRange, VerityDigest};
use lanefs::format::{InodeFlags, RoCompat};
use lanefs::{Metadata, Node, Verity};
use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

/// Flags, as chattr(1) and as `struct fsxattr` have them.
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
    pub(super) fn ioctl(
        &self,
        header: &InHeader,
        ioctl: Ioctl,
        out: &mut Outbox,
        stage: Stage,
    ) -> Answer<Outcome> {
        if stage == Stage::Noticed {
            // The flags are set, and the kernel has written back what it had cached by then.
            self.hardening.end(header.nodeid);
            return self.flags_are_set(header, out);
        }
        let node = self.node(header.nodeid)?;
        let meta = node.metadata();
        let (flags, project) = match ioctl.command {
            Command::GetFlags => {
                let flags = meta.flags() & InodeFlags::USER_VISIBLE;
                return reply(&u64::from(flags.bits()), ioctl, out);
            }
            Command::GetVersion => return reply(&u64::from(meta.generation()), ioctl, out),
            Command::GetXFlags => {
                let has = XFLAGS.iter().filter(|(flag, _)| meta.flags().contains(*flag));
                let xflags = has.map(|(_, x)| x).sum();
                let projid = meta.inode().projid;
                return reply(&FsXattr { xflags, projid, ..FsXattr::default() }, ioctl, out);
            }
            Command::Trim(range) => return reply(&self.trim(header, range)?, ioctl, out),
            Command::MeasureVerity => return measure(&node, ioctl, out),
            Command::EnableVerity(args) => {
                self.enable_verity(header, &node, args)?;
                return reply(&[0_u8; 0], ioctl, out);
            }
            Command::Resize(blocks) => {
                self.grow(header, blocks)?;
                return reply(&[0_u8; 0], ioctl, out);
            }
            Command::SetFlags(flags) => (flags, None),
            Command::SetXFlags { xflags, project } => {
                let mut flags = meta.flags() & InodeFlags::USER_VISIBLE;
                for (flag, x) in XFLAGS {
                    flags.set(flag, xflags & x != 0);
                }
                (flags, Some(project))
            }
        };
        let changes = meta.flags() ^ flags;
        self.check_may_set(header, &meta, changes)?;
        let changed = project.is_none() || !(changes & InodeFlags::USER_VISIBLE).is_empty();
        let set = || node.set_file_attr(changed.then_some(flags), project);
        let hardens = (changes & flags).intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND);
        if !hardens || !self.is_written(node.ino()) {
            set()?;
            return self.flags_are_set(header, out);
        }
        // Pages may be dirty, or become so before the flag is set. They were accepted while writes
        // were allowed, so the kernel writes them back before the call returns.
        self.hardening.begin(header.nodeid);
        if let Err(e) = set() {
            self.hardening.end(header.nodeid);
            return Err(e.into());
        }
        let notice = Notice::Content { node: header.nodeid, offset: 0, len: 0 };
        Ok(self.notice_first(notice, header, Request::Ioctl(ioctl)))
    }

    /// Answers a command that has set flags.
    fn flags_are_set(&self, header: &InHeader, out: &mut Outbox) -> Answer<Outcome> {
        // Without opens the next write is judged by the new flags.
        self.node_files.close(header.nodeid);
        self.settle_inode(header.nodeid)?;
        out.put(&IoctlOut::default())?;
        // The kernel does not know that the time of the last change moved.
        Ok(Outcome::AfterNotice(Notice::Attributes(header.nodeid)))
    }

    /// Checks that the caller may change these flags of an inode.
    fn check_may_set(&self, header: &InHeader, meta: &Metadata, changes: InodeFlags) -> Answer {
        let caller = self.caller(header);
        let hardens = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
        if !caller.owns(meta) || changes.intersects(hardens) && !caller.has(Capability::LinuxImmutable) {
            return Err(Fault(Errno::PERM));
        }
        Ok(())
    }

    /// Gives a file a hash tree. Only its owner may, and the volume must have the feature.
    fn enable_verity(&self, header: &InHeader, node: &Node, args: VerityArgs) -> Answer {
        if !self.caller(header).owns(&node.metadata()) {
            return Err(Fault(Errno::ACCESS));
        }
        if !self.volume.info().superblock.has_ro(RoCompat::VERITY) {
            return Err(Fault(Errno::OPNOTSUPP));
        }
        let mut verity = Verity::default();
        (verity.hash, verity.block_size) = (args.hash, Some(args.block_size));
        verity.salt = args.salt[..args.salt_size].to_vec();
        // A writer that is none.
        self.node_files.close(header.nodeid);
        let enabled = node.enable_verity(&verity);
        // Opened meanwhile, it is a file that nothing writes to, even if there is no tree.
        self.node_files.close(header.nodeid);
        enabled?;
        self.settle_inode(header.nodeid)
    }

    /// Grows the volume to `blocks` blocks, for which its file or device must have room already.
    /// The size of now is no change, and tells whether the caller may.
    ///
    /// # Errors
    /// EPERM, EROFS; EOPNOTSUPP for an overlay, which cannot keep the size.
    fn grow(&self, header: &InHeader, blocks: u64) -> Answer {
        if !self.caller(header).may_resize(self.user) {
            return Err(Fault(Errno::PERM));
        }
        if self.overlay {
            return Err(Fault(Errno::OPNOTSUPP));
        }
        let block_size = u64::from(self.volume.statfs().block_size);
        self.volume.grow(blocks.checked_mul(block_size).ok_or(Fault(Errno::INVAL))?)?;
        self.look_at_space();
        Ok(())
    }

    /// Trims free space, within the bounds that ext4 sets.
    fn trim(&self, header: &InHeader, range: TrimRange) -> Answer<TrimRange> {
        if !self.caller(header).has(Capability::SysAdmin) {
            return Err(Fault(Errno::PERM));
        }
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

/// Answers with the digest of a file that has a hash tree.
///
/// # Errors
/// EOVERFLOW if there is no room for it.
fn measure(node: &Node, ioctl: Ioctl, out: &mut Outbox) -> Answer<Outcome> {
    let (hash, digest) = node.measure_verity()?;
    let head = VerityDigest { digest_algorithm: u16::from(hash.number()), digest_size: digest.len() as u16 };
    if size_of_val(&head) + digest.len() > ioctl.room {
        return Err(Fault(Errno::OVERFLOW));
    }
    out.put(&IoctlOut::default())?;
    out.put(&head)?;
    out.put_bytes(&digest)?;
    Ok(Outcome::Answered)
}

/// Answers a command with as much of `value` as it has room for.
fn reply<T: IntoBytes + Immutable>(value: &T, ioctl: Ioctl, out: &mut Outbox) -> Answer<Outcome> {
    let bytes = value.as_bytes();
    out.put(&IoctlOut::default())?;
    out.put_bytes(bytes.get(..ioctl.room).unwrap_or(bytes))?;
    Ok(Outcome::Answered)
}
