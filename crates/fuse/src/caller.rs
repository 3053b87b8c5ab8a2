//! The program that sent a request: what it may do beyond what the kernel has checked.
//!
//! The kernel tells user, group and thread of a request. Other groups and capabilities are read
//! from `/proc/THREAD/status`, and only where a decision needs them. The thread waits for the
//! answer, so it is still there and its number means no other; an asynchronous request may outlive
//! it, and then nothing is allowed that needs a capability.

use crate::wire::InHeader;
use rustix::fs::stat;

/// A capability of capabilities(7), by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Capability {
    /// CAP_FOWNER
    Fowner = 3,
    /// CAP_FSETID
    Fsetid = 4,
    /// CAP_LINUX_IMMUTABLE
    LinuxImmutable = 9,
    /// CAP_SYS_ADMIN
    SysAdmin = 21,
}

/// See the head of the file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller {
    uid: u32,
    gid: u32,
    thread: u32,
}

impl Caller {
    pub(crate) fn of(header: &InHeader) -> Self {
        Self { uid: header.uid, gid: header.gid, thread: header.pid }
    }

    /// Returns whether it has `capability` in the user namespace that this mount belongs to. A
    /// thread of another PID namespace, which the kernel gives no number here, has it as root.
    pub(crate) fn has(&self, capability: Capability) -> bool {
        if self.thread == 0 {
            return self.uid == 0;
        }
        let namespace = |of: &str| stat(format!("/proc/{of}/ns/user")).map(|s| (s.st_dev, s.st_ino)).ok();
        let has = || Status::of(self)?.capabilities.checked_shr(capability as u32);
        has().is_some_and(|bits| bits & 1 != 0)
            && namespace(&self.thread.to_string()).is_some_and(|other| namespace("self") == Some(other))
    }

    /// Returns whether it owns what belongs to `uid`, or may act as if it did.
    pub(crate) fn owns(&self, uid: u32) -> bool {
        self.uid == uid || self.has(Capability::Fowner)
    }

    /// Returns whether `gid` is its group or one of its other groups.
    pub(crate) fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || Status::of(self).is_some_and(|status| status.groups.contains(&gid))
    }
}

/// What `/proc/THREAD/status` tells.
#[derive(Debug, PartialEq, Eq)]
struct Status {
    groups: Vec<u32>,
    /// Those in force, a bit for each.
    capabilities: u64,
}

impl Status {
    /// `None` if the thread is gone, or its number means one of another user.
    fn of(caller: &Caller) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{}/status", caller.thread)).ok()?, caller.uid)
    }

    fn parse(text: &str, uid: u32) -> Option<Self> {
        let field = |name| text.lines().find_map(|line: &str| line.strip_prefix(name));
        // Real, effective, saved, and that of file systems.
        let user: u32 = field("Uid:")?.split_whitespace().nth(3)?.parse().ok()?;
        let groups = field("Groups:")?.split_whitespace().filter_map(|gid| gid.parse().ok()).collect();
        let capabilities = u64::from_str_radix(field("CapEff:")?.trim(), 16).ok()?;
        (user == uid).then_some(Self { groups, capabilities })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Name:\tGroups: 7\nUid:\t1\t2\t3\t4\nGid:\t5\t5\t5\t5\nGroups:\t10 2000 \nCapEff:\t0000000000000018\n";

    #[test]
    fn status_is_parsed_and_must_be_of_the_user() {
        let status = Status { groups: vec![10, 2000], capabilities: 0x18 };
        assert_eq!(Status::parse(TEXT, 4), Some(status));
        assert_eq!(Status::parse(TEXT, 1), None);
        assert_eq!(Status::parse("Uid:\t0\t0\t0\t0\n", 0), None);
    }

    #[test]
    fn nothing_is_allowed_to_a_thread_that_is_gone() {
        // No thread has the number of the limit or more.
        let gone = Caller { uid: 0, gid: 0, thread: u32::MAX >> 1 };
        assert!(!gone.has(Capability::SysAdmin) && !gone.owns(1) && gone.owns(0) && gone.is_in_group(0));
    }
}
