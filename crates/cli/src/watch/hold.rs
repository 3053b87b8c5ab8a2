//! The device of a mount held in one committed state, for a client of its socket.
//!
//! The client sends `GET /hold` and is told `held`. It reads the volume, shuts down its side of the
//! connection, and is told `kept`. From the one word to the other no commit and no checkpoint
//! writes to the device. A client that takes longer than [`LIMIT`], or that ends before, is not
//! told `kept`; the mount goes on.
//!
//! Each client has a thread, which sleeps: neither the programs on the mount nor the thread of
//! [`WatchServer`](super::Server) wait for the client to be served.

use super::client::Reply;
use lanefs::Observer;
use lanefs_fuse::Monitor;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The time that programs on the mount wait for a client at most.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// Why a volume in use without a journal has no state to look at.
const NO_JOURNAL: &str = "it has no journal, which would keep a state for the check. Unmount it";

/// Clients at a time: programs that wait for a commit wait for all of them, and so does an unmount.
const MOST: usize = 2;

/// Room for a thread's stack, which it hardly uses.
const STACK: usize = 256 << 10;

/// Serves the client at `stream`, which does not block, by a thread of its own. `holds` counts
/// those threads.
pub(super) fn start(mut stream: UnixStream, monitor: &Monitor, holds: &Arc<()>) {
    let Some(observer) = monitor.observer() else {
        let _ = refuse(&mut stream, "503 Service Unavailable", "the volume is being closed");
        return;
    };
    if Arc::strong_count(holds) > MOST {
        let _ = refuse(&mut stream, "429 Too Many Requests", "too many checks wait for it");
        return;
    }
    let hold = Arc::clone(holds);
    let serve = move || {
        // A client that has gone is told nothing.
        let _ = serve(&mut stream, &observer);
        drop(hold);
    };
    // Without a thread the client finds its connection closed.
    let _ = thread::Builder::new().name("lanefs-hold".into()).stack_size(STACK).spawn(serve);
}

fn serve(stream: &mut UnixStream, observer: &Observer) -> io::Result<()> {
    match observer.hold_commits(|| keep(stream, LIMIT)) {
        Ok(Some(kept)) => kept,
        Ok(None) => refuse(stream, "409 Conflict", NO_JOURNAL),
        Err(e) => refuse(stream, "409 Conflict", &e.to_string()),
    }
}

fn refuse(stream: &mut UnixStream, status: &'static str, why: &str) -> io::Result<()> {
    stream.write_all(&Reply::line(status, why).bytes(false))
}

/// Tells the client that the device is held, and waits until it has shut down its side.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] at the end of `limit`; a client that has gone.
fn keep(stream: &mut UnixStream, limit: Duration) -> io::Result<()> {
    let end = Instant::now() + limit;
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nheld\n")?;
    loop {
        match stream.read(&mut [0; 64]) {
            Ok(0) => return stream.write_all(b"kept\n"),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&left)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Shutdown;

    fn pair() -> (UnixStream, UnixStream) {
        let (theirs, ours) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (theirs, ours)
    }

    #[test]
    fn a_client_is_told_kept_if_it_ends_in_time_and_only_then() {
        let (mut theirs, mut ours) = pair();
        theirs.write_all(b"more\n").unwrap();
        theirs.shutdown(Shutdown::Write).unwrap();
        keep(&mut ours, LIMIT).unwrap();
        drop(ours);
        let mut text = String::new();
        theirs.read_to_string(&mut text).unwrap();
        assert!(text.ends_with("\r\n\r\nheld\nkept\n"), "{text}");

        let (mut theirs, mut ours) = pair();
        let late = keep(&mut ours, Duration::from_millis(20)).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        drop(ours);
        text.clear();
        theirs.read_to_string(&mut text).unwrap();
        assert!(text.ends_with("held\n"), "{text}");

        let (theirs, mut ours) = pair();
        drop(theirs);
        keep(&mut ours, LIMIT).unwrap_err();
    }
}
