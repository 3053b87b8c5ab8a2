//! Paths of many directories, in memory that grows with their number and not with their depth.

/// A directory, by its number; the root is 0.
pub(crate) type DirId = usize;

/// The longest path that an import or an export takes, in bytes. Directories of a volume nest, and
/// names in an archive grow, without a bound of their own.
pub const PATH_MAX: usize = 512 << 10;

/// Directories, each with its parent and its name there. Paths are put together when asked for.
#[derive(Debug)]
pub(crate) struct Places(Vec<(DirId, Box<[u8]>)>);

impl Default for Places {
    fn default() -> Self {
        Self(vec![(0, Box::default())])
    }
}

impl Places {
    /// Adds the directory `name` in `parent`.
    pub(crate) fn add(&mut self, parent: DirId, name: &[u8]) -> DirId {
        self.0.push((parent, name.into()));
        self.0.len() - 1
    }

    /// Returns the path from the root.
    pub(crate) fn path(&self, place: DirId) -> Vec<u8> {
        let mut names: Vec<&[u8]> = Vec::new();
        let mut at = place;
        while at != 0 {
            let (parent, name) = &self.0[at];
            names.push(name);
            at = *parent;
        }
        names.reverse();
        names.join(&b"/"[..])
    }

    /// Returns the path of a name in a directory.
    pub(crate) fn path_of(&self, place: DirId, name: &[u8]) -> Vec<u8> {
        joined(&self.path(place), name)
    }
}

/// Returns the path of a name in the directory `dir`.
pub(crate) fn joined(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}
