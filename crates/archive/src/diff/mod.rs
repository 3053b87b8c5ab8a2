//! Two trees of volumes, compared.
//!
//! Compared are names, types, modes, owners, the times of the last change of the content, extended
//! attributes with ACLs, targets, device numbers, content, and which names share an inode. Not
//! compared is what no copy can keep: inode numbers, other times, the places of blocks, holes.

pub(crate) mod compare;
pub(crate) mod merge;

use crate::difference::{Aspect, Change, Difference};
use crate::event::{self, Tell};
use crate::path::is_lost_found;
use crate::{Action, Cause, Error, Event};
use compare::Links;
use lanefs::{Dir, Node, Volume};
use merge::{Merge, place_of};
use std::ops::ControlFlow;
use std::path::Path;

/// Options of a comparison. By default it compares everything.
#[derive(Debug, Clone)]
pub struct DiffOptions {
    times: bool,
}

impl Default for DiffOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl DiffOptions {
    /// Compares everything.
    #[must_use]
    pub fn new() -> Self {
        Self { times: true }
    }

    /// Sets whether times are compared.
    #[must_use]
    pub fn times(mut self, yes: bool) -> Self {
        self.times = yes;
        self
    }
}

/// Compares the tree at `old_path` in `old` with that at `new_path` in `new`; a path may lead to a
/// file too. Returns whether they are the same.
///
/// `events` hears of each difference ([`Event::Differs`]), in the order of names: each directory
/// before its entries, these sorted by byte. Of the `lost+found` of a volume only its entries are
/// compared. Memory grows with the names of the directories on the way down, with the number of
/// directories and with that of files that have several names.
///
/// # Errors
/// A path that does not exist, or a directory at the top that cannot be read; `events` cancelled.
/// [`Event::Skipped`] reports a failure of one name, and the comparison goes on.
///
/// # Examples
/// ```
/// use lanefs_archive::{Change, DiffOptions, Event, diff};
/// use std::ops::ControlFlow;
///
/// let [old, new] = [16 << 20; 2].map(|size| lanefs::Volume::in_memory(size).unwrap());
/// old.write("/hostname", b"lane\n")?;
/// new.write("/hostname", b"lane\n")?;
/// new.write("/motd", b"welcome\n")?;
/// let (mut added, options) = (Vec::new(), DiffOptions::new().times(false));
/// let same = diff(&old, "/", &new, "/", &options, |event| {
///     if let Event::Differs(found) = event && let Change::Added(_) = found.change {
///         added.push(found.path);
///     }
///     ControlFlow::Continue(())
/// })?;
/// assert_eq!((same, added), (false, vec![b"motd".to_vec()]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn diff(
    old: &Volume,
    old_path: impl AsRef<Path>,
    new: &Volume,
    new_path: impl AsRef<Path>,
    options: &DiffOptions,
    mut events: impl FnMut(Event) -> ControlFlow<()> + Send,
) -> Result<bool, Error> {
    let paths = [old_path.as_ref(), new_path.as_ref()];
    let bases = paths.map(|path| path.as_os_str().as_encoded_bytes());
    let mut found = [None, None];
    for (side, volume) in [old, new].into_iter().enumerate() {
        let node = volume.metadata(paths[side]).and_then(|meta| volume.node_at(meta.ino()));
        let failed = |e| Error::new(Action::Compare, place_of(side, bases, b""), e);
        found[side] = Some(node.map_err(failed)?);
    }
    let mut diff = Diff { bases, options, events: &mut events, links: Links::default(), same: true };
    let [Some(a), Some(b)] = &found else { return Ok(true) };
    diff.pair(b"", a, b)?;
    if a.metadata().is_dir() && b.metadata().is_dir() {
        let open = |side: usize, volume: &Volume| -> Result<Dir, Error> {
            let failed = |e| Error::new(Action::Compare, place_of(side, bases, b""), e);
            volume.open_dir(paths[side]).map_err(failed)
        };
        diff.below([open(0, old)?, open(1, new)?])?;
    }
    Ok(diff.same)
}

/// A comparison under way.
struct Diff<'a> {
    bases: [&'a [u8]; 2],
    options: &'a DiffOptions,
    events: &'a mut Tell<'a>,
    links: Links,
    same: bool,
}

impl Diff<'_> {
    fn tell(&mut self, event: Event) -> Result<(), Error> {
        event::tell(self.events, event, Action::Compare, self.bases[0])
    }

    fn differs(&mut self, path: &[u8], change: Change) -> Result<(), Error> {
        self.same = false;
        self.tell(Event::Differs(Difference::new(path.to_vec(), change)))
    }

    /// Compares everything below two directories.
    fn below(&mut self, roots: [Dir; 2]) -> Result<(), Error> {
        let mut merge = Merge::new(self.bases, roots)?;
        while let Some(step) = merge.next() {
            let pair = match step {
                Ok(pair) => pair,
                Err(error) => {
                    self.tell(Event::Skipped(error))?;
                    continue;
                }
            };
            let path = pair.path();
            let (old, new) = match &pair.nodes {
                [Some(old), Some(new)] => (old, new),
                [Some(old), None] => {
                    self.differs(&path, Change::Removed(old.metadata().file_type()))?;
                    continue;
                }
                [None, Some(new)] => {
                    self.differs(&path, Change::Added(new.metadata().file_type()))?;
                    continue;
                }
                // Both volumes are open for reading, or no other program has them open.
                [None, None] => continue,
            };
            let own = pair.level.dirs.iter().flatten().all(|dir| is_lost_found(dir, &pair.name));
            if !own {
                self.pair(&path, old, new)?;
            }
            if old.metadata().is_dir() && new.metadata().is_dir() {
                let name = pair.name;
                if let Err(error) = merge.enter(&name, [true; 2]) {
                    self.tell(Event::Skipped(error))?;
                }
            }
        }
        Ok(())
    }

    /// Compares what a name leads to in both trees.
    fn pair(&mut self, path: &[u8], old: &Node, new: &Node) -> Result<(), Error> {
        self.tell(Event::Entry)?;
        let compared = compare::attributes(old, new, self.options, &mut self.links);
        let (mut found, files) = match compared {
            Ok(compared) => compared,
            Err(cause) => return self.skip(path, cause),
        };
        if files {
            let events = &mut *self.events;
            let tell = |bytes| event::tell(events, Event::Data(bytes), Action::Compare, self.bases[0]);
            match compare::content(old, new, &mut self.links, tell)? {
                Ok(differs) => found.extend(differs.map(Aspect::Content)),
                Err(cause) => return self.skip(path, cause),
            }
        }
        match found.is_empty() {
            true => Ok(()),
            false => self.differs(path, Change::Changed(found)),
        }
    }

    /// Leaves a name out.
    fn skip(&mut self, path: &[u8], cause: Cause) -> Result<(), Error> {
        let place = place_of(0, self.bases, path);
        self.tell(Event::Skipped(Error::new(Action::Compare, place, cause)))
    }
}
