use super::*;
use proptest::prelude::*;

/// A block that the kernel wrote (block 1618 of a 1 KiB volume whose UUID is `UUID`, shared by two
/// files), as runs of bytes at offsets; the rest is zero.
const KERNEL: [(usize, &str); 3] = [
    (0, "000002ea0200000001000000e1e24c6a8569b972"),
    (
        32,
        "0301b80300000000460000004785777662696700050158030000\
         00005f000000cc1f82676ec3a46d6500000000023403\
         00000000240000002400f703",
    ),
    (820, "010000000100060002000600e8030000040004000800040007000000100006002000040076616c7565"),
];
const UUID: [u8; 16] = *b"\x11\x11\x11\x11\x22\x22\x33\x33\x44\x44\x55\x55\x55\x55\x55\x55";
const BLOCK: u64 = 1618;
const LONG: [u8; 70] = [b'v'; 70];

fn kernel_block() -> Vec<u8> {
    let mut block = vec![0; 1024];
    for (at, hex) in KERNEL {
        let hex: String = hex.split_whitespace().collect();
        for (i, pair) in hex.as_bytes().chunks(2).enumerate() {
            block[at + i] = u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        }
    }
    block[861..951].fill(b'w');
    block[952..1022].fill(b'v');
    block
}

fn seed() -> u32 {
    ext4_chksum(!0, &UUID)
}

fn bytes<'a>(attr: &Attr<'a>) -> &'a [u8] {
    match attr.value {
        Value::Bytes(bytes) => bytes,
        Value::Inode { .. } => panic!("value in an inode"),
    }
}

#[test]
fn reads_what_the_kernel_wrote() {
    let block = kernel_block();
    verify_block(&block, BLOCK, seed()).unwrap();
    assert_eq!(BlockHeader::parse(&block).unwrap(), BlockHeader { refcount: 2, hash: 0x6a4c_e2e1 });
    let attrs = parse_block(&block).unwrap();
    let names: Vec<_> = attrs.iter().map(|a| a.name.full().unwrap()).collect();
    assert_eq!(names, [b"user.big".to_vec(), "user.n\u{e4}me".into(), b"system.posix_acl_access".into()]);
    assert_eq!(bytes(&attrs[0]), LONG);
    assert_eq!(bytes(&attrs[1]).len(), 95);
    let acl = crate::acl::Acl::from_disk(bytes(&attrs[2])).unwrap();
    assert_eq!((acl.mode_bits(), acl.to_disk()), (0o664, bytes(&attrs[2]).to_vec()));
}

#[test]
fn writes_the_hashes_that_the_kernel_wrote() {
    let kernel = kernel_block();
    let mut attrs = parse_block(&kernel).unwrap();
    attrs.reverse();
    let mut ours = vec![0xFF; 1024];
    assert!(encode_block(&mut ours, &mut attrs));
    assert_eq!(BlockHeader::parse(&ours).unwrap(), BlockHeader { refcount: 1, hash: 0x6a4c_e2e1 });
    let again = parse_block(&ours).unwrap();
    for (a, b) in again.iter().zip(parse_block(&kernel).unwrap()) {
        assert!(a.same(&b));
        assert_eq!(a.hash, b.hash);
    }
    seal_block(&mut ours, BLOCK, Some(seed()));
    verify_block(&ours, BLOCK, seed()).unwrap();
    assert!(verify_block(&ours, BLOCK + 1, seed()).is_err());
}

#[test]
fn a_name_hashed_as_signed_bytes_is_accepted_and_another_hash_is_not() {
    let mut block = kernel_block();
    let at = 64;
    assert_eq!(u32_at(&block, at), entry_hash("n\u{e4}me".as_bytes(), &block[856..951], false));
    let signed = entry_hash("n\u{e4}me".as_bytes(), &block[856..951], true);
    put_u32(&mut block, at, signed);
    parse_block(&block).unwrap();
    put_u32(&mut block, at, signed ^ 1);
    assert!(matches!(parse_block(&block), Err(XattrFormatError::Hash { offset: 52, .. })));
}

#[test]
fn names() {
    let ok = |full: &'static str| {
        let name = Name::parse(full.as_bytes()).unwrap();
        assert_eq!(name.full().unwrap(), full.as_bytes());
        (name.index, name.rest)
    };
    assert_eq!(ok("user.a"), (1, &b"a"[..]));
    assert_eq!(ok("trusted.overlay.opaque"), (4, &b"overlay.opaque"[..]));
    assert_eq!(ok("security.capability"), (6, &b"capability"[..]));
    assert_eq!(ok("gnu.translator"), (10, &b"translator"[..]));
    assert_eq!(ok("system.posix_acl_access"), (2, &b""[..]));
    assert_eq!(ok("system.posix_acl_default"), (3, &b""[..]));
    assert_eq!(Name::parse(b"user."), Err(NameError::Invalid));
    assert_eq!(Name::parse(b"user.a\0"), Err(NameError::Invalid));
    assert_eq!(Name::parse(b"nothing"), Err(NameError::Prefix));
    assert_eq!(Name::parse(b"system.posix_acl_accessory"), Err(NameError::Prefix));
    assert_eq!(Name::parse(&[b'u'; 256]), Err(NameError::Length(256)));
    assert_eq!(Name { index: index::SYSTEM, rest: b"data" }.full(), None);
}

#[test]
fn an_inode_area_fills_to_its_last_byte() {
    // 96 bytes: magic 4, entry 20, end mark 4, value 68.
    let name = Name { index: index::USER, rest: b"four" };
    let mut area = [0xFF; 96];
    assert!(!encode_inode(&mut area, &[Attr::new(name, &LONG[..69])]));
    assert_eq!(area, [0xFF; 96], "a refused change leaves the area as it was");
    assert!(encode_inode(&mut area, &[Attr::new(name, &LONG[..68])]));
    let attrs = parse_inode(&area).unwrap();
    assert_eq!((attrs.len(), bytes(&attrs[0]), attrs[0].hash), (1, &LONG[..68], 0));
    assert!(encode_inode(&mut area, &[]));
    assert_eq!(area, [0; 96]);
    assert!(parse_inode(&area).unwrap().is_empty());
}

#[test]
fn broken_rules_have_names() {
    let broken = |at: usize, bytes: &[u8]| {
        let mut block = kernel_block();
        block[at..at + bytes.len()].copy_from_slice(bytes);
        parse_block(&block).unwrap_err()
    };
    assert_eq!(broken(0, &[1]), XattrFormatError::Magic { found: 0xEA02_0001 });
    assert_eq!(broken(8, &[2]), XattrFormatError::Blocks { value: 2 });
    assert_eq!(broken(4, &[0]), XattrFormatError::Refcount);
    assert_eq!(
        broken(40, &[0, 0, 0, 2]),
        XattrFormatError::ValueSize { offset: 32, size: 0x200_0000, max: 1 << 24 }
    );
    assert_eq!(
        broken(34, &[0xBC, 3]),
        XattrFormatError::ValueRange { offset: 32, start: 956, end: 1026, min: 96, max: 1024 }
    );
    // The mark behind the last name belongs to the names.
    assert!(matches!(broken(34, &[92, 0]), XattrFormatError::ValueRange { start: 92, min: 96, .. }));
    assert_eq!(
        broken(34, &[32, 0]),
        XattrFormatError::ValueRange { offset: 32, start: 32, end: 102, min: 96, max: 1024 }
    );
    assert_eq!(broken(49, &[0]), XattrFormatError::NameZero { offset: 32 });
    let cut = kernel_block();
    assert_eq!(parse_block(&cut[..90]).unwrap_err(), XattrFormatError::EntryRange { offset: 76, end: 90 });
    assert_eq!(parse_block(&cut[..94]).unwrap_err(), XattrFormatError::EntryRange { offset: 92, end: 94 });
}

proptest! {
    #[test]
    fn hostile_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..300), tame in any::<bool>()) {
        if tame && bytes.len() >= 40 {
            put_u32(&mut bytes, 0, EXT4_XATTR_MAGIC);
            put_u32(&mut bytes, 8, 1);
        }
        for attr in parse_block(&bytes).into_iter().flatten() {
            prop_assert!(attr.size_of_value() <= bytes.len());
        }
        if tame && bytes.len() >= 4 {
            put_u32(&mut bytes, 0, EXT4_XATTR_MAGIC);
        }
        let _ = parse_inode(&bytes);
    }

    #[test]
    fn mutated_block_never_panics_and_survives_a_round_trip(edits in prop::collection::vec((0usize..1024, any::<u8>()), 1..8)) {
        let mut block = kernel_block();
        for (at, byte) in edits {
            block[at] = byte;
        }
        if let Ok(mut attrs) = parse_block(&block) {
            let mut copy = vec![0; 1024];
            if encode_block(&mut copy, &mut attrs) {
                let again = parse_block(&copy).unwrap();
                prop_assert!(again.iter().zip(&attrs).all(|(a, b)| a.same(b)));
            }
        }
    }

    #[test]
    fn what_is_laid_out_is_read_back(
        attrs in prop::collection::btree_map((prop::sample::select(vec![1u8, 4, 6, 10]), prop::collection::vec(1u8.., 1..40)),
            prop::collection::vec(any::<u8>(), 0..120), 0..9),
        len in (0usize..256).prop_map(|n| n * 4),
    ) {
        let mut list: Vec<_> = attrs.iter()
            .map(|((index, rest), value)| Attr::new(Name { index: *index, rest }, value)).collect();
        let mut area = vec![0; len];
        if encode_inode(&mut area, &list) {
            let again = parse_inode(&area).unwrap();
            prop_assert_eq!(again.len(), list.len());
            prop_assert!(again.iter().zip(&list).all(|(a, b)| a.same(b)));
        } else {
            prop_assert!(!fits(&list, len, INODE_HEADER));
        }
        let mut block = vec![0; len];
        if encode_block(&mut block, &mut list) {
            let again = parse_block(&block).unwrap();
            prop_assert!(again.iter().zip(&list).all(|(a, b)| a.same(b)));
            prop_assert!(again.is_sorted_by_key(Attr::order));
        }
    }
}
