//! A slice of the fault campaign: every I/O of half of the cases that found something once fails,
//! and some I/O of other cases, all by the date.
//!
//! `LANEFS_SEED=N` takes the slice of another day, `LANEFS_LONG=2` all cases that found something;
//! `make torture` takes all of the others. A finding ends with the command that shows it again.

use lanefs_tests::campaign::{
    Case, Count, FaultDepth, FaultExplorer, Small, explore_all, fault_seeds, minimise, settings,
};
use lanefs_tests::{day, slice};

const DEPTH: FaultDepth = FaultDepth { per_case: usize::MAX, e2fsck_every: 300, seed: 1, only: None };

/// The workloads of a day, in each setting.
const SLICE: u64 = 8;

/// Those of them that run over an NBD server too.
const OVER_NBD: u64 = 2;

/// I/Os of a case of the day that fail.
const PER_CASE: usize = 55;

fn judge(cases: &[Case], depth: FaultDepth) -> Count {
    let outcome = explore_all(cases, 2, || FaultExplorer::new(depth));
    println!("{:?}", outcome.count);
    if let Some(finding) = outcome.findings.first() {
        let explorer = || FaultExplorer::new(FaultDepth { e2fsck_every: 16, ..DEPTH });
        let (all, least) = (outcome.findings.len(), minimise(finding.clone(), explorer));
        panic!("{all} of {} cases; the shortest form of the first:\n{least}", cases.len());
    }
    outcome.count
}

#[test]
fn what_was_found_once_is_not_found_again() {
    let cases: Vec<Case> = slice(fault_seeds().unwrap().into_iter(), 2).collect();
    judge(&cases, DEPTH);
}

#[test]
fn a_slice_by_the_date() {
    let small = Small::default();
    let day = day();
    println!("LANEFS_SEED={day}");
    let first = day.wrapping_mul(SLICE) % (small.len() - SLICE);
    let settings = || settings().iter().filter(|setting| setting.can_fail());
    let mut cases = Vec::new();
    for number in first..first + SLICE {
        let workload = || small.get(small.scattered(number)).unwrap();
        let over_nbd = number < first + OVER_NBD;
        let settings = settings().filter(|setting| !setting.is_slow() || setting.nbd && over_nbd);
        cases.extend(settings.map(|setting| Case { setting, workload: workload() }));
    }
    cases.extend(settings().zip(0..).map(|(setting, i)| {
        let workload = small.sample(day.wrapping_mul(100) + i, 4);
        Case { setting, workload }
    }));
    let count = judge(&cases, FaultDepth { per_case: PER_CASE, seed: day, ..DEPTH });
    assert!(count.faults > 2500, "only {count:?}: few calls failed");
}

/// The same case has the same calls: what is found can be shown again.
#[test]
fn a_case_is_the_same_twice() {
    for (setting, per_case, least) in [("small", usize::MAX, 200), ("nbd", PER_CASE, 30)] {
        let case = format!("{setting}: append f 1800; rename /A/f /B/g; fsync f; sync");
        let case: Case = case.parse().unwrap();
        let count = || judge(std::slice::from_ref(&case), FaultDepth { per_case, ..DEPTH });
        let first = count();
        assert!(first.faults > least, "{case}: {first:?}");
        assert_eq!(first, count(), "{case}");
    }
}
