//! What to write out in the background, and when: by age, and by pressure.
//!
//! The file that has been dirty longest comes first. A large one is written in pieces, and others have their turn between
//! them. There is no I/O and no thread here: whoever has one asks for the next job, does it, and asks
//! again; when there is none it sleeps.

use super::dirty::Turn;
use super::{FileCache, PageCache, Pressure};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Something to write out.
#[derive(Debug)]
pub(crate) struct Job {
    /// The file.
    pub(crate) file: Arc<FileCache>,
    /// Bytes to write out of it, in order of position.
    pub(crate) max: u64,
}

/// See the head of the file. One for each thread that writes out.
#[derive(Debug)]
pub(crate) struct Background {
    /// The age at which a file is written out whatever the pressure; `None`: never.
    expire: Option<Duration>,
    /// The turn of the file of the last job: the next one is behind it.
    last: Option<Turn>,
}

impl Background {
    /// The longest sleep.
    pub(crate) const WAKE: Duration = Duration::from_secs(5);
    /// The most of one file before another has its turn.
    pub(crate) const PIECE: u64 = 8 << 20;

    /// Files are written out at the age `expire`.
    pub(crate) fn new(expire: Option<Duration>) -> Self {
        Self { expire, last: None }
    }

    /// What to do at `now`, if anything: files that have expired, and any file while there is pressure.
    pub(crate) fn next(&mut self, cache: &PageCache, now: Instant) -> Option<Job> {
        let pressed = cache.pressure() >= Pressure::Background;
        let last = self.last.take();
        // Behind the last; then from the front.
        let (turn, file) = [last, None].into_iter().find_map(|after| {
            let (turn, since, file) = cache.dirty.oldest(after)?;
            let old = self.expire.is_some_and(|age| now.saturating_duration_since(since) >= age);
            (pressed || old).then_some((turn, file))
        })?;
        self.last = Some(turn);
        Some(Job { file, max: Self::PIECE })
    }

    /// How long to sleep from `now` on when there is nothing to do, unless pressure comes before.
    pub(crate) fn pause(&self, cache: &PageCache, now: Instant) -> Duration {
        let expires = cache.dirty.oldest(None).and_then(|(_, since, _)| Some(since + self.expire?));
        expires.map_or(Self::WAKE, |at| at.saturating_duration_since(now).min(Self::WAKE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPIRE: Duration = Duration::from_secs(30);

    fn dirty(cache: &Arc<PageCache>, ino: u32, blocks: u32) -> Arc<FileCache> {
        let file = FileCache::new(cache, ino);
        for block in 0..blocks {
            file.span(block..block + 1).copy_in(u64::from(block) * 4096, &[1; 4096]);
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
            job.file.take_dirty(0..u32::MAX, job.max).unwrap().done();
        }
        assert_eq!(order, [7, 5, 6]);
        assert!(files.iter().all(|file| !file.is_dirty()));
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
            job.file.take_dirty(0..u32::MAX, job.max).unwrap().done();
        }
        assert_eq!(order, [1]);
        assert!(cache.dirty_bytes() <= 10 << 20 && large.is_dirty() && small.is_dirty());
        let more = dirty(&cache, 3, 2000);
        while let Some(job) = background.next(&cache, Instant::now()) {
            order.push(job.file.ino());
            job.file.take_dirty(0..u32::MAX, 1 << 20).unwrap().done();
        }
        assert_eq!(order[1..5], [1, 2, 3, 1]);
        assert!(large.is_dirty() && more.is_dirty() && !small.is_dirty());
    }
}
