//! The plan of a session, and its text: `SETTING: STEP; STEP > ACT; ACT | ACT`. The steps before
//! `>` run before the threads start.

use super::super::setting::{Setting, setting};
use super::super::step::{Slot, Step};
use std::fmt;
use std::str::FromStr;

/// One call of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// A step of the crash campaign.
    Do(Step),
    /// Reads `len` bytes from `at` on.
    Read {
        /// The file.
        file: Slot,
        /// First byte.
        at: usize,
        /// Bytes.
        len: usize,
    },
    /// Lists a directory.
    List(String),
    /// Closes the volume. A call that takes a path borrows the volume, and so never runs beside it.
    Close,
}

/// The operations of each thread, and their setting.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The volume, and how it is written.
    pub setting: &'static Setting,
    /// Done before the threads begin.
    pub before: Vec<Step>,
    /// Each thread's acts.
    pub threads: Vec<Vec<Act>>,
}

impl Plan {
    /// Returns whether an act of one thread may change the file that a path of another thread leads
    /// to. A call looks its path up, and then works with what it has found, in another order than
    /// the names are changed in: as with the kernel.
    pub(super) fn has_moving_paths(&self) -> bool {
        let moves = |at: usize, path: &str| {
            let others = self.threads.iter().enumerate().filter(|(other, _)| *other != at);
            let moved: Vec<String> = others.flat_map(|(_, acts)| acts).flat_map(Act::moved).collect();
            moved.iter().any(|moved| path == moved || path.starts_with(&format!("{moved}/")))
        };
        let paths = self.threads.iter().enumerate().flat_map(|(at, acts)| {
            acts.iter().flat_map(Act::paths).map(move |path| (at, path)).collect::<Vec<_>>()
        });
        paths.into_iter().any(|(at, path)| moves(at, &path))
    }

    /// Returns whether a thread closes the volume.
    pub(super) fn has_close(&self) -> bool {
        self.threads.iter().flatten().any(|act| *act == Act::Close)
    }
}

impl Act {
    fn paths(&self) -> Vec<String> {
        self.to_string().split_whitespace().filter(|word| word.starts_with('/')).map(str::to_owned).collect()
    }

    /// The paths that lead elsewhere afterwards.
    fn moved(&self) -> Vec<String> {
        match self {
            Act::Do(Step::Rename { .. } | Step::Exchange { .. } | Step::Unlink(_) | Step::Rmdir(_)) => {
                self.paths()
            }
            _ => Vec::new(),
        }
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Act::Do(step) => step.fmt(f),
            Act::Read { file, at, len } => write!(f, "read {file} {at} {len}"),
            Act::List(path) => write!(f, "list {path}"),
            Act::Close => f.write_str("close"),
        }
    }
}

impl FromStr for Act {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "close" {
            return Ok(Act::Close);
        }
        // A read and a write have the same form.
        if let Some(rest) = text.strip_prefix("read ") {
            let Step::Write { file, at, len, .. } = format!("write {rest}").parse()? else {
                return Err(format!("'{text}' is no read"));
            };
            return Ok(Act::Read { file, at, len });
        }
        match text.strip_prefix("list ") {
            Some(path) if path.starts_with('/') => Ok(Act::List(path.to_owned())),
            Some(path) => Err(format!("'{text}': '{path}' is no absolute path")),
            None => text.parse().map(Act::Do),
        }
    }
}

fn joined<T: fmt::Display>(all: &[T]) -> String {
    all.iter().map(T::to_string).collect::<Vec<_>>().join("; ")
}

fn parsed<T: FromStr<Err = String>>(text: &str) -> Result<Vec<T>, String> {
    text.split(';').map(str::trim).filter(|part| !part.is_empty()).map(str::parse).collect()
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.setting.name)?;
        if !self.before.is_empty() {
            write!(f, "{} > ", joined(&self.before))?;
        }
        let threads: Vec<String> = self.threads.iter().map(|acts| joined(acts)).collect();
        f.write_str(&threads.join(" | "))
    }
}

impl FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, rest) = text.split_once(':').ok_or_else(|| format!("'{text}' names no setting"))?;
        let (before, threads) = rest.split_once('>').unwrap_or(("", rest));
        let threads: Vec<Vec<Act>> = threads.split('|').map(parsed).collect::<Result<_, _>>()?;
        Ok(Self { setting: setting(name.trim())?, before: parsed(before)?, threads })
    }
}
