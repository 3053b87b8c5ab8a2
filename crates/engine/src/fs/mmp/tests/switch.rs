//! Protection switched on and off, and claims cleared.

use super::*;
use lanefs_sim::FailingDevice;

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

/// A read that fails leaves the superblock and its copies alike.
#[test]
fn a_switch_that_cannot_read_changes_all_or_nothing() {
    type Switch = fn(Arc<dyn BlockDevice>, OpenOptions) -> Result<()>;
    let device = MemDevice::new(16 << 20);
    lanefs_mkfs::format(&device, &Options { block_size: Some(1024), ..Options::default() }).unwrap();
    let clock = Arc::new(Clock::default());
    let options = || OpenOptions::new().mmp_clock(clock.clone());
    let plain = device.to_bytes();
    let device = Arc::new(device);
    mmp::enable(device.clone(), options(), 5).unwrap();
    let protected = device.to_bytes();
    let switches: [(&[u8], Switch); 2] =
        [(&plain, |device, options| mmp::enable(device, options, 5)), (&protected, mmp::disable)];
    for (bytes, switch) in switches {
        for nth in 1.. {
            let device = Arc::new(FailingDevice::new(MemDevice::from_bytes(bytes.to_vec())));
            device.fail_once(Op::Read, nth, 5);
            let switched = switch(device.clone(), options());
            if device.failures() == 0 {
                switched.unwrap();
                break;
            }
            let volume = options().write(true).threads(false).open_device(device.clone()).unwrap();
            volume.close().unwrap();
            let mut copy = [0; 1024];
            device.read_at(&mut copy, 8193 * 1024).unwrap();
            let same = Superblock::parse(&copy).unwrap().same_volume(&read_super(&*device).unwrap());
            assert!(same, "read {nth}: {switched:?}");
        }
    }
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
