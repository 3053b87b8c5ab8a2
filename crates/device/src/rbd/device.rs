//! An RBD image as a block device.

use super::error::{RbdError, RbdFailure};
use super::url::RbdUrl;
use crate::{DeviceError, Op, Result};
#[cfg(all(feature = "rbd", unix))]
pub use on_cluster::RbdDevice;
use std::io;
use std::path::Path;

/// Parses a URL, for messages that show it.
fn parse(url: &str) -> Result<RbdUrl> {
    let refused = |why| DeviceError::at_path(Op::Open, Path::new(url), crate::errno::EINVAL, why);
    RbdUrl::parse(url).map_err(refused)
}

fn failure(op: Op, offset: u64, len: u64, url: &str, why: RbdError) -> DeviceError {
    let kind = crate::errno::kind(why.errno());
    let url = matches!(op, Op::Open | Op::Lock).then(|| url.to_owned());
    DeviceError::new(op, offset, len, io::Error::new(kind, RbdFailure { url, why }))
}

/// An RBD image: in a build without the feature `rbd`, which opens none.
#[cfg(not(all(feature = "rbd", unix)))]
#[derive(Debug)]
pub enum RbdDevice {}

#[cfg(not(all(feature = "rbd", unix)))]
impl RbdDevice {
    /// Refuses to open an image.
    ///
    /// # Errors
    /// [`RbdError::NotBuilt`], always.
    pub fn open(url: &str, _options: &crate::FileOptions) -> Result<crate::MemDevice> {
        parse(url)?;
        Err(failure(Op::Open, 0, 0, url, RbdError::NotBuilt))
    }
}

#[cfg(all(feature = "rbd", unix))]
mod on_cluster {
    use super::super::cluster::Pool;
    use super::super::image::Image;
    use super::{DeviceError, Op, RbdError, RbdUrl, Result, failure, parse};
    use crate::block_device::check_range;
    use crate::name_claim::{InUse, NameClaim, Place};
    use crate::{BlockDevice, FileOptions, ReadOp, WriteOp};
    use std::fmt;
    use std::io;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    /// The longest that a cluster takes to fence a holder that has died, and more.
    const FENCING: Duration = Duration::from_secs(90);
    /// The most bytes that one request makes zeros of.
    const CUT_ZEROES: u64 = 256 << 20;

    /// An RBD image, as a device.
    ///
    /// [`open_url`](crate::open_url) opens one by its URL, and a part of it as a
    /// [`Window`](crate::Window). A device for writing holds the image's exclusive lock. Once
    /// another client has broken it, every operation fails with EIO.
    pub struct RbdDevice {
        image: Image,
        size: AtomicU64,
        read_only: bool,
        /// A reader has no lock of the cluster, and is seen by the writers of this host alone.
        _claim: Option<NameClaim>,
    }

    impl fmt::Debug for RbdDevice {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("RbdDevice").field("size", &self.size).finish_non_exhaustive()
        }
    }

    /// What the thread that opens an image reports.
    enum Report {
        /// The step that it begins.
        Step(&'static str, Duration),
        Opened(std::result::Result<(Image, u64), (Op, RbdError)>),
    }

    impl RbdDevice {
        /// Opens the image of a URL: in a thread of its own, because the library has no time limit
        /// for all that an open waits for.
        ///
        /// # Errors
        /// [`Op::Open`] with an [`RbdFailure`](crate::RbdFailure); [`Op::Lock`] while another
        /// client holds the image's lock, and for writing while a process of this host reads the
        /// image. For reading, that refuses a holder that lives, unless the options say `unlocked`
        /// or the URL names a snapshot.
        pub fn open(url: &str, options: &FileOptions) -> Result<Self> {
            let (parsed, read_only, unlocked) = (parse(url)?, options.read_only, options.unlocked);
            let refused = |(op, why)| failure(op, 0, 0, url, why);
            if parsed.snapshot.is_some() && !read_only {
                return Err(refused((Op::Open, RbdError::SnapshotReadOnly)));
            }
            let medium = medium_of(&parsed);
            let in_use = |InUse(by)| refused((Op::Lock, RbdError::InUseHere { by }));
            let is_claimed = read_only && !unlocked && parsed.snapshot.is_none();
            // Before it looks for a writer, which looks for readers once it has the lock.
            let claim = is_claimed.then(|| NameClaim::new(medium.clone(), Place::WHOLE, true));
            let claim = claim.transpose().map_err(in_use)?;
            let check_readers = || match read_only {
                true => Ok(()),
                false => NameClaim::check_readers(&medium).map_err(in_use),
            };
            check_readers()?;
            let (reports, reported) = mpsc::channel();
            let mut waited = (parsed.timeout, "begin");
            let open = move || {
                let step = |name, limit| {
                    // The opener may have given up: what is opened is then closed here.
                    let _ = reports.send(Report::Step(name, limit));
                };
                let opened = open_image(&parsed, read_only, unlocked, &step);
                let _ = reports.send(Report::Opened(opened));
            };
            thread::Builder::new()
                .name("rbd-open".into())
                .spawn(open)
                .map_err(|e| DeviceError::new(Op::Open, 0, 0, e))?;
            let (image, size) = loop {
                match reported.recv_timeout(waited.0) {
                    Ok(Report::Step(step, limit)) => waited = (limit, step),
                    Ok(Report::Opened(opened)) => break opened.map_err(refused)?,
                    Err(_) => {
                        let why = RbdError::Timeout { step: waited.1, seconds: waited.0.as_secs() };
                        return Err(refused((Op::Open, why)));
                    }
                }
            };
            check_readers()?;
            Ok(Self { image, size: size.into(), read_only, _claim: claim })
        }

        fn check_change(&self, op: Op, offset: u64, len: u64) -> Result<()> {
            if self.read_only {
                return Err(DeviceError::new(op, offset, len, io::ErrorKind::ReadOnlyFilesystem.into()));
            }
            check_range(op, self.size(), offset, len)
        }
    }

    /// Returns what tells an image from all others. One cluster by two configurations is two.
    fn medium_of(url: &RbdUrl) -> String {
        let conf = url.conf.clone().or_else(|| std::env::var_os("CEPH_CONF").map(PathBuf::from));
        let conf = conf.unwrap_or_else(|| "/etc/ceph/ceph.conf".into());
        let conf = conf.canonicalize().unwrap_or(conf);
        format!("rbd\0{}\0{}\0{}\0{}", conf.display(), url.pool, url.namespace, url.image)
    }

    fn open_image(
        url: &RbdUrl,
        read_only: bool,
        unlocked: bool,
        step: &dyn Fn(&'static str, Duration),
    ) -> std::result::Result<(Image, u64), (Op, RbdError)> {
        let (open, lock) = (|why| (Op::Open, why), |why| (Op::Lock, why));
        // The library's own limit is to be the first.
        step("connect", url.timeout + Duration::from_secs(5));
        let pool = Pool::open(url).map_err(open)?;
        step("open the image", url.timeout);
        let image = Image::open(pool, url, read_only).map_err(open)?;
        let size = image.size().map_err(open)?;
        if read_only {
            if !unlocked
                && url.snapshot.is_none()
                && image.has_lock().map_err(open)?
                && let Some(by) = image.living_owner().map_err(lock)?
            {
                return Err(lock(RbdError::InUse { by: Some(by) }));
            }
            return Ok((image, size));
        }
        if !image.has_lock().map_err(open)? {
            let spec = [&*url.pool, &*url.namespace, &*url.image];
            let spec: Vec<&str> = spec.into_iter().filter(|part| !part.is_empty()).collect();
            return Err(open(RbdError::NoLock { spec: spec.join("/") }));
        }
        step("lock the image", url.timeout.max(FENCING));
        if url.break_lock {
            image.break_lock().map_err(lock)?;
        }
        image.lock().map_err(lock)?;
        // What another client has changed before it lost the lock.
        let size = image.size().map_err(open)?;
        Ok((image, size))
    }

    impl BlockDevice for RbdDevice {
        fn size(&self) -> u64 {
            self.size.load(Ordering::Relaxed)
        }

        fn measure(&self) -> Result<u64> {
            let now = self.image.size().map_err(|why| failure(Op::Read, 0, 0, "", why))?;
            self.size.fetch_max(now, Ordering::Relaxed);
            Ok(self.size())
        }

        fn read_only(&self) -> bool {
            self.read_only
        }

        /// Returns `true` for a writer: the image's lock is held, and the cluster rejects the
        /// writes of a client that lost it.
        fn is_private(&self) -> bool {
            !self.read_only
        }

        fn is_remote(&self) -> bool {
            true
        }

        /// Returns that it is not known: clients of the cluster are no users of this host.
        fn owner(&self) -> Option<u32> {
            Some(crate::UNKNOWN_OWNER)
        }

        fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
            self.read_batch(&mut [ReadOp { offset, buf }])
        }

        fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
            self.write_batch(&[WriteOp { offset, data: &[data] }])
        }

        fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> Result<()> {
            for op in ops.iter() {
                check_range(Op::Read, self.size(), op.offset, op.buf.len() as u64)?;
            }
            let offset = ops.first().map_or(0, |op| op.offset);
            let len = ops.iter().map(|op| op.buf.len() as u64).sum();
            let read = self.image.read(ops.iter_mut().map(|op| (op.offset, &mut *op.buf)));
            read.map_err(|why| failure(Op::Read, offset, len, "", why))
        }

        fn write_batch(&self, ops: &[WriteOp<'_>]) -> Result<()> {
            for op in ops {
                self.check_change(Op::Write, op.offset, op.len())?;
            }
            let offset = ops.first().map_or(0, |op| op.offset);
            let len = ops.iter().map(WriteOp::len).sum();
            let wrote = self.image.write(ops.iter().map(|op| (op.offset, op.data)));
            wrote.map_err(|why| failure(Op::Write, offset, len, "", why))
        }

        fn flush(&self) -> Result<()> {
            if self.read_only {
                return Ok(());
            }
            self.image.flush().map_err(|why| failure(Op::Flush, 0, 0, "", why))
        }

        fn discard(&self, offset: u64, len: u64) -> Result<()> {
            self.check_change(Op::Discard, offset, len)?;
            self.pieces(offset, len, |offset, len| self.image.discard(offset, len))
                .map_err(|why| failure(Op::Discard, offset, len, "", why))
        }

        fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
            self.check_change(Op::Write, offset, len)?;
            self.pieces(offset, len, |offset, len| self.image.write_zeroes(offset, len as usize))
                .map_err(|why| failure(Op::Write, offset, len, "", why))
        }
    }

    impl RbdDevice {
        /// Calls `one` for each piece of a range that is not too long for a request.
        fn pieces(
            &self,
            offset: u64,
            len: u64,
            one: impl Fn(u64, u64) -> std::result::Result<(), RbdError>,
        ) -> std::result::Result<(), RbdError> {
            let mut done = 0;
            while done < len {
                let now = (len - done).min(CUT_ZEROES);
                one(offset + done, now)?;
                done += now;
            }
            Ok(())
        }
    }
}
