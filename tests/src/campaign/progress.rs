//! The progress of a campaign, kept in a folder, so that the campaign can resume.

use super::distinct::Distinct;
use super::explore::Count;
use serde_json::json;
use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

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
    distinct: Distinct,
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
        Ok(Self {
            folder: folder.to_path_buf(),
            name: name.to_owned(),
            next: number("next"),
            count: Count {
                cases: number("cases"),
                states: number("states"),
                faults: number("faults"),
                e2fsck: number("e2fsck"),
            },
            findings: number("findings"),
            seconds: saved["seconds"].as_f64().unwrap_or(0.0),
            distinct: Distinct::load(&folder.join(format!("{name}.distinct")))?,
        })
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
            "faults": self.count.faults,
            "distinct": self.distinct.estimate(),
            "e2fsck": self.count.e2fsck,
            "findings": self.findings,
            "seconds": self.seconds,
        });
        self.distinct.save(&self.folder.join(format!("{}.distinct", self.name)))?;
        // In one step, so that an interrupted campaign has the one or the other.
        let (new, file) = (self.folder.join(".new"), self.folder.join(format!("{}.json", self.name)));
        std::fs::write(&new, format!("{saved:#}\n"))?;
        std::fs::rename(new, file)
    }

    /// One line.
    pub fn summary(&self) -> String {
        let Count { cases, states, faults, e2fsck } = self.count;
        let rate = states as f64 / self.seconds.max(0.001);
        let what = match faults {
            0 => format!("{} distinct", self.distinct.estimate()),
            _ => format!("after {faults} failed I/Os"),
        };
        format!(
            "{}: {cases} cases, {states} states ({what}, {e2fsck} by e2fsck), {rate:.0} states/s, {} findings",
            self.name, self.findings
        )
    }
}
