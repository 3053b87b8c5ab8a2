//! A tar stream as the source of an import.

use crate::member::Kind;
use crate::path::clean;
use crate::pipe::{Gone, Outlet, PIECE, Piece};
use crate::places::PATH_MAX;
use crate::tarball::{TarError, TarReader};
use crate::{Action, Cause, Error, Place};
use std::io::Read;

/// Sends the members of an archive. `name` is its name in errors.
pub(super) fn send(stream: impl Read, name: &[u8], out: &mut Outlet) -> Result<(), Gone> {
    match send_members(TarReader::new(stream), out) {
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

fn send_members(mut tar: TarReader<impl Read>, out: &mut Outlet) -> Result<(), Stop> {
    while let Some(mut member) = tar.next()? {
        let cleaned = match member.path.len() {
            0..=PATH_MAX => clean(&member.path).ok_or(Cause::ParentInPath),
            len => Err(Cause::PathTooLong(len)),
        };
        let path = match cleaned {
            Ok(path) => path,
            Err(cause) => {
                let place = Place::Member(shortened(&member.path).to_vec());
                out.push(Piece::Skipped(Error::new(Action::Import, place, cause)))?;
                continue;
            }
        };
        member.path = path;
        let data = match &member.kind {
            Kind::File { data, .. } => data.clone(),
            _ => Vec::new(),
        };
        out.push(Piece::Member(member))?;
        for (start, len) in data {
            let mut at = start;
            while at < start + len {
                let mut bytes = vec![0; (start + len - at).min(PIECE as u64) as usize];
                tar.read_exact(&mut bytes)?;
                let offset = at;
                at += bytes.len() as u64;
                out.push(Piece::Data { offset, bytes })?;
            }
        }
    }
    Ok(())
}

/// Returns a path for an error: only its end if it is too long.
fn shortened(path: &[u8]) -> &[u8] {
    const MOST: usize = 4096;
    match path.len() {
        0..=MOST => path,
        len => &path[len - 255..],
    }
}
