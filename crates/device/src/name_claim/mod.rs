//! The processes of this host that have a remote medium open: no lock of its server would keep a
//! second opener out.
//!
//! Invariants:
//! - Within a process, each byte of a medium has one writer alone, or readers.
//! - So it is between the processes of root, and of one user, of one host, or network namespace, on
//!   Linux: each has a socket of an abstract name, which says what it has, and is gone when its
//!   process ends. Root keeps the users out too.
//! - A partition has several names, and is claimed by its bytes once the table of partitions was
//!   read. The name of the URL is claimed before that: a server may take no second connection.
//!
//! Hazards:
//! - Between hosts nothing is promised here. Nor is it between two users, and no user keeps root
//!   out: any user may bind any name, of a volume too that it cannot open.
//! - In a user namespace, processes of users that it does not have do not count, root's among them.
//! - Without /proc/net/unix an opener sees no more than the writer of the same place. A writer
//!   whose name another user has bound is then refused.
//! - A process that may make no socket sees the names in /proc/net/unix, and is not seen.
//! - Two names of one medium (a host's name and its address) are two media.

#[cfg(target_os = "linux")]
mod of_host;
#[cfg(target_os = "linux")]
mod socket_owner;

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What this process has claimed.
static OPEN: Mutex<Vec<Claimed>> = Mutex::new(Vec::new());

fn open() -> MutexGuard<'static, Vec<Claimed>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The refusal of a claim: the process that has the place, if its number can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InUse(pub(crate) Option<u32>);

impl InUse {
    fn here() -> Self {
        Self(Some(std::process::id()))
    }
}

/// The part of a medium that a volume is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// A partition, by one of its names.
    Named(String),
    /// Bytes.
    Bytes(Range<u64>),
}

impl Place {
    /// All bytes of a medium.
    pub(crate) const WHOLE: Self = Self::Bytes(0..u64::MAX);

    fn meets(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Named(own), Self::Named(other)) => own == other,
            (Self::Bytes(own), Self::Bytes(other)) => own.start < other.end && other.start < own.end,
            _ => false,
        }
    }
}

/// A claim, as it is compared with others.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Claimed {
    /// What tells the medium from all others.
    medium: String,
    place: Place,
    read_only: bool,
}

impl Claimed {
    fn excludes(&self, other: &Self) -> bool {
        let both_read = self.read_only && other.read_only;
        self.medium == other.medium && self.place.meets(&other.place) && !both_read
    }
}

/// The right to use a place of a medium, until it is dropped.
#[derive(Debug)]
pub(crate) struct NameClaim {
    claimed: Claimed,
    #[cfg(target_os = "linux")]
    of_host: Option<std::os::unix::net::UnixListener>,
}

impl NameClaim {
    /// Claims a place of a medium, for a writer alone or for readers.
    ///
    /// # Errors
    /// [`InUse`].
    pub(crate) fn new(medium: String, place: Place, read_only: bool) -> Result<Self, InUse> {
        let claimed = Claimed { medium, place, read_only };
        claim_here(&claimed)?;
        #[cfg(target_os = "linux")]
        {
            let mut claim = Self { claimed, of_host: None };
            claim.of_host = of_host::claim(&claim.claimed)?;
            Ok(claim)
        }
        #[cfg(not(target_os = "linux"))]
        Ok(Self { claimed })
    }

    /// Checks that no reader has claimed any part of a medium: for a writer that another lock keeps
    /// apart from other writers.
    ///
    /// # Errors
    /// [`InUse`].
    #[cfg_attr(not(all(feature = "rbd", unix)), allow(dead_code, reason = "an RBD image has such a lock"))]
    pub(crate) fn check_readers(medium: &str) -> Result<(), InUse> {
        if open().iter().any(|other| other.medium == medium && other.read_only) {
            return Err(InUse::here());
        }
        #[cfg(target_os = "linux")]
        of_host::check_readers(medium)?;
        Ok(())
    }
}

fn claim_here(claimed: &Claimed) -> Result<(), InUse> {
    let mut open = open();
    if open.iter().any(|other| other.excludes(claimed)) {
        return Err(InUse::here());
    }
    open.push(claimed.clone());
    Ok(())
}

impl Drop for NameClaim {
    fn drop(&mut self) {
        // First: another thread may claim the place as soon as it is free in this process.
        #[cfg(target_os = "linux")]
        drop(self.of_host.take());
        let mut open = open();
        if let Some(at) = open.iter().position(|other| *other == self.claimed) {
            open.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_os = "linux")]
    use std::os::unix::net::{UnixListener, UnixStream};

    fn claim(name: &str, place: Place, read_only: bool) -> Result<NameClaim, InUse> {
        NameClaim::new(format!("claims.test {name}"), place, read_only)
    }

    fn bytes(start: u64, end: u64) -> Place {
        Place::Bytes(start..end)
    }

    #[test]
    fn one_writer_or_readers() {
        let first = claim("a", Place::WHOLE, true).unwrap();
        let second = claim("a", Place::WHOLE, true).unwrap();
        assert_eq!(claim("a", Place::WHOLE, false).unwrap_err(), InUse::here());
        let _other = claim("b", Place::WHOLE, false).unwrap();
        drop(first);
        assert!(claim("a", Place::WHOLE, false).is_err());
        drop(second);
        let writer = claim("a", Place::WHOLE, false).unwrap();
        assert!(claim("a", Place::WHOLE, true).is_err() && claim("a", Place::WHOLE, false).is_err());
        drop(writer);
        claim("a", Place::WHOLE, true).unwrap();
    }

    #[test]
    fn bytes_are_claimed() {
        let _writer = claim("parts", bytes(1024, 3072), false).unwrap();
        for (place, is_free) in [
            (bytes(0, 1024), true),
            (bytes(3072, 4096), true),
            (bytes(0, 1025), false),
            (bytes(3071, u64::MAX), false),
            (Place::WHOLE, false),
            (bytes(2000, 2001), false),
        ] {
            for read_only in [true, false] {
                assert_eq!(claim("parts", place.clone(), read_only).is_ok(), is_free, "{place:?}");
            }
        }
    }

    #[test]
    fn readers_keep_a_writer_out_that_has_another_lock() {
        let check = || NameClaim::check_readers("claims.test e");
        let writer = claim("e", Place::WHOLE, false).unwrap();
        check().unwrap();
        drop(writer);
        let readers = [1, 2].map(|start| claim("e", bytes(start, 3), true).unwrap());
        assert_eq!(check().unwrap_err(), InUse::here());
        drop(readers);
        check().unwrap();
    }

    /// What another process would see.
    #[cfg(target_os = "linux")]
    #[test]
    fn an_opener_is_seen_by_other_processes() {
        let claim = |medium: &str, place: &Place, read_only| {
            of_host::claim(&Claimed { medium: medium.into(), place: place.clone(), read_only })
        };
        let named = || Place::Named("root".into());
        let in_use = InUse::here();
        for is_reader in [true, false] {
            let open = |place| claim("claims.test c", &place, is_reader).unwrap().unwrap();
            let _openers = [bytes(10, 20), named()].map(open);
            for place in [bytes(10, 20), bytes(0, 11), bytes(19, 30), Place::WHOLE, named()] {
                let seen = claim("claims.test c", &place, false).unwrap_err();
                assert_eq!(seen, in_use, "{place:?}");
                let read = claim("claims.test c", &place, true);
                assert_eq!(read.err(), (!is_reader).then_some(in_use), "{place:?}");
            }
            for (medium, place) in [("claims.test c", bytes(20, 30)), ("claims.test d", bytes(10, 20))] {
                for read_only in [true, false] {
                    assert!(claim(medium, &place, read_only).unwrap().is_some());
                }
            }
            assert_eq!(of_host::check_readers("claims.test c").is_err(), is_reader);
        }
    }

    #[cfg(target_os = "linux")]
    fn claim_on_host(medium: &str, place: Place, read_only: bool) -> Result<Option<UnixListener>, InUse> {
        of_host::claim(&Claimed { medium: format!("claims.test {medium}"), place, read_only })
    }

    /// As under `RestrictAddressFamilies=` of systemd.
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    #[test]
    fn a_process_that_may_make_no_socket_opens_what_is_not_seen_in_use() {
        let _writer = claim_on_host("f", bytes(10, 20), false).unwrap().unwrap();
        let confined = std::thread::spawn(|| {
            refuse_unix_sockets();
            for read_only in [true, false] {
                assert!(claim_on_host("f", bytes(20, 30), read_only).unwrap().is_none());
                assert_eq!(claim_on_host("f", Place::WHOLE, read_only).unwrap_err(), InUse(None));
            }
        });
        confined.join().unwrap();
    }

    /// Confines the calling thread alone.
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    fn refuse_unix_sockets() {
        use seccompiler::{
            BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
            SeccompRule,
        };
        let (family, equal) = (libc::AF_UNIX as u64, SeccompCmpOp::Eq);
        let unix = SeccompCondition::new(0, SeccompCmpArgLen::Dword, equal, family).unwrap();
        let rules = [(libc::SYS_socket, vec![SeccompRule::new(vec![unix]).unwrap()])].into();
        let refused = SeccompAction::Errno(libc::EAFNOSUPPORT as u32);
        let arch = std::env::consts::ARCH.try_into().unwrap();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch).unwrap();
        seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
    }

    /// Runs `f` in a thread of user 65534. All other threads keep their user.
    #[cfg(target_os = "linux")]
    fn as_nobody<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
        let run = || {
            let nobody = rustix::thread::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            f()
        };
        std::thread::spawn(run).join().unwrap()
    }

    /// Any user may bind any name, and let nobody connect to it.
    #[cfg(target_os = "linux")]
    #[test]
    fn names_that_a_user_binds_keep_root_from_nothing() {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "becoming another user needs root");
            eprintln!("not root: no other user was asked");
            return;
        }
        for (read_only, is_full) in [(false, false), (false, true), (true, false), (true, true)] {
            let _theirs = as_nobody(move || {
                let bound = claim_on_host("g", Place::WHOLE, read_only).unwrap().unwrap();
                if is_full {
                    rustix::net::listen(&bound, 0).unwrap();
                    UnixStream::connect_addr(&bound.local_addr().unwrap()).unwrap();
                }
                bound
            });
            NameClaim::check_readers("claims.test g").unwrap();
            let reader = claim_on_host("g", Place::WHOLE, true).unwrap().unwrap();
            assert_eq!(claim_on_host("g", Place::WHOLE, false).unwrap_err(), InUse::here());
            drop(reader);
            // Of root's processes one alone writes, by whatever name.
            let _writer = claim_on_host("g", Place::WHOLE, false).unwrap().unwrap();
            for read_only in [true, false] {
                assert_eq!(claim_on_host("g", bytes(10, 20), read_only).unwrap_err(), InUse::here());
            }
        }
        let _roots = claim_on_host("h", Place::WHOLE, false).unwrap().unwrap();
        assert_eq!(as_nobody(|| claim_on_host("h", Place::WHOLE, true)).unwrap_err(), InUse::here());
    }
}
