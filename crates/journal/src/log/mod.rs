//! The place of the log: its blocks on the volume, and the ring that they form.

mod map;
mod ring;
mod torn;
mod writer;

pub(crate) use map::LogMap;
pub(crate) use ring::Ring;
pub(crate) use writer::LogWriter;
