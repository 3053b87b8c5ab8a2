//! The content of a volume as a walk observes it.

use super::model::{Id, Inode, Names};
use super::step::Flag;
use super::times::Times;
use super::volume::APART;
use crate::Kind;
use crate::ops::kind;
use lanefs::format::InodeFlags;
use lanefs::{Dir, Volume};
use std::collections::BTreeMap;

/// An inode, and the content of a regular file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// Its number.
    pub(super) ino: u32,
    /// All of it but its content.
    pub(super) inode: Inode,
    /// Its times and its version.
    pub(super) times: Times,
    /// Sectors of all of its blocks.
    pub(super) sectors: u64,
    /// Bytes of a regular file.
    pub(super) content: Vec<u8>,
}

/// Inodes and blocks that are free or were found: as many at all times, but for those that no file
/// owns any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Accounted {
    inodes: u64,
    blocks: u64,
}

/// All that is on a volume.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Observed {
    /// By path.
    files: BTreeMap<String, Found>,
    /// Free inodes and blocks, and those that files own.
    accounted: Accounted,
    /// Permissions of `/lost+found`, which no step touches.
    pub(super) lost_found: u16,
}

impl Observed {
    /// Walks a volume, and reads everything on it.
    ///
    /// # Errors
    /// What cannot be read, with its path.
    pub(super) fn of(volume: &Volume) -> Result<Self, String> {
        let mut all = Self::default();
        let root = volume.open_dir("/").map_err(|e| format!("/: {e}"))?;
        all.files.insert("/".into(), found(&root, "").map_err(|e| format!("/: {e}"))?);
        let mut dirs = vec![(String::new(), root)];
        while let Some((above, dir)) = dirs.pop() {
            for entry in dir.read_dir().map_err(|e| format!("{above}/: {e}"))? {
                let name = entry.name.to_string_lossy().into_owned();
                let path = format!("{above}/{name}");
                if APART.contains(&path.as_str()) {
                    continue;
                }
                let failed = |e| format!("{path}: {e}");
                let found = found(&dir, &name).map_err(failed)?;
                if found.inode.kind == Kind::Directory {
                    dirs.push((path.clone(), dir.open_dir(&name).map_err(failed)?));
                }
                all.files.insert(path, found);
            }
        }
        let lost_found = volume.symlink_metadata("/lost+found").map_err(|e| e.to_string())?;
        all.lost_found = lost_found.permissions();
        all.account(volume);
        Ok(all)
    }

    fn account(&mut self, volume: &Volume) {
        let free = volume.statfs();
        let sectors: BTreeMap<u32, u64> =
            self.files.values().map(|found| (found.ino, found.sectors)).collect();
        let blocks = sectors.values().sum::<u64>() * 512 / u64::from(free.block_size);
        self.accounted =
            Accounted { inodes: free.inodes_free + sectors.len() as u64, blocks: free.blocks_free + blocks };
    }

    /// Checks that no inode and no block has been lost, or is both free and a file's, since
    /// `before`.
    ///
    /// # Errors
    /// How many.
    pub(super) fn check_accounts(&self, before: &Self) -> Result<(), String> {
        let (now, then) = (self.accounted, before.accounted);
        if now == then {
            return Ok(());
        }
        let lost = |now: u64, then: u64| i128::from(then) - i128::from(now);
        let (inodes, blocks) = (lost(now.inodes, then.inodes), lost(now.blocks, then.blocks));
        Err(format!("{inodes} inodes and {blocks} blocks are neither free nor a file's"))
    }

    /// Holds names, and inodes without their contents, against a model. Returns the inode behind
    /// each file of the model.
    ///
    /// # Errors
    /// The first difference.
    pub(super) fn compare(&self, names: &Names) -> Result<BTreeMap<Id, &Found>, String> {
        let extra = self.files.keys().find(|path| !names.paths.contains_key(*path));
        let missing = names.paths.keys().find(|path| !self.files.contains_key(*path));
        if let Some(path) = extra {
            return Err(format!("{path} is there"));
        }
        if let Some(path) = missing {
            return Err(format!("{path} is not there"));
        }
        let (mut of, mut known) = (BTreeMap::new(), BTreeMap::new());
        for (path, &id) in &names.paths {
            let (found, expected) = (&self.files[path], &names.inodes[id]);
            if found.inode != *expected {
                return Err(format!("{path} is {}, not {expected}", found.inode));
            }
            let same = of.insert(id, found).is_none_or(|before: &Found| before.ino == found.ino);
            if !same || known.insert(found.ino, id).is_some_and(|other| other != id) {
                return Err(format!("{path} leads to inode {}, which is another file", found.ino));
            }
        }
        Ok(of)
    }
}

/// The flags that a workload changes.
const FLAGS: &[(InodeFlags, Flag)] = &[
    (InodeFlags::NODUMP, Flag::NoDump),
    (InodeFlags::APPEND, Flag::Append),
    (InodeFlags::IMMUTABLE, Flag::Immutable),
];

/// The bit of a flag.
pub(super) fn bit(flag: Flag) -> InodeFlags {
    FLAGS.iter().find(|(_, known)| *known == flag).map_or(InodeFlags::empty(), |(bit, _)| *bit)
}

fn found(dir: &Dir, name: &str) -> lanefs::Result<Found> {
    let node = if name.is_empty() { dir.node() } else { dir.lookup(name)? };
    let meta = node.metadata();
    let mut content = Vec::new();
    if meta.is_file() {
        let file = node.open()?;
        content = vec![0; usize::try_from(meta.len()).unwrap_or(usize::MAX).min(1 << 20)];
        let n = file.read_at(&mut content, 0)?;
        content.truncate(n);
    }
    let target = if meta.is_symlink() { Some(node.read_link()?) } else { None };
    let attrs = node.xattrs()?;
    let inode = Inode {
        kind: kind(meta.file_type()),
        mode: meta.permissions(),
        uid: meta.uid(),
        gid: meta.gid(),
        nlink: meta.nlink(),
        flags: FLAGS.iter().filter(|(bit, _)| meta.flags().contains(*bit)).map(|(_, flag)| *flag).collect(),
        xattrs: attrs.into_iter().map(|(name, value)| (name.to_string_lossy().into_owned(), value)).collect(),
        target: target.map(|target| target.to_string_lossy().into_owned()),
    };
    Ok(Found { ino: meta.ino(), inode, times: Times::of(&meta), sectors: meta.sectors(), content })
}
