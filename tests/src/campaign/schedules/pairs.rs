//! All pairs of operations on the same file or directory, and samples of more.

use super::super::enumerate::operations;
use super::super::setting::{Setting, settings};
use super::super::step::{Slot, Step, Way};
use super::plan::{Act, Plan};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;

/// Plans by number.
#[derive(Debug)]
pub struct Pairs {
    settings: Vec<&'static Setting>,
    acts: Vec<Act>,
    /// Two acts that meet, by their places in `acts`.
    meeting: Vec<(usize, usize)>,
}

/// Returns the acts that only persist changes of others, and the acts that only read.
fn observers() -> Vec<Act> {
    let path = |path: &str| path.to_owned();
    let steps = [
        Step::Fsync(Slot::F),
        Step::Fdatasync(Slot::F),
        Step::Fsync(Slot::G),
        Step::FsyncDir(path("/A")),
        Step::Sync,
        Step::Commit,
        Step::WriteBack,
        Step::Checkpoint,
        Step::Sweep,
    ];
    let mut all: Vec<Act> = steps.into_iter().map(Act::Do).collect();
    all.push(Act::Read { file: Slot::F, at: 0, len: 7000 });
    all.push(Act::Read { file: Slot::G, at: 500, len: 12_000 });
    all.extend(["/A", "/B"].map(|dir| Act::List(path(dir))));
    all.push(Act::Close);
    all
}

/// The inodes and directories that an act has to do with; `None` for all.
fn touched(act: &Act) -> Option<BTreeSet<String>> {
    let text = act.to_string();
    let mut all = BTreeSet::new();
    for word in text.split_whitespace().skip(1) {
        match word {
            "f" | "g" | "n" | "t" => _ = all.insert(word.to_owned()),
            path if path.starts_with('/') => {
                let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
                all.insert(parent.to_owned());
                all.insert(match path {
                    "/A/f" => "f".into(),
                    "/B/g" => "g".into(),
                    _ => path.to_owned(),
                });
            }
            _ => {}
        }
    }
    let everywhere = matches!(
        act,
        Act::Close
            | Act::Do(
                Step::Sync
                    | Step::Trim
                    | Step::Commit
                    | Step::WriteBack
                    | Step::Checkpoint
                    | Step::Sweep
                    | Step::Nameless
            )
    );
    (!everywhere).then_some(all)
}

fn meet(a: &Act, b: &Act) -> bool {
    match (touched(a), touched(b)) {
        (Some(a), Some(b)) => !a.is_disjoint(&b),
        (None, None) => false,
        _ => true,
    }
}

/// Returns whether a setting is for schedules: others have threads that the scheduler does not see,
/// a mapping of the system, or a device whose alignment the scheduler's device has not. A late
/// write past the page cache extends the file and then writes: its caller keeps others away.
fn is_under_the_scheduler(setting: &Setting) -> bool {
    let is_plain = setting.memory.is_none() && setting.alignment == 1 && !setting.pressure.past;
    // The scheduler knows no sockets.
    let is_plain = is_plain && !setting.nbd;
    // A claim has a thread that never rests: a deadlock of the others would not be seen.
    let is_plain = is_plain && setting.name != "mmp";
    // Only a run looks at attributes: without that it is the setting `small`.
    let is_plain = is_plain && !setting.pressure.looked;
    is_plain && !setting.pressure.poke && setting.shape().free.is_none()
}

/// Returns whether the text of an act has this word.
fn says(act: &Act, word: &str) -> bool {
    act.to_string().split_whitespace().any(|said| said == word)
}

/// Returns whether two acts of two threads are each one step: some are made of several calls.
fn are_single(a: &Act, b: &Act) -> bool {
    let several = |a: &Act, b: &Act| match a {
        // It reads, and then writes.
        Act::Do(Step::Copy { from, .. }) => says(b, &from.to_string()) || names_change(b),
        // It looks at the flags, and then sets them.
        Act::Do(Step::Chattr { .. }) => matches!(b, Act::Do(Step::Chattr { .. })),
        // It looks at the size, and then writes.
        Act::Do(Step::Append { file: file @ (Slot::N | Slot::T), .. }) => says(b, &file.to_string()),
        // Calls by path do not run beside it; these may be done in part when it refuses the rest.
        Act::Close => match b {
            Act::Do(Step::Copy { .. } | Step::Write { way: Way::Dsync, .. }) | Act::Close => true,
            Act::Do(step) => !step.is_of_files(),
            Act::Read { .. } => false,
            Act::List(_) => true,
        },
        _ => false,
    };
    !several(a, b) && !several(b, a)
}

fn names_change(act: &Act) -> bool {
    matches!(act, Act::Do(Step::Create(_) | Step::Nameless))
}

impl Pairs {
    /// The plans of these settings, or of all that the scheduler can run.
    pub fn new(names: Option<&[&str]>) -> Self {
        let wanted = |setting: &&Setting| names.is_none_or(|names| names.contains(&setting.name));
        let settings = settings().iter().filter(|s| is_under_the_scheduler(s)).filter(wanted).collect();
        // The time of a write comes behind its bytes, so that a `touch` may come between.
        let steps = operations().into_iter().filter(|step| !matches!(step, Step::Touch(_)));
        let mut acts: Vec<Act> = steps.map(Act::Do).collect();
        // The operations that move the end of a file move it to another block: not so these.
        acts.extend(["append f 300", "late f 2560 200"].map(|act| act.parse().expect("an act")));
        acts.extend(observers());
        let all = (0..acts.len()).flat_map(|a| (a..acts.len()).map(move |b| (a, b)));
        let meeting =
            all.filter(|(a, b)| meet(&acts[*a], &acts[*b]) && are_single(&acts[*a], &acts[*b])).collect();
        Self { settings, acts, meeting }
    }

    /// How many pairs there are, in how many settings.
    pub fn len(&self) -> (usize, usize) {
        (self.meeting.len(), self.settings.len())
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.settings.is_empty() || self.meeting.is_empty()
    }

    /// The plan of a number. Most are pairs: as many numbers in a row as there are pairs have most
    /// of them.
    ///
    /// # Panics
    /// If there are no pairs.
    pub fn plan(&self, number: u64) -> Plan {
        // A prime that divides no such number of pairs.
        const STEP: u64 = 7_368_787;
        let mut rng = StdRng::seed_from_u64(number);
        let setting = self.settings[(number % self.settings.len() as u64) as usize];
        let (a, b) = self.meeting[(number.wrapping_mul(STEP) % self.meeting.len() as u64) as usize];
        let mut threads = vec![vec![self.acts[a].clone()], vec![self.acts[b].clone()]];
        if rng.random_ratio(1, 4) {
            let act = |rng: &mut StdRng| self.acts.choose(rng).cloned();
            if rng.random() {
                threads.push(act(&mut rng).into_iter().collect());
            }
            for thread in &mut threads {
                if rng.random_ratio(1, 3) {
                    thread.extend(act(&mut rng));
                }
            }
            if threads.len() == 3 && rng.random_ratio(1, 4) {
                threads.push(act(&mut rng).into_iter().collect());
            }
        }
        let single = |at: usize, act: &Act| {
            let others = threads.iter().enumerate().filter(|(other, _)| *other != at);
            others.flat_map(|(_, acts)| acts).all(|other| are_single(act, other))
        };
        let all_single = threads.iter().enumerate().all(|(at, acts)| acts.iter().all(|act| single(at, act)));
        if !all_single {
            threads = vec![vec![self.acts[a].clone()], vec![self.acts[b].clone()]];
        }
        let mut before = Vec::new();
        let uses = |slot: &str| threads.iter().flatten().any(|act| says(act, slot));
        if uses("n") {
            before.push(Step::Create("/A/m".into()));
        }
        if uses("t") || threads.iter().flatten().any(|act| matches!(act, Act::Do(Step::LinkNameless(_)))) {
            before.push(Step::Nameless);
        }
        if rng.random_ratio(1, 3)
            && let Some(Act::Do(step)) = self.acts.choose(&mut rng)
        {
            before.push(step.clone());
        }
        Plan { setting, before, threads }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_its_text() {
        let pairs = Pairs::new(None);
        for number in 0..500 {
            let plan = pairs.plan(number);
            assert_eq!(plan.to_string().parse::<Plan>().unwrap().to_string(), plan.to_string());
        }
    }
}
