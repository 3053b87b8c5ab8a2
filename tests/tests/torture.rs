//! A slice of the crash campaign: the cases that found something once, and others by the date.
//!
//! `LANEFS_SEED=N` takes the slice of another day; `make torture` takes all of them. A finding ends
//! with the command that shows it again.

use lanefs_tests::campaign::{
    Case, Depth, Explore, Explorer, Outcome, Small, explore_all, minimise, seeds, settings,
};
use lanefs_tests::day;

const DEPTH: Depth = Depth { small: 24, random: 2, e2fsck_every: 100, again_every: 100, seed: 1 };

/// The workloads of a day, in each setting.
const SLICE: u64 = 100;

/// Those of them that run over an NBD server too.
const OVER_NBD: u64 = 20;

fn judge(cases: &[Case]) -> Outcome {
    let outcome = explore_all(cases, 2, || Explorer::new(DEPTH));
    println!("{:?}", outcome.count);
    if let Some(finding) = outcome.findings.first() {
        let (all, least) = (
            outcome.findings.len(),
            minimise(finding.clone(), || Explorer::new(Depth { e2fsck_every: 16, ..DEPTH })),
        );
        panic!("{all} of {} cases; the shortest form of the first:\n{least}", cases.len());
    }
    outcome
}

#[test]
fn what_was_found_once_is_not_found_again() {
    let cases = seeds().unwrap();
    judge(&cases);
}

#[test]
fn a_slice_by_the_date() {
    let small = Small::default();
    let day = day();
    println!("LANEFS_SEED={day}");
    let first = day.wrapping_mul(SLICE) % (small.len() - SLICE);
    let mut cases = Vec::new();
    for number in first..first + SLICE {
        let over_nbd = number < first + OVER_NBD;
        for setting in settings().iter().filter(|s| !s.is_slow() || s.nbd && over_nbd) {
            cases.push(Case { setting, workload: small.get(small.scattered(number)).unwrap() });
        }
    }
    cases.extend(settings().iter().zip(0..).map(|(setting, i)| {
        let workload = small.sample(day.wrapping_mul(100) + i, 4);
        Case { setting, workload }
    }));
    let outcome = judge(&cases);
    assert!(outcome.count.states > 1000, "only {:?}: nothing reached the device", outcome.count);
}

/// Promises that a slice may miss, for few of its cases are about them.
#[test]
fn what_a_slice_may_miss() {
    let cases = [
        // Stores into the mapping of a file on a disk.
        "dax-disk: direct f 0 2048; fdatasync f; append g 700; fsync g; direct f 2000 3072; sync",
        // A version that only a late write has made; times in the order of writes and of utimensat.
        "looked: late f 0 2048; fsync f; append f 1800; touch /A/f; fsync f; late f 1024 2048; sync",
        "looked: append f 1800; chmod /B; commit; writeback; truncate g 5120; rename /A/f /B/g; commit; sync",
        "small: write f 500 1200; fsync f; touch /A/f; sync; append f 1800; fsync f",
        // Blocks that are free, but whose freeing is not committed.
        "small: truncate f 0; trim; unlink /B/g; trim; sync; trim; append f 1800; fsync f",
        // What only the sectors of a file show, and the name of a file that was fdatasynced.
        "small: falloc keep f 2048 4096; fsync f; commit; append g 700; sync",
        "small: create /A/n; fdatasync n; append g 700; commit",
        "no-journal: write f 500 1200; fsync f; append g 700; rename /A/f /B/f; fsync g; trim; sync",
    ];
    judge(&cases.map(|case| case.parse::<Case>().unwrap()));
}

/// A state that a case has in common with an earlier one is judged, and not recovered again.
#[test]
fn recoveries_are_shared_and_judgements_are_not() {
    let mut explorer = Explorer::new(Depth { again_every: u64::MAX, ..DEPTH });
    let mut explore = |case: &str| {
        let before = explorer.count();
        explorer.explore(&case.parse().unwrap()).unwrap();
        let after = explorer.count();
        (after.states - before.states, after.recoveries - before.recoveries)
    };
    let (states, recoveries) = explore("small: append f 1800; fsync f; sync");
    assert!(states > 20 && recoveries <= states);
    assert_eq!(explore("small: append f 1800; fsync f; sync"), (states, 0));
    // The same volume in another mode, which has some of the states; another volume has none.
    let (_, other) = explore("lock: append f 1800; fsync f; sync");
    assert!(other < recoveries, "{other} of {recoveries}");
    let (states, other) = explore("full: append f 1800; fsync f; sync");
    assert!(other > recoveries / 2 && other <= states, "{other} of {states}");
}

/// The same case makes the same states: what is found can be shown again.
#[test]
fn a_case_is_the_same_twice() {
    for setting in ["small", "nbd"] {
        let case = format!("{setting}: append f 1800; rename /A/f /B/g; fsync f; sync");
        let case: Case = case.parse().unwrap();
        let prints = || judge(std::slice::from_ref(&case)).prints;
        let first = prints();
        assert!(first.len() > 20, "{case}: {} states", first.len());
        assert_eq!(first, prints(), "{case}");
    }
}

/// A client that does not write again what a killed server has lost is found.
#[test]
fn a_server_that_is_killed_loses_nothing() {
    let cases = [
        "nbd: append f 1800; fsync f; write f 500 1200; fsync f; rename /A/f /B/g; sync",
        "nbd: direct f 0 2048; fdatasync f; append g 700; fsync g; direct f 2000 3072; sync",
        "nbd: late f 0 2048; sync; truncate f 0; trim; append f 1800; fsync f; sync",
    ];
    judge(&cases.map(|case| case.parse::<Case>().unwrap()));
}
