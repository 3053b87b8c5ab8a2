//! The errors of making, changing, serving and ending a mount.

use rustix::io::Errno;
use std::path::PathBuf;

/// Returns what to do about a `/dev/fuse` that cannot be opened.
fn without_fuse(errno: &Errno) -> &'static str {
    match *errno {
        Errno::ACCESS | Errno::PERM => "this user may not open it: it usually has mode 666",
        _ => "is FUSE in the kernel (modprobe fuse)?",
    }
}

/// The reason why something cannot be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// `/dev/fuse` is missing, or not for this user.
    #[error("/dev/fuse: {0}; {advice}", advice = without_fuse(.0))]
    NoFuse(#[source] Errno),
    /// The directory cannot be mounted on.
    #[error("{}: {errno}", dir.display())]
    Directory {
        /// The directory.
        dir: PathBuf,
        /// Why.
        errno: Errno,
    },
    /// mount(2) or umount(2) failed.
    #[error("{call} of {}: {errno}", dir.display())]
    System {
        /// Which.
        call: &'static str,
        /// The directory.
        dir: PathBuf,
        /// Why.
        errno: Errno,
    },
    /// fusermount3, which mounts for users, failed.
    #[error("fusermount3: {0}")]
    Helper(String),
    /// The directory is no mount.
    #[error("{}: not mounted", .0.display())]
    NotMounted(PathBuf),
    /// The directory is a mount, and not one of lanefs.
    #[error("{}: the mount there is not of lanefs but of type {kind}", dir.display())]
    NotOfLanefs {
        /// The directory.
        dir: PathBuf,
        /// The type of its mount.
        kind: String,
    },
    /// The request needs a volume that is open for writing, and the server has opened it for
    /// reading only.
    #[error("{}: the volume was opened ro; unmount it, and mount it again without", .0.display())]
    OpenedReadOnly(PathBuf),
    /// The broker process of a confined server failed, or has gone.
    #[error("the broker process of the mount: {0}")]
    BrokerProcess(#[from] std::io::Error),
    /// What the broker process of a confined server says.
    #[error("{0}")]
    Found(String),
    /// An option that fusermount3 gives to root's mounts only.
    #[error("mount option '{0}': only root's mounts can have it")]
    OnlyForRoot(&'static str),
    /// An option that the server must have been started with.
    #[error("{}: {word} is an option of a mount from its beginning; unmount it, and mount it again", dir.display())]
    FromTheBeginning {
        /// The directory.
        dir: PathBuf,
        /// The option.
        word: &'static str,
    },
}

/// The reason why a mount cannot be made, or ended badly.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// It could not be mounted.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The volume failed.
    #[error(transparent)]
    Volume(lanefs::Error),
    /// `/dev/fuse` failed.
    #[error("/dev/fuse: {0}")]
    Device(#[from] std::io::Error),
    /// The kernel's protocol is not spoken here.
    #[error("the kernel speaks version {0}.{1} of FUSE, which lanefs does not know")]
    Version(u32, u32),
}

/// Leaves out the path of the volume: the caller knows which volume it mounts.
impl From<lanefs::Error> for SessionError {
    fn from(e: lanefs::Error) -> Self {
        Self::Volume(e.into_kind())
    }
}
