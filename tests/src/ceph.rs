//! A Ceph cluster of this machine alone: `scripts/ceph.sh`.

use crate::tools::tool;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One cluster at a time: it has half a gigabyte of memory.
static ALONE: Mutex<()> = Mutex::new(());

/// A monitor, a manager and three OSDs, with the image `lanefs/disk`, until it is dropped.
#[derive(Debug)]
pub struct Cluster {
    dir: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

impl Cluster {
    /// Starts a cluster in a folder.
    ///
    /// # Panics
    /// If a package is missing, or it does not come up.
    pub fn start(dir: &Path) -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let cluster = Self { dir: dir.to_owned(), _alone: alone };
        cluster.tell(&["start", &std::process::id().to_string()]);
        cluster
    }

    fn tell(&self, words: &[&str]) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/ceph.sh");
        let status = tool("bash").arg(script).arg(&self.dir).args(words).status().expect("bash");
        assert!(status.success(), "{words:?}: {status}; `make judge-remote` installs what it lacks");
    }

    /// Kills an OSD, 0 to 2.
    pub fn kill(&self, osd: u8) {
        self.tell(&["kill", &osd.to_string()]);
    }

    /// Starts an OSD that was killed.
    pub fn revive(&self, osd: u8) {
        self.tell(&["revive", &osd.to_string()]);
    }

    /// Starts a gateway that serves S3 to the key `key` with the secret `secret`, makes the bucket
    /// `disks`, and returns its URL.
    ///
    /// # Panics
    /// If a package is missing, or it does not come up.
    pub fn gateway(&self) -> String {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/ceph.sh");
        let url = crate::tools::run("bash", &[script.as_os_str(), self.dir.as_os_str(), "gateway".as_ref()]);
        let make = "import boto3, sys; boto3.client('s3', endpoint_url=sys.argv[1], \
            aws_access_key_id='key', aws_secret_access_key='secret').create_bucket(Bucket='disks')";
        crate::tools::run("python3", &["-c", make, &url]);
        url
    }

    /// Returns the path of the cluster's configuration.
    pub fn conf(&self) -> PathBuf {
        self.dir.join("ceph.conf")
    }

    /// Returns the URL of an image, with `parameters` such as `&timeout=1`.
    pub fn url(&self, image: &str, parameters: &str) -> String {
        format!("rbd:{image}?conf={}{parameters}", self.conf().display())
    }

    /// Returns the program `rbd`, for this cluster.
    pub fn rbd(&self) -> Command {
        let mut command = tool("rbd");
        command.arg("--conf").arg(self.conf());
        command
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/ceph.sh");
        let _ = tool("bash").arg(script).arg(&self.dir).arg("stop").status();
    }
}
