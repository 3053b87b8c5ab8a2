//! Hosts that share a device in memory, each with a clock that passes when it sleeps.

mod fence;
mod opening;
mod release;
mod switch;

use super::{MmpBlock, MmpClock};
use crate::error::{Error, MmpError, Result};
use crate::fs::{Fs, OpenOptions};
use crate::store::{read_super, write_super};
use crate::{Volume, mmp};
use lanefs_device::{BlockDevice, MemDevice, Op};
use lanefs_format::{EXT4_MMP_SEQ_CLEAN, EXT4_MMP_SEQ_FSCK, Mmp, MmpState, Superblock};
use lanefs_mkfs::Options;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

type Hook = Box<dyn FnMut(Duration) + Send>;

/// A clock whose time passes when its host sleeps. `hook` runs behind each sleep.
#[derive(Default)]
struct Clock {
    nanos: AtomicU64,
    hook: Mutex<Option<Hook>>,
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

impl MmpClock for Clock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }

    fn sleep(&self, time: Duration) {
        self.pass(time);
        let now = self.now();
        if let Some(hook) = &mut *self.hook.lock().unwrap() {
            hook(now);
        }
    }
}

impl Clock {
    fn pass(&self, time: Duration) {
        self.nanos.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    fn seconds(&self) -> u64 {
        self.now().as_secs()
    }
}

/// A device that calls `hook` before each read and write.
struct Hooked {
    below: Arc<MemDevice>,
    hook: Mutex<Box<dyn FnMut(Op, u64) + Send>>,
}

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooked")
    }
}

impl BlockDevice for Hooked {
    fn size(&self) -> u64 {
        self.below.size()
    }

    /// Longer than the block has room for.
    fn name(&self) -> Option<String> {
        Some("nbd+unix:///export?socket=/run/user/1000/nbd.sock".into())
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> lanefs_device::Result<()> {
        self.hook.lock().unwrap()(Op::Read, offset);
        self.below.read_at(buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> lanefs_device::Result<()> {
        self.hook.lock().unwrap()(Op::Write, offset);
        self.below.write_at(data, offset)
    }

    fn flush(&self) -> lanefs_device::Result<()> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> lanefs_device::Result<()> {
        Ok(())
    }
}

/// A volume with multiple mount protection, on a device that hosts share.
struct Shared {
    device: Arc<MemDevice>,
    block: MmpBlock,
}

impl Shared {
    fn new() -> Self {
        let device = Arc::new(MemDevice::new(16 << 20));
        let options =
            Options { features: "mmp".parse().unwrap(), mmp_update_interval: Some(1), ..Options::default() };
        lanefs_mkfs::format(&*device, &options).unwrap();
        let below: Arc<dyn BlockDevice> = device.clone();
        let block = MmpBlock::of(&below, &read_super(&*below).unwrap()).unwrap().unwrap();
        Self { device, block }
    }

    fn mmp(&self) -> Mmp {
        self.block.parse(&self.block.read_bytes().unwrap()).unwrap()
    }

    /// Writes the block as another host would.
    fn put(&self, seq: u32) {
        self.block.write(&other(seq)).unwrap();
    }

    fn open(&self, clock: &Arc<Clock>) -> Result<Volume> {
        self.open_on(self.device.clone(), clock)
    }

    fn open_on(&self, device: Arc<dyn BlockDevice>, clock: &Arc<Clock>) -> Result<Volume> {
        OpenOptions::new().write(true).threads(false).mmp_clock(clock.clone()).open_device(device)
    }

    /// The block, for a hook to own.
    fn other_block(&self) -> MmpBlock {
        let below: Arc<dyn BlockDevice> = self.device.clone();
        MmpBlock::of(&below, &read_super(&*below).unwrap()).unwrap().unwrap()
    }

    /// A writer of the block that a hook can own.
    fn writer(&self) -> impl Fn(u32) + Send + use<> {
        let block = self.other_block();
        move |seq| drop(block.write(&other(seq)).unwrap())
    }
}

fn other(seq: u32) -> Mmp {
    let (nodename, bdevname) = (b"other".to_vec(), b"sdx".to_vec());
    Mmp { seq, time: 1_700_000_000, nodename, bdevname, check_interval: 5 }
}

fn mmp_error(result: Result<impl fmt::Debug>) -> MmpError {
    match result.unwrap_err().into_kind() {
        Error::Mmp(e) => *e,
        e => panic!("{e}"),
    }
}

const HOUR: Duration = Duration::from_secs(3600);
