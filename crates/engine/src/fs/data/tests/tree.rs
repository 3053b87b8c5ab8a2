//! What other threads do while a file gets its hash tree.

use super::*;
use crate::{File, Io, Volume};
use lanefs_device::{AlignedBuf, forward_to};
use lanefs_format::InodeFlags;
use lanefs_sim::{Image as Medium, RecordingDevice};
use std::sync::Mutex;
use std::thread::{self, ThreadId};

type Act = Box<dyn FnMut(&RecordingDevice) + Send>;

/// A device that does something, in a thread of its own, before each write of the test's thread.
struct HookedDevice {
    inner: Arc<RecordingDevice>,
    user: ThreadId,
    act: Mutex<Option<Act>>,
}

impl std::fmt::Debug for HookedDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HookedDevice")
    }
}

impl BlockDevice for HookedDevice {
    forward_to!(inner: size read_only read_at flush discard);

    fn write_at(&self, data: &[u8], offset: u64) -> lanefs_device::Result<()> {
        if thread::current().id() == self.user
            && let Some(act) = &mut *self.act.lock().unwrap()
        {
            thread::scope(|scope| scope.spawn(|| act(&self.inner)).join().unwrap());
        }
        self.inner.write_at(data, offset)
    }
}

/// Whole blocks, so that the first write of an `enable_verity` is one of the tree.
const SIZE: u64 = 293 << 10;

fn options() -> OpenOptions {
    OpenOptions::new().write(true).commit_interval(Duration::ZERO)
}

/// Returns a volume on such a device.
fn open(kind: &[&str]) -> (Arc<HookedDevice>, Volume) {
    let image = Image::new("4M", &[KINDS[1], &["-J", "size=1"], kind].concat());
    let medium = Medium::from_bytes(std::fs::read(image.path()).unwrap());
    let inner = Arc::new(RecordingDevice::new(medium));
    let device = Arc::new(HookedDevice { inner, user: thread::current().id(), act: Mutex::default() });
    let volume = options().open_device(Arc::clone(&device) as Arc<dyn BlockDevice>).unwrap();
    (device, volume)
}

/// A file that gets its first name meanwhile stays an orphan: after a cut, no block of its tree
/// lies behind the end.
#[test]
fn a_cut_while_a_file_gets_its_tree_and_its_name() {
    for (seed, kind) in [&["-O", "^orphan_file"], &["-O", "orphan_file"]].into_iter().enumerate() {
        let (device, volume) = open(kind);
        let attr = crate::NewAttr { permissions: 0o644, uid: 0, gid: 0 };
        let file = volume.open_dir("/").unwrap().create_nameless(attr).unwrap();
        file.write_at(&vec![7; SIZE as usize], 0).unwrap();
        file.sync_all().unwrap();
        let (volume, name) = (Arc::new(volume), Arc::new(file.clone()));
        let linking = Arc::clone(&volume);
        // Also commits, so that a part of the tree is durable before the rest.
        *device.act.lock().unwrap() = Some(Box::new(move |_| {
            if !linking.exists("/named").unwrap() {
                linking.link_file(&name, "/named").unwrap();
            }
            name.inode().fs.journal.sync().unwrap();
        }));
        file.enable_verity(&Verity::default()).unwrap();
        device.act.lock().unwrap().take();
        drop(file);
        Arc::into_inner(volume).unwrap().close().unwrap();

        let log = device.inner.log();
        let mut seen = [false; 2];
        for state in log.crash_states(seed as u64, 4) {
            let volume = options().open_device(Arc::new(state.device()) as Arc<dyn BlockDevice>).unwrap();
            match volume.open_file("/named") {
                Ok(file) => {
                    assert!(volume.read("/named").unwrap() == vec![7; SIZE as usize], "{state}");
                    let has = file.metadata().flags().contains(InodeFlags::VERITY);
                    let behind = file.fiemap(SIZE..u64::MAX, 10).unwrap();
                    assert_eq!(behind.is_empty(), !has, "{state}");
                    seen[usize::from(has)] = true;
                }
                Err(e) => assert!(matches!(e.kind(), Error::NotFound), "{state}: {e}"),
            }
            volume.close().unwrap();
        }
        assert_eq!(seen, [true; 2]);
    }
}

/// Reads are served while the tree is written. A truncation is refused, and does not wait: reads
/// would wait behind it. So are overwrites in place, each alone and in a batch.
#[test]
fn a_file_is_read_while_it_gets_its_tree() {
    let (device, volume) = open(&["-O", "^orphan_file"]);
    volume.write("/f", &vec![7; SIZE as usize]).unwrap();
    volume.sync().unwrap();
    let file = volume.open_options().read(true).write(true).open("/f").unwrap();
    let (other, reads) = (file.clone(), Arc::new(Mutex::new(0)));
    let count = Arc::clone(&reads);
    *device.act.lock().unwrap() = Some(Box::new(move |_| {
        let (content, mut room) = (other.inode().content(), AlignedBuf::zeroed(4096));
        assert_eq!(content.try_read_direct(&mut room, 0).unwrap(), 4096);
        assert!(room.iter().all(|byte| *byte == 7));
        let cut = content.truncate(0);
        assert!(matches!(cut, Err(Error::TextBusy)), "{cut:?}");
        let (direct, new) = (other.with_direct(true), AlignedBuf::zeroed(4096));
        let mut written = File::run_batch(&mut [Io::write(&direct, &new, 0), Io::write(&direct, &new, 8192)]);
        written.push(direct.try_write_at(&new, 0));
        assert!(written.iter().all(|done| matches!(done, Err(Error::TextBusy))), "{written:?}");
        *count.lock().unwrap() += 1;
    }));
    file.enable_verity(&Verity::default()).unwrap();
    device.act.lock().unwrap().take();
    assert!(*reads.lock().unwrap() > 0);
    let cut = file.inode().content().truncate(0);
    assert!(matches!(cut, Err(Error::NotPermitted(_))), "{cut:?}");
    assert!(volume.read("/f").unwrap() == vec![7; SIZE as usize]);
    drop(file);
    volume.close().unwrap();
}

/// A read past the cache that was chosen before the file had its tree is verified.
#[test]
fn a_read_that_waits_for_the_tree_is_verified() {
    let (device, volume) = open(&["-O", "^orphan_file"]);
    volume.write("/f", &vec![7; SIZE as usize]).unwrap();
    volume.sync().unwrap();
    let file = volume.open_file("/f").unwrap();
    let place = file.fiemap(0..1024, 1).unwrap()[0].physical;
    file.enable_verity(&Verity::default()).unwrap();
    device.inner.write_at(&[8; 1024], place).unwrap();
    let (content, mut room) = (file.inode().content(), AlignedBuf::zeroed(4096));
    for read in [content.read_direct(&mut room, 0), content.read_past(&mut room, 0)] {
        assert!(read.as_ref().is_err_and(|e| e.to_string().contains("hash tree")), "{read:?}");
    }
    let read = content.try_read_direct(&mut room, 0);
    assert!(matches!(read, Err(Error::WouldBlock)), "{read:?}");
    drop(file);
    volume.close().unwrap();
}
