//! The modes of handling a volume's data. Correct behaviour is the same in every mode.
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

/// The mode of this name, whatever `LANEFS_MODE` says.
pub(crate) fn mode(name: &str) -> Option<Mode> {
    all().into_iter().find(|mode| mode.name == name)
}

/// Name, mount options, and bytes of the page cache: a small one is always under pressure. Every
/// option meets others of both kinds.
const MODES: &[(&str, &str, Option<usize>)] = &[
    ("default", "", None),
    ("old", "locking=inode,overwrite=journal,i_version=always,dioread_lock,nodelalloc", None),
    ("nolock", "locking=range-mutex,dioread_nolock", None),
    ("lock", "dioread_lock,overwrite=journal,discard", Some(SMALL)),
    ("pressed", "locking=inode,nodelalloc", Some(SMALL)),
    ("unwritten", "dioread_nolock,nodelalloc,i_version=always,discard", Some(SMALL)),
];

const SMALL: usize = 256 << 10;

fn all() -> Vec<Mode> {
    let mode = |(name, words, cache): &(&'static str, &str, Option<usize>)| {
        let base = OpenOptions::new().write(true).commit_interval(Duration::ZERO);
        let options = base.mount_options(words).expect("mount options");
        let options = cache.map_or(options.clone(), |bytes| options.cache_bytes(bytes));
        Mode { name, options }
    };
    MODES.iter().map(mode).collect()
}
