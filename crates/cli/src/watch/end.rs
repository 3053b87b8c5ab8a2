//! Clients that wait for the end of a mount: `lanefs umount`, which reports what came of it.
//!
//! The client sends `GET /end` before it unmounts, and is told `waits`. When the volume is closed,
//! it is told `closed`, or why the volume could not be closed. The end of a process that was killed
//! tells nothing.

use super::client::Reply;
use lanefs_fuse::SessionError;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

/// Clients at a time.
const MOST: usize = 8;

/// The clients that wait for the end of one mount.
#[derive(Debug, Clone, Default)]
pub(crate) struct EndWaiters(Arc<Mutex<Vec<UnixStream>>>);

impl EndWaiters {
    /// Adds a client at `stream`, which does not block.
    pub(super) fn add(&self, mut stream: UnixStream) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A client that has gone is detected by a failed write.
        all.retain_mut(|client| client.write_all(b" ").is_ok());
        if all.len() == MOST {
            let refusal = Reply::line("429 Too Many Requests", "too many programs wait for the end");
            let _ = stream.write_all(&refusal.bytes(false));
        } else if stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nwaits\n").is_ok() {
            all.push(stream);
        }
    }

    /// Tells all clients how the mount has ended.
    pub(crate) fn tell(&self, ended: &Result<(), SessionError>) {
        let text = ended.as_ref().map_or_else(|e| format!("{e}\n"), |()| "closed\n".into());
        for mut client in self.0.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _: io::Result<()> = client.write_all(text.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn all_are_told_and_one_that_has_gone_makes_room() {
        let waiters = EndWaiters::default();
        let client = || {
            let (theirs, ours) = UnixStream::pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            waiters.add(ours);
            theirs
        };
        let text = |mut client: UnixStream| {
            let mut text = String::new();
            client.read_to_string(&mut text).unwrap();
            text
        };
        let mut clients: Vec<_> = (0..MOST).map(|_| client()).collect();
        assert!(text(client()).starts_with("HTTP/1.1 429 "));
        drop(clients.pop());
        clients.push(client());
        waiters.tell(&Ok(()));
        for client in clients {
            let text = text(client);
            assert!(text.contains("\r\n\r\nwaits\n") && text.ends_with("closed\n"), "{text}");
        }
    }
}
