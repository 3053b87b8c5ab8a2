//! Marks the block of a volume as clean whose user is gone.

use super::claim::bdevname;
use super::holder::now_in_seconds;
use super::take::STEP;
use super::{MmpBlock, MmpWait};
use crate::error::{MmpError, MmpHolder, Result};
use crate::fs::OpenOptions;
use lanefs_device::host_name;
use lanefs_format::mmp::{check_interval, takeover_wait};
use lanefs_format::{EXT4_MMP_SEQ_CLEAN, Mmp, MmpState};

/// Marks the block as clean, unless it changes for as long as an open would wait. `force`: does not
/// wait.
///
/// # Errors
/// [`MmpError::InUse`]; the device's.
pub(crate) fn clear(block: &MmpBlock, interval: u16, options: &OpenOptions, force: bool) -> Result<()> {
    let clock = &options.mmp_clock;
    let before = block.read_bytes()?;
    let seen = block.parse(&before).ok();
    let is_clean = seen.as_ref().is_some_and(|mmp| mmp.state() == MmpState::Clean);
    // A lock keeps other hosts from a private device.
    if !force && !is_clean && !block.device.is_private() {
        let wait = takeover_wait(interval, seen.as_ref().map_or(0, |mmp| mmp.check_interval));
        if let Some(told) = &options.mmp_waiting.0 {
            told(&MmpWait { holder: seen.as_ref().map(MmpHolder::new), longest: wait });
        }
        let end = clock.now() + wait;
        while clock.now() < end {
            clock.sleep(end.saturating_sub(clock.now()).min(STEP));
            let now = block.read_bytes()?;
            if *now != *before {
                let holder = block.parse(&now).ok().or(seen).as_ref().map(MmpHolder::new);
                return Err(holder.map_or(MmpError::Raced, MmpError::InUse).into());
            }
        }
    }
    let fixed_time = options.clock.map(|clock| clock.sec.max(0).unsigned_abs());
    let name = |name: fn(&MmpBlock) -> Vec<u8>| if fixed_time.is_some() { Vec::new() } else { name(block) };
    let cleared = Mmp {
        seq: EXT4_MMP_SEQ_CLEAN,
        time: fixed_time.unwrap_or_else(now_in_seconds),
        nodename: name(|_| host_name()),
        bdevname: name(|block| bdevname(&*block.device)),
        check_interval: check_interval(interval),
    };
    block.write_over(&before, &cleared).map(drop)
}
