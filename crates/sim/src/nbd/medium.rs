//! What a server holds: durable, and in a cache that a kill loses in part.

use crate::Image;
use crate::seed::rng;
use rand::Rng;
use rand::seq::SliceRandom;

const SECTOR: usize = 512;

/// A change since the last flush.
#[derive(Debug, Clone)]
enum Change {
    Write { offset: u64, data: Vec<u8> },
    Zeroes { offset: u64, len: u64 },
}

#[derive(Debug)]
pub(super) struct Medium {
    durable: Image,
    now: Image,
    unflushed: Vec<Change>,
}

impl Medium {
    pub(super) fn new(image: Image) -> Self {
        Self { durable: image.clone(), now: image, unflushed: Vec::new() }
    }

    pub(super) fn image(&self) -> &Image {
        &self.now
    }

    pub(super) fn durable(&self) -> &Image {
        &self.durable
    }

    pub(super) fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.now.read(offset, &mut bytes);
        bytes
    }

    pub(super) fn write(&mut self, offset: u64, data: Vec<u8>) {
        self.now.write(offset, &data);
        self.unflushed.push(Change::Write { offset, data });
    }

    pub(super) fn zero(&mut self, offset: u64, len: u64) {
        self.now.zero(offset, len);
        self.unflushed.push(Change::Zeroes { offset, len });
    }

    pub(super) fn flush(&mut self) {
        self.durable = self.now.clone();
        self.unflushed.clear();
    }

    /// Makes one change durable, as FUA does: nothing that was in the cache before comes back over
    /// it.
    pub(super) fn flush_range(&mut self, offset: u64, len: u64) {
        let bytes = self.read(offset, len as usize);
        self.durable.write(offset, &bytes);
        let end = offset + len;
        for change in &mut self.unflushed {
            if let Change::Zeroes { offset, len } = *change {
                *change = Change::Write { offset, data: vec![0; len as usize] };
            }
            let Change::Write { offset: at, data } = change else { continue };
            let (from, to) = (offset.max(*at), end.min(*at + data.len() as u64));
            if from < to {
                let now = &bytes[(from - offset) as usize..(to - offset) as usize];
                data[(from - *at) as usize..(to - *at) as usize].copy_from_slice(now);
            }
        }
    }

    /// Loses some sectors of what was not flushed. Those that stay were written in any order.
    pub(super) fn lose(&mut self, seed: u64) {
        let mut rng = rng(&[seed, self.unflushed.len() as u64]);
        let mut changes = std::mem::take(&mut self.unflushed);
        changes.shuffle(&mut rng);
        let keep = rng.random_range(0.0..1.0);
        for change in changes {
            // Whole, or each sector for itself.
            let (torn, whole) = (rng.random_bool(0.3), rng.random_bool(keep));
            let mut stays = || if torn { rng.random_bool(0.5) } else { whole };
            match change {
                Change::Write { offset, data } => {
                    for (i, sector) in data.chunks(SECTOR).enumerate().filter(|_| stays()) {
                        self.durable.write(offset + (i * SECTOR) as u64, sector);
                    }
                }
                Change::Zeroes { offset, len } => {
                    let step = if torn { SECTOR } else { len.max(1) as usize };
                    for at in (0..len).step_by(step).filter(|_| stays()) {
                        self.durable.zero(offset + at, (len - at).min(step as u64));
                    }
                }
            }
        }
        self.now = self.durable.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_loses_what_was_not_flushed_and_nothing_else() {
        let mut lost = 0;
        for seed in 0..50 {
            let mut medium = Medium::new(Image::zeroed(64 << 10));
            medium.write(0, vec![1; 8192]);
            medium.flush();
            medium.write(4096, vec![2; 8192]);
            medium.zero(0, 1024);
            medium.lose(seed);
            let bytes = medium.read(0, 16384);
            assert!(bytes[1024..4096].iter().all(|b| *b == 1) && bytes[12288..].iter().all(|b| *b == 0));
            assert!(bytes[4096..12288].iter().all(|b| [0, 1, 2].contains(b)));
            assert!(bytes[4096..].chunks(512).all(|sector| sector.iter().all(|b| *b == sector[0])));
            lost += u32::from(bytes[4096] == 1);
            assert_eq!(medium.durable().to_bytes(), medium.image().to_bytes());
        }
        assert!((5..45).contains(&lost), "{lost} of 50");
    }

    #[test]
    fn what_was_made_durable_stays_over_what_was_before() {
        for seed in 0..50 {
            let mut medium = Medium::new(Image::zeroed(64 << 10));
            medium.write(0, vec![1; 8192]);
            medium.zero(4096, 8192);
            medium.write(2048, vec![2; 4096]);
            medium.flush_range(2048, 4096);
            medium.lose(seed);
            let bytes = medium.read(0, 16384);
            assert!(bytes[2048..6144].iter().all(|b| *b == 2), "seed {seed}");
            assert!(bytes[..2048].iter().all(|b| [0, 1].contains(b)));
        }
    }
}
