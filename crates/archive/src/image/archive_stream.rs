//! The bytes of an archive between its decoder and its reader: hashed, copied, and taken from the
//! decoder in large pieces, since a decoder is slow in small ones.

use super::copies::LayerCopy;
use super::digest::{Digest, Hasher};
use std::io::{self, Read};

/// Bytes that are taken from the decoder at once.
const PIECE: usize = 256 << 10;

pub(crate) struct ArchiveStream<'a, R> {
    decoder: R,
    hasher: Option<Hasher>,
    copy: Option<LayerCopy<'a>>,
    piece: Box<[u8]>,
    /// What is left of the piece.
    at: usize,
    end: usize,
}

impl<'a, R: Read> ArchiveStream<'a, R> {
    /// Returns the stream that `decoder` unpacks. `hasher` and `copy` get all of its bytes.
    pub(crate) fn new(decoder: R, hasher: Option<Hasher>, copy: Option<LayerCopy<'a>>) -> Self {
        Self { decoder, hasher, copy, piece: vec![0; PIECE].into(), at: 0, end: 0 }
    }

    /// Takes the next piece.
    fn fill(&mut self) -> io::Result<()> {
        (self.at, self.end) = (0, self.decoder.read(&mut self.piece)?);
        let piece = &self.piece[..self.end];
        if let Some(hasher) = &mut self.hasher {
            hasher.update(piece);
        }
        if let Some(copy) = &mut self.copy {
            copy.write(piece);
        }
        Ok(())
    }

    /// Reads what is left, and returns the digest of all bytes. The copy has all of them.
    ///
    /// # Errors
    /// The decoder's.
    pub(crate) fn finish(mut self) -> io::Result<Option<Digest>> {
        loop {
            match self.fill() {
                Ok(()) if self.end == 0 => break,
                Err(e) if e.kind() != io::ErrorKind::Interrupted => return Err(e),
                _ => {}
            }
        }
        self.keep();
        Ok(self.hasher.map(Hasher::finish))
    }

    /// Keeps the copy of what was read.
    pub(crate) fn keep(&mut self) {
        self.copy.take().into_iter().for_each(LayerCopy::finish);
    }
}

impl<R: Read> Read for ArchiveStream<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.at == self.end {
            self.fill()?;
        }
        let n = buf.len().min(self.end - self.at);
        buf[..n].copy_from_slice(&self.piece[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
}
