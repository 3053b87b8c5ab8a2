//! A connection to a server, by TCP or a unix socket, with or without TLS.
//!
//! Reading waits for a tick at most, and sending does not wait: a thread that sends has to read
//! replies too where the server takes nothing.
//!
//! A process that is confined opens no socket. It gets its connections by [`dial_by`], from a
//! process that may.

use super::error::NbdError;
use super::url::NbdAddress;
use super::wire::{TICK, lost};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
#[cfg(unix)]
use std::os::fd::OwnedFd;
#[cfg(unix)]
use std::os::unix::net::UnixStream;
#[cfg(unix)]
use std::sync::OnceLock;
use std::time::Duration;

/// What a wait for a socket ended with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Readiness {
    pub(crate) read: bool,
    pub(crate) write: bool,
}

/// A connection.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
    #[cfg(feature = "tls")]
    Tls(Box<super::tls::TlsSocket>),
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
    let name = crate::innermost(name);
    let url = name.to_str().filter(|name| super::url::is_nbd(name.as_bytes())).ok_or_else(invalid)?;
    let (url, _) = super::url::split_part(url);
    let url = super::NbdUrl::parse(url).map_err(|_| invalid())?;
    Ok(match connect(&url.address, url.timeout)? {
        Socket::Tcp(stream) => stream.into(),
        Socket::Unix(stream) => stream.into(),
        #[cfg(feature = "tls")]
        Socket::Tls(_) => return Err(invalid()),
    })
}

impl Socket {
    /// Connects to a server, or has the dialer do it.
    ///
    /// # Errors
    /// A loss.
    pub(crate) fn dial(address: &NbdAddress, timeout: Duration) -> Result<Self, NbdError> {
        #[cfg(unix)]
        if let Some(dialer) = DIALER.get() {
            let made = dialer().map_err(|e| refused(address, &e))?;
            return Ok(match address {
                NbdAddress::Tcp { .. } => Self::Tcp(made.into()),
                NbdAddress::Unix(_) => Self::Unix(made.into()),
            });
        }
        connect(address, timeout).map_err(|e| refused(address, &e))
    }

    /// Ends the connection, so that a thread that reads or writes wakes up.
    pub(crate) fn shutdown(&self) {
        // It may have been ended already.
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
            #[cfg(unix)]
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
            #[cfg(feature = "tls")]
            Self::Tls(tls) => {
                tls.below().shutdown();
                Ok(())
            }
        };
    }

    /// Reads what is there, or waits for it, a tick at most.
    pub(crate) fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => (&*stream).read(buf),
            #[cfg(unix)]
            Self::Unix(stream) => (&*stream).read(buf),
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
            Self::Tcp(stream) => send_now(stream, bytes, more),
            #[cfg(unix)]
            Self::Unix(stream) => send_now(stream, bytes, more),
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
            _ => Ok(()),
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
            #[cfg(feature = "tls")]
            Self::Tls(tls) => tls.below().wait(wanted, time),
            Self::Tcp(stream) => poll(stream, wanted, time),
            #[cfg(unix)]
            Self::Unix(stream) => poll(stream, wanted, time),
        }
    }
}

/// No signal comes for a peer that has gone: the program around a library may not expect one.
#[cfg(unix)]
fn send_now(stream: impl std::os::fd::AsFd, bytes: &[u8], more: bool) -> io::Result<usize> {
    use rustix::net::SendFlags;
    let flags = SendFlags::DONTWAIT;
    #[cfg(not(target_vendor = "apple"))]
    let flags = flags | SendFlags::NOSIGNAL;
    #[cfg(target_os = "linux")]
    let flags = if more { flags | SendFlags::MORE } else { flags };
    #[cfg(not(target_os = "linux"))]
    let _ = more;
    Ok(rustix::net::send(stream, bytes, flags)?)
}

#[cfg(not(unix))]
fn send_now(mut stream: &TcpStream, bytes: &[u8], _more: bool) -> io::Result<usize> {
    stream.write(bytes)
}

#[cfg(unix)]
fn poll(stream: impl std::os::fd::AsFd, wanted: Readiness, time: Duration) -> io::Result<Readiness> {
    use rustix::event::{PollFd, PollFlags, Timespec};
    let flag = |wanted, flag| if wanted { flag } else { PollFlags::empty() };
    let flags = flag(wanted.read, PollFlags::IN) | flag(wanted.write, PollFlags::OUT);
    let mut files = [PollFd::new(&stream, flags)];
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    match rustix::event::poll(&mut files, Some(&time)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(e) => return Err(e.into()),
    }
    // A connection that has ended says so to the call that follows.
    let ended = PollFlags::HUP | PollFlags::ERR;
    let got = files[0].revents();
    let is = |wanted, flag| wanted && got.intersects(ended | flag);
    Ok(Readiness { read: is(wanted.read, PollFlags::IN), write: is(wanted.write, PollFlags::OUT) })
}

/// Waits for nothing: the next call waits for a tick itself.
#[cfg(not(unix))]
fn poll(_: &TcpStream, wanted: Readiness, _time: Duration) -> io::Result<Readiness> {
    Ok(wanted)
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

fn refused(address: &NbdAddress, e: &io::Error) -> NbdError {
    let words = e.to_string();
    let words = words.split(" (os error").next().unwrap_or_default();
    match lost(e) {
        NbdError::Socket { .. } => NbdError::Connect { why: format!("{address}: {words}") },
        other => other,
    }
}

fn connect(address: &NbdAddress, timeout: Duration) -> io::Result<Socket> {
    match address {
        NbdAddress::Tcp { host, port } => {
            let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
            for address in (host.as_str(), *port).to_socket_addrs()? {
                match TcpStream::connect_timeout(&address, timeout) {
                    Ok(stream) => {
                        stream.set_nodelay(true)?;
                        stream.set_read_timeout(Some(TICK))?;
                        stream.set_write_timeout(Some(TICK))?;
                        return Ok(Socket::Tcp(stream));
                    }
                    Err(e) => last = e,
                }
            }
            Err(last)
        }
        #[cfg(unix)]
        NbdAddress::Unix(path) => {
            let stream = connect_unix(path, timeout)?;
            stream.set_read_timeout(Some(TICK))?;
            stream.set_write_timeout(Some(TICK))?;
            Ok(Socket::Unix(stream))
        }
        #[cfg(not(unix))]
        NbdAddress::Unix(_) => {
            Err(io::Error::new(io::ErrorKind::Unsupported, "this system has no unix sockets"))
        }
    }
}

/// Connects to a unix socket. A server that accepts no connections is not waited for without end.
#[cfg(unix)]
fn connect_unix(path: &std::path::Path, timeout: Duration) -> io::Result<UnixStream> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket, sockopt};
    let made = socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
    rustix::io::fcntl_setfd(&made, rustix::io::FdFlags::CLOEXEC)?;
    sockopt::set_socket_timeout(&made, sockopt::Timeout::Send, Some(timeout))?;
    connect(&made, &SocketAddrUnix::new(path)?)?;
    Ok(made.into())
}
