//! Failures, as one line each: what failed, where, why, and what to do about it.
//!
//! The words are coreutils': `lanefs: cannot open 'x.img:/y': No such file or directory`.
//! A command that goes on after a failure notes it in [`Noted`] and ends with exit code 1.

use crate::quote::{escaped, quoted};
use crate::streams::tell;
use lanefs_archive::host;
use rustix::io::Errno;
use std::fmt;
use std::io;

/// Result of a command or of a part of it.
pub(crate) type Res<T = ()> = Result<T, Failure>;

/// The exit code of a command whose reader went away, as of a process that SIGPIPE ended.
const READER_GONE: u8 = 141;

/// The reason why a command ends early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A line for standard error.
    Message { text: String, code: u8 },
    /// As `Message`, of standard output: a command does not go on, because all that it could write
    /// would fail too.
    Output { text: String, code: u8 },
    /// The reader of standard output went away, which ends a command without a word.
    ReaderGone,
    /// Everything has been said already.
    Silent(u8),
}

impl Failure {
    /// Returns a failure with exit code 1.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self::Message { text: text.into(), code: 1 }
    }

    /// Returns the failure `cannot VERB 'WHAT': CAUSE`.
    pub(crate) fn cannot(verb: &str, what: impl AsRef<[u8]>, cause: impl Into<Cause>) -> Self {
        Self::new(format!("cannot {verb} {}: {}", quoted(what), cause.into()))
    }

    /// Returns the failure of a write to standard output.
    pub(crate) fn output(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::BrokenPipe => Self::ReaderGone,
            _ => {
                let text = format!("cannot write to standard output: {}", Cause::from(e));
                Self::Output { text, code: 1 }
            }
        }
    }

    /// Returns the same failure with another exit code, but that of a reader that went away as it
    /// is.
    pub(crate) fn code(self, code: u8) -> Self {
        match self {
            Self::Message { text, .. } => Self::Message { text, code },
            Self::Output { text, .. } => Self::Output { text, code },
            Self::ReaderGone => Self::ReaderGone,
            Self::Silent(_) => Self::Silent(code),
        }
    }

    /// Says it, if it has not been said; returns the exit code.
    pub(crate) fn report(&self) -> u8 {
        match self {
            Self::Message { text, code } | Self::Output { text, code } => {
                tell(text);
                *code
            }
            Self::ReaderGone => READER_GONE,
            Self::Silent(code) => *code,
        }
    }
}

/// The reason that the system or the engine gave.
#[derive(Debug, Clone)]
pub(crate) struct Cause {
    pub(crate) errno: Option<Errno>,
    text: String,
}

impl Cause {
    /// Returns a cause with this text.
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self { errno: None, text: text.into() }
    }

    /// Removes `prefix`, which a message has already said.
    pub(crate) fn without(mut self, prefix: &str) -> Self {
        if let Some(rest) = self.text.strip_prefix(prefix) {
            self.text = rest.to_owned();
        }
        self
    }

    /// Returns whether this is the error `errno`.
    pub(crate) fn is(&self, errno: Errno) -> bool {
        self.errno == Some(errno)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An error may cite a name of the volume.
        f.write_str(&escaped(self.text.as_bytes()))
    }
}

/// Returns the words of an error of the system without the number that the standard library adds,
/// and with what to do about it where a number alone says that.
pub(crate) fn words_of(text: &str) -> String {
    let Some((words, number)) = text.split_once(" (os error ") else { return text.to_owned() };
    match number.strip_prefix("24)") {
        Some(_) => format!("{words} {}", lanefs_device::IN_THIS_PROCESS),
        None => words.to_owned(),
    }
}

impl From<io::Error> for Cause {
    fn from(e: io::Error) -> Self {
        let errno = e.raw_os_error().map(Errno::from_raw_os_error);
        Self { errno, text: words_of(&e.to_string()) }
    }
}

impl From<Errno> for Cause {
    fn from(e: Errno) -> Self {
        io::Error::from(e).into()
    }
}

/// What the host refused, with the option that insists.
impl From<host::Error> for Cause {
    fn from(e: host::Error) -> Self {
        match e {
            host::Error::System(e) => e.into(),
            host::Error::Protected(_) => Self::text(format!("{e}; --force overwrites it")),
            e => Self::text(e.to_string()),
        }
    }
}

/// `result.or_cannot("open", path)`
pub(crate) trait OrCannot<T> {
    /// Turns an error into `cannot VERB 'WHAT': CAUSE`.
    fn or_cannot(self, verb: &str, what: impl AsRef<[u8]>) -> Res<T>;
}

impl<T, E: Into<Cause>> OrCannot<T> for Result<T, E> {
    fn or_cannot(self, verb: &str, what: impl AsRef<[u8]>) -> Res<T> {
        self.map_err(|e| Failure::cannot(verb, what, e))
    }
}

/// Failures that did not end the command.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    code: u8,
}

impl Noted {
    /// Says the failure now and remembers its exit code. One of standard output is passed on, which
    /// ends the command.
    pub(crate) fn note(&mut self, result: Res) -> Res {
        match result {
            Err(failure @ (Failure::Output { .. } | Failure::ReaderGone)) => Err(failure),
            Err(failure) => {
                self.code = self.code.max(failure.report());
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Returns the command's result.
    pub(crate) fn finish(self) -> Res {
        if self.code == 0 { Ok(()) } else { Err(Failure::Silent(self.code)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speaks_as_coreutils() {
        let Failure::Message { text, code } = Failure::cannot("open", "x:/y", Errno::NOENT) else {
            panic!("no message")
        };
        assert_eq!((text.as_str(), code), ("cannot open 'x:/y': No such file or directory", 1));
    }

    #[test]
    fn says_what_to_do_about_a_lack_of_descriptors() {
        assert_eq!(Errno::MFILE.raw_os_error(), 24);
        let said = Cause::from(Errno::MFILE).to_string();
        assert_eq!(said, "Too many open files in this process (`ulimit -n` is the limit)");
        assert_eq!(words_of("Permission denied (os error 13)"), "Permission denied");
    }

    #[test]
    fn remembers_the_worst() {
        let mut noted = Noted::default();
        noted.note(Ok(())).expect("nothing");
        noted.note(Err(Failure::new("a").code(2))).expect("goes on");
        noted.note(Err(Failure::new("b"))).expect("goes on");
        assert!(matches!(noted.finish(), Err(Failure::Silent(2))));
    }

    #[test]
    fn goes_on_after_no_failure_of_standard_output() {
        for (errno, is_gone) in [(Errno::NOSPC, false), (Errno::PIPE, true)] {
            let ended = Noted::default().note(Err(Failure::output(errno.into())));
            assert_eq!(matches!(ended, Err(Failure::Output { code: 1, .. })), !is_gone, "{errno}");
            assert_eq!(matches!(ended, Err(Failure::ReaderGone)), is_gone, "{errno}");
        }
    }
}
