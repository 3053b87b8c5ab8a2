//! All experiments, too short to measure anything: what they count must be right all the same.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panic")]

use lanefs_lab::experiment::Experiment;
use lanefs_lab::load::observed;
use lanefs_lab::plan::Plan;
use lanefs_lab::results::{CaseResult, Chart, Detail, ExperimentResult, FORMAT, Origin, Results};
use lanefs_lab::runner::{Unwatched, run};
use lanefs_lab::shared_writes::{DIRECT_OVERWRITE, OPERATIONS};
use lanefs_lab::store::{Handle, filled, mapped};
use lanefs_lab::{Machine, Simulated, experiments, model, report};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

/// Returns a plan with everything once or twice, and too short to measure anything.
fn tiny(dir: &Path) -> Plan {
    Plan {
        rounds: 2,
        time: Duration::from_millis(10),
        warm_up: Duration::from_millis(1),
        threads: vec![1, 2],
        storm: vec![8],
        content: 8 << 20,
        small_logs: true,
        simulated: Simulated::ALL.to_vec(),
        ..Plan::standard(dir)
    }
}

/// One run of all experiments, for all tests.
static RUN: LazyLock<(Plan, Results)> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    let plan = tiny(dir.path());
    let run = |experiment: &dyn Experiment| run(experiment, &plan, &mut Unwatched).unwrap();
    let mut results = Results {
        format: FORMAT,
        version: "0".to_owned(),
        began: 0,
        command: "lanefs lab <all> & \"more\"".to_owned(),
        options: [].into(),
        machine: Machine::this(),
        experiments: experiments::all().iter().map(|e| run(&**e)).collect(),
    };
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
    results.experiments.extend(model::predict(&results, &plan));
    (plan, results)
});

fn result_of(name: &str) -> (&'static Plan, &'static ExperimentResult) {
    (&RUN.0, RUN.1.experiments.iter().find(|e| e.name == name).unwrap())
}

fn case<'a>(result: &'a ExperimentResult, name: &str) -> &'a CaseResult {
    result.cases.iter().find(|c| c.name == name).unwrap()
}

fn details<'a>(case: &'a CaseResult, series: &str) -> Vec<&'a Detail> {
    let found: Vec<_> = case.details.iter().filter(|d| d.series == series).collect();
    assert!(!found.is_empty(), "{series}");
    found
}

/// A sample of each round at each point, of each contender; figures of others are marked.
fn complete(plan: &Plan, chart: &Chart) {
    assert!(chart.series.len() >= 2, "{}", chart.name);
    for series in &chart.series {
        assert!(!series.points.is_empty());
        if series.origin == Origin::Published {
            assert!(series.source.is_some());
            continue;
        }
        for point in &series.points {
            assert_eq!(point.samples.len(), plan.rounds, "{} {} at {}", chart.name, series.name, point.at);
            assert!(point.min <= point.median && point.median <= point.max && point.min >= 0.0);
        }
    }
}

#[test]
fn overwrites_start_a_handle_each_or_none() {
    let (plan, result) = result_of("overwrite");
    for name in ["direct", "dax"] {
        let case = case(result, name);
        case.charts.iter().for_each(|chart| complete(plan, chart));
        for (series, each) in [("overwrite=nojournal", 0), ("overwrite=journal", 1)] {
            for detail in details(case, series) {
                let writes = detail.counter("overwrites") + detail.counter("overwrites_journalled");
                assert!(writes > 0, "{name}, {series}");
                assert_eq!(detail.counter("overwrites_journalled"), each * writes, "{name}, {series}");
                let handles = detail.counter("handles");
                // Times go to the disk now and then, by handles that belong to no write.
                let others = handles - each * writes;
                assert!(
                    others as f64 <= 64.0 * (1.0 + detail.seconds),
                    "{name}, {series}: {handles} handles for {writes} overwrites"
                );
                assert_eq!(detail.histograms["write_direct"].count, writes, "{name}, {series}");
            }
        }
        let published = case.charts[0].series.iter().filter(|s| s.origin == Origin::Published);
        assert_eq!(published.count(), 2);
    }
    assert_eq!(result.findings.len(), 4);
}

#[test]
fn no_observer_misses_a_change() {
    let (plan, result) = result_of("iversion");
    for name in ["none", "one", "many"] {
        let case = case(result, name);
        complete(plan, &case.charts[0]);
        for series in ["i_version=queried", "i_version=always"] {
            let all = details(case, series);
            let sum = |what: &str| all.iter().map(|d| d.counter(what)).sum::<u64>();
            assert_eq!(sum("changes_missed"), 0, "{name}, {series}");
            if name != "none" {
                assert!(sum("looks") >= sum("changes_due"), "{name}, {series}");
            }
            let journalled = sum("versions_journalled");
            let writes: u64 = all.iter().filter_map(|d| d.histograms.get("write")).map(|h| h.count).sum();
            assert!(writes > 0);
            if series == "i_version=always" {
                assert_eq!(journalled, writes, "{name}");
            } else {
                assert_eq!(journalled, 0, "{name}");
            }
        }
    }
}

#[test]
fn all_locks_were_run() {
    let (plan, result) = result_of("rangelock");
    for case in &result.cases {
        complete(plan, &case.charts[0]);
    }
    let own = |name: &str| {
        let chart = &case(result, name).charts[0];
        chart.series.iter().filter(|s| s.origin == Origin::Measured).count()
    };
    assert_eq!(["best", "worst", "buffered", "direct"].map(own), [3; 4]);
}

/// Each experiment that has a device runs its modes on a simulated one too, if that is asked for.
#[test]
fn every_experiment_runs_on_a_simulated_device() {
    let dir = tempfile::tempdir().unwrap();
    let simulated = vec![Simulated::RBD];
    let plan = Plan { rounds: 1, simulated, simulate_each: true, ..tiny(dir.path()) };
    for experiment in experiments::all() {
        let wanted: &[&str] = match experiment.name() {
            "overwrite" => &["direct-rbd"],
            "iversion" => &["none-rbd", "one-rbd", "many-rbd"],
            "rangelock" => &["buffered-rbd", "direct-rbd"],
            "fsync-storm" => &["rbd"],
            _ => &["beside-rbd"],
        };
        let result = run(&*experiment, &plan, &mut Unwatched).unwrap();
        let is_simulated = |chart: &Chart| chart.series.iter().any(|s| s.origin == Origin::Simulated);
        let cases: Vec<_> = result.cases.iter().filter(|case| is_simulated(&case.charts[0])).collect();
        assert_eq!(cases.iter().map(|case| &*case.name).collect::<Vec<_>>(), wanted);
        cases.iter().flat_map(|case| &case.charts).for_each(|chart| complete(&plan, chart));
    }
}

#[test]
fn the_storm_counts_what_it_did() {
    let (plan, result) = result_of("fsync-storm");
    let played = ["nvme", "cloud", "rbd", "disk"].map(|name| (name, Origin::Simulated));
    for (name, origin) in [("modes", Origin::Measured)].into_iter().chain(played) {
        let case = case(result, name);
        for chart in &case.charts {
            complete(plan, chart);
            let mut own = chart.series.iter().filter(|s| s.origin != Origin::Published);
            assert!(own.all(|s| s.origin == origin), "{name}");
        }
        for detail in &case.details {
            let of = |what: &str| &detail.histograms[what];
            let rounds = plan.rounds as u64;
            assert!(
                of("fsync").count > 0 && of("write").count >= of("fsync").count,
                "{name}, {}",
                detail.series
            );
            // The files of each round.
            assert_eq!(of("open").count, rounds * detail.at, "{name}, {}", detail.series);
            let buckets: u64 = of("fsync").buckets.iter().map(|b| b.2).sum();
            assert_eq!(buckets, of("fsync").timed);
            assert!(
                detail.counter("credits_used")
                    <= detail.counter("credits_asked") + detail.counter("credits_overdrawn")
            );
            assert!(detail.counter("commits") > 0);
        }
    }
    assert!(
        result.findings.iter().all(|said| said.contains("waiting for") || said.contains("credits")),
        "{:?}",
        result.findings
    );
}

#[test]
fn readers_and_writers_both_get_on() {
    let (plan, result) = result_of("dioread");
    let case = case(result, "beside");
    case.charts[..1].iter().for_each(|chart| complete(plan, chart));
    for detail in &case.details {
        let reads = detail.histograms.get("read_direct").map_or(0, |h| h.count);
        let writes = detail.histograms.get("write").map_or(0, |h| h.count);
        assert!(reads + writes > 0, "{}", detail.series);
    }
}

#[test]
fn the_model_tells_its_error() {
    let (_, result) = result_of("model");
    assert!(
        result.findings.iter().filter(|said| said.contains("off by")).count() >= 4,
        "{:?}",
        result.findings
    );
    for case in &result.cases {
        let of = |origin| case.charts[0].series.iter().filter(|s| s.origin == origin).count();
        // No source measured the operations in memory.
        let published = case.name == "operations" || of(Origin::Published) > 0;
        assert!(of(Origin::Predicted) > 0 && published, "{}", case.name);
    }
}

#[test]
fn every_operation_is_predicted_from_the_bound_of_its_shared_writes() {
    let (plan, result) = result_of("model");
    assert_eq!(result.left_out, [""; 0]);
    // One core hands no line over.
    let cores = RUN.1.machine.cores;
    assert_eq!(result.cases.iter().any(|case| case.name == "operations"), cores >= 2);
    for operation in OPERATIONS.iter().filter(|_| cores >= 2) {
        let is_direct = operation.name == DIRECT_OVERWRITE.name;
        let (case_name, name) = match is_direct {
            true => ("overwrite", "overwrite=nojournal, dax"),
            false => ("operations", operation.name),
        };
        let chart = &case(result, case_name).charts[0];
        let of = |origin| chart.series.iter().find(|s| s.name == name && s.origin == origin).unwrap();
        let (measured, predicted) = (of(Origin::Measured), of(Origin::Predicted));
        let rate = |cores| predicted.at(cores).unwrap().median;
        let alone = measured.at(1).unwrap().median;
        assert!((rate(1) / alone - 1.0).abs() < 1e-9, "{name}: {} of {alone}", rate(1));
        assert!(rate(256) < 256.0 * alone, "{name}: {} of {alone}", rate(256));
        assert!(measured.at(2).is_some(), "{name}");
        let bound = format!(", at most {} hand-overs: off by ", operation.shared_writes);
        let said = |finding: &String| finding.starts_with(&format!("{name}: ")) && finding.contains(&bound);
        assert!(result.findings.iter().any(said), "{name}{bound}: {:?}", result.findings);
        let whole = measured.points.iter().all(|point| point.samples.len() == plan.rounds);
        assert!(is_direct || whole, "{name}");
    }
}

/// A file whose i_version does not change with its content.
struct Deaf(Box<dyn Handle>);

impl Handle for Deaf {
    fn write(&self, at: u64, data: &[u8]) -> std::io::Result<()> {
        self.0.write(at, data)
    }
    fn read(&self, at: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.0.read(at, buf)
    }
    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.0.set_len(len)
    }
    fn sync(&self) -> std::io::Result<()> {
        self.0.sync()
    }
    fn sync_data(&self) -> std::io::Result<()> {
        self.0.sync_data()
    }
    fn look(&self) -> Option<u64> {
        Some(7)
    }
}

#[test]
fn observers_see_each_change_and_would_tell_if_not() {
    const SIZE: u64 = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let options = lanefs::OpenOptions::new().dax(false);
    let store = mapped(&dir.path().join("v"), 256 << 20, options).unwrap();
    let file = filled(&*store, 1, SIZE, false).unwrap().remove(0);
    // However the threads are scheduled: until some changes were there to be seen.
    let watch = |file: &dyn Handle| {
        let (mut due, mut missed) = (0, 0);
        while due < 20 {
            let seen = observed(file, SIZE, 1, 2, Duration::from_millis(20)).unwrap();
            due += seen.due;
            missed += seen.missed;
        }
        (due, missed)
    };
    assert_eq!(watch(&*file).1, 0);
    let (due, missed) = watch(&Deaf(file));
    assert_eq!(due, missed);
    store.finish().unwrap();
}

/// Measures the report in two frames, a desktop's as it is opened and a phone's with all details
/// unfolded, and writes what it saw into the page.
const JUDGE: &str = r#"<!DOCTYPE html><meta charset="utf-8"><iframe id="d" style="width:1440px;height:900px;border:0"></iframe>
<iframe id="f" style="width:390px;height:844px;border:0"></iframe>
<pre id="said"></pre><script>
const said = [], desktop = document.getElementById("d"), frame = document.getElementById("f");
desktop.onload = () => {
  said.push("desktop " + desktop.contentDocument.documentElement.scrollHeight);
  frame.srcdoc = desktop.srcdoc;
};
frame.onload = () => {
  if (!frame.srcdoc) return;
  const doc = frame.contentDocument;
  doc.querySelectorAll("details").forEach(d => d.open = true);
  said.push("width " + doc.documentElement.scrollWidth);
  for (const flat of doc.querySelectorAll("[data-flat]")) said.push(["flat", flat.dataset.flat, flat.querySelector("p").textContent].join("\t"));
  for (const svg of doc.querySelectorAll("svg[data-chart], svg[data-heat]")) {
    const box = svg.getBoundingClientRect();
    const whole = box.width > 200 && box.height > 50 && box.left >= 0 && box.right <= 390;
    const marks = [...svg.querySelectorAll("circle, rect[data-count], rect[data-value]")];
    const seen = marks.filter(m => { const b = m.getBoundingClientRect(); return b.width > 1 && b.height > 1 && b.right <= 390; });
    const series = [...svg.querySelectorAll("[data-series]")].map(s => s.dataset.series);
    said.push(["chart", svg.dataset.chart || svg.dataset.heat, whole, marks.length, seen.length, series.join("|")].join("\t"));
  }
  said.push("loaded " + frame.contentWindow.performance.getEntriesByType("resource").length);
  document.getElementById("said").textContent = said.join("\n");
};
desktop.srcdoc = REPORT;
</script>"#;

/// The page as the browser has it when all is loaded.
fn browsed(dir: &Path, page: &str) -> String {
    let path = dir.join("judge.html");
    std::fs::write(&path, page).unwrap();
    // A PID namespace ends with its first process: when this returns, no child of the browser
    // writes to the folder any more.
    let mut command = Command::new("unshare");
    command.env("TMPDIR", dir).args([
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "timeout",
        "600",
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--dump-dom",
    ]);
    command.arg(format!("--user-data-dir={}", dir.join("profile").display()));
    command.arg("--virtual-time-budget=10000").arg(format!("file://{}", path.display()));
    let out = command.output().expect("chromium; `make test` installs what it lacks");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        out.status.success(),
        "{command:?}: {}{text}{}",
        out.status,
        String::from_utf8_lossy(&out.stderr)
    );
    text
}

#[test]
fn a_phone_shows_every_chart_with_its_data_and_a_desktop_the_answers_on_six_screens() {
    let results = &RUN.1;
    if let Some(keep) = std::env::var_os("LANEFS_KEEP_REPORT") {
        report::write(results, Path::new(&keep)).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    report::write(results, dir.path()).unwrap();
    let html = std::fs::read_to_string(dir.path().join("report.html")).unwrap();
    for outside in ["http://", "https://", "src=", "@import", "url("] {
        let found = html.replace("http://www.w3.org/2000/svg", "").contains(outside);
        assert!(!found, "the report would load something: {outside}");
    }
    // As a string of JavaScript, in a script of HTML.
    let string = serde_json::to_string(&html).unwrap().replace("</", "<\\/");
    let dom = browsed(dir.path(), &JUDGE.replace("REPORT", &string));
    let said = dom.split("<pre id=\"said\">").nth(1).and_then(|rest| rest.split("</pre>").next()).unwrap();
    let said = said.replace("&amp;", "&");
    let lines: Vec<&str> = said.lines().collect();
    let measured = |line: usize, what| lines[line].strip_prefix(what).and_then(|n| n.parse::<u32>().ok());
    let height = measured(0, "desktop ");
    assert!(height.is_some_and(|h| (900..=6 * 900).contains(&h)), "six screens at most: {said}");
    let width = measured(1, "width ");
    // Without the scroll bar that some browsers draw.
    assert!(width.is_some_and(|w| (300..=390).contains(&w)), "{said}");
    assert_eq!(lines.last(), Some(&"loaded 0"), "{said}");
    let charts: Vec<Vec<&str>> =
        lines.iter().filter_map(|l| l.strip_prefix("chart\t")).map(|l| l.split('\t').collect()).collect();
    for chart in results.charts().filter(|c| !c.series.is_empty()) {
        assert!(dir.path().join(chart.name.replace('/', "-") + ".svg").is_file());
        let flat = format!("flat\t{}\t", chart.name);
        if let Some(said) = lines.iter().find_map(|l| l.strip_prefix(&flat)) {
            assert!(chart.series.iter().all(|s| said.contains(&s.name)), "{}: {said}", chart.name);
            continue;
        }
        let line =
            charts.iter().find(|l| l[0] == chart.name).unwrap_or_else(|| panic!("no {}: {said}", chart.name));
        let marks: usize = chart.series.iter().map(|s| s.points.len()).sum();
        let names: BTreeSet<&str> = chart.series.iter().map(|s| &*s.name).collect();
        // Bars name a series at each place.
        let named: BTreeSet<&str> = line[4].split('|').collect();
        assert_eq!(named, names, "{}", chart.name);
        assert_eq!(line[1..4], ["true", &marks.to_string(), &marks.to_string()], "{}", chart.name);
    }
    for heat in ["open", "write", "fsync", "journal_start"] {
        let line = charts.iter().find(|l| l[0] == format!("fsync-storm/modes/{heat}")).unwrap();
        assert!(line[1] == "true" && line[2] == line[3] && line[2] != "0", "{line:?}");
        assert!(heat == "open" || line[4].contains("ext4 dioread_nolock (004)"), "{line:?}");
    }
}
