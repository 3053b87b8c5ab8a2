//! What import and export have in common as commands.

use crate::archive::{self, IdMap, IdRange, Problem, Report};
use crate::failure::{Cause, Failure, Noted};
use crate::owner::Owner;
use crate::progress::Progress;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Who owns what arrives.
#[derive(Debug, clap::Args)]
pub(super) struct Ownership {
    /// Everything belongs to this user and group: USER, USER:GROUP or :GROUP
    #[arg(long)]
    owner: Option<Owner>,
    /// COUNT users from FROM on become those from TO on; more than once for more ranges
    #[arg(long, value_name = "FROM:TO[:COUNT]")]
    uid_map: Vec<IdRange>,
    /// The same for groups
    #[arg(long, value_name = "FROM:TO[:COUNT]")]
    gid_map: Vec<IdRange>,
}

impl From<Ownership> for archive::Ownership {
    fn from(args: Ownership) -> Self {
        let owner = args.owner.unwrap_or_default();
        Self { uid: owner.uid, gid: owner.gid, uids: IdMap(args.uid_map), gids: IdMap(args.gid_map) }
    }
}

/// Converts a problem to the command's failure.
pub(super) fn failure(problem: Problem) -> Failure {
    Failure::cannot(problem.verb, problem.what, Cause::text(problem.cause))
}

/// Shows a bar and says what goes wrong.
#[derive(Debug)]
pub(super) struct Told {
    progress: Progress,
    noted: Noted,
}

impl Told {
    pub(super) fn new(what: &'static str, total: Option<u64>) -> Self {
        Self { progress: Progress::new(what, total), noted: Noted::default() }
    }

    /// Lets the bar find out how much is in a folder.
    pub(super) fn measure(&self, folder: PathBuf) {
        self.progress.find_total(move || size_of(folder));
    }

    /// Takes the bar away.
    pub(super) fn finish(self) -> Noted {
        self.noted
    }
}

impl Report for Told {
    fn bytes(&mut self, n: u64) {
        self.progress.bytes(n);
    }

    fn file(&mut self) {
        self.progress.file();
    }

    fn problem(&mut self, problem: Problem) {
        // Only a closed standard output is passed on, and nothing is written there here.
        let _ = self.noted.note(Err(failure(problem)));
    }
}

/// Returns the bytes of all files in a folder. Files that cannot be read do not count: the number
/// is for the bar only.
fn size_of(folder: PathBuf) -> u64 {
    let (mut left, mut bytes) = (vec![folder], 0);
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(meta) if meta.is_dir() => left.push(entry.path()),
                Ok(meta) if meta.is_file() => bytes += meta.len().min(meta.blocks().saturating_mul(512)),
                _ => {}
            }
        }
    }
    bytes
}
