//! A device that remembers every change in order.

use crate::{Image, Shape};
use lanefs_device::{BlockDevice, Op, Result, WriteOp, check_range};
use parking_lot::Mutex;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// One thing that happened to a [`RecordingDevice`].
#[derive(Clone)]
pub enum LogEntry {
    /// Bytes were written.
    Write {
        /// First byte on the device.
        offset: u64,
        /// What was written.
        data: Arc<[u8]>,
    },
    /// A range was made zero.
    Zeroes {
        /// First byte on the device.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// A range was given up: it reads as garbage (0xdb) from then on.
    Discard {
        /// First byte on the device.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// All before it became durable.
    Flush,
    /// The test's note, [`RecordingDevice::mark`].
    Mark(String),
}

impl fmt::Debug for LogEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogEntry::Write { offset, data } => write!(f, "write {} at {offset:#x}", data.len()),
            LogEntry::Zeroes { offset, len } => write!(f, "zeroes {len} at {offset:#x}"),
            LogEntry::Discard { offset, len } => write!(f, "discard {len} at {offset:#x}"),
            LogEntry::Flush => write!(f, "flush"),
            LogEntry::Mark(label) => write!(f, "mark {label}"),
        }
    }
}

/// The byte of a discarded range. It is no zero, so that a test notices a reader that counts on
/// zeros there.
pub(crate) const DISCARDED: u8 = 0xdb;

/// The calls that changed a device, from a known image on. An entry's index is its sequence number.
#[derive(Debug, Clone)]
pub struct Log {
    /// What the device held at first.
    pub base: Image,
    /// Everything since, in order.
    pub entries: Vec<LogEntry>,
    /// The unit in bytes that the device writes whole or not at all.
    pub atomic_write: usize,
}

impl Log {
    /// Returns what a medium holds that has of the entries only those for which `keep` returns
    /// true, by sequence number.
    pub fn image_of(&self, keep: impl Fn(usize) -> bool) -> Image {
        let mut image = self.base.clone();
        self.entries
            .iter()
            .enumerate()
            .filter(|(i, _)| keep(*i))
            .for_each(|(_, entry)| entry.apply(&mut image));
        image
    }
}

/// A device in memory that logs every write, flush and discard.
///
/// A change and its place in the log are one step: what is logged before a flush had reached the
/// device when the flush came, whichever threads they are from.
#[derive(Debug)]
pub struct RecordingDevice {
    size: u64,
    atomic_write: usize,
    alignment: usize,
    state: Mutex<RecordState>,
}

#[derive(Debug)]
struct RecordState {
    base: Image,
    now: Image,
    entries: Vec<LogEntry>,
}

impl RecordingDevice {
    /// Returns a device that starts with `base` and an empty log.
    pub fn new(base: Image) -> Self {
        let size = base.size();
        let state = RecordState { now: base.clone(), base, entries: Vec::new() };
        Self { size, atomic_write: 512, alignment: 1, state: Mutex::new(state) }
    }

    /// Sets what [`BlockDevice::atomic_write`] returns, 512 otherwise: where its crash states are
    /// torn.
    #[must_use]
    pub fn with_atomic_write(self, atomic_write: usize) -> Self {
        Self { atomic_write, ..self }
    }

    /// Sets what [`BlockDevice::alignment`] returns, 1 otherwise. Calls that are not aligned are
    /// carried out all the same, as a file that is open for O_DIRECT does.
    #[must_use]
    pub fn with_alignment(self, alignment: usize) -> Self {
        Self { alignment, ..self }
    }

    /// Begins the log anew with what the device holds now: what came before counts as durable.
    pub fn begin(&self) {
        let mut state = self.state.lock();
        state.base = state.now.clone();
        state.entries.clear();
    }

    /// Notes that something happened here, and returns the note's sequence number.
    ///
    /// A mark set after an fsync returned precedes every cut at which that fsync had returned.
    pub fn mark(&self, label: impl Into<String>) -> usize {
        self.append(LogEntry::Mark(label.into()))
    }

    /// Returns the number of entries so far.
    pub fn sequence(&self) -> usize {
        self.state.lock().entries.len()
    }

    /// Returns the log as it is now.
    pub fn log(&self) -> Log {
        let state = self.state.lock();
        let (base, entries) = (state.base.clone(), state.entries.clone());
        Log { base, entries, atomic_write: self.atomic_write }
    }

    /// Returns what the device holds now.
    pub fn image(&self) -> Image {
        self.state.lock().now.clone()
    }

    /// Loses a part of what was not flushed, as a crash state of `seed` does, and goes on. What
    /// is lost is logged as written over with what was there: a crash before the next flush may
    /// leave no other content than without that.
    pub fn lose(&self, seed: u64) {
        let (log, before) = (self.log(), self.image());
        let flushes = log.entries.iter().filter(|entry| matches!(entry, LogEntry::Flush)).count();
        let Some(left) = log.crash_state(seed, flushes, Shape::Random(0)) else { return };
        for range in log.entries[left.durable..].iter().filter_map(LogEntry::range) {
            let read = |image: &Image| {
                let mut bytes = vec![0; (range.end - range.start) as usize];
                image.read(range.start, &mut bytes);
                bytes
            };
            let kept = read(&left.image);
            if kept != read(&before) {
                self.append(LogEntry::Write { offset: range.start, data: kept.into() });
            }
        }
    }

    fn append(&self, entry: LogEntry) -> usize {
        let mut state = self.state.lock();
        entry.apply(&mut state.now);
        state.entries.push(entry);
        state.entries.len() - 1
    }
}

impl LogEntry {
    /// Returns the bytes of the device that the entry changes, `None` if it changes nothing.
    pub(crate) fn range(&self) -> Option<Range<u64>> {
        match self {
            LogEntry::Write { offset, data } => Some(*offset..offset + data.len() as u64),
            LogEntry::Zeroes { offset, len } | LogEntry::Discard { offset, len } => {
                Some(*offset..offset + len)
            }
            LogEntry::Flush | LogEntry::Mark(_) => None,
        }
    }

    /// Applies a part of the entry's range to an image.
    pub(crate) fn apply_part(&self, part: Range<u64>, image: &mut Image) {
        match self {
            LogEntry::Write { offset, data } => {
                let (start, end) = ((part.start - offset) as usize, (part.end - offset) as usize);
                image.write(part.start, &data[start..end]);
            }
            LogEntry::Zeroes { .. } => image.zero(part.start, part.end - part.start),
            LogEntry::Discard { .. } => image.fill(part.start, part.end - part.start, DISCARDED),
            LogEntry::Flush | LogEntry::Mark(_) => {}
        }
    }

    /// Applies the entry to an image.
    pub(crate) fn apply(&self, image: &mut Image) {
        match self {
            LogEntry::Write { offset, data } => image.write(*offset, data),
            LogEntry::Zeroes { offset, len } => image.zero(*offset, *len),
            LogEntry::Discard { offset, len } => image.fill(*offset, *len, DISCARDED),
            LogEntry::Flush | LogEntry::Mark(_) => {}
        }
    }
}

impl BlockDevice for RecordingDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_only(&self) -> bool {
        false
    }

    fn alignment(&self) -> usize {
        self.alignment
    }

    fn atomic_write(&self) -> usize {
        self.atomic_write
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        check_range(Op::Read, self.size, offset, buf.len() as u64)?;
        self.state.lock().now.read(offset, buf);
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        check_range(Op::Write, self.size, offset, data.len() as u64)?;
        self.append(LogEntry::Write { offset, data: data.into() });
        Ok(())
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> Result<()> {
        for op in ops {
            self.write_at(&op.data.concat(), op.offset)?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.append(LogEntry::Flush);
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        check_range(Op::Discard, self.size, offset, len)?;
        self.append(LogEntry::Discard { offset, len });
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        check_range(Op::Write, self.size, offset, len)?;
        self.append(LogEntry::Zeroes { offset, len });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_in_order() {
        let dev = RecordingDevice::new(Image::from_bytes(vec![5; 8192]));
        dev.write_at(b"abc", 10).unwrap();
        dev.flush().unwrap();
        assert_eq!(dev.mark("fsync a"), 2);
        dev.write_batch(&[WriteOp { offset: 100, data: &[b"x", b"yz"] }]).unwrap();
        dev.discard(4096, 512).unwrap();
        dev.write_zeroes(5000, 100).unwrap();
        assert!(dev.write_at(b"!", 8192).is_err());
        let log = dev.log();
        assert_eq!(
            format!("{:?}", log.entries),
            "[write 3 at 0xa, flush, mark fsync a, write 3 at 0x64, discard 512 at 0x1000, zeroes 100 at 0x1388]"
        );
        assert_eq!(log.base.to_bytes(), vec![5; 8192]);
        let mut replayed = log.base.clone();
        log.entries.iter().for_each(|e| e.apply(&mut replayed));
        let mut seen = vec![0; 8192];
        dev.read_at(&mut seen, 0).unwrap();
        assert_eq!(replayed.to_bytes(), seen);
        assert_eq!(
            (&seen[10..13], &seen[100..103], seen[4096], seen[5000], seen[8191]),
            (&b"abc"[..], &b"xyz"[..], DISCARDED, 0, 5)
        );
    }

    #[test]
    fn a_log_that_begins_anew_begins_with_what_there_is() {
        let dev = RecordingDevice::new(Image::zeroed(8192));
        dev.write_at(b"before", 0).unwrap();
        dev.begin();
        dev.write_at(b"after", 4096).unwrap();
        let log = dev.log();
        assert_eq!(log.entries.len(), 1);
        let mut seen = [0; 6];
        log.base.read(0, &mut seen);
        assert_eq!(&seen, b"before");
        assert!(log.crash_states(1, 5).all(|s| s.image.to_bytes()[..6] == *b"before"));
    }

    #[test]
    fn a_loss_takes_what_was_not_flushed_and_nothing_else() {
        let mut lost = 0;
        for seed in 0..50 {
            let dev = RecordingDevice::new(Image::zeroed(64 << 10));
            dev.write_at(&[1; 8192], 0).unwrap();
            dev.flush().unwrap();
            dev.write_at(&[2; 8192], 4096).unwrap();
            dev.lose(seed);
            let bytes = dev.image().to_bytes();
            assert!(bytes[..4096].iter().all(|b| *b == 1) && bytes[12288..].iter().all(|b| *b == 0));
            assert!(bytes[4096..8192].iter().all(|b| [1, 2].contains(b)));
            assert!(bytes[8192..12288].iter().all(|b| [0, 2].contains(b)));
            lost += u32::from(bytes[4096..12288].contains(&1));
            assert_eq!(dev.log().image_of(|_| true).to_bytes(), bytes);
            // What was made durable is not lost any more.
            dev.flush().unwrap();
            dev.lose(seed);
            assert_eq!(dev.image().to_bytes(), bytes);
        }
        assert!((5..50).contains(&lost), "{lost} of 50");
    }

    /// A reader never sees a write that is not in the log yet.
    #[test]
    fn threads_share_one_order() {
        let dev = RecordingDevice::new(Image::zeroed(1 << 16));
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let dev = &dev;
                scope.spawn(move || {
                    for i in 0..200_u64 {
                        dev.write_at(&[(i as u8) ^ (thread << 6); 300], (i * 37) % 60_000).unwrap();
                        dev.flush().unwrap();
                    }
                });
            }
        });
        let log = dev.log();
        assert_eq!(log.entries.len(), 1600);
        let mut replayed = log.base.clone();
        log.entries.iter().for_each(|e| e.apply(&mut replayed));
        assert_eq!(replayed.to_bytes(), dev.image().to_bytes());
    }
}
