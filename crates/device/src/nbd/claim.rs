//! The processes of this host that have an export open: a server has no lock that would keep a
//! second client out.
//!
//! Invariants:
//! - Within a process, an export has one writer alone, or readers.
//! - Between the processes of one host, or network namespace, on Linux: a writer has a socket of an
//!   abstract name, which is gone when its process ends. Other openers see it, and are refused.
//!   Readers do not keep a writer out.
//!
//! Hazards:
//! - Between hosts nothing is promised here.
//! - Two names of one server (a host's name and its address) are two servers, and a part of an
//!   export is another volume than the whole.

use super::error::NbdError;
use super::url::{NbdAddress, NbdUrl};
use std::sync::{Mutex, PoisonError};

/// The exports that this process has open, with the number of readers, `None` for a writer.
static OPEN: Mutex<Vec<(String, Option<usize>)>> = Mutex::new(Vec::new());

/// The right to use an export, until it is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    key: String,
    #[cfg(target_os = "linux")]
    _of_host: Option<std::os::unix::net::UnixListener>,
}

impl Claim {
    /// Claims an export, or the `part` of it that the volume is, for a writer alone or for readers.
    ///
    /// # Errors
    /// [`NbdError::InUse`].
    pub(crate) fn new(url: &NbdUrl, part: &str, read_only: bool) -> Result<Self, NbdError> {
        let address = match &url.address {
            NbdAddress::Unix(path) => {
                path.canonicalize().unwrap_or_else(|_| path.clone()).display().to_string()
            }
            tcp @ NbdAddress::Tcp { .. } => tcp.to_string().to_lowercase(),
        };
        let key = format!("{address} {} {:?} {part}", url.export_name(), url.range);
        claim_here(&key, read_only)?;
        #[cfg(target_os = "linux")]
        match of_host::claim(&key, read_only) {
            Ok(listener) => Ok(Self { key, _of_host: listener }),
            Err(e) => {
                release(&key);
                Err(e)
            }
        }
        #[cfg(not(target_os = "linux"))]
        Ok(Self { key })
    }
}

fn claim_here(key: &str, read_only: bool) -> Result<(), NbdError> {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    match open.iter_mut().find(|(other, _)| other == key) {
        Some((_, Some(readers))) if read_only => *readers += 1,
        Some(_) => return Err(NbdError::InUse { by: Some(std::process::id()) }),
        None => open.push((key.into(), read_only.then_some(1))),
    }
    Ok(())
}

fn release(key: &str) {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(at) = open.iter().position(|(other, _)| other == key) {
        match &mut open[at].1 {
            Some(readers) if *readers > 1 => *readers -= 1,
            _ => drop(open.swap_remove(at)),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        release(&self.key);
    }
}

#[cfg(target_os = "linux")]
mod of_host {
    use super::NbdError;
    use std::io::ErrorKind;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    /// Binds the name of an export for a writer. A reader looks whether one has.
    pub(super) fn claim(key: &str, read_only: bool) -> Result<Option<UnixListener>, NbdError> {
        // A name has at most 107 bytes, and two keys with one hash are improbable.
        let name = format!("lanefs-nbd-{:016x}{:016x}", hash(key, 1), hash(key, 2));
        let Ok(address) = SocketAddr::from_abstract_name(name) else { return Ok(None) };
        if read_only {
            return match holder(&address) {
                Some(by) => Err(NbdError::InUse { by }),
                None => Ok(None),
            };
        }
        match UnixListener::bind_addr(&address) {
            Ok(listener) => Ok(Some(listener)),
            Err(e) if e.kind() == ErrorKind::AddrInUse => {
                Err(NbdError::InUse { by: holder(&address).flatten() })
            }
            // A system without such names.
            Err(_) => Ok(None),
        }
    }

    /// Returns the process that has bound an address, `None` if none has. Its number cannot be told
    /// where too many have asked.
    fn holder(address: &SocketAddr) -> Option<Option<u32>> {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
        let name = SocketAddrUnix::new_abstract_name(address.as_abstract_name()?).ok()?;
        // The connection is never accepted: a blocking one would wait for room in the queue.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
        match rustix::net::connect(&socket, &name) {
            Ok(()) => {
                Some(sockopt::socket_peercred(&socket).ok().map(|c| c.pid.as_raw_pid().cast_unsigned()))
            }
            Err(rustix::io::Errno::AGAIN) => Some(None),
            Err(_) => None,
        }
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

    #[test]
    fn one_writer_or_readers() {
        let url = |name| NbdUrl::parse(&format!("nbd://claims.test/{name}")).unwrap();
        let (a, b) = (url("a"), url("b"));
        let first = Claim::new(&a, "", true).unwrap();
        let second = Claim::new(&a, "", true).unwrap();
        assert!(matches!(Claim::new(&a, "", false), Err(NbdError::InUse { .. })));
        let _others = (Claim::new(&b, "", false).unwrap(), Claim::new(&a, "2", false).unwrap());
        drop(first);
        assert!(Claim::new(&a, "", false).is_err());
        drop(second);
        let writer = Claim::new(&a, "", false).unwrap();
        assert!(Claim::new(&a, "", true).is_err() && Claim::new(&a, "", false).is_err());
        drop(writer);
        Claim::new(&a, "", true).unwrap();
    }

    /// What another process would see.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_writer_is_seen_by_other_processes() {
        let _writer = of_host::claim("claims.test c", false).unwrap();
        let by = Some(std::process::id());
        assert_eq!(of_host::claim("claims.test c", true).unwrap_err(), NbdError::InUse { by });
        assert_eq!(of_host::claim("claims.test c", false).unwrap_err(), NbdError::InUse { by });
        assert!(of_host::claim("claims.test d", true).unwrap().is_none());
    }
}
