//! The claim of an open volume.

use super::take::{Taking, Took};
use super::updater::Updater;
use super::{FencedDevice, Holder, MmpBlock, Times};
use crate::error::{MmpError, Result};
use crate::fs::OpenOptions;
use lanefs_device::{AlignedBuf, BlockDevice, host_name};
use lanefs_format::{EXT4_MMP_SEQ_CLEAN, Mmp, Superblock};
use std::sync::Arc;

/// The right to write to a volume with multiple mount protection. It has to be given back by
/// [`release`](Self::release). A claim that is dropped before anything was written leaves the block
/// as it was; behind that the last holder, which may live, must not find its own sequence again,
/// for it would repeat writes.
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
    /// for writing, and another host could reach the device. Returns the claim and the device to
    /// write to. Waits as [`Taking::run`] does, unless a lock keeps other hosts from writing.
    ///
    /// # Errors
    /// [`MmpError`]; a damaged block; the device's.
    pub(crate) fn take(
        device: &Arc<dyn BlockDevice>,
        sb: &Superblock,
        options: &OpenOptions,
    ) -> Result<Option<(Arc<dyn BlockDevice>, Self)>> {
        // No other host reaches a private device of this host, such as an overlay.
        let is_reached = device.is_remote() || !device.is_private();
        let wanted = options.write && options.mmp && is_reached;
        let Some((_, interval)) = sb.mmp().filter(|_| wanted) else { return Ok(None) };
        let Some(block) = MmpBlock::of(device, sb)? else { return Ok(None) };
        let (clock, fixed_time) =
            (options.mmp_clock.clone(), options.clock.map(|clock| clock.sec.max(0).unsigned_abs()));
        let taking = Taking {
            block: &block,
            clock: &clock,
            waiting: &options.mmp_waiting,
            interval,
            nodename: host_name(),
            bdevname: bdevname(&**device),
            fixed_time,
        };
        let took = if device.is_private() { taking.run_alone() } else { taking.run() };
        let Took { mmp, looked, before } = took?;
        let times = (clock, Times::new(interval));
        let holder = Arc::new(Holder::new(block, times, (mmp, looked), !options.threads, fixed_time));
        let (updater, is_reproducible) = (Updater::default(), fixed_time.is_some());
        let claim = Self { holder, updater, before, is_reproducible };
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

    /// Gives the volume back: marks the block clean. Waits for writes under way, also those that a
    /// failed close has left to other threads. Nothing can be written any more.
    ///
    /// # Errors
    /// The device's. [`MmpError`], if the claim was lost.
    pub(crate) fn release(&self) -> Result<()> {
        self.give_back(|block, mut mmp| {
            mmp.seq = EXT4_MMP_SEQ_CLEAN;
            if self.is_reproducible {
                (mmp.nodename, mmp.bdevname) = (Vec::new(), Vec::new());
            }
            block.encode(&mmp)
        })
    }

    /// Notes that the volume was closed and the claim released, both without an error: also a claim
    /// that was dissolved has nothing to repeat then.
    pub(crate) fn closed(&self) {
        self.holder.note_all_durable();
    }

    /// Gives the volume back with the block that `bytes` returns, once no write is under way. The
    /// claim is renewed until then.
    fn give_back(&self, bytes: impl FnOnce(&MmpBlock, Mmp) -> AlignedBuf) -> Result<()> {
        self.holder.refuse_writes();
        self.updater.stop();
        self.holder.end(bytes)
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
        // Of a volume that was not opened after all.
        self.holder.refuse_writes();
        let before = std::mem::replace(&mut self.before, AlignedBuf::zeroed(0));
        let _ = if self.holder.has_written() { self.release() } else { self.give_back(|_, _| before) };
    }
}

/// Returns the name of a device: of a path the last part, as the kernel has it.
pub(super) fn bdevname(device: &dyn BlockDevice) -> Vec<u8> {
    let name = device.name().unwrap_or_default();
    let is_url = name.contains("://");
    let short = name.rsplit('/').next().filter(|last| !is_url && !last.is_empty());
    short.unwrap_or(&name).as_bytes().to_vec()
}
