//! The processes of this host that have a remote medium open: no lock of its server would keep a
//! second opener out.
//!
//! Invariants:
//! - Within a process, each byte of a medium has one writer alone, or readers.
//! - So it is between the processes of one host, or network namespace, on Linux: each has a socket
//!   of an abstract name, which says what it has, and is gone when its process ends.
//! - A partition has several names, and is claimed by its bytes once the table of partitions was
//!   read. The name of the URL is claimed before that: a server may take no second connection.
//!
//! Hazards:
//! - Between hosts nothing is promised here.
//! - Without /proc/net/unix an opener sees no more than the writer of the same place.
//! - Two names of one medium (a host's name and its address) are two media.

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

/// The names of sockets: `lanefs-MEDIUM-w-PLACE` of a writer, `lanefs-MEDIUM-rN-PLACE` of a reader,
/// with a number for each of several readers.
#[cfg(target_os = "linux")]
mod of_host {
    use super::{Claimed, InUse, Place};
    use std::io::ErrorKind;
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};
    use std::sync::atomic::{AtomicU32, Ordering};

    /// How many names a reader tries. Processes of several PID namespaces may have one number.
    const TRIES: u32 = 256;

    /// A claim of a process of this host, as its name tells it.
    struct Seen {
        name: String,
        place: Place,
        read_only: bool,
    }

    /// Binds a name. Looks whether another process has the same bytes, and one of the two writes.
    pub(super) fn claim(claimed: &Claimed) -> Result<Option<UnixListener>, InUse> {
        let prefix = prefix(&claimed.medium);
        let place = text_of(&claimed.place);
        let writer = format!("{prefix}w-{place}");
        let bound = match claimed.read_only {
            true => bind_reader(&prefix, &place),
            false => bind(&writer)?,
        };
        // Behind the bind: of two openers that begin at the same time, at least one sees the
        // other.
        let exact = claimed.read_only.then(|| writer.clone());
        let own = place_of(&place);
        let is_refused = |other: &Seen| {
            let both_read = claimed.read_only && other.read_only;
            !both_read && other.name != writer && own.as_ref().is_some_and(|own| own.meets(&other.place))
        };
        let others = seen(&prefix).into_iter().filter(is_refused).map(|other| other.name);
        exact.into_iter().chain(others).find_map(|name| holder(&name)).map_or(Ok(bound), |by| Err(InUse(by)))
    }

    /// Looks whether another process reads any part of a medium.
    pub(super) fn check_readers(medium: &str) -> Result<(), InUse> {
        let readers = seen(&prefix(medium)).into_iter().filter(|other| other.read_only);
        let by = readers.map(|other| other.name).find_map(|name| holder(&name));
        by.map_or(Ok(()), |by| Err(InUse(by)))
    }

    /// Returns how the names for a medium begin. A name has at most 107 bytes, and two media with
    /// one hash are improbable.
    fn prefix(medium: &str) -> String {
        let [first, second] = [1, 2].map(|seed| hash(medium, seed));
        format!("lanefs-{first:016x}{second:016x}-")
    }

    /// Returns how a name tells a place: a partition by the hash of its name.
    fn text_of(place: &Place) -> String {
        match place {
            Place::Named(part) => format!("n{:016x}", hash(part, 3)),
            Place::Bytes(bytes) => format!("{:x}-{:x}", bytes.start, bytes.end),
        }
    }

    /// Returns the place that a name tells, of a partition the hash.
    fn place_of(text: &str) -> Option<Place> {
        if let Some(part) = text.strip_prefix('n') {
            return Some(Place::Named(part.to_owned()));
        }
        let (start, end) = text.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(Place::Bytes(number(start)?..number(end)?))
    }

    /// Binds a name for a reader, which has others beside it. Returns `None` as [`bind`] does.
    fn bind_reader(prefix: &str, place: &str) -> Option<UnixListener> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = |number: u32| format!("{prefix}r{:x}.{number:x}-{place}", std::process::id());
        let mut names = (0..TRIES).map(|_| name(NEXT.fetch_add(1, Ordering::Relaxed)));
        names.find_map(|name| bind(&name).ok()).flatten()
    }

    /// Binds a name. Returns `None` on a system without such names.
    fn bind(name: &str) -> Result<Option<UnixListener>, InUse> {
        let Ok(address) = SocketAddr::from_abstract_name(name) else { return Ok(None) };
        match UnixListener::bind_addr(&address) {
            Ok(listener) => Ok(Some(listener)),
            Err(e) if e.kind() == ErrorKind::AddrInUse => Err(InUse(holder(name).flatten())),
            Err(_) => Ok(None),
        }
    }

    /// Returns the names that processes have bound for a medium.
    fn seen(prefix: &str) -> Vec<Seen> {
        let table = std::fs::read("/proc/net/unix").unwrap_or_default();
        let one = |line: &str| {
            let name = line.rsplit(' ').next()?.strip_prefix('@')?;
            let (kind, place) = name.strip_prefix(prefix)?.split_once('-')?;
            Some(Seen { name: name.to_owned(), place: place_of(place)?, read_only: kind != "w" })
        };
        String::from_utf8_lossy(&table).lines().filter_map(one).collect()
    }

    /// Returns the process that has bound a name, `None` if none has. Its number cannot be told
    /// where too many have asked.
    fn holder(name: &str) -> Option<Option<u32>> {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
        let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?;
        // The connection is never accepted: a blocking one would wait for room in the queue.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(socket) = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        else {
            return Some(None);
        };
        match rustix::net::connect(&socket, &name) {
            Ok(()) => Some(peer(&socket)),
            Err(rustix::io::Errno::CONNREFUSED) => None,
            // Too many have asked, or this process may not.
            Err(_) => Some(None),
        }
    }

    /// Returns the number of the process that listens at the other end; `None` for one of another
    /// PID namespace, whose number is 0, which `rustix` takes for impossible.
    #[allow(unsafe_code)]
    fn peer(socket: &OwnedFd) -> Option<u32> {
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of_val(&peer) as libc::socklen_t;
        let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        // SAFETY: the call writes at most `len` bytes into `peer`, numbers of any value.
        let told = unsafe {
            libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut peer).cast(), &raw mut len)
        };
        u32::try_from(peer.pid).ok().filter(|pid| told == 0 && *pid > 0)
    }

    /// FNV-1a.
    fn hash(text: &str, seed: u64) -> u64 {
        let start = 0xcbf2_9ce4_8422_2325 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        text.bytes().fold(start, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
