//! Layers of an image: a whole tree, or what a new tree has that an old one has not.
//!
//! A difference has every name that was added or changed, with the directories above it, and a
//! whiteout for every name that is gone. Of a file with several names all of them are there or
//! none: programs that unpack a layer may not link to files of lower layers.

use super::ExportOptions;
use super::tar::{Reader, Unreadable, archive};
use super::tree::TreeEntry;
use crate::compress::Packer;
use crate::diff::DiffOptions;
use crate::diff::compare::{Links, attributes, content};
use crate::diff::merge::{Merge, Pair};
use crate::event::Tell;
use crate::image::Digest;
use crate::member::{Kind, Member};
use crate::path::is_lost_found;
use crate::pipe::{Gone, PipeItem};
use crate::places::{DirId, joined};
use crate::{Action, Cause, Compression, Error, Place};
use lanefs::{Dir, FileType, Node, Timestamp};
use sha2::{Digest as _, Sha256};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::{self, Write};

/// The tree of a layer.
#[derive(Clone)]
pub(super) struct Tree<'a> {
    pub(super) root: Dir,
    /// Its path in the volume.
    pub(super) base: &'a [u8],
    /// The tree below: only what differs from it goes into the layer.
    pub(super) since: Option<(Dir, &'a [u8])>,
}

/// What was written.
#[derive(Debug, Clone)]
pub(super) struct Written {
    pub(super) digest: Digest,
    pub(super) size: u64,
    /// The digest of the archive, not compressed.
    pub(super) diff_id: Digest,
}

/// Writes a layer to `stream`, whose name in errors is `name`.
pub(super) fn write(
    tree: &Tree<'_>,
    (name, stream): (&[u8], impl Write),
    compression: Compression,
    options: &ExportOptions,
    events: &mut Tell<'_>,
) -> Result<Written, Error> {
    let failed = |e: io::Error| Error::new(Action::Write, Place::Host(name.to_vec()), e);
    let packer = Packer::new(Hashing::new(stream), compression).map_err(failed)?;
    let read = |out| {
        let mut reader = Reader::new(tree.base, options, Unreadable::Ends, out);
        // It ends early, without a report, if the writing thread has ended.
        let _ = match &tree.since {
            None => reader.tree(tree.root.clone(), |found| wanted(found.dir, &found.name)),
            Some(since) => Difference { reader, above: Vec::new() }.send_all(tree, since),
        };
    };
    let archived = archive(read, Hashing::new(packer), (name, tree.base), events)?;
    let (packer, diff_id, _) = archived.finish();
    let (mut stream, digest, size) = packer.finish().map_err(failed)?.finish();
    stream.flush().map_err(failed)?;
    Ok(Written { digest, size, diff_id })
}

/// Returns whether a name goes into a layer: the `lost+found` of the volume does not.
fn wanted(dir: &Dir, name: &OsStr) -> Result<bool, Cause> {
    has_form(name).map(|()| !is_lost_found(dir, name))
}

fn has_form(name: &OsStr) -> Result<(), Cause> {
    match name.as_encoded_bytes().starts_with(b".wh.") {
        true => Err(Cause::WhiteoutName),
        false => Ok(()),
    }
}

/// A directory on the way down, in the new tree.
struct Above {
    place: DirId,
    dir: Dir,
    sent: bool,
    /// The whiteout of all that the old tree has in it was sent.
    emptied: bool,
}

/// The walks of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// Finds the groups of hard links that changed.
    Compare,
    Send,
}

/// The reading thread of a difference.
struct Difference<'a> {
    reader: Reader<'a>,
    above: Vec<Above>,
}

impl Difference<'_> {
    /// Sends what `tree` has that the tree `old` has not.
    fn send_all(&mut self, tree: &Tree<'_>, (old, old_base): &(Dir, &[u8])) -> Result<(), Gone> {
        let walk = || Merge::new([*old_base, tree.base], [old.clone(), tree.root.clone()]);
        let (first, second) = match (walk(), walk()) {
            (Ok(first), Ok(second)) => (first, second),
            (Err(error), _) | (_, Err(error)) => return self.reader.out.push(PipeItem::Failed(error)),
        };
        let changed = self.changed_groups(first)?;
        self.reader.dir(&tree.root, b"")?;
        self.above = vec![Above { place: 0, dir: tree.root.clone(), sent: true, emptied: false }];
        self.walk(Pass::Send, second, |this, pair, links| {
            this.empty(pair)?;
            let Some(new) = &pair.nodes[1] else { return this.removed(pair).map(|()| false) };
            let differs = match &pair.nodes[0] {
                // What cannot be compared is sent: if the new one cannot be read, that tells it.
                Some(old) if !changed.contains(&new.ino()) => this.differs(old, new, links)?.unwrap_or(true),
                _ => true,
            };
            let sent = if differs { this.send(pair)? } else { Ok(false) };
            let kind = new.metadata().file_type();
            let stale = |old: &Node| match old.metadata().file_type() == kind {
                true => sent.is_err() && kind != FileType::Directory,
                false => sent.is_err() || kind == FileType::Socket,
            };
            if pair.nodes[0].as_ref().is_some_and(stale) {
                // The new one is left out: the old one must not stay in its place.
                this.removed(pair)?;
            }
            match sent {
                Ok(sent) => Ok(sent),
                Err(cause) => this.reader.skip(&pair.path(), cause).map(|()| false),
            }
        })
    }

    /// Returns the inodes of the new tree that have several names, one of which is new or changed.
    fn changed_groups(&mut self, merge: Merge<'_>) -> Result<HashSet<u32>, Gone> {
        let mut changed = HashSet::new();
        self.walk(Pass::Compare, merge, |this, pair, links| {
            let Some(new) = &pair.nodes[1] else { return Ok(false) };
            let meta = new.metadata();
            let differs = match &pair.nodes[0] {
                _ if meta.is_dir() => false,
                None => meta.nlink() > 1,
                Some(old) if meta.nlink() > 1 || old.metadata().nlink() > 1 => {
                    // What cannot be compared is told of by the second walk.
                    this.differs(old, new, links)?.unwrap_or(true)
                }
                Some(_) => false,
            };
            if differs {
                changed.insert(meta.ino());
            }
            Ok(true)
        })?;
        Ok(changed)
    }

    /// Runs `one` for each name of either tree, and enters the directories of the new one. `one`
    /// returns whether it sent the name. What is left out is told by the pass that sends.
    fn walk(
        &mut self,
        pass: Pass,
        mut merge: Merge<'_>,
        mut one: impl FnMut(&mut Self, &Pair<'_>, &mut Links) -> Result<bool, Gone>,
    ) -> Result<(), Gone> {
        let mut links = Links::default();
        while let Some(step) = merge.next() {
            let mut pair = match step {
                Ok(pair) => pair,
                Err(error) => {
                    self.skipped(pass, error)?;
                    continue;
                }
            };
            for (dir, node) in pair.level.dirs.iter().zip(&mut pair.nodes) {
                // Neither layer has it.
                node.take_if(|_| dir.as_ref().is_some_and(|dir| is_lost_found(dir, &pair.name)));
            }
            while self.above.last().is_some_and(|above| above.place != pair.level.place) {
                self.above.pop();
            }
            if pair.nodes.iter().all(Option::is_none) {
                continue;
            }
            if let Err(cause) = has_form(&pair.name) {
                if pass == Pass::Send {
                    self.reader.skip(&pair.path(), cause)?;
                }
                continue;
            }
            let sent = one(self, &pair, &mut links)?;
            let is_dir = |node: &Option<Node>| node.as_ref().is_some_and(|node| node.metadata().is_dir());
            let [old, new] = &pair.nodes;
            let sides = [is_dir(old), is_dir(new)];
            if !sides[1] {
                continue;
            }
            let name = pair.name;
            if let Err(error) = merge.enter(&name, sides) {
                self.skipped(pass, error)?;
            } else if let Some(level) = merge.top()
                && let Some(dir) = level.dirs[1].clone()
            {
                self.above.push(Above { place: level.place, dir, sent, emptied: false });
            }
        }
        Ok(())
    }

    /// Tells of what cannot be read, once.
    fn skipped(&mut self, pass: Pass, error: Error) -> Result<(), Gone> {
        match pass {
            Pass::Compare => Ok(()),
            Pass::Send => self.reader.out.push(PipeItem::Skipped(error)),
        }
    }

    /// Returns whether a name of both trees differs.
    fn differs(&mut self, old: &Node, new: &Node, links: &mut Links) -> Result<Result<bool, Cause>, Gone> {
        let files = match attributes(old, new, &DiffOptions::new(), links) {
            Ok((found, files)) if found.is_empty() => files,
            Ok(_) => return Ok(Ok(true)),
            Err(cause) => return Ok(Err(cause)),
        };
        if !files {
            return Ok(Ok(false));
        }
        let compared = content(old, new, links, |bytes| self.reader.out.push(PipeItem::Checked(bytes)))?;
        Ok(compared.map(|differs| differs.is_some()))
    }

    /// Sends a name of the new tree. A directory that lies above it goes first.
    fn send(&mut self, pair: &Pair<'_>) -> Result<Result<bool, Cause>, Gone> {
        let Some(dir) = &pair.level.dirs[1] else { return Ok(Ok(false)) };
        self.send_above(pair)?;
        let (name, place) = (pair.name.clone(), pair.level.place);
        let found = TreeEntry { dir, name, place, dir_path: pair.dir_path, places: pair.places };
        Ok(self.reader.name(&found)?.map(|_| true))
    }

    /// Sends the directories above a name, of which nothing was sent yet: programs that unpack a
    /// layer would change their times.
    fn send_above(&mut self, pair: &Pair<'_>) -> Result<(), Gone> {
        for above in self.above.iter_mut().filter(|above| !above.sent) {
            above.sent = true;
            self.reader.dir(&above.dir, &pair.places.path(above.place))?;
        }
        Ok(())
    }

    /// Takes everything away that the old tree has in the directory of a name, if none of its names
    /// is left there.
    fn empty(&mut self, pair: &Pair<'_>) -> Result<(), Gone> {
        if !pair.level.is_replaced || self.above.last().is_none_or(|above| above.emptied) {
            return Ok(());
        }
        if let Some(above) = self.above.last_mut() {
            above.emptied = true;
        }
        self.whiteout(pair, b".wh..wh..opq")
    }

    /// Takes a name of the old tree away.
    fn removed(&mut self, pair: &Pair<'_>) -> Result<(), Gone> {
        match pair.level.is_replaced {
            true => Ok(()),
            false => self.whiteout(pair, &[b".wh.", pair.name.as_encoded_bytes()].concat()),
        }
    }

    fn whiteout(&mut self, pair: &Pair<'_>, name: &[u8]) -> Result<(), Gone> {
        self.send_above(pair)?;
        let path = joined(pair.dir_path, name);
        let kind = Kind::File { size: 0, data: Vec::new() };
        let mtime = Timestamp::default();
        let member = Member { path, kind, mode: 0, uid: 0, gid: 0, mtime, xattrs: Vec::new() };
        self.reader.out.push(PipeItem::Member(member))
    }
}

/// A stream whose bytes are counted and hashed.
struct Hashing<W> {
    stream: W,
    sha: Sha256,
    size: u64,
}

impl<W: Write> Hashing<W> {
    fn new(stream: W) -> Self {
        Self { stream, sha: Sha256::new(), size: 0 }
    }

    fn finish(self) -> (W, Digest, u64) {
        (self.stream, Digest::of_sha256(&self.sha.finalize()), self.size)
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = self.stream.write(buf)?;
        self.sha.update(&buf[..n]);
        self.size += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
