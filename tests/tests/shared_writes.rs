//! Writes of memory that threads share, counted for each operation: what more processors have to
//! move between them. The table of docs/performance.md holds the most that each may have. Built
//! with `--cfg lanefs_schedule` only, whose primitives note each write: `scripts/schedules.sh
//! --slice` runs it. A binary of its own, because it counts the writes of its whole process.
//! `SHARED_WRITES=1` prints the places.
#![cfg(lanefs_schedule)]

use lanefs::{File, NewAttr, OpenOptions, Volume};
use lanefs_device::{BlockDevice, MemDevice};
use lanefs_sync::written;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::thread;

const THREADS: usize = 4;
/// Operations of each thread that count, after a tenth of so many that do not.
const OPERATIONS: usize = 2000;
const BLOCK: usize = 4096;
/// Blocks of each thread's file.
const BLOCKS: usize = 64;

#[test]
fn no_operation_shares_more_writes_than_the_table_says() {
    let table = table();
    let operations: [(&str, fn() -> f64); 4] = [
        ("direct overwrite", || files(true, |file, nth| write(file, nth))),
        ("buffered write", || files(false, |file, nth| write(file, nth))),
        ("create", create),
        ("write and fsync", || {
            files(false, |file, nth| {
                write(file, nth);
                file.sync_all().unwrap();
            })
        }),
    ];
    let mut grown = Vec::new();
    for (operation, count) in operations {
        let (found, most) = (count(), table[operation]);
        println!("{operation}: {found:.3} of at most {most}");
        if found > most {
            grown.push(format!("{operation}: {found:.3} shared writes, {most} in docs/performance.md"));
        }
    }
    assert!(grown.is_empty(), "{grown:#?}");
}

/// The rows of the table: operation and bound.
fn table() -> BTreeMap<String, f64> {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/performance.md");
    let text = fs::read_to_string(document).unwrap();
    let (_, section) = text.split_once("## Writes that threads share").expect("the section of the table");
    let section = section.split("\n## ").next().unwrap_or_default();
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ");
        Some((cells.next()?.to_owned(), cells.next()?.parse().ok()?))
    };
    section.lines().filter_map(row).collect()
}

/// Returns a volume of 32 groups, each with its own inodes, so that each directory, and what is in
/// it, has a group of its own.
fn volume() -> Volume {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(256 << 20));
    let features = "^flex_bg".parse().unwrap();
    let options = lanefs_mkfs::Options { block_size: Some(1024), features, ..Default::default() };
    lanefs_mkfs::format(&*device, &options).unwrap();
    OpenOptions::new().write(true).open_device(device).unwrap()
}

/// Runs `work` on each thread's own file, which has been written whole.
fn files(direct: bool, work: impl Fn(&File, usize) + Sync) -> f64 {
    let volume = volume();
    let files: Vec<File> = (0..THREADS)
        .map(|number| {
            volume.create_dir(format!("/dir-{number}")).unwrap();
            let path = format!("/dir-{number}/file");
            volume.write(&path, &[1; BLOCK * BLOCKS]).unwrap();
            volume.open_options().read(true).write(true).direct(direct).open(path).unwrap()
        })
        .collect();
    volume.sync().unwrap();
    counted(|thread, nth| work(&files[thread], nth))
}

fn write(file: &File, nth: usize) {
    file.write_at(&[nth as u8; BLOCK], (nth * 7 % BLOCKS * BLOCK) as u64).unwrap();
}

/// Creates files, each thread in a directory of its own.
fn create() -> f64 {
    let volume = volume();
    let dirs: Vec<_> = (0..THREADS)
        .map(|number| {
            volume.create_dir(format!("/dir-{number}")).unwrap();
            volume.open_dir(format!("/dir-{number}")).unwrap()
        })
        .collect();
    let attr = NewAttr { permissions: 0o644, uid: 0, gid: 0 };
    counted(|thread, nth| drop(dirs[thread].create_new_file(format!("file-{nth}"), attr).unwrap()))
}

/// Shared writes for each operation.
fn counted(work: impl Fn(usize, usize) + Sync) -> f64 {
    let (warm, begin, end) =
        (Barrier::new(THREADS + 1), Barrier::new(THREADS + 1), Barrier::new(THREADS + 1));
    let places = thread::scope(|scope| {
        for number in 0..THREADS {
            let (work, warm, begin, end) = (&work, &warm, &begin, &end);
            scope.spawn(move || {
                (0..OPERATIONS / 10).for_each(|nth| work(number, nth));
                warm.wait();
                begin.wait();
                (OPERATIONS / 10..OPERATIONS * 11 / 10).for_each(|nth| work(number, nth));
                end.wait();
            });
        }
        warm.wait();
        written::start();
        begin.wait();
        end.wait();
        written::stop()
    });
    let each = |writes: f64| writes / (THREADS * OPERATIONS) as f64;
    if std::env::var_os("SHARED_WRITES").is_some() {
        for place in places.iter().filter(|place| each(place.writes) >= 0.005) {
            println!("  {:.3} {}", each(place.writes), place.at);
        }
    }
    each(places.iter().map(|place| place.writes).sum())
}
