//! The orphan file: slots for inode numbers in the blocks of one inode.

use super::check_new;
use crate::error::{Corrupt, Result};
use crate::store::map::{self, Mapping};
use crate::store::txn::Txn;
use crate::store::{Store, kind};
use lanefs_format::orphan_file::{self, OrphanFile as Codec};
use lanefs_journal::Buffer;
use lanefs_sync::order::{Level, Ordered};
use lanefs_sync::{Mutex, MutexGuard};
use std::collections::{HashMap, HashSet};

/// An orphan file has at most this many blocks, whatever its inode says.
const MAX_BLOCKS: u32 = 512;

/// The places of the orphans in the file, and the free places.
#[derive(Debug)]
pub(super) struct OrphanFile {
    codec: Codec,
    /// Held in memory: making an inode an orphan does no I/O.
    blocks: Box<[Buffer]>,
    per_block: u32,
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    of: HashMap<u32, u32>,
    /// Free places below `unused`. Places from there on were never taken since the volume was
    /// opened.
    free: Vec<u32>,
    unused: u32,
    /// Places whose numbers are none of an orphan.
    broken: Vec<u32>,
}

/// The orphan file, as far as it can be used.
#[derive(Debug)]
pub(super) struct FileRead {
    pub(super) file: OrphanFile,
    pub(super) inodes: Vec<u32>,
    pub(super) broken: Option<Corrupt>,
}

impl OrphanFile {
    /// Reads the orphan file of the volume. Returns it with the orphans that it holds and that are
    /// not `seen` yet, and with the first number that is none of an orphan.
    ///
    /// # Errors
    /// A file that is no orphan file, or is damaged; the device's.
    pub(super) fn load(store: &Store, ino: u32, seen: &mut HashSet<u32>) -> Result<FileRead> {
        let damaged = |rule| Corrupt::SpecialInode { ino, role: "orphan file", rule };
        let inode = store.read_inode(ino)?;
        if !inode.is_regular() || inode.links_count == 0 {
            return Err(damaged("is no file in use").into());
        }
        let count = u32::try_from(inode.size / u64::from(store.block_size)).ok().filter(|&n| n <= MAX_BLOCKS);
        let count = count.ok_or(damaged("has more than 512 blocks"))?;
        let codec = Codec::new(&inode, &store.checksummer);
        let mut blocks = Vec::with_capacity(count as usize);
        for logical in 0..count {
            let Mapping::Mapped { block, .. } = map::lookup(store, &inode, logical)? else {
                return Err(damaged("has a hole").into());
            };
            let verify = |bytes: &[u8]| Ok(codec.verify(bytes, block)?);
            blocks.push(store.file_block(block, kind::ORPHAN, verify)?);
        }
        let per_block = Codec::entries_per_block(store.block_size);
        let file = Self { codec, blocks: blocks.into(), per_block, places: Mutex::default() };
        let (mut inodes, mut broken) = (Vec::new(), None);
        let mut places = Places::default();
        for (i, buffer) in file.blocks.iter().enumerate() {
            // Copied, because `check_new` reads inodes: no buffer stays locked meanwhile.
            let entries: Vec<u32> = orphan_file::entries(&buffer.read()).collect();
            for (slot, ino) in entries.into_iter().enumerate().filter(|entry| entry.1 != 0) {
                let place = i as u32 * per_block + slot as u32;
                places.free.extend(places.unused..place);
                places.unused = place + 1;
                match check_new(store, ino, seen) {
                    Ok(()) => {
                        places.of.insert(ino, place);
                        inodes.push(ino);
                    }
                    Err(rule) => {
                        places.broken.push(place);
                        broken.get_or_insert(Corrupt::OrphanList { ino, place, rule });
                    }
                }
            }
        }
        *file.lock() = places;
        Ok(FileRead { file, inodes, broken })
    }

    fn lock(&self) -> Ordered<MutexGuard<'_, Places>> {
        Ordered::take(Level::Orphans, 1, || self.places.lock())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().of.is_empty()
    }

    /// Clears a place whose number is none of an orphan; `false` if there is none left. One that
    /// stands there twice would be taken for an orphan when the first has been deleted.
    pub(super) fn clear_broken(&self, txn: &Txn<'_>) -> Result<bool> {
        let mut places = self.lock();
        let Some(&place) = places.broken.last() else { return Ok(false) };
        self.set(txn, place, 0)?;
        places.broken.pop();
        places.free.push(place);
        Ok(true)
    }

    /// Gives `ino` a place; `false` if there is none left.
    pub(super) fn add(&self, txn: &Txn<'_>, ino: u32) -> Result<bool> {
        let mut places = self.lock();
        if places.of.contains_key(&ino) {
            return Ok(true);
        }
        let all = self.blocks.len() as u32 * self.per_block;
        let known = places.free.last().copied();
        let Some(place) = known.or((places.unused < all).then_some(places.unused)) else {
            return Ok(false);
        };
        self.set(txn, place, ino)?;
        match known {
            Some(_) => drop(places.free.pop()),
            None => places.unused += 1,
        }
        places.of.insert(ino, place);
        Ok(true)
    }

    /// Clears the place of `ino`; `false` if it has none.
    pub(super) fn remove(&self, txn: &Txn<'_>, ino: u32) -> Result<bool> {
        let mut places = self.lock();
        let Some(&place) = places.of.get(&ino) else { return Ok(false) };
        self.set(txn, place, 0)?;
        places.of.remove(&ino);
        places.free.push(place);
        Ok(true)
    }

    fn set(&self, txn: &Txn<'_>, place: u32, ino: u32) -> Result<()> {
        let Some(buffer) = self.blocks.get((place / self.per_block) as usize) else { return Ok(()) };
        let mut bytes = txn.write(buffer)?;
        orphan_file::set_entry(&mut bytes, place % self.per_block, ino);
        Ok(self.codec.seal(&mut bytes, buffer.block())?)
    }
}
