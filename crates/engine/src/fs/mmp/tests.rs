//! Hosts that share a device in memory, each with a clock that passes when it sleeps.

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

    /// A writer of the block that a hook can own.
    fn writer(&self) -> impl Fn(u32) + Send + use<> {
        let below: Arc<dyn BlockDevice> = self.device.clone();
        let block = MmpBlock::of(&below, &read_super(&*below).unwrap()).unwrap().unwrap();
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

#[test]
fn a_volume_is_held_while_it_is_open() {
    let shared = Shared::new();
    let clock = Arc::new(Clock::default());
    let volume = shared.open(&clock).unwrap();
    assert_eq!(clock.seconds(), 1, "behind a clean block");
    let held = shared.mmp();
    assert_eq!((held.state(), held.check_interval), (MmpState::Held, 5));
    assert_eq!(held.nodename, super::claim::nodename());
    volume.write("/a", b"1").unwrap();
    volume.sync().unwrap();
    assert_eq!(shared.mmp(), held, "no update is due");
    clock.pass(Duration::from_secs(2));
    volume.write("/a", b"2").unwrap();
    volume.sync().unwrap();
    assert_eq!(shared.mmp().seq, held.seq + 1);
    volume.close().unwrap();
    assert_eq!(shared.mmp().seq, EXT4_MMP_SEQ_CLEAN);
    assert_eq!(shared.open(&clock).unwrap().read("/a").unwrap(), b"2");
    assert_eq!(shared.mmp().seq, EXT4_MMP_SEQ_CLEAN, "a volume that is dropped");
}

/// A reader needs no claim, and an open without one leaves the block alone.
#[test]
fn readers_and_private_copies_claim_nothing() {
    let shared = Shared::new();
    let before = shared.device.to_bytes();
    let clock = Arc::new(Clock::default());
    OpenOptions::new().mmp_clock(clock.clone()).open_device(shared.device.clone()).unwrap();
    assert!(shared.device.to_bytes() == before);
    let private = OpenOptions::new().write(true).mmp(false).mmp_clock(clock.clone());
    let volume = private.open_device(shared.device.clone()).unwrap();
    volume.write("/a", b"1").unwrap();
    assert_eq!(shared.mmp().state(), MmpState::Clean);
    volume.close().unwrap();
    assert_eq!(clock.now(), Duration::ZERO);
}

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
    let node = String::from_utf8(super::claim::nodename()).unwrap();
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

/// A server that is killed may have a part of the last update. This host repeats it.
#[test]
fn a_torn_block_of_this_host_is_its_own() {
    let shared = Shared::new();
    let clock = Arc::new(Clock::default());
    let volume = shared.open(&clock).unwrap();
    shared.device.write_at(&[0; 4], shared.block.offset() + 1020).unwrap();
    clock.pass(Duration::from_millis(300));
    volume.write("/a", b"1").unwrap();
    volume.sync().unwrap();
    volume.close().unwrap();
    assert_eq!(shared.mmp().state(), MmpState::Clean);
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

/// The sequence of a stopped holder, and what its volume was when another host took it.
fn taken_over(shared: &Shared) -> (Arc<Clock>, Volume, Volume) {
    let clock = Arc::new(Clock::default());
    let stopped = shared.open(&clock).unwrap();
    stopped.write("/a", &[1; 8192]).unwrap();
    stopped.sync().unwrap();
    let second = shared.open(&Arc::new(Clock::default())).unwrap();
    second.write("/b", b"second").unwrap();
    second.sync().unwrap();
    clock.pass(HOUR);
    (clock, stopped, second)
}

#[test]
fn a_holder_that_was_stopped_writes_nothing_when_it_wakes() {
    let shared = Shared::new();
    let (_, stopped, second) = taken_over(&shared);
    let before = shared.device.to_bytes();
    let file = stopped.open_options().read(true).write(true).open("/a").unwrap();
    // In place, past the cache and the journal.
    let direct = stopped.open_options().write(true).direct(true).open("/a").unwrap();
    let e = direct.write_at(&[2; 4096], 0).unwrap_err();
    assert_eq!(e.errno(), lanefs_device::errno::EIO);
    assert!(e.to_string().contains("another one has taken the volume"), "{e}");
    for e in [
        file.write_at(b"x", 0).unwrap_err(),
        stopped.create_dir("/d").unwrap_err(),
        stopped.remove_file("/a").unwrap_err(),
        stopped.sync().unwrap_err(),
        stopped.close().unwrap_err(),
    ] {
        assert_eq!(e.errno(), lanefs_device::errno::EIO, "{e}");
    }
    drop((file, direct));
    assert!(shared.device.to_bytes() == before, "it wrote");
    second.write("/c", b"more").unwrap();
    second.close().unwrap();
    let volume = shared.open(&Arc::new(Clock::default())).unwrap();
    assert_eq!(volume.read("/b").unwrap(), b"second");
    assert!(!volume.exists("/d").unwrap() && volume.read("/a").unwrap() == [1; 8192]);
}

/// Dirty pages and an open transaction from before the stop.
#[test]
fn what_was_not_written_before_the_stop_is_lost() {
    let shared = Shared::new();
    let clock = Arc::new(Clock::default());
    let stopped = shared.open(&clock).unwrap();
    stopped.write("/unsynced", b"1").unwrap();
    let second = shared.open(&Arc::new(Clock::default())).unwrap();
    let before = shared.device.to_bytes();
    clock.pass(HOUR);
    assert_eq!(stopped.sync().unwrap_err().errno(), lanefs_device::errno::EIO);
    drop(stopped);
    assert!(shared.device.to_bytes() == before);
    second.close().unwrap();
}

#[test]
fn a_holder_that_was_stopped_goes_on_if_no_host_came() {
    let shared = Shared::new();
    let clock = Arc::new(Clock::default());
    let volume = shared.open(&clock).unwrap();
    let seq = shared.mmp().seq;
    clock.pass(HOUR);
    volume.write("/a", b"1").unwrap();
    volume.sync().unwrap();
    assert_eq!(shared.mmp().seq, seq + 1);
    assert_eq!(shared.mmp().check_interval, 5, "others need not wait longer for it");
    volume.close().unwrap();
}

/// Another host, whose wait has begun, sees the update of a holder that is late, and gives up.
#[test]
fn a_holder_that_wakes_in_time_keeps_its_volume() {
    let shared = Shared::new();
    let clock = Arc::new(Clock::default());
    let volume = Arc::new(shared.open(&clock).unwrap());
    let later = Arc::new(Clock::default());
    let (slow, woken) = (clock.clone(), volume.clone());
    *later.hook.lock().unwrap() = Some(Box::new(move |now| {
        slow.pass(Duration::from_secs(1));
        if now.as_secs() == 10 {
            woken.write("/a", b"1").unwrap();
            woken.sync().unwrap();
        }
    }));
    assert!(matches!(mmp_error(shared.open(&later)), MmpError::InUse(_)));
    later.hook.lock().unwrap().take();
    volume.write("/a", b"2").unwrap();
    Arc::into_inner(volume).unwrap().close().unwrap();
}

#[test]
fn a_claim_that_was_cleared_is_lost() {
    let shared = Shared::new();
    let clock = Arc::new(Clock::default());
    let volume = shared.open(&clock).unwrap();
    mmp::clear(shared.device.clone(), OpenOptions::new(), true).unwrap();
    clock.pass(Duration::from_secs(1));
    volume.write("/a", b"1").unwrap();
    let e = volume.sync().unwrap_err();
    assert!(e.to_string().contains("its claim was ended"), "{e}");
    drop(volume);
    assert_eq!(shared.mmp().state(), MmpState::Clean);
}

/// A host that is stopped in the middle of its update may overwrite the block of another.
#[test]
fn an_update_that_arrives_too_late_ends_the_claim() {
    for (seconds, is_lost) in [(10, false), (11, true)] {
        let shared = Shared::new();
        let clock = Arc::new(Clock::default());
        let (slow, block, put) = (clock.clone(), shared.block.offset(), shared.writer());
        let stop = Arc::new(Mutex::new(false));
        let stopping = stop.clone();
        let hook = move |op, offset| {
            if op == Op::Write && offset == block && std::mem::take(&mut *stopping.lock().unwrap()) {
                slow.pass(Duration::from_secs(seconds));
                put(9);
            }
        };
        let hooked = Hooked { below: shared.device.clone(), hook: Mutex::new(Box::new(hook)) };
        let volume = shared.open_on(Arc::new(hooked), &clock).unwrap();
        clock.pass(Duration::from_secs(1));
        *stop.lock().unwrap() = true;
        volume.write("/a", b"1").unwrap();
        let synced = volume.sync();
        assert_eq!(synced.is_err(), is_lost, "{seconds} s: {synced:?}");
        if let Err(e) = synced {
            assert!(e.to_string().contains("an update of the MMP block took 11 s"), "{e}");
        }
    }
}

/// A look that took so long that it says nothing of now.
#[test]
fn a_slow_look_is_repeated() {
    for (slow_reads, fails) in [(2, false), (100, true)] {
        let shared = Shared::new();
        let clock = Arc::new(Clock::default());
        let (slow, block) = (clock.clone(), shared.block.offset());
        let left = Arc::new(Mutex::new(0));
        let reads = left.clone();
        let hook = move |op, offset| {
            let mut reads = reads.lock().unwrap();
            if op == Op::Read && offset == block && *reads > 0 {
                *reads -= 1;
                slow.pass(Duration::from_secs(3));
            }
        };
        let hooked = Hooked { below: shared.device.clone(), hook: Mutex::new(Box::new(hook)) };
        let volume = shared.open_on(Arc::new(hooked), &clock).unwrap();
        clock.pass(HOUR);
        *left.lock().unwrap() = slow_reads;
        volume.write("/a", b"1").unwrap();
        assert_eq!(volume.sync().is_err(), fails);
    }
}

/// A device lends no memory past the fence.
#[test]
fn a_claimed_volume_is_not_mapped() {
    let dir = tempfile::tempdir().unwrap();
    let name = format!("pmem:{}", dir.path().join("v").display());
    let options = Options { features: "mmp".parse().unwrap(), ..Options::default() };
    lanefs_mkfs::create(&name, 16 << 20, &options).unwrap();
    for (claims, is_mapped) in [(true, false), (false, true)] {
        let options = OpenOptions::new().write(true).mmp(claims).mmp_clock(Arc::new(Clock::default()));
        let device = options.device(&name).unwrap();
        let fs = Fs::open(device, options).unwrap();
        assert_eq!(fs.dax, is_mapped);
        fs.close().unwrap();
    }
}

#[test]
fn the_thread_renews_the_claim() {
    let shared = Shared::new();
    let volume = OpenOptions::new().write(true).mmp_clock(Arc::new(Clock::default()));
    let volume = volume.open_device(shared.device.clone()).unwrap();
    let (seq, began) = (shared.mmp().seq, Instant::now());
    while shared.mmp().seq == seq {
        assert!(began.elapsed() < Duration::from_secs(60), "no update");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(began.elapsed() > Duration::from_millis(500), "{:?}", began.elapsed());
    volume.close().unwrap();
    assert_eq!(shared.mmp().state(), MmpState::Clean);
}

#[test]
fn on_and_off() {
    let device = Arc::new(MemDevice::new(64 << 20));
    lanefs_mkfs::format(&*device, &Options::default()).unwrap();
    let clock = Arc::new(Clock::default());
    let options = || OpenOptions::new().mmp_clock(clock.clone());
    let free = |device: &Arc<MemDevice>| read_super(&**device).unwrap().free_blocks_count();
    let before = free(&device);
    assert_eq!(mmp::read(device.clone()).unwrap(), None);
    assert!(mmp::clear(device.clone(), options(), true).is_err());
    mmp::enable(device.clone(), options(), 7).unwrap();
    let info = mmp::read(device.clone()).unwrap().unwrap();
    assert_eq!((info.update_interval, info.mmp.unwrap().state()), (7, MmpState::Clean));
    assert_eq!(free(&device), before - 1);
    mmp::enable(device.clone(), options(), 9).unwrap();
    assert_eq!(mmp::read(device.clone()).unwrap().unwrap().update_interval, 9);
    let volume = options().write(true).threads(false).open_device(device.clone()).unwrap();
    volume.write("/a", &[1; 1 << 20]).unwrap();
    volume.close().unwrap();
    mmp::disable(device.clone(), options()).unwrap();
    assert_eq!(mmp::read(device.clone()).unwrap(), None);
    let sb = read_super(&*device).unwrap();
    assert_eq!((sb.raw().s_mmp_block.get(), sb.raw().s_mmp_update_interval.get()), (0, 0));
    let volume = options().write(true).open_device(device.clone()).unwrap();
    volume.remove_file("/a").unwrap();
    volume.close().unwrap();
    assert_eq!(free(&device), before);
}

#[test]
fn clear_waits_for_a_live_holder() {
    let shared = Shared::new();
    let clock = Arc::new(Clock::default());
    let clear = || mmp::clear(shared.device.clone(), OpenOptions::new().mmp_clock(clock.clone()), false);
    clear().unwrap();
    assert_eq!(clock.now(), Duration::ZERO, "it is clean");
    shared.put(EXT4_MMP_SEQ_FSCK);
    clear().unwrap();
    assert_eq!((clock.seconds(), shared.mmp().state()), (11, MmpState::Clean));
    shared.put(7);
    let (put, mut seq) = (shared.writer(), 8);
    *clock.hook.lock().unwrap() = Some(Box::new(move |_| {
        put(seq);
        seq += 1;
    }));
    assert!(matches!(mmp_error(clear()), MmpError::InUse(holder) if holder.nodename == "other"));
    clock.hook.lock().unwrap().take();
    shared.device.write_at(&[0; 1024], shared.block.offset()).unwrap();
    clear().unwrap();
    assert_eq!(shared.mmp().state(), MmpState::Clean, "a block that was damaged");
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
