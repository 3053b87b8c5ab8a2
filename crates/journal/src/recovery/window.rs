//! The window through which the scan reads the log: many blocks in one batch, because on a device
//! with latency a read of each block would take as long.

use crate::Result;
use crate::log::{LogMap, Ring};
use lanefs_device::{AlignedBuf, BlockDevice};

/// Bytes of a window.
const WINDOW: usize = 1 << 20;

/// The part of the log that is in memory.
pub(super) struct Window<'a> {
    device: &'a dyn BlockDevice,
    map: &'a LogMap,
    ring: Ring,
    /// The block of the log with which it begins.
    start: u32,
    blocks: AlignedBuf,
}

impl<'a> Window<'a> {
    /// Returns an empty window of the log in `ring`.
    pub(super) fn new(device: &'a dyn BlockDevice, map: &'a LogMap, ring: Ring) -> Self {
        Self { device, map, ring, start: ring.first(), blocks: AlignedBuf::zeroed(0) }
    }

    /// Returns block `at`. If it is not in the window, reads a new one from `at` on, of at most
    /// `left` blocks.
    pub(super) fn read(&mut self, at: u32, left: u32) -> Result<AlignedBuf> {
        if self.held(at).is_none() {
            self.fill(at, left)?;
        }
        let mut block = AlignedBuf::zeroed(self.map.block_size());
        block.copy_from_slice(self.held(at).unwrap_or_default());
        Ok(block)
    }

    fn held(&self, at: u32) -> Option<&[u8]> {
        self.blocks.chunks_exact(self.map.block_size()).nth(self.ring.distance(self.start, at) as usize)
    }

    /// Reads a window. One that cannot be read whole is block `at` alone: the blocks behind it may
    /// not be needed.
    fn fill(&mut self, at: u32, left: u32) -> Result<()> {
        let most = (WINDOW / self.map.block_size().max(1)).max(1);
        let len = left.clamp(1, most as u32);
        self.load(at, len).or_else(|_| self.load(at, 1))
    }

    fn load(&mut self, at: u32, len: u32) -> Result<()> {
        let places: Vec<u32> = (0..len).map(|n| self.ring.advance(at, n)).collect();
        let mut blocks = AlignedBuf::zeroed(places.len() * self.map.block_size());
        self.map.read_many(self.device, &places, &mut blocks)?;
        (self.start, self.blocks) = (at, blocks);
        Ok(())
    }
}
