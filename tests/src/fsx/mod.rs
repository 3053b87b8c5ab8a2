//! Operations on the content of one file, as values that can be logged, and played against a model.

mod draw;
mod player;

pub use draw::draw;
pub use player::{Model, Player};

use lanefs::FallocMode;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// One call on an open file. Displayed, it is a line of a log; parsed, it is the call again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the call of that name says it")]
pub enum FileOp {
    Write {
        at: u64,
        len: usize,
        fill: u8,
        way: Way,
    },
    Append {
        len: usize,
        fill: u8,
        way: Way,
    },
    Read {
        at: u64,
        len: usize,
        way: Way,
    },
    /// As much as can be had without waiting, which may be nothing.
    TryRead {
        at: u64,
        len: usize,
        way: Way,
    },
    /// As much as can be done without waiting, which may be nothing.
    TryWrite {
        at: u64,
        len: usize,
        fill: u8,
        way: Way,
    },
    /// From a range of the file to another of it, which it does not meet.
    Copy {
        from: u64,
        at: u64,
        len: u64,
    },
    Truncate {
        len: u64,
    },
    /// By the number of the mode in [`FALLOCATES`].
    Fallocate {
        mode: usize,
        at: u64,
        len: u64,
    },
    /// Where data begins, and where a hole does, at or behind `at`.
    Seek {
        at: u64,
    },
    Fsync,
    Fdatasync,
    /// Closes all handles of the file and opens it anew.
    Reopen,
}

/// The fallocate modes. The last two move the data behind the range, and are only for files that
/// are not shared.
pub const FALLOCATES: [FallocMode; 7] = [
    FallocMode::Allocate,
    FallocMode::KeepSize,
    FallocMode::PunchHole,
    FallocMode::ZeroRange,
    FallocMode::ZeroRangeKeepSize,
    FallocMode::CollapseRange,
    FallocMode::InsertRange,
];

/// The handle by which a file is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Way {
    /// An ordinary one.
    Buffered,
    /// One that goes past the page cache.
    Direct,
    /// One whose writes are durable.
    Dsync,
}

impl Way {
    /// All of them, by number.
    pub const ALL: [Self; 3] = [Self::Buffered, Self::Direct, Self::Dsync];
}

impl FileOp {
    /// The bytes that it changes or looks at.
    pub fn range(&self) -> Range<u64> {
        match *self {
            Self::Write { at, len, .. }
            | Self::Read { at, len, .. }
            | Self::TryRead { at, len, .. }
            | Self::TryWrite { at, len, .. } => at..at + len as u64,
            Self::Copy { from, at, len } => from.min(at)..from.max(at) + len,
            Self::Truncate { len } => len..u64::MAX,
            Self::Fallocate { mode, at, len } if mode < 5 => at..at + len,
            Self::Seek { at } | Self::Fallocate { at, .. } => at..u64::MAX,
            Self::Append { .. } | Self::Fsync | Self::Fdatasync | Self::Reopen => 0..u64::MAX,
        }
    }
}

impl fmt::Display for FileOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write { at, len, fill, way } => write!(f, "write {at} {len} {fill} {}", *way as u8),
            Self::Append { len, fill, way } => write!(f, "append {len} {fill} {}", *way as u8),
            Self::Read { at, len, way } => write!(f, "read {at} {len} {}", *way as u8),
            Self::TryRead { at, len, way } => write!(f, "try-read {at} {len} {}", *way as u8),
            Self::TryWrite { at, len, fill, way } => write!(f, "try-write {at} {len} {fill} {}", *way as u8),
            Self::Copy { from, at, len } => write!(f, "copy {from} {at} {len}"),
            Self::Truncate { len } => write!(f, "truncate {len}"),
            Self::Fallocate { mode, at, len } => write!(f, "fallocate {mode} {at} {len}"),
            Self::Seek { at } => write!(f, "seek {at}"),
            Self::Fsync => f.write_str("fsync"),
            Self::Fdatasync => f.write_str("fdatasync"),
            Self::Reopen => f.write_str("reopen"),
        }
    }
}

impl FromStr for FileOp {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let bad = || format!("no such operation: {line:?}");
        let mut words = line.split_whitespace();
        let name = words.next().ok_or_else(bad)?;
        let numbers: Vec<u64> = words.map(|w| w.parse().map_err(|_| bad())).collect::<Result<_, _>>()?;
        let way = || {
            let number = numbers.last().and_then(|n| usize::try_from(*n).ok());
            number.and_then(|n| Way::ALL.get(n).copied()).ok_or_else(bad)
        };
        Ok(match (name, &numbers[..]) {
            ("write", &[at, len, fill, _]) => {
                Self::Write { at, len: len as usize, fill: fill as u8, way: way()? }
            }
            ("append", &[len, fill, _]) => Self::Append { len: len as usize, fill: fill as u8, way: way()? },
            ("read", &[at, len, _]) => Self::Read { at, len: len as usize, way: way()? },
            ("try-read", &[at, len, _]) => Self::TryRead { at, len: len as usize, way: way()? },
            ("try-write", &[at, len, fill, _]) => {
                Self::TryWrite { at, len: len as usize, fill: fill as u8, way: way()? }
            }
            ("copy", &[from, at, len]) => Self::Copy { from, at, len },
            ("truncate", &[len]) => Self::Truncate { len },
            ("fallocate", &[mode, at, len]) if mode < FALLOCATES.len() as u64 => {
                Self::Fallocate { mode: mode as usize, at, len }
            }
            ("seek", &[at]) => Self::Seek { at },
            ("fsync", []) => Self::Fsync,
            ("fdatasync", []) => Self::Fdatasync,
            ("reopen", []) => Self::Reopen,
            _ => return Err(bad()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    #[test]
    fn a_log_can_be_read_again() {
        let mut rng = StdRng::seed_from_u64(1);
        let model = Model::whole("/f");
        for _ in 0..500 {
            let op = draw(&mut rng, &model, 1024);
            assert_eq!(op.to_string().parse(), Ok(op));
        }
        assert!("write 1 2".parse::<FileOp>().is_err());
    }
}
