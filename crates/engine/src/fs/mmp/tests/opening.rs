//! Which opens claim a volume with multiple mount protection, and which are refused.

use super::*;
use crate::Resize;
use lanefs_device::{DeviceError, forward_to};

#[test]
fn a_live_holder_is_named_as_soon_as_it_moves() {
    let shared = Shared::new();
    shared.put(7);
    let clock = Arc::new(Clock::default());
    let put = shared.writer();
    *clock.hook.lock().unwrap() = Some(Box::new(move |now| {
        if now.as_secs() == 3 {
            put(8);
        }
    }));
    let before = shared.device.to_bytes();
    let e = mmp_error(shared.open(&clock));
    assert_eq!((clock.seconds(), e.is_in_use()), (3, true));
    let text = "another host uses the volume: host 'other', device 'sdx', last seen 2023-11-14 22:13:20 UTC";
    assert_eq!(e.to_string(), text);
    let mut after = shared.device.to_bytes();
    shared.put(7);
    after[shared.block.offset() as usize..][..1024]
        .copy_from_slice(&before[shared.block.offset() as usize..][..1024]);
    assert!(after == before, "a refused volume was written");
}

#[test]
fn a_holder_that_closes_meanwhile_lets_the_next_in() {
    let shared = Shared::new();
    shared.put(7);
    let clock = Arc::new(Clock::default());
    let put = shared.writer();
    *clock.hook.lock().unwrap() = Some(Box::new(move |now| {
        if now.as_secs() == 3 {
            put(EXT4_MMP_SEQ_CLEAN);
        }
    }));
    shared.open(&clock).unwrap().close().unwrap();
    assert_eq!(clock.seconds(), 4);
}

/// A device on which the superblock cannot be written.
#[derive(Debug)]
struct NoSuperblock(Arc<MemDevice>);

impl BlockDevice for NoSuperblock {
    forward_to!(0: size read_only read_at flush discard);

    fn write_at(&self, data: &[u8], offset: u64) -> lanefs_device::Result<()> {
        if offset <= 1024 {
            let why = std::io::Error::other("the superblock cannot be written");
            return Err(DeviceError::new(Op::Write, offset, data.len() as u64, why));
        }
        self.0.write_at(data, offset)
    }
}

/// A medium that a lock keeps from other hosts, reached by a server.
#[derive(Debug)]
struct Locked(Arc<MemDevice>);

impl BlockDevice for Locked {
    forward_to!(0: size read_only read_at write_at flush discard);

    fn is_private(&self) -> bool {
        true
    }

    fn is_remote(&self) -> bool {
        true
    }
}

/// Behind a lock a volume is taken without a wait, but what is no block of a host is not written
/// over.
#[test]
fn a_lock_takes_a_held_volume_and_no_other_block() {
    let shared = Shared::new();
    let open = |clock: &Arc<Clock>| shared.open_on(Arc::new(Locked(shared.device.clone())), clock);
    shared.put(EXT4_MMP_SEQ_FSCK);
    assert!(matches!(mmp_error(open(&Arc::new(Clock::default()))), MmpError::Fsck(_)));
    shared.put(7);
    let clock = Arc::new(Clock::default());
    open(&clock).unwrap().close().unwrap();
    assert_eq!((clock.seconds(), shared.mmp().state()), (0, MmpState::Clean));
    shared.device.write_at(b"x", shared.block.offset()).unwrap();
    let before = shared.device.to_bytes();
    open(&Arc::new(Clock::default())).unwrap_err();
    assert!(shared.device.to_bytes() == before, "another block was written over");
}

/// An open, or a resize, fails behind its recovery. The last holder may have lost its connection
/// alone: it must not find its own sequence, and write what it has not flushed over what was
/// recovered.
#[test]
fn a_volume_that_was_changed_is_not_given_back_to_its_last_holder() {
    let shared = Shared::new();
    let volume = shared.open(&Arc::new(Clock::default())).unwrap();
    volume.write("/a", b"synced").unwrap();
    volume.sync().unwrap();
    std::mem::forget(volume);
    let held = shared.mmp();
    assert_eq!(held.state(), MmpState::Held);
    let before = shared.device.to_bytes();
    shared.open_on(Arc::new(NoSuperblock(shared.device.clone())), &Arc::new(Clock::default())).unwrap_err();
    assert!(shared.device.to_bytes() != before, "nothing was recovered");
    assert_ne!(shared.mmp().seq, held.seq);
    shared.device.write_at(&before, 0).unwrap();
    let options = OpenOptions::new().mmp_clock(Arc::new(Clock::default()));
    Resize::open(Arc::new(NoSuperblock(shared.device.clone())), options).unwrap_err();
    assert!(shared.device.to_bytes() != before, "nothing was recovered");
    assert_ne!(shared.mmp().seq, held.seq);
    shared.open(&Arc::new(Clock::default())).unwrap().close().unwrap();
}

/// A volume whose holder has crashed is waited for twice, and recovered.
#[test]
fn a_dead_holder_is_waited_for() {
    let shared = Shared::new();
    let clock = Arc::new(Clock::default());
    let volume = shared.open(&clock).unwrap();
    volume.write("/a", b"synced").unwrap();
    volume.sync().unwrap();
    std::mem::forget(volume);
    let (told, later) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Clock::default()));
    let told_to = Arc::clone(&told);
    let open = OpenOptions::new().write(true).threads(false).mmp_clock(later.clone());
    let open = open.on_mmp_wait(move |wait| told_to.lock().unwrap().push(wait.clone()));
    let volume = open.open_device(shared.device.clone()).unwrap();
    assert_eq!(later.seconds(), 22);
    assert_eq!(volume.read("/a").unwrap(), b"synced");
    assert_eq!(volume.info().recovery.journal.transactions, 1);
    let told = told.lock().unwrap();
    assert_eq!((told.len(), told[0].longest), (1, Duration::from_secs(22)));
    let node = String::from_utf8(lanefs_device::host_name()).unwrap();
    assert_eq!(told[0].holder.as_ref().map(|holder| &holder.nodename), Some(&node));
}

/// A power cut has torn an update: the sequence is of one block, the checksum of another.
#[test]
fn a_torn_block_is_that_of_a_dead_holder() {
    let shared = Shared::new();
    shared.put(7);
    let clock = Arc::new(Clock::default());
    let damage = || shared.device.write_at(b"x", shared.block.offset() + 4).unwrap();
    damage();
    shared.open(&clock).unwrap().close().unwrap();
    assert_eq!(clock.seconds(), 22);
    // But for one that changes.
    shared.put(7);
    damage();
    let (put, later) = (shared.writer(), Arc::new(Clock::default()));
    *later.hook.lock().unwrap() = Some(Box::new(move |now| {
        if now.as_secs() == 3 {
            put(8);
        }
    }));
    assert!(matches!(mmp_error(shared.open(&later)), MmpError::InUse(_)));
}

/// Both have read a clean block. The one that writes later has the volume.
#[test]
fn of_two_that_claim_at_once_the_later_write_decides() {
    for rival_is_late in [false, true] {
        let shared = Shared::new();
        let clock = Arc::new(Clock::default());
        let (put, mut rival) = (shared.writer(), Some(if rival_is_late { 2 } else { 1 }));
        let block = shared.block.offset();
        let hooked = Arc::new(Hooked {
            below: shared.device.clone(),
            hook: Mutex::new(Box::new(move |op, offset| {
                let is_moment = offset == block && op == if rival_is_late { Op::Read } else { Op::Write };
                // Of the reads the second is the first behind the own write.
                if is_moment && let Some(count) = rival.as_mut() {
                    *count -= 1;
                    if *count == 0 {
                        rival = None;
                        put(9);
                    }
                }
            })),
        });
        let opened = shared.open_on(hooked, &clock);
        assert_eq!(opened.is_err(), rival_is_late);
        if rival_is_late {
            assert!(matches!(mmp_error(opened), MmpError::InUse(holder) if holder.nodename == "other"));
            assert_eq!(shared.mmp().seq, 9, "the rival's block is left alone");
        }
    }
}

/// The kernel may claim, and update, within the window of another host, which then sees its own
/// sequence until the next update. But it has written the superblock.
#[test]
fn a_mount_that_the_block_does_not_show_is_seen_by_its_superblock() {
    let shared = Shared::new();
    let clock = Arc::new(Clock::default());
    let device = shared.device.clone();
    *clock.hook.lock().unwrap() = Some(Box::new(move |_| {
        let mut sb = read_super(&*device).unwrap();
        sb.set_mnt_count(77);
        write_super(&*device, &sb).unwrap();
    }));
    assert_eq!(mmp_error(shared.open(&clock)), MmpError::Raced);
}

/// A host that was stopped between its read and its write waits as behind a dead holder.
#[test]
fn a_claim_that_comes_late_waits_longer() {
    let shared = Shared::new();
    let clock = Arc::new(Clock::default());
    let (slow, block) = (clock.clone(), shared.block.offset());
    let mut is_first = true;
    let hook = move |op, offset| {
        if op == Op::Write && offset == block && std::mem::take(&mut is_first) {
            slow.pass(Duration::from_millis(1000));
        }
    };
    let hooked = Hooked { below: shared.device.clone(), hook: Mutex::new(Box::new(hook)) };
    shared.open_on(Arc::new(hooked), &clock).unwrap();
    assert_eq!(clock.seconds(), 12);
}

#[test]
fn what_is_no_holder_is_refused() {
    let shared = Shared::new();
    let clock = Arc::new(Clock::default());
    shared.put(EXT4_MMP_SEQ_FSCK);
    let e = mmp_error(shared.open(&clock));
    assert!(e.to_string().contains("lanefs mmp clear") && e.to_string().contains("'other'"), "{e}");
    shared.put(EXT4_MMP_SEQ_FSCK + 1);
    assert!(mmp_error(shared.open(&clock)).to_string().contains("0xe24d4d51"));
    shared.device.write_at(b"x", shared.block.offset()).unwrap();
    assert!(matches!(shared.open(&clock).unwrap_err().into_kind(), Error::Format(_)));
    for block in [0, 1, u64::MAX] {
        let mut sb: Superblock = read_super(&*shared.device).unwrap();
        sb.set_mmp(Some((block, 1)));
        write_super(&*shared.device, &sb).unwrap();
        assert!(matches!(mmp_error(shared.open(&clock)), MmpError::Place { .. }), "{block}");
    }
}

/// What is refused behind its claim has the block that it had.
#[test]
fn a_refused_volume_is_as_it_was() {
    for holder in [EXT4_MMP_SEQ_CLEAN, 7] {
        let shared = Shared::new();
        let clock = Arc::new(Clock::default());
        shared.put(holder);
        let sb = read_super(&*shared.device).unwrap();
        let descriptors = u64::from(sb.block_size()) * 2;
        shared.device.write_at(&[0xFF; 64], descriptors).unwrap();
        let before = shared.device.to_bytes();
        assert!(matches!(shared.open(&clock).unwrap_err().into_kind(), Error::Format(_)));
        assert!(shared.device.to_bytes() == before, "{holder:#x}");
    }
}

/// A clock a hundred times as fast as the system's.
#[derive(Debug)]
struct Fast(Instant);

impl MmpClock for Fast {
    fn now(&self) -> Duration {
        self.0.elapsed() * 100
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time / 100);
    }
}

/// Whatever the threads do when, no two hosts can write.
#[test]
fn of_hosts_that_open_at_once_one_can_write() {
    for _ in 0..30 {
        let shared = Shared::new();
        let clock: Arc<dyn MmpClock> = Arc::new(Fast(Instant::now()));
        let hosts = std::thread::scope(|scope| {
            let open = || {
                let options = OpenOptions::new().write(true).threads(false).mmp_clock(clock.clone());
                options.open_device(shared.device.clone()).ok()
            };
            let hosts: Vec<_> = (0..3).map(|_| scope.spawn(open)).collect();
            hosts.into_iter().filter_map(|host| host.join().unwrap()).collect::<Vec<_>>()
        });
        // Nothing is fresh any more.
        std::thread::sleep(Duration::from_millis(5));
        let wrote = hosts.iter().filter(|host| host.create_dir("/d").and_then(|()| host.sync()).is_ok());
        assert!(wrote.count() <= 1, "two hosts have written");
    }
}
