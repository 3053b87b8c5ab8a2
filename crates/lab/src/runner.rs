//! Runs experiments: every contender gets its turn in each round, so that a machine whose speed
//! changes is fair to all.

use crate::answer::answer;
use crate::experiment::{Case, Entry, Experiment, Measurement, Rig, Setup};
use crate::plan::Plan;
use crate::results::{CaseResult, Chart, Detail, ExperimentResult, Origin, Point, Series, Verdict};
use crate::{Outcome, stop};

/// A receiver of the progress of a run.
pub trait Watch {
    /// Notes that an experiment begins, which takes `steps` steps.
    fn begins(&mut self, name: &str, question: &str, steps: usize);
    /// Notes that the next step is taken.
    fn step(&mut self, what: &str);
    /// Notes that all rounds of a case are over.
    fn case_done(&mut self, case: &CaseResult);
    /// Notes that the experiment is over.
    fn ends(&mut self, result: &ExperimentResult);
}

/// Ignores the progress.
#[derive(Debug)]
pub struct Unwatched;

impl Watch for Unwatched {
    fn begins(&mut self, _: &str, _: &str, _: usize) {}
    fn step(&mut self, _: &str) {}
    fn case_done(&mut self, _: &CaseResult) {}
    fn ends(&mut self, _: &ExperimentResult) {}
}

/// Runs all cases of an experiment.
///
/// # Errors
/// The first of a contender, with its name. A peer that cannot be set up is left out instead, with
/// its reason.
pub fn run(experiment: &dyn Experiment, plan: &Plan, watch: &mut dyn Watch) -> Outcome<ExperimentResult> {
    let mut cases = experiment.cases(plan);
    for case in &mut cases {
        case.contenders.retain(|c| c.peer.is_none_or(|peer| plan.peers.contains(&peer)));
    }
    let steps = cases.iter().map(|c| c.contenders.len() * c.points.len() * plan.rounds).sum();
    watch.begins(experiment.name(), experiment.question(), steps);
    let mut result = ExperimentResult {
        name: experiment.name().to_owned(),
        question: experiment.question().to_owned(),
        answers: Vec::new(),
        cases: Vec::new(),
        left_out: plan.left_out.clone(),
        findings: Vec::new(),
    };
    for case in cases {
        let (gain, versus) = (case.gain, case.versus.first().copied());
        let done = run_case(experiment.name(), case, plan, watch, &mut result.left_out)?;
        result.answers.extend(versus.and_then(|pair| answer_of(&done, gain, pair)));
        watch.case_done(&done);
        result.cases.push(done);
    }
    result.findings = experiment.findings(&result.cases);
    watch.ends(&result);
    Ok(result)
}

/// Holds the new way against the old one in the case's first chart.
fn answer_of(case: &CaseResult, gain: &str, (this, that): (&str, &str)) -> Option<String> {
    let chart = case.charts.first()?;
    let of = |v: &&Verdict| v.chart == chart.name && v.this == this && v.that == that;
    answer(&case.title, gain, chart, &case.verdicts.iter().filter(of).collect::<Vec<_>>())
}

/// The figures of a contender: the samples of each metric at each point, and the counters there.
struct Tally {
    samples: Vec<Vec<Vec<f64>>>,
    details: Vec<Detail>,
}

fn run_case(
    experiment: &str,
    mut case: Case,
    plan: &Plan,
    watch: &mut dyn Watch,
    left_out: &mut Vec<String>,
) -> Outcome<CaseResult> {
    let own = tempfile::Builder::new().prefix("lanefs-lab").tempdir_in(&plan.dir)?;
    let memory = tempfile::Builder::new().prefix("lanefs-lab").tempdir_in(&plan.memory)?;
    let setup = Setup::new(plan, own.path().to_owned(), memory.path().to_owned(), case.backing)?;
    let mut tallies: Vec<Tally> = case
        .contenders
        .iter()
        .map(|entry| Tally {
            samples: vec![vec![Vec::new(); case.points.len()]; case.metrics.len()],
            details: (case.points.iter())
                .map(|at| Detail { series: entry.name.to_owned(), at: *at, ..Detail::default() })
                .collect(),
        })
        .collect();
    let count = case.contenders.len();
    let mut failed = vec![false; count];
    for round in 0..plan.rounds {
        // Each contender begins a round once: the first of a round finds the disk in another state
        // than the others.
        for number in (0..count).map(|place| (place + round) % count) {
            let (Some(entry), false) = (case.contenders.get(number), failed[number]) else { continue };
            if let Err(e) = turn(&case, entry, plan, &setup, &mut tallies[number], watch) {
                // A peer that was stopped has not failed.
                stop::check()?;
                if entry.peer.is_none() {
                    return Err(format!("{experiment}, {}, {}: {e}", case.name, entry.name).into());
                }
                left_out.push(format!("{} of {}: {e}", entry.name, case.title));
                failed[number] = true;
            }
        }
    }
    let mut failed_there = failed.iter();
    case.contenders.retain(|_| !failed_there.next().is_some_and(|failed| *failed));
    let mut failed_there = failed.iter();
    tallies.retain(|_| !failed_there.next().is_some_and(|failed| *failed));
    Ok(result(experiment, &case, tallies))
}

/// Runs one contender's turn of a round.
fn turn(
    case: &Case,
    entry: &Entry,
    plan: &Plan,
    setup: &Setup,
    tally: &mut Tally,
    watch: &mut dyn Watch,
) -> Outcome<()> {
    let mut rig: Option<Box<dyn Rig>> = None;
    for (number, &at) in case.points.iter().enumerate() {
        stop::check()?;
        watch.step(&format!("{}: {}, {at} {}", case.title, entry.name, case.axis));
        let ready = match rig.take() {
            Some(ready) => ready,
            None => {
                let new = (entry.set_up)(setup)?;
                new.run(at, plan.warm_up)?;
                new
            }
        };
        let Measurement { values, detail } = ready.run(at, plan.time * case.patience)?;
        for (samples, value) in tally.samples.iter_mut().zip(values) {
            samples[number].extend(value.filter(|v| v.is_finite()));
        }
        tally.details[number].add(detail);
        if case.fresh { ready.finish()? } else { rig = Some(ready) }
    }
    rig.map_or(Ok(()), Rig::finish)
}

fn result(experiment: &str, case: &Case, tallies: Vec<Tally>) -> CaseResult {
    let mut charts: Vec<Chart> = (case.metrics.iter())
        .map(|metric| Chart {
            name: format!("{experiment}/{}/{}", case.name, metric.name),
            title: format!("{}: {}", case.title, metric.title),
            axis: case.axis.to_owned(),
            unit: metric.unit.to_owned(),
            better: metric.better,
            series: Vec::new(),
        })
        .collect();
    let mut details = Vec::new();
    for (entry, tally) in case.contenders.iter().zip(tallies) {
        for (chart, samples) in charts.iter_mut().zip(tally.samples) {
            let points = case.points.iter().zip(samples).filter(|(_, s)| !s.is_empty());
            let points: Vec<Point> = points.map(|(at, samples)| Point::new(*at, samples)).collect();
            if !points.is_empty() {
                let origin = if entry.device.is_some() { Origin::Simulated } else { Origin::Measured };
                let source = entry.device.map(|device| format!("simulated {device}"));
                chart.series.push(Series { name: entry.name.to_owned(), origin, source, points });
            }
        }
        details.extend(tally.details);
    }
    let mut verdicts = Vec::new();
    for (this, that) in &case.versus {
        for chart in &charts {
            let (Some(a), Some(b)) = (chart.own(this), chart.own(that)) else { continue };
            for point in &a.points {
                if let Some(other) = b.at(point.at).filter(|p| p.median != 0.0) {
                    verdicts.push(Verdict::new(&chart.name, (this, point), (that, other)));
                }
            }
        }
    }
    for (metric, series) in &case.published {
        if let Some(chart) = charts.get_mut(*metric) {
            chart.series.push(series.clone());
        }
    }
    CaseResult { name: case.name.clone(), title: case.title.clone(), charts, details, verdicts }
}
