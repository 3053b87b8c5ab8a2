//! Fragmentation of files and of free space.

use super::Volume;
use super::at::bytes;
use super::path::AtSymlink;
use crate::error::{Corrupt, Error, OrCannot, Result};
use crate::fs::Fs;
use crate::fs::inode::{CachedInode, InodeRef};
use crate::store::alloc;
use crate::store::map::{self, Mapping};
use lanefs_format::Inode;
use std::ops::{ControlFlow, Range};
use std::path::Path;

/// The number of extents of one file, or of many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extents {
    /// Blocks of content.
    pub blocks: u64,
    /// Runs of blocks that are adjacent both in the file and on the volume.
    pub extents: u64,
    /// The fewest possible: one for each run of blocks between holes.
    pub ideal: u64,
}

/// Runs of free blocks of about one size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FreeRuns {
    /// How many runs.
    pub runs: u64,
    /// Their blocks.
    pub blocks: u64,
}

/// How fragmented a volume is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fragmentation {
    /// Regular files that have blocks.
    pub files: u64,
    /// Files with more extents than they need.
    pub fragmented: u64,
    /// The sums over all files.
    pub extents: Extents,
    /// The most extents that a file has.
    pub most: u64,
    /// The inode of that file; 0 if there is no file.
    pub most_ino: u32,
    /// Runs of free blocks by size: at index i those of 2^i to 2^(i+1) - 1 blocks.
    pub free: Vec<FreeRuns>,
    /// Blocks of the longest run.
    pub longest_free: u64,
}

impl Volume {
    /// Counts the extents of a file or directory. A symbolic link is not followed.
    ///
    /// # Errors
    /// [`Error::NotFound`](crate::Error::NotFound); those of a damaged map.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// volume.write("/file", &[1; 100_000])?;
    /// let file = volume.extents("/file")?;
    /// assert_eq!((file.extents, file.ideal), (1, 1));
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn extents(&self, path: impl AsRef<Path>) -> Result<Extents> {
        let count = || {
            let node = self.at().node(bytes(&path), AtSymlink::NoFollow)?;
            // Dirty pages are allocated by this.
            node.write_out()?;
            extents_of(&node)
        };
        count().or_cannot("count the extents of", &path)
    }

    /// Returns how fragmented all files and the free space are, from the metadata: reads every
    /// inode and every bitmap.
    ///
    /// # Errors
    /// The errors of damaged bitmaps, inodes and maps;
    /// [`Error::NotSupported`](crate::Error::NotSupported) with bigalloc.
    pub fn fragmentation(&self) -> Result<Fragmentation> {
        self.whole("examine", self.sum_fragments())
    }

    fn sum_fragments(&self) -> Result<Fragmentation> {
        let fs = &self.fs;
        fs.write_back_all()?;
        let mut sum = Fragmentation::default();
        for group in 0..fs.layout().group_count() {
            for ino in alloc::used_inodes(fs, group)? {
                self.add_file(ino, &mut sum)?;
            }
        }
        self.each_free_run(|run| {
            sum.add_free(run);
            ControlFlow::Continue(())
        })?;
        Ok(sum)
    }

    /// Calls `each` with each run of free blocks, in order, until it breaks.
    ///
    /// # Errors
    /// The errors of damaged bitmaps; [`Error::NotSupported`](crate::Error::NotSupported) with
    /// bigalloc.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// let mut free = 0;
    /// volume.free_runs(|run| {
    ///     free += run.end - run.start;
    ///     std::ops::ControlFlow::Continue(())
    /// })?;
    /// assert_eq!(free, volume.statfs().blocks_free);
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn free_runs(&self, each: impl FnMut(Range<u64>) -> ControlFlow<()>) -> Result<()> {
        self.whole("find the free blocks of", self.each_free_run(each))
    }

    fn each_free_run(&self, mut each: impl FnMut(Range<u64>) -> ControlFlow<()>) -> Result<()> {
        let fs = &self.fs;
        fs.write_back_all()?;
        let mut run = 0..0;
        let mut go_on = ControlFlow::Continue(());
        for group in 0..fs.layout().group_count() {
            alloc::free_runs(fs, group, |free| {
                // A run may go on across the border of groups.
                if free.start == run.end {
                    run.end = free.end;
                } else {
                    let run = std::mem::replace(&mut run, free);
                    if go_on.is_continue() && !run.is_empty() {
                        go_on = each(run);
                    }
                }
            })?;
        }
        if go_on.is_continue() && !run.is_empty() {
            let _ = each(run);
        }
        Ok(())
    }

    fn add_file(&self, ino: u32, sum: &mut Fragmentation) -> Result<()> {
        let fs = &self.fs;
        let special = fs.sb.lock().raw().s_orphan_file_inum.get();
        if ino < fs.first_ino || ino == special {
            return Ok(());
        }
        let Some(node) = self.used_file(ino)? else { return Ok(()) };
        let file = extents_of(&node)?;
        if file.blocks == 0 {
            return Ok(());
        }
        sum.files += 1;
        sum.fragmented += u64::from(file.extents > file.ideal);
        sum.extents.blocks += file.blocks;
        sum.extents.extents += file.extents;
        sum.extents.ideal += file.ideal;
        if file.extents > sum.most {
            (sum.most, sum.most_ino) = (file.extents, ino);
        }
        Ok(())
    }
}

impl Volume {
    /// Returns an inode that its bitmap has as used, if it is a regular file with a name.
    fn used_file(&self, ino: u32) -> Result<Option<InodeRef>> {
        let fs = &self.fs;
        let is_file = |inode: &Inode| inode.is_regular() && inode.links_count > 0;
        // The handle that sets the bit writes the slot later, and waits for no reader.
        let again = |e| if fs.journal.sync().is_err() { Err(e) } else { fs.read_inode(ino) };
        let inode = fs.read_inode(ino).or_else(again)?;
        if !is_file(&inode) {
            return Ok(None);
        }
        match fs.inode(ino) {
            Ok(node) => Ok(Some(node).filter(|node| is_file(&node.state()))),
            // Another thread has deleted it meanwhile.
            Err(Error::Corrupt(Corrupt::DeadInode { .. })) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

impl Fragmentation {
    fn add_free(&mut self, run: Range<u64>) {
        let blocks = run.end.saturating_sub(run.start);
        let Some(order) = blocks.checked_ilog2() else { return };
        let order = order as usize;
        if self.free.len() <= order {
            self.free.resize(order + 1, FreeRuns::default());
        }
        if let Some(class) = self.free.get_mut(order) {
            class.runs += 1;
            class.blocks += blocks;
        }
        self.longest_free = self.longest_free.max(blocks);
    }
}

/// Walks the map of a file, which may be in use.
fn extents_of(node: &CachedInode) -> Result<Extents> {
    let fs: &Fs = &node.fs;
    let mut sum = Extents::default();
    let (mut lblk, mut next) = (0, None);
    // The end of the last extent in the file.
    let mut end = None;
    loop {
        let state = node.state();
        if !map::has_map(fs, &state) || lblk >= map::max_blocks(fs, state.flags) {
            return Ok(sum);
        }
        let mapping = map::lookup(fs, &state, lblk)?;
        drop(state);
        if let Mapping::Mapped { block, len, .. } = mapping {
            let follows = end == Some(lblk);
            sum.ideal += u64::from(!follows);
            sum.extents += u64::from(!follows || next != Some(block));
            sum.blocks += u64::from(len);
            next = block.checked_add(u64::from(len));
            end = lblk.checked_add(len);
        }
        lblk = lblk.saturating_add(mapping.len());
    }
}

#[cfg(test)]
mod tests {
    use crate::Volume;
    use crate::store::alloc::{self, InodeHint};
    use lanefs_format::Inode;
    use std::ops::ControlFlow;

    #[test]
    fn free_runs_can_be_used_while_they_are_listed() {
        let volume = Volume::in_memory(16 << 20).unwrap();
        for name in ["/a", "/b", "/c"] {
            volume.write(name, &[1; 4096]).unwrap();
            volume.sync().unwrap();
        }
        volume.remove_file("/b").unwrap();
        volume.sync().unwrap();
        let mut runs = 0;
        volume
            .free_runs(|_| {
                runs += 1;
                volume.write("/d", &[1; 4096]).unwrap();
                volume.sync().unwrap();
                ControlFlow::Continue(())
            })
            .unwrap();
        assert!(runs > 1, "{runs} runs");
    }

    /// The bit of a new inode is set before its slot, which holds what was there before mke2fs, is
    /// written: a reader waits for the handle.
    #[test]
    fn an_inode_that_is_being_made_is_no_damage() {
        let volume = Volume::in_memory(16 << 20).unwrap();
        let fs = &volume.fs;
        let dir = fs.root().unwrap();
        let (taken, made) = (std::sync::Barrier::new(2), std::sync::atomic::AtomicBool::new(false));
        std::thread::scope(|scope| {
            let counts = scope.spawn(|| {
                taken.wait();
                let counted = volume.fragmentation();
                (counted, made.load(std::sync::atomic::Ordering::SeqCst))
            });
            let took = fs.transact(20, |txn| {
                let (ino, slot) = alloc::alloc_inode(txn, InodeHint::File { parent: dir.ino })?;
                taken.wait();
                std::thread::sleep(std::time::Duration::from_millis(200));
                let mut inode = Inode::new(ino, 0o100_644, &fs.inode_ctx);
                inode.links_count = 1;
                made.store(true, std::sync::atomic::Ordering::SeqCst);
                slot.write_new(txn, &inode)
            });
            took.unwrap();
            let (counted, made) = counts.join().unwrap();
            counted.unwrap_or_else(|e| panic!("{e}; was it made? {made}"));
        });
    }

    #[test]
    fn files_that_come_and_go_are_no_damage() {
        let volume = Volume::in_memory(16 << 20).unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..4000 {
                    volume.write(format!("/{}", n % 3), &[1; 5000]).unwrap();
                    volume.remove_file(format!("/{}", n % 3)).unwrap();
                }
                done.store(true, std::sync::atomic::Ordering::SeqCst);
            });
            while !done.load(std::sync::atomic::Ordering::SeqCst) {
                volume.fragmentation().unwrap();
            }
        });
    }
}
