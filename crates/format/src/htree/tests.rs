use super::*;

const SEED: Option<u32> = Some(0x1234_5678);

fn layout(block_size: usize, checksums: bool) -> DirLayout {
    DirLayout { block_size, inodes_count: 1000, checksums, file_types: true }
}

fn root(layout: &DirLayout) -> Vec<u8> {
    let mut block = vec![0xee; layout.block_size];
    let info = DxRootInfo { hash_version: HashVersion::HalfMd4, indirect_levels: 0, own: 12, parent: 2 };
    init_root(&mut block, layout, info, 1);
    for (i, hash) in [0x10, 0x20, 0x21, 0x21, 0x30].into_iter().enumerate() {
        insert(&mut block, DxKind::Root, i + 1, DxEntry { hash, block: 2 + i as u32 }).unwrap();
    }
    seal(&mut block, layout, DxKind::Root, SEED);
    block
}

fn broken(at: usize, bytes: &[u8]) -> Result<DxRootInfo, HtreeError> {
    let layout = layout(1024, false);
    let mut block = root(&layout);
    block[at..at + bytes.len()].copy_from_slice(bytes);
    verify_root(&block, &layout, 1, SEED)
}

#[test]
fn limits_are_those_of_the_format() {
    // What `dumpe2fs` and `debugfs htree_dump` show for volumes of the kernel.
    assert_eq!(
        (DxKind::Root.limit(&layout(4096, true)), DxKind::Node.limit(&layout(4096, true))),
        (507, 510)
    );
    assert_eq!(
        (DxKind::Root.limit(&layout(1024, false)), DxKind::Node.limit(&layout(1024, false))),
        (124, 127)
    );
}

#[test]
fn what_is_written_verifies() {
    for (size, checksums) in [(1024, true), (4096, false), (65536, true)] {
        let layout = layout(size, checksums);
        let info = verify_root(&root(&layout), &layout, 1, SEED).unwrap();
        assert_eq!(
            info,
            DxRootInfo { hash_version: HashVersion::HalfMd4, indirect_levels: 0, own: 12, parent: 2 }
        );
        let mut node = vec![0xee; size];
        init_node(&mut node, &layout, 7);
        extend(&mut node, DxKind::Node, &entries_from(&root(&layout), DxKind::Root, 1).unwrap()).unwrap();
        seal(&mut node, &layout, DxKind::Node, SEED);
        verify_node(&node, &layout, SEED).unwrap();
        let view = DxView::new(&node, DxKind::Node);
        assert_eq!((view.count(), view.get(0).unwrap().block, view.get(6)), (6, 7, None));
        truncate(&mut node, DxKind::Node, 2);
        assert_eq!(DxView::new(&node, DxKind::Node).count(), 2);
    }
}

#[test]
fn search_finds_the_first_block_that_may_hold_a_hash() {
    let block = root(&layout(1024, true));
    let view = DxView::new(&block, DxKind::Root);
    let found: Vec<_> = [0, 0xe, 0x10, 0x1e, 0x20, 0x22, 0x30, u32::MAX].map(|h| view.search(h)).into();
    assert_eq!(found, [0, 0, 1, 1, 2, 4, 5, 5], "0x20 goes on in entries 3 and 4");
}

#[test]
fn each_broken_rule_is_its_own_error() {
    use HtreeError as E;
    assert_eq!(broken(8, b"x"), Err(E::RootDot { offset: 0, name: "." }));
    assert_eq!(broken(18, &[3]), Err(E::RootDot { offset: 12, name: ".." }));
    assert_eq!(broken(4, &[16]), Err(E::RecLen { offset: 0, value: 16, bound: 12 }));
    assert_eq!(broken(16, &[12, 0]), Err(E::RecLen { offset: 12, value: 12, bound: 1012 }));
    assert_eq!(broken(12, &[0; 4]), Err(E::Inode { offset: 12, inode: 0, min: 1, max: 1000 }));
    assert_eq!(broken(24, &[1]), Err(E::ReservedZero { offset: 24, value: 1 }));
    assert_eq!(broken(28, &[9]), Err(E::HashVersion { offset: 28, value: 9 }));
    assert_eq!(broken(29, &[12]), Err(E::InfoLength { offset: 29, value: 12 }));
    assert_eq!(broken(30, &[2]), Err(E::IndirectLevels { offset: 30, value: 2, bound: 1 }));
    assert_eq!(broken(31, &[1]), Err(E::UnusedFlags { offset: 31, value: 1 }));
    assert_eq!(broken(32, &[123, 0]), Err(E::Limit { offset: 32, value: 123, bound: 124 }));
    assert_eq!(broken(34, &[0, 0]), Err(E::Count { offset: 34, value: 0, bound: 124 }));
    assert_eq!(broken(34, &[125, 0]), Err(E::Count { offset: 34, value: 125, bound: 124 }));
    assert_eq!(broken(36, &[0; 4]), Err(E::BlockZero { entry: 0 }));
    assert_eq!(broken(48, &[0x10]), Err(E::HashOrder { entry: 2, hash: 0x10, bound: 0x10 }));
    assert_eq!(broken(48, &[0x0f]), Err(E::HashOrder { entry: 2, hash: 0x0f, bound: 0x10 }));

    let layout = layout(1024, true);
    let mut block = root(&layout);
    block[52] ^= 1;
    assert!(matches!(verify_root(&block, &layout, 1, SEED), Err(E::Checksum { .. })));
    block[0] = 1;
    block[1] = 1;
    assert!(matches!(verify_node(&block, &layout, SEED), Err(E::Inode { offset: 0, .. })));
}

/// The version of an encrypted and case-folded directory, and that of any other.
#[test]
fn siphash_is_known_where_it_belongs() {
    for checksums in [true, false] {
        let layout = layout(1024, checksums);
        let mut block = root(&layout);
        let (offset, bound) = (28, 6);
        let other = HtreeError::NotSipHash { offset, value: 1, bound };
        assert_eq!(verify_siphash_root(&block, &layout, 1, SEED), Err(other));
        block[offset] = bound;
        seal(&mut block, &layout, DxKind::Root, SEED);
        assert_eq!(verify_siphash_root(&block, &layout, 1, SEED), Ok(0));
        let unknown = HtreeError::HashVersion { offset, value: bound };
        assert_eq!(verify_root(&block, &layout, 1, SEED), Err(unknown));
    }
}

#[test]
fn a_full_block_takes_no_more() {
    let layout = layout(1024, true);
    let mut node = vec![0; 1024];
    init_node(&mut node, &layout, 1);
    for i in 1..126 {
        insert(&mut node, DxKind::Node, i, DxEntry { hash: 2 * i as u32, block: 1 }).unwrap();
    }
    let full = node.clone();
    let entry = DxEntry { hash: 0xffff, block: 1 };
    assert_eq!(
        insert(&mut node, DxKind::Node, 1, entry),
        Err(HtreeError::NoEntry { entry: 1, count: 126, limit: 126 })
    );
    assert!(extend(&mut node, DxKind::Node, &[entry]).is_err());
    assert_eq!(node, full);
}

#[test]
fn any_bytes_end_in_an_answer() {
    use proptest::prelude::*;
    let layout = layout(1024, false);
    proptest!(|(changes in prop::collection::vec((0..96_usize, any::<u8>()), 1..4), hash: u32)| {
        let mut block = root(&layout);
        for (at, byte) in changes {
            block[at] = byte;
        }
        let view = DxView::new(&block, DxKind::Root);
        let at = view.search(hash);
        if verify_root(&block, &layout, 2, None).is_ok() {
            prop_assert!(view.get(at).unwrap().hash <= hash);
            prop_assert!(view.get(at + 1).is_none_or(|e| e.hash > hash));
        }
        let _ = insert(&mut block, DxKind::Root, at, DxEntry { hash, block: 1 });
    });
}
