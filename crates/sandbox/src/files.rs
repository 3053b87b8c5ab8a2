//! The Landlock domain: no file can be opened but those below `/proc` for reading, no file system
//! changed, no TCP port bound or connected to, no process outside signalled or traced.
//!
//! `/proc/PID/stat` and `/proc/THREAD/status` tell of the programs that use a mount. What needs the
//! right to trace a process (its memory, files, namespaces) is refused.

use landlock::{
    ABI, Access, AccessFs, AccessNet, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus, Scope,
};

/// The newest version of Landlock that is asked for. An older kernel has a part of it.
const NEWEST: ABI = ABI::V10;

/// Returns whether the kernel has Landlock.
///
/// # Errors
/// The errors of a Landlock that is there.
pub(crate) fn confine() -> Result<bool, RulesetError> {
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?;
    // Without /proc there is nothing to read.
    if let Ok(proc) = PathFd::new("/proc") {
        rules = rules.add_rule(PathBeneath::new(proc, AccessFs::ReadFile))?;
    }
    Ok(rules.restrict_self()?.ruleset != RulesetStatus::NotEnforced)
}
