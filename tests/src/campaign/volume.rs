//! The volumes that workloads run on: as small as can be, with little in them, and old data in
//! every free block.

use super::model::{MADE, Model, XATTR};
use super::observed::Observed;
use super::step::Slot;
use crate::{Kind, OLD, e2fsck_clean, fixed_options, memory_dir, patterned};
use lanefs::{AtSymlink, NewAttr, SetAttr, SetXattr, Volume};
use lanefs_device::{BlockDevice, MemDevice};
use lanefs_sim::Image;
use std::sync::{Arc, OnceLock};

/// The shape of a volume.
#[derive(Debug)]
pub(super) struct Shape {
    /// Its name.
    pub(super) name: &'static str,
    /// Bytes.
    pub(super) size: u64,
    /// Bytes of a block.
    pub(super) block: usize,
    /// Arguments of mke2fs.
    pub(super) args: &'static [&'static str],
    /// Free blocks that are left, if it is to be nearly full.
    pub(super) free: Option<u64>,
    /// Names that the empty directory `/B/d` had before: it has the blocks for them.
    pub(super) names: usize,
    made: OnceLock<Start>,
}

impl Shape {
    /// A number of its own for each shape.
    pub(super) fn key(&self) -> u64 {
        self.name.bytes().fold(0, |key: u64, byte| (key ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    /// Returns whether metadata has checksums.
    pub(super) fn has_checksums(&self) -> bool {
        !self.args.contains(&"ext3")
    }

    /// Returns whether files are mapped by extents.
    pub(super) fn has_extents(&self) -> bool {
        !self.args.contains(&"ext3")
    }

    /// The volume before the first step; made once in a process.
    ///
    /// # Panics
    /// If it cannot be made.
    pub(super) fn start(&self) -> &Start {
        self.made.get_or_init(|| Start::new(self))
    }
}

/// Arguments of all shapes: as few and as small structures as there can be.
const ARGS: &[&str] = &["-b", "1024", "-N", "48", "-m", "0"];

const fn shape(name: &'static str, kib: u64, args: &'static [&'static str]) -> Shape {
    used(name, kib, args, None, 0)
}

/// A shape of a volume that was used: nearly full, or with a large directory.
const fn used(
    name: &'static str,
    kib: u64,
    args: &'static [&'static str],
    free: Option<u64>,
    names: usize,
) -> Shape {
    Shape { name, size: kib << 10, block: 1024, args, free, names, made: OnceLock::new() }
}

const JOURNAL: &[&str] = &["-t", "ext4", "-J", "size=1", "-O", "^resize_inode"];

/// All shapes.
pub(super) static SHAPES: [Shape; 7] = [
    shape("small", 2560, JOURNAL),
    used("full", 2560, JOURNAL, Some(10), 0),
    used("aged", 8 << 10, JOURNAL, None, 5000),
    shape(
        "orphan-file",
        2560,
        &["-t", "ext4", "-J", "size=1", "-O", "^resize_inode,orphan_file,metadata_csum_seed"],
    ),
    shape("mmp", 2560, &["-t", "ext4", "-J", "size=1", "-O", "^resize_inode,mmp"]),
    shape("ext3", 2560, &["-t", "ext3", "-J", "size=1", "-O", "^resize_inode"]),
    shape("no-journal", 1024, &["-t", "ext4", "-O", "^has_journal,^resize_inode"]),
];

/// A closed volume, and its content.
#[derive(Debug)]
pub(super) struct Start {
    /// The volume.
    pub(super) image: Image,
    /// Its content, by the model.
    pub(super) model: Model,
    /// Its content, by a walk.
    pub(super) observed: Observed,
}

/// The file that takes the space of a volume that is nearly full.
const FILLER: &str = "/filler";

/// A file that is changed only to commit.
pub(super) const POKED: &str = "/poked";

/// The files that no step touches and no walk reads.
pub(super) const APART: [&str; 3] = [FILLER, POKED, "/lost+found"];

/// The bytes of `/A/f` and `/B/g`.
pub(super) const F: u8 = 201;
pub(super) const G: u8 = 202;

impl Start {
    /// Makes a volume.
    ///
    /// # Panics
    /// If e2fsck finds anything wrong with it.
    fn new(shape: &Shape) -> Self {
        let args: Vec<&str> = ARGS.iter().chain(shape.args).copied().collect();
        let device = Arc::new(MemDevice::from_bytes(patterned(shape.size, &args).to_bytes()));
        let shared: Arc<dyn BlockDevice> = Arc::clone(&device) as _;
        let volume = fixed_options().open_device(shared).expect("a new volume");
        let model = fill(&volume, shape.block).expect("a volume with space");
        age(&volume, shape.names).expect("a volume with space");
        if let Some(free) = shape.free {
            leave(&volume, free, shape.block).expect("a volume with space");
        }
        volume.sync().expect("sync");
        let observed = Observed::of(&volume).expect("a walk");
        volume.close().expect("close");
        let bytes = device.to_bytes();
        let dir = memory_dir();
        let path = dir.path().join("start");
        std::fs::write(&path, &bytes).expect("a file");
        e2fsck_clean(&path);
        Self { image: Image::from_bytes(bytes), model, observed }
    }
}

/// Makes directories and files, on the volume and in the model.
fn fill(volume: &Volume, block: usize) -> lanefs::Result<Model> {
    let mut model = Model { block, ..Model::default() };
    let root = model.make("/", Kind::Directory);
    let inode = &mut model.names.inodes[root];
    (inode.mode, inode.uid, inode.gid) = (0o755, 0, 0);
    // lost+found
    inode.nlink += 1;
    let attr = NewAttr { permissions: MADE.0, uid: MADE.1, gid: MADE.2 };
    volume.set_attr(
        "/",
        &SetAttr { permissions: Some(0o755), uid: Some(0), ..SetAttr::default() },
        AtSymlink::Follow,
    )?;
    for dir in ["/A", "/B", "/B/d"] {
        volume.create_dir_with(dir, attr)?;
        model.make(dir, Kind::Directory);
    }
    drop(volume.create_file(POKED)?);
    for (path, slot, fill, pieces, xattr) in [
        ("/A/f", Slot::F, F, vec![(0, 2 * block + block / 2)], 20),
        // More extents than an inode holds: the map has a block of its own.
        ("/B/g", Slot::G, G, (0..6).map(|i| (2 * i * block, block)).collect(), block / 2),
    ] {
        let file = volume.open_options().write(true).create_new(true).attr(attr).open(path)?;
        let id = model.make(path, Kind::File);
        let content = model.contents.entry(id).or_default();
        for (at, len) in pieces {
            file.write_at(&vec![fill; len], at as u64)?;
            content.resize(at + len, 0);
            content[at..].fill(fill);
        }
        let value = vec![b'x'; xattr];
        volume.set_xattr(path, XATTR, &value, SetXattr::Any)?;
        model.names.inodes[id].xattrs.insert(XATTR.into(), value);
        model.slots.insert(slot, id);
    }
    Ok(model)
}

/// Gives `/B/d` `names` long names, and takes them away.
fn age(volume: &Volume, names: usize) -> lanefs::Result<()> {
    let name = |i: usize| format!("/B/d/{i:0>250}");
    (0..names).try_for_each(|i| volume.hard_link("/A/f", name(i)))?;
    (0..names).try_for_each(|i| volume.remove_file(name(i)))
}

/// Takes all space but `free` blocks.
fn leave(volume: &Volume, free: u64, block: usize) -> lanefs::Result<()> {
    let file = volume.create_file(FILLER)?;
    let mut at = 0;
    loop {
        volume.sync()?;
        let left = volume.statfs().blocks_free.saturating_sub(free);
        if left == 0 {
            return Ok(());
        }
        // The map takes blocks too.
        let piece = (left / 2).max(1) * block as u64;
        file.write_at(&vec![OLD; piece as usize], at)?;
        at += piece;
    }
}
