//! Takes over the terminal for `lanefs top`, and restores it at the end.

use crate::watch::Signals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGWINCH};
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// The other page, without a cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// The screen of a terminal. Dropped, it puts the terminal back.
pub(crate) struct Screen {
    stdin: io::Stdin,
    out: io::Stdout,
    was: Option<Termios>,
    ends: Signals,
    changes: Signals,
}

impl Screen {
    /// Takes the terminal. Keys are read if standard input is one too.
    pub(crate) fn new() -> io::Result<Self> {
        let (ends, changes) = (Signals::new(&[SIGINT, SIGTERM, SIGHUP])?, Signals::new(&[SIGWINCH])?);
        let (stdin, mut out) = (io::stdin(), io::stdout());
        let was = tcgetattr(&stdin).ok();
        if let Some(was) = &was {
            let mut raw = was.clone();
            raw.make_raw();
            tcsetattr(&stdin, OptionalActions::Now, &raw)?;
        }
        let screen = Self { stdin, out: io::stdout(), was, ends, changes };
        write!(out, "{ENTER}")?;
        out.flush()?;
        Ok(screen)
    }

    /// Shows as many of the lines as there is room for.
    pub(crate) fn show(&mut self, lines: &[String]) -> io::Result<()> {
        let size = tcgetwinsize(&self.out).ok();
        let side = |n: Option<u16>, other: u16| usize::from(n.filter(|n| *n > 0).unwrap_or(other));
        let (rows, columns) = (side(size.map(|s| s.ws_row), 24), side(size.map(|s| s.ws_col), 80));
        // Drawn over the last page, so that nothing flickers.
        let mut page = String::from("\x1b[H");
        for (number, line) in lines.iter().take(rows).enumerate() {
            if number > 0 {
                page.push_str("\r\n");
            }
            page.extend(line.chars().take(columns));
            page.push_str("\x1b[K");
        }
        page.push_str("\x1b[J");
        self.out.write_all(page.as_bytes())?;
        self.out.flush()
    }

    /// Waits until it is `end`, or until the terminal has another size. Whether to go on: not after
    /// q, Escape, Ctrl-C or a signal.
    pub(crate) fn wait(&mut self, end: Instant) -> io::Result<bool> {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(true);
            }
            let left = left + Duration::from_millis(1);
            let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
            let mut fds = vec![
                PollFd::new(self.ends.pipe(), PollFlags::IN),
                PollFd::new(self.changes.pipe(), PollFlags::IN),
            ];
            if self.was.is_some() {
                fds.push(PollFd::new(&self.stdin, PollFlags::IN));
            }
            match poll(&mut fds, Some(&left)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            let keys = fds.get(2).is_some_and(|fd| !fd.revents().is_empty());
            drop(fds);
            if self.ends.take() || (keys && self.is_told_to_end()?) {
                return Ok(false);
            }
            if self.changes.take() {
                return Ok(true);
            }
        }
    }

    fn is_told_to_end(&self) -> io::Result<bool> {
        let mut keys = [0; 64];
        let n = rustix::io::read(&self.stdin, &mut keys)?;
        // The keys of arrows and the like begin with an Escape too.
        let keys = keys.get(..n).unwrap_or_default();
        Ok(keys.is_empty() || keys == b"\x1b" || keys.iter().any(|key| matches!(key, b'q' | b'Q' | 3 | 4)))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.out.write_all(LEAVE.as_bytes()).and_then(|()| self.out.flush());
        if let Some(was) = &self.was {
            let _ = tcsetattr(&self.stdin, OptionalActions::Now, was);
        }
    }
}
