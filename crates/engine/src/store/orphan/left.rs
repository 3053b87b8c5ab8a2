//! Reads the orphans that a crash left.
//!
//! Damage does not keep a volume from being opened for writing: orphans that are not found stay
//! allocated, and e2fsck finds them without the list. It ignores the list of a volume with noted
//! errors, and the kernel clears it. A device that fails is no damage, and always an error.
//!
//! Invariant: the superblock says that the volume has errors before the damage is gone, which the
//! first change of list or file may overwrite.

use super::check_new;
use super::file::{FileRead, OrphanFile};
use crate::error::{Corrupt, Result};
use crate::store::Store;
use crate::store::txn::credits;
use lanefs_format::{Compat, State};
use std::collections::HashSet;

/// The orphan list, as far as it can be read.
#[derive(Debug, Default)]
struct ListRead {
    /// Newest first. The last may be a damaged inode, which hides those behind it.
    inodes: Vec<u32>,
    /// The number at which the list breaks off, if it is none of an orphan.
    broken: Option<Corrupt>,
}

/// Reads the orphan list up to a damaged inode, or to a number that closes a circle, leaves the
/// volume or is a special inode's. Adds its numbers to those `seen`.
///
/// # Errors
/// The device's.
fn read_list(store: &Store, seen: &mut HashSet<u32>) -> Result<ListRead> {
    let mut list = ListRead::default();
    let mut ino = store.sb.lock().last_orphan();
    while ino != 0 {
        if let Err(rule) = check_new(store, ino, seen) {
            list.broken = Some(Corrupt::OrphanList { ino, place: list.inodes.len() as u32, rule });
            break;
        }
        list.inodes.push(ino);
        match store.read_inode(ino) {
            Ok(inode) => ino = inode.dtime,
            Err(e) if e.is_of_medium() => return Err(e),
            Err(_) => break,
        }
    }
    Ok(list)
}

/// Reads the orphan file, if the volume has one, without the numbers that the list has too.
///
/// # Errors
/// Those of [`OrphanFile::load`].
fn read_file(store: &Store, seen: &mut HashSet<u32>) -> Result<Option<FileRead>> {
    if !store.has(Compat::ORPHAN_FILE) {
        return Ok(None);
    }
    let ino = store.sb.lock().raw().s_orphan_file_inum.get();
    OrphanFile::load(store, ino, seen).map(Some)
}

/// Checks that the orphans can be found, without changes. Returns how many are found. A damaged
/// inode hides the rest of a list, but not of an orphan file.
///
/// # Errors
/// A file that is no orphan file, or is damaged; the device's.
pub(crate) fn check(store: &Store) -> Result<u32> {
    let mut seen = HashSet::new();
    let list = read_list(store, &mut seen)?.inodes;
    let in_file = read_file(store, &mut seen)?.map(|read| read.inodes).unwrap_or_default();
    for &ino in &in_file {
        if let Err(e) = store.read_inode(ino)
            && e.is_of_medium()
        {
            return Err(e);
        }
    }
    Ok((list.len() + in_file.len()) as u32)
}

/// Loads the orphans of a volume just opened for writing. Returns them, newest first. Notes where
/// the list breaks off, and a number in the file that is none of an orphan. A damaged inode stays
/// an orphan, and the number is cleared.
///
/// # Errors
/// Those of [`check`]; the journal's.
pub(crate) fn load(store: &Store) -> Result<Vec<u32>> {
    let mut seen = HashSet::new();
    let ListRead { inodes: mut orphans, broken } = read_list(store, &mut seen)?;
    if let Some(broken) = broken {
        note(store, broken)?;
    }
    store.orphans.list.load(orphans.iter().rev().copied());
    let mut orphan_file = None;
    if let Some(FileRead { file, inodes, broken }) = read_file(store, &mut seen)? {
        orphans.extend(inodes);
        if let Some(broken) = broken {
            note(store, broken)?;
            while store.transact(credits::ORPHAN, |txn| file.clear_broken(txn))? {}
        }
        orphan_file = Some(file);
    }
    let _ = store.orphans.file.set(orphan_file);
    Ok(orphans)
}

/// Notes damage, in the superblock too. No handle that starts later commits without that.
///
/// # Errors
/// The journal's.
fn note(store: &Store, broken: Corrupt) -> Result<()> {
    store.note_error(&broken.into());
    store.transact(credits::SUPER, |txn| {
        store.write_super(txn, |sb| sb.set_state(sb.state() | State::ERROR_FS))
    })
}

#[cfg(test)]
mod tests {
    use crate::fs::OpenOptions;
    use crate::store::map::{self, Mapping};
    use crate::store::{read_super, write_super};
    use crate::{NewAttr, Volume};
    use lanefs_device::{BlockDevice, MemDevice, Op};
    use lanefs_format::orphan_file::{OrphanFile as Codec, entries, set_entry};
    use lanefs_format::{RoCompat, State};
    use lanefs_sim::FailingDevice;
    use std::ops::Range;
    use std::sync::Arc;
    use std::time::Duration;

    const ATTR: NewAttr = NewAttr { permissions: 0o600, uid: 0, gid: 0 };

    fn options() -> OpenOptions {
        OpenOptions::new().write(true).commit_interval(Duration::ZERO)
    }

    fn formatted(features: &str) -> Arc<MemDevice> {
        let device = Arc::new(MemDevice::new(16 << 20));
        let features = features.parse().unwrap();
        lanefs_mkfs::format(&*device, &lanefs_mkfs::Options { features, ..Default::default() }).unwrap();
        device
    }

    fn has_error(device: &MemDevice) -> bool {
        read_super(device).unwrap().state().contains(State::ERROR_FS)
    }

    /// Returns a copy of the device, opened and closed: the volume as it is after a cut.
    fn cut(device: &MemDevice) -> Arc<MemDevice> {
        let copy = Arc::new(MemDevice::from_bytes(device.to_bytes()));
        options().open_device(copy.clone()).unwrap().close().unwrap();
        copy
    }

    /// A volume that a cut left with nameless files in the first block of its orphan file.
    struct Left {
        bytes: Vec<u8>,
        codec: Codec,
        block: u64,
        /// The bytes of that block.
        at: Range<usize>,
        /// The number of one of the files.
        ino: u32,
    }

    fn left(files: usize) -> Left {
        let device = formatted("orphan_file");
        let volume = options().open_device(device.clone()).unwrap();
        let root = volume.open_dir("/").unwrap();
        let files: Vec<_> = (0..files).map(|_| root.create_nameless(ATTR).unwrap()).collect();
        let fs = Arc::clone(&files[0].inode().fs);
        fs.journal.checkpoint().unwrap();
        let bytes = device.to_bytes();
        let inode = fs.read_inode(fs.sb.lock().raw().s_orphan_file_inum.get()).unwrap();
        let Mapping::Mapped { block, .. } = map::lookup(&fs, &inode, 0).unwrap() else { panic!("a hole") };
        let (codec, size) = (Codec::new(&inode, &fs.checksummer), fs.block_size as usize);
        let at = block as usize * size..(block as usize + 1) * size;
        assert_eq!(entries(&bytes[at.clone()]).filter(|ino| *ino != 0).count(), files.len());
        Left { bytes, codec, block, at, ino: files[0].inode().ino }
    }

    /// Numbers in an orphan file that are none of an orphan: the others are deleted, the volume
    /// says that it needs a check, behind a cut too, and no later open takes the numbers for
    /// orphans.
    #[test]
    fn a_wrong_number_in_the_orphan_file_keeps_the_volume_usable() {
        let Left { bytes: whole, codec, block, at, ino } = left(3);
        for number in [4_000_000_000, 5, ino] {
            let mut bytes = whole.clone();
            set_entry(&mut bytes[at.clone()], 1, number);
            codec.seal(&mut bytes[at.clone()], block).unwrap();
            let device = Arc::new(MemDevice::from_bytes(bytes));
            for found in [2, 0] {
                let volume = options().open_device(device.clone()).unwrap();
                assert_eq!(volume.info().recovery.orphans, found, "{number}");
                volume.write("/new", b"new").unwrap();
                volume.sync().unwrap();
                assert!(has_error(&cut(&device)), "{number}");
                volume.close().unwrap();
                assert!(has_error(&device), "{number}");
                assert!(entries(&device.to_bytes()[at.clone()]).all(|ino| ino == 0), "{number}");
            }
        }
    }

    /// The number at which a list breaks off is gone with the next orphan.
    #[test]
    fn a_list_that_breaks_off_is_noted_before_it_is_whole_again() {
        let device = formatted("^orphan_file");
        let mut sb = read_super(&*device).unwrap();
        sb.set_last_orphan(5);
        write_super(&*device, &sb).unwrap();
        let volume = options().open_device(device.clone()).unwrap();
        drop(volume.open_dir("/").unwrap().create_nameless(ATTR).unwrap());
        volume.sync().unwrap();
        let copy = cut(&device);
        assert_eq!(read_super(&*copy).unwrap().last_orphan(), 0);
        assert!(has_error(&copy));
        volume.close().unwrap();
        assert!(has_error(&device));
    }

    /// An open that fails before it knows the orphans does not mark the volume as one without any.
    #[test]
    fn an_open_that_fails_leaves_the_orphan_file_to_the_next_one() {
        let Left { bytes, at, .. } = left(2);
        let mut refused = 0;
        for nth in 1.. {
            let device = Arc::new(FailingDevice::new(MemDevice::from_bytes(bytes.clone())));
            device.fail_once(Op::Read, nth, 5);
            let opened = options().open_device(device.clone()).and_then(Volume::close);
            if device.failures() == 0 {
                opened.unwrap();
                break;
            }
            refused += u32::from(opened.is_err());
            let mut block = vec![0; at.len()];
            device.inner().read_at(&mut block, at.start as u64).unwrap();
            let is_noted = read_super(device.inner()).unwrap().has_ro(RoCompat::ORPHAN_PRESENT);
            assert!(is_noted || entries(&block).all(|ino| ino == 0), "read {nth}: {opened:?}");
        }
        assert!(refused > 5, "{refused}");
    }
}
