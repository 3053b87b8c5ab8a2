//! Standard output and standard error, each line in its order.
//!
//! - A pipe or a file gets 64 KiB of standard output at a time, a terminal each line once it is
//!   complete.
//! - A text for standard error follows all that was written to standard output before it.
//! - The progress bar is taken off the terminal for the time of a write.

use crate::progress::suspended;
use std::fmt;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Bytes of standard output that a pipe or a file gets at a time.
const CAPACITY: usize = 64 * 1024;

/// Standard output, from the first write on.
static STDOUT: OnceLock<BufferedStdout> = OnceLock::new();

struct BufferedStdout {
    terminal: bool,
    stream: Mutex<BufWriter<Stdout>>,
}

impl BufferedStdout {
    fn new() -> Self {
        let stdout = io::stdout();
        let terminal = stdout.is_terminal();
        // The standard library itself gives a terminal whole lines.
        let capacity = if terminal { 0 } else { CAPACITY };
        Self { terminal, stream: Mutex::new(BufWriter::with_capacity(capacity, stdout)) }
    }

    fn locked(&self) -> MutexGuard<'_, BufWriter<Stdout>> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with(&self, write: impl FnOnce(&mut BufWriter<Stdout>) -> io::Result<()>) -> io::Result<()> {
        let write = || write(&mut self.locked());
        if self.terminal { suspended(write) } else { write() }
    }
}

/// Runs `write` on standard output. It must not write to standard error.
pub(crate) fn to_stdout(write: impl FnOnce(&mut BufWriter<Stdout>) -> io::Result<()>) -> io::Result<()> {
    STDOUT.get_or_init(BufferedStdout::new).with(write)
}

/// Writes out what is buffered of standard output. Calls nothing of the system if that is nothing,
/// so that the confined server of a mount may call it.
pub(crate) fn flush_stdout() -> io::Result<()> {
    STDOUT.get().map_or(Ok(()), |stdout| stdout.with(Write::flush))
}

/// Writes text to standard error. There is nobody to tell that it cannot be written.
pub(crate) fn to_stderr(text: &str) {
    suspended(|| {
        if let Some(stdout) = STDOUT.get() {
            // The next write to standard output, or the last flush, tells what fails here.
            let _ = stdout.locked().flush();
        }
        let _ = io::stderr().write_all(text.as_bytes());
    });
}

/// Writes the line `lanefs: TEXT` to standard error.
pub(crate) fn tell(text: impl fmt::Display) {
    to_stderr(&format!("lanefs: {text}\n"));
}
