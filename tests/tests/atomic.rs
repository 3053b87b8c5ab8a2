//! A read sees all of a write or nothing of it, and no write is lost: many threads on few files,
//! that read, write, cut and append over each other, in every mode of handling data.
//!
//! `LANEFS_SEED` gives each thread the same operations again, not the same order between them.
//! `LANEFS_ATOMIC_OPS` is the number of operations of each thread (1200).

use lanefs::{File, OpenOptions, Volume};
use lanefs_sim::seed_from_env;
use lanefs_tests::{Change, Clock, History, Look, Mode, WORD, Watchdog, e2fsck_clean, mke2fs, modes, open};
use rand::Rng;
use rand::rngs::StdRng;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const THREADS: u64 = 6;

/// Files with their lengths in words: a page, some pages, and many. Every word is written again and
/// again.
const FILES: &[(&str, u64)] = &[("/page", 500), ("/some", 9000), ("/many", 120_000)];

fn ops() -> usize {
    std::env::var("LANEFS_ATOMIC_OPS").map_or(1200, |n| n.parse().expect("a number"))
}

/// Commits come in between by themselves.
fn options(mode: &Mode) -> OpenOptions {
    mode.options().commit_interval(Duration::from_millis(30))
}

/// The changes of one thread to each of the files.
type Notes = Vec<(Vec<Change>, Vec<Look>)>;

fn some_words(rng: &mut StdRng, len: u64) -> Range<u64> {
    let longest = match rng.random_range(0..4) {
        0 => 3,
        1 => 200,
        2 => 1500,
        _ => 9000,
    };
    let n = rng.random_range(1..=longest.min(len));
    let start = rng.random_range(0..=len - n);
    start..start + n
}

fn look(file: &File, words: Range<u64>, clock: &Clock) -> Look {
    let mut bytes = vec![0; (words.end - words.start) as usize * WORD];
    let began = clock.tick();
    let n = file.read_at(&mut bytes, words.start * WORD as u64).unwrap();
    Look::new(words, &bytes[..n], began..clock.tick())
}

fn thread(volume: &Volume, number: u64, mut rng: StdRng, clock: &Clock) -> Notes {
    let open = |name: &str| volume.open_options().read(true).write(true).open(name).unwrap();
    let files: Vec<File> = FILES.iter().map(|(name, _)| open(name)).collect();
    let mut notes: Notes = vec![(Vec::new(), Vec::new()); FILES.len()];
    for i in 0..ops() as u64 {
        let which = rng.random_range(0..FILES.len());
        let (file, len) = (&files[which], FILES[which].1);
        let words = some_words(&mut rng, len);
        let (changes, looks) = &mut notes[which];
        match rng.random_range(0..100) {
            0..45 => {
                let stamp = (number + 1) << 32 | i;
                let bytes = stamp.to_le_bytes().repeat((words.end - words.start) as usize);
                let began = clock.tick();
                file.write_at(&bytes, words.start * WORD as u64).unwrap();
                changes.push(Change { stamp, words, call: began..clock.tick() });
            }
            45..90 => looks.push(look(file, words, clock)),
            90..94 => {
                let began = clock.tick();
                file.set_len(words.start * WORD as u64).unwrap();
                changes.push(Change { stamp: 0, words: words.start..u64::MAX, call: began..clock.tick() });
            }
            94..97 => file.sync_data().unwrap(),
            _ => file.sync_all().unwrap(),
        }
    }
    notes
}

fn storm(image: &Path, mode: &Mode, stream: u64) {
    let seed = seed_from_env("LANEFS_SEED");
    let clock = Clock::default();
    clock.tick();
    let volume = open(options(mode), image).unwrap();
    for (name, _) in FILES {
        volume.open_options().write(true).create(true).truncate(true).open(name).unwrap();
    }
    let notes: Vec<Notes> = std::thread::scope(|scope| {
        let worker = |t| {
            let (volume, clock, rng) = (&volume, &clock, seed.rng(stream * 100 + t));
            scope.spawn(move || thread(volume, t, rng, clock))
        };
        let workers: Vec<_> = (0..THREADS).map(worker).collect();
        workers.into_iter().map(|w| w.join().unwrap()).collect()
    });
    let whole = |volume: &Volume| -> Vec<Look> {
        FILES.iter().map(|(name, len)| look(&volume.open_file(name).unwrap(), 0..*len, &clock)).collect()
    };
    let last = whole(&volume);
    volume.close().unwrap();
    e2fsck_clean(image);
    let opened = whole(&Volume::open_read_only(image).unwrap());
    for (i, (name, _)) in FILES.iter().enumerate() {
        let history = History::new(notes.iter().flat_map(|n| n[i].0.clone()).collect());
        let looks = notes.iter().flat_map(|n| &n[i].1).chain([&last[i], &opened[i]]);
        for look in looks {
            history.check(look).unwrap_or_else(|said| {
                panic!("{mode}: {name}: read of {:?} at {:?}: {said}", look.words, look.call)
            });
        }
    }
}

/// Threads append records to one file, and others read it: records whole, one behind the other,
/// none lost.
fn appends(image: &Path, mode: &Mode, stream: u64) {
    let seed = seed_from_env("LANEFS_SEED");
    let volume = open(options(mode), image).unwrap();
    volume.open_options().write(true).create(true).truncate(true).open("/log").unwrap();
    let running = AtomicU64::new(THREADS);
    let wrote: Vec<u64> = std::thread::scope(|scope| {
        let writer = |t: u64| {
            let (volume, running, mut rng) = (&volume, &running, seed.rng(stream * 100 + 50 + t));
            scope.spawn(move || {
                let file = volume.open_options().append(true).open("/log").unwrap();
                let records = ops() as u64 / 8;
                for i in 0..records {
                    let longest = if rng.random_range(0..10) == 0 { 3000 } else { 100 };
                    let mut record = vec![(t + 1) << 32 | i; rng.random_range(2..longest)];
                    record[1] = record.len() as u64;
                    let bytes: Vec<u8> = record.iter().flat_map(|w| w.to_le_bytes()).collect();
                    file.write_at(&bytes, 0).unwrap();
                    if rng.random_range(0..60) == 0 {
                        file.sync_data().unwrap();
                    }
                }
                running.fetch_sub(1, Ordering::Release);
                records
            })
        };
        let writers: Vec<_> = (0..THREADS).map(writer).collect();
        scope.spawn(|| {
            let file = volume.open_file("/log").unwrap();
            let mut seen = 0;
            while running.load(Ordering::Acquire) > 0 {
                let mut bytes = vec![0; 64 << 20];
                let n = file.read_at(&mut bytes, 0).unwrap();
                let records: u64 = records(&bytes[..n], mode).iter().sum();
                assert!(records >= seen, "{mode}: {seen} records were there, now {records} are");
                seen = records;
                std::thread::sleep(Duration::from_millis(3));
            }
        });
        writers.into_iter().map(|w| w.join().unwrap()).collect()
    });
    assert_eq!(records(&volume.read("/log").unwrap(), mode), wrote, "{mode}");
    volume.close().unwrap();
    e2fsck_clean(image);
    assert_eq!(records(&Volume::open_read_only(image).unwrap().read("/log").unwrap(), mode), wrote, "{mode}");
}

/// The number of records of each thread. All are whole, and those of a thread in order.
fn records(bytes: &[u8], mode: &Mode) -> Vec<u64> {
    let words: Vec<u64> =
        bytes.chunks_exact(WORD).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect();
    assert_eq!(words.len() * WORD, bytes.len(), "{mode}: a part of a word");
    let mut next = vec![0; THREADS as usize];
    let mut at = 0;
    while at < words.len() {
        let stamp = words[at];
        let thread = (stamp >> 32) as usize;
        assert!((1..=THREADS as usize).contains(&thread), "{mode}: word {at} is {stamp:#x}, no record");
        assert_eq!(stamp & 0xFFFF_FFFF, next[thread - 1], "{mode}: word {at}: a record of thread {thread}");
        next[thread - 1] += 1;
        let len = words.get(at + 1).map_or(usize::MAX, |len| *len as usize);
        let rest = words.get(at + 2..at.saturating_add(len));
        let whole = rest.is_some_and(|rest| rest.iter().all(|w| *w == stamp));
        assert!(whole, "{mode}: the record {stamp:#x} at word {at} of {} is not whole", words.len());
        at += len;
    }
    next
}

fn every_mode(args: &[&str], stream: u64, test: fn(&Path, &Mode, u64)) {
    for mode in modes() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("volume");
        mke2fs(&image, 64 << 20, args);
        let _watchdog = Watchdog::new(format!("{args:?} {mode}"));
        test(&image, &mode, stream);
    }
}

#[test]
fn reads_and_writes() {
    every_mode(&["-t", "ext4", "-b", "4096"], 1, storm);
}

#[test]
fn reads_and_writes_of_small_blocks() {
    every_mode(&["-t", "ext4", "-b", "1024", "-J", "size=1"], 2, storm);
}

#[test]
fn reads_and_writes_of_indirect_blocks() {
    every_mode(&["-t", "ext3", "-b", "1024", "-J", "size=1"], 3, storm);
}

#[test]
fn records_at_the_end() {
    every_mode(&["-t", "ext4", "-b", "1024"], 4, appends);
}
