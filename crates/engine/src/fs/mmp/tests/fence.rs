//! What a holder may write, and when it has lost its volume.

use super::*;
use lanefs_device::{RepeatCheck, RepeatGuard, forward_to};
use std::sync::atomic::AtomicBool;

#[test]
fn a_volume_is_held_while_it_is_open() {
    let shared = Shared::new();
    let clock = Arc::new(Clock::default());
    let volume = shared.open(&clock).unwrap();
    assert_eq!(clock.seconds(), 1, "behind a clean block");
    let held = shared.mmp();
    assert_eq!((held.state(), held.check_interval), (MmpState::Held, 5));
    assert_eq!(held.nodename, lanefs_device::host_name());
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

/// A look that took so long that it says nothing of now. In the last case the one before counted
/// when it began, and no longer when it has failed.
#[test]
fn a_slow_look_is_repeated() {
    for (slow_reads, seconds, idle, fails) in
        [(2, 3, HOUR, false), (100, 3, HOUR, true), (4, 15, Duration::from_secs(2), true)]
    {
        let shared = Shared::new();
        let clock = Arc::new(Clock::default());
        let (slow, block) = (clock.clone(), shared.block.offset());
        let left = Arc::new(Mutex::new(0));
        let reads = left.clone();
        let hook = move |op, offset| {
            let mut reads = reads.lock().unwrap();
            if op == Op::Read && offset == block && *reads > 0 {
                *reads -= 1;
                slow.pass(Duration::from_secs(seconds));
            }
        };
        let hooked = Hooked { below: shared.device.clone(), hook: Mutex::new(Box::new(hook)) };
        let volume = shared.open_on(Arc::new(hooked), &clock).unwrap();
        clock.pass(idle);
        *left.lock().unwrap() = slow_reads;
        volume.write("/a", b"1").unwrap();
        assert_eq!(volume.sync().is_err(), fails);
    }
}

type AtFlush = Box<dyn FnMut(&RepeatCheck) + Send>;

/// A device that keeps what it is to ask before it repeats writes. Before each flush `at_flush`
/// gets it: a connection that is lost then is made again while writes are to be repeated.
struct Repeating {
    below: Arc<MemDevice>,
    guard: Mutex<Option<RepeatGuard>>,
    at_flush: Mutex<Option<AtFlush>>,
}

impl fmt::Debug for Repeating {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Repeating")
    }
}

impl Repeating {
    fn new(shared: &Shared) -> Arc<Self> {
        let below = shared.device.clone();
        Arc::new(Self { below, guard: Mutex::default(), at_flush: Mutex::default() })
    }

    fn check(&self) -> Arc<RepeatCheck> {
        self.guard.lock().unwrap().clone().expect("a guard").check
    }

    /// Runs `act` at the first flush at which it finds what it waits for. Returns whether that has
    /// come.
    fn at_flush(&self, mut act: impl FnMut(&RepeatCheck) -> bool + Send + 'static) -> Arc<AtomicBool> {
        let done = Arc::new(AtomicBool::new(false));
        let is_done = Arc::clone(&done);
        *self.at_flush.lock().unwrap() = Some(Box::new(move |check: &RepeatCheck| {
            if !is_done.load(Ordering::Relaxed) && act(check) {
                is_done.store(true, Ordering::Relaxed);
            }
        }));
        done
    }
}

impl BlockDevice for Repeating {
    forward_to!(below: size read_only read_at write_at discard);

    fn flush(&self) -> lanefs_device::Result<()> {
        let guard = self.guard.lock().unwrap().clone();
        if let (Some(guard), Some(act)) = (guard, &mut *self.at_flush.lock().unwrap()) {
            act(guard.check.as_ref());
        }
        self.below.flush()
    }

    fn guard_repeats(&self, guard: RepeatGuard) {
        *self.guard.lock().unwrap() = Some(guard);
    }
}

/// Checks that nothing is repeated over the claim of another host, nor over its end. Leaves the
/// block as it was.
fn assert_guarded(block: &MmpBlock, check: &RepeatCheck) {
    let own = block.read_bytes().unwrap();
    let claims = [(7, "another one has taken the volume"), (EXT4_MMP_SEQ_CLEAN, "its claim was ended")];
    for (seq, reason) in claims {
        block.write(&other(seq)).unwrap();
        let refused = check(&block.read_bytes().unwrap()).unwrap_err();
        assert!(refused.contains(reason), "{refused}");
    }
    block.write_bytes(&own).unwrap();
}

/// Checks that a device with nothing to repeat goes on, whichever host has the volume.
fn assert_unguarded(shared: &Shared, device: &Repeating) {
    let check = device.check();
    for seq in [7, EXT4_MMP_SEQ_CLEAN] {
        shared.put(seq);
        check(&shared.block.read_bytes().unwrap()).unwrap();
    }
}

/// A connection that is lost while the claim is given back, and made again when another host has
/// the volume.
#[test]
fn a_claim_that_was_given_back_repeats_nothing_over_the_next_one() {
    let shared = Shared::new();
    let device = Repeating::new(&shared);
    let volume = shared.open_on(device.clone(), &Arc::new(Clock::default())).unwrap();
    volume.write("/a", b"1").unwrap();
    let block = shared.other_block();
    let asked = device.at_flush(move |check| {
        let now = block.read_bytes().unwrap();
        let is_given_back = block.parse(&now).unwrap().state() == MmpState::Clean;
        if is_given_back {
            check(&now).unwrap();
            assert_guarded(&block, check);
        }
        is_given_back
    });
    volume.close().unwrap();
    assert!(asked.load(Ordering::Relaxed));
    assert_eq!(shared.mmp().state(), MmpState::Clean);
    assert_unguarded(&shared, &device);
}

/// A connection that is lost before the first write of a claim, or of its end by a command, is
/// durable: another host may claim the volume before there is a new connection.
#[test]
fn a_first_write_is_repeated_over_no_other_claim() {
    let shared = Shared::new();
    for clears in [false, true] {
        let (before, device) = (shared.block.read_bytes().unwrap(), Repeating::new(&shared));
        let block = shared.other_block();
        let asked = device.at_flush(move |check| {
            let own = block.read_bytes().unwrap();
            assert!(before[..] != own[..]);
            let torn = [&own[..512], &before[512..]].concat();
            for expected in [&before[..], &own[..], &torn[..]] {
                check(expected).unwrap();
            }
            assert_guarded(&block, check);
            check(&[1; 4096][..own.len()]).unwrap_err();
            true
        });
        if clears {
            mmp::clear(device.clone(), OpenOptions::new(), true).unwrap();
            assert_unguarded(&shared, &device);
        } else {
            // As of a host that has died.
            std::mem::forget(shared.open_on(device.clone(), &Arc::new(Clock::default())).unwrap());
        }
        assert!(asked.load(Ordering::Relaxed));
    }
}

/// A host that has lost the race for a volume has nothing to repeat.
#[test]
fn a_device_outlives_a_claim_that_came_too_late() {
    let shared = Shared::new();
    let (device, clock, put) = (Repeating::new(&shared), Arc::new(Clock::default()), shared.writer());
    *clock.hook.lock().unwrap() = Some(Box::new(move |_| put(9)));
    assert!(matches!(mmp_error(shared.open_on(device.clone(), &clock)), MmpError::InUse(_)));
    assert_unguarded(&shared, &device);
}

/// A connection that is lost while the protection is taken off: the block may hold anything, but
/// until that is durable another host may claim the volume. Behind it the volume may get protection
/// again.
#[test]
fn a_claim_that_was_dissolved_repeats_nothing_over_another_one() {
    let shared = Shared::new();
    let device = Repeating::new(&shared);
    let options = || OpenOptions::new().mmp_clock(Arc::new(Clock::default()));
    let block = shared.other_block();
    let asked = device.at_flush(move |check| {
        let is_dissolved = check(&[1; 4096][..block.size]).is_ok();
        if is_dissolved {
            check(&block.read_bytes().unwrap()).unwrap();
            assert_guarded(&block, check);
        }
        is_dissolved
    });
    mmp::disable(device.clone(), options()).unwrap();
    assert!(asked.load(Ordering::Relaxed));
    mmp::enable(device.clone(), options(), 1).unwrap();
    assert_unguarded(&shared, &device);
}

/// What a lost claim has not flushed is never repeated.
#[test]
fn a_claim_that_was_lost_guards_the_device_for_good() {
    let shared = Shared::new();
    let (device, clock) = (Repeating::new(&shared), Arc::new(Clock::default()));
    let volume = shared.open_on(device.clone(), &clock).unwrap();
    volume.write("/a", b"1").unwrap();
    shared.put(7);
    clock.pass(HOUR);
    volume.close().unwrap_err();
    assert_guarded(&shared.block, device.check().as_ref());
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
