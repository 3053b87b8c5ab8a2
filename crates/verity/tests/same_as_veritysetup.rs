//! Judged by veritysetup: the same bytes and root hashes, and each verifies what the other made.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panic")]

use lanefs_device::{BlockDevice, FileDevice, MemDevice};
use lanefs_verity::{Algorithm, Header, VerityError, format, verify};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU64, Ordering};

const UUID: &str = "01234567-89ab-cdef-0123-456789abcdef";

fn veritysetup(args: &[&str]) -> Output {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap());
    Command::new("veritysetup").args(args).env("PATH", path).env("LC_ALL", "C").output().unwrap()
}

/// Runs it; it must succeed. Returns the root hash that it prints.
fn root_of(args: &[&str]) -> String {
    let out = veritysetup(args);
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    let said = String::from_utf8(out.stdout).unwrap();
    said.lines().find_map(|line| line.strip_prefix("Root hash:")).unwrap_or_default().trim().to_owned()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes that differ from block to block.
fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at >> 9) as u8 ^ (at as u8).wrapping_mul(13) ^ (at >> 17) as u8).collect()
}

struct Files {
    dir: tempfile::TempDir,
    data: PathBuf,
}

impl Files {
    fn new(content: &[u8]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        std::fs::write(&data, content).unwrap();
        Self { dir, data }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

fn shown(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn header(algorithm: Algorithm, salt: usize, blocks: (u32, u32), data_blocks: u64) -> Header {
    Header {
        algorithm,
        uuid: std::array::from_fn(|at| [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef][at % 8]),
        salt: (0..salt).map(|at| at as u8 ^ 0x5A).collect(),
        data_block_size: blocks.0,
        hash_block_size: blocks.1,
        data_blocks,
    }
}

/// The options that make veritysetup do what `header` says.
fn options(header: &Header) -> Vec<String> {
    let salt = if header.salt.is_empty() { "-".into() } else { hex(&header.salt) };
    vec![
        format!("--hash={}", header.algorithm.name()),
        format!("--salt={salt}"),
        format!("--uuid={UUID}"),
        format!("--data-block-size={}", header.data_block_size),
        format!("--hash-block-size={}", header.hash_block_size),
        format!("--data-blocks={}", header.data_blocks),
    ]
}

#[test]
fn a_file_of_hashes_is_byte_for_byte_that_of_veritysetup() {
    let data = content(9 << 20);
    for (algorithm, salt, blocks, data_blocks) in [
        (Algorithm::Sha256, 32, (4096, 4096), 2304),
        (Algorithm::Sha512, 32, (4096, 4096), 2304),
        (Algorithm::Sha256, 0, (4096, 4096), 129),
        (Algorithm::Sha256, 256, (1024, 1024), 9216),
        (Algorithm::Sha512, 7, (512, 1024), 1000),
        (Algorithm::Sha256, 32, (1024, 4096), 4097),
        (Algorithm::Sha256, 32, (4096, 4096), 128),
        (Algorithm::Sha256, 32, (4096, 4096), 2),
        (Algorithm::Sha256, 32, (4096, 4096), 1),
    ] {
        let header = header(algorithm, salt, blocks, data_blocks);
        let files = Files::new(&data[..header.data_size() as usize]);
        let (theirs, ours) = (files.path("theirs"), files.path("ours"));
        let options = options(&header);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let root = root_of(&[&["format"], &options[..], &[shown(&files.data), shown(&theirs)]].concat());

        let device = FileDevice::open_read_only(&files.data).unwrap();
        let hashes = FileDevice::create(&ours, header.area_size().unwrap()).unwrap();
        let hashed = AtomicU64::new(0);
        let made = format(&device, &hashes, 0, &header, &|bytes| {
            hashed.fetch_add(bytes, Ordering::Relaxed);
            true
        });
        assert_eq!(hex(&made.unwrap()), root, "{header:?}");
        assert!(std::fs::read(&ours).unwrap() == std::fs::read(&theirs).unwrap(), "{header:?}");
        assert!(data_blocks == 1 || hashed.into_inner() >= header.data_size());
        assert_eq!(Header::read(&hashes, 0).unwrap(), header);
        verify(&device, &hashes, 0, None, &|_| true).unwrap();
        drop((device, hashes));
        root_of(&["verify", shown(&files.data), shown(&ours), &root]);
    }
}

#[test]
fn hashes_behind_the_data_are_those_of_veritysetup() {
    let header = header(Algorithm::Sha256, 32, (4096, 4096), 1000);
    let offset = header.data_size();
    let files = Files::new(&content(offset as usize));
    let ours = files.path("ours");
    std::fs::copy(&files.data, &ours).unwrap();
    let end = offset + header.area_size().unwrap();
    std::fs::File::options().write(true).open(&ours).unwrap().set_len(end).unwrap();
    let (data, place) = (shown(&files.data), format!("--hash-offset={offset}"));
    let options = options(&header);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let root = root_of(&[&["format"], &options[..], &[&place, data, data]].concat());
    let device = FileDevice::open(&ours).unwrap();
    let made = format(&device, &device, offset, &header, &|_| true).unwrap();
    drop(device);
    assert_eq!(hex(&made), root);
    assert!(std::fs::read(&ours).unwrap() == std::fs::read(&files.data).unwrap());
    root_of(&["verify", &place, shown(&ours), shown(&ours), &root]);
}

/// A changed byte anywhere is found, and the first one is named with its level.
#[test]
fn the_first_wrong_block_is_named() {
    let header = header(Algorithm::Sha256, 32, (1024, 1024), 5000);
    let mut bytes = content(header.data_size() as usize);
    let clean = MemDevice::from_bytes(bytes.clone());
    let hashes = MemDevice::new(header.area_size().unwrap() as usize);
    let root = format(&clean, &hashes, 0, &header, &|_| true).unwrap();
    let tree = hashes.to_bytes();
    let wrong = |data: &[u8], tree: &[u8]| {
        let (data, tree) = (MemDevice::from_bytes(data.to_vec()), MemDevice::from_bytes(tree.to_vec()));
        verify(&data, &tree, 0, Some(&root), &|_| true).unwrap_err()
    };
    assert_eq!(verify(&clean, &hashes, 0, Some(&root), &|_| true).unwrap(), root);
    for (first, others) in [(0, &[1, 4999][..]), (31, &[]), (32, &[4000, 33]), (3333, &[3334]), (4999, &[])] {
        let mut bytes = bytes.clone();
        for block in others.iter().chain([&first]) {
            bytes[block * 1024 + block % 1024] ^= 1;
        }
        let found = wrong(&bytes, &tree);
        let (block, byte) = (first as u64, first as u64 * 1024);
        assert!(
            matches!(found, VerityError::Data { block: b, byte: at } if (b, at) == (block, byte)),
            "{found}"
        );
    }
    // 5000 blocks of data have 157 of level 0, 5 of level 1 and 1 of level 2; the top comes first.
    let (level_1, level_0) = (2 * 1024, 7 * 1024);
    for (at, level, block) in
        [(level_1, 1, 0), (level_1 + 4100, 1, 4), (level_0, 0, 0), (tree.len() - 1024, 0, 156)]
    {
        let mut tree = tree.clone();
        tree[at] ^= 0x80;
        bytes[0] ^= 1;
        let found = wrong(&bytes, &tree);
        let is = matches!(found, VerityError::Tree { level: l, block: b, .. } if (l, b) == (level, block));
        assert!(is, "{at}: {found}");
    }
    let mut top = tree.clone();
    top[1024] ^= 1;
    assert!(matches!(wrong(&clean.to_bytes(), &top), VerityError::RootHash));
}

/// The root hash does not cover the superblock: with fewer data blocks in it, no data is cut off.
#[test]
fn data_behind_a_shorter_count_is_no_valid_tree() {
    for (blocks, shorter) in [(5000, [4999, 4993, 4321]), (200, [199, 150, 129])] {
        let header = header(Algorithm::Sha256, 32, (1024, 1024), blocks);
        let data = MemDevice::from_bytes(content(header.data_size() as usize));
        let hashes = MemDevice::new(header.area_size().unwrap() as usize);
        let root = format(&data, &hashes, 0, &header, &|_| true).unwrap();
        for count in shorter {
            hashes.write_at(&u64::to_le_bytes(count), 72).unwrap();
            let found = verify(&data, &hashes, 0, Some(&root), &|_| true);
            assert!(found.is_err(), "{count} of {blocks} blocks are taken for all");
        }
    }
}

#[test]
fn hostile_superblocks_and_cancelling() {
    let header = header(Algorithm::Sha256, 32, (4096, 4096), 256);
    let data = MemDevice::from_bytes(content(1 << 20));
    let hashes = MemDevice::new(header.area_size().unwrap() as usize);
    assert!(matches!(Header::read(&hashes, 0), Err(VerityError::NoSuperblock(0))));
    assert!(matches!(Header::read(&hashes, u64::MAX), Err(VerityError::NoSuperblock(_))));
    assert!(matches!(format(&data, &hashes, 0, &header, &|_| false), Err(VerityError::Cancelled)));
    // No superblock without a tree.
    assert!(matches!(Header::read(&hashes, 0), Err(VerityError::NoSuperblock(0))));
    format(&data, &hashes, 0, &header, &|_| true).unwrap();
    let good = hashes.to_bytes();
    // Nor is that of an older tree left.
    assert!(matches!(format(&data, &hashes, 0, &header, &|_| false), Err(VerityError::Cancelled)));
    assert!(matches!(Header::read(&hashes, 0), Err(VerityError::NoSuperblock(0))));
    let mut refused = 0;
    for at in 0..512 {
        for value in [0, 1, 0x7F, 0xFF] {
            let mut bytes = good.clone();
            bytes[at] = value;
            let tree = MemDevice::from_bytes(bytes);
            let done = verify(&data, &tree, 0, None, &|_| true);
            refused += u32::from(done.is_err());
        }
    }
    assert!(refused > 200, "{refused}");
    let long = Header { data_blocks: 257, ..header.clone() };
    assert!(matches!(format(&data, &hashes, 0, &long, &|_| true), Err(VerityError::TooShort { .. })));
    let far = format(&data, &hashes, 4096, &header, &|_| true);
    assert!(matches!(far, Err(VerityError::TooShort { what: "the tree", .. })));
    assert_eq!(data.size(), 1 << 20);
}
