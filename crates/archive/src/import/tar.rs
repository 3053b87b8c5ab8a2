//! A tar archive as the source of an import: a stream, or a file of which only headers are read.

use crate::image::PlainArchive;
use crate::limit::Limit;
use crate::member::{Kind, Member};
use crate::pipe::{Gone, Outlet, PIECE, PipeItem};
use crate::tarball::{TarError, TarReader};
use crate::{Action, Error, Place};
use std::io::{self, BufRead};

/// Bytes of a file's data that are sent at once where they are not read here.
const RANGE: u64 = 4 << 20;

/// The archive of an import, unpacked.
pub(super) struct TarStream<'a, R> {
    pub(super) stream: R,
    /// Whether it is compressed. Then it is read behind the end of the archive, up to the checksum.
    pub(super) compressed: bool,
    /// Its name in errors.
    pub(super) name: &'a [u8],
}

/// Sends the members of an archive, with their data if `content` is wanted.
pub(super) fn send<R: BufRead>(tar: TarStream<'_, R>, content: bool, out: &mut Outlet) -> Result<(), Gone> {
    let TarStream { mut stream, compressed, name } = tar;
    let sent = send_members(TarReader::new(&mut stream), content, out).and_then(|()| match compressed {
        true => io::copy(&mut stream, &mut io::sink()).map(drop).map_err(|e| Stop::Tar(e.into())),
        false => Ok(()),
    });
    end(sent, name, out)
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
        for (start, len) in data.into_iter().filter(|_| !left_out) {
            for part in (0..len).step_by(RANGE as usize) {
                let end = len.min(part + RANGE);
                let content = archive.excerpt(at + part..at + end);
                out.push(PipeItem::Unread { offset: start + part, content })?;
            }
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
        for (start, len) in data.into_iter().filter(|_| !left_out) {
            let mut at = start;
            while at < start + len {
                let bytes = tar.read_exact((start + len - at).min(PIECE as u64) as usize)?;
                let offset = at;
                at += bytes.len() as u64;
                out.push(PipeItem::Data { offset, bytes })?;
            }
        }
    }
    Ok(())
}
