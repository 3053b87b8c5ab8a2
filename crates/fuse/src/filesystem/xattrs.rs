//! Extended attributes, ACLs among them.

use super::Filesystem;
use crate::caller::Capability;
use crate::fault::{Answer, Fault};
use crate::request::{Outbox, Request};
use crate::wire::{self, GetxattrIn, GetxattrOut, SetxattrIn};
use lanefs::SetXattr;
use rustix::io::Errno;

impl Filesystem {
    pub(super) fn getxattr(&self, r: &mut Request<'_>, out: &mut Outbox) -> Answer {
        let args: GetxattrIn = r.take()?;
        let name = r.name()?;
        let value = self.node(r.header.nodeid)?.xattr(name)?;
        tell(args.size, &value, out)
    }

    pub(super) fn listxattr(&self, r: &mut Request<'_>, out: &mut Outbox) -> Answer {
        let args: GetxattrIn = r.take()?;
        let names = self.node(r.header.nodeid)?.xattr_names()?;
        let mut list = Vec::new();
        let is_trusted = |name: &&Vec<u8>| name.starts_with(b"trusted.");
        let shows_trusted =
            names.iter().any(|name| is_trusted(&name)) && self.caller(&r.header).has(Capability::SysAdmin);
        for name in names.iter().filter(|name| shows_trusted || !is_trusted(name)) {
            list.extend_from_slice(name);
            list.push(0);
        }
        tell(args.size, &list, out)
    }

    pub(super) fn setxattr(&self, r: &mut Request<'_>) -> Answer {
        const CREATE: u32 = 0x1;
        const REPLACE: u32 = 0x2;
        let args: SetxattrIn = r.take()?;
        let name = r.name()?;
        let value = r.bytes(args.size as usize)?;
        let how = match args.flags & (CREATE | REPLACE) {
            0 => SetXattr::Any,
            CREATE => SetXattr::Create,
            REPLACE => SetXattr::Replace,
            _ => return Err(Fault(Errno::INVAL)),
        };
        let node = self.node(r.header.nodeid)?;
        node.set_xattr(name, value, how)?;
        if args.setxattr_flags & wire::SETXATTR_ACL_KILL_SGID != 0 {
            node.drop_set_group_id()?;
        }
        Ok(())
    }

    pub(super) fn removexattr(&self, r: &mut Request<'_>) -> Answer {
        let name = r.name()?;
        Ok(self.node(r.header.nodeid)?.remove_xattr(name)?)
    }
}

/// Answers with the value, or with its length if the caller asked for that (`size` 0).
///
/// # Errors
/// ERANGE for a value longer than `size`.
fn tell(size: u32, value: &[u8], out: &mut Outbox) -> Answer {
    match size as usize {
        0 => out.put(&GetxattrOut { size: value.len() as u32, padding: 0 }),
        size if value.len() > size => Err(Fault(Errno::RANGE)),
        _ => out.put_bytes(value),
    }
}
