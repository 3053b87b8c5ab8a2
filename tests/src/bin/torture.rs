//! The campaigns of crashes and of failing I/O as a program: `torture --help`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a campaign fails by panic")]

use lanefs_tests::campaign::{
    Began, Case, Depth, Explore, Explorer, Fault, FaultDepth, FaultExplorer, Finding, Outcome, Progress,
    Setting, Small, explore_all, minimise, setting, settings,
};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const HELP: &str = "\
torture: runs workloads, cuts the power everywhere or fails every I/O once, and judges what is left.

  torture                 all workloads of one and of two operations, in every setting
  torture --night         samples of three to eight operations, without end
  torture --faults        every read, write, flush and discard of every workload fails, in every way, one in a run
  torture --case 'CASE'   one case, as a finding prints it; with --faults --fault 'FAULT' one failure of it

  --settings A,B          only these settings
  --ones                  only workloads of one operation
  --seconds N             ends after N seconds, and goes on from there the next time
  --findings N            ends after N findings (20)
  --jobs N                threads (all cores)
  --folder DIR            what was done (target/torture)
  --small N, --random N   states of an epoch beside its prefixes (60), random ones (4)
  --e2fsck N              every Nth state is judged by e2fsck too (2000)
  --again N               the recovery of every Nth state is cut too (500)
  --per-case N            with --faults: at most N failures of a case, drawn from all
  --seed N                of all samples (1)

The exit status is 1 if anything was found, now or before.
";

struct Args {
    night: bool,
    faults: bool,
    fault: Option<Fault>,
    per_case: usize,
    ones: bool,
    case: Option<String>,
    settings: Option<String>,
    seconds: Option<u64>,
    findings: u64,
    jobs: usize,
    folder: PathBuf,
    depth: Depth,
}

impl Args {
    fn fault_depth(&self) -> FaultDepth {
        let Depth { e2fsck_every, seed, .. } = self.depth;
        FaultDepth { per_case: self.per_case, e2fsck_every, seed, only: self.fault }
    }

    fn explore(&self, cases: &[Case]) -> Outcome {
        match self.faults {
            true => explore_all(cases, self.jobs, || FaultExplorer::new(self.fault_depth())),
            false => explore_all(cases, self.jobs, || Explorer::new(self.depth)),
        }
    }

    fn minimise(&self, finding: Finding) -> Finding {
        // Every state may count by now, and e2fsck is slow.
        let e2fsck_every = self.depth.e2fsck_every.min(16);
        let fault_depth = FaultDepth { e2fsck_every, per_case: usize::MAX, ..self.fault_depth() };
        match self.faults {
            true => minimise(finding, || FaultExplorer::new(fault_depth)),
            false => minimise(finding, || Explorer::new(Depth { e2fsck_every, ..self.depth })),
        }
    }
}

fn args() -> Result<Args, String> {
    let mut args = Args {
        night: false,
        faults: false,
        fault: None,
        per_case: usize::MAX,
        ones: false,
        case: None,
        settings: None,
        seconds: None,
        findings: 20,
        jobs: std::thread::available_parallelism().map_or(1, usize::from),
        folder: PathBuf::from("target/torture"),
        depth: Depth { small: 60, random: 4, e2fsck_every: 2000, again_every: 500, seed: 1 },
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut text = || words.next().ok_or_else(|| format!("{word} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|e| format!("{word} {text}: {e}"));
        match word.as_str() {
            "--night" => args.night = true,
            "--faults" => args.faults = true,
            "--fault" => args.fault = Some(text()?.parse()?),
            "--per-case" => args.per_case = number(text()?)? as usize,
            "--ones" => args.ones = true,
            "--case" => args.case = Some(text()?),
            "--settings" => args.settings = Some(text()?),
            "--seconds" => args.seconds = Some(number(text()?)?),
            "--findings" => args.findings = number(text()?)?,
            "--jobs" => args.jobs = number(text()?)? as usize,
            "--folder" => args.folder = PathBuf::from(text()?),
            "--small" => args.depth.small = number(text()?)? as usize,
            "--random" => args.depth.random = number(text()?)? as usize,
            "--e2fsck" => args.depth.e2fsck_every = number(text()?)?.max(1),
            "--again" => args.depth.again_every = number(text()?)?.max(1),
            "--seed" => args.depth.seed = number(text()?)?,
            "--help" => return Err(HELP.into()),
            _ => return Err(format!("{word}: no such option\n\n{HELP}")),
        }
    }
    Ok(args)
}

fn main() -> ExitCode {
    // A panic is a finding, and printed as one.
    std::panic::set_hook(Box::new(|_| {}));
    let args = match args() {
        Ok(args) => args,
        Err(said) => {
            eprintln!("{said}");
            return ExitCode::from(2);
        }
    };
    let done = match &args.case {
        Some(text) if args.faults => {
            replay(text, FaultExplorer::new(FaultDepth { e2fsck_every: 1, ..args.fault_depth() }))
        }
        Some(text) => replay(text, Explorer::new(Depth { e2fsck_every: 1, ..args.depth })),
        None => campaign(&args),
    };
    done.unwrap_or_else(|said| {
        eprintln!("{said}");
        ExitCode::from(2)
    })
}

/// Runs one case with all that e2fsck has to say.
fn replay(text: &str, mut explorer: impl Explore) -> Result<ExitCode, String> {
    let case: Case = text.parse()?;
    let explored = explorer.explore(&case);
    let count = explorer.count();
    println!("{} failed I/Os, {} states, {} by e2fsck", count.faults, count.states, count.e2fsck);
    match explored {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(finding) => {
            println!("{finding}");
            Ok(ExitCode::FAILURE)
        }
    }
}

/// The cases of a campaign, by number.
struct Cases {
    small: Small,
    settings: Vec<&'static str>,
    night: bool,
    ones: bool,
    seed: u64,
}

impl Cases {
    fn len(&self) -> u64 {
        let workloads = match (self.night, self.ones) {
            (true, _) => return u64::MAX,
            (false, true) => self.small.ones(),
            (false, false) => self.small.len(),
        };
        workloads * self.settings.len() as u64
    }

    fn get(&self, number: u64) -> Result<Case, String> {
        let settings = self.settings.len() as u64;
        let name = self.settings[(number % settings) as usize];
        let number = number / settings;
        let workload = match self.night {
            true => self.small.sample(self.seed.wrapping_add(number), 3 + (number % 6) as usize),
            false => self.small.get(self.small.scattered(number)).ok_or("no such workload")?,
        };
        Ok(Case { setting: setting(name)?, workload })
    }
}

impl Args {
    /// Cases of one batch: what is lost if the campaign is ended by force.
    fn batch(&self) -> u64 {
        if self.faults { 32 } else { 256 }
    }
}

fn campaign(args: &Args) -> Result<ExitCode, String> {
    let takes_part = |name: &&str| {
        let fits = |setting: &Setting| args.ones || args.night || !setting.is_slow();
        setting(name).is_ok_and(|setting| fits(setting) && (!args.faults || setting.can_fail()))
    };
    let names: Vec<&'static str> = match &args.settings {
        None => settings().iter().map(|setting| setting.name).filter(takes_part).collect(),
        Some(list) => list.split(',').map(|name| Ok(setting(name)?.name)).collect::<Result<_, String>>()?,
    };
    let of = if args.settings.is_none() { String::new() } else { format!("-{}", names.join("-")) };
    let of = if args.faults { format!("-faults{of}") } else { of };
    let name = match (args.night, args.ones) {
        (true, _) => format!("night-{}{of}", args.depth.seed),
        (false, true) => format!("ones{of}"),
        (false, false) => format!("two{of}"),
    };
    let Args { night, ones, depth: Depth { seed, .. }, .. } = *args;
    let cases = Cases { small: Small::default(), settings: names, night, ones, seed };
    let mut progress = Progress::load(&args.folder, &name).map_err(|e| format!("{name}: {e}"))?;
    let began = Instant::now();
    let (mut told, mut found) = (began, 0);
    let over = |began: Instant| args.seconds.is_some_and(|s| began.elapsed() >= Duration::from_secs(s));
    while progress.next < cases.len() && found < args.findings && !over(began) {
        let end = cases.len().min(progress.next + args.batch());
        let batch: Vec<Case> = (progress.next..end).map(|n| cases.get(n)).collect::<Result<_, _>>()?;
        let at = Began::now();
        let outcome = args.explore(&batch);
        progress.spend(at);
        progress.next = end;
        progress.count.add(outcome.count);
        progress.see(outcome.prints);
        let wanted = args.findings.saturating_sub(found).min(3) as usize;
        for finding in outcome.findings.into_iter().take(wanted) {
            let least = args.minimise(finding);
            println!("{least}\n");
            progress.find(&least).map_err(|e| e.to_string())?;
            found += 1;
        }
        progress.save().map_err(|e| format!("{name}: {e}"))?;
        if told.elapsed() > Duration::from_secs(20) {
            println!("{} of {}; {}", progress.next, cases.len(), progress.summary());
            told = Instant::now();
        }
    }
    println!("{} of {} cases done", progress.next, cases.len());
    println!("{}", progress.summary());
    Ok(if progress.findings == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
