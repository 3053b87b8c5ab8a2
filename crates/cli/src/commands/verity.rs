//! `lanefs verity`: the hash tree of dm-verity behind a volume, or in a file of its own.
//!
//! Behind a volume the tree begins at the first multiple of 4096 bytes. A file grows by what the
//! tree needs; a partition or a device must have the room.

use super::fsverity::{Enable, Measure};
use crate::failure::{Cause, Failure, OrCannot, Res};
use crate::hex_bytes::{Bytes, bytes};
use crate::location::{VolumeName, whole_volume};
use crate::output::Out;
use crate::progress::Progress;
use crate::quote::hex;
use crate::volumes::{self, file_of, names_file, names_part};
use lanefs_archive::content::{self, Content};
use lanefs_device::{BlockDevice, FileOptions};
use lanefs_format::Incompat;
use lanefs_verity::{Algorithm, Header, VerityError};
use std::ffi::OsString;
use std::io::Read;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use uuid::Uuid;

/// The alignment of a tree behind a volume: a multiple of the largest block.
const ALIGN: u64 = 4096;

/// Make and verify hash trees: of a read-only volume (dm-verity), and of files (fs-verity)
///
/// `veritysetup open` gives the volume to the kernel by its root hash, which the boot chain vouches
/// for. The tree is byte for byte what `veritysetup format` makes with the same salt and UUID.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: VerityAction,
}

#[derive(Debug, clap::Subcommand)]
enum VerityAction {
    /// Make the hash tree, and print its root hash
    Format(Format),
    /// Verify a volume against its hash tree; the first wrong block is named
    Verify {
        #[command(flatten)]
        place: TreePlace,
        /// The root hash that the tree must have; without it, its own is printed
        #[arg(value_parser = bytes)]
        root_hash: Option<Bytes>,
    },
    /// Show the superblock of the hash tree
    Dump {
        #[command(flatten)]
        place: TreePlace,
    },
    /// Give files hash trees (fs-verity): their content cannot change any more, and is verified
    /// when it is read
    Enable(Enable),
    /// Print the fs-verity digests of files, as `fsverity digest` does for trees of the same
    /// block size
    Measure(Measure),
}

#[derive(Debug, clap::Args)]
struct TreePlace {
    /// The volume
    volume: OsString,
    /// The tree is in this file, and vouches for all of the file or device of the volume
    #[arg(long, value_name = "FILE")]
    hash_file: Option<PathBuf>,
}

/// The data, the hashes, and the place of the superblock on the latter.
type Devices = (Arc<dyn BlockDevice>, Arc<dyn BlockDevice>, u64);

#[derive(Debug, clap::Args)]
struct Format {
    #[command(flatten)]
    place: TreePlace,
    /// In hexadecimal, `-` for none; random otherwise
    #[arg(long, value_name = "HEX", value_parser = bytes, allow_hyphen_values = true)]
    salt: Option<Bytes>,
    /// The UUID of the tree; random otherwise
    #[arg(long)]
    uuid: Option<Uuid>,
    /// The hash algorithm
    #[arg(long, value_name = "NAME", default_value = "sha256", value_parser = algorithm)]
    hash: Algorithm,
    /// Bytes of a block that has a digest
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    data_block_size: u32,
    /// Bytes of a block of the tree
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    hash_block_size: u32,
    /// Overwrite existing data in the place of the tree
    #[arg(short, long)]
    force: bool,
}

fn algorithm(text: &str) -> Result<Algorithm, String> {
    Algorithm::by_name(text).ok_or_else(|| "sha256 and sha512 are known".into())
}

impl Args {
    pub(crate) fn run(self, out: &mut Out) -> Res {
        match self.action {
            VerityAction::Format(format) => format.run(out),
            VerityAction::Enable(enable) => enable.run(),
            VerityAction::Measure(measure) => measure.run(out),
            VerityAction::Verify { place, root_hash } => place.verify(root_hash, out),
            VerityAction::Dump { place } => {
                let (_, hashes, offset) = place.open()?;
                let header = Header::read(&*hashes, offset).map_err(cause);
                show(&header.or_cannot("read", place.volume.as_bytes())?, out)
            }
        }
    }
}

impl TreePlace {
    fn name(&self) -> VolumeName {
        whole_volume(&self.volume)
    }

    /// Opens the data and the hashes for reading.
    fn open(&self) -> Res<Devices> {
        let name = self.name();
        let data = volumes::device(&name)?;
        match &self.hash_file {
            Some(file) => Ok((data, volumes::device(&file.into())?, 0)),
            None => {
                let end = volume_size(&*data, &name)?.next_multiple_of(ALIGN);
                Ok((data.clone(), data, end))
            }
        }
    }

    fn verify(&self, root: Option<Bytes>, out: &mut Out) -> Res {
        let (data, hashes, offset) = self.open()?;
        let fail = |why| Failure::cannot("verify", self.volume.as_bytes(), why);
        let total = match self.hash_file {
            Some(_) => data.size(),
            None => volume_size(&*data, &self.name())?,
        };
        let covered = Header::read(&*hashes, offset).map_err(|e| fail(cause(e)))?.data_size();
        if covered != total {
            let why = format!("the tree is for {covered} bytes of data, and there are {total}");
            return Err(fail(Cause::text(why)));
        }
        let progress = Mutex::new(Progress::new("verifying", Some(total)));
        let root = root.map(|root| root.0);
        let verified = lanefs_verity::verify(&*data, &*hashes, offset, root.as_deref(), &count(&progress));
        drop(progress);
        let found = verified.map_err(|e| fail(cause(e)))?;
        if root.is_none() {
            writeln!(out, "{:<16} {}", "Root hash", hex(&found))?;
        }
        Ok(())
    }
}

impl Format {
    fn run(self, out: &mut Out) -> Res {
        let name = self.place.name();
        let fail = |why: String| Failure::cannot("make the hash tree of", name.as_bytes(), Cause::text(why));
        // For writing from the start: nothing is done to a volume that another process uses.
        let device = match self.place.hash_file {
            Some(_) => volumes::device(&name)?,
            None => volumes::writable_device(&name)?,
        };
        let data_size = match self.place.hash_file {
            Some(_) => device.size(),
            None => volume_size(&*device, &name)?,
        };
        if !self.data_block_size.is_power_of_two() || !data_size.is_multiple_of(self.data_block_size.into()) {
            return Err(fail(format!(
                "its size, {data_size} bytes, is not a multiple of {}; --data-block-size 1024 may do",
                self.data_block_size
            )));
        }
        let header = Header {
            algorithm: self.hash,
            uuid: self.uuid.unwrap_or_else(Uuid::new_v4).into_bytes(),
            salt: self.salt.as_ref().map_or_else(random, |salt| Ok(salt.0.clone()))?,
            data_block_size: self.data_block_size,
            hash_block_size: self.hash_block_size,
            data_blocks: data_size / u64::from(self.data_block_size),
        };
        let area = header.area_size().map_err(|e| fail(e.to_string()))?;
        let (data, hashes, offset) = match &self.place.hash_file {
            Some(file) => (device, self.new_file(file, area)?, 0),
            None => {
                let offset = data_size.next_multiple_of(ALIGN);
                let device = self.make_room(device, &name, offset, area)?;
                (device.clone(), device, offset)
            }
        };
        let progress = Mutex::new(Progress::new("hashing", Some(data_size)));
        let made = lanefs_verity::format(&*data, &*hashes, offset, &header, &count(&progress));
        drop(progress);
        let root = made.map_err(cause).or_cannot("make the hash tree of", name.as_bytes())?;
        show(&header, out)?;
        writeln!(out, "{:<16} {}", "Root hash", hex(&root))
    }

    /// Makes the file of the tree.
    fn new_file(&self, file: &PathBuf, area: u64) -> Res<Arc<dyn BlockDevice>> {
        if let Some(there) = content::of_path(file).filter(|_| !self.force) {
            let why = format!("it holds {}; --force writes over it", there.name());
            return Err(Failure::cannot("write", file.as_os_str().as_bytes(), Cause::text(why)));
        }
        let made = FileOptions::new().create(file, area).map_err(lanefs::Error::from);
        Ok(Arc::new(made.or_cannot("write", file.as_os_str().as_bytes())?))
    }

    /// Checks that there is room behind the volume, and nothing but zeros or an older tree of it. A
    /// file grows. Returns the device with the room.
    fn make_room(
        &self,
        device: Arc<dyn BlockDevice>,
        name: &VolumeName,
        offset: u64,
        area: u64,
    ) -> Res<Arc<dyn BlockDevice>> {
        let fail =
            |why: String| Err(Failure::cannot("make the hash tree of", name.as_bytes(), Cause::text(why)));
        let end = offset + area;
        if !self.force {
            let older = Header::read(&*device, offset).ok();
            let older = older.filter(|older| older.data_size().next_multiple_of(ALIGN) == offset);
            let older = older.map_or(Ok(0), |older| older.area_size());
            let older = older.map_err(cause).or_cannot("read", name.as_bytes())?;
            let place = offset.saturating_add(older)..end.min(device.size());
            let found = first_data(&*device, place).map_err(lanefs::Error::from);
            if let Some((at, there)) = found.or_cannot("read", name.as_bytes())? {
                return fail(format!(
                    "behind the volume, at byte {at}, is {}; --force writes over it",
                    there.name()
                ));
            }
        }
        if device.size() >= end {
            return Ok(device);
        }
        let path = file_of(name);
        let grows = names_file(name) && !names_part(name) && path.is_file();
        if !grows {
            let (has, wants) = (device.size() - offset.min(device.size()), area);
            return fail(format!("there are {has} bytes behind the volume, and the tree takes {wants}"));
        }
        let file = std::fs::File::options().write(true).open(path);
        file.and_then(|file| file.set_len(end)).or_cannot("write", name.as_bytes())?;
        if device.measure().is_ok_and(|size| size >= end) {
            return Ok(device);
        }
        // A mapping (`pmem:`) is as long as its file was.
        drop(device);
        volumes::writable_device(name)
    }
}

/// Returns where the first page in `place` is that does not hold zeros only, and what it seems to
/// be.
fn first_data(device: &dyn BlockDevice, place: Range<u64>) -> lanefs_device::Result<Option<(u64, Content)>> {
    let mut piece = vec![0; 1 << 20];
    for at in place.clone().step_by(piece.len()) {
        let piece = &mut piece[..(place.end - at).min(1 << 20) as usize];
        device.read_at(piece, at)?;
        if let Some(byte) = piece.iter().position(|byte| *byte != 0) {
            let byte = byte - byte % ALIGN as usize;
            return Ok(Some((at + byte as u64, content::of_head(&piece[byte..]).unwrap_or(Content::Data))));
        }
    }
    Ok(None)
}

/// Returns the size of the ext4 volume on a device.
fn volume_size(device: &dyn BlockDevice, name: &VolumeName) -> Res<u64> {
    let sb = volumes::read_superblock(device, name)?;
    if sb.has_in(Incompat::RECOVER) {
        let why = "its journal has to be replayed first, which changes it: lanefs recover";
        return Err(Failure::cannot("hash", name.as_bytes(), Cause::text(why)));
    }
    let size = sb.blocks_count().saturating_mul(sb.block_size().into());
    if size > device.size() {
        let why = format!("the volume has {size} bytes and its device {}", device.size());
        return Err(Failure::cannot("hash", name.as_bytes(), Cause::text(why)));
    }
    Ok(size)
}

fn random() -> Res<Vec<u8>> {
    let mut salt = vec![0; 32];
    let source = "/dev/urandom";
    let read = std::fs::File::open(source).and_then(|mut file| file.read_exact(&mut salt));
    read.or_cannot("read", source)?;
    Ok(salt)
}

fn count(progress: &Mutex<Progress>) -> impl Fn(u64) -> bool + Sync {
    |bytes| {
        progress.lock().unwrap_or_else(PoisonError::into_inner).bytes(bytes);
        true
    }
}

fn cause(error: VerityError) -> Cause {
    match error {
        VerityError::Device(e) => lanefs::Error::from(e).into(),
        e => Cause::text(e.to_string()),
    }
}

pub(super) fn show(header: &Header, out: &mut Out) -> Res {
    let salt = if header.salt.is_empty() { "-".into() } else { hex(&header.salt) };
    for (name, value) in [
        ("UUID", Uuid::from_bytes(header.uuid).to_string()),
        ("Hash algorithm", header.algorithm.name().into()),
        ("Data blocks", header.data_blocks.to_string()),
        ("Data block size", header.data_block_size.to_string()),
        ("Hash block size", header.hash_block_size.to_string()),
        ("Salt", salt),
    ] {
        writeln!(out, "{name:<16} {value}")?;
    }
    Ok(())
}
