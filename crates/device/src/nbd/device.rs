//! An export as a block device.
//!
//! - Every write is kept in memory until a flush has succeeded after it (`unflushed`).
//! - A server without flush but with FUA gets every write with FUA. A server without both is not
//!   written to.
//! - A large read does not fetch what the server says is a hole (`allocation`).
//! - Where the server has a smallest block, calls that do not fit it read whole blocks, and write
//!   whole blocks that were read before.

use super::allocation::Allocation;
use super::claim::{claim, place_of};
use super::client::Client;
use super::error::NbdError;
use super::job::{Data, Job};
use super::request::{Command, Request, pieces};
use super::session::Connector;
use super::unflushed::Kept;
use super::url::{NbdUrl, without_password};
use super::{NbdExport, NbdFailure};
use crate::block_device::{check_range, zero_by_writing};
use crate::name_claim::{NameClaim, Place};
use crate::{BlockDevice, DeviceError, FileOptions, Op, ReadOp, RepeatGuard, Result, WriteOp};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// The most bytes of one request without content.
const CUT_ZEROES: u64 = 32 << 20;
/// Bytes from which on a read asks first what is a hole.
const LARGE: u64 = 128 << 10;
/// Bytes that the server is asked of ahead.
const AHEAD: u64 = 1 << 30;

/// An export of an NBD server, as a device.
///
/// [`open_url`](crate::open_url) opens one by its URL, and a partition of it as a
/// [`Window`](crate::Window). A connection that is lost is made again, and writes that were not
/// flushed are sent again. [`NbdUrl`](crate::NbdUrl) has the limits for that.
#[derive(Debug)]
pub struct NbdDevice {
    client: Client,
    /// The URL, as messages name it.
    name: String,
    read_only: bool,
    allocation: Allocation,
    /// Held by a write that reads blocks first, because it covers only a part of them.
    partial_block: Mutex<()>,
    /// None for a reader that takes no lock.
    claims: Vec<NameClaim>,
}

impl NbdDevice {
    /// Opens the export of a URL.
    ///
    /// `part` names the partition that the caller will use, so that another one of the same export
    /// can be open on this host at the same time. [`open_url`](crate::open_url), which reads the
    /// table, also keeps one partition from being opened by two of its names.
    ///
    /// # Errors
    /// [`Op::Open`] with an [`NbdFailure`]; [`Op::Lock`] while this host has the same volume open.
    pub fn open(url: &str, part: Option<&str>, options: &FileOptions) -> Result<Self> {
        let (parsed, read_only) = (parse(url)?, options.read_only);
        let refused = |op, why| failure(op, 0, 0, url, why);
        let claimed = match read_only && options.unlocked {
            true => None,
            false => Some(claim(&parsed, place_of(&parsed, part), read_only)),
        };
        let claimed = claimed.transpose().map_err(|why| refused(Op::Lock, why))?;
        let open = |why| refused(Op::Open, why);
        let client = Connector::new(parsed, read_only).and_then(Client::open).map_err(open)?;
        Ok(Self {
            client,
            name: url.into(),
            read_only,
            allocation: Allocation::default(),
            partial_block: Mutex::default(),
            claims: claimed.into_iter().collect(),
        })
    }

    /// Claims the bytes that the partition of the URL has turned out to be: a partition has other
    /// names too, and other volumes may reach into it.
    ///
    /// # Errors
    /// [`Op::Lock`] while this host has some of these bytes open.
    pub(crate) fn claim_bytes(&mut self, bytes: Range<u64>) -> Result<()> {
        if !self.claims.is_empty() {
            let claimed = claim(&self.client.connector.url, Place::Bytes(bytes), self.read_only);
            let claimed = claimed.map_err(|why| self.failed(Op::Lock, 0, 0, why))?;
            self.claims.push(claimed);
        }
        Ok(())
    }

    /// Returns the exports that the server of a URL lists, `None` if it does not list any.
    ///
    /// # Errors
    /// [`Op::Open`] with an [`NbdFailure`].
    pub fn list(url: &str) -> Result<Option<Vec<NbdExport>>> {
        let listed = Connector::new(parse(url)?, true).and_then(|connector| connector.list());
        listed.map_err(|why| failure(Op::Open, 0, 0, url, why))
    }

    fn failed(&self, op: Op, offset: u64, len: u64, why: NbdError) -> DeviceError {
        failure(op, offset, len, &self.name, why)
    }

    fn check_change(&self, op: Op, offset: u64, len: u64) -> Result<()> {
        if self.read_only {
            return Err(DeviceError::new(op, offset, len, io::ErrorKind::ReadOnlyFilesystem.into()));
        }
        check_range(op, self.size(), offset, len)
    }

    fn block(&self) -> u64 {
        self.client.agreed.min_block.into()
    }

    fn fits(&self, offset: u64, len: u64) -> bool {
        let block = self.block();
        block == 1 || (offset.is_multiple_of(block) && len.is_multiple_of(block))
    }

    /// Runs requests without content that cover a range.
    fn run_over(&self, command: Command, offset: u64, len: u64) -> std::result::Result<(), NbdError> {
        let mut jobs: Vec<Job<'_>> = pieces(offset, len, CUT_ZEROES)
            .map(|(offset, len)| Job::new(Request { command, flags: 0, offset, len }, Data::None))
            .collect();
        self.client.run(&mut jobs)
    }

    /// Reads aligned ranges.
    fn read_all<'a>(&self, ops: impl Iterator<Item = (u64, &'a mut [u8])>) -> Result<()> {
        let cut = self.client.cut();
        let mut jobs = Vec::new();
        let (mut first, mut bytes) = (None, 0);
        for (offset, buf) in ops {
            first.get_or_insert(offset);
            bytes += buf.len() as u64;
            let (mut at, mut rest) = (offset, buf);
            while !rest.is_empty() {
                let (now, is_hole) = self.next_run(at, rest.len() as u64, cut)?;
                let (piece, later) = rest.split_at_mut(now as usize);
                if is_hole {
                    piece.fill(0);
                } else {
                    let request =
                        Request { command: Command::Read, flags: 0, offset: at, len: piece.len() as u32 };
                    jobs.push(Job::new(request, Data::In(piece)));
                }
                (at, rest) = (at + now, later);
            }
        }
        let ran = self.client.run(&mut jobs);
        ran.map_err(|why| self.failed(Op::Read, first.unwrap_or(0), bytes, why))
    }

    /// Returns how many bytes from `at` on are read together, at most `len`, and whether they are a
    /// hole.
    fn next_run(&self, at: u64, len: u64, cut: u64) -> Result<(u64, bool)> {
        if self.client.agreed.allocation.is_none() {
            return Ok((len.min(cut), false));
        }
        let known = self.allocation.at(at);
        let known = match known {
            None if len >= LARGE => self.ask(at)?,
            known => known,
        };
        let block = self.block();
        Ok(match known {
            // The server may tell of a part of a block, and is asked for whole ones.
            Some((end, true)) if end - at >= block => (len.min((end - at) / block * block), true),
            Some((_, true)) => (len.min(block), false),
            Some((end, false)) if end - at < cut => {
                (len.min((end - at).next_multiple_of(block)).min(cut), false)
            }
            None | Some(_) => (len.min(cut), false),
        })
    }

    /// Asks the server what is a hole from `at` on.
    fn ask(&self, at: u64) -> Result<Option<(u64, bool)>> {
        let len = AHEAD.min(self.size() - at) as u32;
        let changes = self.allocation.changes();
        let request = Request { command: Command::BlockStatus, flags: 0, offset: at, len };
        let mut jobs = [Job::new(request, Data::Extents(Vec::new()))];
        match self.client.run(&mut jobs) {
            Ok(()) => {}
            // A server that cannot say is read.
            Err(NbdError::Failed { .. }) => return Ok(None),
            Err(why) => return Err(self.failed(Op::Read, at, len.into(), why)),
        }
        if let [Job { data: Data::Extents(extents), .. }] = &jobs {
            self.allocation.learn(changes, at, extents, self.size());
        }
        Ok(self.allocation.at(at))
    }

    /// Writes aligned ranges, with `writes` for all of them.
    fn write_all(&self, ranges: &[(u64, u64)], writes: impl Iterator<Item = Kept>) -> Result<()> {
        let offset = ranges.first().map_or(0, |(offset, _)| *offset);
        let changed = || ranges.iter().for_each(|(offset, len)| self.allocation.change(*offset, *len));
        changed();
        let wrote = self.client.write(writes);
        // An answer that the server gave meanwhile may be of before.
        changed();
        let len = ranges.iter().map(|(_, len)| len).sum();
        wrote.map_err(|why| self.failed(Op::Write, offset, len, why))
    }

    /// Reads a range that does not fit the blocks.
    fn read_partial(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let (start, end) = self.around(offset, buf.len() as u64);
        let mut bounce = vec![0; (end - start) as usize];
        self.read_all([(start, &mut bounce[..])].into_iter())?;
        let skip = (offset - start) as usize;
        buf.copy_from_slice(&bounce[skip..skip + buf.len()]);
        Ok(())
    }

    /// Writes a range that does not fit the blocks: over what its first and last block hold.
    fn write_partial(&self, offset: u64, data: &[&[u8]], len: u64) -> Result<()> {
        let _guard = self.partial_block.lock().unwrap_or_else(PoisonError::into_inner);
        let (start, end) = self.around(offset, len);
        let mut bounce = vec![0; (end - start) as usize];
        let block = self.block() as usize;
        let last = bounce.len() - block;
        self.read_all([(start, &mut bounce[..block])].into_iter())?;
        if last > 0 {
            self.read_all([(start + last as u64, &mut bounce[last..])].into_iter())?;
        }
        let mut at = (offset - start) as usize;
        for piece in data {
            bounce[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        self.write_all(&[(start, end - start)], self.kept(start, &[&bounce]))
    }

    fn around(&self, offset: u64, len: u64) -> (u64, u64) {
        let block = self.block();
        (offset / block * block, (offset + len).next_multiple_of(block))
    }

    /// Returns the writes of some bytes, cut to requests. Copies the bytes: they are kept.
    fn kept<'a>(&'a self, offset: u64, data: &'a [&'a [u8]]) -> impl Iterator<Item = Kept> + 'a {
        let total: u64 = data.iter().map(|piece| piece.len() as u64).sum();
        let mut rest = data.iter().copied();
        let mut piece: &[u8] = &[];
        pieces(offset, total, self.client.cut()).map(move |(offset, len)| {
            let mut bytes = self.client.buffer(len as usize);
            while bytes.len() < len as usize {
                if piece.is_empty() {
                    let Some(next) = rest.next() else { break };
                    piece = next;
                }
                let (now, later) = piece.split_at(piece.len().min(len as usize - bytes.len()));
                bytes.extend_from_slice(now);
                piece = later;
            }
            Kept { offset, len, bytes: Some(Arc::new(bytes)) }
        })
    }
}

impl BlockDevice for NbdDevice {
    fn size(&self) -> u64 {
        self.client.agreed.size
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn alignment(&self) -> usize {
        self.client.agreed.min_block as usize
    }

    fn sector_size(&self) -> u64 {
        self.block().max(512)
    }

    fn is_remote(&self) -> bool {
        true
    }

    /// Not known: a server is trusted as little as another user of this host.
    fn owner(&self) -> Option<u32> {
        Some(crate::UNKNOWN_OWNER)
    }

    fn name(&self) -> Option<String> {
        Some(self.name.clone())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.read_batch(&mut [ReadOp { offset, buf }])
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.write_batch(&[WriteOp { offset, data: &[data] }])
    }

    fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> Result<()> {
        for op in ops.iter() {
            check_range(Op::Read, self.size(), op.offset, op.buf.len() as u64)?;
        }
        let fits = |op: &ReadOp<'_>| self.fits(op.offset, op.buf.len() as u64);
        for op in ops.iter_mut().filter(|op| !fits(op)) {
            self.read_partial(op.offset, op.buf)?;
        }
        let fitting = ops.iter_mut().filter(|op| fits(op));
        self.read_all(fitting.map(|op| (op.offset, &mut *op.buf)))
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> Result<()> {
        for op in ops {
            self.check_change(Op::Write, op.offset, op.len())?;
        }
        let fits = |op: &&WriteOp<'_>| self.fits(op.offset, op.len());
        for op in ops.iter().filter(|op| !op.is_empty() && !fits(op)) {
            self.write_partial(op.offset, op.data, op.len())?;
        }
        let fitting = ops.iter().filter(|op| !op.is_empty() && fits(op));
        let ranges: Vec<(u64, u64)> = fitting.clone().map(|op| (op.offset, op.len())).collect();
        self.write_all(&ranges, fitting.flat_map(|op| self.kept(op.offset, op.data)))
    }

    fn guard_repeats(&self, guard: RepeatGuard) {
        self.client.set_guard(guard);
    }

    fn flush(&self) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.client.flush().map_err(|why| self.failed(Op::Flush, 0, 0, why))
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.check_change(Op::Discard, offset, len)?;
        let block = self.block();
        let (start, end) = (offset.next_multiple_of(block), (offset + len) / block * block);
        if start >= end {
            return Ok(());
        }
        let changed = || self.allocation.change(start, end - start);
        changed();
        let done = self.run_over(Command::Trim, start, end - start);
        changed();
        match done {
            // No more than a hint.
            Ok(()) | Err(NbdError::Failed { errno: 95 | 22, .. }) => Ok(()),
            Err(why) => Err(self.failed(Op::Discard, offset, len, why)),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.check_change(Op::Write, offset, len)?;
        if len == 0 {
            return Ok(());
        }
        if !self.fits(offset, len) {
            return zero_by_writing(self, offset, len);
        }
        let zeros = pieces(offset, len, CUT_ZEROES);
        let zeros = zeros.map(|(offset, len)| Kept { offset, len, bytes: None });
        let wrote = self.write_all(&[(offset, len)], zeros);
        match wrote.as_ref().err().and_then(DeviceError::nbd) {
            // The server has no way, or none for this place.
            Some(why) if why.is_unsupported() => zero_by_writing(self, offset, len),
            _ => wrote,
        }
    }
}

fn parse(url: &str) -> Result<NbdUrl> {
    let shown = without_password(url.as_ref());
    let refused = |why| DeviceError::at_path(Op::Open, Path::new(&shown), crate::errno::EINVAL, why);
    NbdUrl::parse(url).map_err(refused)
}

fn failure(op: Op, offset: u64, len: u64, url: &str, why: NbdError) -> DeviceError {
    let kind = crate::errno::kind(why.errno());
    let url = matches!(op, Op::Open | Op::Lock).then(|| url.to_owned());
    DeviceError::new(op, offset, len, io::Error::new(kind, NbdFailure { url, why }))
}
