//! An overlay whose top the input has changed. The first byte says which slots of header and map
//! get a right checksum again; the rest are bytes to change, each with its place.
#![no_main]

use lanefs_device::{BlockDevice, CowDevice, MemDevice};
use libfuzzer_sys::fuzz_target;
use std::sync::{Arc, LazyLock};

/// The last block is a part of one.
const SIZE: usize = 16 * BLOCK + 512;
const BLOCK: usize = 4096;
/// Two slots of the header, and two of the only unit of the map.
const SLOTS: usize = 4;
/// What the blocks of the base hold, and those of the top, which `TOP` has some of.
const BELOW: u8 = 7;
const ABOVE: u8 = 9;

/// A sound top.
static TOP: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let size = CowDevice::top_size(SIZE as u64).unwrap();
    let top = Arc::new(MemDevice::new(size as usize));
    let overlay = CowDevice::new(base(), top.clone(), "base").unwrap();
    for block in [3, 8] {
        overlay.write_at(&[ABOVE; BLOCK], block * BLOCK as u64).unwrap();
        overlay.flush().unwrap();
    }
    let mut bytes = top.to_bytes();
    bytes[SLOTS * BLOCK..].fill(ABOVE);
    bytes
});

fn base() -> Arc<MemDevice> {
    Arc::new(MemDevice::from_bytes(vec![BELOW; SIZE]))
}

/// Writes the checksum of a slot: it covers all behind it.
fn seal(slot: &mut [u8], sum: usize) {
    let value = crc32c::crc32c(&slot[sum + 4..]);
    slot[sum..sum + 4].copy_from_slice(&value.to_le_bytes());
}

fn read(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    device.read_at(&mut bytes, 0).expect("what could be opened can be read");
    bytes
}

fuzz_target!(|input: &[u8]| {
    let [sealed, script @ ..] = input else { return };
    let mut bytes = TOP.clone();
    for change in script.as_chunks::<3>().0 {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]]));
        bytes[at % (SLOTS * BLOCK)] = change[2];
    }
    for (n, slot) in bytes.chunks_mut(BLOCK).take(SLOTS).enumerate() {
        if sealed & 1 << n != 0 {
            seal(slot, if n < 2 { 12 } else { 4 });
        }
    }
    if sealed & 1 << 6 != 0 {
        bytes.truncate(usize::from(sealed & 63) * 1400);
    }
    let (base, top) = (base(), Arc::new(MemDevice::from_bytes(bytes)));
    let open = || CowDevice::new(base.clone(), top.clone(), "base");
    let Ok(overlay) = open() else { return };
    let mut seen = read(&overlay);
    for block in seen.chunks(BLOCK) {
        assert!(block.iter().all(|byte| *byte == BELOW) || block.iter().all(|byte| *byte == ABOVE));
    }
    // The end of one block, a whole one, and the start of another.
    let written = BLOCK - 100..2 * BLOCK + 100;
    overlay.write_at(&seen[written.clone()].iter().map(|byte| byte ^ 1).collect::<Vec<_>>(), written.start as u64).unwrap();
    seen[written].iter_mut().for_each(|byte| *byte ^= 1);
    overlay.flush().unwrap();
    drop(overlay);
    let again = open().expect("what was opened and flushed can be opened again");
    assert!(read(&again) == seen);
    drop(again);
    CowDevice::commit(&*base, top.clone(), "base", None).unwrap();
    assert!(base.to_bytes() == seen);
});
