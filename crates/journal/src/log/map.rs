//! The map of the log: from a block of the log to its block on the volume.

use super::torn;
use crate::{JournalError, LogConfig, LogRun, Result};
use lanefs_device::{AlignedBuf, BlockDevice, ReadOp};
use lanefs_format::jbd2::{Jbd2Error, Superblock};
use std::ops::Range;

/// The checked runs of a log.
#[derive(Debug, Clone)]
pub(crate) struct LogMap {
    runs: Vec<LogRun>,
    /// Where the runs lie on the volume, in order: those that touch are one.
    places: Vec<Range<u64>>,
    block_size: u32,
}

impl LogMap {
    /// Checks that the runs cover `0..n` without holes and lie inside the volume.
    pub(crate) fn new(device: &dyn BlockDevice, block_size: u32, log: &LogConfig) -> Result<Self> {
        let blocks = device.size() / u64::from(block_size.max(1));
        let mut next = 0u32;
        for run in &log.runs {
            let end = run.physical.checked_add(u64::from(run.len));
            if run.logical != next || run.len == 0 || run.physical == 0 || end.is_none_or(|end| end > blocks)
            {
                return Err(JournalError::LogRun { run: *run, expected: next, blocks });
            }
            next = match next.checked_add(run.len) {
                Some(next) => next,
                None => return Err(JournalError::LogRun { run: *run, expected: next, blocks }),
            };
        }
        let mut runs: Vec<_> = log.runs.iter().map(|run| (run.physical, run.len)).collect();
        runs.sort_unstable();
        let mut places: Vec<Range<u64>> = Vec::new();
        for (first, len) in runs {
            let end = first + u64::from(len);
            match places.last_mut() {
                Some(last) if first <= last.end => last.end = last.end.max(end),
                _ => places.push(first..end),
            }
        }
        Ok(Self { runs: log.runs.clone(), places, block_size })
    }

    pub(crate) fn block_size(&self) -> usize {
        self.block_size as usize
    }

    /// Returns the number of blocks of the journal inode.
    pub(crate) fn blocks(&self) -> u64 {
        self.runs.last().map_or(0, |run| u64::from(run.logical) + u64::from(run.len))
    }

    /// Returns whether `block` of the volume belongs to the log.
    pub(crate) fn contains(&self, block: u64) -> bool {
        let behind = self.places.partition_point(|place| place.start <= block);
        let last = behind.checked_sub(1).and_then(|before| self.places.get(before));
        last.is_some_and(|place| block < place.end)
    }

    /// Returns the byte offset on the volume of log block `at`, and how many of `n` blocks follow
    /// there contiguously.
    pub(crate) fn locate(&self, at: u32, n: u32) -> Result<(u64, u32)> {
        let index = self.runs.partition_point(|run| run.logical <= at);
        let run = index.checked_sub(1).and_then(|i| self.runs.get(i));
        let found = run.and_then(|run| {
            let into = at - run.logical;
            let left = run.len.checked_sub(into).filter(|&left| left > 0)?;
            Some(((run.physical + u64::from(into)) * u64::from(self.block_size), left.min(n)))
        });
        found.ok_or(JournalError::LogBlock { block: at, blocks: self.blocks() })
    }

    /// Reads one block of the log.
    pub(crate) fn read(&self, device: &dyn BlockDevice, at: u32) -> Result<AlignedBuf> {
        let mut block = AlignedBuf::zeroed(self.block_size());
        device.read_at(&mut block, self.locate(at, 1)?.0)?;
        Ok(block)
    }

    /// Reads several blocks of the log at once, one behind the other into `buf`: one batch, with
    /// one piece for blocks that follow each other in the log and on the volume.
    pub(crate) fn read_many(&self, device: &dyn BlockDevice, at: &[u32], buf: &mut [u8]) -> Result<()> {
        let (mut at, mut buf) = (at, buf);
        let mut ops = Vec::new();
        while let Some(first) = at.first() {
            let following = at.windows(2).take_while(|pair| pair[0].checked_add(1) == Some(pair[1]));
            let (offset, n) = self.locate(*first, following.count() as u32 + 1)?;
            let (piece, behind) = buf.split_at_mut(n as usize * self.block_size());
            ops.push(ReadOp { offset, buf: piece });
            (at, buf) = (&at[n as usize..], behind);
        }
        Ok(device.read_batch(&mut ops)?)
    }

    /// Reads and checks the journal superblock. One that was torn is [mended](torn::mend).
    pub(crate) fn read_superblock(&self, device: &dyn BlockDevice) -> Result<Superblock> {
        Ok(self.read_or_mend(device)?.0)
    }

    /// Reads the journal superblock as [`read_superblock`](Self::read_superblock), and returns
    /// whether it was torn.
    pub(crate) fn read_or_mend(&self, device: &dyn BlockDevice) -> Result<(Superblock, bool)> {
        let block = self.read(device, 0)?;
        match Superblock::parse(&block, self.block_size, self.blocks()) {
            Err(e @ (Jbd2Error::SuperblockChecksum { .. } | Jbd2Error::ChecksumType { .. })) => {
                let sb: Result<Superblock> = torn::mend(device, self, &block)?.ok_or(e.into());
                Ok((sb?, true))
            }
            sb => Ok((sb?, false)),
        }
    }

    /// Writes the journal superblock; not durable before a flush.
    pub(crate) fn write_superblock(&self, device: &dyn BlockDevice, sb: &Superblock) -> Result<()> {
        let mut block = AlignedBuf::zeroed(self.block_size());
        if let Some(head) = block.get_mut(..Superblock::LEN) {
            head.copy_from_slice(&sb.to_bytes());
        }
        Ok(device.write_at(&block, self.locate(0, 1)?.0)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanefs_device::MemDevice;

    #[test]
    fn blocks_of_the_log_are_found_in_runs_of_any_order() {
        let runs = [(50, 3), (10, 20), (12, 2), (30, 1)];
        let mut logical = 0;
        let runs = runs.map(|(physical, len)| {
            logical += len;
            LogRun { logical: logical - len, len, physical }
        });
        let log = LogConfig { runs: runs.to_vec(), ..LogConfig::default() };
        let map = LogMap::new(&MemDevice::new(100 << 10), 1024, &log).unwrap();
        for block in 0..100 {
            let held =
                runs.iter().any(|run| (run.physical..run.physical + u64::from(run.len)).contains(&block));
            assert_eq!(map.contains(block), held, "{block}");
        }
    }
}
