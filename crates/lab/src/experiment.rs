//! What an experiment is: cases, each of contenders that are run at points of an axis, in turn.

use crate::Outcome;
use crate::peer::Peer;
use crate::plan::Plan;
use crate::results::{Better, CaseResult, Detail, Series};
use crate::store::Backing;
use std::path::PathBuf;
use std::time::Duration;

/// A question, and the cases that answer it.
pub trait Experiment {
    /// Returns the name, as on the command line.
    fn name(&self) -> &'static str;

    /// Returns the question, a sentence that ends with a question mark.
    fn question(&self) -> &'static str;

    /// Returns the cases to run.
    fn cases(&self, plan: &Plan) -> Vec<Case>;

    /// Returns the findings, in words.
    fn findings(&self, cases: &[CaseResult]) -> Vec<String>;
}

/// Contenders that are run at the same points.
pub struct Case {
    /// Unique in its experiment.
    pub name: String,
    /// For people.
    pub title: String,
    /// What the points are.
    pub axis: &'static str,
    /// Where contenders are run.
    pub points: Vec<u64>,
    /// What each run gives, in the order of [`Measurement::values`].
    pub metrics: Vec<Metric>,
    /// Bytes of the backing file; none if 0.
    pub backing: u64,
    /// Whether a contender is set up anew for each point.
    pub fresh: bool,
    /// How much longer than others its runs are.
    pub patience: u32,
    /// In the order in which they get their turns.
    pub contenders: Vec<Entry>,
    /// What the first of `versus` has and the second has not, in words: "without a handle".
    pub gain: &'static str,
    /// Names of contenders to hold against each other, the pair that answers the question first.
    pub versus: Vec<(&'static str, &'static str)>,
    /// Figures of others, with the metric that they belong to.
    pub published: Vec<(usize, Series)>,
}

/// A quantity that a run measures.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Unique in its case.
    pub name: &'static str,
    /// For people; follows the case's title.
    pub title: &'static str,
    /// Of its figures.
    pub unit: &'static str,
    /// Which side is good.
    pub better: Better,
}

/// What contenders are set up on.
#[derive(Debug)]
pub struct Setup {
    /// The file that all have in turn, in cases that want one.
    backing: Option<Backing>,
    /// A folder for whatever else is needed, on the disk that is measured.
    pub dir: PathBuf,
    /// A folder in memory.
    pub memory: PathBuf,
}

impl Setup {
    /// Makes the backing file, if it is to have any bytes.
    ///
    /// # Errors
    /// The errors of writing it.
    pub fn new(plan: &Plan, dir: PathBuf, memory: PathBuf, backing: u64) -> Outcome<Self> {
        let backing = match (&plan.device, backing) {
            (_, 0) => None,
            (Some(device), size) => Some(Backing::on_device(device, size)?),
            (None, size) => Some(Backing::new(&dir, size)?),
        };
        Ok(Self { backing, dir, memory })
    }

    /// Returns the file that all contenders use in turn.
    ///
    /// # Errors
    /// A case that did not ask for one.
    pub fn backing(&self) -> Outcome<&Backing> {
        self.backing.as_ref().ok_or_else(|| "this case has no backing file".into())
    }
}

type RigSetUp = Box<dyn Fn(&Setup) -> Outcome<Box<dyn Rig>>>;

/// A contender of a case.
pub struct Entry {
    /// In tables.
    pub name: &'static str,
    /// The device, if it is a simulated one.
    pub device: Option<&'static str>,
    /// Which peer of lanefs it needs, if any.
    pub peer: Option<Peer>,
    /// How it is set up.
    pub set_up: RigSetUp,
}

impl Entry {
    /// Returns a mode of lanefs.
    pub fn own(name: &'static str, set_up: impl Fn(&Setup) -> Outcome<Box<dyn Rig>> + 'static) -> Self {
        Self { name, device: None, peer: None, set_up: Box::new(set_up) }
    }

    /// Returns an entry of another program.
    pub fn peer(
        peer: Peer,
        name: &'static str,
        set_up: impl Fn(&Setup) -> Outcome<Box<dyn Rig>> + 'static,
    ) -> Self {
        Self { peer: Some(peer), ..Self::own(name, set_up) }
    }

    /// Returns this contender on a simulated device of that name.
    pub fn simulated(self, device: &'static str) -> Self {
        Self { device: Some(device), ..self }
    }
}

/// A contender that is set up.
pub trait Rig {
    /// Runs for `time` at a point of the axis.
    ///
    /// # Errors
    /// The errors of the system or the volume.
    fn run(&self, point: u64, time: Duration) -> Outcome<Measurement>;

    /// Unmounts or closes.
    ///
    /// # Errors
    /// Data that cannot be made durable.
    fn finish(self: Box<Self>) -> Outcome<()>;
}

/// The figures of one run.
#[derive(Debug, Clone, Default)]
pub struct Measurement {
    /// In the order of [`Case::metrics`]; `None` where this contender cannot tell.
    pub values: Vec<Option<f64>>,
    /// The counters. The runner fills in series and point.
    pub detail: Detail,
}
