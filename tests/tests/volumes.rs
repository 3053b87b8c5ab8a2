//! Judges of the engine on whole volumes. In one binary, which is linked once and whose tests run
//! side by side; each file has its own subject.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panic")]

mod atomic;
mod check;
mod differential;
mod directories;
mod dirty_journal;
mod errors;
mod failing_load;
mod fallocate;
mod faults;
mod fsx;
mod full;
mod half_way;
mod kernel;
mod latency;
mod limits;
mod neighbours;
mod noacl;
mod orphans;
mod overlay_power;
mod own_inodes;
mod power_loss;
mod power_loss_data;
mod rarities;
mod remote_power;
mod threads;
mod torture;
mod verity;
mod xattrs;
