//! Which pages to write out in the background, and when: by age, by pressure, and streams (files
//! that are written from front to back).
//!
//! The file that has been dirty longest comes first. A large file is written in pieces, and others
//! have their turn between them. Pressure ends when the dirty bytes have fallen to half of the
//! limit that began it: a thread that stopped at the limit would be woken again by the next write.
//!
//! This file does no I/O and has no thread: the flusher's thread asks for the next job, does it,
//! and asks again. When there is no job, it sleeps.

use super::dirty_chunks::DirtyTurn;
use super::{FileCache, PageCache, Pressure};
use lanefs_sync::time::Instant;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A part of a file to write out.
#[derive(Debug)]
pub(crate) struct WriteOutJob {
    /// The file.
    pub(crate) file: Arc<FileCache>,
    /// Its blocks that are to be written out.
    pub(crate) blocks: Range<u32>,
    /// Bytes to write out of them, in order of position.
    pub(crate) max: u64,
}

/// The state of one thread that writes out. See the head of the file.
#[derive(Debug)]
pub(crate) struct Background {
    /// The age at which a file is written out without any pressure; `None`: never.
    expire: Option<Duration>,
    /// The turn of the file of the last job: the search for the next one begins behind it.
    last: Option<DirtyTurn>,
    /// The last job was a stream: other files come first now.
    streamed: bool,
    /// There was pressure, and it has not ended yet.
    pressed: bool,
}

impl Background {
    /// The longest sleep.
    pub(crate) const WAKE: Duration = Duration::from_secs(5);
    /// The most bytes of one file before another has its turn.
    pub(crate) const PIECE: u64 = 8 << 20;
    /// The same for a stream.
    pub(crate) const STREAM: u64 = 16 << 20;

    /// Makes the state of a thread that writes out files at the age `expire`.
    pub(crate) fn new(expire: Option<Duration>) -> Self {
        Self { expire, last: None, streamed: false, pressed: false }
    }

    /// Returns the next job at `now`, if there is one: streams, files that have expired, and any
    /// file while there is pressure.
    pub(crate) fn next(&mut self, cache: &PageCache, now: Instant) -> Option<WriteOutJob> {
        let others_first = std::mem::take(&mut self.streamed);
        let job = if others_first { self.next_file(cache, now) } else { None };
        let job = job.or_else(|| {
            let (file, end) = cache.streams.take()?;
            self.streamed = true;
            Some(WriteOutJob { blocks: 0..cache.geo.first_block(end), file, max: Self::STREAM })
        });
        match others_first {
            true => job,
            false => job.or_else(|| self.next_file(cache, now)),
        }
    }

    fn next_file(&mut self, cache: &PageCache, now: Instant) -> Option<WriteOutJob> {
        let dirty = cache.dirty_bytes();
        self.pressed = cache.pressure() >= Pressure::Background
            || self.pressed && dirty > cache.dirty.limits.background / 2;
        let last = self.last.take();
        // The first file behind the last one, else the first of the list.
        let (turn, file) = [last, None].into_iter().find_map(|after| {
            let (turn, since, file) = cache.dirty.oldest(after)?;
            let old = self.expire.is_some_and(|age| now.saturating_duration_since(since) >= age);
            (self.pressed || old).then_some((turn, file))
        })?;
        self.last = Some(turn);
        Some(WriteOutJob { file, blocks: 0..u32::MAX, max: Self::PIECE })
    }

    /// Returns how long to sleep from `now` on when there is no job. Pressure wakes the thread
    /// earlier.
    pub(crate) fn pause(&self, cache: &PageCache, now: Instant) -> Duration {
        let expires = cache.dirty.oldest(None).and_then(|(_, since, _)| since.checked_add(self.expire?));
        expires.map_or(Self::WAKE, |at| at.saturating_duration_since(now).min(Self::WAKE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPIRE: Duration = Duration::from_secs(30);

    fn dirty(cache: &Arc<PageCache>, ino: u32, blocks: u32) -> Arc<FileCache> {
        let file = FileCache::new(cache, ino);
        // From back to front, which is no stream.
        for block in (0..blocks).rev() {
            file.span(block..block + 1).copy_in(&[1; 4096], u64::from(block) * 4096);
        }
        file
    }

    #[test]
    fn by_age_the_oldest_first() {
        let cache = PageCache::new(4096, 1 << 30);
        let mut background = Background::new(Some(EXPIRE));
        let start = Instant::now();
        assert_eq!(background.pause(&cache, start), Background::WAKE);
        let files = [dirty(&cache, 7, 1), dirty(&cache, 5, 3), dirty(&cache, 6, 2)];
        assert!(background.next(&cache, Instant::now()).is_none());
        let soon = start + EXPIRE - Duration::from_secs(1);
        assert!(background.pause(&cache, soon) >= Duration::from_secs(1));
        assert!(background.pause(&cache, soon) < Background::WAKE);
        let now = Instant::now() + EXPIRE;
        let mut order = Vec::new();
        while let Some(job) = background.next(&cache, now) {
            order.push(job.file.ino());
            job.file.take_dirty(0..u32::MAX, job.max).unwrap().done(None);
        }
        assert_eq!(order, [7, 5, 6]);
        assert!(files.iter().all(|file| !file.is_dirty()));
    }

    #[test]
    fn a_stream_at_once_and_others_between() {
        let cache = PageCache::new(4096, 1 << 30);
        let mut background = Background::new(Some(EXPIRE));
        let (old, stream) = (dirty(&cache, 7, 1), FileCache::new(&cache, 8));
        let write = |blocks: Range<u32>| {
            blocks.for_each(|b| _ = stream.span(b..b + 1).copy_in(&[1; 4096], u64::from(b) * 4096));
        };
        write(0..1024);
        assert!(background.next(&cache, Instant::now()).is_none());
        write(1024..1030);
        let job = background.next(&cache, Instant::now()).unwrap();
        assert_eq!((job.file.ino(), job.blocks.clone()), (8, 0..1024));
        job.file.take_dirty(job.blocks, job.max).unwrap().done(None);
        assert!(background.next(&cache, Instant::now()).is_none());
        assert!(stream.is_dirty() && old.is_dirty());
        // When there is other work, they take turns.
        let (mut order, later) = (Vec::new(), Instant::now() + EXPIRE);
        for end in 2..4 {
            write(1030..1030 + end * 1024);
            let job = background.next(&cache, later).unwrap();
            order.push((job.file.ino(), job.blocks.end));
            job.file.take_dirty(job.blocks, job.max).unwrap().done(None);
        }
        assert_eq!(order, [(8, 3 * 1024), (7, u32::MAX)]);
    }

    #[test]
    fn what_failed_waits_for_its_next_age() {
        let cache = PageCache::new(4096, 1 << 30);
        let mut background = Background::new(Some(EXPIRE));
        let file = dirty(&cache, 7, 1);
        let now = Instant::now() + EXPIRE;
        drop(background.next(&cache, now).unwrap().file.take_dirty(0..1, 4096));
        assert!(file.is_dirty());
        assert!(background.next(&cache, now).is_none());
    }

    #[test]
    fn under_pressure_in_turns_until_it_ends() {
        // Background writing begins at 10 MiB.
        let cache = PageCache::new(4096, 100 << 20);
        let mut background = Background::new(Some(EXPIRE));
        let (large, small) = (dirty(&cache, 1, 4000), dirty(&cache, 2, 10));
        let mut order = Vec::new();
        while let Some(job) = background.next(&cache, Instant::now()) {
            order.push(job.file.ino());
            job.file.take_dirty(0..u32::MAX, job.max).unwrap().done(None);
        }
        // Not at 10 MiB: at 5.
        assert_eq!(order, [1, 2, 1]);
        assert!(!large.is_dirty() && !small.is_dirty());
        let (large, small) = (dirty(&cache, 1, 2000), dirty(&cache, 2, 10));
        let more = dirty(&cache, 3, 2000);
        order.clear();
        while let Some(job) = background.next(&cache, Instant::now()) {
            order.push(job.file.ino());
            job.file.take_dirty(0..u32::MAX, 1 << 20).unwrap().done(None);
        }
        assert_eq!(order[..4], [1, 2, 3, 1]);
        assert!(large.is_dirty() && more.is_dirty() && !small.is_dirty());
        assert!((4 << 20..=5 << 20).contains(&cache.dirty_bytes()));
        // What was left is no pressure.
        assert!(background.next(&cache, Instant::now()).is_none());
    }
}
