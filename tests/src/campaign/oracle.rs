//! The crash oracle: the exact set of states that a crash may leave of a run.
//!
//! Operations on names are atomic and in order. So names and inodes are as after one step, between
//! the last synced step and the last begun step. [`Tracked`](crate::Tracked) judges contents, given
//! that step: every truncation up to it is done, and no size is from a later step.
//! [`KnownTimes`](super::times::KnownTimes) judges times and versions, given the same step.

use super::model::Id;
use super::observed::{Found, Observed};
use super::run::{Promise, Run};
use crate::promises::Known;
use std::collections::BTreeMap;

/// The promises in force at a cut.
#[derive(Debug, Default)]
struct Promised {
    begun: usize,
    names: usize,
    contents: BTreeMap<Id, usize>,
    times: BTreeMap<Id, usize>,
    /// The step that has synced the space of a file, and the sectors.
    space: BTreeMap<Id, (usize, u64)>,
}

impl Promised {
    fn at(run: &Run, cut: usize) -> Self {
        let mut promised = Self::default();
        let raise = |steps: &mut BTreeMap<Id, usize>, id: Id, step: usize| {
            let known = steps.entry(id).or_default();
            *known = step.max(*known);
        };
        for (_, promise) in run.promises.iter().take_while(|(at, _)| *at < cut) {
            match *promise {
                Promise::Begun(step) => promised.begun = promised.begun.max(step),
                Promise::Names(step) => promised.names = promised.names.max(step),
                Promise::Content(file, step) => raise(&mut promised.contents, file, step),
                Promise::Times(id, step) => raise(&mut promised.times, id, step),
                Promise::Space(file, step, sectors) => _ = promised.space.insert(file, (step, sectors)),
            }
        }
        promised
    }
}

/// Judges what was found after a crash behind the first `cut` entries of the log.
///
/// # Errors
/// Why it is none of the states that a crash may leave.
pub(super) fn judge(run: &Run, cut: usize, observed: &Observed) -> Result<(), String> {
    let promised = Promised::at(run, cut);
    let mut wrong = String::new();
    for named in promised.names..=promised.begun {
        // Steps that change no names say the same again, and judge contents more leniently.
        match judge_after(run, &promised, named, observed) {
            Ok(()) => return Ok(()),
            Err(said) => wrong.push_str(&format!("\n  not as after step {named}: {said}")),
        }
    }
    Err(format!("a state that cannot be (step {} had begun):{wrong}", promised.begun))
}

fn judge_after(run: &Run, promised: &Promised, named: usize, observed: &Observed) -> Result<(), String> {
    let names = run.names.get(named).ok_or("no such step")?;
    for (id, found) in observed.compare(names)? {
        let path = || names.path_of(id).unwrap_or("?");
        let told = |said: String| format!("{}: {said}", path());
        let known = |synced: &BTreeMap<Id, usize>| {
            let synced = synced.get(&id).copied().unwrap_or(0);
            Known { synced, named, begun: promised.begun }
        };
        run.times.judge(id, &found.times, known(&promised.times)).map_err(told)?;
        judge_space(run, promised, id, found).map_err(told)?;
        let Some(contents) = run.contents.get(&id) else { continue };
        contents.judge_named(&found.content, known(&promised.contents)).map_err(told)?;
    }
    Ok(())
}

/// Judges the space of a file that was synced, and that no later step has begun to change. Only
/// this tells of a preallocation that is lost: the file reads the same without it.
fn judge_space(run: &Run, promised: &Promised, id: Id, found: &Found) -> Result<(), String> {
    let Some(&(step, sectors)) = promised.space.get(&id) else { return Ok(()) };
    let later = step + 1..=promised.begun;
    let may_differ = run.aborted
        || run.times.has_changed(id, &later)
        || run.contents.get(&id).is_some_and(|contents| contents.has_changed(&later));
    match may_differ || found.sectors == sectors {
        true => Ok(()),
        false => Err(format!("{} sectors, and step {step} has synced {sectors}", found.sectors)),
    }
}
