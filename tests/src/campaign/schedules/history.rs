//! The history of a session: the calls of its threads, their results, and the final volume.

use super::super::observed::Observed;
use super::super::step::Slot;
use super::plan::Act;
use lanefs::Error;
use lanefs_sim::{Image, Log};
use std::collections::{BTreeMap, BTreeSet};

/// A moment of a session.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    /// Of two moments the later one has the greater number.
    pub(super) point: u64,
    /// The number of a mark in the log of the device.
    pub(super) mark: usize,
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Gave {
    /// It was done.
    Done,
    /// Bytes of a file.
    Bytes(Vec<u8>),
    /// Names of a directory, but for what no step touches.
    Names(BTreeSet<String>),
    /// It was refused by the state of the volume.
    Refused(String),
    /// It was not permitted, as by a flag of chattr(1), and has changed nothing.
    NotPermitted(String),
    /// It is not supported, as by a map without extents, and has changed nothing.
    NotSupported(String),
    /// It found no space, of which every volume of a plan has enough.
    NoSpace(String),
}

/// Sorts an error.
pub(super) fn refusal(error: &Error) -> Gave {
    let error = error.kind();
    let said = error.to_string();
    match error {
        Error::NotPermitted(_) => Gave::NotPermitted(said),
        Error::NotSupported(_) => Gave::NotSupported(said),
        Error::NoSpace => Gave::NoSpace(said),
        _ => Gave::Refused(said),
    }
}

/// One call.
#[derive(Debug, Clone)]
pub(super) struct Call {
    /// The thread.
    pub(super) thread: usize,
    /// The number of the step that the volume and the model make bytes of.
    pub(super) number: usize,
    /// The operation called.
    pub(super) act: Act,
    /// When it began.
    pub(super) began: Moment,
    /// When it ended.
    pub(super) ended: Moment,
    /// Its result.
    pub(super) gave: Gave,
}

/// All that is known of a session that ended.
#[derive(Debug)]
pub(super) struct History {
    /// Calls of all threads. The calls made before the threads started come first.
    pub(super) calls: Vec<Call>,
    /// The content of the open volume at the end; `None` if a call has closed it.
    pub(super) live: Option<Observed>,
    /// The content of the open files at the end.
    pub(super) slots: BTreeMap<Slot, Vec<u8>>,
    /// The writes and flushes that reached the device.
    pub(super) log: Log,
    /// The closed volume.
    pub(super) closed: Image,
    /// The mark behind the close.
    pub(super) end: usize,
}
