use super::*;

const SEED: Option<u32> = Some(0x1234_5678);

fn layout(block_size: usize) -> DirLayout {
    DirLayout { block_size, inodes_count: 1000, checksums: true, file_types: true }
}

fn block_of(layout: &DirLayout, names: &[&[u8]]) -> Vec<u8> {
    let mut block = vec![0; layout.block_size];
    init_block(&mut block, layout);
    let mut at = 0;
    for (i, name) in names.iter().enumerate() {
        let last = i + 1 == names.len();
        let len = if last { layout.end() - at } else { rec_len(name.len()) };
        let (inode, file_type) = (11 + i as u32, Some(FileType::Regular));
        let entry = Dirent { offset: at, inode, rec_len: len, file_type, name };
        write_entry(&mut block, layout, &entry).unwrap();
        at += len;
    }
    seal(&mut block, layout, SEED);
    block
}

fn with(layout: &DirLayout, at: usize, bytes: &[u8]) -> Result<(), DirentError> {
    let mut block = block_of(layout, &[b"one", b"second", b"third-name"]);
    block[at..at + bytes.len()].copy_from_slice(bytes);
    seal(&mut block, layout, SEED);
    verify_block(&block, layout, SEED)
}

#[test]
fn what_is_written_reads_back() {
    for size in [1024, 2048, 4096, 32768, 65536] {
        let layout = layout(size);
        let longest = [b'n'; 255];
        let names: [&[u8]; 3] = [b"a", &longest, b"last"];
        let block = block_of(&layout, &names);
        verify_block(&block, &layout, SEED).unwrap();
        let read: Vec<_> = entries(&block, &layout).map(Result::unwrap).collect();
        assert_eq!(read.iter().map(|e| e.name).collect::<Vec<_>>(), names);
        assert_eq!(read.iter().map(|e| e.inode).collect::<Vec<_>>(), [11, 12, 13]);
        assert_eq!(read[2].next(), layout.end());
        assert_eq!(read[1].slack(), 0);
    }
}

#[test]
fn rec_len_of_64k_blocks_has_its_codes() {
    let big = layout(65536);
    assert_eq!(big.encode_rec_len(65536), 0xffff);
    assert_eq!((big.decode_rec_len(0xffff), big.decode_rec_len(0)), (65536, 65536));
    assert_eq!((big.encode_rec_len(65524), big.decode_rec_len(65524)), (65524, 65524));
    assert_eq!(layout(32768).decode_rec_len(0), 0);
    let plain = DirLayout { checksums: false, ..big };
    let mut block = vec![0; 65536];
    init_block(&mut block, &plain);
    verify_block(&block, &plain, None).unwrap();
    assert_eq!(entries(&block, &plain).next().unwrap().unwrap().rec_len, 65536);
}

#[test]
fn each_broken_rule_is_its_own_error() {
    let layout = layout(1024);
    let end = layout.end();
    let u16 = |v: u16| v.to_le_bytes();
    assert_eq!(
        with(&layout, 4, &u16(8)),
        Err(DirentError::RecLenTooSmall { offset: 0, rec_len: 8, bound: 12 })
    );
    assert_eq!(with(&layout, 4, &u16(14)), Err(DirentError::RecLenUnaligned { offset: 0, rec_len: 14 }));
    let overrun = DirentError::RecLenOverrun { offset: 0, rec_len: 1016, bound: end };
    assert_eq!(with(&layout, 4, &u16(1016)), Err(overrun));
    let close = DirentError::TooCloseToEnd { offset: 0, rec_len: 1004, bound: end };
    assert_eq!(with(&layout, 4, &u16(1004)), Err(close));
    let name = DirentError::NameOverrun { offset: 0, name_len: 5, rec_len: 12 };
    assert_eq!(with(&layout, 6, &[5]), Err(name));
    let inode = DirentError::InodeOutOfRange { offset: 0, inode: 1001, bound: 1000 };
    assert_eq!(with(&layout, 0, &1001_u32.to_le_bytes()), Err(inode));
    assert_eq!(with(&layout, 6, &[0]), Err(DirentError::NameEmpty { offset: 0, inode: 11 }));
    assert_eq!(with(&layout, 9, b"/"), Err(DirentError::NameByte { offset: 0, inode: 11, byte: b'/' }));
    assert_eq!(with(&layout, 9, b"\0"), Err(DirentError::NameByte { offset: 0, inode: 11, byte: 0 }));
    assert_eq!(with(&layout, end + 7, &[0]), Err(DirentError::TailMissing { offset: end }));
    assert_eq!(with(&layout, end, &[1]), Err(DirentError::TailMissing { offset: end }));
    assert_eq!(with(&layout, 0, &0_u32.to_le_bytes()), Ok(()), "a free entry's name does not matter");

    let mut block = block_of(&layout, &[b"one"]);
    block[8] ^= 1;
    assert!(matches!(verify_block(&block, &layout, SEED), Err(DirentError::Checksum { .. })));
    assert_eq!(
        verify_block(&block[..1000], &layout, SEED),
        Err(DirentError::BlockLen { len: 1000, bound: 1024 })
    );
}

#[test]
fn writers_refuse_what_does_not_fit() {
    let layout = layout(1024);
    let mut block = block_of(&layout, &[b"one"]);
    let before = block.clone();
    let long = [b'x'; 256];
    let write = |block: &mut [u8], offset, rec_len, name: &[u8]| {
        let entry = Dirent { offset, inode: 12, rec_len, file_type: Some(FileType::Fifo), name };
        write_entry(block, &layout, &entry)
    };
    assert_eq!(write(&mut block, 0, 1012, &long), Err(DirentError::NameLen { len: 256, bound: 255 }));
    assert_eq!(
        write(&mut block, 0, 12, b"12345"),
        Err(DirentError::NoRoom { offset: 0, need: 16, room: 12 })
    );
    assert_eq!(
        write(&mut block, 1008, 12, b"1"),
        Err(DirentError::NoRoom { offset: 1008, need: 12, room: 4 })
    );
    assert_eq!(block, before);
}

#[test]
fn no_type_without_the_feature() {
    let layout = DirLayout { file_types: false, ..layout(1024) };
    let mut block = block_of(&layout, &[b"one"]);
    assert_eq!(block[7], 0);
    block[7] = 2;
    assert_eq!(entries(&block, &layout).next().unwrap().unwrap().file_type, None);
}

#[test]
fn any_bytes_end_in_an_answer() {
    use proptest::prelude::*;
    let layout = DirLayout { checksums: false, ..layout(1024) };
    let good = block_of(&layout, &[b"one", b"second", b"third-name", b"fourth"]);
    proptest!(|(changes in prop::collection::vec((0..1024_usize, any::<u8>()), 1..6))| {
        let mut block = good.clone();
        for (at, byte) in changes {
            block[at % if at % 2 == 0 { 64 } else { 1024 }] = byte;
        }
        let walked = entries(&block, &layout).count();
        prop_assert!(walked <= 1024 / MIN_REC_LEN);
        if verify_block(&block, &layout, None).is_ok() {
            let mut next = 0;
            for entry in entries(&block, &layout) {
                let entry = entry.unwrap();
                prop_assert_eq!(entry.offset, next);
                next = entry.next();
            }
            prop_assert_eq!(next, 1024);
        }
    });
}
