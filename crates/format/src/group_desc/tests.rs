use super::*;
use crate::Superblock;
use crate::testing::{mke2fs, run};

/// The numbers that stand behind `label` in a text of dumpe2fs.
fn number(text: &str, label: &str) -> Option<u64> {
    let rest = text.split(label).nth(1)?.trim_start();
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// Counts that need both halves of their fields, and lie where the format says.
#[test]
fn wide_counts_lie_where_they_belong() {
    let image = mke2fs("99M", &["-t", "ext4", "-b", "1024"]);
    let sb = Superblock::parse(&image.bytes()[1024..]).unwrap();
    let desc = GroupDesc {
        free_blocks_count: 0x1_0002,
        free_inodes_count: 0x3_0004,
        used_dirs_count: 0x5_0006,
        itable_unused: 0x7_0008,
        ..GroupDesc::decode(&[0; 64])
    };
    let mut bytes = [0; 64];
    desc.encode(&mut bytes, 0, &sb.layout(), &Checksummer::NONE).unwrap();
    assert_eq!([0x0C, 0x0E, 0x10, 0x1C].map(|at| u16_at(&bytes, at)), [2, 4, 6, 8]);
    assert_eq!([0x2C, 0x2E, 0x30, 0x32].map(|at| u16_at(&bytes, at)), [1, 3, 5, 7]);
    assert_eq!(GroupDesc::decode(&bytes), desc);
}

/// Every descriptor of volumes of many shapes, against dumpe2fs; both bitmaps; and back to bytes.
#[test]
fn agrees_with_dumpe2fs() {
    for args in [
        &["-t", "ext4", "-b", "1024"][..],
        &["-t", "ext4", "-b", "1024", "-O", "^64bit"],
        &["-t", "ext4", "-b", "4096", "-g", "1024", "-O", "^resize_inode,meta_bg"],
        &["-t", "ext4", "-b", "1024", "-g", "256", "-O", "^resize_inode,meta_bg,^flex_bg"],
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg"],
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg,^64bit"],
        &["-t", "ext4", "-b", "1024", "-O", "sparse_super2"],
        &["-t", "ext4", "-b", "1024", "-O", "bigalloc"],
        &["-t", "ext2", "-b", "1024", "-O", "^sparse_super,^resize_inode"],
        &["-t", "ext3", "-b", "2048"],
    ] {
        let image = mke2fs("99M", args);
        let bytes = image.bytes();
        let sb = Superblock::parse(&bytes[1024..]).unwrap();
        let (layout, csum, bs) = (sb.layout(), sb.checksummer(), sb.block_size() as usize);
        let out = run("dumpe2fs", &[image.0.to_str().unwrap()]);
        let groups = out.split("\nGroup ").filter(|g| g.starts_with(|c: char| c.is_ascii_digit()));
        let groups: Vec<&str> = groups.collect();
        assert_eq!(groups.len(), layout.group_count() as usize);
        for (group, text) in groups.iter().enumerate() {
            let group = group as u32;
            let (block, at) = layout.desc_location(group).unwrap();
            let slot = &bytes[block as usize * bs + at as usize..];
            let desc = GroupDesc::parse(slot, group, &layout, &csum).unwrap();
            let what = format!("{args:?} group {text}");
            assert_eq!(Some(desc.block_bitmap), number(text, "Block bitmap at"), "{what}");
            assert_eq!(Some(desc.inode_bitmap), number(text, "Inode bitmap at"), "{what}");
            assert_eq!(Some(desc.inode_table), number(text, "Inode table at"), "{what}");
            let last = desc.inode_table + u64::from(layout.inode_table_blocks()) - 1;
            assert!(text.contains(&format!("Inode table at {}-{last}", desc.inode_table)), "{what}");
            assert!(text.contains(&format!("{} free inodes", desc.free_inodes_count)), "{what}");
            assert!(text.contains(&format!("{} directories", desc.used_dirs_count)), "{what}");
            let uninit = desc.flags.contains(GroupFlags::BLOCK_UNINIT);
            assert_eq!(uninit, text.contains("BLOCK_UNINIT"), "{what}");

            let first = layout.group_first_block(group).unwrap();
            let last = first + u64::from(layout.group_blocks(group).unwrap()) - 1;
            assert!(text.contains(&format!("(Blocks {first}-{last})")), "{what}");
            assert_eq!(layout.group_of_block(last).unwrap().0, group);
            assert_eq!(layout.super_location(group), number(text, "superblock at"), "{what}");
            assert_eq!(layout.has_super(group), text.contains("superblock at"), "{what}");
            let gdt = layout.group_desc_blocks(group);
            assert_eq!(gdt > 0, text.contains("roup descriptor"), "{what}");
            if let Some(start) = number(text, "Reserved GDT blocks at") {
                let end = start + u64::from(layout.group_reserved_gdt(group)) - 1;
                assert!(text.contains(&format!("Reserved GDT blocks at {start}-{end}")), "{what}");
            } else {
                assert_eq!(layout.group_reserved_gdt(group), 0, "{what}");
            }

            let map = |block: u64| &bytes[block as usize * bs..][..bs];
            if !uninit {
                desc.verify_block_bitmap(map(desc.block_bitmap), group, &layout, &csum).unwrap();
                let free = layout.group_clusters(group).unwrap() as usize
                    - crate::bitmap::count_set(
                        map(desc.block_bitmap),
                        0..layout.group_clusters(group).unwrap() as usize,
                    );
                assert_eq!(free as u32, desc.free_blocks_count, "{what}");
            }
            if !desc.flags.contains(GroupFlags::INODE_UNINIT) {
                desc.verify_inode_bitmap(map(desc.inode_bitmap), group, &layout, &csum).unwrap();
            }

            let len = usize::from(layout.desc_size());
            let mut again = vec![0; len];
            desc.encode(&mut again, group, &layout, &csum).unwrap();
            assert_eq!(again, slot[..len], "{what}");
        }
    }
}

#[test]
fn broken_rules() {
    let image = mke2fs("99M", &["-t", "ext4", "-b", "1024"]);
    let bytes = image.bytes();
    let sb = Superblock::parse(&bytes[1024..]).unwrap();
    let (layout, csum) = (sb.layout(), sb.checksummer());
    let desc = bytes[2048..2112].to_vec();
    let good = GroupDesc::parse(&desc, 0, &layout, &csum).unwrap();
    assert!(matches!(
        GroupDesc::parse(&desc, 1, &layout, &csum),
        Err(FormatError::GroupChecksum { group: 1, .. })
    ));
    let broken = |change: fn(&mut GroupDesc)| {
        let (mut d, mut b) = (good, desc.clone());
        change(&mut d);
        d.encode(&mut b, 0, &layout, &csum).unwrap();
        GroupDesc::parse(&b, 0, &layout, &csum).unwrap_err()
    };
    let end = layout.blocks_count();
    let field = "bg_inode_table";
    let want = FormatError::GroupBlock { group: 0, field, block: 101_370, first: 1, end };
    assert_eq!(broken(|d| d.inode_table = 101_370), want);
    let field = "bg_block_bitmap";
    let want = FormatError::GroupBlock { group: 0, field, block: 1 << 40, first: 1, end };
    assert_eq!(broken(|d| d.block_bitmap = 1 << 40), want);
    let field = "bg_free_blocks_count";
    let want = FormatError::GroupCount { group: 0, field, value: 8193, max: 8192 };
    assert_eq!(broken(|d| d.free_blocks_count = 8193), want);

    let mut map = bytes[good.block_bitmap as usize * 1024..][..1024].to_vec();
    map[1000] ^= 1;
    assert!(matches!(
        good.verify_block_bitmap(&map, 0, &layout, &csum),
        Err(FormatError::BitmapChecksum { group: 0, which: "block", .. })
    ));
    let mut changed = good;
    changed.sum_block_bitmap(&map, &layout, &csum).unwrap();
    changed.verify_block_bitmap(&map, 0, &layout, &csum).unwrap();
}

#[test]
fn layout_refuses_what_is_outside() {
    let image = mke2fs("99M", &["-t", "ext4", "-b", "1024"]);
    let sb = Superblock::parse(&image.bytes()[1024..]).unwrap();
    let l = sb.layout();
    let (count, max) = (l.group_count(), l.inodes_count());
    assert_eq!(l.group_first_block(count), Err(FormatError::GroupRange { group: count, count }));
    assert_eq!(l.inode_slot(0), Err(FormatError::InodeRange { ino: 0, max }));
    assert_eq!(l.inode_slot(max + 1), Err(FormatError::InodeRange { ino: max + 1, max }));
    assert!(l.check_blocks(u64::MAX, 2).is_err());
    assert!(l.check_blocks(0, 1).is_err());
    assert!(l.check_blocks(1, l.blocks_count() - 1).is_ok());
    assert!(l.check_blocks(1, l.blocks_count()).is_err());
    let slot = l.inode_slot(max).unwrap();
    assert_eq!(l.ino(slot.group, slot.index), Ok(max));
}
