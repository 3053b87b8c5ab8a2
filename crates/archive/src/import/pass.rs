//! What an import is for: itself, or one of the two passes of a build.
//!
//! The first pass finds out how much room the tree takes. It makes every name in a scratch volume,
//! with blocks for data but without the data, by the code that fills the volume later. So
//! whiteouts, replaced and refused names, indexes of directories, attributes and maps take what
//! they will take. It also finds the files that a later member removes; the second pass makes them
//! without data.

use super::number_set::NumberSet;
use crate::Cause;
use crate::excerpt::Excerpt;
use crate::member::{Kind, Member};
use lanefs::device::DeviceError;
use lanefs::{FileType, Metadata, Volume};
use std::hash::{DefaultHasher, Hash, Hasher};

pub(super) enum Pass<'a> {
    /// An import of its own.
    Import,
    Measure(Measure<'a>),
    Write(Write<'a>),
}

/// The files of a source, counted, and a hash of their names.
#[derive(Debug, Default)]
struct Count {
    files: u64,
    hasher: DefaultHasher,
}

impl Count {
    /// Counts a file, and returns its number.
    fn next(&mut self, path: &[u8]) -> u64 {
        path.hash(&mut self.hasher);
        self.files += 1;
        self.files - 1
    }
}

/// The state of a first pass.
pub(super) struct Measure<'a> {
    volume: &'a Volume,
    count: Count,
    /// The inode of each file, 0 for a file that could not be made: the memory that a pass takes.
    inodes: Vec<u32>,
    /// Free blocks and inodes at the start.
    free: (u64, u64),
    /// The fewest free inodes when something was removed; `None` if nothing was.
    fewest: Option<u64>,
    /// 512-byte sectors of what was removed, regular files left out.
    removed: u64,
    /// See [`Survey::mapped`].
    mapped: u64,
}

/// Puts data on the device of a volume that is being built.
pub(crate) trait Sink {
    /// Writes an excerpt and so many zeros behind it, sooner or later.
    ///
    /// # Errors
    /// That of an earlier write.
    fn put(&self, content: Excerpt, zeros: usize, offset: u64) -> Result<(), DeviceError>;
}

/// What the second pass of a build is told.
pub(crate) struct SecondPass<'a> {
    /// The files that do not last, if they are known.
    pub(crate) removed: Option<&'a RemovedFiles>,
    /// Takes the data of files.
    pub(crate) sink: &'a dyn Sink,
    /// A volume that is full is made again, larger.
    pub(crate) retries: bool,
}

/// The state of a second pass.
pub(super) struct Write<'a> {
    count: Count,
    removed: &'a RemovedFiles,
    sink: &'a dyn Sink,
    retries: bool,
}

/// The files of a source that later members remove, by their number.
#[derive(Debug)]
pub(crate) struct RemovedFiles {
    numbers: NumberSet,
    hash: u64,
}

/// What a tree takes of a volume.
#[derive(Debug)]
pub(crate) struct Survey {
    /// Blocks of data, maps, directories, links and attributes.
    pub(crate) blocks: u64,
    /// Inodes.
    pub(crate) inodes: u64,
    /// Files that may lie in too many pieces for a map in their inode.
    pub(crate) mapped: u64,
    pub(crate) removed: RemovedFiles,
}

impl<'a> Pass<'a> {
    /// Begins the first pass over `volume`, which is empty and will be filled.
    pub(super) fn measure(volume: &'a Volume) -> Self {
        let free = free(volume);
        let count = Count::default();
        Self::Measure(Measure {
            volume,
            count,
            inodes: Vec::new(),
            free,
            fewest: None,
            removed: 0,
            mapped: 0,
        })
    }

    /// Begins the second pass. One over a source that had no first pass is an import.
    pub(super) fn write(SecondPass { removed, sink, retries }: SecondPass<'a>) -> Self {
        match removed {
            Some(removed) => Self::Write(Write { count: Count::default(), removed, sink, retries }),
            None => Self::Import,
        }
    }

    pub(super) fn is_measure(&self) -> bool {
        matches!(self, Self::Measure(_))
    }

    /// Returns whether a volume that is full is made again, larger.
    pub(super) fn retries(&self) -> bool {
        match self {
            Self::Import => false,
            Self::Measure(_) => true,
            Self::Write(write) => write.retries,
        }
    }

    /// Returns what takes the data of files, past the volume and its cache.
    pub(super) fn sink(&self) -> Option<&'a dyn Sink> {
        match self {
            Self::Write(write) => Some(write.sink),
            _ => None,
        }
    }

    /// Takes the next regular file of the source. Returns whether it is made without data.
    pub(super) fn file(&mut self, member: &Member) -> bool {
        match self {
            Self::Import => false,
            Self::Measure(measure) => {
                measure.count.next(&member.path);
                measure.inodes.push(0);
                measure.mapped += u64::from(measure.is_mapped(member));
                false
            }
            Self::Write(write) => write.removed.numbers.contains(write.count.next(&member.path)),
        }
    }

    /// Takes the inode of that file.
    pub(super) fn made(&mut self, ino: u32) {
        if let Self::Measure(Measure { inodes, .. }) = self
            && let Some(last) = inodes.last_mut()
        {
            *last = ino;
        }
    }

    /// Notes that something will be removed in a moment.
    pub(super) fn will_remove(&mut self) {
        if let Self::Measure(measure) = self {
            let (_, inodes) = free(measure.volume);
            measure.fewest = Some(measure.fewest.map_or(inodes, |fewest| fewest.min(inodes)));
        }
    }

    /// Notes what was removed.
    pub(super) fn removed(&mut self, meta: &Metadata) {
        if let Self::Measure(measure) = self
            && !meta.is_file()
        {
            measure.removed += meta.sectors();
        }
    }

    /// Returns what a first pass found.
    pub(super) fn into_survey(self) -> Option<Survey> {
        let Self::Measure(measure) = self else { return None };
        let (blocks, inodes) = free(measure.volume);
        let sectors = u64::from(measure.volume.statfs().block_size / 512);
        Some(Survey {
            blocks: measure.free.0.saturating_sub(blocks) + measure.removed.div_ceil(sectors),
            inodes: measure.free.1.saturating_sub(measure.fewest.map_or(inodes, |few| few.min(inodes))),
            mapped: measure.mapped,
            removed: measure.removed_files(),
        })
    }

    /// Checks at the end of a second pass that it saw the files of the first one, if that matters.
    pub(super) fn check(&self) -> Result<(), Cause> {
        match self {
            Self::Write(Write { count, removed, .. })
                if !removed.numbers.is_empty() && count.hasher.finish() != removed.hash =>
            {
                Err(Cause::Changed)
            }
            _ => Ok(()),
        }
    }
}

impl Measure<'_> {
    /// Returns whether a file has more blocks than extents fit into its inode.
    fn is_mapped(&self, member: &Member) -> bool {
        let inline = 4 * u64::from(self.volume.statfs().block_size);
        matches!(&member.kind, Kind::File { data, .. } if data.iter().map(|(_, len)| len).sum::<u64>() > inline)
    }

    fn removed_files(&self) -> RemovedFiles {
        let (mut numbers, mut seen) = (NumberSet::default(), NumberSet::default());
        let is_there = |ino| {
            let node = self.volume.node_at(ino).and_then(|node| node.file_type());
            node.is_ok_and(|kind| kind == FileType::Regular)
        };
        // From the end: of several files with one inode the last has it.
        let files = self.inodes.iter().enumerate().rev().filter(|_| self.fewest.is_some());
        for (number, &ino) in files {
            if ino != 0 && (!seen.insert(ino.into()) || !is_there(ino)) {
                numbers.insert(number as u64);
            }
        }
        RemovedFiles { numbers, hash: self.count.hasher.finish() }
    }
}

/// Returns the free blocks and inodes.
fn free(volume: &Volume) -> (u64, u64) {
    let stat = volume.statfs();
    (stat.blocks_free, stat.inodes_free)
}
