//! `lanefs lab`: runs the experiments of `lanefs-lab`, prints tables as they go, and keeps the
//! results.

use crate::failure::{Failure, OrCannot, Res};
use crate::output::Out;
use crate::quote::quoted;
use crate::streams::tell;
use clap::Subcommand;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lanefs_lab::compare::{Change, Kind, compare};
use lanefs_lab::peer::Peer;
use lanefs_lab::plan::Plan;
use lanefs_lab::results::{CaseResult, ExperimentResult, FORMAT, Results};
use lanefs_lab::runner::Watch;
use lanefs_lab::{Machine, Simulated, experiments, model, report, runner, stop, table};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Run the experiments: each decision of the write path, the old way beside the new and the
/// kernel's
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<LabAction>,
    /// Experiments: overwrite, iversion, rangelock, fsync-storm, dioread, or all
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Everything in five minutes
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Longer runs, more of them, and more content
    #[arg(long)]
    full: bool,
    /// Counts of threads to run with, also for the storm
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=10_000))]
    threads: Option<Vec<u64>>,
    /// The disk to measure: a folder on it, or with --erase a block device whose content is lost
    #[arg(long, value_name = "DIR|DEVICE")]
    volume: Option<PathBuf>,
    /// Yes, the content of the device that --volume names may be lost
    #[arg(long, requires = "volume")]
    erase: bool,
    /// Peers to run beside lanefs: kernel-ext4, kernel-xfs, raw, or none. Without it: all that this
    /// machine can run
    #[arg(long, value_name = "PEER,...", value_delimiter = ',')]
    peers: Option<Vec<String>>,
    /// Simulated devices to run on besides: nvme, cloud (a volume of 64k IOPS), rbd (a Ceph image),
    /// disk, or none. Without it: cloud, for the storm alone
    #[arg(long, value_name = "DEVICE,...", value_delimiter = ',')]
    simulate: Option<Vec<String>>,
    /// How often each contender gets its turn
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// Print the results as JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Draw charts in the terminal besides
    #[arg(long)]
    plot: bool,
    /// Keep results.json, report.html, and each chart as SVG and PNG in this folder
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum LabAction {
    /// Hold two runs against each other. Exit code 2 if anything got worse beyond the noise
    Compare {
        /// results.json of the run before
        before: PathBuf,
        /// results.json of the run after
        after: PathBuf,
    },
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        match &self.action {
            Some(LabAction::Compare { before, after }) => held_together(before, after, out),
            None => self.experiments(out),
        }
    }

    fn experiments(self, out: &mut Out) -> Res {
        let chosen = experiments::named(&self.names).map_err(failed)?;
        let plan = self.plan()?;
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // The exit code that a shell gives for a process that a signal ended.
            let code = 128 + usize::try_from(signal).unwrap_or(0);
            signal_hook::flag::register_usize(signal, stop::flag(), code).or_cannot("catch", "signals")?;
        }
        let mut results = Results {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            began: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            command: command(),
            options: options(&plan),
            machine: Machine::this(),
            experiments: Vec::new(),
        };
        for experiment in chosen {
            let mut screen = LabScreen::new(out, self.json, self.plot);
            let result = runner::run(&*experiment, &plan, &mut screen).map_err(failed)?;
            screen.written?;
            results.experiments.push(result);
            if let Some(dir) = &self.report {
                // After each: a run that is ended early has something to show.
                report::write(&results, dir).map_err(failed)?;
            }
        }
        let model = model::predict(&results, &plan);
        // The model leaves out what a signal stops.
        if stop::asked().is_some() {
            return Err(failed(stop::Stopped.into()));
        }
        if let Some(model) = model {
            let mut screen = LabScreen::new(out, self.json, self.plot);
            screen.show(&model);
            screen.written?;
            results.experiments.push(model);
            if let Some(dir) = &self.report {
                report::write(&results, dir).map_err(failed)?;
            }
        }
        if let Some(dir) = &self.report
            && let Some(why) = report::write_png(&results, dir).map_err(failed)?
        {
            tell(format!("lab: no PNG files: {why}"));
        }
        if self.json {
            write!(out, "{}", results.to_json().map_err(failed)?)?;
        } else if let Some(dir) = &self.report {
            writeln!(out, "{}", dir.join("report.html").display())?;
        }
        Ok(())
    }

    fn plan(&self) -> Res<Plan> {
        let given = self.volume.clone().unwrap_or_else(std::env::temp_dir);
        let is_device = std::fs::metadata(&given).is_ok_and(|m| m.file_type().is_block_device());
        let dir = if is_device { std::env::temp_dir() } else { given.clone() };
        if !dir.is_dir() {
            let text = format!(
                "--volume {}: no folder and no block device",
                quoted(dir.as_os_str().as_encoded_bytes())
            );
            return Err(Failure::new(text));
        }
        if is_device && !self.erase {
            let name = quoted(given.as_os_str().as_encoded_bytes());
            return Err(Failure::new(format!(
                "all that is on {name} would be lost: say --erase if it may be"
            )));
        }
        let mut plan = match (self.quick, self.full) {
            (true, _) => Plan::quick(&dir),
            (_, true) => Plan::full(&dir),
            _ => Plan::standard(&dir),
        };
        plan.device = is_device.then_some(given);
        if let Some(names) = &self.simulate {
            plan.simulated = chosen(names, "simulated device", &Simulated::ALL, |device| device.name)?;
            plan.simulate_each = true;
        }
        if let Some(threads) = &self.threads {
            plan.threads.clone_from(threads);
            plan.storm.clone_from(threads);
        }
        if let Some(rounds) = self.rounds {
            plan.rounds = rounds.into();
        }
        Ok(plan.with_peers(&self.peers()?))
    }

    fn peers(&self) -> Res<Vec<Peer>> {
        let Some(names) = &self.peers else { return Ok(Peer::ALL.to_vec()) };
        chosen(names, "peer", &Peer::ALL, |peer| peer.name())
    }
}

/// Returns the items of `all` that `names` names. `none` names none.
fn chosen<T: Copy>(names: &[String], what: &str, all: &[T], name_of: fn(&T) -> &'static str) -> Res<Vec<T>> {
    let known = |name: &String| {
        all.iter().copied().find(|one| name_of(one) == name).ok_or_else(|| {
            let names: Vec<&str> = all.iter().map(name_of).collect();
            Failure::new(format!("there is no {what} '{name}'; there are {}, none", names.join(", ")))
        })
    };
    names.iter().filter(|name| *name != "none").map(known).collect()
}

fn failed(e: Box<dyn std::error::Error + Send + Sync>) -> Failure {
    match stop::asked() {
        Some(signal) => Failure::new("cannot finish the lab: stopped by a signal; nothing is left behind")
            .code(signal as u8),
        None => Failure::new(format!("cannot finish the lab: {e}")),
    }
}

/// Returns the command line, for a shell.
fn command() -> String {
    let plain = |arg: &str| {
        !arg.is_empty() && arg.chars().all(|c| c.is_ascii_alphanumeric() || "-_=,./:+".contains(c))
    };
    let args = std::env::args().skip(1).map(|arg| match plain(&arg) {
        true => arg,
        false => format!("'{}'", arg.replace('\'', r"'\''")),
    });
    ["lanefs".to_owned()].into_iter().chain(args).collect::<Vec<_>>().join(" ")
}

fn options(plan: &Plan) -> BTreeMap<String, String> {
    let list = |of: &[u64]| of.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let peers: Vec<&str> = plan.peers.iter().map(|p| p.name()).collect();
    [
        ("rounds", plan.rounds.to_string()),
        ("seconds", plan.time.as_secs_f64().to_string()),
        ("threads", list(&plan.threads)),
        ("storm", list(&plan.storm)),
        ("content", plan.content.to_string()),
        ("simulated", plan.simulated.iter().map(|d| d.name).collect::<Vec<_>>().join(",")),
        ("peers", peers.join(",")),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// A watcher of a run that shows its progress.
struct LabScreen<'a> {
    out: &'a mut Out,
    silent: bool,
    plot: bool,
    bar: ProgressBar,
    written: Res,
}

impl<'a> LabScreen<'a> {
    fn new(out: &'a mut Out, silent: bool, plot: bool) -> Self {
        Self { out, silent, plot, bar: ProgressBar::hidden(), written: Ok(()) }
    }

    /// Shows an experiment that was computed and not run.
    fn show(&mut self, result: &ExperimentResult) {
        self.begins(&result.name, &result.question, 0);
        result.cases.iter().for_each(|case| self.case_done(case));
        self.ends(result);
    }

    fn say(&mut self, text: &str) {
        if self.silent || self.written.is_err() {
            return;
        }
        let out = &mut *self.out;
        self.written = self.bar.suspend(|| {
            out.write_all(text.as_bytes())?;
            out.flush()
        });
    }
}

impl Watch for LabScreen<'_> {
    fn begins(&mut self, name: &str, question: &str, steps: usize) {
        if std::io::stderr().is_terminal() {
            let style = ProgressStyle::with_template("[{bar:30}] {pos}/{len} eta {eta} {wide_msg}");
            self.bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr());
            self.bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
        }
        self.say(&format!("{name}: {question}\n\n"));
    }

    fn step(&mut self, what: &str) {
        self.bar.set_message(what.to_owned());
        self.bar.inc(1);
    }

    fn case_done(&mut self, case: &CaseResult) {
        self.say(&table::case(case));
        if self.plot {
            for chart in &case.charts {
                self.say(&(table::bars(chart, self.out.width) + "\n"));
            }
        }
    }

    fn ends(&mut self, result: &ExperimentResult) {
        self.bar.finish_and_clear();
        self.say(&(table::findings(result) + "\n"));
    }
}

/// Runs `lanefs lab compare`.
fn held_together(before: &Path, after: &Path, out: &mut Out) -> Res {
    let changes = compare(&read(before)?, &read(after)?);
    if changes.is_empty() {
        return Err(Failure::new("the two runs have no figure in common"));
    }
    let count = |kind| changes.iter().filter(|c| c.kind == kind).count();
    for change in changes.iter().filter(|c| c.kind != Kind::Same) {
        writeln!(out, "{}", line(change))?;
    }
    let (better, worse) = (count(Kind::Better), count(Kind::Worse));
    writeln!(
        out,
        "{} figures: {better} better, {worse} worse, {} without a difference beyond the noise, {} with too few samples",
        changes.len(),
        count(Kind::Same),
        count(Kind::Unknown),
    )?;
    if worse > 0 { Err(Failure::Silent(2)) } else { Ok(()) }
}

fn line(change: &Change) -> String {
    let kind = match change.kind {
        Kind::Better => "better",
        Kind::Worse => "WORSE",
        Kind::Same => "same",
        Kind::Unknown => "unknown",
    };
    format!(
        "{kind:<8}{} {} at {}: {} -> {} (x{:.2}, 95 % within {:.2} and {:.2})",
        change.chart,
        change.series,
        change.at,
        table::figure(change.before),
        table::figure(change.after),
        change.after / change.before,
        change.interval.0,
        change.interval.1,
    )
}

fn read(path: &Path) -> Res<Results> {
    let name = path.as_os_str().as_encoded_bytes();
    let text = std::fs::read_to_string(path).map_err(|e| Failure::cannot("read", name, e))?;
    Results::from_json(&text)
        .map_err(|e| Failure::new(format!("{} is no result of the lab: {e}", quoted(name))))
}
