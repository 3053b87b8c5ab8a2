//! Writes the tables of docs/performance.md from the JSON of the benchmarks.
//!
//! `make bench-all` runs it last. What stands between the two marks of the document is replaced; a
//! benchmark without a file in `target/bench` keeps its section.

use clap::Parser;
use lanefs_bench::cases;
use lanefs_bench::report::{figure as digits, folder};
use lanefs_lab::Outcome;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

const BEGIN: &str = "<!-- tables: made by `make bench-all` -->\n";
const END: &str = "<!-- end of tables -->\n";

/// The sections, in the order of the document, and what each begins with.
const SECTIONS: [(&str, &str); 11] = [
    ("foundation", "Volumes and names"),
    ("images", "Images"),
    ("write-path", "The write path"),
    ("fsync", "fsync"),
    ("fio", "The published jobs, by fio"),
    ("scale", "Cost against size"),
    ("mount", "The mount"),
    ("remote", "Volumes on a server"),
    ("check", "The check"),
    ("journal", "The journal"),
    ("rangelock", "The range lock"),
];

/// Makes the tables of the document from target/bench/*.json
#[derive(Debug, Parser)]
struct Args {
    /// The document
    #[arg(default_value = "docs/performance.md")]
    document: PathBuf,
}

fn main() -> ExitCode {
    cases::end("tables", start(&Args::parse()))
}

fn start(Args { document }: &Args) -> Outcome<()> {
    let text = fs::read_to_string(document)?;
    let without = || format!("{}: the marks of the tables are missing", document.display());
    let (head, rest) = text.split_once(BEGIN).ok_or_else(without)?;
    let (old, tail) = rest.split_once(END).ok_or_else(without)?;
    let mut sections = earlier(old);
    for (name, title) in SECTIONS {
        let path = folder().join(format!("{name}.json"));
        if path.exists() {
            let report: Value = serde_json::from_str(&fs::read_to_string(path)?)?;
            sections.insert(title.to_owned(), section(title, &report)?);
        }
    }
    let tables: String =
        SECTIONS.iter().filter_map(|(_, title)| sections.get(*title)).fold(String::new(), |all, s| all + s);
    fs::write(document, format!("{head}{BEGIN}\n{tables}{END}{tail}"))?;
    println!("{}", document.display());
    Ok(())
}

/// The sections that the document has, by title.
fn earlier(tables: &str) -> BTreeMap<String, String> {
    tables
        .split("\n## ")
        .skip(1)
        .filter_map(|section| {
            let (title, _) = section.split_once('\n')?;
            Some((title.to_owned(), format!("## {section}\n").replace("\n\n\n", "\n\n")))
        })
        .collect()
}

/// One benchmark: where and how it ran, its rows, its targets.
fn section(title: &str, report: &Value) -> Outcome<String> {
    let mut out = String::new();
    let machine = &report["machine"];
    writeln!(
        out,
        "## {title}\n\n`{}` on commit {}: {}, {} cores, {} GiB, Linux {}.\n",
        word(&report["command"])?,
        word(&report["commit"])?,
        word(&machine["cpu"]).unwrap_or("a processor without a name"),
        machine["cores"],
        gibibytes(word(&machine["memory"])?)?,
        word(&machine["kernel"])?.split('-').next().unwrap_or_default(),
    )?;
    let rows = report["rows"].as_array().ok_or("no rows")?;
    for table in tables(rows)? {
        table.write(&mut out)?;
    }
    targets(&mut out, report["targets"].as_array().ok_or("no targets")?)?;
    Ok(out)
}

/// Cases that have the same variants stand in one table, a column for each variant.
#[derive(Debug)]
struct Table<'r> {
    variants: Vec<&'r str>,
    lines: Vec<Line<'r>>,
}

/// A case at one number of threads.
#[derive(Debug)]
struct Line<'r> {
    case: &'r str,
    threads: u64,
    unit: &'r str,
    cells: Vec<(&'r str, String)>,
}

fn tables(rows: &[Value]) -> Outcome<Vec<Table<'_>>> {
    let mut lines: Vec<Line> = Vec::new();
    for row in rows {
        let (case, unit) = (word(&row["case"])?, word(&row["unit"])?);
        let threads = row["threads"].as_u64().ok_or("threads")?;
        let cell = (word(&row["variant"])?, cell(row)?);
        match lines.iter_mut().find(|l| (l.case, l.threads, l.unit) == (case, threads, unit)) {
            Some(line) => line.cells.push(cell),
            None => lines.push(Line { case, threads, unit, cells: vec![cell] }),
        }
    }
    let mut tables: Vec<Table> = Vec::new();
    for line in lines {
        let variants: Vec<&str> = line.cells.iter().map(|(variant, _)| *variant).collect();
        match tables.iter_mut().find(|t| t.variants == variants) {
            Some(table) => table.lines.push(line),
            None => tables.push(Table { variants, lines: vec![line] }),
        }
    }
    Ok(tables)
}

impl Table<'_> {
    fn write(&self, out: &mut String) -> Outcome<()> {
        writeln!(out, "| | threads | {} |", self.variants.join(" | "))?;
        writeln!(out, "|---|---|{}", "---|".repeat(self.variants.len()))?;
        for line in &self.lines {
            let cells: Vec<&str> = line.cells.iter().map(|(_, cell)| cell.as_str()).collect();
            let unit = if line.unit.is_empty() { String::new() } else { format!(", {}", line.unit) };
            writeln!(out, "| {}{unit} | {} | {} |", line.case, line.threads, cells.join(" | "))?;
        }
        Ok(writeln!(out)?)
    }
}

/// The median, and behind `±` half the distance from the least to the most.
fn cell(row: &Value) -> Outcome<String> {
    let number = |key: &str| row[key].as_f64().ok_or_else(|| format!("{key} of a row"));
    let (median, spread) = (number("value")?, (number("max")? - number("min")?) / 2.0);
    Ok(if spread == 0.0 { figure(median) } else { format!("{} ± {}", figure(median), figure(spread)) })
}

fn targets(out: &mut String, targets: &[Value]) -> Outcome<()> {
    if targets.is_empty() {
        return Ok(());
    }
    writeln!(out, "| target | goal | got | |\n|---|---|---|---|")?;
    for target in targets {
        let got = target["got"].as_f64().ok_or("got of a target")?;
        let met = if target["met"].as_bool().ok_or("met of a target")? { "met" } else { "**missed**" };
        writeln!(
            out,
            "| {} | {} | {} | {met} |",
            word(&target["what"])?,
            word(&target["goal"])?,
            figure(got)
        )?;
    }
    Ok(writeln!(out)?)
}

/// As on the terminal, but millions and hundreds of thousands in short.
fn figure(value: f64) -> String {
    match value.abs() {
        a if a >= 1e6 => format!("{:.2} M", value / 1e6),
        a if a >= 1e5 => format!("{:.0} k", value / 1e3),
        _ => digits(value),
    }
}

/// Of `24684096 kB`, as /proc/meminfo has it.
fn gibibytes(memory: &str) -> Outcome<u64> {
    let kib = memory.strip_suffix(" kB").and_then(|n| n.parse::<u64>().ok());
    Ok(kib.ok_or_else(|| format!("not a size of memory: {memory}"))?.div_ceil(1 << 20))
}

fn word(value: &Value) -> Outcome<&str> {
    value.as_str().ok_or_else(|| format!("{value}: a string is missing").into())
}
