//! A mount, from FUSE_INIT until its volume is closed.
//!
//! Invariant: a mount that could not begin, or whose serving failed, is aborted, unmounted and
//! closed. Otherwise programs would wait for it for ever.
//!
//! Hazard: the volume closes after the mount has gone from the table. A program that opens it at
//! once may find it locked for a moment.

use crate::bdi::CacheRule;
use crate::broker::Broker;
use crate::error::{MountError, SessionError};
use crate::filesystem::Filesystem;
use crate::init::WantedFeatures;
use crate::monitor::{Link, Monitor};
use crate::mountpoint::{self, Mounted, NewMount};
use crate::options::MountOptions;
use crate::scheduling::{Following, Workers};
use crate::server::Server;
use crate::table::MountDevice;
use lanefs::Volume;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

/// A volume that is mounted.
#[derive(Debug)]
pub struct Session {
    server: Arc<Server>,
    link: Link,
    mounted: Mounted,
}

/// A handle that ends a mount from another thread.
#[derive(Debug, Clone)]
pub struct Unmounter {
    mounted: Mounted,
    link: Link,
}

impl Unmounter {
    /// Ends the mount, with all written out that the kernel had cached. It is unmounted wherever
    /// this mount namespace has it. If that was not all of it (another mount covers it, another
    /// namespace has it, or a program has files open), its connection is aborted: programs that use
    /// it get ENOTCONN from then on.
    ///
    /// # Errors
    /// The system's. The mount is then still there.
    pub fn unmount(&self) -> Result<(), MountError> {
        self.link.with(|server| server.end(&self.mounted)).unwrap_or(Ok(()))
    }
}

impl Session {
    /// Mounts `volume` at `dir`. `source` is the name of the volume in `/proc/mounts`.
    ///
    /// # Errors
    /// Whatever keeps it from being mounted; the volume is then closed.
    pub fn mount(
        volume: Volume,
        source: &OsStr,
        dir: &Path,
        options: &MountOptions,
    ) -> Result<Self, SessionError> {
        Self::begin(volume, options, None, || mountpoint::mount(source, dir, options))
    }

    /// Mounts `volume` by way of a broker process, which was told source, directory and options
    /// when it was started: `options` must be the same. For a process that is confined.
    ///
    /// # Errors
    /// Whatever keeps it from being mounted; the volume is then closed.
    pub fn mount_by(
        broker: &Arc<Broker>,
        volume: Volume,
        options: &MountOptions,
    ) -> Result<Self, SessionError> {
        Self::begin(volume, options, Some(Arc::clone(broker)), || NewMount::by_broker(broker))
    }

    fn begin(
        volume: Volume,
        options: &MountOptions,
        broker: Option<Arc<Broker>>,
        mount: impl FnOnce() -> Result<NewMount, MountError>,
    ) -> Result<Self, SessionError> {
        let time_gran = time_gran(&volume);
        let features = WantedFeatures { acl: options.acl(), no_open: options.no_open, time_gran };
        let following = Following::new(options.follow, broker.clone());
        let mut filesystem = Filesystem::new(volume, options, broker)?;
        let NewMount { connection, mounted, bdi } = match mount() {
            Ok(new) => new,
            Err(e) => {
                filesystem.close()?;
                return Err(e.into());
            }
        };
        filesystem.mounted_as(mounted.device());
        let mut server = Server::new(connection, filesystem, Workers::new(options.threads, following));
        match server.shake_hands(features) {
            Ok(()) => {
                // Only now: the kernel's own values come with the first word.
                bdi.set(CacheRule::Roomy);
                server.bounded_in(bdi);
                let server = Arc::new(server);
                Ok(Self { link: Link::to(&server), server, mounted })
            }
            Err(e) => {
                // No thread serves the mount.
                let _ = mounted.abort();
                let _ = mounted.unmount(false);
                server.close()?;
                Err(e)
            }
        }
    }

    /// Returns a handle that ends the mount from another thread.
    pub fn unmounter(&self) -> Unmounter {
        Unmounter { mounted: self.mounted.clone(), link: self.link.clone() }
    }

    /// Returns the device number of the mounted file system.
    pub fn device(&self) -> MountDevice {
        self.mounted.device()
    }

    /// Returns a handle that reads what the mount is doing from another thread.
    pub fn monitor(&self) -> Monitor {
        Monitor::new(self.link.clone())
    }

    /// Returns the directory that it is mounted at.
    pub fn dir(&self) -> &Path {
        self.mounted.dir()
    }

    /// Answers the kernel until the mount is gone, and closes the volume. `ending` runs in between:
    /// its effects are there for a process that waits until the volume is closed.
    ///
    /// # Errors
    /// Failures of `/dev/fuse`, and those of closing the volume.
    pub fn serve(self, ending: impl FnOnce()) -> Result<(), SessionError> {
        let served = self.server.serve();
        if served.is_err() {
            let _ = self.mounted.abort();
            let _ = self.mounted.unmount(false);
        }
        self.link.cut();
        ending();
        if let Some(server) = Arc::into_inner(self.server) {
            server.close()?;
        }
        Ok(served?)
    }
}

/// Returns the resolution of times of the volume in nanoseconds: small inodes have no room for
/// parts of a second.
fn time_gran(volume: &Volume) -> u32 {
    if volume.info().superblock.inode_size() == 128 { 1_000_000_000 } else { 1 }
}
