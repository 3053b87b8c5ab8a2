//! The names of sockets: `lanefs-MEDIUM-w-PLACE` of a writer, `lanefs-MEDIUM-rN-PLACE` of a reader,
//! with a number for each of several readers, `lanefs-MEDIUM-wN-PLACE` of a writer whose name
//! another user has bound.
//!
//! A name counts if its process is root's, or of the user of this one.

use super::socket_owner::owner_of;
use super::{Claimed, InUse, Place};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

/// The flag of a socket that listens (__SO_ACCEPTCON), in /proc/net/unix.
const LISTENS: u32 = 1 << 16;

/// A claim of a process of this host, as its name tells it.
struct Seen {
    name: String,
    /// Of the socket; 0 if it cannot be told.
    inode: u32,
    place: Place,
    read_only: bool,
}

/// The process that listens by a name.
enum Holder {
    /// There is none, or one that does not count.
    Free,
    /// Its number, if that can be told. Without it, it may be one that does not count.
    Held(Option<u32>),
    /// This process may not ask.
    Unknown,
}

/// Binds a name. Looks whether another process has the same bytes, and one of the two writes.
pub(super) fn claim(claimed: &Claimed) -> Result<Option<UnixListener>, InUse> {
    let prefix = prefix(&claimed.medium);
    let place = text_of(&claimed.place);
    let writer = format!("{prefix}w-{place}");
    let numbered = |kind| bind_numbered(&format!("{prefix}{kind}"), &place);
    let (name, bound) = match claimed.read_only {
        true => numbered('r'),
        false => match bind(&writer) {
            Err(e) if e.kind() == ErrorKind::AddrInUse => numbered('w'),
            bound => (writer.clone(), bound.ok()),
        },
    };
    // Behind the bind: of two openers that begin at the same time, at least one sees the other.
    let seen = seen(&prefix);
    let own = place_of(&place);
    let excludes = |other: &&Seen| {
        let both_read = claimed.read_only && other.read_only;
        !both_read && other.name != name && own.as_ref().is_some_and(|own| own.meets(&other.place))
    };
    if let Some(in_use) = seen.iter().filter(excludes).find_map(refusal) {
        return Err(in_use);
    }
    let is_seen = |name: &str| seen.iter().any(|other| other.name == name);
    if name != writer
        && !is_seen(&writer)
        && let Holder::Held(by) = holder(&writer)
    {
        return Err(InUse(by));
    }
    // Others find a name with a number in the table alone.
    let is_hidden = !claimed.read_only && name != writer && !is_seen(&name);
    if is_hidden { Err(InUse(None)) } else { Ok(bound) }
}

/// Looks whether another process reads any part of a medium.
pub(super) fn check_readers(medium: &str) -> Result<(), InUse> {
    let seen = seen(&prefix(medium));
    let in_use = seen.iter().filter(|other| other.read_only).find_map(refusal);
    in_use.map_or(Ok(()), Err)
}

/// Returns how the names for a medium begin. A name has at most 107 bytes, and two media with one
/// hash are improbable.
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

/// Binds a name with a number that nobody guesses: any user may bind a name. Returns the name, and
/// no socket as [`bind`] fails.
fn bind_numbered(start: &str, place: &str) -> (String, Option<UnixListener>) {
    let name = format!("{start}{:x}-{place}", RandomState::new().hash_one(0));
    let bound = bind(&name).ok();
    (name, bound)
}

/// Binds a name.
///
/// # Errors
/// A name that is bound; those of a system without such names, or of a process that may have none.
fn bind(name: &str) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

/// Returns the names that processes have bound for a medium.
fn seen(prefix: &str) -> Vec<Seen> {
    let table = std::fs::read("/proc/net/unix").unwrap_or_default();
    String::from_utf8_lossy(&table).lines().filter_map(|line| parse(line, prefix)).collect()
}

/// Returns what a line of /proc/net/unix tells. Connections that were not accepted have the name of
/// the socket too, and do not listen.
fn parse(line: &str, prefix: &str) -> Option<Seen> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, _, _, flags, _, _, inode, name] = fields[..] else { return None };
    let listens = u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & LISTENS != 0);
    let name = name.strip_prefix('@').filter(|_| listens)?;
    let (kind, place) = name.strip_prefix(prefix)?.split_once('-')?;
    Some(Seen {
        name: name.to_owned(),
        inode: inode.parse().unwrap_or_default(),
        place: place_of(place)?,
        read_only: kind.starts_with('r'),
    })
}

/// Returns how a name that is seen refuses a claim that it excludes, `None` if it does not count. A
/// user may fill the queue of its socket: the kernel then tells whose it is.
fn refusal(other: &Seen) -> Option<InUse> {
    match holder(&other.name) {
        Holder::Free => None,
        Holder::Held(by @ Some(_)) => Some(InUse(by)),
        Holder::Held(None) | Holder::Unknown => {
            owner_of(other.inode).is_none_or(counts).then_some(InUse(None))
        }
    }
}

/// Returns whether the processes of a user count.
fn counts(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}

/// Returns whether a process listens on the socket of this name, and which one.
fn holder(name: &str) -> Holder {
    use rustix::io::Errno;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let Ok(name) = SocketAddrUnix::new_abstract_name(name.as_bytes()) else { return Holder::Free };
    // The connection is never accepted: a blocking one would wait for room in the queue.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let Ok(socket) = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None) else {
        return Holder::Unknown;
    };
    match rustix::net::connect(&socket, &name) {
        Ok(()) => match peer(&socket) {
            Some(peer) if !counts(peer.uid) => Holder::Free,
            peer => Holder::Held(peer.and_then(|peer| u32::try_from(peer.pid).ok()).filter(|pid| *pid > 0)),
        },
        Err(Errno::CONNREFUSED) => Holder::Free,
        // Too many have asked.
        Err(Errno::AGAIN) => Holder::Held(None),
        Err(_) => Holder::Unknown,
    }
}

/// Returns the process and the user that listen at the other end. A process of another PID
/// namespace has the number 0, which `rustix` takes for impossible.
#[allow(unsafe_code)]
fn peer(socket: &OwnedFd) -> Option<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of_val(&peer) as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: the call writes at most `len` bytes into `peer`, numbers of any value.
    let told =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut peer).cast(), &raw mut len) };
    (told == 0).then_some(peer)
}

/// FNV-1a.
fn hash(text: &str, seed: u64) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    text.bytes().fold(start, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
