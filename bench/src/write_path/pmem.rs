//! Overwrites of 4 KiB in a mapped file: lanefs, and a bare loop that copies and persists.
#![allow(unsafe_code)]

use super::{Bench, Beside, Outcome, THREADS};
use crate::report::Goal;
use crate::turns::rotated;
use lanefs::{OpenOptions, Overwrite};
use lanefs_lab::Random;
use lanefs_lab::load::{random_overwrites, run};
use lanefs_lab::store::{filled, mapped};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::path::Path;

const FILES: usize = 32;
const PAGE: usize = 4096;

/// Random overwrites of a volume in memory by threads.
///
/// # Errors
/// Of any of the stores.
pub fn pmem(bench: &mut Bench) -> Outcome<()> {
    let size: u64 = 8 << 20;
    let whole = FILES as u64 * size;
    let dir = tempfile::tempdir_in(&bench.memory)?;
    let bare = Bare::new(&dir.path().join("bare"), whole as usize)?;
    let path = dir.path().join("volume");
    let mut beside = vec![Beside::default(); THREADS.len()];
    let mut journal = vec![Vec::new(); THREADS.len()];
    let variants = [Overwrite::NoJournal, Overwrite::Journal];
    for number in rotated(bench.rounds, variants.len()) {
        let overwrite = variants[number];
        let store = mapped(&path, whole + (256 << 20), OpenOptions::new().overwrite(overwrite))?;
        let files = filled(&*store, FILES, size, true)?;
        for (at, threads) in THREADS.into_iter().enumerate() {
            let run = |time| random_overwrites(&files, size, threads, time);
            match overwrite {
                Overwrite::NoJournal => {
                    beside[at].run(bench.time, run, |time| bare.overwrites(threads, time))?;
                }
                Overwrite::Journal => journal[at].push(run(bench.time)?),
            }
        }
        drop(files);
        store.finish()?;
    }
    for (at, threads) in THREADS.into_iter().enumerate() {
        let case = "mapped overwrites, 4 KiB";
        let names = ("nojournal", "copy and persist");
        let ours = beside[at].report(&mut bench.report, case, names, threads, "/s", 0.85);
        let theirs = bench.report.row(case, "journal", threads, &journal[at], "/s");
        let what = format!("{case}, {threads} threads: over overwrite=journal");
        bench.report.target(&what, Goal::AtLeast(1.0), ours / theirs);
    }
    Ok(())
}

/// A mapped file, and nothing else.
struct Bare {
    base: *mut u8,
    len: usize,
}

// SAFETY: the memory belongs to no thread.
unsafe impl Sync for Bare {}

impl Bare {
    fn new(path: &Path, len: usize) -> Outcome<Self> {
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        file.set_len(len as u64)?;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping at a place that the kernel chooses.
        let base = unsafe { mmap(std::ptr::null_mut(), len, prot, flags, &file, 0) }?;
        Ok(Self { base: base.cast(), len })
    }

    fn overwrites(&self, threads: usize, time: std::time::Duration) -> Outcome<f64> {
        run(threads, time, |worker| {
            let page = lanefs_device::AlignedBuf::zeroed(PAGE);
            let mut random = Random::new(worker.thread as u64);
            while worker.go_on() {
                let at = random.draw() as usize % (self.len / PAGE) * PAGE;
                // SAFETY: `at` is inside the mapping. Threads may write the same page at once, but
                // no thread reads it.
                unsafe { persist(self.base.add(at), &page) };
                worker.did(1);
            }
            Ok(())
        })
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`.
        let _ = unsafe { munmap(self.base.cast(), self.len) };
    }
}

/// Copies by streaming stores, and fences.
///
/// # Safety
/// `to` is aligned to 16 and has room for `page`, whose length is a multiple of 16.
#[cfg(target_arch = "x86_64")]
unsafe fn persist(to: *mut u8, page: &[u8]) {
    use std::arch::x86_64::{_mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    // SAFETY: the caller's promise.
    unsafe {
        for at in (0..page.len()).step_by(16) {
            _mm_stream_si128(to.add(at).cast(), _mm_loadu_si128(page.as_ptr().add(at).cast()));
        }
        _mm_sfence();
    }
}

/// Copies, and fences.
///
/// # Safety
/// `to` has room for `page`.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn persist(to: *mut u8, page: &[u8]) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(page.as_ptr(), to, page.len()) };
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}
