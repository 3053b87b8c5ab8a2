//! Devices that record, fail and lose power, for tests.
//!
//! A crash test in four steps: run the code under test on a [`RecordingDevice`], marking what was
//! promised when ([`RecordingDevice::mark`]); take its [`Log`]; walk [`Log::crash_states`]; run recovery
//! on each state's [`OverlayDevice`] and hold the volume against the marks that precede the cut.
//! Everything random comes from one seed, which [`Seed`] prints when a test fails.
#![forbid(unsafe_code)]

mod crash;
mod dump;
mod fail;
mod image;
mod overlay;
mod record;
mod seed;

pub use crash::{CrashState, CrashStates, Shape};
pub use dump::DumpFile;
pub use fail::FailingDevice;
pub use image::Image;
pub use overlay::OverlayDevice;
pub use record::{Entry, Log, RecordingDevice};
pub use seed::{Seed, seed_from_env};
