//! A tar stream as the source of an import.

use crate::member::Kind;
use crate::pipe::{Gone, Outlet, PIECE, Piece};
use crate::tarball::{TarError, TarReader};
use crate::{Action, Error, Place};
use std::io::BufRead;

/// Sends the members of an archive, with their data if `content` is wanted. `name` is its name in
/// errors.
pub(super) fn send(stream: impl BufRead, name: &[u8], content: bool, out: &mut Outlet) -> Result<(), Gone> {
    match send_members(TarReader::new(stream), content, out) {
        Ok(()) => Ok(()),
        Err(Stop::Gone(gone)) => Err(gone),
        Err(Stop::Tar(e)) => out.push(Piece::Failed(Error::new(Action::Read, Place::Host(name.to_vec()), e))),
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
        let piece = Piece::of(member);
        let left_out = matches!(piece, Piece::Skipped(_));
        out.push(piece)?;
        for (start, len) in data.into_iter().filter(|_| !left_out) {
            let mut at = start;
            while at < start + len {
                let bytes = tar.read_exact((start + len - at).min(PIECE as u64) as usize)?;
                let offset = at;
                at += bytes.len() as u64;
                out.push(Piece::Data { offset, bytes })?;
            }
        }
    }
    Ok(())
}
