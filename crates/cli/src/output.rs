//! Standard output: buffered, with colours and quoted names on a terminal, plain bytes into a pipe.
//!
//! Each of its writes fails with [`Failure::Output`], so that no other failure of I/O is taken for
//! one of standard output.

use crate::failure::{Failure, Res};
use crate::quote;
use crate::streams::{flush_stdout, to_stdout};
use serde::Serialize;
use std::fmt;
use std::io::{self, IsTerminal, Write};

/// Standard output. Flushed by [`Out::finish`]; what a failing command wrote is flushed on drop.
#[derive(Debug)]
pub(crate) struct Out {
    /// Whether a person reads.
    pub(crate) terminal: bool,
    /// Columns of the terminal, 80 where there is none.
    pub(crate) width: usize,
    color: bool,
}

impl Out {
    pub(crate) fn new() -> Self {
        let stdout = io::stdout();
        let terminal = stdout.is_terminal();
        let color = anstream::AutoStream::choice(&stdout) != anstream::ColorChoice::Never;
        let width = rustix::termios::tcgetwinsize(&stdout).map_or(0, |w| usize::from(w.ws_col));
        let width = if width == 0 { 80 } else { width };
        Self { terminal, width, color }
    }

    /// Returns a name as this output shows it.
    pub(crate) fn name(&self, name: &[u8]) -> Vec<u8> {
        if self.terminal { quote::listed(name).into_bytes() } else { name.to_vec() }
    }

    /// Returns `text` in `style`, if colours are wanted.
    pub(crate) fn styled(&self, text: Vec<u8>, style: owo_colors::Style) -> Vec<u8> {
        if !self.color || style.is_plain() {
            return text;
        }
        let mut out = style.prefix_formatter().to_string().into_bytes();
        out.extend(text);
        out.extend(style.suffix_formatter().to_string().bytes());
        out
    }

    /// Returns `text` in `style`, if colours are wanted.
    pub(crate) fn paint(&self, text: &str, style: owo_colors::Style) -> String {
        if self.color { style.style(text).to_string() } else { text.to_owned() }
    }

    /// Writes bytes as they are.
    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> Res {
        to_stdout(|stream| stream.write_all(bytes)).map_err(Failure::output)
    }

    /// Writes what `write!` and `writeln!` format.
    pub(crate) fn write_fmt(&mut self, text: fmt::Arguments<'_>) -> Res {
        self.write_all(fmt::format(text).as_bytes())
    }

    /// Writes a value as indented JSON.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Res {
        let written = to_stdout(|stream| {
            serde_json::to_writer_pretty(&mut *stream, value)?;
            stream.write_all(b"\n")
        });
        written.map_err(Failure::output)
    }

    /// Writes out the buffered bytes.
    pub(crate) fn flush(&mut self) -> Res {
        flush_stdout().map_err(Failure::output)
    }

    /// Writes out the buffered bytes, as the last of all.
    pub(crate) fn finish(mut self) -> Res {
        self.flush()
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        // The command has failed, and says why.
        let _ = flush_stdout();
    }
}

/// Returns the colour of a file by its mode, as `ls --color` has it by default.
pub(crate) fn file_style(mode: u32) -> owo_colors::Style {
    let style = owo_colors::Style::new();
    match mode & 0o170000 {
        0o040000 => style.bold().blue(),
        0o120000 => style.bold().cyan(),
        0o060000 | 0o020000 => style.bold().yellow(),
        0o010000 => style.yellow(),
        0o140000 => style.bold().magenta(),
        _ if mode & 0o111 != 0 => style.bold().green(),
        _ => style,
    }
}
