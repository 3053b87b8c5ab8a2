//! The program that sent a request: what it may do beyond what the kernel has checked.
//!
//! Hazard: a thread number of 0, or a `/proc` of another PID namespace, says nothing about the
//! program. Taken for a thread of this namespace, it would give the rights of another program.

use crate::broker::Broker;
use crate::owners::Owners;
use crate::wire::InHeader;
use lanefs::Metadata;
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
    /// CAP_SYS_RESOURCE
    SysResource = 24,
}

impl Capability {
    const ALL: [Self; 5] =
        [Self::Fowner, Self::Fsetid, Self::LinuxImmutable, Self::SysAdmin, Self::SysResource];

    /// Returns the capability of that number.
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|capability| *capability as u32 == number)
    }

    /// Returns whether the kernel has checked this capability before it sends the request, so that
    /// the check here is a second one.
    fn is_asked_twice(self) -> bool {
        matches!(self, Self::Fowner | Self::LinuxImmutable)
    }
}

/// The sender of a request.
///
/// The kernel tells user, group and thread of a request. Other groups and capabilities are read
/// from `/proc/THREAD/status`, and only where a decision needs them. The thread waits for the
/// answer, so it is still there and its number means no other; an asynchronous request may outlive
/// it, and then nothing is allowed that needs a capability. A request of root from a thread of
/// another user is one of the kernel with rights that it lends (overlayfs): root has those
/// capabilities only that the kernel has checked by itself.
///
/// A confined server may not look into the user namespace of a thread. It asks its broker, which
/// decides by the same code. Once the broker has ended, root has those capabilities only that the
/// kernel has checked.
///
/// Hazard: a number of 0 says nothing. It is that of every thread outside of the PID namespace that
/// this server has mounted from. Nor does a number say anything where `/proc` is that of another
/// PID namespace: it would name another thread. User 0 of such a thread may be root of the machine
/// or of a container with few capabilities, and has those only that the kernel has checked by
/// itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller<'h> {
    uid: u32,
    gid: u32,
    thread: u32,
    owners: Owners,
    /// Asked in place of `/proc`, if this process is confined.
    broker: Option<&'h Broker>,
}

impl<'h> Caller<'h> {
    pub(crate) fn of(header: &InHeader, owners: Owners, broker: Option<&'h Broker>) -> Self {
        Self { uid: header.uid, gid: header.gid, thread: header.pid, owners, broker }
    }

    /// Returns user, group, thread, and `number` besides.
    fn fields(&self, number: u32) -> [u32; 4] {
        [self.uid, self.gid, self.thread, number]
    }

    /// Returns the caller whose [`fields`](Self::fields) these are, for a process that is not
    /// confined.
    pub(crate) fn from_fields([uid, gid, thread, _]: [u32; 4]) -> Self {
        Self { uid, gid, thread, owners: Owners::default(), broker: None }
    }

    /// Returns whether it has `capability` in the user namespace of this server. See [`Caller`] for
    /// a thread that is not known, and for a broker that has ended. With `fakeroot` each caller has
    /// all of them.
    pub(crate) fn has(&self, capability: Capability) -> bool {
        if self.owners.fakeroot {
            return true;
        }
        let checked_by_kernel = self.uid == 0 && capability.is_asked_twice();
        if let Some(broker) = self.broker {
            return broker.has(self.fields(capability as u32)).unwrap_or(checked_by_kernel);
        }
        if !self.is_known() || self.is_lent() {
            return checked_by_kernel;
        }
        let namespace = |of: &str| stat(format!("/proc/{of}/ns/user")).map(|s| (s.st_dev, s.st_ino)).ok();
        let has = || Status::of(self)?.capabilities.checked_shr(capability as u32);
        has().is_some_and(|bits| bits & 1 != 0)
            && namespace(&self.thread.to_string()).is_some_and(|other| namespace("self") == Some(other))
    }

    /// Returns whether its thread can be looked up in `/proc`.
    fn is_known(&self) -> bool {
        self.thread != 0
            && std::fs::read_to_string("/proc/self/status").is_ok_and(|own| is_of_own_namespace(&own))
    }

    /// Returns whether the kernel sends a request of root from a thread of another user, as
    /// overlayfs does with the rights of its own mount.
    fn is_lent(&self) -> bool {
        let status = || std::fs::read_to_string(format!("/proc/{}/status", self.thread)).ok();
        self.uid == 0 && status().and_then(|text| Status::user(&text)).is_some_and(|user| user != 0)
    }

    /// Returns whether it may change the size of the volume: with CAP_SYS_RESOURCE, as of the
    /// kernel's ext4; with CAP_SYS_ADMIN, by which it may unmount the volume too; or as the user
    /// `server` who has mounted it, if that is not root.
    pub(crate) fn may_resize(&self, server: u32) -> bool {
        server != 0 && self.uid == server
            || self.has(Capability::SysResource)
            || self.has(Capability::SysAdmin)
    }

    /// Returns whether it owns an inode, or may act as if it did.
    pub(crate) fn owns(&self, meta: &Metadata) -> bool {
        self.is_user(self.owners.shown(meta).0)
    }

    fn is_user(&self, uid: u32) -> bool {
        self.uid == uid || self.has(Capability::Fowner)
    }

    /// Returns whether the group of an inode is one of its groups.
    pub(crate) fn is_of_group(&self, meta: &Metadata) -> bool {
        self.is_in_group(self.owners.shown(meta).1)
    }

    /// Returns whether `gid` is its group or one of its other groups.
    pub(crate) fn is_in_group(&self, gid: u32) -> bool {
        if self.owners.fakeroot {
            return true;
        }
        if let Some(broker) = self.broker.filter(|_| self.gid != gid) {
            return broker.is_in_group(self.fields(gid));
        }
        self.gid == gid || Status::of(self).is_some_and(|status| status.groups.contains(&gid))
    }
}

/// The facts that `/proc/THREAD/status` tells of a thread.
#[derive(Debug, PartialEq, Eq)]
struct Status {
    groups: Vec<u32>,
    /// The capabilities in force, a bit for each.
    capabilities: u64,
}

impl Status {
    /// Looks the calling thread up. `None` if the thread is not known or gone, or its number means
    /// one of another user.
    fn of(caller: &Caller<'_>) -> Option<Self> {
        if !caller.is_known() {
            return None;
        }
        Self::parse(&std::fs::read_to_string(format!("/proc/{}/status", caller.thread)).ok()?, caller.uid)
    }

    fn parse(text: &str, uid: u32) -> Option<Self> {
        let field = |name| text.lines().find_map(|line: &str| line.strip_prefix(name));
        let groups = field("Groups:")?.split_whitespace().filter_map(|gid| gid.parse().ok()).collect();
        let capabilities = u64::from_str_radix(field("CapEff:")?.trim(), 16).ok()?;
        (Self::user(text)? == uid).then_some(Self { groups, capabilities })
    }

    /// Returns the user of a thread: the last of the real, the effective, the saved one, and that
    /// of file systems.
    fn user(text: &str) -> Option<u32> {
        text.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().nth(3)?.parse().ok()
    }
}

/// Returns whether `/proc` numbers threads as the kernel does in requests, by the status of this
/// process: it has one number for each PID namespace from that of `/proc` down to its own.
fn is_of_own_namespace(status: &str) -> bool {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| numbers.split_whitespace().count() == 1)
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
        let gone = Caller::from_fields([0, 0, u32::MAX >> 1, 0]);
        assert!(
            !gone.has(Capability::SysAdmin) && !gone.is_user(1) && gone.is_user(0) && gone.is_in_group(0)
        );
    }

    #[test]
    fn a_thread_of_another_pid_namespace_has_what_the_kernel_checked() {
        let unknown = |uid| Caller::from_fields([uid, uid, 0, 0]);
        for capability in [Capability::Fsetid, Capability::SysAdmin, Capability::SysResource] {
            assert!(!unknown(0).has(capability), "{capability:?}");
        }
        assert!(unknown(0).has(Capability::Fowner) && unknown(0).has(Capability::LinuxImmutable));
        assert!(!unknown(7).has(Capability::Fowner) && unknown(7).is_user(7) && !unknown(7).is_in_group(0));
    }

    #[test]
    fn a_proc_of_another_pid_namespace_is_recognized() {
        assert!(is_of_own_namespace("Pid:\t7\nNSpid:\t7\n"));
        assert!(!is_of_own_namespace("Pid:\t7\nNSpid:\t7\t1\n") && !is_of_own_namespace("Pid:\t7\n"));
    }
}
