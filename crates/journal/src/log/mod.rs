//! Where the log lies: its blocks on the volume, and the ring that they form.

mod map;
mod ring;

pub(crate) use map::LogMap;
pub(crate) use ring::Ring;
