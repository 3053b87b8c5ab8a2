//! The schedules campaign as a program: `schedules --help`. Built with `--cfg lanefs_schedule`
//! (`make schedules`).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a campaign fails by panic")]

#[cfg(not(lanefs_schedule))]
fn main() -> std::process::ExitCode {
    eprintln!("built without the scheduler: make schedules, or scripts/schedules.sh");
    std::process::ExitCode::from(2)
}

#[cfg(lanefs_schedule)]
fn main() -> std::process::ExitCode {
    campaign::main()
}

#[cfg(lanefs_schedule)]
mod campaign {
    use lanefs_tests::campaign::schedules::{Outcome, Pairs, Plan, try_plan};
    use lanefs_tests::campaign::{Began, Progress};
    use lanefs_tests::{Watchdog, day};
    use std::ops::Range;
    use std::path::PathBuf;
    use std::process::ExitCode;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    const HELP: &str = "\
schedules: runs threads on one volume under a seeded scheduler, cuts the power, and judges what they saw and what is left.

  schedules                       pairs of operations, and samples of more, without end; it goes on where it stopped
  schedules --slice               a slice by the date: LANEFS_SEED=N takes that of another day
  schedules --plan 'PLAN' --seed N   one run again, as a finding prints it

  --settings A,B       only these settings
  --seconds N          ends after N seconds
  --count N            ends after N runs
  --findings N         ends after N findings (20)
  --crashes N          crash states of each run (6)
  --jobs N             runs at the same time (all cores)
  --folder DIR         what was done (target/schedules)
  --runs N             with --plan: N seeds from N on

The exit status is 1 if anything was found, now or before.
";

    struct Args {
        plan: Option<String>,
        slice: bool,
        seed: u64,
        runs: u64,
        settings: Option<String>,
        seconds: Option<u64>,
        count: u64,
        findings: u64,
        crashes: u64,
        jobs: usize,
        folder: PathBuf,
    }

    fn args() -> Result<Args, String> {
        let mut args = Args {
            plan: None,
            slice: false,
            seed: 0,
            runs: 1,
            settings: None,
            seconds: None,
            count: u64::MAX,
            findings: 20,
            crashes: 6,
            jobs: std::thread::available_parallelism().map_or(1, usize::from),
            folder: PathBuf::from("target/schedules"),
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut text = || words.next().ok_or_else(|| format!("{word} needs a value"));
            let number = |text: String| text.parse::<u64>().map_err(|e| format!("{word} {text}: {e}"));
            match word.as_str() {
                "--plan" => args.plan = Some(text()?),
                "--slice" => args.slice = true,
                "--seed" => args.seed = number(text()?)?,
                "--runs" => args.runs = number(text()?)?,
                "--settings" => args.settings = Some(text()?),
                "--seconds" => args.seconds = Some(number(text()?)?),
                "--count" => args.count = number(text()?)?,
                "--findings" => args.findings = number(text()?)?,
                "--crashes" => args.crashes = number(text()?)?,
                "--jobs" => args.jobs = number(text()?)?.max(1) as usize,
                "--folder" => args.folder = PathBuf::from(text()?),
                "--help" => return Err(HELP.into()),
                _ => return Err(format!("{word}: no such option\n\n{HELP}")),
            }
        }
        Ok(args)
    }

    pub(super) fn main() -> ExitCode {
        // A panic is a finding, and printed as one.
        std::panic::set_hook(Box::new(|_| {}));
        let done = args().and_then(|args| match &args.plan {
            Some(text) => replay(text, &args),
            None => campaign(&args),
        });
        done.unwrap_or_else(|said| {
            eprintln!("{said}");
            ExitCode::from(2)
        })
    }

    /// One run, and what it found.
    fn try_run(plan: &Plan, seed: u64, crashes: u64) -> Result<Outcome, String> {
        let _watchdog = Watchdog::new(format!("schedules --plan '{plan}' --seed {seed}"));
        try_plan(plan, seed, crashes).map_err(|said| {
            format!("{said}\nreplay: scripts/schedules.sh --plan '{plan}' --seed {seed} --crashes {crashes}")
        })
    }

    /// The same run twice: the first of a process must not differ from a later one.
    fn try_twice(plan: &Plan, seed: u64, crashes: u64) -> Result<(), String> {
        let (first, second) = (try_run(plan, seed, crashes)?, try_run(plan, seed, crashes)?);
        if first != second {
            return Err(format!("'{plan}' with seed {seed}: {first:?}, and again {second:?}"));
        }
        Ok(())
    }

    fn replay(text: &str, args: &Args) -> Result<ExitCode, String> {
        let plan: Plan = text.parse()?;
        for seed in args.seed..args.seed + args.runs {
            match try_run(&plan, seed, args.crashes) {
                Ok(outcome) if args.runs == 1 => println!("{outcome:?}"),
                Ok(_) => {}
                Err(said) => {
                    println!("{said}");
                    return Ok(ExitCode::FAILURE);
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Runs that once found something: a seed and a plan in a line.
    fn seeds() -> Result<Vec<(u64, Plan)>, String> {
        let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("seeds/schedule.txt");
        let text = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or("").trim());
        let parse = |line: &str| {
            let (seed, plan) = line.split_once(' ').ok_or_else(|| format!("'{line}' is no seed and plan"))?;
            Ok((seed.parse().map_err(|e| format!("{seed}: {e}"))?, plan.parse()?))
        };
        lines.filter(|line| !line.is_empty()).map(parse).collect()
    }

    /// Repeats the runs of seeds/schedule.txt, and counts those that find something again.
    fn repeat_findings(crashes: u64) -> Result<u64, String> {
        let mut found = 0;
        for (seed, plan) in seeds()? {
            if let Err(said) = try_twice(&plan, seed, crashes) {
                println!("{said}\n");
                found += 1;
            }
        }
        Ok(found)
    }

    /// The sums of all runs.
    #[derive(Default)]
    struct Totals {
        points: AtomicU64,
        switches: AtomicU64,
        states: AtomicU64,
    }

    /// Does a run with each of `seeds`, in `args.jobs` threads, until `most` have found something.
    /// Returns how many were done, and the findings.
    fn batch(
        args: &Args,
        pairs: &Pairs,
        seeds: Range<u64>,
        most: u64,
        totals: &Totals,
    ) -> (u64, Vec<String>) {
        let next = AtomicU64::new(seeds.start);
        let (stop, findings) = (AtomicBool::new(false), Mutex::new(Vec::new()));
        let work = || {
            while !stop.load(Ordering::Relaxed) {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= seeds.end {
                    break;
                }
                match try_run(&pairs.plan(seed), seed, args.crashes) {
                    Ok(outcome) => {
                        totals.points.fetch_add(outcome.points, Ordering::Relaxed);
                        totals.switches.fetch_add(outcome.switches, Ordering::Relaxed);
                        totals.states.fetch_add(outcome.states, Ordering::Relaxed);
                    }
                    Err(said) => {
                        let mut findings = findings.lock().unwrap();
                        findings.push(said);
                        stop.store(findings.len() as u64 >= most, Ordering::Relaxed);
                    }
                }
            }
        };
        std::thread::scope(|scope| (0..args.jobs).for_each(|_| drop(scope.spawn(work))));
        let done = next.into_inner().min(seeds.end) - seeds.start;
        (done, findings.into_inner().unwrap())
    }

    /// Runs of one batch: what is lost if the campaign is ended by force.
    const BATCH: u64 = 200;

    fn campaign(args: &Args) -> Result<ExitCode, String> {
        let names: Option<Vec<&str>> = args.settings.as_ref().map(|list| list.split(',').collect());
        let pairs = Pairs::new(names.as_deref());
        if pairs.is_empty() {
            return Err("no such setting for the scheduler".into());
        }
        let (name, first) = match args.slice {
            true => (format!("slice-{}", day()), day().wrapping_mul(1_000_003)),
            false => {
                (args.settings.clone().map_or("all".into(), |list| list.replace(',', "-")), args.seed << 32)
            }
        };
        let mut found = 0;
        if args.slice {
            println!("LANEFS_SEED={}", day());
            found += repeat_findings(args.crashes)?;
        }
        let mut progress = Progress::load(&args.folder, &name).map_err(|e| format!("{name}: {e}"))?;
        let (began, totals) = (Instant::now(), Totals::default());
        let over = || args.seconds.is_some_and(|s| began.elapsed() >= Duration::from_secs(s));
        let (mut told, mut runs) = (began, 0);
        while found < args.findings && runs < args.count && !over() {
            let at = Began::now();
            let end = progress.next + BATCH.min(args.count - runs);
            let states = totals.states.load(Ordering::Relaxed);
            let seeds = first + progress.next..first + end;
            let (done, findings) = batch(args, &pairs, seeds, args.findings - found, &totals);
            (progress.next, runs) = (progress.next + done, runs + done);
            progress.spend(at);
            progress.count.cases += done;
            progress.count.states += totals.states.load(Ordering::Relaxed) - states;
            for said in findings {
                println!("{said}\n");
                progress.find(&said).map_err(|e| e.to_string())?;
                found += 1;
            }
            progress.save().map_err(|e| format!("{name}: {e}"))?;
            if told.elapsed() > Duration::from_secs(20) {
                println!("{}", summary(&progress));
                told = Instant::now();
            }
        }
        let (pairs, settings) = pairs.len();
        let (points, switches) = (totals.points.into_inner(), totals.switches.into_inner());
        println!("{pairs} pairs in {settings} settings; {points} points and {switches} switches this time");
        println!("{}", summary(&progress));
        Ok(if progress.findings + found == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn summary(progress: &Progress) -> String {
        let (runs, states) = (progress.count.cases, progress.count.states);
        let rate = runs as f64 / progress.seconds.max(0.001);
        let findings = progress.findings;
        format!("schedules: {runs} runs ({rate:.0} runs/s), {states} crash states, {findings} findings")
    }
}
