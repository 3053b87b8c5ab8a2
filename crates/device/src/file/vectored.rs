//! Batches: joins adjacent ops to runs, and submits runs to the kernel together where that pays.
//!
//! Invariant: a batch transfers all of its bytes, or fails.

use super::piece::{self, MOST_PIECES, Piece, Source, Target};
use super::{FileDevice, Reads};
use crate::block_device::check_range;
use crate::{AlignedBuf, BlockDevice, DeviceError, IoUring, Op, ReadOp, Result, WriteOp};
use std::ops::Range;
use std::{io, mem};

/// The longest run of direct I/O that is not cut, in bytes: of a longer one the device works on
/// several parts at once.
const CUT: u64 = 1 << 20;

/// Pieces that lie one behind the other on the device.
struct Run {
    offset: u64,
    len: u64,
    /// Their places among the pieces of all runs.
    pieces: Range<usize>,
}

impl Run {
    fn fits_one_call(&self) -> bool {
        self.pieces.len() <= MOST_PIECES
    }

    fn error(&self, op: Op, e: io::Error) -> DeviceError {
        DeviceError::new(op, self.offset, self.len, e)
    }
}

/// Runs in the making.
struct Runs<B> {
    list: Vec<Run>,
    /// The pieces of all runs, in order.
    pieces: Vec<Piece<B>>,
    /// The most bytes of one.
    most: u64,
}

impl<B> Runs<B> {
    fn new(device: &FileDevice) -> Self {
        let most = if device.is_direct() { CUT } else { u64::MAX };
        Self { list: Vec::new(), pieces: Vec::new(), most }
    }

    /// Returns the runs, each with its pieces.
    fn each_mut(&mut self) -> impl Iterator<Item = (&Run, &mut [Piece<B>])> {
        let (mut rest, mut at) = (&mut self.pieces[..], 0);
        self.list.iter().map(move |run| {
            // Between two runs lie the pieces of runs that are finished.
            let (_, here) = mem::take(&mut rest).split_at_mut(run.pieces.start - at);
            let (pieces, behind) = here.split_at_mut(run.pieces.len());
            (rest, at) = (behind, run.pieces.end);
            (run, pieces)
        })
    }

    /// Adds `piece` at `offset`: to the last run, if it goes on where that ends.
    fn add(&mut self, mut offset: u64, mut piece: Piece<B>) {
        if piece.len() == 0 {
            return;
        }
        loop {
            let last =
                self.list.last_mut().filter(|run| run.offset + run.len == offset && run.len < self.most);
            let room = self.most - last.as_ref().map_or(0, |run| run.len);
            let later = piece.split_off(usize::try_from(room).unwrap_or(usize::MAX));
            let len = piece.len() as u64;
            match last {
                None => {
                    let at = self.pieces.len();
                    self.pieces.push(piece);
                    self.list.push(Run { offset, len, pieces: at..at + 1 });
                }
                Some(run) => {
                    run.len += len;
                    let apart = match self.pieces.last_mut() {
                        Some(last) => last.join(piece),
                        None => Some(piece),
                    };
                    self.pieces.extend(apart);
                    run.pieces.end = self.pieces.len();
                }
            }
            let Some(later) = later else { return };
            (offset, piece) = (offset + len, later);
        }
    }
}

impl FileDevice {
    pub(super) fn write_vectored(&self, ops: &[WriteOp<'_>]) -> Result<()> {
        if let [op] = ops
            && let [piece] = op.data
            && piece.len() as u64 <= CUT
        {
            return self.write_at(piece, op.offset);
        }
        for op in ops {
            self.check_change(Op::Write, op.offset, op.len())?;
        }
        let mut order: Vec<&WriteOp<'_>> = ops.iter().filter(|op| !op.is_empty()).collect();
        order.sort_by_key(|op| op.offset);
        let mut runs = Runs::new(self);
        for ops in order.chunk_by(|a, b| a.offset + a.len() == b.offset) {
            let (mut offset, len) = (ops[0].offset, ops.iter().map(|op| op.len()).sum());
            // Where an empty one lies is of no account.
            let pieces = || ops.iter().flat_map(|op| op.data).copied().filter(|piece| !piece.is_empty());
            if self.is_direct() && !pieces().all(|p| self.is_aligned(offset, p)) {
                self.gather(offset, pieces()).map_err(|e| DeviceError::new(Op::Write, offset, len, e))?;
                continue;
            }
            for piece in pieces() {
                runs.add(offset, Source::from(piece));
                offset += piece.len() as u64;
            }
        }
        let mut given_before = None;
        while self.by_ring(runs.list.len()) && is_given_again(given_before, runs.list.len()) {
            given_before = Some(runs.list.len());
            let given: Vec<_> = runs.list.iter().filter(|run| run.fits_one_call()).collect();
            let pieces = given.iter().map(|run| (run.offset, &runs.pieces[run.pieces.clone()]));
            let answers = self.rings.write(&self.file, pieces);
            for (run, answer) in given.iter().zip(&answers) {
                check(*answer).map_err(|e| run.error(Op::Write, e))?;
            }
            keep_unfinished(&mut runs.list, answers);
        }
        for (run, pieces) in runs.each_mut() {
            piece::write_all(&self.file, run.offset, pieces).map_err(|e| run.error(Op::Write, e))?;
        }
        Ok(())
    }

    pub(super) fn read_vectored(&self, ops: &mut [ReadOp<'_>], reads: Reads) -> Result<()> {
        if let [op] = ops
            && op.buf.len() as u64 <= CUT
        {
            return self.read_one(op.buf, op.offset, reads);
        }
        for op in ops.iter() {
            check_range(Op::Read, self.size(), op.offset, op.buf.len() as u64)?;
        }
        let mut order: Vec<&mut ReadOp<'_>> = ops.iter_mut().filter(|op| !op.buf.is_empty()).collect();
        order.sort_by_key(|op| op.offset);
        let mut runs = Runs::new(self);
        for ops in order.chunk_by_mut(|a, b| a.offset + a.buf.len() as u64 == b.offset) {
            let len = ops.iter().map(|op| op.buf.len() as u64).sum();
            let small = self.reads_cached(len, reads).is_some();
            let aligned = ops.iter().all(|op| self.is_aligned(op.offset, op.buf));
            if self.is_direct() && (small || !aligned) {
                ops.iter_mut().try_for_each(|op| self.read_one(op.buf, op.offset, reads))?;
                continue;
            }
            for op in ops {
                runs.add(op.offset, Target::from(&mut *op.buf));
            }
        }
        let mut given_before = None;
        while self.by_ring(runs.list.len()) && is_given_again(given_before, runs.list.len()) {
            given_before = Some(runs.list.len());
            let mut given: Vec<_> = runs.each_mut().filter(|(run, _)| run.fits_one_call()).collect();
            let pieces = given.iter_mut().map(|(run, pieces)| (run.offset, &mut **pieces));
            let answers = self.rings.read(&self.file, pieces);
            for ((run, _), answer) in given.iter().zip(&answers) {
                check(*answer).map_err(|e| run.error(Op::Read, e))?;
            }
            keep_unfinished(&mut runs.list, answers);
        }
        for (run, pieces) in runs.each_mut() {
            piece::read_all(&self.file, run.offset, pieces).map_err(|e| run.error(Op::Read, e))?;
        }
        Ok(())
    }

    /// Returns whether a batch of so many runs goes by io_uring. Measured: direct I/O gains from
    /// two runs on, because the device works on all at once; through the page cache the loop is
    /// never slower, since a run is a copy.
    fn by_ring(&self, runs: usize) -> bool {
        match self.io_uring {
            IoUring::Auto => runs >= 2 && self.is_direct(),
            IoUring::On => runs > 0,
            IoUring::Off => false,
        }
    }

    /// Writes pieces that O_DIRECT does not take, joined in a bounce buffer.
    fn gather<'a>(&self, mut offset: u64, pieces: impl Iterator<Item = &'a [u8]> + Clone) -> io::Result<()> {
        let len: usize = pieces.clone().map(<[u8]>::len).sum();
        let mut bounce = AlignedBuf::zeroed(len.min(super::direct::BOUNCE as usize));
        let mut filled = 0;
        for piece in pieces {
            let mut rest = piece;
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

#[cfg(test)]
thread_local! {
    /// Runs of this thread that the kernel took from a ring and did not finish.
    pub(super) static GIVEN_BACK: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Returns whether the `left` runs that a ring has not finished are given to it again. `before` is
/// how many it was given the last time, `None` the first time.
///
/// The kernel refuses runs while the queue of the device is full: one after the other, by plain
/// calls, a burst of them takes tens of milliseconds. It refuses others each time, such as writes
/// into holes. So a ring gets them again only after it has finished an eighth of the last ones.
fn is_given_again(before: Option<usize>, left: usize) -> bool {
    before.is_none_or(|before| left < before && left <= before - before / 8)
}

/// Keeps the runs that were not submitted to a ring or not completed by it. `answers` are the
/// results of the runs that fit one call, in order.
fn keep_unfinished(runs: &mut Vec<Run>, answers: Vec<Option<i32>>) {
    let mut answers = answers.into_iter();
    let mut finished = |len| {
        let answer = answers.next().flatten();
        let done = answer.and_then(|n| u64::try_from(n).ok()) == Some(len);
        #[cfg(test)]
        if answer.is_some() && !done {
            GIVEN_BACK.set(GIVEN_BACK.get() + 1);
        }
        done
    };
    runs.retain(|run| !(run.fits_one_call() && finished(run.len)));
}

/// Returns the failure in a ring's answer. A request to retry is none: the caller repeats such a
/// run, and a partial one, with plain system calls.
fn check(answer: Option<i32>) -> io::Result<()> {
    match answer.and_then(i32::checked_neg) {
        // The last is of RWF_NOWAIT, on a file system that does not know it.
        Some(errno) if errno > 0 && ![libc::EINTR, libc::EAGAIN, libc::EOPNOTSUPP].contains(&errno) => {
            Err(io::Error::from_raw_os_error(errno))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs that a full device refuses go to the ring again while it finishes some, not for ever.
    #[test]
    fn a_ring_is_given_runs_again_while_it_finishes_some() {
        assert!(is_given_again(None, 300));
        assert!(is_given_again(Some(300), 172));
        assert!(!is_given_again(Some(300), 299));
        assert!(!is_given_again(Some(2), 2));
        let (mut before, mut left, mut passes) = (None, 10_000, 0);
        while is_given_again(before, left) && left > 0 {
            (before, left, passes) = (Some(left), left - left.div_ceil(8), passes + 1);
        }
        assert!(left == 0 && passes < 100, "{left} left after {passes}");
    }

    /// Each run has its own pieces, also once those before it are finished.
    #[test]
    fn runs_keep_their_pieces() {
        let bytes = [0_u8; 40];
        let mut runs = Runs { list: Vec::new(), pieces: Vec::new(), most: 16 };
        // Two that are joined in memory, one that is not, and one that is cut.
        for (offset, from, to) in [(0, 0, 4), (4, 4, 6), (6, 30, 35), (100, 6, 9), (200, 9, 29)] {
            runs.add(offset, Source::from(&bytes[from..to]));
        }
        let seen = |runs: &mut Runs<&[u8]>| -> Vec<_> {
            let lens = |pieces: &mut [Source<'_>]| pieces.iter().map(Piece::len).collect::<Vec<_>>();
            runs.each_mut().map(|(run, pieces)| (run.offset, run.len, lens(pieces))).collect()
        };
        let all = [(0, 11, vec![6, 5]), (100, 3, vec![3]), (200, 16, vec![16]), (216, 4, vec![4])];
        assert_eq!(seen(&mut runs), all);
        keep_unfinished(&mut runs.list, vec![Some(11), None, Some(16), Some(3)]);
        assert_eq!(seen(&mut runs), [all[1].clone(), all[3].clone()]);
    }

    /// A run that a ring did in part, was interrupted in or was not given is done again as a whole.
    #[test]
    fn only_what_a_ring_did_whole_is_finished() {
        let run = |offset: u64, pieces: usize| Run { offset, len: 8192, pieces: 0..pieces };
        let again =
            [Some(8191), Some(0), Some(-libc::EINTR), Some(-libc::EAGAIN), Some(-libc::EOPNOTSUPP), None];
        assert!(again.iter().all(|answer| check(*answer).is_ok()));
        let answers: Vec<Option<i32>> = [Some(8192)].into_iter().chain(again).chain([Some(8192)]).collect();
        let mut runs: Vec<_> = (0..answers.len() as u64).map(|i| run(i, 1)).collect();
        // One of more pieces than a call takes was not given to the ring, and has no answer.
        runs.insert(1, run(100, MOST_PIECES + 1));
        keep_unfinished(&mut runs, answers);
        let left: Vec<u64> = runs.iter().map(|run| run.offset).collect();
        assert_eq!(left, [100, 1, 2, 3, 4, 5, 6]);
        for errno in [libc::EIO, libc::ENOSPC, libc::EFBIG] {
            assert_eq!(check(Some(-errno)).unwrap_err().raw_os_error(), Some(errno));
        }
    }
}
