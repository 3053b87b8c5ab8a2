//! Extended attributes, ACLs among them.

use super::Filesystem;
use crate::buffers::Outbox;
use crate::caller::{Caller, Capability};
use crate::fault::{Answer, Fault};
use crate::owners::Owners;
use crate::request::{NewXattr, Wanted};
use crate::wire::{GetxattrOut, InHeader};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

impl Filesystem {
    pub(super) fn getxattr(&self, id: u64, name: &OsStr, wanted: Wanted, out: &mut Outbox) -> Answer {
        tell(wanted, &self.node(id)?.xattr(name)?, out)
    }

    pub(super) fn listxattr(&self, header: &InHeader, wanted: Wanted, out: &mut Outbox) -> Answer {
        let names = self.node(header.nodeid)?.xattr_names()?;
        let mut list = Vec::new();
        let is_trusted = |name: &&OsString| name.as_bytes().starts_with(b"trusted.");
        // The kernel checks the real capability before it asks for a value, with fakeroot too.
        let caller = Caller::of(header, Owners::default(), self.broker.as_deref());
        let shows_trusted = names.iter().any(|name| is_trusted(&name)) && caller.has(Capability::SysAdmin);
        for name in names.iter().filter(|name| shows_trusted || !is_trusted(name)) {
            list.extend_from_slice(name.as_bytes());
            list.push(0);
        }
        tell(wanted, &list, out)
    }

    pub(super) fn setxattr(&self, id: u64, new: &NewXattr<'_>) -> Answer {
        let node = self.node(id)?;
        node.set_xattr(new.name, new.value, new.how)?;
        if new.kills_group_id {
            node.drop_set_group_id()?;
        }
        Ok(())
    }
}

/// Answers with the value or its length.
///
/// # Errors
/// ERANGE for a value that the caller has no room for.
fn tell(wanted: Wanted, value: &[u8], out: &mut Outbox) -> Answer {
    match wanted {
        Wanted::Length => out.put(&GetxattrOut { size: value.len() as u32, padding: 0 }),
        Wanted::Bytes(most) if value.len() > most => Err(Fault(Errno::RANGE)),
        Wanted::Bytes(_) => out.put_bytes(value),
    }
}
