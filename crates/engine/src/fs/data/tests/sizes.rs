//! i_disksize never passes bytes that are only in memory: power cuts after each call that moves it.

use super::*;
use crate::{File, Volume};
use lanefs_device::forward_to;
use lanefs_sim::{Image as Medium, Log, RecordingDevice};
use std::sync::Mutex;

const LEN: usize = 100_000;

/// A device that runs a function when the block bitmap is read: then dirty pages have been taken,
/// and blocks for them are being chosen.
#[derive(Debug)]
struct Hooked {
    inner: Arc<RecordingDevice>,
    at: u64,
    file: Mutex<Option<File>>,
}

impl BlockDevice for Hooked {
    forward_to!(inner: size read_only write_at flush discard);

    fn read_at(&self, buf: &mut [u8], offset: u64) -> lanefs_device::Result<()> {
        if (offset..offset + buf.len() as u64).contains(&self.at)
            && let Some(file) = self.file.lock().unwrap().take()
        {
            std::thread::spawn(move || file.write_at(&[2; 9000], 100).unwrap()).join().unwrap();
        }
        self.inner.read_at(buf, offset)
    }
}

fn recording(image: &Image) -> Arc<RecordingDevice> {
    Arc::new(RecordingDevice::new(Medium::from_bytes(std::fs::read(image.path()).unwrap())))
}

fn open(device: Arc<dyn BlockDevice>) -> Volume {
    OpenOptions::new().write(true).commit_interval(Duration::ZERO).open_device(device).unwrap()
}

fn file(volume: &Volume, name: &str) -> File {
    volume.open_options().read(true).write(true).open(name).unwrap()
}

/// Compares "f" after each power cut behind `start` with `expected`, which has zeros only in holes,
/// and runs e2fsck. Returns how many different lengths there were.
fn judge(image: &Image, log: &Log, start: usize, what: &str, expected: &[u8]) -> usize {
    let mut lengths = std::collections::BTreeSet::new();
    for state in log.crash_states(1, 2).filter(|state| state.cut > start) {
        let device = Arc::new(state.device());
        let fs = image.open_on(Arc::clone(&device) as Arc<dyn BlockDevice>);
        let content = all(&fs.root().unwrap().lookup(b"f").unwrap());
        let lost = content.iter().zip(expected).position(|(byte, wanted)| *byte == 0 && *wanted != 0);
        assert_eq!(
            lost,
            None,
            "{what}, {state}: a zero among {} bytes that was never written",
            content.len()
        );
        lengths.insert(content.len());
        fs.close().unwrap();
        device.image().save(image.path()).unwrap();
        let (code, text) = run("e2fsck", &["-fn", &image.path()]);
        assert_eq!(code, 0, "{what}, {state}: {text}");
    }
    lengths.len()
}

#[test]
fn a_size_is_that_of_the_pages_that_were_taken() {
    let image = Image::new("16M", KINDS[0]);
    image.file("f");
    let text = image.debugfs("stats");
    let bitmap = text.split("block bitmap at ").nth(1).and_then(|s| s.split([',', ' ']).next()).unwrap();
    let device = recording(&image);
    let at = bitmap.parse::<u64>().unwrap() * 4096;
    let hooked = Arc::new(Hooked { inner: Arc::clone(&device), at, file: Mutex::new(None) });
    let volume = open(Arc::clone(&hooked) as Arc<dyn BlockDevice>);
    let start = device.mark("open");
    let f = file(&volume, "/f");
    f.write_at(&[1; 100], 0).unwrap();
    *hooked.file.lock().unwrap() = Some(f.clone());
    f.sync_all().unwrap();
    assert!(hooked.file.lock().unwrap().is_none(), "the bitmap was not read");
    let log = device.log();
    let expected = [vec![1; 100], vec![2; 9000]].concat();
    assert!(judge(&image, &log, start, "append", &expected) > 1);
}

/// A call that moves i_disksize, or may, and the result that it has on a file of ones.
type Case = (&'static str, fn(&File), fn(&mut Vec<u8>));

const CASES: [Case; 12] = [
    ("lengthen", |f| f.set_len(LEN as u64 + 1).unwrap(), |m| m.push(0)),
    ("lengthen far", |f| f.set_len(3 * LEN as u64).unwrap(), |m| m.resize(3 * LEN, 0)),
    ("shorten", |f| f.set_len(LEN as u64 - 5000).unwrap(), |m| m.truncate(LEN - 5000)),
    (
        "allocate",
        |f| f.fallocate(FallocMode::Allocate, LEN as u64 + 9000, 9000).unwrap(),
        |m| m.resize(LEN + 18_000, 0),
    ),
    (
        "allocate over the end",
        |f| f.fallocate(FallocMode::Allocate, LEN as u64 - 10, 9000).unwrap(),
        |m| m.resize(LEN + 8990, 0),
    ),
    (
        "zero",
        |f| f.fallocate(FallocMode::ZeroRange, LEN as u64 - 10, 9000).unwrap(),
        |m| {
            m.truncate(LEN - 10);
            m.resize(LEN + 8990, 0);
        },
    ),
    ("punch", |f| f.fallocate(FallocMode::PunchHole, 81_920, 8192).unwrap(), |m| m[81_920..90_112].fill(0)),
    (
        "collapse",
        |f| f.fallocate(FallocMode::CollapseRange, 81_920, 8192).unwrap(),
        |m| drop(m.drain(81_920..90_112)),
    ),
    (
        "insert",
        |f| f.fallocate(FallocMode::InsertRange, 81_920, 8192).unwrap(),
        |m| drop(m.splice(81_920..81_920, [0; 8192])),
    ),
    (
        "write past the cache",
        |f| f.with_direct(true).write_at(&[3; 9000], LEN as u64 + 10).unwrap(),
        |m| {
            m.resize(LEN + 10, 0);
            m.resize(LEN + 9010, 3);
        },
    ),
    (
        "read past the cache",
        |f| assert_eq!(f.with_direct(true).read_at(&mut [0; 10], LEN as u64 - 10).unwrap(), 10),
        |_| (),
    ),
    (
        "write what another cache has",
        |f| f.write_late(&[3; 1 << 17], 106_496).unwrap(),
        |m| {
            m.resize(106_496, 0);
            m.resize(106_496 + (1 << 17), 3);
        },
    ),
];

#[test]
fn a_size_comes_with_the_bytes_before_it() {
    for (what, call, change) in CASES {
        let image = Image::new("16M", KINDS[0]);
        image.file("f");
        image.file("g");
        let device = recording(&image);
        let volume = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
        let start = device.mark("open");
        let (f, other) = (file(&volume, "/f"), file(&volume, "/g"));
        let mut model = vec![1; LEN];
        f.write_at(&model, 0).unwrap();
        call(&f);
        // Commits the changes of the call.
        other.write_at(b"x", 0).unwrap();
        other.sync_all().unwrap();
        // The bytes that a truncation removes may be there until then.
        let mut expected = model.clone();
        change(&mut model);
        for (byte, after) in expected.iter_mut().zip(&model) {
            *byte *= *after;
        }
        expected.extend(model.iter().skip(expected.len()));
        judge(&image, &device.log(), start, what, &expected);
        f.sync_all().unwrap();
        assert!(volume.read("/f").unwrap() == model, "{what}");
        drop((f, other));
        // And all of it is on the device at the end.
        volume.close().unwrap();
        device.image().save(image.path()).unwrap();
        assert!(image.dump("f") == model, "{what}");
    }
}

/// A dirty page across the end of a truncation: the bytes that were cut off are not on disk when
/// the file has grown again.
#[test]
fn what_was_cut_off_does_not_come_back_with_a_larger_size() {
    let (grown, cut) = (LEN - 1000, LEN - 3000);
    let grow: [fn(&File, u64); 2] =
        [|f, to| f.set_len(to).unwrap(), |f, to| f.fallocate(FallocMode::Allocate, 0, to).unwrap()];
    for grow in grow {
        let image = Image::new("16M", KINDS[0]);
        image.file("f");
        let device = recording(&image);
        let volume = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
        let f = file(&volume, "/f");
        f.write_at(&[1; LEN], 0).unwrap();
        f.sync_all().unwrap();
        f.write_at(&[2; 10], cut as u64 - 10).unwrap();
        f.set_len(cut as u64).unwrap();
        grow(&f, grown as u64);
        // The sizes are committed, and the page is not written out.
        f.inode().fs.journal.sync().unwrap();
        let fs = image.open_on(Arc::new(lanefs_device::MemDevice::from_bytes(device.image().to_bytes())));
        let found = all(&fs.root().unwrap().lookup(b"f").unwrap());
        assert_eq!(found.len(), grown);
        assert!(found[cut..].iter().all(|byte| *byte == 0), "what was cut off came back");
    }
}

/// An overwrite of mapped blocks behind i_disksize moves i_disksize.
#[test]
fn an_overwrite_up_to_a_size_that_is_not_on_disk_yet_moves_it_there() {
    let image = Image::new("16M", KINDS[0]);
    let volume = open(Arc::new(FileDevice::open(PathBuf::from(image.path())).unwrap()));
    const WHOLE: usize = 1 << 17;
    let f = volume.create_file("/f").unwrap();
    f.write_at(&[1; WHOLE - 100], 0).unwrap();
    f.sync_all().unwrap();
    f.write_late(&[2; WHOLE], 0).unwrap();
    f.sync_all().unwrap();
    drop(f);
    volume.close().unwrap();
    assert!(image.dump("f") == [2; WHOLE]);
}
