//! The name of an image: `rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]`, with parameters behind `?`.
//!
//! Names and values are percent-decoded.

use crate::parameters::{add_range, decode, each_parameter, seconds};
use std::path::PathBuf;
use std::time::Duration;

/// The name of an RBD image, parsed: the image, and how the cluster is reached.
///
/// # Examples
/// ```
/// use lanefs_device::RbdUrl;
///
/// let url = RbdUrl::parse("rbd:pool/disk@monday?id=backup&conf=/etc/ceph/other.conf")?;
/// assert_eq!((url.pool.as_str(), url.image.as_str()), ("pool", "disk"));
/// assert_eq!((url.snapshot.as_deref(), url.id.as_str()), (Some("monday"), "backup"));
/// assert!(!url.break_lock);
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RbdUrl {
    /// The pool.
    pub pool: String,
    /// The namespace in the pool, empty for the one without a name.
    pub namespace: String,
    /// The image.
    pub image: String,
    /// The snapshot of the image, which can be read only.
    pub snapshot: Option<String>,
    /// The user of the cluster, without `client.` before it.
    pub id: String,
    /// The cluster's configuration, if it is not where Ceph looks for it.
    pub conf: Option<PathBuf>,
    /// The longest time that the cluster may take for each step of an open.
    pub timeout: Duration,
    /// Whether the lock of another client is broken.
    pub break_lock: bool,
    /// `offset=` and `size=`: the bytes of the image that the volume is.
    pub range: Option<(u64, Option<u64>)>,
    /// `partition=`: the partition of the image that the volume is.
    pub partition: Option<String>,
}

/// Returns the partition that a URL names, as it is written there.
pub(crate) fn partition_of(url: &str) -> Option<&str> {
    let (_, query) = url.split_once('?')?;
    query.split('&').find_map(|pair| pair.strip_prefix("partition="))
}

impl RbdUrl {
    /// Parses a URL.
    ///
    /// # Errors
    /// The second half of a message for users, whose first half is the URL.
    pub fn parse(url: &str) -> Result<Self, String> {
        let bad = || "needs a pool and an image: rbd:POOL/IMAGE".to_owned();
        let rest = url.strip_prefix("rbd:").ok_or_else(bad)?;
        let (path, query) = rest.split_once('?').map_or((rest, None), |(path, query)| (path, Some(query)));
        let (path, snapshot) =
            path.split_once('@').map_or((path, None), |(path, snapshot)| (path, Some(snapshot)));
        let parts: Vec<&str> = path.split('/').collect();
        let (pool, namespace, image) = match parts[..] {
            [pool, image] => (pool, "", image),
            [pool, namespace, image] if !namespace.is_empty() => (pool, namespace, image),
            _ => return Err(bad()),
        };
        let mut parsed = Self {
            pool: name(pool)?,
            namespace: name(namespace)?,
            image: name(image)?,
            snapshot: snapshot.map(name).transpose()?,
            id: "admin".into(),
            conf: None,
            timeout: Duration::from_secs(30),
            break_lock: false,
            range: None,
            partition: None,
        };
        if parsed.pool.is_empty() || parsed.image.is_empty() {
            return Err(bad());
        }
        if parsed.snapshot.as_deref() == Some("") {
            return Err("needs the name of a snapshot: rbd:POOL/IMAGE@SNAPSHOT".into());
        }
        each_parameter(query, |name, value| parsed.set(name, value))?;
        if parsed.partition.is_some() && parsed.range.is_some() {
            return Err("names a partition and a range".into());
        }
        Ok(parsed)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        if value.contains('\0') {
            return Err(format!("has a zero byte in {name}"));
        }
        match name {
            "id" | "conf" | "partition" if value.is_empty() => return Err(format!("has an empty {name}")),
            "id" => self.id = value.into(),
            "conf" => self.conf = Some(value.into()),
            "partition" => self.partition = Some(value.into()),
            "timeout" => self.timeout = seconds(name, value)?,
            "break-lock" => match value {
                "" | "yes" => self.break_lock = true,
                "no" => self.break_lock = false,
                _ => return Err("break-lock is yes or no".into()),
            },
            "offset" | "size" => add_range(&mut self.range, name, value)?,
            _ => {
                return Err(format!(
                    "has a parameter {name:?}: there are id, conf, timeout, break-lock, partition, offset, \
                     size"
                ));
            }
        }
        Ok(())
    }
}

/// Decodes a name, which C will read.
fn name(text: &str) -> Result<String, String> {
    let name = decode(text)?;
    if name.contains('\0') { Err("has a name with a zero byte".into()) } else { Ok(name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let parse = |url| {
            let url = RbdUrl::parse(url).unwrap();
            (url.pool, url.namespace, url.image, url.snapshot)
        };
        let names = |pool: &str, space: &str, image: &str, snapshot: Option<&str>| {
            (pool.to_owned(), space.to_owned(), image.to_owned(), snapshot.map(str::to_owned))
        };
        assert_eq!(parse("rbd:p/i"), names("p", "", "i", None));
        assert_eq!(parse("rbd:p/n/i@s"), names("p", "n", "i", Some("s")));
        assert_eq!(parse("rbd:a%20b/i%2Fj@s%40t?id=x"), names("a b", "", "i/j", Some("s@t")));
    }

    #[test]
    fn parameters() {
        let url =
            RbdUrl::parse("rbd:p/i?id=me&conf=/c%3A&timeout=7&break-lock=yes&offset=1M&size=2M").unwrap();
        assert_eq!((url.id.as_str(), url.conf, url.timeout.as_secs()), ("me", Some("/c:".into()), 7));
        assert_eq!((url.break_lock, url.range), (true, Some((1 << 20, Some(2 << 20)))));
        assert!(RbdUrl::parse("rbd:p/i?break-lock").unwrap().break_lock);
        let url = RbdUrl::parse("rbd:p/i?partition=2").unwrap();
        assert_eq!((url.partition.as_deref(), url.break_lock, url.id.as_str()), (Some("2"), false, "admin"));
        assert_eq!(partition_of("rbd:p/i?id=x&partition=root"), Some("root"));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (url, why) in [
            ("rbd:", "a pool and an image"),
            ("rbd:p", "a pool and an image"),
            ("rbd:/i", "a pool and an image"),
            ("rbd:p/", "a pool and an image"),
            ("rbd:p//i", "a pool and an image"),
            ("rbd:p/n/i/x", "a pool and an image"),
            ("rbd:p/i@", "a snapshot"),
            ("rbd:p/i%00", "zero byte"),
            ("rbd:p/i%zz", "percent-encoded"),
            ("rbd:p/i?conf=", "empty conf"),
            ("rbd:p/i?id=a%00", "zero byte in id"),
            ("rbd:p/i?timeout=0", "timeout is a number of seconds"),
            ("rbd:p/i?break-lock=maybe", "yes or no"),
            ("rbd:p/i?offset=100", "units of 512"),
            ("rbd:p/i?id=a&id=b", "twice"),
            ("rbd:p/i?partition=1&offset=1M", "a partition and a range"),
            ("rbd:p/i?user=a", "there are id, conf, timeout, break-lock, partition, offset, size"),
        ] {
            let said = RbdUrl::parse(url).unwrap_err();
            assert!(said.contains(why), "{url}: {said}");
        }
    }
}
