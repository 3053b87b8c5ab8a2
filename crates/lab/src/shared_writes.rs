//! Operations, and how many of their writes go to cache lines that other threads write too: more
//! processors have to move these lines between them.
//!
//! `tests/tests/shared_writes.rs` counts the writes of [`Operation::run`] and fails beyond a bound.
//! The model predicts with the same bounds from the times of the same work.

use crate::Outcome;
use lanefs::{Dir, File, NewAttr, OpenOptions, Volume};
use lanefs_device::{BlockDevice, MemDevice};
use std::ops::Range;
use std::sync::{Arc, Barrier};
use std::thread;

const BLOCK: usize = 4096;
/// Blocks of each thread's file.
const BLOCKS: usize = 64;

/// Runs an operation once, by the number of its thread and its number in that thread.
type Work = Box<dyn Fn(usize, usize) -> Outcome<()> + Sync>;

/// An operation of threads that each have a file or a directory of their own.
#[derive(Debug, Clone, Copy)]
pub struct Operation {
    /// As in the table of docs/performance.md.
    pub name: &'static str,
    /// Writes to shared lines for each operation, at most.
    pub shared_writes: f64,
    prepare: fn(&Volume, usize) -> Outcome<Work>,
}

/// Overwrites 4 KiB past the page cache.
pub const DIRECT_OVERWRITE: Operation = Operation {
    name: "direct overwrite",
    shared_writes: 0.01,
    prepare: |volume, threads| on_files(volume, threads, true, write),
};
/// Writes 4 KiB into the page cache.
pub const BUFFERED_WRITE: Operation = Operation {
    name: "buffered write",
    shared_writes: 0.01,
    prepare: |volume, threads| on_files(volume, threads, false, write),
};
/// Makes an empty file.
pub const CREATE: Operation = Operation { name: "create", shared_writes: 30.0, prepare: in_dirs };
/// Writes 4 KiB into the page cache, then fsync.
pub const WRITE_AND_FSYNC: Operation = Operation {
    name: "write and fsync",
    shared_writes: 100.0,
    prepare: |volume, threads| on_files(volume, threads, false, write_and_sync),
};

/// All operations that have a bound.
pub const OPERATIONS: [Operation; 4] = [DIRECT_OVERWRITE, BUFFERED_WRITE, CREATE, WRITE_AND_FSYNC];

impl Operation {
    /// Runs the operation `times` times in each of `threads` threads, on a new volume in memory. A
    /// tenth of so many come before that. `measure` gets the function that lets the threads go and
    /// returns when all of them are done, and calls it once.
    ///
    /// # Errors
    /// The first of a thread's own; those of making, opening and closing the volume.
    pub fn run<T>(&self, threads: usize, times: usize, measure: impl FnOnce(&dyn Fn()) -> T) -> Outcome<T> {
        let volume = volume()?;
        let work = (self.prepare)(&volume, threads)?;
        let warm_up = times / 10;
        let barrier = || Barrier::new(threads + 1);
        let (warm, begin, end) = (barrier(), barrier(), barrier());
        let body = |thread: usize| {
            let run = |mut numbers: Range<usize>| numbers.try_for_each(|nth| work(thread, nth));
            // A thread that fails still meets the others.
            let warmed = run(0..warm_up);
            warm.wait();
            begin.wait();
            let done = warmed.and_then(|()| run(warm_up..warm_up + times));
            end.wait();
            done
        };
        let body = &body;
        let measured = thread::scope(|scope| -> Outcome<T> {
            let workers: Vec<_> = (0..threads).map(|thread| scope.spawn(move || body(thread))).collect();
            warm.wait();
            let measured = measure(&|| {
                begin.wait();
                end.wait();
            });
            for worker in workers {
                worker.join().map_err(|_| "a thread panicked")??;
            }
            Ok(measured)
        })?;
        drop(work);
        volume.close()?;
        Ok(measured)
    }
}

/// Returns a volume of 32 groups, each with its own inodes, so that each directory, and what is in
/// it, has a group of its own.
fn volume() -> Outcome<Volume> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(256 << 20));
    let options = lanefs_mkfs::Options {
        block_size: Some(1024),
        features: "^flex_bg".parse()?,
        ..lanefs_mkfs::Options::default()
    };
    lanefs_mkfs::format(&*device, &options)?;
    Ok(OpenOptions::new().write(true).open_device(device)?)
}

/// Returns the work of `operation` on each thread's own file, which has been written whole.
fn on_files(
    volume: &Volume,
    threads: usize,
    direct: bool,
    operation: fn(&File, usize) -> Outcome<()>,
) -> Outcome<Work> {
    let mut files = Vec::new();
    for number in 0..threads {
        volume.create_dir(format!("/dir-{number}"))?;
        let path = format!("/dir-{number}/file");
        volume.write(&path, &[1; BLOCK * BLOCKS])?;
        files.push(volume.open_options().read(true).write(true).direct(direct).open(path)?);
    }
    volume.sync()?;
    Ok(Box::new(move |thread: usize, nth: usize| operation(&files[thread], nth)))
}

fn write(file: &File, nth: usize) -> Outcome<()> {
    file.write_at(&[nth as u8; BLOCK], (nth * 7 % BLOCKS * BLOCK) as u64)?;
    Ok(())
}

fn write_and_sync(file: &File, nth: usize) -> Outcome<()> {
    write(file, nth)?;
    file.sync_all()?;
    Ok(())
}

/// Returns the work of creating files, each thread in a directory of its own.
fn in_dirs(volume: &Volume, threads: usize) -> Outcome<Work> {
    let mut dirs = Vec::new();
    for number in 0..threads {
        volume.create_dir(format!("/dir-{number}"))?;
        dirs.push(volume.open_dir(format!("/dir-{number}"))?);
    }
    Ok(Box::new(move |thread: usize, nth: usize| create(&dirs[thread], nth)))
}

fn create(dir: &Dir, nth: usize) -> Outcome<()> {
    let attr = NewAttr { permissions: 0o644, uid: 0, gid: 0 };
    dir.create_new_file(format!("file-{nth}"), attr)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_operation_runs_to_its_end() {
        for operation in OPERATIONS {
            let mut calls = 0;
            let went = operation.run(2, 50, |go| {
                go();
                calls += 1;
            });
            went.unwrap();
            assert_eq!(calls, 1, "{}", operation.name);
        }
        let names: BTreeSet<&str> = OPERATIONS.iter().map(|operation| operation.name).collect();
        assert_eq!(names.len(), OPERATIONS.len());
    }

    #[test]
    fn a_thread_that_fails_stops_no_other() {
        fn third(thread: usize, nth: usize) -> Outcome<()> {
            if (thread, nth) == (1, 3) { Err("the third".into()) } else { Ok(()) }
        }
        let operation = Operation { prepare: |_, _| Ok(Box::new(third)), ..CREATE };
        // After the threads are let go, and before.
        for times in [10, 100] {
            let said = operation.run(2, times, |go| go()).unwrap_err();
            assert_eq!(said.to_string(), "the third");
        }
    }
}
