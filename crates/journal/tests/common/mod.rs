//! Volumes made by e2fsprogs and the kernel, and where their logs lie.
#![allow(dead_code, reason = "each test binary uses its part")]

use lanefs_device::FileDevice;
use lanefs_journal::{LogConfig, LogRun};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs a command; its standard output. Fails the test unless the exit code is in `ok`.
pub(crate) fn run_codes(ok: &[i32], command: &str, args: &[&str]) -> String {
    let Output { status, stdout, stderr } = Command::new(command)
        .args(args)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LC_ALL", "C")
        .output()
        .unwrap_or_else(|e| panic!("{command}: {e}"));
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.code().is_some_and(|c| ok.contains(&c)), "{command} {args:?}: {status}\n{out}\n{err}");
    out.into_owned()
}

/// Runs a command that must succeed.
pub(crate) fn run(command: &str, args: &[&str]) -> String {
    run_codes(&[0], command, args)
}

/// A folder with a volume in it.
pub(crate) struct Image {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

impl Image {
    /// A volume of `size` (as truncate says it) made by mke2fs.
    pub(crate) fn mke2fs(size: &str, options: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("volume.img");
        run("truncate", &["-s", size, path.to_str().unwrap()]);
        let mut args = vec!["-q", "-F"];
        args.extend(options);
        args.push(path.to_str().unwrap());
        run("mke2fs", &args);
        Self { dir, path }
    }

    pub(crate) fn str(&self) -> &str {
        self.path.to_str().unwrap()
    }

    /// A copy of the volume beside it.
    pub(crate) fn copy(&self, name: &str) -> PathBuf {
        let to = self.dir.path().join(name);
        run("cp", &["--sparse=always", self.str(), to.to_str().unwrap()]);
        to
    }

    /// Runs a shell script with the volume mounted by the kernel; `$1` is the mount point, `$2` the
    /// volume, `$3` the folder. Unmounts it whatever happens.
    pub(crate) fn with_mount(&self, options: &str, script: &str) {
        let mnt = self.dir.path().join("mnt");
        std::fs::create_dir_all(&mnt).unwrap();
        // In a mount namespace of its own, of which no process started meanwhile has a copy.
        let script = format!(
            "set -e; mount -o 'loop,{options}' \"$2\" \"$1\"; trap 'cd /; umount \"$1\"' EXIT; {script}"
        );
        let (mnt, dir) = (mnt.to_str().unwrap(), self.dir.path().to_str().unwrap());
        let namespace = ["--mount", "--propagation", "private"];
        let bash = ["bash", "-c", &script, "script", mnt, self.str(), dir];
        run("unshare", &[&namespace[..], &bash].concat());
        // The kernel detaches the loop device a moment later.
        while !run("losetup", &["--associated", self.str()]).is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

/// Opens a volume for writing.
pub(crate) fn open(path: &Path) -> FileDevice {
    FileDevice::open(path).unwrap()
}

/// Block size of a volume (`s_log_block_size`).
pub(crate) fn block_size(path: &Path) -> u32 {
    use std::os::unix::fs::FileExt;
    let mut log = [0; 4];
    std::fs::File::open(path).unwrap().read_exact_at(&mut log, 1024 + 0x18).unwrap();
    1024 << u32::from_le_bytes(log)
}

/// The log's place on a volume, as debugfs tells it.
pub(crate) fn log_config(path: &Path) -> LogConfig {
    LogConfig { runs: runs_of(path, "<8>"), ..LogConfig::default() }
}

/// The data blocks of a file.
pub(crate) fn runs_of(path: &Path, file: &str) -> Vec<LogRun> {
    let out = run("debugfs", &["-R", &format!("stat {file}"), path.to_str().unwrap()]);
    let from = out.find("EXTENTS:").or_else(|| out.find("BLOCKS:")).unwrap_or(out.len());
    let mut runs = Vec::new();
    for word in out[from..].split_whitespace().flat_map(|w| w.split(',')) {
        let Some((logical, physical)) = word.strip_prefix('(').and_then(|w| w.split_once("):")) else {
            continue;
        };
        let logical = logical.trim_end_matches("[u]");
        let pair = |s: &str| -> Option<(u64, u64)> {
            let (a, b) = s.split_once('-').unwrap_or((s, s));
            Some((a.parse().ok()?, b.parse().ok()?))
        };
        let (Some((l, _)), Some((p, end))) = (pair(logical), pair(physical)) else { continue };
        runs.push(LogRun { logical: l as u32, physical: p, len: (end - p + 1) as u32 });
    }
    runs.sort_by_key(|r| r.logical);
    runs
}

/// Numbers of the blocks in which two volumes differ, but for superblocks and journal superblock.
pub(crate) fn different_blocks(a: &Path, b: &Path, block_size: usize, log: &LogConfig) -> Vec<u64> {
    let (mut a, mut b) = (std::fs::read(a).unwrap(), std::fs::read(b).unwrap());
    assert_eq!(a.len(), b.len());
    for bytes in [&mut a, &mut b] {
        bytes[1024..2048].fill(0);
        if let Some(run) = log.runs.first() {
            let at = run.physical as usize * block_size;
            bytes[at..at + block_size].fill(0);
        }
    }
    let pairs = a.chunks(block_size).zip(b.chunks(block_size));
    (0..).zip(pairs).filter(|(_, (a, b))| a != b).map(|(i, _)| i).collect()
}

/// A burst of metadata work of every kind.
pub(crate) const BURST: &str = r#"
    cd "$1"
    for d in a b c; do mkdir $d; for i in $(seq 60); do echo $i > $d/file-$i; done; done
    sync -f .
    for i in $(seq 1 2 60); do rm a/file-$i; done
    rm -r b; mkdir b2; for i in $(seq 200); do ln -s target-$i b2/link-$i; done
    # Metadata blocks that are freed and become data: revokes.
    for i in $(seq 5); do mkdir r$i; for j in $(seq 80); do touch r$i/some-long-file-name-$j; done; done
    sync -f .; rm -r r1 r2 r3 r4; sync -f .
    for i in $(seq 8); do head -c 20000 /dev/urandom > data-$i; done
    sync -f .
    mv c/file-1 a/moved; setfattr -n user.x -v y a/moved || true
    sync -f a/moved; cp --sparse=always "$2" "$3/dirty.img"
"#;
