//! Job files of fio: words, one a line, in sections.

use std::path::Path;

/// A word of a job file, with the value that it gets; `None` takes the word out.
pub(crate) type Change = (&'static str, Option<String>);

/// Returns the value of a word.
pub(crate) fn set(value: impl ToString) -> Option<String> {
    Some(value.to_string())
}

/// Returns the changes for a peer, with its files in `folder`.
pub(crate) fn psync(folder: Option<&Path>) -> Vec<Change> {
    vec![
        ("ioengine", set("psync")),
        ("volume", None),
        ("mount_options", None),
        ("directory", folder.map(|folder| folder.display().to_string())),
    ]
}

/// Returns the job file with the changes, of which a later one prevails. A word that the file lacks
/// comes into its first section.
pub(crate) fn changed(text: &str, changes: &[Change]) -> String {
    let word = |line: &str| line.split('=').next().map(str::to_owned).unwrap_or_default();
    let mut lines: Vec<String> =
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
    for (name, value) in changes {
        lines.retain(|line| word(line) != *name);
        if let Some(value) = value {
            let at = lines.iter().position(|line| line.starts_with('[')).map_or(0, |at| at + 1);
            lines.insert(at, format!("{name}={value}"));
        }
    }
    lines.join("\n") + "\n"
}

/// Returns the number of jobs that the file says, 1 where it says none.
pub(crate) fn numjobs(text: &str) -> usize {
    text.lines().find_map(|line| line.strip_prefix("numjobs=")?.parse().ok()).unwrap_or(1)
}
