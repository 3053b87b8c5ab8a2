//! Streams: files that are written from front to back.
//!
//! A file is a stream once [`STEP`] bytes of its chunks have become dirty in order. Its writeback
//! does not wait for age or pressure: dirty chunks before the writer's are written out at once. The
//! writer may be [`AHEAD`] bytes ahead of the device. Clean pages further than [`KEEP`] behind the
//! writer are reused unless a program has used them, because new memory costs more than a copy.

use super::geometry::Geometry;

/// Bytes written in order that make a stream, and between two requests to write it out.
const STEP: usize = 4 << 20;
/// Dirty bytes of a stream at which its writer waits.
const AHEAD: usize = 16 << 20;
/// Bytes behind the writer that stay cached, and so the size of a file that stays as a whole: more
/// than may be dirty.
const KEEP: usize = 128 << 20;

/// The part of a file that is a stream.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// The first chunk.
    start: u32,
    /// The chunk that would continue it.
    next: u32,
    /// Chunks before this one have given their pages back.
    given: u32,
}

impl Stream {
    /// Notes that a chunk became dirty. Returns whether to write out the chunks before it now.
    pub(super) fn goes_on(&mut self, geo: Geometry, chunk: u32) -> bool {
        if chunk != self.next {
            (self.start, self.given) = (chunk, chunk);
        }
        self.next = chunk.saturating_add(1);
        let step = (STEP / geo.chunk_size()) as u32;
        chunk > self.start && (chunk - self.start).is_multiple_of(step)
    }

    /// Returns whether `chunk` would continue it.
    pub(super) fn is_next(&self, chunk: u32) -> bool {
        chunk == self.next
    }

    /// Returns the chunks whose pages are to be given back now.
    pub(super) fn give(&mut self, geo: Geometry) -> std::ops::Range<u32> {
        let end = self.next.saturating_sub((KEEP / geo.chunk_size()) as u32).max(self.given);
        std::mem::replace(&mut self.given, end)..end
    }
}

/// Returns the dirty chunks at which a stream's writer waits.
pub(super) fn most_dirty(geo: Geometry) -> u32 {
    (AHEAD / geo.chunk_size()) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_in_order_are_a_stream() {
        let geo = Geometry::new(4096);
        let mut stream = Stream::default();
        let calls: Vec<u32> = (0..200).filter(|chunk| stream.goes_on(geo, *chunk)).collect();
        assert_eq!(calls, [64, 128, 192]);
        assert_eq!(stream.give(geo), 0..0);
        assert!((300..4000).filter(|chunk| stream.goes_on(geo, *chunk)).all(|chunk| (chunk - 300) % 64 == 0));
        assert_eq!(stream.give(geo), 300..4000 - 2048);
        assert_eq!(stream.give(geo), 1952..1952);
        // In any other order they are none.
        assert!(!(0..1000).map(|i| i * 7 % 1000).any(|chunk| stream.goes_on(geo, chunk)));
        assert!(!(0..1000).rev().any(|chunk| stream.goes_on(geo, chunk)));
        assert!(!stream.goes_on(geo, u32::MAX));
    }
}
