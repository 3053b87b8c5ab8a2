//! A connection to a server without TLS: by TCP, or by a unix socket.
//!
//! Reading waits for a tick at most, and sending does not wait: a thread that sends has to read
//! replies too where the server takes nothing.

use super::url::NbdAddress;
use super::wire::TICK;
#[cfg(not(unix))]
use std::io::Write;
use std::io::{self, Read};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
#[cfg(unix)]
use std::os::fd::OwnedFd;
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// What a wait for a socket ended with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Readiness {
    pub(crate) read: bool,
    pub(crate) write: bool,
}

/// A connection without TLS.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Stream {
    /// Connects to a server.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn connect(address: &NbdAddress, timeout: Duration) -> io::Result<Self> {
        match address {
            NbdAddress::Tcp { host, port } => {
                let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
                for address in (host.as_str(), *port).to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, timeout) {
                        Ok(stream) => {
                            stream.set_nodelay(true)?;
                            stream.set_read_timeout(Some(TICK))?;
                            stream.set_write_timeout(Some(TICK))?;
                            return Ok(Self::Tcp(stream));
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
                Ok(Self::Unix(stream))
            }
            #[cfg(not(unix))]
            NbdAddress::Unix(_) => {
                Err(io::Error::new(io::ErrorKind::Unsupported, "this system has no unix sockets"))
            }
        }
    }

    /// Ends the connection, so that a thread that reads or writes wakes up.
    pub(crate) fn shutdown(&self) {
        // It may have been ended already.
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
            #[cfg(unix)]
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    /// Reads what is there, or waits for it, a tick at most.
    pub(crate) fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => (&*stream).read(buf),
            #[cfg(unix)]
            Self::Unix(stream) => (&*stream).read(buf),
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
        }
    }

    /// Waits until bytes can be sent, or read if that is `wanted`, for `time` at most.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn wait(&self, wanted: Readiness, time: Duration) -> io::Result<Readiness> {
        match self {
            Self::Tcp(stream) => poll(stream, wanted, time),
            #[cfg(unix)]
            Self::Unix(stream) => poll(stream, wanted, time),
        }
    }
}

#[cfg(unix)]
impl From<Stream> for OwnedFd {
    fn from(stream: Stream) -> Self {
        match stream {
            Stream::Tcp(stream) => stream.into(),
            Stream::Unix(stream) => stream.into(),
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
