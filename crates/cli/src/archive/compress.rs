//! Compressed archives: reads and writes gzip, and names the program for other formats.
//!
//! The output depends on the content alone: no time and no name go into the header.

use crate::content::{self, Content};
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use std::io::{self, BufRead, BufWriter, Cursor, Read, Write};

/// Bytes that are written of an archive at once.
const WRITE_BEHIND: usize = 1 << 20;

/// How the name of an archive says that it is compressed: its ends, and the program.
const NAMES: &[(&[&str], &str)] = &[
    (&[".tar"], ""),
    (&[".tar.gz", ".tgz"], "gzip"),
    (&[".tar.zst", ".tzst"], "zstd"),
    (&[".tar.xz", ".txz"], "xz"),
    (&[".tar.bz2", ".tbz2", ".tbz"], "bzip2"),
    (&[".tar.lz4"], "lz4"),
    (&[".tar.lzma", ".tlz"], "lzma"),
];

/// Returns the program that compresses an archive of this name: "" for a plain one, `None` if the
/// name is not that of an archive.
pub(crate) fn program_for(name: &[u8]) -> Option<&'static str> {
    let fits = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end.as_bytes()));
    NAMES.iter().find(|(ends, _)| fits(ends)).map(|(_, program)| *program)
}

/// A stream that is written plain or by gzip.
#[derive(Debug)]
pub(crate) enum Packer<W: Write> {
    Plain(BufWriter<W>),
    Gzip(GzEncoder<BufWriter<W>>),
}

impl<W: Write> Packer<W> {
    /// Packs for an archive of this name.
    pub(crate) fn new(stream: W, name: &[u8]) -> Self {
        let stream = BufWriter::with_capacity(WRITE_BEHIND, stream);
        match program_for(name) {
            Some("gzip") => Self::Gzip(GzEncoder::new(stream, Compression::default())),
            _ => Self::Plain(stream),
        }
    }

    /// Writes what ends the stream.
    pub(crate) fn finish(self) -> io::Result<()> {
        match self {
            Self::Plain(mut stream) => stream.flush(),
            Self::Gzip(encoder) => encoder.finish()?.flush(),
        }
    }
}

impl<W: Write> Write for Packer<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(buf),
            Self::Gzip(encoder) => encoder.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        // The end of the stream is for `finish`: a flush on the way makes the result longer.
        Ok(())
    }
}

/// Unpacks a stream that is compressed by gzip; any other is passed on as it is. The error is the
/// program that unpacks it.
pub(crate) fn unpacked(mut stream: impl BufRead + Send + 'static) -> io::Result<Unpacked> {
    let mut head = [0; 8];
    let mut len = 0;
    while len < head.len() {
        match stream.read(&mut head[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    let found = content::of_head(&head[..len]);
    let whole = Cursor::new(head[..len].to_vec()).chain(stream);
    Ok(match found {
        Some(Content::Compressed("gzip")) => {
            Unpacked::Stream { stream: Box::new(MultiGzDecoder::new(whole)), compressed: true }
        }
        Some(Content::Compressed(by)) => Unpacked::By(by),
        _ => Unpacked::Stream { stream: Box::new(whole), compressed: false },
    })
}

/// What [`unpacked`] found.
pub(crate) enum Unpacked {
    /// The archive.
    Stream { stream: Box<dyn Read + Send>, compressed: bool },
    /// Only this program unpacks it.
    By(&'static str),
}
