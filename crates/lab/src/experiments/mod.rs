//! The experiments, one a file.

mod dioread;
mod fsync_storm;
mod iversion;
mod overwrite;
mod rangelock;
mod rig;

use crate::Outcome;
use crate::experiment::Experiment;

/// Returns all experiments, in the order of the sources.
pub fn all() -> Vec<Box<dyn Experiment>> {
    vec![
        Box::new(overwrite::Overwrites),
        Box::new(iversion::IVersions),
        Box::new(rangelock::RangeLocks),
        Box::new(fsync_storm::FsyncStorm),
        Box::new(dioread::DioRead),
    ]
}

/// Returns the experiments of these names. No name, or `all`, means all of them.
///
/// # Errors
/// A name that none has.
pub fn named(names: &[String]) -> Outcome<Vec<Box<dyn Experiment>>> {
    let mut known = all();
    for name in names {
        if name != "all" && !known.iter().any(|e| e.name() == name) {
            let names: Vec<&str> = known.iter().map(|e| e.name()).collect();
            return Err(format!("there is no experiment '{name}'; there are {}", names.join(", ")).into());
        }
    }
    if !names.is_empty() && !names.iter().any(|name| name == "all") {
        known.retain(|e| names.iter().any(|name| name == e.name()));
    }
    Ok(known)
}
