//! One call of the device that fails, and its text.

use lanefs_device::Op;
use lanefs_sim::Failure;
use std::fmt;
use std::str::FromStr;

/// The way in which a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// EIO, once.
    Eio,
    /// EIO, and so does every later call of this kind.
    EioOn,
    /// ENOSPC, once: the backing file is sparse, and its file system was full for a moment.
    NoSpace,
    /// ENOSPC, and so do all later calls of this kind.
    NoSpaceOn,
    /// A short transfer: the first half, and EIO behind it.
    Half,
    /// A sector that cannot be read until it is written: EIO, and again at each later read of it.
    Bad,
    /// A flush that fails with EIO, and has lost what was written since the flush before, or a part
    /// of it.
    Lost,
    /// A read that returns what was there before the last write.
    Stale,
    /// A read with one bit wrong.
    Flip,
}

const WAYS: &[(&str, Way)] = &[
    ("eio", Way::Eio),
    ("eio-on", Way::EioOn),
    ("enospc", Way::NoSpace),
    ("enospc-on", Way::NoSpaceOn),
    ("half", Way::Half),
    ("bad", Way::Bad),
    ("lost", Way::Lost),
    ("stale", Way::Stale),
    ("flip", Way::Flip),
];

const OPS: &[(&str, Op)] =
    &[("read", Op::Read), ("write", Op::Write), ("flush", Op::Flush), ("discard", Op::Discard)];

/// When it fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// While the workload runs, from opening to the end of the close.
    Run,
    /// While the volume is recovered from a crash of the workload.
    Recovery,
}

/// One call of a device that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// When.
    pub phase: Phase,
    /// The kind of call.
    pub op: Op,
    /// The number of the call among its kind, from 1.
    pub nth: u64,
    /// How.
    pub way: Way,
}

impl Fault {
    /// The ways in which calls of a kind fail.
    pub fn ways(op: Op) -> &'static [Way] {
        match op {
            Op::Read => &[Way::Eio, Way::EioOn, Way::Half, Way::Bad, Way::Stale, Way::Flip],
            Op::Write => &[Way::Eio, Way::EioOn, Way::NoSpace, Way::NoSpaceOn, Way::Half],
            Op::Flush => &[Way::Eio, Way::EioOn, Way::NoSpace, Way::Lost],
            _ => &[Way::Eio, Way::EioOn],
        }
    }

    /// What the device is to do.
    pub(super) fn failure(&self) -> Failure {
        match self.way {
            Way::Eio | Way::EioOn | Way::Lost => Failure::Error(libc::EIO),
            Way::NoSpace | Way::NoSpaceOn => Failure::Error(libc::ENOSPC),
            Way::Half => Failure::Half(libc::EIO),
            Way::Bad => Failure::Bad(libc::EIO),
            Way::Stale => Failure::Stale,
            // A prime spreads the bits over the reads.
            Way::Flip => Failure::Flip(self.nth.wrapping_mul(7_368_787)),
        }
    }

    /// Returns whether all later calls of its kind fail too.
    pub(super) fn is_for_ever(&self) -> bool {
        matches!(self.way, Way::EioOn | Way::NoSpaceOn)
    }

    /// Returns whether the device says that a call failed.
    pub(super) fn is_told(&self) -> bool {
        !matches!(self.way, Way::Stale | Way::Flip)
    }

    /// Returns whether no caller may go on as if nothing had happened: what was written may not be
    /// there.
    pub(super) fn is_loud(&self) -> bool {
        matches!(self.op, Op::Write | Op::Flush)
    }

    /// Returns whether a caller may be given this errno for it.
    pub(super) fn allows(&self, errno: i32) -> bool {
        let told = [libc::EIO, libc::EROFS].contains(&errno);
        // A group whose bitmap was read wrong has no space.
        told || !self.is_told() && [libc::EUCLEAN, libc::ENOSPC].contains(&errno)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { phase, op, nth, way } = self;
        if *phase == Phase::Recovery {
            f.write_str("recovery ")?;
        }
        let op = OPS.iter().find(|(_, known)| known == op).map_or("?", |(word, _)| word);
        let way = WAYS.iter().find(|(_, known)| known == way).map_or("?", |(word, _)| word);
        write!(f, "{op} {nth} {way}")
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (phase, words) = match words.as_slice() {
            ["recovery", rest @ ..] => (Phase::Recovery, rest),
            all => (Phase::Run, all),
        };
        let &[op, nth, way] = words else { return Err(format!("'{text}' is no fault")) };
        let op = OPS.iter().find(|(word, _)| *word == op).ok_or_else(|| format!("'{op}' is no call"))?.1;
        let way = WAYS.iter().find(|(word, _)| *word == way).ok_or_else(|| format!("'{way}' is no way"))?.1;
        let nth = nth.parse().map_err(|e| format!("'{nth}': {e}"))?;
        Ok(Self { phase, op, nth, way })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        for phase in [Phase::Run, Phase::Recovery] {
            for (_, op) in OPS {
                for way in Fault::ways(*op) {
                    let fault = Fault { phase, op: *op, nth: 17, way: *way };
                    assert_eq!(fault.to_string().parse::<Fault>().unwrap(), fault);
                }
            }
        }
        for wrong in ["", "write 1", "write x eio", "writ 1 eio", "recovery write 1 oops"] {
            assert!(wrong.parse::<Fault>().is_err(), "{wrong}");
        }
    }
}
