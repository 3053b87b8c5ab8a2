//! A tar stream as the source of an import.

use crate::member::Kind;
use crate::pipe::{Gone, Outlet, PIECE, PipeItem};
use crate::tarball::{TarError, TarReader};
use crate::{Action, Error, Place};
use std::io::{self, BufRead};

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
    match sent {
        Ok(()) => Ok(()),
        Err(Stop::Gone(gone)) => Err(gone),
        Err(Stop::Tar(e)) => {
            out.push(PipeItem::Failed(Error::new(Action::Read, Place::Host(name.to_vec()), e)))
        }
    }
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

fn send_members(mut tar: TarReader<impl BufRead>, content: bool, out: &mut Outlet) -> Result<(), Stop> {
    while let Some(member) = tar.next()? {
        let data = match &member.kind {
            Kind::File { data, .. } if content => data.clone(),
            _ => Vec::new(),
        };
        let item = PipeItem::of(member);
        let left_out = matches!(item, PipeItem::Skipped(_));
        out.push(item)?;
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
