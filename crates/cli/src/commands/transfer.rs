//! What import and export have in common as commands.

use crate::archive::{self, IdMap, IdRange, Problem, Report};
use crate::failure::{Cause, Failure, Noted};
use crate::owner::Owner;
use crate::progress::Progress;

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

/// A problem as the command's failure.
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
