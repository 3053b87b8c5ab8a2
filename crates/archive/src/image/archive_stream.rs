//! The bytes of an archive between its decoder and its reader. A thread of its own decodes them, in
//! large pieces, since a decoder is slow in small ones. The reader's thread hashes and copies them.

use super::copies::LayerCopy;
use super::digest::{Digest, Hasher};
use crate::compress::UNPACKED;
use std::io::{self, BufRead, Read};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

/// Pieces that are decoded and not read yet, at most.
const AHEAD: usize = 3;

type Decoded = io::Result<Vec<u8>>;

/// The reader's end.
pub(crate) struct ArchiveStream<'a> {
    /// Closed behind the last piece.
    pieces: Receiver<Decoded>,
    /// Takes the memory of pieces that were read.
    spent: Sender<Vec<u8>>,
    hasher: Option<Hasher>,
    copy: Option<LayerCopy<'a>>,
    piece: Vec<u8>,
    /// Bytes of the piece that were read.
    at: usize,
}

impl<'a> ArchiveStream<'a> {
    /// Has `decoder` decoded while `read` reads. `hasher` and `copy` get all bytes.
    ///
    /// # Errors
    /// The thread cannot be had.
    pub(crate) fn of<T>(
        decoder: impl Read + Send,
        hasher: Option<Hasher>,
        copy: Option<LayerCopy<'a>>,
        read: impl FnOnce(Self) -> T,
    ) -> io::Result<T> {
        let (full, pieces) = sync_channel(AHEAD);
        let (spent, empty) = channel();
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("unpack".into());
            thread.spawn_scoped(scope, move || decode(decoder, &full, &empty))?;
            Ok(read(Self { pieces, spent, hasher, copy, piece: Vec::new(), at: 0 }))
        })
    }

    /// Takes the next piece. It is empty at the end.
    fn next(&mut self) -> io::Result<()> {
        self.at = 0;
        let spent = std::mem::take(&mut self.piece);
        if spent.capacity() > 0 {
            // The decoder may have ended.
            let _ = self.spent.send(spent);
        }
        let Ok(piece) = self.pieces.recv() else { return Ok(()) };
        self.piece = piece?;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&self.piece);
        }
        if let Some(copy) = &mut self.copy {
            copy.write(&self.piece);
        }
        Ok(())
    }

    /// Reads what is left, and returns the digest of all bytes. The copy has all of them.
    ///
    /// # Errors
    /// The decoder's.
    pub(crate) fn finish(mut self) -> io::Result<Option<Digest>> {
        self.next()?;
        while !self.piece.is_empty() {
            self.next()?;
        }
        self.keep();
        Ok(self.hasher.map(Hasher::finish))
    }

    /// Keeps the copy of what was read.
    pub(crate) fn keep(&mut self) {
        self.copy.take().into_iter().for_each(LayerCopy::finish);
    }
}

impl Read for ArchiveStream<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.fill_buf()?.read(buf)?;
        self.consume(n);
        Ok(n)
    }
}

impl BufRead for ArchiveStream<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.piece.len() {
            self.next()?;
        }
        Ok(&self.piece[self.at..])
    }

    fn consume(&mut self, n: usize) {
        self.at = self.piece.len().min(self.at + n);
    }
}

/// Sends the output of a decoder until its end, an error, or until the reader has gone.
fn decode(mut decoder: impl Read, full: &SyncSender<Decoded>, empty: &Receiver<Vec<u8>>) {
    loop {
        let mut piece = empty.try_recv().unwrap_or_default();
        piece.resize(UNPACKED, 0);
        let (mut len, mut failed) = (0, None);
        while len < UNPACKED && failed.is_none() {
            match decoder.read(&mut piece[len..]) {
                Ok(0) => break,
                Ok(n) => len += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => failed = Some(e),
            }
        }
        piece.truncate(len);
        let ends = len < UNPACKED;
        let sent = len == 0 || full.send(Ok(piece)).is_ok();
        if let (true, Some(e)) = (sent, failed) {
            // Without a reader there is no thread to report to.
            let _ = full.send(Err(e));
        }
        if ends || !sent {
            return;
        }
    }
}
