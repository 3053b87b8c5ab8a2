//! Devices that record, fail and lose power, and an NBD server that does, for tests.
//!
//! A crash test in four steps: run the code under test on a [`RecordingDevice`], marking what was
//! promised when ([`RecordingDevice::mark`]); take its [`Log`]; walk [`Log::crash_states`]; run
//! recovery on each state's [`OverlayDevice`] and hold the volume against the marks that precede
//! the cut. Everything random comes from one seed, which [`Seed`] prints when a test fails.
//!
//! ```
//! use lanefs_device::BlockDevice;
//! use lanefs_sim::{Image, RecordingDevice, seed_from_env};
//!
//! let device = RecordingDevice::new(Image::zeroed(1 << 20));
//! device.write_at(b"data", 0)?;
//! device.flush()?;
//! device.mark("synced");
//! device.write_at(b"DATA", 0)?;
//!
//! let seed = seed_from_env("LANEFS_SEED");
//! let log = device.log();
//! for state in log.crash_states(seed.value(), 20) {
//!     let mut seen = [0; 4];
//!     state.device().read_at(&mut seen, 0)?;
//!     if state.marks(&log).any(|(_, mark)| mark == "synced") {
//!         assert!(&seen == b"data" || &seen == b"DATA", "{state}");
//!     }
//! }
//! # Ok::<(), lanefs_device::DeviceError>(())
//! ```
#![forbid(unsafe_code)]

mod crash;
mod dump;
mod earlier;
mod fail;
mod image;
mod memory;
mod nbd;
mod overlay;
mod record;
mod seed;

pub use crash::{CrashState, CrashStates, Loss, Shape, Tear};
pub use dump::DumpFile;
pub use fail::{FailingDevice, Failure, Hit};
pub use image::Image;
pub use memory::RecordingMemory;
pub use nbd::{NbdFault, NbdKind, NbdServer, NbdSettings};
pub use overlay::OverlayDevice;
pub use record::{Log, LogEntry, RecordingDevice};
pub use seed::{Seed, seed_from_env};
