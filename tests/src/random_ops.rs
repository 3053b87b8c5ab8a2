//! Random operations that keep meeting each other: few names, odd ones among them, and paths that
//! worked before.

use crate::ops::{Op, OpenHow, Outcome, RenameHow, XattrHow};
use crate::{FALLOCATES, Kind};
use lanefs::FallocMode;
use lanefs_sim::seed_from_env;
use rand::rngs::StdRng;
use rand::{Rng, RngCore};
use std::ffi::OsString;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A generator of operations.
#[derive(Debug)]
pub struct RandomOps {
    rng: StdRng,
    names: Vec<Vec<u8>>,
    /// Paths at which something was made; it may have gone since.
    known: Vec<PathBuf>,
    /// Bytes of a block.
    block: u64,
    /// More of what changes content than of the rest.
    content: bool,
}

/// How many of [`RandomOps::draw`]'s numbers there are, and those that are about content.
const DRAWS: u32 = 128;
const ABOUT_CONTENT: Range<u32> = 12..38;
const ABOUT_BLOCKS: Range<u32> = 110..DRAWS;

const KNOWN_MAX: usize = 120;

impl RandomOps {
    /// Operations for a volume with blocks of `block` bytes; `rng` also draws of what there are
    /// more.
    pub fn new(mut rng: StdRng, block: u64) -> Self {
        let mut names: Vec<Vec<u8>> =
            ["a", "b", "c", "d", "e", "f", "dir", "sub", "deep", "lost+found", "...", " ", "-"]
                .iter()
                .map(|n| n.as_bytes().to_vec())
                .collect();
        names.push(b"\xff\x80odd\x01".to_vec());
        names.push(b"new\nline".to_vec());
        names.push(vec![b'L'; 255]);
        names.push(vec![b'T'; 256]);
        let content = rng.random();
        Self { rng, names, known: Vec::new(), block, content }
    }

    /// Tells how an operation went, so that paths which exist are used more often.
    pub fn learn(&mut self, op: &Op, outcome: &Outcome) {
        let (true, Some(path)) = (outcome.is_ok(), made(op)) else { return };
        if self.known.len() == KNOWN_MAX {
            let at = self.rng.random_range(0..KNOWN_MAX);
            self.known.swap_remove(at);
        }
        self.known.push(path.clone());
    }

    /// The next operation.
    pub fn draw(&mut self) -> Op {
        let path = self.path();
        let among = match self.rng.random_range(0..4) {
            0 if self.content => ABOUT_CONTENT,
            1 if self.content => ABOUT_BLOCKS,
            _ => 0..DRAWS,
        };
        match self.rng.random_range(among) {
            0..12 => Op::Open { path, how: self.open_how(), mode: self.mode() },
            12..24 => {
                let (offset, len) = (self.offset(), self.rng.random_range(0..20_000));
                Op::Write { path, offset, len, fill: self.rng.random() }
            }
            24..28 => Op::Append { path, len: self.rng.random_range(0..9000), fill: self.rng.random() },
            28..34 => Op::Truncate { path, len: self.offset() },
            34..38 => Op::Read { path, offset: self.offset(), len: self.rng.random_range(0..70_000) },
            38..48 => Op::Mkdir { path, mode: self.mode() },
            48..53 => Op::Rmdir { path },
            53..60 => Op::Unlink { path },
            60..65 => Op::Link { from: path, to: self.path() },
            65..70 => Op::Symlink { target: self.target(), path },
            70..73 => Op::ReadLink { path },
            73..84 => {
                let how = self.rename_how();
                Op::Rename { from: path, to: self.path(), how }
            }
            84..87 => {
                let kinds = [Kind::File, Kind::Fifo, Kind::Socket, Kind::CharDevice, Kind::BlockDevice];
                let kind = kinds[self.rng.random_range(0..kinds.len())];
                let device = (self.rng.random_range(0..4096), self.rng.random_range(0..1 << 20));
                Op::Mknod { path, kind, device, mode: self.mode() }
            }
            87..90 => Op::Chmod { path, mode: self.mode() },
            90..92 => {
                let ids = [0, 1, 1000, 65_535, 65_536, u32::MAX - 1];
                let mut id = || ids[self.rng.random_range(0..ids.len())];
                let (uid, gid) = (id(), id());
                Op::Chown { path, uid, gid, follow: self.rng.random() }
            }
            92..95 => {
                let (atime, mtime) = (self.time(), self.time());
                Op::Utimes { path, atime, mtime, follow: self.rng.random() }
            }
            95..101 => {
                let how = [XattrHow::Any, XattrHow::Any, XattrHow::Create, XattrHow::Replace];
                let how = how[self.rng.random_range(0..how.len())];
                let name = self.xattr();
                let value = self.value(&name);
                Op::SetXattr { path, name, value, how }
            }
            101..103 => Op::GetXattr { path, name: self.xattr() },
            103..106 => Op::RemoveXattr { path, name: self.xattr() },
            106..109 => Op::Stat { path, follow: self.rng.random() },
            109 => Op::List { path },
            110..118 => self.fallocate(path),
            118..120 => Op::SeekData { path, offset: self.offset() },
            120..122 => Op::SeekHole { path, offset: self.offset() },
            122..125 => self.copy(path),
            _ => Op::Space { path },
        }
    }

    fn open_how(&mut self) -> OpenHow {
        let mut coin = |p| self.rng.random_bool(p);
        OpenHow {
            write: coin(0.7),
            create: coin(0.8),
            excl: coin(0.2),
            trunc: coin(0.2),
            nofollow: coin(0.2),
        }
    }

    /// Three of five replace.
    fn rename_how(&mut self) -> RenameHow {
        match self.rng.random_range(0..5_usize) {
            0..3 => RenameHow::Replace,
            3 => RenameHow::NoReplace,
            _ => RenameHow::Exchange,
        }
    }

    fn name(&mut self) -> Vec<u8> {
        // The odd ones are at the end: not too many of them.
        let n = if self.rng.random_bool(0.1) { self.names.len() } else { 9 };
        let i = self.rng.random_range(0..n);
        match self.rng.random_range(0..60) {
            0 => b".".to_vec(),
            1 => b"..".to_vec(),
            2 => format!("one of many {}", self.rng.random_range(0..300)).into_bytes(),
            _ => self.names[i].clone(),
        }
    }

    fn path(&mut self) -> PathBuf {
        let mut bytes = Vec::new();
        if !self.known.is_empty() && self.rng.random_bool(0.75) {
            let i = self.rng.random_range(0..self.known.len());
            bytes = self.known[i].as_os_str().as_bytes().to_vec();
            if bytes.len() > 3000 || self.rng.random_bool(0.02) {
                bytes.clear();
            }
        }
        if bytes.is_empty() || self.rng.random_bool(0.35) {
            for _ in 0..self.rng.random_range(1..3) {
                if !bytes.is_empty() {
                    bytes.push(b'/');
                }
                bytes.extend(self.name());
            }
        }
        match self.rng.random_range(0..60) {
            0 => bytes.push(b'/'),
            1 => bytes.insert(0, b'/'),
            2 => bytes.extend(b"/."),
            3 => bytes.splice(0..0, *b".//./").for_each(drop),
            4 => bytes.extend(b"/.."),
            5 if self.rng.random_bool(0.2) => bytes.clear(),
            6 if self.rng.random_bool(0.2) => bytes = b"/".to_vec(),
            7 if self.rng.random_bool(0.2) => {
                let len = self.rng.random_range(4090..4100);
                bytes = b"a/".iter().copied().cycle().take(len).collect();
            }
            _ => {}
        }
        OsString::from_vec(bytes).into()
    }

    fn target(&mut self) -> OsString {
        let mut target = match self.rng.random_range(0..8) {
            0 => vec![b't'; self.rng.random_range(55..64)],
            1 => vec![b'u'; self.rng.random_range(self.block as usize - 4..self.block as usize + 3)],
            2 if self.rng.random_bool(0.2) => Vec::new(),
            _ => self.path().into_os_string().into_vec(),
        };
        if self.rng.random_bool(0.2) {
            target.splice(0..0, *b"../").for_each(drop);
        }
        OsString::from_vec(target)
    }

    fn offset(&mut self) -> u64 {
        match self.rng.random_range(0..20) {
            0 => self.rng.random_range(0..1 << 28),
            1..4 => self.rng.random_range(0..40) * self.block,
            4..7 => (self.rng.random_range(1..40) * self.block).saturating_sub(self.rng.random_range(0..3)),
            7..9 => self.rng.random_range(0..4_000_000),
            9 if self.rng.random_bool(0.3) => self.rng.random_range(1 << 46..1 << 62),
            _ => self.rng.random_range(0..60_000),
        }
    }

    fn fallocate(&mut self, path: PathBuf) -> Op {
        let how = FALLOCATES[self.rng.random_range(0..FALLOCATES.len())];
        let (mut offset, mut len) = (self.offset(), self.rng.random_range(0..100_000));
        let moves = matches!(how, FallocMode::CollapseRange | FallocMode::InsertRange);
        if moves && self.rng.random_bool(0.9) {
            (offset, len) = (offset / self.block * self.block, len / self.block * self.block);
        }
        Op::Fallocate { path, how, offset, len }
    }

    /// From one file to another, or from one place to another.
    fn copy(&mut self, from: PathBuf) -> Op {
        let to = if self.rng.random_bool(0.3) { from.clone() } else { self.path() };
        let (offset, to_offset) = (self.offset(), self.offset());
        Op::CopyRange { from, offset, to, to_offset, len: self.rng.random_range(0..100_000) }
    }

    fn mode(&mut self) -> u16 {
        // Without the sticky bit: on directories it turns on rules that are not ext4's.
        self.rng.random_range(0..0o10000) & 0o6777
    }

    fn time(&mut self) -> (i64, u32) {
        let sec = match self.rng.random_range(0..4) {
            0 => self.rng.random_range(-2_200_000_000..0),
            1 => self.rng.random_range(0..1_600_000_000),
            2 => self.rng.random_range(4_000_000_000..15_032_385_535),
            _ => self.rng.random_range(2_100_000_000..20_000_000_000),
        };
        (sec, self.rng.random_range(0..1_000_000_000))
    }

    fn xattr(&mut self) -> OsString {
        let names = ["user.a", "user.b", "user.longer name", "trusted.t", "security.s", "user.c", "user.d"];
        match self.rng.random_range(0..30) {
            0 => "user.".into(),
            1 => "bogus.name".into(),
            2 => "noprefix".into(),
            3 => format!("user.{}", "x".repeat(250)).into(),
            4 => format!("user.{}", "x".repeat(251)).into(),
            5..8 => "system.posix_acl_access".into(),
            8..10 => "system.posix_acl_default".into(),
            10 => "system.other".into(),
            _ => names[self.rng.random_range(0..names.len())].into(),
        }
    }

    fn value(&mut self, name: &OsString) -> Vec<u8> {
        if name.as_bytes().starts_with(b"system.posix_acl") && self.rng.random_bool(0.9) {
            return self.acl();
        }
        let len = match self.rng.random_range(0..10) {
            0 => 0,
            1..6 => self.rng.random_range(0..60),
            6..8 => self.rng.random_range(60..600),
            8 => self.rng.random_range(0..self.block as usize + 200),
            _ => self.rng.random_range(self.block as usize - 100..self.block as usize),
        };
        vec![self.rng.random(); len]
    }

    /// An ACL, mostly a valid one.
    fn acl(&mut self) -> Vec<u8> {
        let mut bytes = if self.rng.random_bool(0.05) { [1, 0, 0, 0] } else { [2, 0, 0, 0] }.to_vec();
        let named = self.rng.random_range(0..4);
        let mut tags = vec![(0x01, u32::MAX)];
        tags.extend((0..named).map(|i| (0x02, 1000 + i)));
        tags.push((0x04, u32::MAX));
        if named > 0 && self.rng.random_bool(0.95) || self.rng.random_bool(0.2) {
            tags.push((0x10, u32::MAX));
        }
        tags.push((0x20, u32::MAX));
        if self.rng.random_bool(0.05) {
            let i = self.rng.random_range(0..tags.len());
            tags.remove(i);
        }
        for (tag, id) in tags {
            bytes.extend(u16::to_le_bytes(tag));
            bytes.extend(self.rng.random_range(0_u16..8).to_le_bytes());
            bytes.extend(u32::to_le_bytes(id));
        }
        bytes
    }
}

/// The path at which an operation makes something.
fn made(op: &Op) -> Option<&PathBuf> {
    match op {
        Op::Open { path, .. } | Op::Mkdir { path, .. } | Op::Mknod { path, .. } => Some(path),
        Op::Symlink { path, .. } => Some(path),
        Op::Link { to, .. } | Op::Rename { to, .. } => Some(to),
        _ => None,
    }
}

/// Runs `case` with one seed after the other, which it prints: the first is `LANEFS_SEED`. As many
/// as `count`, or those that can be begun within `LANEFS_DIFF_SECONDS`.
///
/// # Panics
/// If either variable is not a number.
pub fn each_case(count: usize, case: impl Fn(u64)) {
    let first = seed_from_env("LANEFS_SEED");
    let seconds = std::env::var("LANEFS_DIFF_SECONDS").ok().map(|s| s.parse().expect("seconds"));
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut seeds = first.rng(0);
    let (mut seed, mut done) = (first.value(), 0);
    while done == 0 || end.map_or(done < count, |end| Instant::now() < end) {
        println!("case {done}: LANEFS_SEED={seed:#x}");
        case(seed);
        seed = seeds.next_u64();
        done += 1;
    }
}
