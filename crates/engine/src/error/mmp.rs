//! Volumes that another host uses.

use lanefs_format::Mmp;
use std::fmt;

/// A host that uses a volume, by the volume's MMP block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MmpHolder {
    /// Its name.
    pub nodename: String,
    /// The device by which it uses the volume.
    pub bdevname: String,
    /// When it last said so, by its own clock, in seconds since 1970.
    pub time: u64,
}

impl MmpHolder {
    pub(crate) fn new(mmp: &Mmp) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { nodename: text(&mmp.nodename), bdevname: text(&mmp.bdevname), time: mmp.time }
    }
}

impl fmt::Display for MmpHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nodename, bdevname, time } = self;
        write!(f, "host '{nodename}', device '{bdevname}', last seen ")?;
        write_time(f, *time)
    }
}

/// Writes a time as a date and a time of UTC, or in seconds if it lies behind the year 9999.
fn write_time(f: &mut fmt::Formatter<'_>, time: u64) -> fmt::Result {
    match i64::try_from(time).ok().and_then(|time| jiff::Timestamp::from_second(time).ok()) {
        Some(date) => write!(f, "{}", date.strftime("%Y-%m-%d %H:%M:%S UTC")),
        None => write!(f, "@{time}"),
    }
}

/// Why a volume with multiple mount protection (MMP) cannot be written to.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone)]
#[non_exhaustive]
pub enum MmpError {
    /// Another host uses the volume.
    #[error("another host uses the volume: {0}")]
    InUse(MmpHolder),
    /// e2fsck uses the volume, or was stopped.
    #[error(
        "e2fsck uses the volume, or was stopped while it did: {0}; if it does not run, lanefs mmp clear (or \
         tune2fs -f -E clear_mmp) ends its claim, and e2fsck -f checks the volume"
    )]
    Fsck(MmpHolder),
    /// A sequence that no implementation writes.
    #[error("mmp_seq is {seq:#010x}, which no host writes: {holder}; lanefs mmp clear resets it")]
    UnknownSequence {
        /// The sequence.
        seq: u32,
        /// The host that is named beside it.
        holder: MmpHolder,
    },
    /// Another host has opened the volume at the same moment.
    #[error("another host has opened the volume at the same moment")]
    Raced,
    /// The MMP block lies outside of the volume, or is its superblock.
    #[error("s_mmp_block is {block}: not a block of the {blocks} of the volume")]
    Place {
        /// `s_mmp_block`.
        block: u64,
        /// Blocks of the volume.
        blocks: u64,
    },
    /// Another host has taken the volume from this one.
    #[error(
        "this host was out of reach for so long that another one has taken the volume, and writes nothing \
         more to it: {0}"
    )]
    Fenced(MmpHolder),
    /// The claim of this host was ended by another one.
    #[error(
        "this host writes nothing more to the volume: its claim was ended by another host, or by a command \
         such as lanefs mmp clear"
    )]
    FencedByClear,
    /// The MMP block was overwritten.
    #[error("this host writes nothing more to the volume, which may be another host's: {why}")]
    FencedByDamage {
        /// What is wrong with the block.
        why: String,
    },
    /// An update of the MMP block took so long that another host may have taken the volume.
    #[error(
        "this host writes nothing more to the volume, which may be another host's: an update of the MMP \
         block took {seconds} s"
    )]
    Late {
        /// How long.
        seconds: u64,
    },
    /// The MMP block cannot be read in time.
    #[error("a read of the MMP block takes more than {seconds} s")]
    Slow {
        /// How long.
        seconds: u64,
    },
}

impl MmpError {
    /// Returns the error of a host that finds another block than its own.
    pub(crate) fn fenced(seen: &Mmp) -> Self {
        match seen.state() {
            lanefs_format::MmpState::Clean => Self::FencedByClear,
            _ => Self::Fenced(MmpHolder::new(seen)),
        }
    }

    /// Returns whether the volume was refused because it is in use.
    pub fn is_in_use(&self) -> bool {
        matches!(self, Self::InUse(_) | Self::Fsck(_) | Self::UnknownSequence { .. } | Self::Raced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_date() {
        let holder = |time| MmpHolder { nodename: "n".into(), bdevname: "d".into(), time }.to_string();
        for (time, date) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_700_000_000, "2023-11-14 22:13:20"),
            (4_102_444_800, "2100-01-01 00:00:00"),
        ] {
            assert_eq!(holder(time), format!("host 'n', device 'd', last seen {date} UTC"));
        }
        assert!(holder(u64::MAX).ends_with("last seen @18446744073709551615"));
    }
}
