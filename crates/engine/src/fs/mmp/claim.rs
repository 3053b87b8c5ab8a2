//! The claim of an open volume.

use super::take::{Taking, Took};
use super::updater::Updater;
use super::{FencedDevice, Holder, MmpBlock, Times};
use crate::error::{MmpError, Result};
use crate::fs::OpenOptions;
use lanefs_device::{AlignedBuf, BlockDevice, host_name};
use lanefs_format::{EXT4_MMP_SEQ_CLEAN, Superblock};
use std::sync::Arc;

/// The right to write to a volume with multiple mount protection. It has to be given back by
/// [`release`](Self::release); a claim that is dropped leaves the block as it was before.
#[derive(Debug)]
pub(crate) struct HostClaim {
    holder: Arc<Holder>,
    updater: Updater,
    before: AlignedBuf,
    /// A volume with a fixed clock keeps no name of this host.
    is_reproducible: bool,
}

impl HostClaim {
    /// Claims the volume of `sb` on `device`, if it has multiple mount protection, `options` ask
    /// for writing, and another host could write to the device. Returns the claim and the device to
    /// write to. Waits as [`Taking::run`] does.
    ///
    /// # Errors
    /// [`MmpError`]; a damaged block; the device's.
    pub(crate) fn take(
        device: &Arc<dyn BlockDevice>,
        sb: &Superblock,
        options: &OpenOptions,
    ) -> Result<Option<(Arc<dyn BlockDevice>, Self)>> {
        let wanted = options.write && options.mmp && !device.is_private();
        let Some((_, interval)) = sb.mmp().filter(|_| wanted) else { return Ok(None) };
        let Some(block) = MmpBlock::of(device, sb)? else { return Ok(None) };
        let (clock, fixed_time) =
            (options.mmp_clock.clone(), options.clock.map(|clock| clock.sec.max(0).unsigned_abs()));
        let Took { mmp, looked, before } = Taking {
            block: &block,
            clock: &clock,
            waiting: &options.mmp_waiting,
            interval,
            nodename: host_name(),
            bdevname: bdevname(&**device),
            fixed_time,
        }
        .run()?;
        let times = (clock, Times::new(interval));
        let holder = Arc::new(Holder::new(block, times, (mmp, looked), !options.threads, fixed_time));
        let claim =
            Self { holder, updater: Updater::default(), before, is_reproducible: fixed_time.is_some() };
        if options.threads {
            claim.updater.start(&claim.holder)?;
        }
        let fenced = FencedDevice::new(Arc::clone(device), Arc::clone(&claim.holder));
        Ok(Some((Arc::new(fenced), claim)))
    }

    /// Returns why the volume is not this host's any more, if so.
    pub(crate) fn lost(&self) -> Option<&MmpError> {
        self.holder.lost()
    }

    /// Gives the volume back: marks the block clean. Nothing can be written any more.
    ///
    /// # Errors
    /// The device's. [`MmpError`], if the claim was lost.
    pub(crate) fn release(&self) -> Result<()> {
        self.updater.stop();
        self.holder.end(|block, mut mmp| {
            mmp.seq = EXT4_MMP_SEQ_CLEAN;
            if self.is_reproducible {
                (mmp.nodename, mmp.bdevname) = (Vec::new(), Vec::new());
            }
            block.encode(&mmp)
        })
    }

    /// Ends the claim of a volume that is about to lose its multiple mount protection. Leaves the
    /// block as it is, and fences nothing any more.
    pub(crate) fn dissolve(&self) {
        self.updater.stop();
        self.holder.dissolve();
    }
}

impl Drop for HostClaim {
    fn drop(&mut self) {
        self.updater.stop();
        // Of a volume that was not opened after all.
        let before = std::mem::replace(&mut self.before, AlignedBuf::zeroed(0));
        let _ = self.holder.end(|_, _| before);
    }
}

/// Returns the name of a device: of a path the last part, as the kernel has it.
pub(super) fn bdevname(device: &dyn BlockDevice) -> Vec<u8> {
    let name = device.name().unwrap_or_default();
    let is_url = name.contains("://");
    let short = name.rsplit('/').next().filter(|last| !is_url && !last.is_empty());
    short.unwrap_or(&name).as_bytes().to_vec()
}
