//! The checks of ext4 itself before content or attributes change: flags of the inode, and the
//! privileges that a change takes away. The kernel's half of FUSE does not know the flags of
//! chattr(1), and leaves set-id bits to the file system (`FUSE_HANDLE_KILLPRIV_V2`). It says
//! whether the caller may keep them, and for fallocate(2) and copy_file_range(2) not even that.

use super::Filesystem;
use crate::caller::{Caller, Capability};
use crate::fault::{Answer, Fault};
use crate::handles::Open;
use crate::notifier::Notice;
use crate::wire::{InHeader, InitFlags};
use lanefs::format::{InodeFlags, S_ISGID, S_ISUID};
use lanefs::{Metadata, Modifier, Node};
use parking_lot::Mutex;
use rustix::io::Errno;

const GROUP_EXECUTES: u16 = 0o010;

/// A change of content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// Bytes of the file may change.
    Overwrite,
    /// Existing bytes stay as they are.
    Append,
}

/// Whether the caller may keep set-id bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keeps {
    /// The kernel has checked: `kill` if the caller may not.
    Decided { kill: bool },
    /// The kernel has not checked.
    Unknown,
}

/// The nodes that are becoming immutable or append-only. From before the flag is set until the
/// kernel has written back what it had cached by then, its writeback is let through.
#[derive(Debug, Default)]
pub(super) struct Hardening(Mutex<Vec<u64>>);

impl Hardening {
    /// Begins to let the writeback of a node through, once more for each call.
    pub(super) fn begin(&self, node: u64) {
        self.0.lock().push(node);
    }

    /// Ends what one [`begin`](Self::begin) began.
    pub(super) fn end(&self, node: u64) {
        let mut nodes = self.0.lock();
        if let Some(at) = nodes.iter().position(|other| *other == node) {
            nodes.swap_remove(at);
        }
    }

    fn has(&self, node: u64) -> bool {
        self.0.lock().contains(&node)
    }
}

impl Filesystem {
    /// Returns whether a caller may keep set-id bits. `kill` is the kernel's flag that it may not.
    /// Kernels before 5.11 send no such flag.
    pub(super) fn keeps(&self, kill: bool) -> Keeps {
        let decides = self.features.contains(InitFlags::HANDLE_KILLPRIV_V2);
        if decides { Keeps::Decided { kill } } else { Keeps::Unknown }
    }

    /// Prepares a change of content: refuses it if the inode's flags forbid it, then drops the
    /// privileges that the change takes from the file. Returns the attributes from before.
    ///
    /// # Errors
    /// EPERM for an immutable file or one with a hash tree, and for an append-only file unless
    /// `change` appends.
    pub(super) fn before_change(
        &self,
        header: &InHeader,
        node: &Node,
        change: Change,
        keeps: Keeps,
    ) -> Answer<Metadata> {
        let meta = node.metadata();
        check_flags(&meta, change)?;
        node.drop_privileges(modifier(&self.caller(header), &meta, keeps))?;
        Ok(meta)
    }

    /// Takes from a file that `caller` may fill, because the mount shows another owner than the
    /// volume has, what would give the bytes that owner's rights: set-id bits, file capabilities.
    ///
    /// # Errors
    /// [`lanefs::Error::ReadOnly`], the journal's; those of damaged attributes.
    pub(super) fn drop_foreign(&self, caller: u32, node: &Node) -> Answer {
        let meta = node.metadata();
        let foreign = self.owners.foreign_ids(caller, meta.uid(), meta.gid());
        if foreign == 0 {
            return Ok(());
        }
        if meta.permissions() & foreign == 0 {
            return Ok(node.drop_privileges(Modifier::Privileged)?);
        }
        node.drop_privileges(Modifier::Other)?;
        self.notifier.tell(Notice::Attributes(self.nodes.id_of(node.ino())));
        Ok(())
    }

    /// Checks bytes of the kernel's writeback. The kernel cached them without a look at the flags,
    /// which forbid them. An append-only file may have such bytes of a handle from before the flag,
    /// or of one that an older kernel was not sent past its cache by, see
    /// [`open_flags`](Self::open_flags). Bytes that were dirty when the inode got the flag are
    /// written back while it is [`Hardening`].
    ///
    /// # Errors
    /// EPERM. The kernel forgets these bytes.
    pub(super) fn check_cached(&self, header: &InHeader, open: &Open) -> Answer {
        let flags = open.node.metadata().flags();
        // With `noopen` it is not known how a program opened the file.
        let caches = !self.no_open && open.inode.is_written_in_cache();
        let forbidden = flags.contains(InodeFlags::IMMUTABLE)
            || flags.contains(InodeFlags::APPEND) && !open.inode.has_writers() && !caches;
        if forbidden && !self.hardening.has(header.nodeid) {
            self.notifier.tell(Notice::Content { node: header.nodeid, offset: 0, len: 0 });
            return Err(Fault(Errno::PERM));
        }
        Ok(())
    }
}

/// Refuses a change that the inode's flags forbid.
///
/// # Errors
/// EPERM for an immutable file or one with a hash tree, and for an append-only file unless `change`
/// appends.
pub(super) fn check_flags(meta: &Metadata, change: Change) -> Answer {
    let forbids = match change {
        Change::Overwrite => InodeFlags::IMMUTABLE | InodeFlags::APPEND | InodeFlags::VERITY,
        Change::Append => InodeFlags::IMMUTABLE | InodeFlags::VERITY,
    };
    if meta.flags().intersects(forbids) { Err(Fault(Errno::PERM)) } else { Ok(()) }
}

/// Returns how the caller counts for a change of content: privileged, of the file's group, or
/// other.
fn modifier(caller: &Caller<'_>, meta: &Metadata, keeps: Keeps) -> Modifier {
    if meta.permissions() & (S_ISUID | S_ISGID) == 0 {
        return Modifier::Privileged;
    }
    let kill = match keeps {
        Keeps::Decided { kill } => kill,
        Keeps::Unknown => !caller.has(Capability::Fsetid),
    };
    match (kill, is_outsider(caller, meta)) {
        (false, _) => Modifier::Privileged,
        (true, false) => Modifier::Member,
        (true, true) => Modifier::Other,
    }
}

/// Returns how the caller counts for a change of owner or group. Set-user-id is cleared for every
/// caller.
pub(super) fn chown_modifier(caller: &Caller<'_>, meta: &Metadata) -> Modifier {
    match is_outsider(caller, meta) && !caller.has(Capability::Fsetid) {
        true => Modifier::Other,
        false => Modifier::Member,
    }
}

/// Returns whether set-group-id without execution is in question, and the caller is not of the
/// group.
fn is_outsider(caller: &Caller<'_>, meta: &Metadata) -> bool {
    meta.permissions() & (S_ISGID | GROUP_EXECUTES) == S_ISGID && !caller.is_of_group(meta)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panic")]

    use super::super::{Outcome, Stage};
    use super::*;
    use crate::buffers::Outbox;
    use crate::handles::{Access, OpenKind};
    use crate::options::MountOptions;
    use crate::request::{Command, Ioctl, Received, Request, Write, WriteFrom};
    use crate::wire::OpenFlags;
    use lanefs::Volume;
    use zerocopy::FromZeros;

    /// The kernel writes back what was dirty before a flag forbids it, by whatever handle. Once the
    /// program has its answer, the flag counts.
    #[test]
    fn what_was_cached_before_a_flag_is_written_back() {
        for flag in [InodeFlags::APPEND, InodeFlags::IMMUTABLE] {
            let volume = Volume::in_memory(16 << 20).unwrap();
            volume.write("/f", b"old").unwrap();
            let node = volume.node_at(volume.symlink_metadata("/f").unwrap().ino()).unwrap();
            let filesystem = Filesystem::new(volume, &MountOptions::default(), None).unwrap();
            let nodeid = filesystem.nodes.id_of(node.ino());
            filesystem.nodes.remember(node.clone());
            // The file was append-only when it was opened, and then no more.
            let kind = OpenKind { access: Access::Appends, privileged: true, past_cache: true };
            let handle = filesystem.handles.open(node.clone(), kind).unwrap();
            let header = InHeader { nodeid, ..InHeader::new_zeroed() };
            let serve = |request: Request<'static>, stage| {
                let received = Received { header, request: Ok(request) };
                filesystem.serve(&received, &mut Outbox::new(), stage)
            };
            let write_back = |bytes: &'static [u8]| {
                let (flags, from) = (OpenFlags::empty(), WriteFrom::Cache);
                serve(Request::Write(Write { handle, offset: 0, bytes, flags, from }), Stage::Fresh)
            };
            let flags = node.flags() & InodeFlags::USER_VISIBLE | flag;
            let set = |stage| {
                let ioctl = Ioctl { command: Command::SetFlags(flags), room: 0 };
                serve(Request::Ioctl(ioctl), stage)
            };
            assert_eq!(set(Stage::Fresh), Ok(Outcome::Silent), "{flag:?}");
            assert!(node.flags().contains(flag), "no later write is accepted");
            assert_eq!(write_back(b"new"), Ok(Outcome::Answered), "{flag:?}");
            assert_eq!(set(Stage::Noticed), Ok(Outcome::AfterNotice(Notice::Attributes(nodeid))));
            assert_eq!(write_back(b"bad"), Err(Fault(Errno::PERM)), "{flag:?}");
            assert_eq!(filesystem.volume.read("/f").unwrap(), b"new");
        }
    }
}
