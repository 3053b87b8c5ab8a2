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
