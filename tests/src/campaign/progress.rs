//! The progress of a campaign, kept in a folder, so that the campaign can resume.

use super::distinct::Distinct;
use super::explore::Count;
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;
use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Counts and findings of a campaign. Every batch is saved: a campaign that is ended by force loses
/// one batch.
#[derive(Debug)]
pub struct Progress {
    folder: PathBuf,
    name: String,
    /// The number of the next unit of work.
    pub next: u64,
    /// The counters of the work done.
    pub count: Count,
    /// Findings so far, including those of earlier runs.
    pub findings: u64,
    /// Seconds that it took so far.
    pub seconds: f64,
    /// Of them, those of a processor, over all threads of this process.
    pub cpu_seconds: f64,
    distinct: Distinct,
}

/// The start of some work.
#[derive(Debug, Clone, Copy)]
pub struct Began {
    at: Instant,
    cpu_seconds: f64,
}

impl Began {
    /// Starts now.
    pub fn now() -> Self {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        Self { at: Instant::now(), cpu_seconds: cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9 }
    }
}

impl Progress {
    /// Goes on with the campaign `name` in `folder`, or begins it.
    ///
    /// # Errors
    /// The system's; a file that was not written by [`save`](Self::save).
    pub fn load(folder: &Path, name: &str) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let file = folder.join(format!("{name}.json"));
        let saved = match std::fs::read(&file) {
            Ok(bytes) => serde_json::from_slice(&bytes)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => json!({}),
            Err(e) => return Err(e),
        };
        let number = |key: &str| saved[key].as_u64().unwrap_or(0);
        let seconds = saved["seconds"].as_f64().unwrap_or(0.0);
        Ok(Self {
            folder: folder.to_path_buf(),
            name: name.to_owned(),
            next: number("next"),
            count: Count {
                cases: number("cases"),
                states: number("states"),
                recoveries: number("recoveries"),
                faults: number("faults"),
                e2fsck: number("e2fsck"),
            },
            findings: number("findings"),
            seconds,
            cpu_seconds: saved["cpu_seconds"].as_f64().unwrap_or(seconds),
            distinct: Distinct::load(&folder.join(format!("{name}.distinct")))?,
        })
    }

    /// Adds the time since `began`.
    pub fn spend(&mut self, began: Began) {
        self.seconds += began.at.elapsed().as_secs_f64();
        self.cpu_seconds += Began::now().cpu_seconds - began.cpu_seconds;
    }

    /// Takes in the fingerprints of states.
    pub fn see(&mut self, prints: impl IntoIterator<Item = u64>) {
        prints.into_iter().for_each(|print| self.distinct.insert(print));
    }

    /// Takes in a finding, and appends it to the list of the folder.
    ///
    /// # Errors
    /// The system's.
    pub fn find(&mut self, finding: &dyn fmt::Display) -> io::Result<()> {
        self.findings += 1;
        let path = self.folder.join(format!("{}.findings", self.name));
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        writeln!(file, "{finding}\n")
    }

    /// Writes all of it to the folder.
    ///
    /// # Errors
    /// The system's.
    pub fn save(&self) -> io::Result<()> {
        let saved = json!({
            "next": self.next,
            "cases": self.count.cases,
            "states": self.count.states,
            "recoveries": self.count.recoveries,
            "faults": self.count.faults,
            "distinct": self.distinct.estimate(),
            "e2fsck": self.count.e2fsck,
            "findings": self.findings,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
        });
        self.distinct.save(&self.folder.join(format!("{}.distinct", self.name)))?;
        // In one step, so that an interrupted campaign has the one or the other.
        let (new, file) = (self.folder.join(".new"), self.folder.join(format!("{}.json", self.name)));
        std::fs::write(&new, format!("{saved:#}\n"))?;
        std::fs::rename(new, file)
    }

    /// One line.
    pub fn summary(&self) -> String {
        let Count { cases, states, recoveries, faults, e2fsck } = self.count;
        let per = |seconds: f64| states as f64 / seconds.max(0.001);
        let (rate, cpu_rate) = (per(self.seconds), per(self.cpu_seconds));
        let what = match faults {
            0 => format!("{} distinct, {recoveries} recoveries", self.distinct.estimate()),
            _ => format!("after {faults} failed I/Os"),
        };
        format!(
            "{}: {cases} cases, {states} states ({what}, {e2fsck} by e2fsck), {rate:.0} states/s, \
             {cpu_rate:.0} a second of one core, {} findings",
            self.name, self.findings
        )
    }
}
