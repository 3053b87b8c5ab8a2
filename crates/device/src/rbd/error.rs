//! What goes wrong with an RBD image.

use crate::errno::{EACCES, EBUSY, EINVAL, EIO, ENOENT, ENOMEM, ENOSPC, ENXIO, EOPNOTSUPP, EPERM, EROFS};
use std::{fmt, io};

/// A failure of an RBD image, or of the way to it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields are the words and numbers of the message")]
pub enum RbdError {
    /// This build is without the feature `rbd`.
    NotBuilt,
    /// A library cannot be loaded, or lacks a function.
    NoLibrary { library: &'static str, package: &'static str, why: String },
    /// The cluster's configuration cannot be read.
    Config { conf: String, errno: i32 },
    /// The cluster does not let this client in.
    Connect { id: String, errno: i32 },
    /// A step of the open took too long.
    Timeout { step: &'static str, seconds: u64 },
    /// There is no such pool.
    NoPool { pool: String, there: Option<Vec<String>> },
    /// There is no such image in the pool.
    NoImage { image: String, there: Option<Vec<String>> },
    /// The image has no such snapshot.
    NoSnapshot { snapshot: String, there: Option<Vec<String>> },
    /// A snapshot was opened for writing.
    SnapshotReadOnly,
    /// The image lacks the feature exclusive-lock.
    NoLock { spec: String },
    /// Another client holds the lock of the image.
    InUse { by: Option<String> },
    /// A process of this host reads the image.
    InUseHere { by: Option<u32> },
    /// Another client has broken the lock, and the cluster rejects this one.
    Fenced,
    /// A read ended before its end.
    Short { asked: u64, got: u64 },
    /// A call of the library failed.
    Failed { what: &'static str, errno: i32 },
}

/// Linux's number for a client that the cluster has blocklisted.
pub(crate) const ESHUTDOWN: i32 = 108;
const ETIMEDOUT: i32 = 110;
const EDQUOT: i32 = 122;

impl RbdError {
    /// Returns the failure of a call that answered `-errno`.
    #[cfg_attr(not(all(feature = "rbd", unix)), allow(dead_code, reason = "for the library's answers"))]
    pub(crate) fn of_call(what: &'static str, errno: i32) -> Self {
        if errno == ESHUTDOWN { Self::Fenced } else { Self::Failed { what, errno } }
    }

    /// Returns the number that a system call of Linux would have failed with.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotBuilt | Self::NoLibrary { .. } => EOPNOTSUPP,
            Self::Config { errno, .. } => *errno,
            Self::Connect { errno: EACCES | EPERM, .. } => EACCES,
            Self::Connect { .. } | Self::Timeout { .. } => ENXIO,
            Self::NoPool { .. } | Self::NoImage { .. } | Self::NoSnapshot { .. } => ENOENT,
            Self::SnapshotReadOnly => EROFS,
            Self::NoLock { .. } => EINVAL,
            Self::InUse { .. } | Self::InUseHere { .. } => EBUSY,
            Self::Failed { errno: EDQUOT, .. } => ENOSPC,
            Self::Failed { errno: errno @ (EACCES | EPERM | ENOMEM | ENOSPC | EROFS), .. } => *errno,
            Self::Failed { .. } | Self::Fenced | Self::Short { .. } => EIO,
        }
    }
}

impl std::error::Error for RbdError {}

impl fmt::Display for RbdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBuilt => write!(f, "this lanefs was built without RBD"),
            Self::NoLibrary { library, package, why } => {
                write!(f, "RBD needs {library}, which Debian has as the package {package}: {why}")
            }
            Self::Config { conf, errno } => {
                write!(f, "the cluster's configuration {conf}: {}; conf=FILE names another", text(*errno))
            }
            Self::Connect { id, errno: errno @ (EACCES | EPERM | ENOENT) } => write!(
                f,
                "the cluster does not let client.{id} in: {}; id=NAME is another user, whose keyring the \
                 configuration names",
                text(*errno)
            ),
            Self::Connect { errno: ETIMEDOUT, .. } => {
                write!(f, "no monitor of the cluster answers; conf=FILE says where they are")
            }
            Self::Connect { errno, .. } => write!(f, "no connection to the cluster: {}", text(*errno)),
            Self::Timeout { step, seconds } => write!(
                f,
                "the cluster took more than {seconds} s to {step}: ceph -s tells what it lacks, timeout= \
                 waits longer"
            ),
            Self::NoPool { pool, there } => {
                write!(f, "the cluster has no pool {pool:?}; {}", list(there.as_deref()))
            }
            Self::NoImage { image, there } => {
                write!(f, "the pool has no image {image:?}; {}", list(there.as_deref()))
            }
            Self::NoSnapshot { snapshot, there } => {
                write!(f, "the image has no snapshot {snapshot:?}; {}", list(there.as_deref()))
            }
            Self::SnapshotReadOnly => write!(f, "a snapshot can be read only"),
            Self::NoLock { spec } => write!(
                f,
                "the image lacks the feature that keeps a second writer out: rbd feature enable {spec} \
                 exclusive-lock"
            ),
            Self::InUse { by: Some(by) } => write!(
                f,
                "is in use: the client at {by} holds its lock, and until half a minute after its death. The \
                 parameter break-lock=yes takes the image from that client, whose writes then fail"
            ),
            Self::InUse { by: None } => write!(f, "is in use: another client holds its lock"),
            Self::InUseHere { by: Some(by) } => {
                write!(f, "is in use: the process {by} of this host reads the image")
            }
            Self::InUseHere { by: None } => write!(f, "is in use: a process of this host reads the image"),
            Self::Fenced => write!(f, "another client has broken the lock, and the cluster rejects this one"),
            Self::Short { asked, got } => write!(f, "the image ended: {got} of {asked} bytes"),
            Self::Failed { what, errno } => write!(f, "the cluster failed to {what}: {}", text(*errno)),
        }
    }
}

/// Returns what there is, as far as it is known.
fn list(there: Option<&[String]>) -> String {
    match there {
        None => "which there are cannot be told".into(),
        Some([]) => "there are none".into(),
        Some(there) => {
            let shown: Vec<String> = there.iter().take(20).map(|name| format!("{name:?}")).collect();
            let more = if there.len() > 20 { ", ..." } else { "" };
            format!("there are {}{more}", shown.join(", "))
        }
    }
}

fn text(errno: i32) -> String {
    let text = io::Error::from_raw_os_error(errno).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// A failure of an RBD device: the source of a [`DeviceError`](crate::DeviceError).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RbdFailure {
    /// The URL, if the image could not be opened.
    pub url: Option<String>,
    /// The reason.
    pub why: RbdError,
}

impl fmt::Display for RbdFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.url {
            Some(url) => write!(f, "{url}: {}", self.why),
            None => write!(f, "{}", self.why),
        }
    }
}

impl std::error::Error for RbdFailure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_not_none() {
        let said = |there| RbdError::NoSnapshot { snapshot: "s".into(), there }.to_string();
        let some = vec!["a".to_owned(), "b".to_owned()];
        assert!(said(Some(some)).ends_with(r#"; there are "a", "b""#));
        assert!(said(Some(Vec::new())).ends_with("; there are none"));
        assert!(said(None).ends_with("; which there are cannot be told"));
    }
}
