//! Compressed archives: reads gzip, zstd, xz and bzip2, and writes gzip and zstd.
//!
//! The output depends on the content alone: no time and no name go into the header.

use crate::Cause;
use crate::content::{self, ARCHIVE_HEAD, Content};
use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;
use std::io::{self, BufRead, BufReader, BufWriter, Cursor, Read, Write};

/// Bytes of an archive that are read at once.
pub(crate) const READ_AHEAD: usize = 1 << 20;
/// Bytes that are unpacked at once: they stay in the cache of a core.
pub(crate) const UNPACKED: usize = 256 << 10;
/// Bytes that are written of an archive at once.
const WRITE_BEHIND: usize = 1 << 20;

/// Bytes of memory that unpacking of xz may take: twice what `xz -9` needs. A zstd decoder takes no
/// window of more than 128 MiB by itself.
#[cfg(feature = "xz")]
const XZ_MEMORY: u64 = 128 << 20;

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
///
/// ```
/// use lanefs_archive::program_for;
/// assert_eq!(program_for(b"root.tar.gz"), Some("gzip"));
/// assert_eq!(program_for(b"root.tar"), Some(""));
/// assert_eq!(program_for(b"root"), None);
/// ```
#[must_use]
pub fn program_for(name: &[u8]) -> Option<&'static str> {
    let fits = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end.as_bytes()));
    NAMES.iter().find(|(ends, _)| fits(ends)).map(|(_, program)| *program)
}

/// How an archive is compressed on its way out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// By gzip, at its usual level.
    Gzip,
    /// By zstd, at its usual level.
    #[cfg(feature = "zstd")]
    Zstd,
}

/// A stream that is written plain or compressed.
pub(crate) enum Packer<W: Write> {
    Plain(BufWriter<W>),
    Gzip(GzEncoder<BufWriter<W>>),
    #[cfg(feature = "zstd")]
    Zstd(zstd::Encoder<'static, BufWriter<W>>),
}

impl<W: Write> Packer<W> {
    pub(crate) fn new(stream: W, compression: Compression) -> io::Result<Self> {
        let stream = BufWriter::with_capacity(WRITE_BEHIND, stream);
        Ok(match compression {
            Compression::Gzip => Self::Gzip(GzEncoder::new(stream, flate2::Compression::default())),
            Compression::None => Self::Plain(stream),
            #[cfg(feature = "zstd")]
            Compression::Zstd => Self::Zstd(zstd::Encoder::new(stream, zstd::DEFAULT_COMPRESSION_LEVEL)?),
        })
    }

    /// Writes what ends the stream, and gives it back.
    pub(crate) fn finish(self) -> io::Result<W> {
        let stream = match self {
            Self::Plain(stream) => stream,
            Self::Gzip(encoder) => encoder.finish()?,
            #[cfg(feature = "zstd")]
            Self::Zstd(encoder) => encoder.finish()?,
        };
        stream.into_inner().map_err(io::IntoInnerError::into_error)
    }
}

impl<W: Write> Write for Packer<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(buf),
            Self::Gzip(encoder) => encoder.write(buf),
            #[cfg(feature = "zstd")]
            Self::Zstd(encoder) => encoder.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        // The end of the stream is for `finish`: a flush on the way makes the result longer.
        Ok(())
    }
}

/// Unpacks a stream, told by its first bytes; one that is not compressed is passed on as it is.
/// Returns too whether it is compressed. Fails with [`Cause::Compressed`] if this build has no
/// decoder.
pub(crate) fn unpacked<'a>(
    mut stream: impl BufRead + Send + 'a,
) -> Result<(Box<dyn BufRead + Send + 'a>, bool), Cause> {
    let mut head = [0; ARCHIVE_HEAD];
    let mut len = 0;
    while len < head.len() {
        match stream.read(&mut head[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
    }
    let whole = Cursor::new(head[..len].to_vec()).chain(stream);
    match content::of_head(&head[..len]) {
        Some(Content::Compressed(by)) => {
            let decoder = decoder(whole, by)?.ok_or(Cause::Compressed(by))?;
            Ok((Box::new(BufReader::with_capacity(UNPACKED, decoder)), true))
        }
        _ => Ok((Box::new(whole), false)),
    }
}

/// Returns the decoder of a stream; `None` if this build has none. A stream may have several
/// members, one behind the other, as `cat`, pigz and pzstd make them.
fn decoder<'a>(
    stream: impl BufRead + Send + 'a,
    by: &'static str,
) -> io::Result<Option<Box<dyn Read + Send + 'a>>> {
    Ok(Some(match by {
        "gzip" => Box::new(GzipMembers::new(stream)),
        #[cfg(feature = "zstd")]
        "zstd" => Box::new(zstd::Decoder::with_buffer(stream)?),
        #[cfg(feature = "xz")]
        "xz" => {
            let all = liblzma::stream::CONCATENATED;
            let bounded = liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY, all)?;
            Box::new(liblzma::bufread::XzDecoder::new_stream(stream, bounded))
        }
        #[cfg(feature = "bzip2")]
        "bzip2" => Box::new(bzip2::bufread::MultiBzDecoder::new(stream)),
        _ => return Ok(None),
    }))
}

/// What members of a gzip stream unpack to, one behind the other. Zeros behind the last one pad the
/// stream, as gzip(1) has it; it is an error if anything else is there.
struct GzipMembers<R> {
    /// `None` once the stream has ended.
    member: Option<GzDecoder<R>>,
}

impl<R: BufRead> GzipMembers<R> {
    fn new(stream: R) -> Self {
        Self { member: Some(GzDecoder::new(stream)) }
    }

    /// Goes on to the next member; behind the last one, to the end.
    fn go_on(&mut self) -> io::Result<()> {
        let Some(mut stream) = self.member.take().map(GzDecoder::into_inner) else { return Ok(()) };
        let mut padded = false;
        loop {
            let bytes = match stream.fill_buf() {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                bytes => bytes?,
            };
            let (len, zeros) = (bytes.len(), bytes.iter().take_while(|byte| **byte == 0).count());
            match (len == 0, zeros == len) {
                (true, _) => return Ok(()),
                (false, true) => padded = true,
                (false, false) if padded || zeros > 0 => {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "bytes behind the end of gzip"));
                }
                (false, false) => {
                    self.member = Some(GzDecoder::new(stream));
                    return Ok(());
                }
            }
            stream.consume(len);
        }
    }
}

impl<R: BufRead> Read for GzipMembers<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            match member.read(buf)? {
                0 if !buf.is_empty() => self.go_on()?,
                n => return Ok(n),
            }
        }
        Ok(0)
    }
}
