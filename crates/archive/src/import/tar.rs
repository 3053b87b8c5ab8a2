//! A tar stream as the source of an import.

use crate::member::Kind;
use crate::pipe::{Gone, Outlet, PIECE, PipeItem};
use crate::tarball::{TarError, TarReader};
use crate::{Action, Error, Place};
use std::io::Read;

/// Sends the members of an archive, with their data if `content` is wanted. `name` is its name in
/// errors.
pub(super) fn send(stream: impl Read, name: &[u8], content: bool, out: &mut Outlet) -> Result<(), Gone> {
    match send_members(TarReader::new(stream), content, out) {
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

fn send_members(mut tar: TarReader<impl Read>, content: bool, out: &mut Outlet) -> Result<(), Stop> {
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
                let mut bytes = vec![0; (start + len - at).min(PIECE as u64) as usize];
                tar.read_exact(&mut bytes)?;
                let offset = at;
                at += bytes.len() as u64;
                out.push(PipeItem::Data { offset, bytes })?;
            }
        }
    }
    Ok(())
}
