//! The ways in which a volume's data can be handled. What is right must be right in every one of them.
//!
//! Judges of data run under each of [`modes`]. `LANEFS_MODE` picks one by name.

use lanefs::OpenOptions;
use std::fmt;
use std::time::Duration;

/// One set of options.
#[derive(Debug, Clone)]
pub struct Mode {
    name: &'static str,
    options: OpenOptions,
}

impl Mode {
    /// Options to open a volume for writing, without a commit timer.
    pub fn options(&self) -> OpenOptions {
        self.options.clone()
    }

    /// Its name, as `LANEFS_MODE` takes it.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// All modes, or the one that `LANEFS_MODE` names.
///
/// # Panics
/// If it names none.
pub fn modes() -> Vec<Mode> {
    let mut modes = all();
    if let Ok(wanted) = std::env::var("LANEFS_MODE") {
        let names: Vec<_> = modes.iter().map(Mode::name).collect();
        assert!(names.contains(&wanted.as_str()), "LANEFS_MODE={wanted}: there are {names:?}");
        modes.retain(|mode| mode.name == wanted);
    }
    modes
}

fn all() -> Vec<Mode> {
    let base = OpenOptions::new().write(true).commit_interval(Duration::ZERO);
    vec![Mode { name: "default", options: base }]
}
