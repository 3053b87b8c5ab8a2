//! Two volumes of the same options, one of mke2fs and one of ours, and ways to compare them.

#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "what fails here fails the test")]

use lanefs_device::FileDevice;
use lanefs_mkfs::{FsType, Options, format, parse_size};
use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

const UUID: &str = "01234567-89ab-cdef-0123-456789abcdef";
const UUID_BYTES: [u8; 16] = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef_u128.to_be_bytes();
const TIME: u64 = 1_700_000_000;

/// Images of the same options, in a folder that goes when this is dropped.
pub(crate) struct Pair {
    pub(crate) ours: PathBuf,
    pub(crate) theirs: PathBuf,
    _dir: TempDir,
}

impl Pair {
    pub(crate) fn make(size: &str, args: &str) -> Self {
        Self::make_with(size, args, true)
    }

    /// `fixed`: with UUID, hash seed and time given.
    pub(crate) fn make_with(size: &str, args: &str, fixed: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
        let bytes = parse_size(size).unwrap();
        let out = mke2fs(&theirs, bytes, args, fixed);
        assert!(out.status.success(), "mke2fs {args}: {}", String::from_utf8_lossy(&out.stderr));

        let mut options = options(args);
        if !fixed {
            (options.uuid, options.hash_seed, options.time) = (None, None, None);
        }
        let device = FileDevice::create(&ours, bytes).unwrap();
        format(&device, &options).unwrap_or_else(|e| panic!("{size} {args}: {e}"));
        Self { ours, theirs, _dir: dir }
    }

    /// What dumpe2fs with `args` says of one and not of the other.
    pub(crate) fn dumpe2fs_difference(&self, args: &[&str]) -> Option<String> {
        let (ours, theirs) = (dumpe2fs_with(args, &self.ours), dumpe2fs_with(args, &self.theirs));
        // The count of kilobytes that the tool wrote, and with it the superblock's checksum; the
        // host that mke2fs names in the MMP block.
        let own = ["Lifetime writes:", "Checksum:  ", "    mmp_update", "    mmp_node", "    mmp_device"];
        let other = |l: &&str| !own.iter().any(|own| l.starts_with(own));
        let (mut a, mut b) = (ours.lines().filter(other), theirs.lines().filter(other));
        loop {
            match (a.next(), b.next()) {
                (None, None) => return None,
                (a, b) if a == b => {}
                (a, b) => return Some(format!("ours {a:?}, mke2fs's {b:?}")),
            }
        }
    }

    /// The first byte that differs, where either has data.
    pub(crate) fn first_difference(&self) -> Option<String> {
        self.first_difference_but(|page, _, n| is_written_count(page, n))
    }

    /// The first byte that differs outside of the journal's map in its inode and in superblocks,
    /// which is compared as debugfs reads it: mke2fs leaves old entries behind in the root of a
    /// tree.
    pub(crate) fn first_difference_but_tree(&self) -> Option<String> {
        let maps = [&self.ours, &self.theirs].map(|path| {
            let said = debugfs(path, "stat <8>");
            let lines = said.lines().filter(|line| !line.contains("checksum"));
            lines.collect::<Vec<_>>().join("\n")
        });
        if maps[0] != maps[1] {
            return Some(format!("the journal: ours {}, mke2fs's {}", maps[0], maps[1]));
        }
        let inode = journal_inode(&self.theirs);
        self.first_difference_but(|page, at, n| {
            is_written_count(page, n)
                || is_in_superblock(page, n, 0x10C..0x150)
                || inode.contains(&(at + n as u64))
        })
    }

    /// The first byte that differs, where either has data, but for those of a page, at a byte of
    /// the volume, that `may` differ.
    fn first_difference_but(&self, may: impl Fn(&[u8], u64, usize) -> bool) -> Option<String> {
        let files = [File::open(&self.ours).unwrap(), File::open(&self.theirs).unwrap()];
        let mut pages = BTreeSet::new();
        for file in &files {
            for (start, end) in data_segments(file) {
                pages.extend((start / 4096..end.div_ceil(4096)).map(|p| p * 4096));
            }
        }
        let mut buffers = [[0u8; 4096]; 2];
        pages.into_iter().find_map(|at| {
            let lens = [0, 1].map(|n| files[n].read_at(&mut buffers[n], at).unwrap());
            let [ours, theirs] = [0, 1].map(|n| &buffers[n][..lens[n]]);
            if ours == theirs {
                return None;
            }
            let differs = |n: &usize| ours.get(*n) != theirs.get(*n) && !may(theirs, at, *n);
            let n = (0..ours.len().max(theirs.len())).find(differs)?;
            Some(format!("byte {:#x}: ours {:?}, mke2fs's {:?}", at + n as u64, ours.get(n), theirs.get(n)))
        })
    }
}

/// Returns whether byte `n` of a page belongs to `fields` of a superblock there.
fn is_in_superblock(page: &[u8], n: usize, fields: Range<usize>) -> bool {
    let start = n / 1024 * 1024;
    let superblock = page.get(start + 0x38..start + 0x3A) == Some(&[0x53, 0xEF]);
    superblock && fields.contains(&(n % 1024))
}

/// Returns whether byte `n` of a page belongs to `s_kbytes_written` or `s_checksum` of a superblock
/// there.
fn is_written_count(page: &[u8], n: usize) -> bool {
    is_in_superblock(page, n, 0x178..0x180) || is_in_superblock(page, n, 0x3FC..0x400)
}

/// Returns the bytes of the journal's inode, which has 256.
fn journal_inode(path: &Path) -> Range<u64> {
    // As in "located at block 1063, offset 0x0700".
    let said = debugfs(path, "imap <8>");
    let (block, offset) = said.split_once("located at block ").unwrap().1.split_once(", offset 0x").unwrap();
    let block_size = dumpe2fs_with(&["-h"], path);
    let block_size = block_size.lines().find_map(|line| line.strip_prefix("Block size:")).unwrap();
    let block_size: u64 = block_size.trim().parse().unwrap();
    let start = block.parse::<u64>().unwrap() * block_size + u64::from_str_radix(offset.trim(), 16).unwrap();
    start..start + 256
}

fn debugfs(path: &Path, command: &str) -> String {
    let out = tool("debugfs").env("TZ", "UTC").args(["-R", command]).arg(path).output().unwrap();
    assert!(out.status.success(), "debugfs: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn data_segments(file: &File) -> Vec<(u64, u64)> {
    use rustix::fs::{SeekFrom, seek};
    let mut segments = Vec::new();
    let mut at = 0;
    while let Ok(start) = seek(file, SeekFrom::Data(at)) {
        at = seek(file, SeekFrom::Hole(start)).unwrap();
        segments.push((start, at));
    }
    segments
}

/// The options that mke2fs's `args` ask for, with UUID, hash seed and time given.
pub(crate) fn options(args: &str) -> Options {
    let mut o = Options {
        uuid: Some(UUID_BYTES),
        hash_seed: Some(UUID_BYTES),
        time: Some(TIME),
        ..Options::default()
    };
    let words: Vec<&str> = args.split_whitespace().collect();
    for pair in words.chunks(2) {
        let value = pair[1];
        match pair[0] {
            "-t" if value == "ext2" => o.fs_type = FsType::Ext2,
            "-t" if value == "ext3" => o.fs_type = FsType::Ext3,
            "-b" => o.block_size = Some(value.parse().unwrap()),
            "-I" => o.inode_size = Some(value.parse().unwrap()),
            "-i" => o.inode_ratio = Some(value.parse().unwrap()),
            "-N" => o.inode_count = Some(value.parse().unwrap()),
            "-m" => o.reserved_percent = Some(value.parse().unwrap()),
            "-L" => o.label = value.into(),
            "-O" => o.features = value.parse().unwrap(),
            "-T" => o.usage = Some(value.parse().unwrap()),
            "-J" => o.journal_size = Some(value.strip_prefix("size=").unwrap().parse().unwrap()),
            other => panic!("{other}"),
        }
    }
    o
}

/// The type that the kernel is asked to mount.
pub(crate) fn fs_type(args: &str) -> &'static str {
    if args.contains("ext3") { "ext3" } else { "ext4" }
}

fn mke2fs(path: &Path, bytes: u64, args: &str, fixed: bool) -> Output {
    File::create(path).unwrap().set_len(bytes).unwrap();
    let mut command = tool("mke2fs");
    command.args(["-q", "-F"]);
    if !args.contains("-t ") {
        command.args(["-t", "ext4"]);
    }
    if fixed {
        command.args(["-U", UUID, "-E", &format!("hash_seed={UUID}")]);
        command.env("E2FSPROGS_FAKE_TIME", TIME.to_string());
    }
    command.args(args.split_whitespace()).arg(path).output().unwrap()
}

/// Returns whether mke2fs makes a volume of these options.
pub(crate) fn mke2fs_takes(size: &str, args: &str) -> bool {
    let file = tempfile::NamedTempFile::new().unwrap();
    mke2fs(file.path(), parse_size(size).unwrap(), args, true).status.success()
}

/// What dumpe2fs prints, in a clock without summer.
pub(crate) fn dumpe2fs(path: &Path) -> String {
    dumpe2fs_with(&[], path)
}

pub(crate) fn dumpe2fs_with(args: &[&str], path: &Path) -> String {
    let out = tool("dumpe2fs").env("TZ", "UTC").args(args).arg(path).output().unwrap();
    assert!(out.status.success(), "dumpe2fs: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// `dumpe2fs` without UUID, hash seed, times, checksums and the count of kilobytes written.
pub(crate) fn normal(text: &str) -> String {
    let open = ["Filesystem UUID:", "Directory Hash Seed:", "Filesystem created:", "Last write time:"];
    let open = [&open[..], &["Last checked:", "Checksum:  ", "Lifetime writes:"]].concat();
    let mut normal = String::new();
    for line in text.lines().filter(|l| !open.iter().any(|o| l.starts_with(o))) {
        let mut hide = false;
        for word in line.split_inclusive(' ') {
            normal.push_str(if hide { "SUM " } else { word });
            hide = word == "csum ";
        }
        normal.push('\n');
    }
    normal
}

/// Has e2fsck check an image, which must be clean.
pub(crate) fn e2fsck(path: &Path) {
    let out = tool("e2fsck").args(["-fn"]).arg(path).output().unwrap();
    assert!(out.status.success(), "e2fsck: {}", String::from_utf8_lossy(&out.stdout));
}

/// Gives this thread a mount namespace of its own: a process that is started meanwhile, and makes
/// itself one, would have a copy of a mount, and keep the device in use behind the unmount.
pub(crate) fn private_mounts() {
    #[allow(deprecated, reason = "unshare is unsafe with FILES only, which is not asked for")]
    rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNS).unwrap();
    run("mount", &["--make-rprivate", "/"]);
}

/// Runs a tool that must succeed.
pub(crate) fn run(name: &str, args: &[&str]) {
    let out = tool(name).args(args).output().unwrap();
    assert!(out.status.success(), "{name} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
}

fn tool(name: &str) -> Command {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let found = std::env::split_paths(&path).map(|p| p.join(name)).find(|p| p.exists());
    let mut command = Command::new(found.unwrap_or_else(|| panic!("{name} is needed")));
    command.env("LC_ALL", "C");
    command
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Bytes that the file takes on its disk.
pub(crate) fn allocated(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().blocks() * 512
}
