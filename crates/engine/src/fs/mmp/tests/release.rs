//! The end of a claim beside writes that have passed the fence.

use super::*;
use crate::fs::mmp::HostClaim;
use lanefs_device::{WriteOp, forward_to};
use std::sync::mpsc::{Receiver, Sender, channel};

/// A device on which one write, of whatever kind, waits a while for the end of the claim.
#[derive(Debug)]
struct Parking {
    below: Arc<MemDevice>,
    /// The place of the MMP block.
    block: u64,
    /// The next write sends to the first, and waits for the second.
    park: Mutex<Option<(Sender<()>, Receiver<()>)>>,
    given_back: Mutex<Option<Sender<()>>>,
    /// Whether the claim ended while that write was under way.
    ended_early: Mutex<Option<bool>>,
}

impl Parking {
    fn write(&self, offset: u64) {
        if offset == self.block {
            if let Some(end) = self.given_back.lock().unwrap().take() {
                // The write listens no more, if the end waited for it.
                let _ = end.send(());
            }
        } else if let Some((parked, end)) = self.park.lock().unwrap().take() {
            parked.send(()).unwrap();
            let ended = end.recv_timeout(Duration::from_millis(300)).is_ok();
            *self.ended_early.lock().unwrap() = Some(ended);
        }
    }
}

impl BlockDevice for Parking {
    forward_to!(below: size read_only read_at flush);

    fn write_at(&self, data: &[u8], offset: u64) -> lanefs_device::Result<()> {
        self.write(offset);
        self.below.write_at(data, offset)
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> lanefs_device::Result<()> {
        self.write(ops[0].offset);
        self.below.write_batch(ops)
    }

    fn write_shared(&self, data: &[u8], offset: u64) -> lanefs_device::Result<()> {
        self.write(offset);
        self.below.write_shared(data, offset)
    }

    fn discard(&self, offset: u64, len: u64) -> lanefs_device::Result<()> {
        self.write(offset);
        self.below.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> lanefs_device::Result<()> {
        self.write(offset);
        self.below.write_zeroes(offset, len)
    }
}

type WriteCall = fn(&dyn BlockDevice, u64) -> lanefs_device::Result<()>;

/// A close that fails leaves writes under way, of a commit or a checkpoint.
#[test]
fn a_claim_is_given_back_behind_the_last_write() {
    let calls: [(&str, WriteCall); 5] = [
        ("write_at", |device, at| device.write_at(&[1; 512], at)),
        ("write_batch", |device, at| device.write_batch(&[WriteOp { offset: at, data: &[&[1; 512]] }])),
        ("write_shared", |device, at| device.write_shared(&[1; 512], at)),
        ("discard", |device, at| device.discard(at, 4096)),
        ("write_zeroes", |device, at| device.write_zeroes(at, 4096)),
    ];
    for (name, call) in calls {
        let shared = Shared::new();
        let device = Arc::new(Parking {
            below: shared.device.clone(),
            block: shared.block.offset(),
            park: Mutex::default(),
            given_back: Mutex::default(),
            ended_early: Mutex::default(),
        });
        let below: Arc<dyn BlockDevice> = device.clone();
        let options = OpenOptions::new().write(true).threads(false).mmp_clock(Arc::new(Clock::default()));
        let sb = read_super(&*below).unwrap();
        let (fenced, claim) = HostClaim::take(&below, &sb, &options).unwrap().unwrap();
        let ((parked, is_parked), (given_back, end)) = (channel(), channel());
        *device.park.lock().unwrap() = Some((parked, end));
        *device.given_back.lock().unwrap() = Some(given_back);
        let at = device.size() - 4096;
        std::thread::scope(|scope| {
            let write = scope.spawn(|| call(&*fenced, at));
            is_parked.recv().unwrap();
            claim.release().unwrap();
            write.join().unwrap().unwrap();
        });
        assert_eq!(device.ended_early.lock().unwrap().take(), Some(false), "{name} was under way");
        assert_eq!(shared.mmp().state(), MmpState::Clean, "{name}");
        call(&*fenced, at).expect_err(name);
    }
}
