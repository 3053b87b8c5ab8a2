//! A cache whose file the input has changed. The first byte chooses between a reader and a writer,
//! and the length of the file; the rest are bytes to change, each with its place.
#![no_main]

use lanefs_device::{BlockDevice, CachedDevice, FileOptions};
use libfuzzer_sys::fuzz_target;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

const SIZE: usize = 33 * 4096 + 512;

/// A base, and the file of its cache with all of its blocks.
struct Cached {
    dir: PathBuf,
    base: PathBuf,
    file: PathBuf,
    sound: Vec<u8>,
}

impl Cached {
    fn open(&self, write: bool) -> lanefs_device::Result<Arc<dyn BlockDevice>> {
        let options = FileOptions::new().read_only(!write);
        CachedDevice::open(self.base.as_os_str(), &self.dir.join("cache"), 1 << 30, &options)
    }
}

static CACHED: LazyLock<Cached> = LazyLock::new(|| {
    let dir = std::env::temp_dir().join(format!("lanefs-fuzz-cache-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let mut cached = Cached { base: dir.join("base"), dir, file: PathBuf::new(), sound: Vec::new() };
    fs::write(&cached.base, content()).unwrap();
    read(&*cached.open(false).unwrap());
    cached.file = fs::read_dir(cached.dir.join("cache")).unwrap().next().unwrap().unwrap().path();
    cached.sound = fs::read(&cached.file).unwrap();
    cached
});

fn content() -> Vec<u8> {
    (0..SIZE).map(|at| (at / 4096 + at % 251) as u8).collect()
}

fn read(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    device.read_at(&mut bytes, 0).expect("whatever the cache has, the base can be read");
    bytes
}

fuzz_target!(|input: &[u8]| {
    let [how, script @ ..] = input else { return };
    let mut bytes = CACHED.sound.clone();
    for change in script.as_chunks::<3>().0 {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]]));
        // Header and entries, and the first blocks.
        let at = at % bytes.len();
        bytes[at] = change[2];
    }
    if how & 2 != 0 {
        bytes.truncate(usize::from(how >> 2) * 2311);
    }
    fs::write(&CACHED.file, bytes).unwrap();
    let mut want = content();
    let write = how & 1 != 0;
    let device = CACHED.open(write).expect("a cache that is damaged is emptied");
    assert!(read(&*device) == want);
    if write {
        let written = 3000..9000;
        device.write_at(&[1; 6000], written.start as u64).unwrap();
        want[written].fill(1);
        device.flush().unwrap();
        assert!(read(&*device) == want);
        drop(device);
        assert!(read(&*CACHED.open(false).unwrap()) == want);
        fs::write(&CACHED.base, content()).unwrap();
    }
});
