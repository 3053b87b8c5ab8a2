//! Puts a mount into the tree of names and takes it out: by system calls as root, by fusermount3
//! otherwise.
//!
//! Hazard: a mount that is put over the root directory between the comparison and umount(2) is
//! unmounted in its place, by the kernel's rule for what a path means.

use crate::bdi::Bdi;
use crate::broker::Broker;
use crate::connection::Connection;
use crate::error::MountError;
use crate::fusermount;
use crate::options::MountOptions;
use crate::table::{self, MountDevice, MountEntry};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, flock, fstat, open, syncfs};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
};
use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A mount as its server knows it.
///
/// Neither a path nor a number is a mount: another one may cover the path or take its place, and
/// the kernel gives the numbers of file systems and connections anew. So a server, or its broker,
/// holds an open file of the connection, which is dead when the file system is gone
/// ([`Connection`]). It unmounts by an open root directory, which it has compared with that, and by
/// no path.
#[derive(Debug, Clone)]
pub(crate) struct Mounted {
    dir: PathBuf,
    device: MountDevice,
    by: By,
}

/// The means by which the server identifies its mount, and ends it.
#[derive(Debug, Clone)]
enum By {
    /// The broker, where this process is confined.
    Broker(Arc<Broker>),
    /// Its connection.
    Connection(Arc<Connection>),
    /// The id of its mount, which no other gets, where this user cannot see connections. `None`
    /// before Linux 6.8: then there is the number of its device only.
    Id(Option<u64>),
}

impl By {
    /// Returns how to identify the mount whose root is open.
    fn of(root: &OwnedFd, device: MountDevice) -> Self {
        Connection::find(device.minor)
            .map_or_else(|_| Self::Id(table::unique_id(root)), |found| Self::Connection(Arc::new(found)))
    }
}

/// A mount that was just made.
#[derive(Debug)]
pub(crate) struct NewMount {
    pub(crate) connection: OwnedFd,
    pub(crate) mounted: Mounted,
    pub(crate) bdi: Bdi,
}

impl Mounted {
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn device(&self) -> MountDevice {
        self.device
    }

    /// Unmounts it at each directory where the caller's mount namespace has it, also while it is in
    /// use. A mount that another one covers is left. `sync`: has the kernel write out what it has
    /// cached before, for which the mount must be served.
    ///
    /// # Errors
    /// The first of the system's.
    pub(crate) fn unmount(&self, sync: bool) -> Result<(), MountError> {
        if let By::Broker(broker) = &self.by {
            return broker.unmount(sync);
        }
        let mut outcome = Ok(());
        for entry in table::own().into_iter().rev().filter(|entry| entry.device == self.device) {
            let Some(root) = self.root_at(&entry) else { continue };
            if sync && let Ok(opened) = table::opened(&root) {
                // A failure shows at the next fsync, of which there is none.
                let _ = syncfs(&opened);
            }
            // That may have taken any time. `root` keeps the id of the mount from others.
            if sync && self.root_at(&entry).is_none() {
                continue;
            }
            outcome = outcome.and(detach_root(&root, &entry.at));
        }
        outcome
    }

    /// Returns the root of a mount of the table, if it is this one's file system. While it is open,
    /// no other file system has its number.
    fn root_at(&self, entry: &MountEntry) -> Option<OwnedFd> {
        let root = entry.root().filter(|root| table::device_of(root) == Ok(self.device))?;
        let is_own = match &self.by {
            By::Broker(_) => false,
            By::Connection(connection) => connection.is_alive(),
            By::Id(id) => id.is_none() || table::unique_id(&root) == *id,
        };
        is_own.then_some(root)
    }

    /// Ends the connection: the server gets ENODEV, and a mount that is left somewhere is dead.
    ///
    /// # Errors
    /// The errors of [`Connection::abort`].
    pub(crate) fn abort(&self) -> Result<(), MountError> {
        let failed = |errno| MountError::System { call: "abort", dir: self.dir.clone(), errno };
        self.end_connection().map_err(failed)
    }

    /// Ends the connection as [`abort`](Self::abort) does, and returns the bare error.
    pub(crate) fn end_connection(&self) -> rustix::io::Result<()> {
        match &self.by {
            By::Broker(broker) => broker.abort(),
            By::Connection(connection) => connection.abort(),
            By::Id(_) => Err(Errno::NOENT),
        }
    }
}

/// Mounts at `dir`.
pub(crate) fn mount(source: &OsStr, dir: &Path, options: &MountOptions) -> Result<NewMount, MountError> {
    let bad = |errno| MountError::Directory { dir: dir.into(), errno };
    let point = table::point(dir).map_err(bad)?;
    let path = table::path_of(&point).ok_or_else(|| bad(Errno::NOENT))?;
    if rustix::process::geteuid().is_root() {
        let failed = |errno| MountError::System { call: "mount", dir: path.clone(), errno };
        let connection = open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let connection = connection.map_err(MountError::NoFuse)?;
        return by_system(source, connection, path.clone(), &point, options).map_err(failed);
    }
    drop(point);
    let connection = fusermount::mount(source, &path, options)?;
    let (entry, root) = table::at(&path).ok_or_else(|| MountError::NotMounted(path.clone()))?;
    Ok(NewMount::of(connection, path, entry.device, &root))
}

impl NewMount {
    /// Asks the broker to mount.
    ///
    /// # Errors
    /// What the broker says, and where it has gone.
    pub(crate) fn by_broker(broker: &Arc<Broker>) -> Result<Self, MountError> {
        let (connection, dir, device) = broker.mount()?;
        let by = By::Broker(Arc::clone(broker));
        Ok(Self { connection, mounted: Mounted { dir, device, by }, bdi: Bdi::OfBroker(Arc::clone(broker)) })
    }

    fn of(connection: OwnedFd, dir: PathBuf, device: MountDevice, root: &OwnedFd) -> Self {
        let (bdi, by) = (Bdi::open(device), By::of(root, device));
        Self { connection, mounted: Mounted { dir, device, by }, bdi }
    }
}

/// Mounts at an open directory, of the path `dir`. Opens every file that belongs to the mount
/// before the mount has a place in the tree of names: it may cover a directory on the paths of
/// these files, and no thread serves it yet.
fn by_system(
    source: &OsStr,
    connection: OwnedFd,
    dir: PathBuf,
    point: &OwnedFd,
    options: &MountOptions,
) -> rustix::io::Result<NewMount> {
    let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let set = |key: &str, value: &str| fsconfig_set_string(context.as_fd(), key, value);
    fsconfig_set_string(context.as_fd(), "source", options.fsname.as_deref().unwrap_or(source))?;
    set("subtype", options.subtype())?;
    set("fd", &connection.as_raw_fd().to_string())?;
    set("rootmode", "40000")?;
    set("user_id", &rustix::process::getuid().as_raw().to_string())?;
    set("group_id", &rustix::process::getgid().as_raw().to_string())?;
    if options.kernel_checks() {
        fsconfig_set_flag(context.as_fd(), "default_permissions")?;
    }
    if options.allows_others(true) {
        fsconfig_set_flag(context.as_fd(), "allow_other")?;
    }
    for word in options.super_flags() {
        fsconfig_set_flag(context.as_fd(), word)?;
    }
    fsconfig_create(context.as_fd())?;
    let flags = attributes(options.flags);
    let mount = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
    let new = NewMount::of(connection, dir, table::device_of(&mount)?, &mount);
    let open = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount.as_fd(), "", point.as_fd(), "", open)?;
    Ok(new)
}

/// Returns the flags of a mount that are its own, and not those of its file system.
fn attributes(flags: MountFlags) -> MountAttrFlags {
    let table = [
        (MountFlags::RDONLY, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (MountFlags::NOSUID, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (MountFlags::NODEV, MountAttrFlags::MOUNT_ATTR_NODEV),
        (MountFlags::NOEXEC, MountAttrFlags::MOUNT_ATTR_NOEXEC),
        (MountFlags::NOATIME, MountAttrFlags::MOUNT_ATTR_NOATIME),
        (MountFlags::STRICTATIME, MountAttrFlags::MOUNT_ATTR_STRICTATIME),
        (MountFlags::NODIRATIME, MountAttrFlags::MOUNT_ATTR_NODIRATIME),
        (MountFlags::NOSYMFOLLOW, MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW),
    ];
    let set = table.into_iter().filter(|(flag, _)| flags.contains(*flag));
    set.fold(MountAttrFlags::empty(), |all, (_, attribute)| all | attribute)
}

/// Unmounts the mount whose root is open, also while it is in use. It is in use by that root, until
/// the caller closes it.
fn detach_root(root: &OwnedFd, dir: &Path) -> Result<(), MountError> {
    match rustix::mount::unmount(table::name_of(root), UnmountFlags::DETACH) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) if !rustix::process::geteuid().is_root() => fusermount::unmount(dir, true),
        Err(errno) => Err(MountError::System { call: "umount", dir: dir.into(), errno }),
    }
}

fn detach(dir: &Path, lazy: bool) -> Result<(), MountError> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(dir, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) if !rustix::process::geteuid().is_root() => fusermount::unmount(dir, lazy),
        Err(errno) => Err(MountError::System { call: "umount", dir: dir.into(), errno }),
    }
}

/// A mount of lanefs as a command knows it: by its mount id. The path is compared right before
/// umount(2).
#[derive(Debug)]
pub struct MountPoint {
    /// As the caller names it.
    dir: PathBuf,
    entry: MountEntry,
    /// `None` if this user may not see it.
    connection: Option<Connection>,
}

impl MountPoint {
    /// Finds the uppermost mount at `dir`. `is_served` says of a file system whether a server of
    /// lanefs serves it, which one with another type ([`MountOptions`] `subtype`) is recognized by.
    /// Nothing is asked of the mount, whose server may hang.
    ///
    /// # Errors
    /// [`MountError::NotMounted`], and [`MountError::NotOfLanefs`] for a mount of another kind.
    pub fn find(dir: &Path, is_served: impl FnOnce(MountDevice) -> bool) -> Result<Self, MountError> {
        let (entry, root) = table::at(dir).ok_or_else(|| MountError::NotMounted(dir.into()))?;
        if entry.is_of_lanefs() || is_served(entry.device) {
            let connection = Connection::find(entry.device.minor).ok();
            drop(root);
            return Ok(Self { dir: dir.into(), entry, connection });
        }
        Err(MountError::NotOfLanefs { dir: dir.into(), kind: entry.kind() })
    }

    /// Returns the uppermost mount of lanefs in this mount namespace whose volume is `source`, as
    /// the table of mounts names it.
    pub fn of_volume(source: &OsStr) -> Option<Self> {
        let own = table::own().into_iter().rev();
        let mut entries = own.filter(|entry| entry.is_of_lanefs() && entry.source.as_os_str() == source);
        let entry = entries.find(|entry| entry.root().is_some())?;
        let connection = Connection::find(entry.device.minor).ok();
        Some(Self { dir: entry.at.clone(), entry, connection })
    }

    /// Opens its root directory, which asks its server.
    ///
    /// # Errors
    /// [`MountError::NotMounted`] if it has gone, or another mount covers it; the system's.
    pub fn open_root(&self) -> Result<OwnedFd, MountError> {
        let root = self.entry.root().ok_or_else(|| MountError::NotMounted(self.dir.clone()))?;
        let failed = |errno| MountError::System { call: "open", dir: self.dir.clone(), errno };
        table::opened(&root).map_err(failed)
    }

    /// Returns the directory that it is mounted at.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the device number of its file system.
    pub fn device(&self) -> MountDevice {
        self.entry.device
    }

    /// Returns the source of the mount, as the table of mounts names it.
    pub fn source(&self) -> &Path {
        &self.entry.source
    }

    /// Takes this mount out of the tree of names. `lazy`: also while it is in use. Its server may
    /// still close the volume.
    ///
    /// # Errors
    /// EBUSY while it is in use, unless `lazy`; [`MountError::NotMounted`] if it has gone, or
    /// another mount covers it.
    pub fn unmount(&self, lazy: bool) -> Result<(), MountError> {
        self.entry.root().ok_or_else(|| MountError::NotMounted(self.dir.clone()))?;
        detach(&self.entry.at, lazy)
    }

    /// Ends the connection of its file system, whatever uses it: the server closes the volume. What
    /// the kernel has cached and not written out is lost.
    ///
    /// # Errors
    /// The system's.
    pub fn abort(&self) -> Result<(), MountError> {
        let failed = |errno| MountError::System { call: "abort", dir: self.dir.clone(), errno };
        self.connection.as_ref().map_or(Err(Errno::NOENT), Connection::abort).map_err(failed)
    }

    /// Returns whether the caller's mount namespace still has the file system mounted, at any
    /// directory.
    pub fn is_left(&self) -> bool {
        table::own().iter().any(|entry| entry.device == self.entry.device)
    }

    /// Sets the flags that an option has named. The other flags, and the volume itself, stay as
    /// they are. `only_reads` says of a file system whether its server opened the volume read-only,
    /// if it is known; a server that shares the lock of the volume is taken for one.
    ///
    /// # Errors
    /// [`MountError::FromTheBeginning`] for what the server would have to know,
    /// [`MountError::OpenedReadOnly`], and the system's.
    pub fn remount(
        &self,
        options: &MountOptions,
        only_reads: impl FnOnce(MountDevice) -> Option<bool>,
    ) -> Result<(), MountError> {
        let (flags, named) = (options.flags, options.named);
        let gone = || MountError::NotMounted(self.dir.clone());
        let root = self.entry.root().ok_or_else(gone)?;
        if let Some(word) = needs_new_server(self.entry.flags, flags & named, named) {
            return Err(MountError::FromTheBeginning { dir: self.dir.clone(), word });
        }
        let flags = (self.entry.flags - named) | (flags & named);
        let becomes_writable = (self.entry.flags - flags).contains(MountFlags::RDONLY);
        if becomes_writable && only_reads(self.entry.device).unwrap_or_else(|| self.shares_lock()) {
            return Err(MountError::OpenedReadOnly(self.dir.clone()));
        }
        let failed = |errno| MountError::System { call: "remount", dir: self.dir.clone(), errno };
        rustix::mount::mount_remount(table::name_of(&root), flags, c"").map_err(failed)
    }

    /// Returns whether its server shares the lock of the volume.
    fn shares_lock(&self) -> bool {
        let shares = || {
            // A user's mount may name anything as its source, and opening a device may start
            // something.
            let source = open(self.source(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
            let kind = FileType::from_raw_mode(fstat(&source)?.st_mode);
            if !matches!(kind, FileType::RegularFile | FileType::BlockDevice) {
                return Err(Errno::INVAL);
            }
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
            let file = open(table::name_of(&source), flags, Mode::empty())?;
            flock(&file, FlockOperation::NonBlockingLockShared)
        };
        shares().is_ok()
    }
}

/// Returns the first change of a mount's flags `now` that its server would have to know of, by its
/// word.
fn needs_new_server(now: MountFlags, wanted: MountFlags, named: MountFlags) -> Option<&'static str> {
    let added = [(MountFlags::SYNCHRONOUS, "sync"), (MountFlags::DIRSYNC, "dirsync")];
    let added = added.into_iter().find(|(flag, _)| (wanted - now).contains(*flag));
    let changed = [
        (MountFlags::NOATIME, "noatime"),
        (MountFlags::STRICTATIME, "strictatime"),
        (MountFlags::RELATIME, "relatime"),
        (MountFlags::NODIRATIME, "nodiratime"),
    ];
    let differs = |flag: MountFlags| named.contains(flag) && (wanted ^ now).contains(flag);
    // Of flags that exclude each other, the flag that is asked for.
    let changed = || {
        let mut all = changed.into_iter().filter(|(flag, _)| differs(*flag));
        let first = all.clone().find(|(flag, _)| wanted.contains(*flag));
        first.or_else(|| all.next())
    };
    added.or_else(changed).map(|(_, word)| word)
}

/// Returns whether there is a mount of lanefs at that directory, or of that volume.
pub fn is_mounted(path: &Path) -> bool {
    let is = |entry: &MountEntry| entry.at == path || table::is_source(entry, path.as_os_str());
    table::own().iter().any(|entry| entry.is_of_lanefs() && is(entry))
}

/// Waits for up to five seconds while a server closes the volume in `source` whose mount has gone
/// already. A caller that `writes` waits also for a server that reads.
pub fn await_closing(source: &Path, writes: bool) {
    const STEP: Duration = Duration::from_millis(5);
    if table::own().iter().any(|entry| table::is_source(entry, source.as_os_str())) {
        return;
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let Ok(file) = open(source, flags, Mode::empty()) else { return };
    let free =
        if writes { FlockOperation::NonBlockingLockExclusive } else { FlockOperation::NonBlockingLockShared };
    // If it stays in use, the error of opening it says by which process.
    for _ in 0..1000 {
        match flock(&file, free) {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(STEP),
            _ => return,
        }
    }
}
