//! A connection to a server, with or without TLS, and the way to make it.
//!
//! A process that is confined opens no socket. It gets its connections by [`dial_by`], from a
//! process that may.

use super::error::NbdError;
use super::stream::{Readiness, Stream};
#[cfg(feature = "tls")]
use super::tls::{TlsSettings, TlsSocket};
use super::url::NbdAddress;
use super::wire::{TICK, lost};
use std::io::{self, Read, Write};
#[cfg(unix)]
use std::os::fd::OwnedFd;
#[cfg(unix)]
use std::sync::OnceLock;
use std::time::Duration;

/// A connection.
#[derive(Debug)]
pub(crate) enum Socket {
    Plain(Stream),
    #[cfg(feature = "tls")]
    Tls(Box<TlsSocket>),
}

/// Gets connections for a process that may open none.
#[cfg(unix)]
type Dialer = Box<dyn Fn() -> io::Result<OwnedFd> + Send + Sync>;

#[cfg(unix)]
static DIALER: OnceLock<Dialer> = OnceLock::new();

/// Lets `dialer` make every later connection of this process.
///
/// It is for a process that gives up the right to open sockets, and has one export open. `dialer`
/// asks another process, which calls [`dial`]. Only the first call of this function has an effect.
#[cfg(unix)]
pub fn dial_by(dialer: impl Fn() -> io::Result<OwnedFd> + Send + Sync + 'static) {
    let _ = DIALER.set(Box::new(dialer));
}

/// Connects to the NBD server in the name of a volume, for another process.
///
/// # Errors
/// The system's; [`InvalidInput`](io::ErrorKind) for a name that is not the URL of an export.
#[cfg(unix)]
pub fn dial(name: &std::ffi::OsStr) -> io::Result<OwnedFd> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let name = crate::stacked::innermost(name);
    let url = name.to_str().filter(|name| crate::scheme::is_nbd(name.as_bytes())).ok_or_else(invalid)?;
    let (url, _) = super::url::split_part(url);
    let url = super::url::NbdUrl::parse(url).map_err(|_| invalid())?;
    Ok(Stream::connect(&url.address, url.timeout)?.into())
}

impl Socket {
    /// Connects to a server, or has the dialer do it.
    ///
    /// # Errors
    /// A loss.
    pub(crate) fn dial(address: &NbdAddress, timeout: Duration) -> Result<Self, NbdError> {
        #[cfg(unix)]
        if let Some(dialer) = DIALER.get() {
            let made = dialer().map_err(|e| refused(address, timeout, &e))?;
            return Ok(Self::Plain(match address {
                NbdAddress::Tcp { .. } => Stream::Tcp(made.into()),
                NbdAddress::Unix(_) => Stream::Unix(made.into()),
            }));
        }
        Stream::connect(address, timeout).map(Self::Plain).map_err(|e| refused(address, timeout, &e))
    }

    /// Begins TLS, if the connection has none yet.
    ///
    /// # Errors
    /// A loss; a certificate that is not trusted.
    #[cfg(feature = "tls")]
    pub(crate) fn upgrade(self, settings: &TlsSettings, timeout: Duration) -> Result<Self, NbdError> {
        match self {
            Self::Plain(stream) => Ok(Self::Tls(Box::new(settings.upgrade(stream, timeout)?))),
            Self::Tls(_) => Ok(self),
        }
    }

    /// Returns the connection below TLS.
    fn stream(&self) -> &Stream {
        match self {
            Self::Plain(stream) => stream,
            #[cfg(feature = "tls")]
            Self::Tls(tls) => tls.below(),
        }
    }

    /// Ends the connection, so that a thread that reads or writes wakes up.
    pub(crate) fn shutdown(&self) {
        self.stream().shutdown();
    }

    /// Reads what is there, or waits for it, a tick at most.
    pub(crate) fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buf),
            #[cfg(feature = "tls")]
            Self::Tls(tls) => tls.read(buf),
        }
    }

    /// Sends what the socket takes of some bytes, without waiting. `more` follow at once.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) where it takes nothing; the system's.
    pub(crate) fn send(&self, bytes: &[u8], more: bool) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.send(bytes, more),
            #[cfg(feature = "tls")]
            Self::Tls(tls) => tls.send(bytes),
        }
    }

    /// Sends what [`send`](Self::send) has taken and the socket has not.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub(crate) fn finish_sending(&self) -> io::Result<()> {
        match self {
            #[cfg(feature = "tls")]
            Self::Tls(tls) => tls.finish_sending(),
            Self::Plain(_) => Ok(()),
        }
    }

    /// Waits until bytes can be sent, or read if that is `wanted`, for `time` at most.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn wait(&self, wanted: Readiness, time: Duration) -> io::Result<Readiness> {
        match self {
            #[cfg(feature = "tls")]
            Self::Tls(tls) if wanted.read && tls.has_input() => Ok(Readiness { read: true, write: false }),
            _ => self.stream().wait(wanted, time),
        }
    }
}

/// For the negotiation, which has both directions to itself.
impl Read for &Socket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Socket::read(self, buf)
    }
}

/// Sending waits for a tick at most.
impl Write for &Socket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let sent = self.send(buf, false);
        self.tick(sent)
    }

    fn flush(&mut self) -> io::Result<()> {
        let sent = self.finish_sending();
        self.tick(sent)
    }
}

impl Socket {
    /// Waits for a tick where a call would have to wait. Returns what the call did.
    fn tick<T>(&self, done: io::Result<T>) -> io::Result<T> {
        if done.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock) {
            self.wait(Readiness { read: false, write: true }, TICK)?;
        }
        done
    }
}

fn refused(address: &NbdAddress, timeout: Duration, e: &io::Error) -> NbdError {
    // The queue of the unix socket is full: the server accepts no client now.
    if let (NbdAddress::Unix(_), io::ErrorKind::WouldBlock) = (address, e.kind()) {
        return NbdError::NotGreeted { seconds: timeout.as_secs() };
    }
    let words = e.to_string();
    let words = words.split(" (os error").next().unwrap_or_default();
    match lost(e) {
        NbdError::Socket { .. } => NbdError::Connect { why: format!("{address}: {words}") },
        other => other,
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};

    #[test]
    fn a_server_with_a_full_queue_is_not_waited_for_without_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        // Room for one connection, and none is accepted.
        listen(&listener, 0).unwrap();
        let (address, timeout) = (NbdAddress::Unix(path), Duration::from_millis(1500));
        let _first = Socket::dial(&address, timeout).unwrap();
        let e = Socket::dial(&address, timeout).unwrap_err();
        assert_eq!(e, NbdError::NotGreeted { seconds: 1 });
    }
}
