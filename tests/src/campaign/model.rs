//! The model: computes the content of a volume after each step from the steps alone.
//!
//! The model knows names, inodes and contents, but no crashes. A step that the volume refused for
//! lack of space or because of a flag has changed nothing.

use super::setting::RUN_AT;
use super::step::{Flag, Slot, Step, Way};
use crate::{Kind, Settles};
use lanefs::{FallocMode, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The number of an inode in the model.
pub(super) type Id = usize;

/// The attributes of an inode, without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Inode {
    /// Its type.
    pub(super) kind: Kind,
    /// Permissions.
    pub(super) mode: u16,
    /// Owner.
    pub(super) uid: u32,
    /// Group.
    pub(super) gid: u32,
    /// Links.
    pub(super) nlink: u16,
    /// Flags of chattr(1).
    pub(super) flags: BTreeSet<Flag>,
    /// Extended attributes.
    pub(super) xattrs: BTreeMap<String, Vec<u8>>,
    /// Where a symbolic link points.
    pub(super) target: Option<String>,
}

/// Names, and the inodes behind them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Names {
    /// By path.
    pub(super) paths: BTreeMap<String, Id>,
    /// By number; nothing is ever taken out.
    pub(super) inodes: Vec<Inode>,
}

/// The content of a file after a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    /// The file.
    pub(super) file: Id,
    /// All of its bytes afterwards.
    pub(super) content: Vec<u8>,
    /// The part of it that is durable as soon as the step's transaction is.
    pub(super) settles: Settles,
}

/// The effect of a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Effect {
    /// Inodes whose metadata it changed under handles of its own.
    pub(super) inodes: Vec<Id>,
    /// The content that it changed.
    pub(super) change: Option<Change>,
    /// The file whose content it gave a time, and the time.
    pub(super) stamp: Option<(Id, Timestamp)>,
}

/// The state of all files after a number of steps.
#[derive(Debug, Clone, Default)]
pub(super) struct Model {
    /// Names and inodes.
    pub(super) names: Names,
    /// Contents of regular files.
    pub(super) contents: BTreeMap<Id, Vec<u8>>,
    /// Files that are open.
    pub(super) slots: BTreeMap<Slot, Id>,
    /// Bytes of a block.
    pub(super) block: usize,
}

/// The name of the attribute that steps set.
pub(super) const XATTR: &str = "user.note";

/// The directory as whose child a file without a name is made.
pub(super) const NAMELESS_IN: &str = "/A";

/// Mode, owner and group of files that a step creates.
pub(super) const MADE: (u16, u32, u32) = (0o640, 7, 8);

/// The byte that step `i` writes: no zero, and nothing that lay in the volume's free blocks.
pub(super) fn byte(step: usize) -> u8 {
    1 + (step % 190) as u8
}

/// The permissions that step `i` sets.
pub(super) fn mode(step: usize) -> u16 {
    0o400 + (step % 0o177) as u16
}

/// The owner and the group that step `i` sets.
pub(super) fn owner(step: usize) -> (u32, u32) {
    (1000 + step as u32, 2000 + step as u32)
}

/// The time of the last change of a content that step `i` sets.
pub(super) fn touched_at(step: usize) -> Timestamp {
    Timestamp { sec: RUN_AT.sec + step as i64, nsec: 0 }
}

/// The target of a symbolic link that step `i` makes.
pub(super) fn target(step: usize, len: usize) -> String {
    format!("{step}-{}", "t".repeat(len))
}

fn parent(path: &str) -> &str {
    match path.rfind('/') {
        None | Some(0) => "/",
        Some(at) => &path[..at],
    }
}

impl Inode {
    fn new(kind: Kind, nlink: u16) -> Self {
        let (mode, uid, gid) = match kind {
            Kind::Symlink => (0o777, 0, 0),
            _ => MADE,
        };
        let (flags, xattrs) = (BTreeSet::new(), BTreeMap::new());
        Self { kind, mode, uid, gid, nlink, flags, xattrs, target: None }
    }
}

impl fmt::Display for Inode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, mode, uid, gid, nlink, flags, .. } = self;
        write!(f, "{kind:?} {mode:04o} of {uid}:{gid}, {nlink} links, flags {flags:?}")?;
        for (name, value) in &self.xattrs {
            write!(f, ", {name}: {} bytes of {:02x?}", value.len(), value.first())?;
        }
        self.target.as_ref().map_or(Ok(()), |target| write!(f, " -> {target}"))
    }
}

impl Names {
    /// The inode at `path`.
    pub(super) fn get(&self, path: &str) -> Option<Id> {
        self.paths.get(path).copied()
    }

    fn directory(&self, path: &str) -> Option<Id> {
        self.get(path).filter(|&id| self.inodes[id].kind == Kind::Directory)
    }

    fn add(&mut self, inode: Inode) -> Id {
        self.inodes.push(inode);
        self.inodes.len() - 1
    }

    /// Returns whether the flags of an inode may forbid a step. They never refuse bytes that a
    /// cache took.
    pub(super) fn may_forbid(&self, step: &Step) -> bool {
        let is_late = matches!(step, Step::Write { way: Way::Late, .. });
        let protects = |flag: &Flag| matches!(flag, Flag::Append | Flag::Immutable);
        !is_late && self.inodes.iter().any(|inode| inode.flags.iter().any(protects))
    }

    /// A path of an inode, if it has any.
    pub(super) fn path_of(&self, id: Id) -> Option<&str> {
        self.paths.iter().find(|(_, at)| **at == id).map(|(path, _)| path.as_str())
    }
}

impl Model {
    /// Makes an inode at `path`: for the content that a volume has before the first step.
    pub(super) fn make(&mut self, path: &str, kind: Kind) -> Id {
        let id = self.names.add(Inode::new(kind, if kind == Kind::Directory { 2 } else { 1 }));
        if kind == Kind::File {
            self.contents.insert(id, Vec::new());
        }
        self.names.paths.insert(path.to_owned(), id);
        if kind == Kind::Directory && path != "/" {
            self.add_dir_link(parent(path), 1);
        }
        id
    }

    fn add_dir_link(&mut self, path: &str, by: i16) {
        if let Some(dir) = self.names.get(path) {
            let nlink = &mut self.names.inodes[dir].nlink;
            *nlink = nlink.saturating_add_signed(by);
        }
    }

    /// Does step number `i`. `None`: the names do not allow it, and it has to fail.
    pub(super) fn apply(&mut self, i: usize, step: &Step) -> Option<Effect> {
        let inodes = match step {
            Step::Create(path) => {
                let (dir, file) = self.make_at(path, Kind::File)?;
                self.slots.insert(Slot::N, file);
                vec![dir, file]
            }
            Step::Mkdir(path) => {
                let (dir, made) = self.make_at(path, Kind::Directory)?;
                vec![dir, made]
            }
            Step::Symlink { path, len } => {
                let (dir, link) = self.make_at(path, Kind::Symlink)?;
                self.names.inodes[link].target = Some(target(i, *len));
                vec![dir, link]
            }
            Step::Nameless => self.make_nameless()?,
            Step::LinkNameless(path) => {
                let file = *self.slots.get(&Slot::T)?;
                self.link(file, path)?
            }
            Step::Link { from, to } => {
                let file = self.names.get(from)?;
                self.link(file, to)?
            }
            Step::Unlink(path) => self.unlink(path)?,
            Step::Rmdir(path) => self.rmdir(path)?,
            Step::Rename { from, to } => self.rename(from, to)?,
            Step::Exchange { from, to } => self.exchange(from, to)?,
            Step::SetXattr { path, len } => {
                self.has_attributes(path)?;
                self.change(path, |inode| inode.xattrs.insert(XATTR.into(), vec![byte(i); *len]))?.0
            }
            Step::RemoveXattr(path) => {
                self.has_attributes(path)?;
                let (inodes, old) = self.change(path, |inode| inode.xattrs.remove(XATTR))?;
                old?;
                inodes
            }
            Step::Chmod(path) => self.change(path, |inode| inode.mode = mode(i))?.0,
            Step::Chown(path) => {
                let (uid, gid) = owner(i);
                self.change(path, |inode| (inode.uid, inode.gid) = (uid, gid))?.0
            }
            Step::Touch(path) => return self.touch(i, path),
            Step::Chattr { path, flag } => {
                let toggle = |inode: &mut Inode| {
                    if !inode.flags.remove(flag) {
                        inode.flags.insert(*flag);
                    }
                };
                self.change(path, toggle)?.0
            }
            Step::Fsync(slot) | Step::Fdatasync(slot) => {
                self.slots.get(slot)?;
                Vec::new()
            }
            Step::FsyncDir(path) => {
                self.names.directory(path)?;
                Vec::new()
            }
            Step::Sync | Step::Trim | Step::Commit | Step::WriteBack | Step::Checkpoint | Step::Sweep => {
                Vec::new()
            }
            _ => return self.write(i, step),
        };
        Some(Effect { inodes, ..Effect::default() })
    }

    /// Sets the time of the last change of the content. That of a directory changes with its names,
    /// which the model does not tell.
    fn touch(&self, i: usize, path: &str) -> Option<Effect> {
        let id = self.names.get(path)?;
        let is_file = self.names.inodes[id].kind == Kind::File;
        let stamp = is_file.then_some((id, touched_at(i)));
        Some(Effect { inodes: vec![id], change: None, stamp })
    }

    fn make_nameless(&mut self) -> Option<Vec<Id>> {
        self.names.directory(NAMELESS_IN)?;
        let file = self.names.add(Inode::new(Kind::File, 0));
        self.contents.insert(file, Vec::new());
        self.slots.insert(Slot::T, file);
        Some(vec![file])
    }

    fn unlink(&mut self, path: &str) -> Option<Vec<Id>> {
        let file = self.names.get(path).filter(|&id| self.names.inodes[id].kind != Kind::Directory)?;
        let dir = self.names.get(parent(path))?;
        self.names.paths.remove(path);
        self.names.inodes[file].nlink = self.names.inodes[file].nlink.saturating_sub(1);
        Some(vec![dir, file])
    }

    fn rmdir(&mut self, path: &str) -> Option<Vec<Id>> {
        let gone = self.names.directory(path).filter(|_| self.is_empty(path))?;
        let dir = self.names.get(parent(path))?;
        self.names.paths.remove(path);
        self.names.inodes[gone].nlink = 0;
        self.add_dir_link(parent(path), -1);
        Some(vec![dir, gone])
    }

    fn is_empty(&self, dir: &str) -> bool {
        let below = format!("{}/", dir.trim_end_matches('/'));
        !self.names.paths.keys().any(|path| path.starts_with(&below) && path != "/")
    }

    fn make_at(&mut self, path: &str, kind: Kind) -> Option<(Id, Id)> {
        let dir = self.names.directory(parent(path))?;
        if self.names.get(path).is_some() {
            return None;
        }
        Some((dir, self.make(path, kind)))
    }

    fn link(&mut self, file: Id, to: &str) -> Option<Vec<Id>> {
        let dir = self.names.directory(parent(to))?;
        if self.names.get(to).is_some() || self.names.inodes[file].kind == Kind::Directory {
            return None;
        }
        self.names.paths.insert(to.to_owned(), file);
        self.names.inodes[file].nlink += 1;
        Some(vec![dir, file])
    }

    /// Returns the inode at `path`, if users may give attributes to one of its type.
    fn has_attributes(&self, path: &str) -> Option<Id> {
        self.names.get(path).filter(|&id| self.names.inodes[id].kind != Kind::Symlink)
    }

    fn change<T>(&mut self, path: &str, change: impl FnOnce(&mut Inode) -> T) -> Option<(Vec<Id>, T)> {
        let id = self.names.get(path)?;
        Some((vec![id], change(&mut self.names.inodes[id])))
    }

    /// Takes `path` and all below it out of the names.
    fn take(&mut self, path: &str) -> Vec<(String, Id)> {
        let below = format!("{path}/");
        let is_in = |at: &str| at == path || at.starts_with(&below);
        let taken: Vec<_> = self.names.paths.extract_if(.., |at, _| is_in(at)).collect();
        taken.into_iter().map(|(at, id)| (at[path.len()..].to_owned(), id)).collect()
    }

    fn put(&mut self, path: &str, taken: Vec<(String, Id)>) {
        self.names.paths.extend(taken.into_iter().map(|(rest, id)| (format!("{path}{rest}"), id)));
    }

    fn is_dir(&self, id: Id) -> bool {
        self.names.inodes[id].kind == Kind::Directory
    }

    fn rename(&mut self, from: &str, to: &str) -> Option<Vec<Id>> {
        let moved = self.names.get(from)?;
        let (src, dst) = (self.names.directory(parent(from))?, self.names.directory(parent(to))?);
        let over = self.names.get(to);
        if to.starts_with(&format!("{from}/")) {
            return None;
        }
        if over == Some(moved) {
            return Some(Vec::new());
        }
        if let Some(over) = over {
            let fits = self.is_dir(over) == self.is_dir(moved);
            if !fits || self.is_dir(over) && !self.is_empty(to) {
                return None;
            }
        }
        let mut inodes = vec![src, dst, moved];
        if let Some(over) = over {
            self.names.paths.remove(to);
            inodes.push(over);
            if self.is_dir(over) {
                self.names.inodes[over].nlink = 0;
                self.add_dir_link(parent(to), -1);
            } else {
                self.names.inodes[over].nlink = self.names.inodes[over].nlink.saturating_sub(1);
            }
        }
        let taken = self.take(from);
        self.put(to, taken);
        if self.is_dir(moved) {
            self.add_dir_link(parent(from), -1);
            self.add_dir_link(parent(to), 1);
        }
        Some(inodes)
    }

    fn exchange(&mut self, from: &str, to: &str) -> Option<Vec<Id>> {
        let (one, two) = (self.names.get(from)?, self.names.get(to)?);
        let (src, dst) = (self.names.get(parent(from))?, self.names.get(parent(to))?);
        let inside = |a: &str, b: &str| a.starts_with(&format!("{b}/"));
        if inside(from, to) || inside(to, from) {
            return None;
        }
        if one == two {
            return Some(Vec::new());
        }
        let (taken, other) = (self.take(from), self.take(to));
        self.put(to, taken);
        self.put(from, other);
        let of_dir = |dir: bool| if dir { 1 } else { 0 };
        let balance = of_dir(self.is_dir(one)) - of_dir(self.is_dir(two));
        self.add_dir_link(parent(from), -balance);
        self.add_dir_link(parent(to), balance);
        Some(vec![src, dst, one, two])
    }

    /// Carries out a step that changes the content of a file.
    fn write(&mut self, i: usize, step: &Step) -> Option<Effect> {
        let slot = match step {
            Step::Write { file, .. } | Step::Append { file, .. } | Step::Falloc { file, .. } => *file,
            Step::Truncate { file, .. } => *file,
            Step::Copy { to, .. } => *to,
            _ => return None,
        };
        let file = *self.slots.get(&slot)?;
        let mut content = self.contents.get(&file)?.clone();
        let old = content.len();
        let mut settles = Settles::default();
        match *step {
            Step::Write { at, len, .. } => put(&mut content, at, &vec![byte(i); len]),
            Step::Append { len, .. } => put(&mut content, old, &vec![byte(i); len]),
            Step::Copy { from, at, to_at, len, .. } => {
                let source = self.contents.get(self.slots.get(&from)?)?;
                let bytes = source.get(at..(at + len).min(source.len())).unwrap_or_default().to_vec();
                put(&mut content, to_at, &bytes);
            }
            Step::Truncate { len, .. } => {
                content.resize(len, 0);
                settles = Settles { size: true, bytes: len.min(old)..usize::MAX, moved: None };
            }
            Step::Falloc { mode, at, len, .. } => {
                settles = self.falloc(&mut content, mode, at, at + len)?;
            }
            _ => return None,
        }
        self.contents.insert(file, content.clone());
        let inodes = if settles == Settles::default() { Vec::new() } else { vec![file] };
        // The caller of a late write keeps the times.
        let is_late = matches!(step, Step::Write { way: Way::Late, .. });
        let stamp = (!is_late).then_some((file, RUN_AT));
        Some(Effect { inodes, change: Some(Change { file, content, settles }), stamp })
    }

    /// Changes which blocks a file has. `None`: the range is none for this mode.
    fn falloc(&self, content: &mut Vec<u8>, mode: FallocMode, at: usize, end: usize) -> Option<Settles> {
        let size = content.len();
        let whole = at.is_multiple_of(self.block) && end.is_multiple_of(self.block);
        let inside = at.min(size)..end.min(size);
        let grows = matches!(mode, FallocMode::Allocate | FallocMode::ZeroRange) && end > size;
        let mut moved = None;
        let settled = match mode {
            FallocMode::CollapseRange if !whole || end >= size => return None,
            FallocMode::InsertRange if !whole || at >= size => return None,
            FallocMode::CollapseRange => {
                content.drain(at..end);
                moved = Some((end, at));
                at..usize::MAX
            }
            FallocMode::InsertRange => {
                content.splice(at..at, vec![0; end - at]);
                moved = Some((at, end));
                at..usize::MAX
            }
            FallocMode::Allocate | FallocMode::KeepSize => 0..0,
            _ => {
                content[inside.clone()].fill(0);
                inside
            }
        };
        if grows {
            content.resize(end, 0);
        }
        Some(Settles { size: grows || moved.is_some(), bytes: settled, moved })
    }
}

fn put(content: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    content.resize(content.len().max(at + bytes.len()), 0);
    content[at..at + bytes.len()].copy_from_slice(bytes);
}
