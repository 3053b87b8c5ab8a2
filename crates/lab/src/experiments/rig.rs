//! Contenders that are files of a [`Store`], and something that runs on them.

use crate::counted::counted;
use crate::experiment::{Case, Entry, Measurement, Rig, Setup};
use crate::hist::Hist;
use crate::peer::Peer;
use crate::plan::Plan;
use crate::results::Detail;
use crate::store::{Contender, Handle, Store, lanefs, simulated};
use crate::{Outcome, Simulated};
use ::lanefs::OpenOptions;
use std::rc::Rc;
use std::time::Duration;

/// A mode of lanefs: its name in tables, and the options that it changes.
pub(super) type LanefsMode = (&'static str, fn(OpenOptions) -> OpenOptions);

/// Open files of a store, by number.
pub(super) type Files = Vec<Box<dyn Handle>>;

/// The result of a loop: values, and its own timings.
#[derive(Debug, Default)]
pub(super) struct Ran {
    pub(super) values: Vec<Option<f64>>,
    pub(super) timed: Vec<(&'static str, Hist)>,
    pub(super) counted: Vec<(&'static str, u64)>,
    /// How long it ran, where that is not all of the time that it took.
    pub(super) seconds: Option<f64>,
}

impl Ran {
    pub(super) fn rate(value: f64) -> Self {
        Self { values: vec![Some(value)], ..Self::default() }
    }
}

type LayOut = dyn Fn(&dyn Store, &Setup) -> Outcome<Files>;
type Loop = dyn Fn(&dyn Store, &Files, u64, Duration) -> Outcome<Ran>;
type Derive = dyn Fn(u64, &Detail) -> Vec<Option<f64>>;

/// The part that all contenders of a case share.
#[derive(Clone)]
pub(super) struct Work {
    lay_out: Rc<LayOut>,
    run: Rc<Loop>,
    /// Further values, from what the volume counted; none where there is nothing counted.
    derive: Rc<Derive>,
}

impl Work {
    pub(super) fn new(
        lay_out: impl Fn(&dyn Store, &Setup) -> Outcome<Files> + 'static,
        run: impl Fn(&dyn Store, &Files, u64, Duration) -> Outcome<Ran> + 'static,
    ) -> Self {
        Self { lay_out: Rc::new(lay_out), run: Rc::new(run), derive: Rc::new(|_, _| Vec::new()) }
    }

    pub(super) fn derive(self, derive: impl Fn(u64, &Detail) -> Vec<Option<f64>> + 'static) -> Self {
        Self { derive: Rc::new(derive), ..self }
    }

    /// Returns a mode of lanefs on the backing file.
    pub(super) fn own(&self, contender: Contender) -> Entry {
        let work = self.clone();
        Entry::own(contender.name, move |setup| work.rig(contender.set_up(setup.backing()?)?, setup))
    }

    /// Returns modes of lanefs on the backing file, with a journal of `log` MiB.
    pub(super) fn modes(&self, modes: &[LanefsMode], log: u32) -> Vec<Entry> {
        modes.iter().map(|&(name, change)| self.own(lanefs(name, log, change))).collect()
    }

    /// Returns a case of modes on the backing file, and the same modes on each simulated device
    /// that is asked for.
    pub(super) fn and_simulated(&self, plan: &Plan, case: Case, modes: &[LanefsMode], log: u32) -> Vec<Case> {
        let devices = if plan.simulate_each { &plan.simulated[..] } else { &[] };
        let size = case.backing;
        let entry = |device: Simulated, (name, change): LanefsMode| {
            let open = move |_: &Setup| simulated(device.pace, size, log, change(OpenOptions::new()));
            self.elsewhere(name, open).simulated(device.title)
        };
        let on = |device: &Simulated| Case {
            name: format!("{}-{}", case.name, device.name),
            title: format!("{}, on a simulated {}", case.title, device.title),
            axis: case.axis,
            points: case.points.clone(),
            metrics: case.metrics.clone(),
            backing: 0,
            fresh: case.fresh,
            patience: case.patience * device.patience,
            contenders: modes.iter().map(|mode| entry(*device, *mode)).collect(),
            gain: case.gain,
            versus: case.versus.clone(),
            // Those of the case are of other devices.
            published: Vec::new(),
        };
        let on_each: Vec<Case> = devices.iter().map(on).collect();
        std::iter::once(case).chain(on_each).collect()
    }

    /// Returns an entry of another program, on the backing file.
    pub(super) fn peer(&self, peer: Peer, contender: Contender) -> Entry {
        Entry { peer: Some(peer), ..self.own(contender) }
    }

    /// Returns a mode of lanefs that needs no backing file.
    pub(super) fn elsewhere(
        &self,
        name: &'static str,
        open: impl Fn(&Setup) -> Outcome<Box<dyn Store>> + 'static,
    ) -> Entry {
        let work = self.clone();
        Entry::own(name, move |setup| work.rig(open(setup)?, setup))
    }

    fn rig(&self, store: Box<dyn Store>, setup: &Setup) -> Outcome<Box<dyn Rig>> {
        let (laid, before) = counted(&*store, || (self.lay_out)(&*store, setup))?;
        Ok(Box::new(OnStore { files: laid, before, work: self.clone(), store }))
    }
}

struct OnStore {
    // Before the store: files are closed first.
    files: Files,
    /// What laying them out cost.
    before: Detail,
    work: Work,
    store: Box<dyn Store>,
}

impl Rig for OnStore {
    fn run(&self, point: u64, time: Duration) -> Outcome<Measurement> {
        let (ran, mut detail) =
            counted(&*self.store, || (self.work.run)(&*self.store, &self.files, point, time))?;
        let mut values = ran.values;
        detail.seconds = ran.seconds.unwrap_or(detail.seconds);
        if self.store.volume().is_some() {
            values.extend((self.work.derive)(point, &detail));
        }
        // Files are opened when they are laid out.
        if let Some(open) = self.before.histograms.get("open") {
            detail.histograms.insert("open".to_owned(), open.clone());
        }
        // What the loop timed is timed each time, and for all stores alike.
        detail.histograms.extend(ran.timed.into_iter().map(|(name, hist)| (name.to_owned(), hist)));
        detail.counters.extend(ran.counted.into_iter().map(|(name, n)| (name.to_owned(), n)));
        Ok(Measurement { values, detail })
    }

    fn finish(self: Box<Self>) -> Outcome<()> {
        drop(self.files);
        self.store.finish()
    }
}
