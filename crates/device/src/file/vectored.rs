//! Batches: ops that lie side by side become one system call.

use super::FileDevice;
use crate::block_device::check_range;
use crate::{AlignedBuf, BlockDevice, DeviceError, Op, ReadOp, Result, WriteOp};
use rustix::io::{preadv, pwritev, retry_on_intr};
use std::io::{self, IoSlice, IoSliceMut};

impl FileDevice {
    pub(super) fn write_vectored(&self, ops: &[WriteOp<'_>]) -> Result<()> {
        for op in ops {
            self.check_change(Op::Write, op.offset, op.len())?;
        }
        let mut order: Vec<&WriteOp<'_>> = ops.iter().filter(|op| !op.is_empty()).collect();
        order.sort_by_key(|op| op.offset);
        for run in order.chunk_by(|a, b| a.offset + a.len() == b.offset) {
            let offset = run[0].offset;
            let mut pieces: Vec<IoSlice<'_>> = run
                .iter()
                .flat_map(|op| op.data)
                .filter(|d| !d.is_empty())
                .map(|d| IoSlice::new(d))
                .collect();
            let len = pieces.iter().map(|p| p.len() as u64).sum();
            let direct = !self.is_direct() || pieces.iter().all(|p| self.is_aligned(offset, p));
            let done =
                if direct { self.pwritev_all(offset, &mut pieces) } else { self.gather(offset, &pieces) };
            done.map_err(|e| DeviceError::new(Op::Write, offset, len, e))?;
        }
        Ok(())
    }

    pub(super) fn read_vectored(&self, ops: &mut [ReadOp<'_>]) -> Result<()> {
        for op in ops.iter() {
            check_range(Op::Read, self.size, op.offset, op.buf.len() as u64)?;
        }
        let mut order: Vec<&mut ReadOp<'_>> = ops.iter_mut().filter(|op| !op.buf.is_empty()).collect();
        order.sort_by_key(|op| op.offset);
        for run in order.chunk_by_mut(|a, b| a.offset + a.buf.len() as u64 == b.offset) {
            if self.is_direct() && !run.iter().all(|op| self.is_aligned(op.offset, op.buf)) {
                run.iter_mut().try_for_each(|op| self.read_at(op.offset, op.buf))?;
                continue;
            }
            let offset = run[0].offset;
            let mut pieces: Vec<IoSliceMut<'_>> = run.iter_mut().map(|op| IoSliceMut::new(op.buf)).collect();
            let len = pieces.iter().map(|p| p.len() as u64).sum();
            self.preadv_all(offset, &mut pieces).map_err(|e| DeviceError::new(Op::Read, offset, len, e))?;
        }
        Ok(())
    }

    fn pwritev_all(&self, mut offset: u64, mut pieces: &mut [IoSlice<'_>]) -> io::Result<()> {
        while !pieces.is_empty() {
            // rustix passes no more pieces on than Linux takes in one call.
            let n = retry_on_intr(|| pwritev(&self.file, pieces, offset))?;
            if n == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            IoSlice::advance_slices(&mut pieces, n);
            offset += n as u64;
        }
        Ok(())
    }

    fn preadv_all(&self, mut offset: u64, mut pieces: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        while !pieces.is_empty() {
            let n = retry_on_intr(|| preadv(&self.file, pieces, offset))?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            IoSliceMut::advance_slices(&mut pieces, n);
            offset += n as u64;
        }
        Ok(())
    }

    /// Writes pieces that O_DIRECT does not take, joined in a bounce buffer.
    fn gather(&self, mut offset: u64, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        let len: usize = pieces.iter().map(|p| p.len()).sum();
        let mut bounce = AlignedBuf::zeroed(len.min(super::direct::BOUNCE as usize));
        let mut filled = 0;
        for piece in pieces {
            let mut rest: &[u8] = piece;
            while !rest.is_empty() {
                let n = rest.len().min(bounce.len() - filled);
                let (now, later) = rest.split_at(n);
                bounce[filled..filled + n].copy_from_slice(now);
                filled += n;
                rest = later;
                if filled == bounce.len() {
                    self.write_direct(offset, &bounce)?;
                    offset += filled as u64;
                    filled = 0;
                }
            }
        }
        self.write_direct(offset, &bounce[..filled])
    }
}
