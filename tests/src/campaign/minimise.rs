//! The shortest form of a failure.

use super::explore::{Explore, Finding};
use super::workload::{Case, Workload};

/// Removes steps as long as the case still has a finding. The states and faults of a case come in
/// order of simplicity, so that the result has the simplest ones of the shortest workload. Each
/// case gets its own explorer.
pub fn minimise<E: Explore>(finding: Finding, explorer: impl Fn() -> E) -> Finding {
    let mut least = finding;
    loop {
        let steps = &least.case.workload.0;
        let shorter = (0..steps.len()).rev().find_map(|gone| {
            let mut steps = steps.clone();
            steps.remove(gone);
            let case = Case { setting: least.case.setting, workload: Workload(steps) };
            explorer().explore(&case).err()
        });
        match shorter {
            Some(finding) => least = finding,
            None => return least,
        }
    }
}
