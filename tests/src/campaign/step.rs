//! One step of a workload, and its text.
//!
//! A step names its file by a letter: the workload keeps it open, so that the file can be used
//! after its name has gone. Names are absolute paths. `Display` and `FromStr` are each other's
//! inverse: a failure is replayed from its text.

use lanefs::FallocMode;
use std::fmt;
use std::str::FromStr;

/// A file that a workload has open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Slot {
    /// `/A/f`: a few blocks in one piece, with attributes in the inode.
    F,
    /// `/B/g`: holes between its blocks, with attributes in a block.
    G,
    /// The file that `create` made last.
    N,
    /// The file that `nameless` made.
    T,
}

/// A flag of chattr(1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flag {
    /// No dump: changes nothing else.
    NoDump,
    /// Append-only.
    Append,
    /// Immutable.
    Immutable,
}

/// The way in which bytes come to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Way {
    /// Through the page cache.
    Write,
    /// Past it (O_DIRECT).
    Direct,
    /// As a cache above hands them down.
    Late,
    /// Durable before the call returns (O_DSYNC).
    Dsync,
    /// Its halves as two requests of one batch, past the page cache.
    Batch,
    /// As far as it goes without waiting, and then the rest.
    NoWait,
    /// As [`NoWait`](Self::NoWait), but past the page cache.
    NoWaitDirect,
    /// Past the page cache: first the back half, while the front half is lent as a slice
    /// (`File::map`). On a device that is no memory nothing is lent.
    Lent,
}

/// One call of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the system call of that name says it")]
pub enum Step {
    Create(String),
    Write {
        way: Way,
        file: Slot,
        at: usize,
        len: usize,
    },
    Append {
        file: Slot,
        len: usize,
    },
    Falloc {
        mode: FallocMode,
        file: Slot,
        at: usize,
        len: usize,
    },
    Truncate {
        file: Slot,
        len: usize,
    },
    Copy {
        from: Slot,
        at: usize,
        to: Slot,
        to_at: usize,
        len: usize,
    },
    Link {
        from: String,
        to: String,
    },
    Unlink(String),
    Rename {
        from: String,
        to: String,
    },
    Exchange {
        from: String,
        to: String,
    },
    Symlink {
        path: String,
        len: usize,
    },
    Mkdir(String),
    Rmdir(String),
    SetXattr {
        path: String,
        len: usize,
    },
    RemoveXattr(String),
    Chmod(String),
    Chown(String),
    /// Sets the time of the last change of the content, as utimensat(2) does.
    Touch(String),
    Chattr {
        path: String,
        flag: Flag,
    },
    Nameless,
    LinkNameless(String),
    Fsync(Slot),
    FsyncDir(String),
    Fdatasync(Slot),
    Sync,
    /// Discards all free blocks, as fstrim(8) does.
    Trim,
    /// A commit, as by the commit timer.
    Commit,
    /// Writeback of dirty pages, as by their age.
    WriteBack,
    Checkpoint,
    /// Closes all files that have a name, then evicts all unreferenced inodes.
    Sweep,
}

impl Step {
    /// Returns whether it only makes durable what others did.
    pub fn is_persistence(&self) -> bool {
        use Step::{Checkpoint, Commit, Fdatasync, Fsync, FsyncDir, Sweep, Sync, WriteBack};
        matches!(self, Fsync(_) | FsyncDir(_) | Fdatasync(_) | Sync | Commit | WriteBack | Checkpoint | Sweep)
    }

    /// Returns whether it has to do with open files alone, and needs no volume.
    #[cfg(lanefs_schedule)]
    pub(super) fn is_of_files(&self) -> bool {
        use Step::{Append, Copy, Falloc, Fdatasync, Fsync, Truncate, Write};
        matches!(
            self,
            Write { .. }
                | Append { .. }
                | Falloc { .. }
                | Truncate { .. }
                | Copy { .. }
                | Fsync(_)
                | Fdatasync(_)
        )
    }
}

const SLOTS: &[(&str, Slot)] = &[("f", Slot::F), ("g", Slot::G), ("n", Slot::N), ("t", Slot::T)];

const FLAGS: &[(&str, Flag)] =
    &[("nodump", Flag::NoDump), ("append", Flag::Append), ("immutable", Flag::Immutable)];

const WAYS: &[(&str, Way)] = &[
    ("write", Way::Write),
    ("direct", Way::Direct),
    ("late", Way::Late),
    ("dsync", Way::Dsync),
    ("batch", Way::Batch),
    ("nowait", Way::NoWait),
    ("nowait-direct", Way::NoWaitDirect),
    ("lent", Way::Lent),
];

const MODES: &[(&str, FallocMode)] = &[
    ("allocate", FallocMode::Allocate),
    ("keep", FallocMode::KeepSize),
    ("punch", FallocMode::PunchHole),
    ("zero", FallocMode::ZeroRange),
    ("zero-keep", FallocMode::ZeroRangeKeepSize),
    ("collapse", FallocMode::CollapseRange),
    ("insert", FallocMode::InsertRange),
];

/// A function that makes a step of a path.
type OfPath = fn(String) -> Step;

/// Steps of one path.
const OF_PATH: &[(&str, OfPath)] = &[
    ("create", Step::Create),
    ("unlink", Step::Unlink),
    ("mkdir", Step::Mkdir),
    ("rmdir", Step::Rmdir),
    ("removexattr", Step::RemoveXattr),
    ("chmod", Step::Chmod),
    ("chown", Step::Chown),
    ("touch", Step::Touch),
    ("link-nameless", Step::LinkNameless),
    ("fsync-dir", Step::FsyncDir),
];

/// Steps of nothing.
const ALONE: &[(&str, Step)] = &[
    ("nameless", Step::Nameless),
    ("sync", Step::Sync),
    ("trim", Step::Trim),
    ("commit", Step::Commit),
    ("writeback", Step::WriteBack),
    ("checkpoint", Step::Checkpoint),
    ("sweep", Step::Sweep),
];

fn word<T: PartialEq>(table: &[(&'static str, T)], value: &T) -> &'static str {
    table.iter().find(|(_, known)| known == value).map_or("?", |(word, _)| word)
}

fn value<T: Clone>(table: &[(&'static str, T)], word: &str) -> Result<T, String> {
    let found = table.iter().find(|(known, _)| *known == word);
    found.map(|(_, value)| value.clone()).ok_or_else(|| format!("'{word}' is none of this table"))
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(word(SLOTS, self))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Write { way, file, at, len } => write!(f, "{} {file} {at} {len}", word(WAYS, way)),
            Step::Append { file, len } => write!(f, "append {file} {len}"),
            Step::Falloc { mode, file, at, len } => {
                write!(f, "falloc {} {file} {at} {len}", word(MODES, mode))
            }
            Step::Truncate { file, len } => write!(f, "truncate {file} {len}"),
            Step::Copy { from, at, to, to_at, len } => write!(f, "copy {from} {at} {to} {to_at} {len}"),
            Step::Link { from, to } => write!(f, "link {from} {to}"),
            Step::Rename { from, to } => write!(f, "rename {from} {to}"),
            Step::Exchange { from, to } => write!(f, "exchange {from} {to}"),
            Step::Symlink { path, len } => write!(f, "symlink {path} {len}"),
            Step::SetXattr { path, len } => write!(f, "setxattr {path} {len}"),
            Step::Chattr { path, flag } => write!(f, "chattr {path} {}", word(FLAGS, flag)),
            Step::Fsync(file) => write!(f, "fsync {file}"),
            Step::Fdatasync(file) => write!(f, "fdatasync {file}"),
            Step::Create(path)
            | Step::Unlink(path)
            | Step::Mkdir(path)
            | Step::Rmdir(path)
            | Step::RemoveXattr(path)
            | Step::Chmod(path)
            | Step::Chown(path)
            | Step::Touch(path)
            | Step::LinkNameless(path)
            | Step::FsyncDir(path) => {
                let made = |(_, make): &&(&str, OfPath)| make(path.clone()) == *self;
                write!(f, "{} {path}", OF_PATH.iter().find(made).map_or("?", |(word, _)| word))
            }
            _ => f.write_str(word(ALONE, self)),
        }
    }
}

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let number = |word: &str| word.parse::<usize>().map_err(|e| format!("'{text}': '{word}': {e}"));
        let slot = |word: &str| value(SLOTS, word);
        let path = |path: &str| match path.starts_with('/') {
            true => Ok(path.to_owned()),
            false => Err(format!("'{text}': '{path}' is no absolute path")),
        };
        Ok(match *words.as_slice() {
            [way, file, at, len] if value(WAYS, way).is_ok() => {
                Step::Write { way: value(WAYS, way)?, file: slot(file)?, at: number(at)?, len: number(len)? }
            }
            ["append", file, len] => Step::Append { file: slot(file)?, len: number(len)? },
            ["falloc", mode, file, at, len] => Step::Falloc {
                mode: value(MODES, mode)?,
                file: slot(file)?,
                at: number(at)?,
                len: number(len)?,
            },
            ["truncate", file, len] => Step::Truncate { file: slot(file)?, len: number(len)? },
            ["copy", from, at, to, to_at, len] => Step::Copy {
                from: slot(from)?,
                at: number(at)?,
                to: slot(to)?,
                to_at: number(to_at)?,
                len: number(len)?,
            },
            ["link", from, to] => Step::Link { from: path(from)?, to: path(to)? },
            ["rename", from, to] => Step::Rename { from: path(from)?, to: path(to)? },
            ["exchange", from, to] => Step::Exchange { from: path(from)?, to: path(to)? },
            ["symlink", at, len] => Step::Symlink { path: path(at)?, len: number(len)? },
            ["setxattr", at, len] => Step::SetXattr { path: path(at)?, len: number(len)? },
            ["chattr", at, flag] => Step::Chattr { path: path(at)?, flag: value(FLAGS, flag)? },
            ["fsync", file] => Step::Fsync(slot(file)?),
            ["fdatasync", file] => Step::Fdatasync(slot(file)?),
            [step, at] if value(OF_PATH, step).is_ok() => value(OF_PATH, step)?(path(at)?),
            [step] => value(ALONE, step)?,
            _ => return Err(format!("'{text}' is no step")),
        })
    }
}
