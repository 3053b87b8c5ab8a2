//! A volume that is nothing but blocks and a log.

use crate::{LogConfig, LogRun, Options};
use lanefs_device::{BlockDevice, MemDevice};
use lanefs_format::jbd2::{Compat, Incompat, Superblock};
use std::time::Duration;

pub(crate) const BLOCK: u32 = 1024;
/// Where the log lies.
pub(crate) const LOG_START: u64 = 3000;
/// Size of the volume in blocks.
pub(crate) const BLOCKS: usize = 5000;

pub(crate) fn config(blocks: u32) -> LogConfig {
    // In two pieces, the second one first.
    let half = blocks / 2;
    LogConfig {
        runs: vec![
            LogRun { logical: 0, physical: LOG_START, len: half },
            LogRun { logical: half, physical: LOG_START - u64::from(blocks - half) - 3, len: blocks - half },
        ],
        ..LogConfig::default()
    }
}

/// Returns options without commits but those asked for.
pub(crate) fn options(log_blocks: u32) -> Options {
    Options { log: Some(config(log_blocks)), commit_interval: Duration::ZERO, ..Options::new(BLOCK) }
}

/// Returns a log of version 3 checksums and wide numbers.
pub(crate) fn log_superblock(blocks: u32) -> Superblock {
    let mut sb = Superblock::new(BLOCK, blocks, [3; 16]);
    sb.set_features(Compat::empty(), Incompat::CSUM_V3 | Incompat::BIT64);
    sb
}

/// Returns a volume of zeros with an empty log without checksums.
pub(crate) fn empty_log(blocks: u32) -> MemDevice {
    with_log(&Superblock::new(BLOCK, blocks, [3; 16]))
}

pub(crate) fn with_log(sb: &Superblock) -> MemDevice {
    let device = MemDevice::new(BLOCKS * BLOCK as usize);
    device.write_at(&sb.to_bytes(), LOG_START * u64::from(BLOCK)).unwrap();
    device
}

pub(crate) fn device_bytes(device: &dyn BlockDevice, block: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK as usize];
    device.read_at(&mut bytes, block * u64::from(BLOCK)).unwrap();
    bytes
}
