//! Judges a session against the possible orders of its calls.

use super::super::explore::{check_no_orphans, check_volume, recover, unwinding};
use super::super::model::{Id, Model};
use super::super::model_run::ModelRun;
use super::super::observed::Observed;
use super::super::oracle;
use super::super::run::{Promise, Run, compare};
use super::super::step::Step;
use super::history::{Call, Gave, History};
use super::plan::{Act, Plan};
use super::session;
use crate::Kind;
use lanefs::Error;
use lanefs_sim::{CrashState, Image, Log, OverlayDevice};
use lanefs_sync::schedule::Failure;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Counters of the work done for a plan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Scheduling points.
    pub points: u64,
    /// How often another thread went on.
    pub switches: u64,
    /// Crash states that were recovered and judged.
    pub states: u64,
}

/// Runs a plan by `seed`, and judges it, with about `crashes` crash states of it.
///
/// # Errors
/// A description of the defect.
pub fn try_plan(plan: &Plan, seed: u64, crashes: u64) -> Result<Outcome, String> {
    let (report, history) = session::run(plan, seed);
    match report.failure {
        Some(Failure::Panic(said)) => return Err(format!("panic: {said}")),
        Some(Failure::Deadlock(said) | Failure::Endless(said)) => return Err(said),
        None => {}
    }
    let history = history.ok_or("the session has no end")??;
    let judged = judge(plan, seed, crashes, &history);
    let states = judged.map_err(|said| format!("{said}\ncalls:{}", told(&history.calls)))?;
    Ok(Outcome { points: report.points, switches: report.switches, states })
}

fn told(calls: &[Call]) -> String {
    let line = |call: &Call| {
        let gave = match &call.gave {
            Gave::Done => "done".to_owned(),
            Gave::Bytes(bytes) => format!("{} bytes {:02x?}", bytes.len(), runs(bytes)),
            Gave::Names(names) => format!("{names:?}"),
            Gave::Refused(said) | Gave::NotPermitted(said) => format!("refused: {said}"),
            Gave::NotSupported(said) | Gave::NoSpace(said) => format!("refused: {said}"),
        };
        let (began, ended) = (call.began.point, call.ended.point);
        format!("\n  thread {}, {began}-{ended}: {} ({}): {gave}", call.thread, call.act, call.number)
    };
    calls.iter().map(line).collect()
}

/// Bytes as runs of (length, byte).
fn runs(bytes: &[u8]) -> Vec<(usize, u8)> {
    let mut runs: Vec<(usize, u8)> = Vec::new();
    for byte in bytes {
        match runs.last_mut() {
            Some((len, last)) if last == byte => *len += 1,
            _ => runs.push((1, *byte)),
        }
    }
    runs.truncate(20);
    runs
}

fn judge(plan: &Plan, seed: u64, crashes: u64, history: &History) -> Result<u64, String> {
    // Files without a name that are open at a close are orphans behind it.
    if !plan.has_close() {
        check_no_orphans(plan.setting, &history.closed)?;
    }
    let device = Arc::new(OverlayDevice::new(history.closed.clone()));
    let (again, _) = recover(plan.setting, device).map_err(|said| format!("opened again: {said}"))?;
    check_volume(Arc::new(OverlayDevice::new(history.closed.clone()))).map_err(|e| format!("closed: {e}"))?;
    let mut runs = Vec::new();
    let mut wrong = BTreeSet::new();
    for order in orders(&history.calls) {
        match explain(plan, history, &order, &again) {
            Ok(run) => runs.push(run),
            Err(said) => _ = wrong.insert(format!("{:?}: {said}", numbers(&order))),
        }
    }
    if runs.is_empty() {
        let wrong: Vec<String> = wrong.into_iter().take(6).collect();
        return Err(format!("no order of the calls explains what is there:\n  {}", wrong.join("\n  ")));
    }
    if !plan.setting.crashes {
        return Ok(0);
    }
    let mut rng = StdRng::seed_from_u64(seed);
    let states = history.log.small_states(seed, 6).chain(history.log.crash_states(seed, 2));
    let every = (history.log.entries.len() as u64 / crashes.max(1)).max(1);
    let mut tried = 0;
    for state in states.take_while(|_| crashes > 0) {
        if rng.random_range(0..every) == 0 {
            tried += 1;
            crash(plan, &runs, &state).map_err(|said| format!("{said}\nstate: {state}"))?;
        }
    }
    Ok(tried)
}

fn crash(plan: &Plan, runs: &[Run], state: &CrashState) -> Result<(), String> {
    let (observed, _) = recover(plan.setting, Arc::new(state.device()))?;
    if plan.has_moving_paths() {
        return Ok(());
    }
    let mut wrong = String::new();
    for run in runs {
        match unwinding(|| oracle::judge(run, state.cut, &observed)) {
            Ok(()) => return Ok(()),
            Err(said) => wrong = said,
        }
    }
    Err(wrong)
}

fn numbers(order: &[&Call]) -> Vec<usize> {
    order.iter().map(|call| call.number).collect()
}

/// Returns all orders of the calls that keep the order of calls that did not overlap.
fn orders(calls: &[Call]) -> Vec<Vec<&Call>> {
    let mut all = Vec::new();
    extend(&mut Vec::new(), &calls.iter().collect::<Vec<_>>(), &mut all);
    all
}

fn extend<'c>(so_far: &mut Vec<&'c Call>, left: &[&'c Call], all: &mut Vec<Vec<&'c Call>>) {
    if left.is_empty() {
        all.push(so_far.clone());
        return;
    }
    for (at, call) in left.iter().enumerate() {
        // A thread's calls do not overlap.
        if left.iter().any(|other| other.number != call.number && other.ended.mark < call.began.mark) {
            continue;
        }
        let mut rest = left.to_vec();
        rest.remove(at);
        so_far.push(call);
        extend(so_far, &rest, all);
        so_far.pop();
    }
}

/// Plays the calls in one order on the model, and compares their results and the final volume with
/// it.
fn explain(plan: &Plan, history: &History, order: &[&Call], again: &Observed) -> Result<Run, String> {
    let mut run_model = ModelRun::new(plan.setting.start());
    let (mut promises, mut is_closed) = (Vec::new(), false);
    for (place, call) in (1..).zip(order) {
        promises.push((call.began.mark, Promise::Begun(place)));
        let told = match is_closed {
            false => tell(plan, &mut run_model, place, call),
            true => tell_closed(plan, &mut run_model, place, call),
        };
        told.map_err(|said| format!("{} ({}): {said}", call.act, call.number))?;
        run_model.end_step();
        let step = match &call.act {
            Act::Do(step) => step,
            // All that was accepted before is durable.
            Act::Close => &Step::Sync,
            _ => continue,
        };
        is_closed |= call.act == Act::Close;
        if call.gave == Gave::Done {
            promises.extend(run_model.promises(place, step).into_iter().map(|it| (call.ended.mark, it)));
        }
    }
    if let Some(live) = &history.live {
        compare(live, &run_model.model).map_err(|said| format!("open: {said}"))?;
    }
    compare(again, &run_model.model).map_err(|said| format!("opened again: {said}"))?;
    for (slot, found) in &history.slots {
        let id = run_model.model.slots.get(slot).copied().ok_or_else(|| format!("{slot} is open"))?;
        same_bytes(&run_model.model, id, 0, usize::MAX, found).map_err(|said| format!("{slot}: {said}"))?;
    }
    let last = order.len();
    let all = run_model.promises(last, &Step::Sync);
    promises.extend(all.into_iter().map(|promise| (history.end, promise)));
    // Promises of one mark stay in order.
    promises.sort_by_key(|(mark, _)| *mark);
    let log = Log { base: Image::zeroed(0), entries: Vec::new(), atomic_write: 512 };
    let closed = Image::zeroed(0);
    let ModelRun { names, contents, times, .. } = run_model;
    Ok(Run { log, names, contents, times, promises, closed, aborted: false })
}

/// Returns whether a step that the names allow may be refused so.
fn may_refuse(plan: &Plan, model: &Model, step: &Step, gave: &Gave) -> bool {
    match gave {
        Gave::NotPermitted(_) => model.names.may_forbid(step),
        Gave::NotSupported(_) => !plan.setting.shape().has_extents(),
        _ => false,
    }
}

fn tell(plan: &Plan, run_model: &mut ModelRun, place: usize, call: &Call) -> Result<(), String> {
    match &call.act {
        Act::Do(step) => {
            if may_refuse(plan, &run_model.model, step, &call.gave) {
                return Ok(());
            }
            let mut after = run_model.model.clone();
            match (after.apply(call.number, step), &call.gave) {
                (Some(effect), Gave::Done) => {
                    run_model.model = after;
                    run_model.record(place, step, effect);
                    Ok(())
                }
                (None, Gave::Refused(_) | Gave::NotPermitted(_) | Gave::NotSupported(_)) => Ok(()),
                (Some(_), gave) => Err(format!("it would be done: {gave:?}")),
                (None, gave) => Err(format!("it would be refused: {gave:?}")),
            }
        }
        Act::Read { file, at, len } => {
            let id = run_model.model.slots.get(file).copied().ok_or("there is no such file")?;
            let Gave::Bytes(bytes) = &call.gave else { return Err("it would be done".into()) };
            same_bytes(&run_model.model, id, *at, *len, bytes)
        }
        Act::Close if call.gave == Gave::Done => Ok(()),
        Act::Close => Err(format!("it would be done: {:?}", call.gave)),
        Act::List(path) => match (names_in(&run_model.model, path), &call.gave) {
            (None, Gave::Refused(_)) => Ok(()),
            (Some(names), Gave::Names(found)) if names == *found => Ok(()),
            (names, _) => Err(format!("it would give {names:?}")),
        },
    }
}

/// Holds a call behind a close against the model: files are read as before, and what would change
/// anything is refused.
fn tell_closed(plan: &Plan, run_model: &mut ModelRun, place: usize, call: &Call) -> Result<(), String> {
    let is_refused = call.gave == Gave::Refused(Error::Closed.to_string());
    let is_none = |step: &Step| run_model.model.clone().apply(call.number, step).is_none();
    match &call.act {
        Act::Read { .. } => tell(plan, run_model, place, call),
        Act::Do(Step::Fsync(_) | Step::Fdatasync(_)) if call.gave == Gave::Done => Ok(()),
        Act::Do(step) if matches!(call.gave, Gave::Refused(_)) && is_none(step) => Ok(()),
        _ if is_refused => Ok(()),
        _ => Err(format!("it would be refused: {:?}", call.gave)),
    }
}

/// The names in a directory of the model.
fn names_in(model: &Model, dir: &str) -> Option<BTreeSet<String>> {
    let id = model.names.get(dir)?;
    if model.names.inodes[id].kind != Kind::Directory {
        return None;
    }
    let below = format!("{}/", dir.trim_end_matches('/'));
    let inside = model.names.paths.keys().filter_map(|path| path.strip_prefix(&below));
    Some(inside.filter(|name| !name.is_empty() && !name.contains('/')).map(str::to_owned).collect())
}

fn same_bytes(model: &Model, id: Id, at: usize, len: usize, found: &[u8]) -> Result<(), String> {
    let content = model.contents.get(&id).ok_or("it has no content")?;
    let end = at.saturating_add(len).min(content.len());
    let expected = content.get(at..end).unwrap_or_default();
    if expected == found {
        return Ok(());
    }
    let first = expected.iter().zip(found).position(|(a, b)| a != b);
    Err(format!("{} bytes, not {}; the first other byte is {first:?}", found.len(), expected.len()))
}
