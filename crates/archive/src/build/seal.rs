//! What lies around the volume in the file of a build: the tree of dm-verity behind it, and the
//! partition table.
//!
//! Everything that has to be random and is not given follows from the volume's UUID. So what has a
//! fixed UUID comes out the same.

use super::options::{BuildOptions, VerityOptions};
use crate::event::Tell;
use crate::{Cause, Event};
use lanefs::device::{
    BlockDevice, FileDevice, GPT_BACKUP, LINUX_FILE_SYSTEM, NewPartition, Window, write_gpt,
};
use lanefs::mkfs::Options;
use lanefs_verity::{Header, VerityError};
use sha2::{Digest, Sha256};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

/// Where a partition begins, and what the size of a disk is a multiple of.
const MIB: u64 = 1 << 20;
/// The tree behind a volume begins at a multiple of this.
const HASH_ALIGN: u64 = 4096;

/// The parts of the file.
#[derive(Debug)]
pub(super) struct Parts {
    uuid: [u8; 16],
    label: Vec<u8>,
    /// Bytes of the volume.
    volume: u64,
    verity: Option<Header>,
    /// Bytes of the volume and its tree.
    with_tree: u64,
    gpt: bool,
}

impl Parts {
    /// Prepares the seal of `volume`, which has a size and a UUID.
    pub(super) fn new(options: &BuildOptions, volume: &Options) -> Result<Self, Cause> {
        let room = lanefs::mkfs::room(volume.size.unwrap_or(0), volume)?;
        let uuid = volume.uuid.unwrap_or_default();
        let header = options.verity.as_ref().map(|verity| header(verity, &uuid, room.size, room.block_size));
        let with_tree = match &header {
            Some(header) => room.size.next_multiple_of(HASH_ALIGN) + header.area_size()?,
            None => room.size,
        };
        let label = volume.label.clone();
        Ok(Self { uuid, label, volume: room.size, verity: header, with_tree, gpt: options.gpt })
    }

    /// Returns the bytes of the volume.
    pub(super) fn volume_size(&self) -> u64 {
        self.volume
    }

    pub(super) fn file_size(&self) -> u64 {
        match self.gpt {
            true => (MIB + self.with_tree + GPT_BACKUP).next_multiple_of(MIB),
            false => self.with_tree,
        }
    }

    /// Returns the first byte of the volume.
    pub(super) fn start(&self) -> u64 {
        if self.gpt { MIB } else { 0 }
    }

    /// Returns the volume and its tree in the file that has all parts.
    pub(super) fn in_file(&self, file: &Arc<FileDevice>) -> lanefs::Result<Arc<dyn BlockDevice>> {
        if !self.gpt {
            return Ok(file.clone());
        }
        let range = self.start()..self.start() + self.with_tree;
        Ok(Arc::new(Window::new(Arc::clone(file), range)?))
    }

    /// Makes the tree of the volume that is there now. Returns its root hash.
    pub(super) fn make_tree(
        &self,
        file: &Arc<FileDevice>,
        events: &mut Tell<'_>,
    ) -> Result<Option<(Header, Vec<u8>)>, Cause> {
        let Some(header) = &self.verity else { return Ok(None) };
        let device = self.in_file(file)?;
        let events = Mutex::new(events);
        let progress = |bytes| {
            let mut events = events.lock().unwrap_or_else(PoisonError::into_inner);
            (*events)(Event::Hashed(bytes)) == ControlFlow::Continue(())
        };
        let offset = self.volume.next_multiple_of(HASH_ALIGN);
        let root = lanefs_verity::format(&*device, &*device, offset, header, &progress)?;
        Ok(Some((header.clone(), root)))
    }

    /// Writes the partition table. Returns the PARTUUID.
    pub(super) fn make_table(&self, disk: &FileDevice) -> Result<Option<[u8; 16]>, Cause> {
        if !self.gpt {
            return Ok(None);
        }
        let uuid = derived(&self.uuid, "partition");
        let partition = NewPartition {
            kind: LINUX_FILE_SYSTEM,
            uuid,
            start: self.start(),
            size: self.with_tree,
            name: String::from_utf8_lossy(&self.label).into_owned(),
        };
        let written = write_gpt(disk, derived(&self.uuid, "disk"), &[partition]);
        written.and_then(|()| disk.flush()).map_err(lanefs::Error::from)?;
        Ok(Some(uuid))
    }
}

fn header(verity: &VerityOptions, uuid: &[u8; 16], size: u64, block_size: u32) -> Header {
    let data_block_size = if size.is_multiple_of(4096) { 4096 } else { block_size.min(4096) };
    Header {
        uuid: verity.uuid.unwrap_or_else(|| derived(uuid, "verity")),
        salt: verity.salt.clone().unwrap_or_else(|| hashed(uuid, "salt").to_vec()),
        data_block_size,
        data_blocks: size / u64::from(data_block_size),
        ..Header::default()
    }
}

/// Returns a UUID of version 8 that follows from another one.
fn derived(uuid: &[u8; 16], what: &str) -> [u8; 16] {
    let hash = hashed(uuid, what);
    let mut bytes: [u8; 16] = std::array::from_fn(|at| hash[at]);
    bytes[6] = bytes[6] & 0x0F | 0x80;
    bytes[8] = bytes[8] & 0x3F | 0x80;
    bytes
}

fn hashed(uuid: &[u8; 16], what: &str) -> [u8; 32] {
    Sha256::new().chain_update(uuid).chain_update(what).finalize().into()
}

impl From<VerityError> for Cause {
    fn from(e: VerityError) -> Self {
        match e {
            VerityError::Device(e) => Self::Volume(e.into()),
            VerityError::Cancelled => Self::Cancelled,
            e => Self::Verity(e),
        }
    }
}
