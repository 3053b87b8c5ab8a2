//! Tar archives that no program would write, member by member, of any length: a stream.

use std::io::{self, Write};

/// A stream of members.
pub(crate) struct TarStream<W: Write>(pub(crate) W);

/// A record of an extended header.
pub(crate) fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    while rest + len.to_string().len() != len {
        len = rest + len.to_string().len();
    }
    [format!("{len} {key}=").as_bytes(), value, b"\n"].concat()
}

impl<W: Write> TarStream<W> {
    /// Writes a header alone, which says that `size` bytes follow.
    pub(crate) fn header(&mut self, kind: u8, name: &str, link: &str, size: u64) -> io::Result<()> {
        self.header_with(kind, name, link, size, |_| ())
    }

    /// As [`header`](Self::header), changed by `change` before its checksum is made.
    pub(crate) fn header_with(
        &mut self,
        kind: u8,
        name: &str,
        link: &str,
        size: u64,
        change: impl FnOnce(&mut [u8; 512]),
    ) -> io::Result<()> {
        let mut header = [0u8; 512];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, name.as_bytes());
        put(100, if kind == b'5' { b"0000755" } else { b"0000644" });
        put(108, b"0000000");
        put(116, b"0000000");
        put(124, format!("{size:011o}").as_bytes());
        put(136, b"00000001750");
        put(148, b"        ");
        put(156, &[kind]);
        put(157, link.as_bytes());
        put(257, b"ustar\x0000");
        change(&mut header);
        let sum: u32 = header.iter().map(|b| u32::from(*b)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.write_all(&header)
    }

    /// Writes a member with its data.
    pub(crate) fn member(&mut self, kind: u8, name: &str, link: &str, data: &[u8]) -> io::Result<()> {
        self.header(kind, name, link, data.len() as u64)?;
        self.data(data)
    }

    /// Writes data and what fills its last record.
    pub(crate) fn data(&mut self, data: &[u8]) -> io::Result<()> {
        self.0.write_all(data)?;
        self.0.write_all(&[0; 511][..data.len().next_multiple_of(512) - data.len()])
    }

    pub(crate) fn dir(&mut self, name: &str) -> io::Result<()> {
        self.member(b'5', name, "", b"")
    }

    pub(crate) fn empty(&mut self, name: &str) -> io::Result<()> {
        self.member(b'0', name, "", b"")
    }

    /// Writes an extended header for the next member.
    pub(crate) fn extended(&mut self, records: &[u8]) -> io::Result<()> {
        self.member(b'x', "pax", "", records)
    }

    pub(crate) fn end(mut self) -> io::Result<W> {
        self.0.write_all(&[0; 1024])?;
        Ok(self.0)
    }
}
