//! The operations, the volume that they begin with, and what they change of it.

use crate::half_way::acl;
use lanefs::{
    AtSymlink, Atime, DeviceNumber, Error, FileType, Modifier, NewAttr, Node, OpenOptions, RenameFlags,
    Result, SetAttr, SetTime, SetXattr, Timestamp, Verity, Volume, mmp,
};
use lanefs_device::BlockDevice;
use lanefs_format::{BitEdit, ErrorBehavior, Incompat, InodeFlags, Superblock, Tuning};
use lanefs_sim::{Image, OverlayDevice};
use lanefs_tests::{VirtualClock, patterned};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a volume: three groups, of which the second has a copy of the superblock.
pub(super) const SIZE: u64 = 6 << 20;

/// Blocks of a group.
const GROUP: u64 = 2048;

/// Features: with an orphan file, and with an orphan list.
pub(super) const KINDS: [&str; 2] =
    ["^resize_inode,orphan_file,metadata_csum_seed", "^resize_inode,^orphan_file,^flex_bg"];

const ATTR: NewAttr = NewAttr { permissions: 0o640, uid: 5, gid: 6 };
const NO_DEVICE: DeviceNumber = DeviceNumber { major: 0, minor: 0 };
const WHITEOUT: RenameFlags = RenameFlags::Whiteout { replace: true, uid: 3, gid: 4 };
const LARGE: &str = "user.large";
const ACCESS: &str = "system.posix_acl_access";

/// One block, in two pieces.
const GATHERED: &[&[u8]] = &[&[1; 512], &[2; 512]];

/// The time of all changes.
const NOW: Timestamp = Timestamp { sec: 1_500_000_000, nsec: 0 };

/// Returns options without threads and timers: the same operation makes the same calls each time.
pub(super) fn options() -> OpenOptions {
    let options = OpenOptions::new().write(true).threads(false).commit_interval(Duration::ZERO);
    options.clock(Some(NOW)).mmp_clock(Arc::new(VirtualClock::of_one_host())).cache_bytes(1 << 20)
}

/// The volumes of a kind.
pub(super) struct Base {
    pub(super) kind: &'static str,
    /// Without multiple mount protection.
    pub(super) plain: Image,
    protected: Image,
}

impl Base {
    pub(super) fn new(kind: &'static str) -> Self {
        let args = ["-t", "ext4", "-b", "1024", "-g", "2048", "-N", "96", "-m", "0", "-J", "size=1"];
        let args = [&args[..], &["-O", kind]].concat();
        let device = Arc::new(OverlayDevice::new(patterned(SIZE, &args)));
        let volume = options().open_device(Arc::clone(&device) as _).unwrap();
        fill(&volume).unwrap();
        volume.close().unwrap();
        let plain = Image::from_bytes(device.image().to_bytes());
        mmp::enable(Arc::clone(&device) as _, options(), 5).unwrap();
        Self { kind, plain, protected: Image::from_bytes(device.image().to_bytes()) }
    }
}

fn fill(volume: &Volume) -> Result<()> {
    for dir in ["/a", "/a/x", "/b", "/b/y", "/acl"] {
        volume.create_dir(dir)?;
    }
    let same = ["/same1", "/same2", "/same3"];
    let capable = ["/capable1", "/capable2"];
    let files = ["/a/x/f", "/b/y/g", "/b/z", "/plain", "/own"];
    for file in [&files[..], &same, &capable].concat() {
        volume.write(file, b"some bytes")?;
    }
    volume.create_file("/empty").map(drop)?;
    for file in ["/verity", "/sealed"] {
        volume.write(file, &[8; 5000])?;
    }
    volume.symlink("t".repeat(100), "/link")?;
    large(volume, "/own", 1)?;
    same.iter().try_for_each(|file| large(volume, file, 2))?;
    let set = |path: &str, name: &str, value: &[u8]| volume.set_xattr(path, name, value, SetXattr::Any);
    set("/acl", "system.posix_acl_default", &acl(40))?;
    // The capability is not its only privilege.
    let set_id = SetAttr { permissions: Some(0o6755), ..SetAttr::default() };
    volume.set_attr("/capable2", &set_id, AtSymlink::Follow)?;
    for file in capable {
        // What comes behind it has no room in the inode.
        set(file, "user.filler", &[5; 40])?;
        set(file, "security.capability", &[6; 20])?;
        set(file, ACCESS, &acl(12))?;
    }
    volume.sync()?;
    volume.open_file("/sealed")?.enable_verity(&Verity::default())
}

/// How an operation is run.
#[derive(Clone, Copy)]
enum Run {
    /// On an open volume. The first function is called before, and is no part of the operation.
    Volume { before: fn(&Volume) -> Result<()>, run: fn(&Volume) -> Result<()> },
    /// On a device, whose volume is closed behind it.
    Device { protected: bool, run: fn(Arc<dyn BlockDevice>) -> Result<()> },
}

/// One operation.
pub(super) struct Operation {
    pub(super) name: &'static str,
    run: Run,
}

/// The results of an operation, of the sync behind it, and of the close.
pub(super) struct Outcome {
    pub(super) done: Result<()>,
    pub(super) synced: Result<()>,
    pub(super) closed: Result<()>,
    /// The journal was aborted.
    pub(super) aborted: bool,
}

impl Operation {
    /// Returns the volume that the operation begins with.
    pub(super) fn image<'b>(&self, base: &'b Base) -> &'b Image {
        if self.needs_protection() { &base.protected } else { &base.plain }
    }

    /// Returns whether the volume has multiple mount protection before the operation.
    pub(super) fn needs_protection(&self) -> bool {
        matches!(self.run, Run::Device { protected: true, .. })
    }

    /// Carries the operation out, syncs and closes the volume. Calls `begun` where the operation
    /// begins, and `durable` behind a sync that has succeeded.
    pub(super) fn carry_out(
        &self,
        device: Arc<dyn BlockDevice>,
        begun: impl FnOnce(),
        durable: impl FnOnce(),
    ) -> Outcome {
        let (before, run) = match self.run {
            Run::Volume { before, run } => (before, run),
            Run::Device { run, .. } => {
                begun();
                let done = run(device);
                if done.is_ok() {
                    durable();
                }
                return Outcome { done, synced: Ok(()), closed: Ok(()), aborted: false };
            }
        };
        let volume = options().open_device(device).unwrap();
        before(&volume).unwrap();
        volume.sync().unwrap();
        begun();
        let done = run(&volume);
        let synced = volume.sync();
        if synced.is_ok() {
            durable();
        }
        assert_eq!(volume.stats().journal.credits_overdrawn, 0);
        // Nothing is trimmed: what is asked is whether it could be.
        let aborted = volume.trim(0..0, 1).is_err();
        Outcome { done, synced, closed: volume.close(), aborted }
    }
}

fn nothing(_: &Volume) -> Result<()> {
    Ok(())
}

/// Takes a file from those that share a block. The open volume knows the block then, and other
/// files may share it.
fn leave(volume: &Volume) -> Result<()> {
    volume.remove_xattr("/same3", LARGE)
}

/// Moves the time of the last read behind that of the last change.
fn age(volume: &Volume) -> Result<()> {
    let earlier = Timestamp { sec: NOW.sec - 1000, nsec: 0 };
    let set = SetAttr { atime: Some(SetTime::At(earlier)), ..SetAttr::default() };
    volume.set_attr("/plain", &set, AtSymlink::Follow)
}

const fn op(name: &'static str, run: fn(&Volume) -> Result<()>) -> Operation {
    Operation { name, run: Run::Volume { before: nothing, run } }
}

/// Returns an operation as [`op`] does, in which a file comes to share a block.
const fn sharing(name: &'static str, run: fn(&Volume) -> Result<()>) -> Operation {
    Operation { name, run: Run::Volume { before: leave, run } }
}

/// Returns an operation as [`op`] does, on a file that was read long ago.
const fn aged(name: &'static str, run: fn(&Volume) -> Result<()>) -> Operation {
    Operation { name, run: Run::Volume { before: age, run } }
}

const fn switch(
    name: &'static str,
    protected: bool,
    run: fn(Arc<dyn BlockDevice>) -> Result<()>,
) -> Operation {
    Operation { name, run: Run::Device { protected, run } }
}

fn large(volume: &Volume, path: &str, fill: u8) -> Result<()> {
    volume.set_xattr(path, LARGE, &[fill; 700], SetXattr::Any)
}

fn node(volume: &Volume, path: &str) -> Result<Node> {
    volume.node_at(volume.symlink_metadata(path)?.ino())
}

fn owner_and_mode() -> SetAttr {
    SetAttr { permissions: Some(0o640), uid: Some(5), ..SetAttr::default() }
}

fn salted() -> Verity {
    let mut verity = Verity::default();
    (verity.block_size, verity.salt) = (Some(1024), vec![1, 2, 3]);
    verity
}

fn tuning() -> Tuning {
    Tuning {
        errors: Some(ErrorBehavior::RemountReadOnly),
        reserved_blocks: Some(64),
        default_mount_options: Some(BitEdit { clear: 4, set: 0 }),
        mount_options: Some(b"noatime".to_vec()),
        ..Tuning::default()
    }
}

pub(super) const OPERATIONS: &[Operation] = &[
    op("character device", |v| {
        v.mknod("/new", FileType::CharDevice, DeviceNumber { major: 300, minor: 70_000 }, ATTR)
    }),
    op("block device", |v| {
        v.mknod("/a/new", FileType::BlockDevice, DeviceNumber { major: 8, minor: 1 }, ATTR)
    }),
    op("socket", |v| v.mknod("/new", FileType::Socket, NO_DEVICE, ATTR)),
    op("fifo with an ACL", |v| v.mknod("/acl/new", FileType::Fifo, NO_DEVICE, ATTR)),
    op("file with an ACL", |v| v.create_file("/acl/new").map(drop)),
    op("directory with an ACL", |v| v.create_dir("/acl/new")),
    op("whiteout", |v| v.rename_with("/plain", "/a/new", WHITEOUT)),
    op("whiteout in one directory", |v| {
        v.rename_with("/plain", "/new", RenameFlags::Whiteout { replace: false, uid: 0, gid: 0 })
    }),
    op("whiteout and a file replaced", |v| v.rename_with("/plain", "/b/z", WHITEOUT)),
    op("whiteout of a directory", |v| v.rename_with("/a/x", "/b/new", WHITEOUT)),
    op("exchange of directories", |v| v.rename_with("/a/x", "/b/y", RenameFlags::Exchange)),
    op("exchange of directories in one", |v| v.rename_with("/a", "/b", RenameFlags::Exchange)),
    sharing("share a block", |v| large(v, "/plain", 2)),
    sharing("leave a block for a shared one", |v| large(v, "/own", 2)),
    op("change a shared block", |v| v.set_xattr("/same1", LARGE, &[3; 600], SetXattr::Any)),
    op("leave a shared block", |v| v.remove_xattr("/same1", LARGE)),
    op("free a block", |v| v.remove_xattr("/own", LARGE)),
    op("remove a file with a shared block", |v| v.remove_file("/same1")),
    op("remove an open file with a shared block", |v| {
        let file = v.open_file("/same1")?;
        v.remove_file("/same1")?;
        v.sync()?;
        drop(file);
        Ok(())
    }),
    op("ACL", |v| v.set_xattr("/plain", ACCESS, &acl(40), SetXattr::Any)),
    op("attribute of a link", |v| v.set_xattr("/link", "trusted.note", &[4; 300], SetXattr::Any)),
    op("capability lost, and ACL changed", |v| v.set_attr("/capable1", &owner_and_mode(), AtSymlink::Follow)),
    op("hash tree", |v| v.open_file("/verity")?.enable_verity(&Verity::default())),
    op("hash tree with a salt", |v| v.open_file("/verity")?.enable_verity(&salted())),
    op("remove a file with a hash tree", |v| v.remove_file("/sealed")),
    aged("time of the last read", |v| node(v, "/plain")?.accessed(Atime::Relative)),
    op("flags", |v| {
        let node = node(v, "/plain")?;
        node.set_file_attr(Some(node.flags() | InodeFlags::NODUMP | InodeFlags::NOATIME), None)
    }),
    op("privileges dropped", |v| node(v, "/capable2")?.drop_privileges(Modifier::Other)),
    op("open that truncates", |v| v.open_options().write(true).truncate(true).open("/verity").map(drop)),
    op("write of a handle with O_SYNC", |v| {
        v.open_options().write(true).sync(true).open("/plain")?.write_at(b" and more", 10)
    }),
    op("first write of a handle with O_DSYNC", |v| {
        v.open_options().write(true).dsync(true).open("/empty")?.write_at(b"bytes", 0)
    }),
    op("gathered write", |v| {
        let is_written = v.open_options().write(true).open("/empty")?.write_gathered(GATHERED, 0)?;
        assert!(is_written, "not as a gathered write");
        Ok(())
    }),
    op("rename that replaces nothing", |v| v.rename_with("/b/z", "/a/new", RenameFlags::NoReplace)),
    op("label", |v| v.set_label(b"rare")),
    op("fields of the superblock", |v| v.tune(&tuning())),
    op("seed of the checksums", |v| {
        let is_set = v.info().superblock.has_in(Incompat::CSUM_SEED);
        v.tune(&Tuning { checksum_seed: Some(!is_set), ..Tuning::default() })
    }),
    op("UUID", |v| v.tune(&Tuning { checksum_seed: Some(true), uuid: Some([9; 16]), ..Tuning::default() })),
    switch("protection on", false, |device| mmp::enable(device, options(), 7)),
    switch("another interval", true, |device| mmp::enable(device, options(), 9)),
    switch("protection off", true, |device| mmp::disable(device, options())),
];

/// Returns a line for the hash tree of `/verity`: whole, or none and no block of it.
pub(super) fn verity_line(volume: &Volume) -> String {
    let file = volume.open_file("/verity").unwrap();
    let digest = match file.measure_verity().map_err(Error::into_kind) {
        Ok(digest) => Some(digest),
        Err(Error::NoData) => None,
        Err(e) => panic!("{e}"),
    };
    let behind = file.fiemap(65_536..u64::MAX, 1).unwrap();
    assert_eq!(behind.is_empty(), digest.is_none(), "a hash tree and its flag: {digest:?}");
    format!("/verity {digest:?}")
}

/// Returns a line for what [`volume_lines`](lanefs_tests::volume_lines) does not show of `/plain`.
pub(super) fn plain_line(volume: &Volume) -> String {
    let plain = volume.symlink_metadata("/plain").unwrap();
    format!("/plain read at {:?}, flags {:?}", plain.atime(), plain.flags())
}

/// Returns lines for the superblock and its first copy: the fields that operations change.
pub(super) fn super_lines(image: &Image) -> [String; 2] {
    [0, GROUP].map(|block| {
        let mut bytes = [0; 1024];
        image.read((1 + block) * 1024, &mut bytes);
        let sb = Superblock::parse(&bytes).unwrap();
        let raw = sb.raw();
        format!(
            "superblock in {block}: {:?} {:?} errors {} reserved {} options {:#x} {:?} seed {} mmp {:?}",
            String::from_utf8_lossy(sb.label()),
            raw.s_uuid,
            raw.s_errors.get(),
            sb.reserved_blocks_count(),
            raw.s_default_mount_opts.get(),
            String::from_utf8_lossy(&raw.s_mount_opts),
            sb.has_in(Incompat::CSUM_SEED),
            sb.mmp().map(|(_, interval)| interval)
        )
    })
}
