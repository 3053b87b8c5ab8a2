use super::*;
use std::time::Duration;

fn layouts() -> Vec<Layout> {
    let kinds = [Checksum::None, Checksum::V1, Checksum::V2, Checksum::V3];
    kinds.iter().flat_map(|&k| [false, true].map(|wide| Layout::new(k, wide, [7; 16]))).collect()
}

#[test]
fn tags_round_trip_up_to_a_full_block() {
    for layout in layouts() {
        for size in [1024, 4096] {
            let full = layout.tags_per_block(size);
            for count in [1, 2, full] {
                let copies: Vec<Vec<u8>> = (0..count).map(|i| vec![i as u8; size]).collect();
                let high = if layout.is_64bit { 5 << 32 } else { 0 };
                let mut block = vec![0xEE; size];
                let mut descriptor = Descriptor::new(&layout, &mut block, 42);
                for (i, copy) in copies.iter().enumerate() {
                    descriptor.push(high + i as u64, copy, i % 3 == 1);
                }
                descriptor.finish();
                assert_eq!(
                    Header::parse(&block),
                    Some(Header { block_type: Some(BlockType::Descriptor), sequence: 42 })
                );
                assert!(layout.verify_tail(&block));
                let tags: Vec<Tag> = parse_tags(&layout, &block).map(Result::unwrap).collect();
                assert_eq!(tags.len(), count, "{layout:?} {size}");
                for (i, (tag, copy)) in tags.iter().zip(&copies).enumerate() {
                    assert_eq!(tag.block, high + i as u64);
                    assert_eq!(tag.flags.contains(TagFlags::ESCAPE), i % 3 == 1);
                    assert!(tag.verify(&layout, 42, copy));
                    if layout.has_tails() {
                        assert!(!tag.verify(&layout, 43, copy));
                    }
                }
                if layout.has_tails() {
                    block[20] ^= 1;
                    assert!(!layout.verify_tail(&block));
                }
            }
        }
    }
}

/// The lengths are those of the kernel's `journal_tag_bytes`: with the second version of checksums
/// two bytes more than there are fields for.
#[test]
fn tags_lie_where_the_kernel_looks_for_them() {
    for (layout, len) in layouts().iter().zip([8, 12, 8, 12, 10, 14, 16, 16]) {
        let mut block = vec![0; 1024];
        let mut descriptor = Descriptor::new(layout, &mut block, 42);
        (1..=3).for_each(|home| descriptor.push(home, &[0; 1024], false));
        descriptor.finish();
        let second = HEADER_LEN + len + 16;
        assert_eq!([HEADER_LEN, second, second + len].map(|at| get_u32(&block, at)), [1, 2, 3].map(Some));
    }
}

#[test]
fn block_types_have_the_numbers_of_the_format() {
    use BlockType::{Commit, Descriptor, Revoke, SuperblockV1, SuperblockV2};
    for (kind, number) in [Descriptor, Commit, SuperblockV1, SuperblockV2, Revoke].into_iter().zip(1..) {
        let mut block = [0; 12];
        Header::put(&mut block, kind, 7);
        assert_eq!(get_u32(&block, 4), Some(number));
        assert_eq!(Header::parse(&block), Some(Header { block_type: Some(kind), sequence: 7 }));
    }
}

#[test]
fn what_looks_like_the_log_is_escaped() {
    let mut copy = MAGIC.to_be_bytes().to_vec();
    assert!(needs_escape(&copy) && !needs_escape(&[0xC0, 0x3B, 0x39, 0x99]));
    escape(&mut copy);
    assert_eq!(copy, [0; 4]);
    unescape(&mut copy);
    assert_eq!(copy, MAGIC.to_be_bytes());
}

#[test]
fn tags_of_garbage_end() {
    for layout in layouts() {
        for byte in [0, 0x02, 0xFF] {
            let block = vec![byte; 1024];
            assert!(parse_tags(&layout, &block).count() <= 1024 / 8);
        }
        assert!(parse_tags(&layout, &[0; 14]).next().unwrap().is_err());
    }
}

#[test]
fn revokes_round_trip() {
    for layout in layouts() {
        let full = layout.revokes_per_block(1024);
        let blocks: Vec<u64> = (0..full as u64).map(|i| i * 3).collect();
        let mut block = vec![0xEE; 1024];
        RevokeBlock::write(&layout, &mut block, 9, &blocks);
        assert!(layout.verify_tail(&block));
        assert_eq!(parse_revokes(&layout, &block).unwrap().collect::<Vec<_>>(), blocks);
        // The checksum at the end is no record.
        for count in [1025 - layout.tail_len() as u32, 1025, u32::MAX] {
            put_u32(&mut block, 12, count);
            assert!(matches!(parse_revokes(&layout, &block).err(), Some(Jbd2Error::RevokeCount { .. })));
        }
    }
}

/// The kernel and e2fsck read as many records as fit before `r_count`.
#[test]
fn a_revoke_block_that_ends_in_its_header_names_no_block() {
    for layout in layouts() {
        let mut block = vec![0; 1024];
        RevokeBlock::write(&layout, &mut block, 9, &[5, 6]);
        for count in [0, 12, 15, 16, 19] {
            put_u32(&mut block, 12, count);
            assert_eq!(parse_revokes(&layout, &block).unwrap().count(), 0, "{layout:?} {count}");
        }
    }
}

/// What tells a block of an earlier life of the log from a damaged one.
#[test]
fn blocks_under_another_uuid_have_the_same_checksum_error() {
    for checksum in [Checksum::V2, Checksum::V3] {
        let [ours, other] = [7, 8].map(|byte| Layout::new(checksum, true, [byte; 16]));
        let [mut descriptor, mut revoke, mut commit] = [(); 3].map(|()| vec![0; 1024]);
        let mut tags = Descriptor::new(&other, &mut descriptor, 3);
        tags.push(5, &[1; 1024], false);
        tags.finish();
        RevokeBlock::write(&other, &mut revoke, 4, &[6, 7]);
        Commit { sequence: 3, time: Duration::from_secs(9) }.write(&other, &mut commit, 0);
        let blocks = [
            (BlockType::Descriptor, &mut descriptor),
            (BlockType::Revoke, &mut revoke),
            (BlockType::Commit, &mut commit),
        ];
        let errors = blocks.map(|(kind, block)| {
            assert_eq!(other.checksum_error(kind, block), 0);
            let error = ours.checksum_error(kind, block);
            block[20] ^= 1;
            assert_ne!(ours.checksum_error(kind, block), error);
            error
        });
        assert!(errors[0] != 0 && errors == [errors[0]; 3], "{errors:x?}");
    }
}

#[test]
fn commits_round_trip() {
    for layout in layouts() {
        let commit = Commit { sequence: 3, time: Duration::new(1_700_000_000, 5) };
        let mut block = vec![0xEE; 4096];
        commit.write(&layout, &mut block, 77);
        assert_eq!(Commit::time(&block), commit.time);
        assert_eq!(Commit::check(&layout, &block, 77), CommitCheck::Good);
        if layout.checksum == Checksum::V1 {
            assert_eq!(Commit::check(&layout, &block, 78), CommitCheck::Bad);
        }
        if layout.has_tails() {
            block[600..].fill(1);
            assert_eq!(Commit::check(&layout, &block, 0), CommitCheck::GoodButTorn);
            block[0x30] ^= 1;
            assert_eq!(Commit::check(&layout, &block, 0), CommitCheck::Bad);
        }
    }
}

#[test]
fn crc32_be_is_the_mpeg_one() {
    let mut crc = Crc32Be::default();
    crc.update(b"123456789");
    assert_eq!(crc.value(), 0x0376_E6E7);
}

#[test]
fn superblock_rules() {
    let good = || {
        let mut sb = Superblock::new(1024, 1024, [1; 16]);
        sb.set_features(Compat::empty(), Incompat::CSUM_V3 | Incompat::BIT64);
        sb
    };
    let parse = |sb: &Superblock| Superblock::parse(&sb.to_bytes(), 1024, 1024);
    assert_eq!(parse(&good()).unwrap().layout().checksum, Checksum::V3);
    assert_eq!(parse(&good()).unwrap().layout().uuid, [1; 16]);

    let broken = |at: usize, value: u32| {
        let mut bytes = good();
        put_u32(&mut bytes.raw, at, value);
        parse(&bytes).unwrap_err()
    };
    assert_eq!(broken(0, 1), Jbd2Error::SuperblockMagic { found: 1 });
    assert_eq!(broken(4, 2), Jbd2Error::SuperblockType { found: 2 });
    assert_eq!(broken(0xC, 4096), Jbd2Error::BlockSize { found: 4096, expected: 1024 });
    assert_eq!(broken(0x10, 1025), Jbd2Error::MaxLen { maxlen: 1025, blocks: 1024 });
    assert_eq!(broken(0x14, 0), Jbd2Error::First { first: 0, end: 1024 });
    assert_eq!(broken(0x14, 1024), Jbd2Error::First { first: 1024, end: 1024 });
    assert_eq!(broken(0x1C, 1024), Jbd2Error::Start { start: 1024, first: 1, end: 1024 });
    assert!(matches!(broken(0x28, 0x18), Jbd2Error::ChecksumFeatures { .. }));
    assert_eq!(broken(0x28, 0x40), Jbd2Error::UnknownFeatures { incompat: 0x40, ro_compat: 0 });
    assert_eq!(broken(0x50, 0), Jbd2Error::ChecksumType { found: 0 });

    let mut torn = good().to_bytes();
    torn[0x1F] ^= 4;
    assert!(matches!(Superblock::parse(&torn, 1024, 1024), Err(Jbd2Error::SuperblockChecksum { .. })));

    let mut fast = good();
    fast.set_features(Compat::empty(), Incompat::FAST_COMMIT);
    assert_eq!(parse(&fast).unwrap().end(), 1024 - 256);
}
