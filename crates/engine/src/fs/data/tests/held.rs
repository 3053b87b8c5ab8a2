//! A direct overwrite holds the lock of its bytes while it writes, whatever call it came from.

use super::*;
use crate::{File, Io};
use lanefs_device::{AlignedBuf, MemDevice, forward_to};
use std::sync::Mutex;

/// A device that tests, while a block of 0xAB is written, whether the bytes of a file can be locked
/// exclusively.
#[derive(Debug)]
struct Looking {
    inner: MemDevice,
    file: Mutex<Option<File>>,
    /// The results, one for each write.
    held: Mutex<Vec<bool>>,
}

impl BlockDevice for Looking {
    forward_to!(inner: size read_only read_at flush discard);

    fn write_at(&self, data: &[u8], offset: u64) -> lanefs_device::Result<()> {
        if data.iter().all(|byte| *byte == 0xAB)
            && let Some(file) = &*self.file.lock().unwrap()
        {
            // In another thread, because this one holds locks.
            let look = || file.inode().content().try_lock_to_write(0, 1 << 20).is_err();
            let held = std::thread::scope(|scope| scope.spawn(look).join().unwrap());
            self.held.lock().unwrap().push(held);
        }
        self.inner.write_at(data, offset)
    }
}

#[test]
fn blocks_are_not_moved_under_an_overwrite() {
    for locking in [crate::Locking::Range, crate::Locking::RangeMutex, crate::Locking::Inode] {
        let inner = MemDevice::new(16 << 20);
        let options = lanefs_mkfs::Options { block_size: Some(4096), ..Default::default() };
        lanefs_mkfs::format(&inner, &options).unwrap();
        let device = Arc::new(Looking { inner, file: Mutex::new(None), held: Mutex::default() });
        let options = OpenOptions::new().write(true).locking(locking).commit_interval(Duration::ZERO);
        let volume = options.open_device(Arc::clone(&device) as Arc<dyn BlockDevice>).unwrap();
        let file = volume.create_file("/f").unwrap().with_direct(true);
        file.write_at(&vec![1; 1 << 20], 0).unwrap();
        volume.sync().unwrap();
        let overwrites = || volume.stats().counts.overwrites;
        let before = overwrites();
        *device.file.lock().unwrap() = Some(file.clone());
        let mut block = AlignedBuf::zeroed(4096);
        block.fill(0xAB);
        file.write_at(&block, 8192).unwrap();
        assert_eq!(file.try_write_at(&block, 65_536).unwrap(), 4096);
        // One request alone is no batch.
        let mut ios = [Io::write(&file, &block, 0), Io::write(&file, &block, 131_072)];
        let moved: Vec<_> = File::run_batch(&mut ios).into_iter().map(Result::unwrap).collect();
        assert_eq!(moved, [4096; 2]);
        assert_eq!(overwrites() - before, 4);
        assert_eq!(*device.held.lock().unwrap(), [true; 4], "{locking:?}");
        device.file.lock().unwrap().take();
    }
}

/// The file may be cut while a writer waits for the lock of its bytes. The range that it then has
/// locked is not enough to let the file grow.
#[test]
fn a_writer_looks_at_the_size_again_when_it_holds_its_bytes() {
    let image = Image::new("16M", KINDS[0]);
    let ino = image.file("f");
    let fs = image.open();
    let node = fs.inode(ino).unwrap();
    let mut patience = Duration::from_millis(5);
    // A writer that comes too late finds the new size. It is tried again with a longer delay.
    while fs.counters.range_retries.get() == 0 {
        buffered::write(&node, 0, &[1; 64 << 10]).unwrap();
        let held = node.content().lock_from(0).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| buffered::write(&node, 40 << 10, &[2; 4096]).unwrap());
            std::thread::sleep(patience);
            node.file().set_size(4096);
            drop(held);
        });
        patience *= 2;
        assert!(patience < Duration::from_secs(10), "it never looked again");
    }
}
