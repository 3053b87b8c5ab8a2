//! Random operations on one file, its device and a model of both, under a bound of a few pages.

use super::*;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Op {
    Write {
        at: usize,
        len: usize,
        seed: u8,
    },
    Read {
        at: usize,
        len: usize,
    },
    /// A read from a device that fails.
    Fail {
        at: usize,
        len: usize,
    },
    Take {
        at: usize,
        len: usize,
        max: u64,
    },
    Done,
    Failed,
    Cut {
        at: usize,
        len: usize,
    },
    Truncate {
        at: usize,
    },
    DropClean {
        at: usize,
        len: usize,
    },
    /// Another file needs memory.
    Noise {
        pages: u32,
    },
}

/// Fractions of the file, in 65536ths.
fn ops() -> impl Strategy<Value = Vec<Op>> {
    let at = 0..65536_usize;
    let len = prop_oneof![0..20_usize, 0..2000_usize, 0..30000_usize];
    let op = prop_oneof![
        6 => (at.clone(), len.clone(), 1..=255_u8).prop_map(|(at, len, seed)| Op::Write { at, len, seed }),
        6 => (at.clone(), len.clone()).prop_map(|(at, len)| Op::Read { at, len }),
        1 => (at.clone(), len.clone()).prop_map(|(at, len)| Op::Fail { at, len }),
        3 => (at.clone(), 0..65536_usize, prop_oneof![0..100_000_u64, Just(u64::MAX)])
            .prop_map(|(at, len, max)| Op::Take { at, len, max }),
        3 => Just(Op::Done),
        2 => Just(Op::Failed),
        2 => (at.clone(), len.clone()).prop_map(|(at, len)| Op::Cut { at, len }),
        1 => at.clone().prop_map(|at| Op::Truncate { at }),
        1 => (at, len).prop_map(|(at, len)| Op::DropClean { at, len }),
        2 => (1..40_u32).prop_map(|pages| Op::Noise { pages }),
    ];
    prop::collection::vec(op, 1..80)
}

struct World {
    block: usize,
    cache: Arc<PageCache>,
    file: Arc<FileCache>,
    noise: Arc<FileCache>,
    noise_at: u32,
    out: Option<WritebackBatch>,
    /// Whether a cut came while a block was in writeback: then the block must not reach the device.
    cancelled: bool,
    device: Vec<u8>,
    want: Vec<u8>,
    /// By block: dirty, in writeback.
    dirty: Vec<bool>,
    writing: Vec<bool>,
    /// By block: dropped while in writeback, and the writeback has not ended.
    cut: Vec<bool>,
}

impl World {
    fn new(block: usize) -> Self {
        // A little above three chunks, and not a whole number of pages.
        let size = 16 * block.max(4096) * 3 + 5 * block;
        let cache = PageCache::new(block as u32, 1);
        let (file, noise) = (FileCache::new(&cache, 1), FileCache::new(&cache, 2));
        let device: Vec<u8> = (0..size).map(|i| (i / 7 % 251) as u8).collect();
        let flags = vec![false; size / block];
        let (want, dirty, writing, cut) = (device.clone(), flags.clone(), flags.clone(), flags);
        let (out, cancelled, noise_at) = (None, false, 0);
        Self { block, cache, file, noise, noise_at, out, cancelled, device, want, dirty, writing, cut }
    }

    /// Returns the bytes of a fraction of the file.
    fn bytes(&self, at: usize, len: usize) -> Range<usize> {
        let start = self.want.len() * at / 65536;
        // Often on a border.
        let start = if at.is_multiple_of(3) { start / self.block * self.block } else { start };
        let end = (start + self.want.len() * len / 65536).min(self.want.len());
        start..if len.is_multiple_of(5) { end.next_multiple_of(self.block) } else { end }
    }

    fn blocks(&self, bytes: &Range<usize>) -> Range<u32> {
        (bytes.start / self.block) as u32..bytes.end.div_ceil(self.block) as u32
    }

    fn write(&mut self, bytes: Range<usize>, seed: u8) {
        let blocks = self.blocks(&bytes);
        if bytes.is_empty() {
            return;
        }
        let mut span = self.file.span(blocks.clone());
        for block in span.partial(bytes.start as u64, bytes.len()) {
            fill(&mut span, block..block + 1, self.block, &self.device);
        }
        let clean: Vec<u32> = span.clean(blocks.clone()).flatten().collect();
        let pending = |b: &u32| self.dirty[*b as usize] || self.writing[*b as usize];
        assert_eq!(clean, blocks.clone().filter(|b| !pending(b)).collect::<Vec<_>>());
        let content: Vec<u8> = (0..bytes.len()).map(|i| (i as u8).wrapping_mul(seed)).collect();
        // The overwrite of dirty blocks must do the same, as far as it goes.
        if seed.is_multiple_of(2) {
            drop(span);
            let dirty = blocks.clone().take_while(|b| self.dirty[*b as usize]).count() * self.block;
            let most = dirty.saturating_sub(bytes.start % self.block).min(bytes.len());
            let copied = self.file.overwrite(bytes.start as u64, &content);
            // Or up to a page in writeback.
            assert!(copied == most || copied < most && self.out.is_some());
            let mut back = vec![0; copied];
            assert_eq!(self.file.read(bytes.start as u64, &mut back), copied);
            assert_eq!(back, content[..copied]);
            span = self.file.span(blocks.clone());
        }
        assert_eq!(span.copy_in(&content, bytes.start as u64), bytes.len());
        assert!(span.missing(blocks.clone()).is_empty() && span.clean(blocks.clone()).next().is_none());
        self.want[bytes].copy_from_slice(&content);
        blocks.for_each(|b| self.dirty[b as usize] = true);
    }

    fn read(&mut self, bytes: Range<usize>) {
        let mut buf = vec![0; bytes.len()];
        let mut done = 0;
        loop {
            done += self.file.read((bytes.start + done) as u64, &mut buf[done..]);
            let now = bytes.start + done;
            assert_eq!(buf[..done], self.want[bytes.start..now]);
            if done == bytes.len() {
                return;
            }
            assert!(now.is_multiple_of(self.block) || done == 0);
            let blocks = self.blocks(&(now..bytes.end));
            assert_eq!(self.file.missing(blocks.clone())[0].start, blocks.start);
            let mut span = self.file.span(blocks.start..blocks.end.min(blocks.start + 20));
            fill(&mut span, blocks, self.block, &self.device);
            done += span.copy_out(&mut buf[done..], now as u64);
        }
    }

    fn fail(&mut self, bytes: Range<usize>) {
        let blocks = self.blocks(&bytes);
        let mut span = self.file.span(blocks.clone());
        let before = span.missing(blocks.clone());
        let result = span.fill(blocks.clone(), |segments| {
            segments.iter_mut().for_each(|s| s.buf.fill(0xee));
            Err("medium")
        });
        assert_eq!(result.is_err(), !before.is_empty());
        assert_eq!(span.missing(blocks), before);
    }

    fn take(&mut self, bytes: Range<usize>, max: u64) {
        let blocks = self.blocks(&bytes);
        if self.out.is_some() {
            return;
        }
        self.out = self.file.take_dirty(blocks.clone(), max);
        self.cancelled = false;
        let most = (max / self.block as u64).max(1) as usize;
        let want: Vec<u32> = blocks.filter(|b| self.dirty[*b as usize]).take(most).collect();
        let Some(out) = &self.out else {
            assert!(want.is_empty());
            return;
        };
        let taken: Vec<u32> = out.items().iter().flat_map(|item| item.lblk..item.end()).collect();
        assert_eq!(taken, want);
        assert_eq!(out.blocks(), want.len() as u64);
        for b in taken {
            (self.dirty[b as usize], self.writing[b as usize]) = (false, true);
        }
    }

    fn done(&mut self, ok: bool) {
        let Some(out) = self.out.take() else { return };
        let ok = ok && !self.cancelled;
        // A write that failed may have reached the device.
        for item in out.items().iter().filter(|_| !self.cancelled) {
            let at = item.lblk as usize * self.block;
            self.device[at..at + item.bytes().len()].copy_from_slice(item.bytes());
        }
        match ok {
            true => out.done(None),
            false => out.failed(),
        }
        for (dirty, writing) in self.dirty.iter_mut().zip(&mut self.writing) {
            *dirty |= !ok && *writing;
            *writing = false;
        }
        self.cut.fill(false);
    }

    fn cut(&mut self, bytes: Range<usize>, to_end: bool) {
        let range = bytes.start as u64..if to_end { u64::MAX } else { bytes.end as u64 };
        let cut = self.file.cut(range);
        if bytes.is_empty() {
            return;
        }
        self.cancelled = self.out.is_some();
        let whole = bytes.start.div_ceil(self.block)..bytes.end / self.block;
        let dropped: Vec<u32> = cut.dropped.into_iter().flatten().collect();
        let want: Vec<u32> = whole.clone().filter(|b| self.dirty[*b]).map(|b| b as u32).collect();
        assert_eq!(dropped, want);
        self.want[bytes.clone()].fill(0);
        for b in whole {
            self.device[b * self.block..][..self.block].fill(0);
            self.cut[b] |= self.writing[b];
            (self.dirty[b], self.writing[b]) = (false, false);
        }
        let head = bytes.start..bytes.end.min(bytes.start.next_multiple_of(self.block));
        let tail = (bytes.end / self.block * self.block).max(head.end)..bytes.end;
        for (edge, part) in [(cut.head, head), (cut.tail, tail)] {
            let block = part.start / self.block;
            match edge {
                Edge::Whole => assert!(part.is_empty()),
                Edge::Dirty => {
                    assert!(self.dirty[block] || self.writing[block]);
                    self.dirty[block] = true;
                }
                Edge::Absent | Edge::Clean => {
                    assert!(!part.is_empty() && !self.dirty[block] && !self.writing[block]);
                    self.device[part].fill(0);
                }
            }
        }
    }

    fn drop_clean(&mut self, bytes: Range<usize>) {
        let blocks = self.blocks(&bytes);
        let in_flight = |b: &u32| self.cut[*b as usize];
        let busy = |b: &u32| self.dirty[*b as usize] || self.writing[*b as usize];
        assert_eq!(self.file.is_busy(blocks.clone()), blocks.clone().any(|b| busy(&b) || in_flight(&b)));
        let all = self.file.drop_clean(blocks.clone());
        assert_eq!(all, !blocks.clone().any(|b| busy(&b) || in_flight(&b)));
        let missing: Vec<u32> = self.file.missing(blocks.clone()).into_iter().flatten().collect();
        for b in blocks.filter(|b| !in_flight(b)) {
            assert_eq!(missing.contains(&b), !busy(&b), "block {b}");
        }
    }

    fn noise(&mut self, pages: u32) {
        let per_page = self.cache.geo.blocks_per_page();
        for _ in 0..pages {
            let block = self.noise_at * per_page;
            self.noise_at = (self.noise_at + 1) % 1000;
            let mut span = self.noise.span(block..block + 1);
            let Ok(()) = span.fill(block..block + 1, |_| Ok::<_, Infallible>(()));
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Write { at, len, seed } => self.write(self.bytes(at, len), seed),
            Op::Read { at, len } => self.read(self.bytes(at, len)),
            Op::Fail { at, len } => self.fail(self.bytes(at, len)),
            Op::Take { at, len, max } => self.take(self.bytes(at, len), max),
            Op::Done => self.done(true),
            Op::Failed => self.done(false),
            Op::Cut { at, len } => self.cut(self.bytes(at, len), false),
            Op::Truncate { at } => {
                let bytes = self.bytes(at, 1);
                self.cut(bytes.start..self.want.len(), true);
            }
            Op::DropClean { at, len } => self.drop_clean(self.bytes(at, len)),
            Op::Noise { pages } => self.noise(pages),
        }
        check(&self.cache, &[&self.file, &self.noise], &self.out.iter().collect::<Vec<_>>());
        // Blocks that were dropped while in writeback count until that has ended.
        let busy =
            (0..self.dirty.len()).filter(|b| self.dirty[*b] || self.writing[*b] || self.cut[*b]).count();
        assert_eq!(self.cache.dirty_bytes(), (busy * self.block) as u64);
    }

    fn finish(mut self) {
        self.done(true);
        while self.file.is_dirty() {
            self.take(0..self.want.len(), u64::MAX);
            self.done(true);
        }
        assert!(self.device == self.want);
        self.read(0..self.want.len());
        assert_eq!(self.cache.dirty_bytes(), 0);
        let Self { cache, file, noise, .. } = self;
        drop((file, noise));
        check(&cache, &[], &[]);
    }
}

fn run(block: usize, ops: Vec<Op>) {
    let mut world = World::new(block);
    ops.into_iter().for_each(|op| world.apply(op));
    world.finish();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn blocks_of_1_kib(ops in ops()) {
        run(1024, ops);
    }

    #[test]
    fn blocks_of_2_kib(ops in ops()) {
        run(2048, ops);
    }

    #[test]
    fn blocks_of_4_kib(ops in ops()) {
        run(4096, ops);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, ..ProptestConfig::default() })]

    #[test]
    fn blocks_of_16_kib(ops in ops()) {
        run(16384, ops);
    }
}
