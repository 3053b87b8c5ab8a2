//! All workloads of one and of two core operations, and samples of longer ones.
//!
//! As ACE (OSDI 2018) bounds them: two files in two directories; between two operations one
//! persistence operation or none; behind the last an order of persistence operations that makes
//! everything durable. A crash may come between any two writes, so that a workload with a short
//! tail is part of one with a long tail.

use super::step::{Flag, Slot, Step, Way};
use super::workload::Workload;
use lanefs::FallocMode;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

const BLOCK: usize = 1024;

fn write(way: Way, file: Slot, at: usize, len: usize) -> Step {
    Step::Write { way, file, at, len }
}

fn path(path: &str) -> String {
    path.to_owned()
}

/// The core operations, each of which is one for other threads.
pub(super) fn operations() -> Vec<Step> {
    let mut all = contents();
    all.extend(names());
    all
}

fn contents() -> Vec<Step> {
    use Slot::{F, G, N, T};
    let append = |file, len| Step::Append { file, len };
    let truncate = |file, len| Step::Truncate { file, len };
    let copy = |from, at, to, to_at, len| Step::Copy { from, at, to, to_at, len };
    let falloc = |mode, at, len| Step::Falloc { mode, file: F, at, len };
    vec![
        write(Way::Write, F, 500, 1200),
        write(Way::Write, G, BLOCK, 700),
        write(Way::Write, F, 6000, 900),
        write(Way::Direct, F, 0, 2 * BLOCK),
        write(Way::Direct, F, 2000, 3 * BLOCK),
        write(Way::Direct, F, 4 * BLOCK, BLOCK),
        write(Way::Late, F, 0, 2 * BLOCK),
        write(Way::Late, F, BLOCK, 2 * BLOCK),
        write(Way::Dsync, G, 300, 3 * BLOCK),
        append(F, 1800),
        append(G, 700),
        append(N, 1500),
        append(T, 1500),
        truncate(F, 0),
        truncate(F, 1300),
        truncate(F, 5000),
        truncate(G, 0),
        truncate(G, 5 * BLOCK),
        truncate(T, 700),
        copy(G, 0, F, 1500, 1000),
        copy(F, 0, G, BLOCK, 2500),
        falloc(FallocMode::Allocate, 2000, 3 * BLOCK),
        falloc(FallocMode::KeepSize, 2 * BLOCK, 4 * BLOCK),
        falloc(FallocMode::PunchHole, 700, 1500),
        falloc(FallocMode::PunchHole, 1100, 300),
        falloc(FallocMode::ZeroRange, 900, 3 * BLOCK),
        falloc(FallocMode::ZeroRangeKeepSize, 0, 2 * BLOCK),
        falloc(FallocMode::CollapseRange, 0, BLOCK),
        falloc(FallocMode::InsertRange, BLOCK, BLOCK),
        Step::Trim,
    ]
}

/// Writes that are several requests, so that other threads may come in between.
fn divided() -> Vec<Step> {
    use Slot::{F, G};
    vec![
        write(Way::Batch, F, 0, 2 * BLOCK),
        write(Way::Batch, G, BLOCK, 2 * BLOCK),
        write(Way::NoWait, F, 1000, 900),
        write(Way::NoWaitDirect, F, BLOCK, BLOCK),
        write(Way::Lent, F, 0, 2 * BLOCK),
        write(Way::Lent, G, 0, 2 * BLOCK),
    ]
}

fn names() -> Vec<Step> {
    let link = |from, to| Step::Link { from: path(from), to: path(to) };
    let rename = |from, to| Step::Rename { from: path(from), to: path(to) };
    let exchange = |from, to| Step::Exchange { from: path(from), to: path(to) };
    let symlink = |at, len| Step::Symlink { path: path(at), len };
    let setxattr = |at, len| Step::SetXattr { path: path(at), len };
    let chattr = |at, flag| Step::Chattr { path: path(at), flag };
    vec![
        Step::Create(path("/A/n")),
        Step::Create(path("/B/n")),
        Step::Nameless,
        Step::LinkNameless(path("/B/t")),
        link("/A/f", "/B/l"),
        link("/B/g", "/A/n"),
        Step::Unlink(path("/A/f")),
        Step::Unlink(path("/B/g")),
        Step::Unlink(path("/A/n")),
        rename("/A/f", "/B/f"),
        rename("/A/f", "/B/g"),
        rename("/B/g", "/A/f"),
        rename("/A/n", "/A/f"),
        rename("/B/d", "/A/d"),
        rename("/A", "/B/d"),
        exchange("/A/f", "/B/g"),
        exchange("/A/f", "/B/d"),
        symlink("/A/n", 10),
        symlink("/B/s", 300),
        Step::Mkdir(path("/A/n")),
        Step::Mkdir(path("/B/d/e")),
        Step::Rmdir(path("/B/d")),
        setxattr("/A/f", 30),
        setxattr("/A/f", 500),
        setxattr("/B/d", 300),
        Step::RemoveXattr(path("/A/f")),
        Step::RemoveXattr(path("/B/g")),
        Step::Chmod(path("/A/f")),
        Step::Chmod(path("/B")),
        Step::Chown(path("/B/g")),
        Step::Touch(path("/A/f")),
        chattr("/A/f", Flag::NoDump),
        chattr("/A/f", Flag::Append),
        chattr("/B/g", Flag::Immutable),
    ]
}

/// What may come between two operations; the first is nothing.
fn between() -> Vec<Vec<Step>> {
    vec![
        vec![],
        vec![Step::Commit],
        vec![Step::WriteBack],
        vec![Step::Fsync(Slot::F)],
        vec![Step::Fdatasync(Slot::G)],
        vec![Step::Sync],
        vec![Step::Sync, Step::Sweep],
    ]
}

/// What comes behind the last operation.
fn tails() -> Vec<Vec<Step>> {
    vec![
        vec![Step::Fsync(Slot::F), Step::Commit, Step::Sync],
        vec![Step::Fdatasync(Slot::F), Step::Fsync(Slot::G)],
        vec![Step::WriteBack, Step::Sweep, Step::Fsync(Slot::F)],
        vec![Step::Commit, Step::WriteBack, Step::Commit, Step::Checkpoint],
        vec![Step::WriteBack, Step::Checkpoint, Step::FsyncDir(path("/A")), Step::Sync],
        // Those that the operations make. A step on a file that there is not must fail.
        vec![
            Step::Fdatasync(Slot::N),
            Step::Fsync(Slot::N),
            Step::Fsync(Slot::T),
            Step::FsyncDir(path("/B")),
        ],
    ]
}

/// The workloads of one and of two core operations, by number.
#[derive(Debug)]
pub struct Small {
    operations: Vec<Step>,
    between: Vec<Vec<Step>>,
    tails: Vec<Vec<Step>>,
}

impl Default for Small {
    fn default() -> Self {
        let operations = [operations(), divided()].concat();
        Self { operations, between: between(), tails: tails() }
    }
}

impl Small {
    /// How many there are of one operation; they come first.
    pub fn ones(&self) -> u64 {
        (self.operations.len() * self.tails.len()) as u64
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.ones() * (1 + (self.operations.len() * self.between.len()) as u64)
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Spreads the workloads of two operations, those first that have nothing between: any run of
    /// numbers then has some of every operation.
    pub fn scattered(&self, number: u64) -> u64 {
        // A prime that divides no such number of workloads.
        const STEP: u64 = 7_368_787;
        let layer = self.ones() * self.operations.len() as u64;
        match number.checked_sub(self.ones()) {
            None => number,
            Some(number) => {
                let (at, within) = (number / layer, number % layer);
                self.ones() + at * layer + within.wrapping_mul(STEP) % layer
            }
        }
    }

    /// The workload of a number.
    pub fn get(&self, number: u64) -> Option<Workload> {
        if number >= self.len() {
            return None;
        }
        let (tails, operations) = (self.tails.len(), self.operations.len());
        // Workloads of one operation come first.
        let before = number.checked_sub(self.ones());
        let at = usize::try_from(before.unwrap_or(number)).ok()?;
        let (tail, last, at) = (at % tails, at / tails % operations, at / tails / operations);
        let mut steps = Vec::new();
        if before.is_some() {
            steps.push(self.operations[at % operations].clone());
            steps.extend(self.between[at / operations].iter().cloned());
        }
        steps.push(self.operations[last].clone());
        steps.extend(self.tails[tail].iter().cloned());
        Some(Workload(steps))
    }

    /// A workload of `operations` core operations, made of a seed.
    pub fn sample(&self, seed: u64, operations: usize) -> Workload {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut steps = Vec::new();
        for _ in 0..operations {
            steps.extend(self.operations.choose(&mut rng).cloned());
            if rng.random() {
                steps.extend(self.between.choose(&mut rng).into_iter().flatten().cloned());
            }
        }
        steps.extend(self.tails.choose(&mut rng).into_iter().flatten().cloned());
        Workload(steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_workload_has_a_number_and_a_text() {
        let small = Small::default();
        let numbers: HashSet<u64> = (0..small.len()).map(|n| small.scattered(n)).collect();
        assert_eq!(numbers.len() as u64, small.len());
        assert!(small.get(small.len()).is_none());
        for number in (0..small.len()).step_by(97) {
            let workload = small.get(number).unwrap();
            assert_eq!(workload.to_string().parse::<Workload>().unwrap(), workload);
        }
        let sampled = small.sample(7, 5);
        assert_eq!(sampled, small.sample(7, 5));
        assert_eq!(sampled.to_string().parse::<Workload>().unwrap(), sampled);
    }
}
