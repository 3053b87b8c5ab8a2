//! Requests to a mount, by its socket.

use super::hold::LIMIT;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// The time that the server of a mount may take to answer: longer than another client can occupy
/// it.
const PATIENCE: Duration = Duration::from_secs(5);

/// The greatest length of an answer, in bytes.
const LONGEST: usize = 16 << 20;

/// The reason why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// No process listens on the socket: its mount is gone.
    #[error("its mount is gone")]
    Gone,
    /// The server of the mount is there and says nothing.
    #[error("its server does not answer")]
    Silent,
    /// The server refused, with this text.
    #[error("{0}")]
    Said(String),
}

impl From<io::Error> for Refusal {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::ConnectionRefused
            | io::ErrorKind::NotFound
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe => Self::Gone,
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Silent,
            _ => Self::Said(e.to_string()),
        }
    }
}

/// Returns the answer of the mount behind `socket` to a request for `path`.
pub(crate) fn ask(socket: &Path, path: &str) -> Result<String, Refusal> {
    let end = Instant::now() + PATIENCE;
    let mut stream = send(socket, path)?;
    let mut text = Vec::new();
    while read_more(&mut stream, &mut text, end)? {}
    answered(&text)
}

/// A mount whose device is held in one committed state for this process.
#[derive(Debug)]
pub(crate) struct HeldMount {
    stream: UnixStream,
}

impl HeldMount {
    /// Asks the mount behind `socket` to hold its device. Waits for a commit and a checkpoint that
    /// are under way there.
    ///
    /// # Errors
    /// Why it is not held.
    pub(crate) fn new(socket: &Path) -> Result<Self, Refusal> {
        // Beside others, each of which may take that long.
        let end = Instant::now() + 2 * LIMIT;
        let (stream, _) = begun(socket, "/hold", "held", end)?;
        Ok(Self { stream })
    }

    /// Lets the mount go on. Returns whether it was held until now.
    pub(crate) fn end(mut self) -> bool {
        let mut text = Vec::new();
        let end = Instant::now() + PATIENCE;
        let mut finish = || -> Result<(), Refusal> {
            self.stream.shutdown(Shutdown::Write)?;
            while read_more(&mut self.stream, &mut text, end)? {}
            Ok(())
        };
        finish().is_ok() && text == b"kept\n"
    }
}

/// The end of a mount, which its server will tell this process.
#[derive(Debug)]
pub(crate) struct AwaitedEnd {
    stream: UnixStream,
    /// What the server has told so far.
    text: Vec<u8>,
}

impl AwaitedEnd {
    /// Asks the mount behind `socket` to tell how it has ended.
    ///
    /// # Errors
    /// Why it will not.
    pub(crate) fn new(socket: &Path) -> Result<Self, Refusal> {
        // A server that hangs closes nothing, and the unmount does not wait for it.
        let (stream, text) = begun(socket, "/end", "waits", Instant::now() + PATIENCE / 2)?;
        Ok(Self { stream, text })
    }

    /// Returns what the server, which has ended, has told: its volume is closed, or why it is not.
    pub(crate) fn told(mut self) -> Result<(), String> {
        let end = Instant::now() + PATIENCE;
        while let Ok(true) = read_more(&mut self.stream, &mut self.text, end) {}
        match String::from_utf8_lossy(&self.text).trim() {
            "closed" => Ok(()),
            "" => Err("its server died".into()),
            why => Err(why.into()),
        }
    }
}

/// Asks the mount behind `socket` for `path`, and waits until the first line of the answer is
/// `word`. Returns what came behind it, too.
fn begun(socket: &Path, path: &str, word: &str, end: Instant) -> Result<(UnixStream, Vec<u8>), Refusal> {
    let mut stream = send(socket, path)?;
    let (mut text, head) = (Vec::new(), format!("\r\n\r\n{word}\n").into_bytes());
    loop {
        if let Some(at) = text.windows(head.len()).position(|part| part == head) {
            let rest = text.split_off(at + head.len());
            return Ok((stream, rest));
        }
        if !read_more(&mut stream, &mut text, end)? {
            answered(&text)?;
            return Err(Refusal::Gone);
        }
    }
}

/// Connects to a mount and asks for `path`.
fn send(socket: &Path, path: &str) -> Result<UnixStream, Refusal> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(io::Error::from)?;
    let address = SocketAddrUnix::new(socket).map_err(io::Error::from)?;
    connect(&fd, &address).map_err(io::Error::from)?;
    let mut stream = UnixStream::from(fd);
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
    Ok(stream)
}

/// Waits for more of an answer until `end`. Returns false behind its last byte.
fn read_more(stream: &mut UnixStream, text: &mut Vec<u8>, end: Instant) -> Result<bool, Refusal> {
    let mut piece = [0; 16 << 10];
    match stream.read(&mut piece) {
        Ok(0) => return Ok(false),
        Ok(n) => text.extend_from_slice(piece.get(..n).unwrap_or_default()),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => wait(stream, end)?,
        Err(e) => return Err(e.into()),
    }
    if text.len() > LONGEST {
        return Err(Refusal::Said("its answer has no end".into()));
    }
    Ok(true)
}

/// Returns the body of a complete answer.
fn answered(text: &[u8]) -> Result<String, Refusal> {
    let text = String::from_utf8_lossy(text);
    let (head, body) = text.split_once("\r\n\r\n").ok_or(Refusal::Gone)?;
    let status = head.lines().next().and_then(|line| line.split_once(' ')).map_or("", |(_, status)| status);
    match status.get(..3) {
        Some("200") => Ok(body.into()),
        // Its volume is being closed.
        Some("503") => Err(Refusal::Gone),
        _ => Err(Refusal::Said(body.trim().into())),
    }
}

fn wait(stream: &UnixStream, end: Instant) -> Result<(), Refusal> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(Refusal::Silent);
    }
    let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
    match poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&left)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(io::Error::from(e).into()),
    }
}
