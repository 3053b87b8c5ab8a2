//! `lanefs truncate`: the length of files, with the options of truncate(1).

use super::cp::umask;
use crate::failure::{OrCannot, Res};
use crate::location::Location;
use crate::side::Outcome;
use crate::size;
use crate::volumes::Volumes;
use lanefs::{Error, File};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};

/// Make files shorter or longer
///
/// What a file gains is a hole, which reads as zeros.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Files, as VOLUME:/path; made if they are not there
    #[arg(required = true, value_name = "VOLUME:/PATH")]
    paths: Vec<OsString>,
    /// The size (4096, 1M), or with + or - in front by how much a file grows or shrinks
    #[arg(short, long, value_name = "[+-]SIZE", value_parser = NewLength::parse, allow_hyphen_values = true)]
    size: NewLength,
    /// Make no file
    #[arg(short = 'c', long)]
    no_create: bool,
}

/// A length that a file is to have, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NewLength {
    Exactly(u64),
    Longer(u64),
    Shorter(u64),
}

impl NewLength {
    fn parse(text: &str) -> Result<Self, String> {
        match (text.strip_prefix('+'), text.strip_prefix('-')) {
            (Some(more), _) => size::parse(more).map(Self::Longer),
            (_, Some(less)) => size::parse(less).map(Self::Shorter),
            _ => size::parse(text).map(Self::Exactly),
        }
    }

    /// Returns the length of a file that has `len` bytes now, `None` if no number says it.
    fn of(self, len: u64) -> Option<u64> {
        match self {
            Self::Exactly(new) => Some(new),
            Self::Longer(by) => len.checked_add(by),
            Self::Shorter(by) => Some(len.saturating_sub(by)),
        }
    }
}

impl Args {
    pub(crate) fn run(self) -> Res {
        Volumes::default().for_each(&self.paths, |volumes, path| self.one(volumes, path))
    }

    fn one(&self, volumes: &mut Volumes, arg: &OsStr) -> Res {
        let (volume, path) = Location::parse(arg).in_volume(arg, "/path")?;
        let side = volumes.volume(&volume, true)?;
        let done = match side.open_to_write(&path, (!self.no_create).then(|| 0o666 & !umask())) {
            Err(e) if self.no_create && e.is(Errno::NOENT) => Ok(()),
            opened => opened.and_then(|file| self.set_len_of(&file)),
        };
        done.or_cannot("truncate", arg.as_encoded_bytes())
    }

    fn set_len_of(&self, file: &File) -> Outcome {
        let len = self.size.of(file.metadata().len()).ok_or(Error::FileTooBig)?;
        Ok(file.set_len(len)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths() {
        assert_eq!(NewLength::parse("1M").map(|new| new.of(5)), Ok(Some(1 << 20)));
        assert_eq!(NewLength::parse("+4k").map(|new| new.of(5)), Ok(Some(4101)));
        assert_eq!(NewLength::parse("-3").map(|new| new.of(5)), Ok(Some(2)));
        assert_eq!(NewLength::parse("-1G").map(|new| new.of(5)), Ok(Some(0)));
        assert_eq!(NewLength::parse("+1").map(|new| new.of(u64::MAX)), Ok(None));
        for bad in ["", "+", "-", "+-1", "--1", "x", "1X"] {
            assert!(NewLength::parse(bad).is_err(), "{bad}");
        }
    }
}
