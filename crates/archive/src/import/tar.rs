//! A tar archive as the source of an import: a stream, or a file of which only headers are read.

use crate::image::PlainArchive;
use crate::limit::Limit;
use crate::member::{Kind, Member};
use crate::pipe::{Gone, Outlet, PipeItem};
use crate::tarball::{TarError, TarReader};
use crate::{Action, Error, Place};
use std::io::{self, BufRead};

/// Bytes of a file's data that are sent at once. It is the same number whether they are read here
/// or not: the allocator chooses blocks by the size of a write, so it decides where they lie.
const RANGE: u64 = 4 << 20;

/// Sends the members of an archive, with their data if `content` is wanted. Reads the stream to its
/// end, behind that of the archive: compressed data has its checksum there, and the program that
/// writes to a pipe would fail. Errors name the stream by `name`.
pub(super) fn send(stream: impl BufRead, name: &[u8], content: bool, out: &mut Outlet) -> Result<(), Gone> {
    let sent = send_all(stream, content, out);
    end(sent, name, out)
}

fn send_all(mut stream: impl BufRead, content: bool, out: &mut Outlet) -> Result<(), Stop> {
    send_members(TarReader::new(&mut stream), content, out)?;
    // The rest of a pipe may take any time.
    out.flush()?;
    io::copy(&mut stream, &mut io::sink()).map_err(TarError::from)?;
    Ok(())
}

/// Sends as [`send`] does, but of the data only where it is in the archive's file.
pub(super) fn send_plain(
    archive: &PlainArchive,
    name: &[u8],
    content: bool,
    limit: &Limit,
    out: &mut Outlet,
) -> Result<(), Gone> {
    let sent = archive.members(limit, |member, mut at| {
        let data = data_of(&member, content);
        let left_out = push(member, out)?;
        for (offset, len) in pieces(data).filter(|_| !left_out) {
            let content = archive.excerpt(at..at + len);
            out.push(PipeItem::Unread { offset, content })?;
            at += len;
        }
        Ok(())
    });
    end(sent, name, out)
}

enum Stop {
    Gone(Gone),
    Tar(TarError),
}

impl From<Gone> for Stop {
    fn from(gone: Gone) -> Self {
        Self::Gone(gone)
    }
}

impl From<TarError> for Stop {
    fn from(e: TarError) -> Self {
        Self::Tar(e)
    }
}

/// Sends why the archive could not be read to its end.
fn end(sent: Result<(), Stop>, name: &[u8], out: &mut Outlet) -> Result<(), Gone> {
    match sent {
        Ok(()) => Ok(()),
        Err(Stop::Gone(gone)) => Err(gone),
        Err(Stop::Tar(e)) => {
            out.push(PipeItem::Failed(Error::new(Action::Read, Place::Host(name.to_vec()), e)))
        }
    }
}

/// Cuts ranges into pieces that are sent at once. Returns their offsets and lengths.
fn pieces(data: Vec<(u64, u64)>) -> impl Iterator<Item = (u64, u64)> {
    data.into_iter().flat_map(|(start, len)| {
        (0..len).step_by(RANGE as usize).map(move |at| (start + at, RANGE.min(len - at)))
    })
}

/// Returns the ranges of a file that are no holes, if they are wanted.
fn data_of(member: &Member, content: bool) -> Vec<(u64, u64)> {
    match &member.kind {
        Kind::File { data, .. } if content => data.clone(),
        _ => Vec::new(),
    }
}

/// Sends a member. Returns whether it was left out.
fn push(member: Member, out: &mut Outlet) -> Result<bool, Gone> {
    let item = PipeItem::of(member);
    let left_out = matches!(item, PipeItem::Skipped(_));
    out.push(item).map(|()| left_out)
}

fn send_members(mut tar: TarReader<impl BufRead>, content: bool, out: &mut Outlet) -> Result<(), Stop> {
    while let Some(member) = tar.next()? {
        let data = data_of(&member, content);
        let left_out = push(member, out)?;
        for (offset, len) in pieces(data).filter(|_| !left_out) {
            let bytes = tar.read_exact(len as usize)?;
            out.push(PipeItem::Data { offset, bytes })?;
        }
    }
    Ok(())
}
