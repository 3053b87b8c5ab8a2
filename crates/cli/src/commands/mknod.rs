//! `lanefs mknod`: device files, fifos and sockets, as mknod(1) makes them.

use super::cp::umask;
use crate::failure::{Failure, OrCannot, Res};
use crate::mode::ModeChange;
use crate::quote::quoted;
use crate::volumes::{Spot, Volumes};
use lanefs::FileType;
use std::ffi::OsString;
use std::slice;

/// Make a device file, a fifo or a socket
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The new file, as VOLUME:/path
    #[arg(value_name = "VOLUME:/NAME")]
    path: OsString,
    /// b for a block device, c for a character device, p for a fifo, s for a socket
    #[arg(value_name = "TYPE", value_parser = kind)]
    kind: FileType,
    /// The major number of a device: decimal, 0x and hexadecimal, or 0 and octal
    #[arg(value_name = "MAJOR", value_parser = number, requires = "minor")]
    major: Option<u32>,
    /// The minor number of a device
    #[arg(value_name = "MINOR", value_parser = number)]
    minor: Option<u32>,
    /// Mode of the new file, as chmod has it
    #[arg(short, long)]
    mode: Option<ModeChange>,
}

fn kind(text: &str) -> Result<FileType, String> {
    match text {
        "b" => Ok(FileType::BlockDevice),
        "c" | "u" => Ok(FileType::CharDevice),
        "p" => Ok(FileType::Fifo),
        "s" => Ok(FileType::Socket),
        _ => Err("one of b, c, p, s".into()),
    }
}

/// Parses a number as C has it.
fn number(text: &str) -> Result<u32, String> {
    let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (digits, radix) = match (hexadecimal, text.strip_prefix('0')) {
        (Some(digits), _) => (digits, 16),
        (None, Some(digits)) if !digits.is_empty() => (digits, 8),
        _ => (text, 10),
    };
    u32::from_str_radix(digits, radix).map_err(|_| format!("{} is not a device number", quoted(text)))
}

impl Args {
    pub(crate) fn run(self) -> Res {
        let is_device = matches!(self.kind, FileType::BlockDevice | FileType::CharDevice);
        let device = match self.major.zip(self.minor) {
            None if is_device => return Err(Failure::new("a device has two numbers: MAJOR MINOR")),
            Some(_) if !is_device => return Err(Failure::new("only a device has numbers: leave them out")),
            numbers => numbers.unwrap_or_default(),
        };
        Volumes::default().for_each(slice::from_ref(&self.path), |volumes, path| {
            self.make(&volumes.inside(path, true)?, device)
        })
    }

    fn make(&self, spot: &Spot, device: (u32, u32)) -> Res {
        let umask = umask();
        let permissions = match &self.mode {
            Some(change) => change.apply(0o666, umask),
            None => 0o666 & !umask,
        };
        if permissions & !0o777 != 0 {
            return Err(Failure::new("the mode of a special file is of permission bits only"));
        }
        let mode = u32::from(self.kind.mode_bits()) | permissions;
        let made = spot.side.mknod(&spot.path, mode, device).or_cannot("create", spot.shown())?;
        match &self.mode {
            // A default ACL of the directory limits the mode that a new file gets.
            Some(_) => made.set_mode(permissions).or_cannot("set permissions of", spot.shown()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_devices() {
        for (text, want) in [("0", 0), ("8", 8), ("010", 8), ("0x1F", 31), ("0Xa", 10), ("070000", 28_672)] {
            assert_eq!(number(text), Ok(want), "{text}");
        }
        for bad in ["", "x", "0x", "08", "-1", "4294967296"] {
            assert!(number(bad).is_err(), "{bad}");
        }
    }
}
