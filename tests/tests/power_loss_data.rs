//! Power loss over data: every cut at a flush, and random losses between flushes, in every mode.
//!
//! One thread writes, cuts and syncs a few files, replaces others by renames, and commits
//! transactions that are under way. Another thread commits before many of the writes. The free
//! blocks are full of the old data of another file. Each crash state is recovered, judged by
//! e2fsck, and must keep the promises: all that was synced is there; what came after is there in
//! part or not at all; a name that was replaced shows the old or the new file whole; no file shows
//! old data.
//!
//! `LANEFS_SEED` gives the same operations, not the same moments of the commits: a failure keeps
//! the image.

use lanefs::{FallocMode, File, Timestamp, Volume};
use lanefs_device::BlockDevice;
use lanefs_sim::{CrashState, DumpFile, Image, Log, RecordingDevice, Seed, seed_from_env};
use lanefs_tests::{Mode, OLD, PokingDevice, Tracked, e2fsck, long, memory_dir, modes, patterned};
use rand::Rng;
use rand::rngs::StdRng;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

const FILES: usize = 4;
const TARGETS: usize = 3;

/// The longest file.
const MAX: usize = 60_000;

fn file(i: usize) -> String {
    format!("/file{i}")
}

fn target(i: usize) -> String {
    format!("/target{i}")
}

/// The operations that were done, and the states that they made.
struct History {
    log: Log,
    files: Vec<Tracked>,
    /// The number of the operation that put each version in place.
    targets: Vec<Vec<usize>>,
    /// Of syncs of a file, by operation and file: the time that they made durable.
    times: BTreeMap<(usize, usize), Timestamp>,
}

struct Run<'v> {
    volume: &'v Volume,
    device: &'v RecordingDevice,
    rng: StdRng,
    handles: Vec<File>,
    /// As many that go past the page cache, and whose writes are durable.
    direct: Vec<File>,
    dsync: Vec<File>,
    /// A handle of the file whose metadata is changed to commit.
    other: File,
    history: History,
    op: usize,
    block: usize,
}

/// The bytes of an operation: neither zeros nor old data.
fn byte(op: usize) -> u8 {
    1 + (op % 200) as u8
}

/// A version of a target: it tells its number and its length.
fn version(i: usize, number: usize) -> Vec<u8> {
    let len = 16 + (number * 7919 + i * 131) % 30_000;
    let mut bytes = [(number as u64).to_le_bytes(), (len as u64).to_le_bytes()].concat();
    bytes.resize(len, byte(number));
    bytes
}

impl Run<'_> {
    fn mark(&self, what: &str, i: impl Display) {
        self.device.mark(format!("{what} {} {i}", self.op));
    }

    fn synced(&mut self, i: usize) {
        self.history.times.insert((self.op, i), self.handles[i].metadata().mtime());
        self.mark("file", i);
    }

    fn step(&mut self) {
        self.op += 1;
        self.mark("begin", "");
        let i = self.rng.random_range(0..FILES);
        match self.rng.random_range(0..100) {
            0..16 => {
                let (at, len) = self.place(i);
                self.write(i, at, len);
            }
            16..22 => {
                let (at, len) = self.place(i);
                self.write_by(|run| &run.direct[i], i, at, len);
            }
            22..32 => {
                let (at, len) = (self.history.files[i].content().len(), self.len());
                self.write(i, at, len.min(MAX - at));
            }
            32..40 => {
                let (at, len) = (self.history.files[i].content().len(), self.len());
                self.write(i, at, len.min(MAX - at));
                self.handles[i].sync_all().unwrap();
                self.synced(i);
            }
            40..44 => {
                let (at, len) = self.place(i);
                self.write_by(|run| &run.dsync[i], i, at, len);
                self.mark("data", i);
            }
            44..50 => {
                let (at, len) = self.inside(i);
                self.write(i, at, len);
                self.handles[i].sync_data().unwrap();
                self.mark("data", i);
            }
            50..54 => self.backwards(i),
            54..62 => self.truncate(i),
            62..66 => self.regrow(i),
            66..72 => {
                self.handles[i].sync_all().unwrap();
                self.synced(i);
            }
            72..76 => {
                self.handles[i].sync_data().unwrap();
                self.mark("data", i);
            }
            76..81 => {
                let set = lanefs::SetAttr { uid: Some(self.op as u32), ..lanefs::SetAttr::default() };
                self.other.set_attr(&set).unwrap();
                self.other.sync_all().unwrap();
            }
            81..92 => self.replace(),
            92..96 => self.fallocate(i),
            96..98 => {
                self.volume.sync().unwrap();
                self.mark("volume", "");
            }
            _ => {
                // The last handle goes, and with it what is kept for a file in use.
                let options = self.volume.open_options().read(true).write(true);
                for handles in [&mut self.handles, &mut self.direct, &mut self.dsync] {
                    handles.remove(i);
                }
                self.handles.insert(i, options.open(file(i)).unwrap());
                self.direct.insert(i, options.clone().direct(true).open(file(i)).unwrap());
                self.dsync.insert(i, options.dsync(true).open(file(i)).unwrap());
            }
        }
    }

    fn len(&mut self) -> usize {
        match self.rng.random_range(0..4) {
            0 => self.rng.random_range(1..200),
            1 => self.rng.random_range(1..4) * self.block,
            2 => self.rng.random_range(1..3 * self.block),
            _ => self.rng.random_range(1..20_000),
        }
    }

    /// A range that may be beyond the end.
    fn place(&mut self, i: usize) -> (usize, usize) {
        let end = self.history.files[i].content().len();
        let gap = if self.rng.random() { 0 } else { 20_000 };
        let at = self.rng.random_range(0..(end + gap + 1).min(MAX));
        (at, self.len().min(MAX - at))
    }

    /// A range that is there.
    fn inside(&mut self, i: usize) -> (usize, usize) {
        let end = self.history.files[i].content().len();
        let at = self.rng.random_range(0..end.max(1));
        (at, self.len().min(end - at.min(end)))
    }

    fn write(&mut self, i: usize, at: usize, len: usize) {
        self.write_by(|run| &run.handles[i], i, at, len);
    }

    fn write_by(&mut self, handle: impl Fn(&Self) -> &File, i: usize, at: usize, len: usize) {
        if len == 0 {
            return;
        }
        let mut content = self.history.files[i].content().to_vec();
        content.resize(content.len().max(at + len), 0);
        content[at..at + len].fill(byte(self.op));
        self.history.files[i].record(self.op, format!("write {len} at {at}"), content);
        handle(self).write_at(&vec![byte(self.op); len], at as u64).unwrap();
    }

    /// Fills a hole, or overwrites, from its end to its start.
    fn backwards(&mut self, i: usize) {
        let (at, len) = self.place(i);
        let step = self.block * 2;
        for piece in (0..len).step_by(step).rev() {
            self.write(i, at + piece, step.min(len - piece));
            if self.rng.random_range(0..6) == 0 {
                self.handles[i].sync_data().unwrap();
                // Not yet of this operation, which goes on.
                self.device.mark(format!("data {} {i}", self.op - 1));
            }
        }
    }

    fn truncate(&mut self, i: usize) {
        let now = self.history.files[i].content().to_vec();
        let len = match self.rng.random_range(0..4) {
            0 => 0,
            1 => (now.len() + self.rng.random_range(0..9000)).min(MAX),
            _ => self.rng.random_range(0..=now.len()),
        };
        let mut content = now;
        content.resize(len, 0);
        self.history.files[i].record(self.op, format!("truncate to {len}"), content);
        self.handles[i].set_len(len as u64).unwrap();
    }

    /// Cuts a file and makes it longer again: what was there must not come back.
    fn regrow(&mut self, i: usize) {
        self.truncate(i);
        if self.rng.random() {
            self.handles[i].sync_all().unwrap();
            self.device.mark(format!("data {} {i}", self.op - 1));
        }
        let mut content = self.history.files[i].content().to_vec();
        let end = (content.len() + self.rng.random_range(0..2 * self.block)).min(MAX);
        content.resize(end, 0);
        self.history.files[i].record(self.op, format!("truncate to {end} again"), content);
        self.handles[i].set_len(end as u64).unwrap();
        if self.rng.random() {
            self.write(i, end, self.block.min(MAX - end));
        }
        self.handles[i].sync_all().unwrap();
        self.synced(i);
    }

    /// A range that loses its blocks, or gets some: either way nobody's old data is in it.
    fn fallocate(&mut self, i: usize) {
        let modes = [
            FallocMode::PunchHole,
            FallocMode::ZeroRange,
            FallocMode::Allocate,
            FallocMode::KeepSize,
            FallocMode::CollapseRange,
            FallocMode::InsertRange,
        ];
        let mode = modes[self.rng.random_range(0..modes.len())];
        let (mut at, len) = self.place(i);
        let mut content = self.history.files[i].content().to_vec();
        let mut end = at + len.max(1);
        if matches!(mode, FallocMode::CollapseRange | FallocMode::InsertRange) {
            (at, end) = (at / self.block * self.block, end.next_multiple_of(self.block));
            // It is done in one transaction: a crash shows the file before or after it.
            match mode {
                FallocMode::CollapseRange if end < content.len() => drop(content.drain(at..end)),
                FallocMode::InsertRange if at < content.len() && content.len() + end - at <= MAX => {
                    drop(content.splice(at..at, vec![0; end - at]));
                }
                _ => return,
            }
        }
        if matches!(mode, FallocMode::ZeroRange | FallocMode::Allocate) {
            content.resize(content.len().max(end), 0);
        }
        if matches!(mode, FallocMode::PunchHole | FallocMode::ZeroRange) {
            let there = at.min(content.len())..end.min(content.len());
            content[there].fill(0);
        }
        match self.handles[i].fallocate(mode, at as u64, (end - at) as u64) {
            Ok(()) => self.history.files[i].record(self.op, format!("{mode:?} {at}..{end}"), content),
            // Files without extents.
            Err(lanefs::Error::NotSupported(_)) => {}
            Err(e) => panic!("{mode:?}: {e}"),
        }
    }

    /// Puts a new version in the place of another, as programs do that save.
    fn replace(&mut self) {
        let i = self.rng.random_range(0..TARGETS);
        let number = self.history.targets[i].len();
        let new = self.volume.create_file("/new").unwrap();
        new.write_at(&version(i, number), 0).unwrap();
        if self.rng.random() {
            new.sync_all().unwrap();
        }
        self.history.targets[i].push(self.op);
        self.volume.rename("/new", target(i)).unwrap();
        if self.rng.random_range(0..3) == 0 {
            new.sync_all().unwrap();
            self.mark("target", i);
        }
    }
}

fn history(base: &Image, mode: &Mode, block: usize, rng: StdRng, ops: usize) -> History {
    let device = Arc::new(RecordingDevice::new(base.clone()));
    let poking = Arc::new(PokingDevice::new(Arc::clone(&device)));
    let volume = mode.options().open_device(Arc::clone(&poking) as Arc<dyn BlockDevice>).unwrap();
    (0..FILES).for_each(|i| drop(volume.create_file(file(i)).unwrap()));
    (0..TARGETS).for_each(|i| volume.write(target(i), &version(i, 0)).unwrap());
    let (other, mine) = (volume.create_file("/other").unwrap(), volume.create_file("/mine").unwrap());
    volume.sync().unwrap();
    device.mark("volume 0 ");
    let options = volume.open_options().read(true).write(true);
    let open = |direct, dsync| -> Vec<File> {
        let open = |i| options.clone().direct(direct).dsync(dsync).open(file(i)).unwrap();
        (0..FILES).map(open).collect()
    };
    let history = History {
        log: device.log(),
        files: (0..FILES).map(|_| Tracked::new(block, Vec::new())).collect(),
        targets: vec![vec![0]; TARGETS],
        times: BTreeMap::new(),
    };
    let (handles, direct, dsync) = (open(false, false), open(true, false), open(false, true));
    let mut run = Run {
        volume: &volume,
        device: &device,
        rng,
        handles,
        direct,
        dsync,
        other: mine,
        history,
        op: 0,
        block,
    };
    let poker = poking.start(other);
    (0..ops).for_each(|_| run.step());
    drop(poker);
    // No close: the log ends as a crash leaves it.
    let log = device.log();
    let Run { history, .. } = run;
    History { log, ..history }
}

/// The promises at the cut: of everything, the last operation that is synced.
#[derive(Default)]
struct Promised {
    begun: usize,
    files: [usize; FILES],
    targets: [usize; TARGETS],
    /// Of each file, the operation of the last fsync.
    times: [usize; FILES],
}

fn promised(state: &CrashState, log: &Log) -> Option<Promised> {
    let mut promised = Promised::default();
    let mut started = false;
    for (_, mark) in state.marks(log) {
        let mut words = mark.split(' ');
        let (Some(what), Some(op), i) = (words.next(), words.next(), words.next()) else { panic!("{mark}") };
        let op: usize = op.parse().unwrap();
        let i = || i.and_then(|i| i.parse::<usize>().ok()).unwrap();
        match what {
            "begin" => promised.begun = op,
            "file" => {
                promised.files[i()] = op;
                promised.times[i()] = op;
            }
            "data" => promised.files[i()] = op,
            "target" => promised.targets[i()] = op,
            "volume" => {
                started = true;
                promised.files = [op; FILES];
                promised.targets = [op; TARGETS];
            }
            _ => panic!("{mark}"),
        }
    }
    started.then_some(promised)
}

fn judge(volume: &Volume, history: &History, promised: &Promised) -> Result<(), String> {
    let read = |path: &str| volume.read(path).map_err(|e| format!("{path}: {e}"));
    let old = |path: &str, found: &[u8]| match found.iter().position(|b| *b == OLD) {
        Some(at) => Err(format!("{path}: old data at {at} of {}", found.len())),
        None => Ok(()),
    };
    for (i, tracked) in history.files.iter().enumerate() {
        let path = file(i);
        let found = read(&path)?;
        old(&path, &found)?;
        tracked.judge(&found, promised.files[i], promised.begun).map_err(|said| format!("{path}: {said}"))?;
        let time = history.times.get(&(promised.times[i], i));
        let mtime = volume.metadata(&path).map_err(|e| format!("{path}: {e}"))?.mtime();
        let at = |t: &Timestamp| (t.sec, t.nsec);
        if time.is_some_and(|synced| at(&mtime) < at(synced)) {
            return Err(format!("{path}: mtime is {mtime:?}, and {time:?} was synced"));
        }
    }
    for (i, ops) in history.targets.iter().enumerate() {
        let path = target(i);
        let found = read(&path)?;
        old(&path, &found)?;
        let least = ops.iter().rposition(|op| *op <= promised.targets[i]).unwrap_or(0);
        let most = ops.iter().rposition(|op| *op <= promised.begun).unwrap_or(0);
        if !(least..=most).any(|number| version(i, number) == found) {
            let head: Vec<u8> = found.iter().take(32).copied().collect();
            return Err(format!(
                "{path}: {} bytes, {head:02x?}..: none of the versions {least}..={most}, whole",
                found.len()
            ));
        }
    }
    if volume.exists("/new").unwrap_or(false) {
        old("/new", &read("/new")?)?;
    }
    Ok(())
}

fn campaign(args: &[&str], block: usize, stream: u64) {
    let seed: Seed = seed_from_env("LANEFS_SEED");
    let factor = long();
    // A program for each state would take most of the time.
    let e2fsck_every = if factor > 1 { 2 } else { 9 };
    let base = patterned(8 << 20, args);
    let dir = memory_dir();
    let mut dump = DumpFile::create(dir.path().join("state.img"), &base).unwrap();
    for (m, mode) in modes().iter().enumerate() {
        let began = std::time::Instant::now();
        let history = history(&base, mode, block, seed.rng(stream * 100 + m as u64), 90 * factor);
        let mut states = 0;
        for state in history.log.crash_states(seed.value(), 3) {
            let Some(promised) = promised(&state, &history.log) else { continue };
            let fail = |said: &str| -> ! {
                let kept = std::env::temp_dir().join(format!("lanefs-power-loss-{}.img", std::process::id()));
                state.image.save(&kept).unwrap();
                panic!("{mode}: {state} in operation {}: {said}\nimage: {}", promised.begun, kept.display());
            };
            let device = Arc::new(state.device());
            let volume = Volume::open_device(Arc::clone(&device) as Arc<dyn BlockDevice>)
                .unwrap_or_else(|e| fail(&e.to_string()));
            judge(&volume, &history, &promised).unwrap_or_else(|said| fail(&said));
            volume.close().unwrap_or_else(|e| fail(&e.to_string()));
            states += 1;
            if states % e2fsck_every == 0 {
                dump.set(&device.image()).unwrap();
                let (code, said) = e2fsck(dump.path(), &["-fn"]);
                if code != 0 {
                    fail(&format!("e2fsck -fn after recovery: {code}\n{said}"));
                }
            }
        }
        println!("{args:?} {mode}: {states} states, {:.1} s", began.elapsed().as_secs_f64());
        assert!(states > 100, "only {states} states: nothing was flushed");
    }
}

#[test]
fn small_blocks() {
    let args = ["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "orphan_file,metadata_csum_seed"];
    campaign(&args, 1024, 1);
}

#[test]
fn large_blocks() {
    campaign(&["-t", "ext4", "-b", "4096", "-N", "64"], 4096, 2);
}

#[test]
fn indirect_blocks() {
    campaign(&["-t", "ext3", "-b", "1024", "-J", "size=1"], 1024, 3);
}
