//! Growth of a volume that is open, beside threads that use it.
//!
//! A step is planned, and later taken, while no handle is open ([`Journal::alone`]), so each of the
//! two delays other threads for about the time of a commit. What lies behind the old end is written
//! between the two, beside other threads.
//!
//! Invariants:
//! - A descriptor is never read by the geometry of another size. Superblock and blocks change, and
//!   the new [`Dimensions`] are published, while the groups whose bitmaps change, the superblock
//!   and the blocks are locked.
//! - New blocks and inodes become available after the commit and the backups.
//! - The journal is checkpointed before another handle starts. So recovery never writes behind the
//!   end that the superblock on the device has.
//! - The blocks of new backups are allocated with what lies behind the old end. So a full host file
//!   system fails the growth, and not the journal.
//!
//! [`Journal::alone`]: lanefs_journal::Journal::alone

use super::Blocks;
use super::copies;
use super::plan::plan;
use super::reserve::Reserve;
use super::shape;
use super::source::read_groups;
use super::step::ResizeStep;
use crate::error::{ResizeError, Result};
use crate::store::Store;
use crate::store::dimensions::Dimensions;
use crate::store::zones::Zones;
use lanefs_format::{Compat, State, Superblock};
use lanefs_journal::{Alone, Buffer};
use lanefs_sync::order::{Level, Note, Ordered};
use std::collections::BTreeSet;
use std::sync::Arc;

impl Store {
    /// Grows the volume to `blocks` blocks, without a last group that is too short for its own
    /// structures. The device has to be that large. The caller may not hold a handle, nor anything
    /// that another thread needs to end its own.
    ///
    /// # Errors
    /// [`ResizeError`], with nothing changed or behind some of the steps;
    /// [`Error::ReadOnly`](crate::Error::ReadOnly); errors of the journal and the device, after
    /// which recovery leaves a volume with its old size, the new one, or one between them.
    pub(crate) fn grow(&self, blocks: u64) -> Result<()> {
        let _one = self.resizing.lock();
        self.check_writable()?;
        let sb = self.sb.lock().clone();
        if self.has_noted_error() || sb.state().contains(State::ERROR_FS) {
            return Err(ResizeError::Unsound { state: (sb.state() | State::ERROR_FS).bits() }.into());
        }
        let before = sb.blocks_count();
        if blocks < before {
            return Err(ResizeError::OnlyGrows { blocks, before }.into());
        }
        let blocks = shape::fit(&sb, blocks)?;
        let (block_size, device) = (self.block_size, self.device.measure()?);
        if blocks.saturating_mul(u64::from(block_size)) > device {
            return Err(ResizeError::BeyondDevice { blocks, block_size, device }.into());
        }
        self.journal.measure_device();
        let medium = Blocks { device: Arc::clone(&self.device), size: block_size };
        while self.layout().blocks_count() < blocks {
            let step = self.plan_step(blocks)?;
            copies::allocate(&medium, &step.superblock, self.layout().group_count())?;
            step.write_new_groups(&medium, u64::MAX)?;
            self.journal.alone(|alone| self.take_step(&medium, alone, &step))?;
        }
        Ok(())
    }

    /// Plans a step towards `blocks`.
    fn plan_step(&self, blocks: u64) -> Result<ResizeStep> {
        self.journal.alone(|_| {
            let sb = self.sb.lock().clone();
            let groups = read_groups(self, &sb)?;
            if sb.has(Compat::RESIZE_INODE) {
                let table = groups.first().map_or(0, |desc| desc.inode_table);
                self.check_data_range(Reserve::read(self, &sb, table)?.top(), 1)?;
            }
            plan(self, (&sb, &groups), blocks, self.journal.max_credits())
        })
    }

    /// Commits a step that was planned, by what the metadata is now. The groups behind the old end
    /// are as they were planned: they depend on the sizes alone.
    fn take_step(&self, medium: &Blocks, alone: &Alone<'_>, planned: &ResizeStep) -> Result<()> {
        let sb = self.sb.lock().clone();
        let (blocks, keeps) =
            (planned.superblock.blocks_count(), planned.superblock.has(Compat::RESIZE_INODE));
        let groups = read_groups(self, &sb)?;
        let step = ResizeStep::grow(self, (&sb, &groups), shape::with_blocks(&sb, blocks, keeps)?)?;
        let before = sb.layout().group_count();
        self.log_step(alone, &step)?;
        alone.commit()?;
        copies::write_grown(medium, (&step.superblock, &step.groups), before)?;
        self.device.flush()?;
        let layout = step.superblock.layout();
        // An old one may be cached, since a label was changed.
        alone.forget((1..layout.group_count()).filter_map(|group| layout.super_location(group)));
        let new = step.groups.iter().skip(before as usize);
        let new = new.fold((0, 0), |(blocks, inodes), desc| {
            (blocks + u64::from(desc.free_blocks_count), inodes + u64::from(desc.free_inodes_count))
        });
        self.alloc.grow(&layout, before, &step.freed, new);
        Ok(())
    }

    /// Changes the blocks of a step below the old end, and publishes the new dimensions with them.
    fn log_step(&self, alone: &Alone<'_>, step: &ResizeStep) -> Result<()> {
        let sb: &Superblock = &step.superblock;
        let zones = Zones::grown(&self.dimensions().zones, &sb.layout(), &step.groups)?;
        let dimensions = Dimensions::new(sb, zones, self.journal_blocks);
        let changed = step.logged.iter().map(|(&block, content)| Ok((self.journal.read(block)?, content)));
        let changed: Vec<(Buffer, &Vec<u8>)> = changed.collect::<Result<_>>()?;
        let _noted = Note::new(Level::Handle, 0);
        let handle = alone.start(changed.len() as u32)?;
        // Blocks behind the old end are of the last group.
        let last = self.layout().blocks_count() - 1;
        let mut groups = BTreeSet::new();
        for run in &step.freed {
            groups.insert(self.layout().group_of_block(run.start.min(last))?.0);
        }
        let _groups = self.alloc.hold_groups(self, &groups)?;
        let mut held = Ordered::take(Level::Super, 0, || self.sb.lock());
        let mut guards = Vec::with_capacity(changed.len());
        for (buffer, content) in &changed {
            let mut bytes = handle.write(buffer)?;
            bytes.copy_from_slice(content);
            guards.push(bytes);
        }
        self.dimensions.push(dimensions);
        *held = sb.clone();
        Ok(())
    }
}
