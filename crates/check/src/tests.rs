use super::*;
use lanefs_device::MemDevice;

fn volume() -> Arc<MemDevice> {
    let device = MemDevice::new(16 << 20);
    let options = lanefs_mkfs::Options { block_size: Some(1024), ..Default::default() };
    lanefs_mkfs::format(&device, &options).unwrap();
    Arc::new(device)
}

fn checked(device: &Arc<MemDevice>) -> Report {
    check(Arc::clone(device) as _, &Options::default()).unwrap()
}

#[test]
fn a_new_volume_is_clean() {
    let report = checked(&volume());
    assert_eq!(report.findings, []);
    assert!(report.is_clean() && !report.cut_short && !report.replayed);
    assert_eq!(report.directories, 2);
    assert!(report.unchecked.is_empty() && report.orphans == 0);
}

/// Nothing is written, and each change of one bit of fixed metadata is a finding.
#[test]
fn a_changed_bit_is_found() {
    let device = volume();
    let bytes = device.to_bytes();
    let sb = Superblock::parse(&bytes[1024..]).unwrap();
    let layout = sb.layout();
    let (block, offset) = layout.desc_location(0).unwrap();
    let at = block as usize * 1024 + offset as usize;
    let desc = GroupDesc::parse(&bytes[at..], 0, &layout, &sb.checksummer()).unwrap();
    let root = desc.inode_table as usize * 1024 + usize::from(layout.inode_size());
    for (at, kind) in [
        (1024 + 0x40, "superblock"),
        (at + 0x0C, "group descriptor"),
        (desc.block_bitmap as usize * 1024 + 1000, "block bitmap"),
        (desc.inode_bitmap as usize * 1024 + 10, "inode bitmap"),
        (root + 0x1A, "inode"),
        (8193 * 1024 + 0x40, "backup"),
    ] {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        let device = Arc::new(MemDevice::from_bytes(changed.clone()));
        let report = checked(&device);
        assert!(report.findings.iter().any(|f| f.structure.kind() == kind), "{kind}: {report:?}");
        assert!(device.to_bytes() == changed);
    }
}

#[test]
fn what_is_no_volume_is_an_error() {
    let no_volume = |bytes| check(Arc::new(MemDevice::from_bytes(bytes)), &Options::default());
    assert!(matches!(no_volume(vec![0; 100_000]), Err(CheckError::NotVolume(_))));
    assert!(matches!(no_volume(vec![0; 100]), Err(CheckError::NotVolume(_))));
}

#[test]
fn findings_beyond_the_bound_are_counted() {
    let mut bytes = volume().to_bytes();
    bytes[0x2000..0x40_0000].fill(0xA5);
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_bytes(bytes));
    let whole = check(Arc::clone(&device), &Options::default()).unwrap();
    let cut = check(device, &Options::default().max_findings(1)).unwrap();
    assert!(whole.count > 1 && whole.count == cut.count);
    assert_eq!(cut.findings, whole.findings[..1]);
}

/// A log of fast commits, or of features from tomorrow, is sound. Without its replay the volume
/// cannot be judged.
#[test]
fn a_log_that_cannot_be_replayed_is_no_finding() {
    const SEQUENCE: usize = 0x18;
    const START: usize = 0x1C;
    const INCOMPAT: usize = 0x28;
    const NUM_FC_BLKS: usize = 0x54;
    let device = MemDevice::new(16 << 20);
    let options =
        lanefs_mkfs::Options { block_size: Some(1024), journal_size: Some(4), ..Default::default() };
    lanefs_mkfs::format(&device, &options).unwrap();
    let mut bytes = device.to_bytes();
    let map = Superblock::parse(&bytes[1024..]).unwrap().journal_backup().unwrap().i_block;
    // One extent: its length, and its place.
    assert_eq!((io::le32(&map, 0) >> 16, io::le32(&map, 16)), (1, 4096));
    let log = io::le32(&map, 20) as usize * 1024;
    for (at, value) in [(SEQUENCE, 1_u32), (INCOMPAT, 0x20), (NUM_FC_BLKS, 16)] {
        bytes[log + at..log + at + 4].copy_from_slice(&value.to_be_bytes());
    }
    // A head and a tail of the first transaction: tag, length, value.
    put(&mut bytes, log + (4096 - 16) * 1024, &[8 << 16 | 9, 0, 1, 8 << 16 | 8, 1, 0]);
    let checked = |bytes: &[u8]| check(Arc::new(MemDevice::from_bytes(bytes.to_vec())), &Options::default());
    assert_eq!(checked(&bytes).unwrap().findings, []);
    let refused = |bytes: &[u8]| match checked(bytes) {
        Err(CheckError::Log(text)) => text,
        other => panic!("{other:?}"),
    };
    bytes[log + START + 3] = 1;
    assert!(refused(&bytes).contains("fast commits after transaction"));
    bytes[log + INCOMPAT + 3] = 0x40;
    assert!(refused(&bytes).contains("unknown features"));
}

/// Writes 32-bit numbers at `at`.
fn put(bytes: &mut [u8], at: usize, values: &[u32]) {
    for (word, value) in bytes[at..].chunks_exact_mut(4).zip(values) {
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// The triple indirect block of large blocks reaches beyond the last block that a file may have.
#[test]
fn blocks_beyond_the_last_possible_one_are_found() {
    const BLOCK: usize = 65_536;
    let device = MemDevice::new(32 << 20);
    let fs_type = lanefs_mkfs::FsType::Ext2;
    let options = lanefs_mkfs::Options { fs_type, block_size: Some(65_536), ..Default::default() };
    lanefs_mkfs::format(&device, &options).unwrap();
    let mut bytes = device.to_bytes();
    let sb = Superblock::parse(&bytes[1024..]).unwrap();
    let layout = sb.layout();
    let desc = GroupDesc::parse(&bytes[BLOCK..], 0, &layout, &sb.checksummer()).unwrap();
    let root = desc.inode_table as usize * BLOCK + usize::from(layout.inode_size());
    // The way to logical block 2^32 - 1, and three neighbours of which it is the second.
    put(&mut bytes, root + 0x28 + 14 * 4, &[400]);
    put(&mut bytes, 400 * BLOCK + 14 * 4, &[401]);
    put(&mut bytes, 401 * BLOCK + 16_382 * 4, &[402]);
    put(&mut bytes, 402 * BLOCK + 16_370 * 4, &[403, 404, 405]);
    let report = checked(&Arc::new(MemDevice::from_bytes(bytes)));
    let max = u64::from(u32::MAX) - 1;
    for lblk in [max + 1, max + 2] {
        let structure = Structure::IndirectMap { ino: 2, block: 402 };
        assert!(report.findings.contains(&Finding { structure, rule: Rule::BeyondMax { lblk, max } }));
    }
    // Of the three, the one before it is the directory's.
    let rule = Rule::Blocks { found: 128, counted: 128 * 5 };
    assert!(report.findings.contains(&Finding { structure: Structure::Inode { ino: 2 }, rule }));
}

/// A volume of mke2fs whose MMP block says that a host uses it, and the place of that block.
fn in_use() -> (Vec<u8>, usize) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("volume");
    let out = std::process::Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-O", "mmp,^metadata_csum"])
        .arg(&path)
        .arg("16M")
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
    let mut bytes = std::fs::read(path).unwrap();
    let sb = Superblock::parse(&bytes[1024..]).unwrap();
    let at = sb.raw().s_mmp_block.get() as usize * sb.block_size() as usize;
    put(&mut bytes, at + 4, &[77]);
    bytes[at + 16..at + 24].copy_from_slice(b"host\x1b[1m");
    (bytes, at)
}

#[test]
fn a_host_that_may_use_the_volume_is_told() {
    let (bytes, at) = in_use();
    let report = checked(&Arc::new(MemDevice::from_bytes(bytes.clone())));
    assert!(report.is_clean(), "{report:?}");
    let told = report.unchecked[0].to_string();
    assert!(told.contains("mmp_seq is 0x4d: host 'host\\u{1b}[1m' uses the volume"), "{told}");
    let mut closed = bytes;
    put(&mut closed, at + 4, &[lanefs_format::EXT4_MMP_SEQ_CLEAN]);
    assert!(checked(&Arc::new(MemDevice::from_bytes(closed))).unchecked.is_empty());
}

/// A device whose MMP block another host changes after each read.
#[derive(Debug)]
struct Changing(MemDevice, u64);

impl BlockDevice for Changing {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn read_only(&self) -> bool {
        false
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> lanefs_device::Result<()> {
        self.0.read_at(buf, offset)?;
        if offset == self.1 {
            let seq = u32::from_le_bytes([buf[4], buf[5], buf[6], buf[7]]).wrapping_add(1) & 0xff;
            self.0.write_at(&seq.to_le_bytes(), offset + 4)?;
        }
        Ok(())
    }
    fn write_at(&self, data: &[u8], offset: u64) -> lanefs_device::Result<()> {
        self.0.write_at(data, offset)
    }
    fn flush(&self) -> lanefs_device::Result<()> {
        self.0.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> lanefs_device::Result<()> {
        self.0.discard(offset, len)
    }
}

#[test]
fn a_volume_that_a_host_uses_meanwhile_is_not_judged() {
    let (mut bytes, at) = in_use();
    // In use before the check, and from its beginning on.
    for seq in [77, lanefs_format::EXT4_MMP_SEQ_CLEAN] {
        put(&mut bytes, at + 4, &[seq]);
        let device = Changing(MemDevice::from_bytes(bytes.clone()), at as u64);
        match check(Arc::new(device), &Options::default()) {
            Err(CheckError::InUse { host, .. }) => assert_eq!(host, "host\\u{1b}[1m"),
            other => panic!("{seq:#x}: {other:?}"),
        }
    }
}
