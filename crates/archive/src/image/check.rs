//! Checks the layers of an image before anything is written: sizes, digests packed and unpacked,
//! and that each is an archive from its first byte to its last.
//!
//! Half as many layers as there are cores are checked at the same time, each by three threads: one
//! hashes the blob, one unpacks it, and one hashes and reads what is unpacked.

use super::archive_stream::ArchiveStream;
use super::blob::Layer;
use super::copies::Copies;
use super::digest::{Digest, Hasher};
use super::error::{ImageError, Text};
use super::in_order::{InOrder, OneLayer};
use crate::compress::{READ_AHEAD, unpacked};
use crate::content::{self, ARCHIVE_HEAD, Content};
use crate::limit::Limit;
use crate::tarball::TarReader;
use crate::{Action, Cause, Error};
use std::io::{self, BufReader, Read};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};

/// Layers that are checked at once, at most: each has a decoder and buffers.
const AT_ONCE: usize = 4;
/// Bytes that are hashed at once: they stay in the cache of a core.
const PIECE: usize = 256 << 10;

/// What takes the content of layers while they are checked, in the first pass of a build.
#[derive(Clone, Copy)]
pub(super) struct Takers<'a, 'o> {
    /// Takes the members.
    pub(super) members: &'a InOrder<'o>,
    /// Takes what is unpacked.
    pub(super) copies: &'a Copies,
}

/// Checks all layers, which may unpack to what `limit` has left. `tell` hears how many bytes were
/// read, and returns what ends the work.
pub(super) fn check(
    layers: &[Layer],
    limit: &Limit,
    takers: Option<Takers<'_, '_>>,
    mut tell: impl FnMut(u64) -> Result<(), Error>,
) -> Result<(), Error> {
    let (next, ended, alone) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(()));
    let shared = Shared { layers, limit, takers, next, ended, alone };
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = (cores / 2).clamp(1, AT_ONCE);
    std::thread::scope(|scope| {
        let (done, reports) = channel();
        for _ in 0..threads.min(layers.len()) {
            let (shared, done) = (&shared, done.clone());
            scope.spawn(move || work(shared, &done));
        }
        drop(done);
        let mut failed: Option<(usize, Error)> = None;
        for report in reports {
            let found = match report {
                Report::Read(bytes) if failed.is_none() => tell(bytes).err().map(|e| (0, e)),
                Report::Read(_) => None,
                Report::Failed(at, error) => Some((at, error)),
            };
            if let Some(found) = found {
                shared.ended.store(true, Ordering::Relaxed);
                takers.into_iter().for_each(|takers| takers.members.end());
                failed.get_or_insert(found);
            }
        }
        failed.map_or(Ok(()), |(_, error)| Err(error))
    })
}

/// What all threads share.
struct Shared<'a, 'o> {
    layers: &'a [Layer],
    limit: &'a Limit,
    takers: Option<Takers<'a, 'o>>,
    /// The next layer to be checked.
    next: AtomicUsize,
    /// The work has failed.
    ended: AtomicBool,
    /// Held by the thread whose decoder may take much memory.
    alone: Mutex<()>,
}

enum Report {
    Read(u64),
    Failed(usize, Error),
}

fn work(shared: &Shared<'_, '_>, done: &Sender<Report>) {
    loop {
        let at = shared.next.fetch_add(1, Ordering::Relaxed);
        let Some(layer) = shared.layers.get(at) else { return };
        if let Err(cause) = check_one(shared, at, layer, done) {
            // The receiver is there until all senders are gone.
            let _ = done.send(Report::Failed(at, layer.failed(Action::Read, cause)));
        }
    }
}

fn check_one(shared: &Shared<'_, '_>, at: usize, layer: &Layer, done: &Sender<Report>) -> Result<(), Cause> {
    std::thread::scope(|scope| {
        let hashing = std::thread::Builder::new().name("digest".into());
        let hashing = hashing.spawn_scoped(scope, || check_blob(shared, layer, done))?;
        let unpacked = unpack_one(shared, at, layer, done);
        let hashed = hashing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // The digest first: what was unpacked of other bytes means nothing.
        hashed.and(unpacked)
    })
}

/// Checks a layer as it lies there.
fn check_blob(shared: &Shared<'_, '_>, layer: &Layer, done: &Sender<Report>) -> Result<(), Cause> {
    let Some((digest, size)) = &layer.expected.blob else { return Ok(()) };
    let stream = Watched { shared, done, stream: layer.blob.open()? };
    let (found, len) = digest_of(stream.take(size.saturating_add(1)), Hasher::of(digest))?;
    let blob = Text::of(digest);
    if len != *size {
        return Err(ImageError::Size { blob, expected: *size, found: len }.into());
    }
    if found != *digest {
        return Err(ImageError::Digest { blob, found: Text::of(found) }.into());
    }
    Ok(())
}

/// Checks a layer as it is unpacked.
fn unpack_one(shared: &Shared<'_, '_>, at: usize, layer: &Layer, done: &Sender<Report>) -> Result<(), Cause> {
    let open = || -> io::Result<_> { Ok(Watched { shared, done, stream: layer.blob.open()? }) };
    let diff_id = layer.expected.diff_id.as_ref();
    if let (Some(takers), None) = (shared.takers, diff_id)
        && let Some(archive) = layer.plain()?
    {
        let mut members = takers.members.layer(at);
        archive.members(shared.limit, |member, _| members.member(member).map_err(Cause::from))?;
        return Ok(members.done()?);
    }
    let mut head = [0; ARCHIVE_HEAD];
    let read = layer.blob.open()?.read(&mut head)?;
    let hungry = matches!(content::of_head(&head[..read]), Some(Content::Compressed("xz" | "zstd")));
    let mut members = shared.takers.map(|takers| takers.members.layer(at));
    // In its turn it is alone: the next layer waits for it.
    if let (true, Some(members)) = (hungry, &members) {
        members.wait_for_turn()?;
    }
    let _alone = hungry.then(|| shared.alone.lock().unwrap_or_else(PoisonError::into_inner));
    let (stream, compressed) = unpacked(BufReader::with_capacity(READ_AHEAD, open()?))?;
    let copy = shared.takers.filter(|_| compressed).map(|takers| takers.copies.begin(at));
    let found = ArchiveStream::of(shared.limit.of(stream), diff_id.map(Hasher::of), copy, |mut archive| {
        let mut tar = TarReader::new(&mut archive);
        while let Some(member) = tar.next()? {
            members.as_mut().map_or(Ok(()), |members| members.member(member))?;
        }
        Ok::<_, Cause>(archive.finish()?)
    })??;
    members.map_or(Ok(()), OneLayer::done)?;
    match (diff_id, found) {
        (Some(expected), Some(found)) if found != *expected => Err(ImageError::DiffId {
            layer: Text::of(String::from_utf8_lossy(&layer.name)),
            expected: Text::of(expected),
            found: Text::of(found),
        }
        .into()),
        _ => Ok(()),
    }
}

/// A stream whose reads are told of, and that ends with an error when the work has failed.
struct Watched<'a, 'o, R> {
    shared: &'a Shared<'a, 'o>,
    done: &'a Sender<Report>,
    stream: R,
}

impl<R: Read> Read for Watched<'_, '_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.shared.ended.load(Ordering::Relaxed) {
            return Err(io::Error::other("another layer failed"));
        }
        let n = self.stream.read(buf)?;
        // As above.
        let _ = self.done.send(Report::Read(n as u64));
        Ok(n)
    }
}

/// Returns the digest of a stream, and its length.
fn digest_of(mut stream: impl Read, mut hasher: Hasher) -> io::Result<(Digest, u64)> {
    let (mut piece, mut len) = (vec![0; PIECE], 0);
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return Ok((hasher.finish(), len)),
            Ok(n) => {
                hasher.update(&piece[..n]);
                len += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}
