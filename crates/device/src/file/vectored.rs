//! Batches: ops that lie side by side become one run, and runs go to the kernel together where that pays.

use super::{FileDevice, IoUring};
use crate::block_device::check_range;
use crate::{AlignedBuf, BlockDevice, DeviceError, Op, ReadOp, Result, WriteOp};
use rustix::io::{preadv, pwritev, retry_on_intr};
use std::io::{self, IoSlice, IoSliceMut};

/// Pieces that Linux takes in one call.
const MOST_PIECES: usize = libc::UIO_MAXIOV as usize;

/// Pieces that lie one behind the other on the device.
struct Run<P> {
    offset: u64,
    len: u64,
    pieces: Vec<P>,
}

impl<P> Run<P> {
    fn fits_one_call(&self) -> bool {
        self.pieces.len() <= MOST_PIECES
    }

    fn error(&self, op: Op, e: io::Error) -> DeviceError {
        DeviceError::new(op, self.offset, self.len, e)
    }
}

impl FileDevice {
    pub(super) fn write_vectored(&self, ops: &[WriteOp<'_>]) -> Result<()> {
        if let [op] = ops
            && let [piece] = op.data
        {
            return self.write_at(op.offset, piece);
        }
        for op in ops {
            self.check_change(Op::Write, op.offset, op.len())?;
        }
        let mut order: Vec<&WriteOp<'_>> = ops.iter().filter(|op| !op.is_empty()).collect();
        order.sort_by_key(|op| op.offset);
        let mut runs = Vec::new();
        for ops in order.chunk_by(|a, b| a.offset + a.len() == b.offset) {
            let pieces: Vec<IoSlice<'_>> = ops
                .iter()
                .flat_map(|op| op.data)
                .filter(|d| !d.is_empty())
                .map(|d| IoSlice::new(d))
                .collect();
            let run = Run { offset: ops[0].offset, len: ops.iter().map(|op| op.len()).sum(), pieces };
            if self.is_direct() && !run.pieces.iter().all(|p| self.is_aligned(run.offset, p)) {
                self.gather(run.offset, &run.pieces).map_err(|e| run.error(Op::Write, e))?;
            } else {
                runs.push(run);
            }
        }
        if self.by_ring(runs.len()) {
            let given: Vec<_> = runs.iter().filter(|run| run.fits_one_call()).collect();
            let answers = self.rings.write(&self.file, given.iter().map(|run| (run.offset, &run.pieces[..])));
            for (run, answer) in given.iter().zip(&answers) {
                check(*answer).map_err(|e| run.error(Op::Write, e))?;
            }
            keep_unfinished(&mut runs, answers);
        }
        for mut run in runs {
            self.pwritev_all(run.offset, &mut run.pieces)
                .map_err(|e| DeviceError::new(Op::Write, run.offset, run.len, e))?;
        }
        Ok(())
    }

    pub(super) fn read_vectored(&self, ops: &mut [ReadOp<'_>]) -> Result<()> {
        if let [op] = ops {
            return self.read_at(op.offset, op.buf);
        }
        for op in ops.iter() {
            check_range(Op::Read, self.size, op.offset, op.buf.len() as u64)?;
        }
        let mut order: Vec<&mut ReadOp<'_>> = ops.iter_mut().filter(|op| !op.buf.is_empty()).collect();
        order.sort_by_key(|op| op.offset);
        let mut runs = Vec::new();
        for ops in order.chunk_by_mut(|a, b| a.offset + a.buf.len() as u64 == b.offset) {
            if self.is_direct() && !ops.iter().all(|op| self.is_aligned(op.offset, op.buf)) {
                ops.iter_mut().try_for_each(|op| self.read_at(op.offset, op.buf))?;
                continue;
            }
            let (offset, len) = (ops[0].offset, ops.iter().map(|op| op.buf.len() as u64).sum());
            let pieces: Vec<_> = ops.iter_mut().map(|op| IoSliceMut::new(op.buf)).collect();
            runs.push(Run { offset, len, pieces });
        }
        if self.by_ring(runs.len()) {
            let mut given: Vec<_> = runs.iter_mut().filter(|run| run.fits_one_call()).collect();
            let pieces = given.iter_mut().map(|run| (run.offset, &mut run.pieces[..]));
            let answers = self.rings.read(&self.file, pieces);
            for (run, answer) in given.iter().zip(&answers) {
                check(*answer).map_err(|e| run.error(Op::Read, e))?;
            }
            keep_unfinished(&mut runs, answers);
        }
        for mut run in runs {
            self.preadv_all(run.offset, &mut run.pieces)
                .map_err(|e| DeviceError::new(Op::Read, run.offset, run.len, e))?;
        }
        Ok(())
    }

    /// Whether a batch of so many runs goes by io_uring. Measured: direct I/O gains from two runs on, because the device
    /// works on all at once; through the page cache the loop is never slower, since a run is a copy.
    fn by_ring(&self, runs: usize) -> bool {
        match self.io_uring {
            IoUring::Auto => runs >= 2 && self.is_direct(),
            IoUring::On => runs > 0,
            IoUring::Off => false,
        }
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

/// Leaves the runs that a ring was not given or did not finish; `answers` are of those that fit one call, in order.
fn keep_unfinished<P>(runs: &mut Vec<Run<P>>, answers: Vec<Option<i32>>) {
    let mut answers = answers.into_iter();
    let mut finished = |len| answers.next().flatten().and_then(|n| u64::try_from(n).ok()) == Some(len);
    runs.retain(|run| !(run.fits_one_call() && finished(run.len)));
}

/// The failure in a ring's answer. What the kernel wants to be asked again is none: it is asked again plainly, and so is
/// a run that was done in part.
fn check(answer: Option<i32>) -> io::Result<()> {
    match answer.and_then(i32::checked_neg) {
        Some(errno) if errno > 0 && ![libc::EINTR, libc::EAGAIN].contains(&errno) => {
            Err(io::Error::from_raw_os_error(errno))
        }
        _ => Ok(()),
    }
}
