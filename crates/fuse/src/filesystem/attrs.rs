//! Attributes.
//!
//! The kernel caches writes of files, and then size and times are its own: it hands them down when it writes out. What it
//! does not set, the engine stamps.

use super::guard::{Change, Keeps, check_flags, chown_modifier};
use super::{Filesystem, Outcome};
use crate::attr::{attr_out, statx_out};
use crate::caller::Caller;
use crate::fault::Answer;
use crate::request::{Outbox, Request};
use crate::wire::{self, GetattrIn, SetattrIn, fattr};
use lanefs::{Modifier, SetAttr, SetTime, Timestamp};

impl Filesystem {
    pub(super) fn getattr(&self, r: &mut Request<'_>, out: &mut Outbox) -> Answer<Outcome> {
        let args: GetattrIn = r.take()?;
        let node = self.nodes.get(r.header.nodeid)?;
        let handle = (args.getattr_flags & wire::GETATTR_FH != 0).then_some(args.fh);
        self.check_space(node.ino(), handle)?;
        out.put(&attr_out(&node.metadata()))?;
        Ok(self.after_attributes(r.header.nodeid, node.ino()))
    }

    pub(super) fn statx(&self, r: &mut Request<'_>, out: &mut Outbox) -> Answer {
        let node = self.nodes.get(r.header.nodeid)?;
        out.put(&statx_out(&node.metadata()))
    }

    pub(super) fn setattr(&self, r: &mut Request<'_>, out: &mut Outbox) -> Answer {
        let args: SetattrIn = r.take()?;
        let node = self.nodes.get(r.header.nodeid)?;
        let has = |bit| args.valid & bit != 0;
        let (caller, meta) = (Caller::of(&r.header), node.metadata());
        if has(fattr::SIZE) {
            let keeps = Keeps::Told { kill: has(fattr::KILL_SUIDGID) };
            self.before_change(r, &node, Change::Overwrite, keeps)?;
            node.set_len(args.size)?;
        }
        if has(fattr::MTIME) && !has(fattr::ATIME) && !has(fattr::FH) {
            // Without a handle it is a program's wish, and not what the kernel kept while the file
            // was written.
            check_flags(&meta, Change::Overwrite)?;
        }
        let time = |bit, now, sec, nsec| {
            let at = if has(now) { SetTime::Now } else { SetTime::At(Timestamp { sec, nsec }) };
            has(bit).then_some(at)
        };
        let set = SetAttr {
            permissions: has(fattr::MODE).then_some(args.mode as u16 & 0o7777),
            uid: has(fattr::UID).then_some(args.uid),
            gid: has(fattr::GID).then_some(args.gid),
            atime: time(fattr::ATIME, fattr::ATIME_NOW, args.atime, args.atimensec),
            mtime: time(fattr::MTIME, fattr::MTIME_NOW, args.mtime, args.mtimensec),
            ctime: time(fattr::CTIME, 0, args.ctime, args.ctimensec),
            by: if has(fattr::UID | fattr::GID) {
                chown_modifier(&caller, &meta)
            } else {
                Modifier::default()
            },
        };
        if set != SetAttr::default() {
            node.set_attr(&set)?;
        }
        out.put(&attr_out(&node.metadata()))
    }
}
