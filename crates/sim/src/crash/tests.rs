//! States of small logs, held against what a medium may do.

use super::*;
use crate::RecordingDevice;
use lanefs_device::BlockDevice;
use std::collections::{BTreeSet, HashSet};

/// Three epochs: writes of 1 to 3 (one 4 KiB page each), 4 to 5, and 6 without a flush.
fn three_epochs() -> Log {
    let dev = RecordingDevice::new(Image::zeroed(64 << 10));
    let page = |n: u8| dev.write_at(&[n; 4096], u64::from(n) * 4096).unwrap();
    (1..=3).for_each(page);
    dev.flush().unwrap();
    dev.mark("first");
    (4..=5).for_each(page);
    dev.flush().unwrap();
    dev.mark("second");
    page(6);
    dev.log()
}

/// For each page: the set of sectors that hold its number. Any other content than that or zero
/// fails.
fn sectors(image: &Image) -> Vec<Vec<bool>> {
    let bytes = image.to_bytes();
    let is = |s: &[u8], n| s.iter().all(|&b| b == n);
    bytes
        .chunks(4096)
        .enumerate()
        .map(|(n, page)| {
            page.chunks(512)
                .map(|s| {
                    assert!(is(s, 0) || is(s, n as u8), "page {n} is torn inside a sector");
                    n > 0 && is(s, n as u8)
                })
                .collect()
        })
        .collect()
}

fn whole(page: &[bool]) -> bool {
    page.iter().all(|&s| s)
}

fn absent(page: &[bool]) -> bool {
    page.iter().all(|&s| !s)
}

#[test]
fn ordered_states_are_the_cuts_at_flushes() {
    let log = three_epochs();
    let states: Vec<CrashState> = log.crash_states(1, 0).collect();
    assert_eq!(states.len(), 3);
    for (state, (last, marks)) in states.iter().zip([(3, 0), (5, 1), (6, 2)]) {
        for (n, page) in sectors(&state.image).iter().enumerate().skip(1) {
            assert!(if n <= last { whole(page) } else { absent(page) }, "{state}: page {n}");
        }
        assert_eq!(state.marks(&log).count(), marks);
    }
    assert_eq!(states[1].marks(&log).next(), Some((4, "first")));
    assert_eq!(states.iter().map(|s| (s.durable, s.cut)).collect::<Vec<_>>(), [(0, 3), (4, 7), (8, 10)]);
}

#[test]
fn flushed_writes_stay_and_later_ones_are_not_there_yet() {
    let log = three_epochs();
    for state in log.crash_states(2, 200) {
        let pages = sectors(&state.image);
        let (durable, issued) = match state.epoch {
            0 => (0, 3),
            1 => (3, 5),
            _ => (5, 6),
        };
        assert!(pages[1..=durable].iter().all(|p| whole(p)), "{state}");
        assert!(pages[issued + 1..].iter().all(|p| absent(p)), "{state}");
        let marks: Vec<&str> = state.marks(&log).map(|m| m.1).collect();
        assert!(marks.len() <= state.epoch, "{state}: {marks:?}");
        assert!(state.durable <= state.cut);
    }
}

/// Every subset of three writes turns up, and so do torn pages of every form.
#[test]
fn all_that_may_happen_happens() {
    let log = three_epochs();
    let (mut subsets, mut torn) = (BTreeSet::new(), HashSet::new());
    for state in log.crash_states(3, 400).take_while(|s| s.epoch == 0) {
        let pages = sectors(&state.image);
        if pages[1..=3].iter().all(|p| whole(p) || absent(p)) {
            subsets.insert(pages[1..=3].iter().map(|p| whole(p)).collect::<Vec<_>>());
        } else {
            torn.extend(pages[1..=3].iter().filter(|p| !whole(p) && !absent(p)).cloned());
        }
    }
    assert_eq!(subsets.len(), 8);
    assert!(torn.len() > 30, "{} forms of a torn page", torn.len());
    assert!(torn.iter().any(|p| p[0] && !p[7]) && torn.iter().any(|p| !p[0] && p[7]));
}

/// Of two writes to one place, either may be the last.
#[test]
fn overlapping_writes_change_places() {
    let dev = RecordingDevice::new(Image::zeroed(4096));
    dev.write_at(&[1; 384], 0).unwrap();
    dev.write_at(&[2; 384], 128).unwrap();
    let log = dev.log();
    let seen: BTreeSet<Vec<u8>> = log
        .crash_states(4, 300)
        .map(|s| s.image.to_bytes()[..512].chunks(128).map(|c| c[0]).collect())
        .collect();
    let all = [[0, 0, 0, 0], [1, 1, 1, 0], [0, 2, 2, 2], [1, 2, 2, 2], [1, 1, 1, 2]];
    assert_eq!(seen, all.map(|s| s.to_vec()).into());
}

#[test]
fn a_discard_may_leave_anything() {
    let dev = RecordingDevice::new(Image::from_bytes(vec![1; 4096]));
    dev.discard(1024, 1024).unwrap();
    let log = dev.log();
    let seen: BTreeSet<u8> = log.crash_states(5, 100).map(|s| s.image.to_bytes()[1500]).collect();
    assert_eq!(seen, BTreeSet::from([0, 1, 0xdb]));
    for state in log.crash_states(5, 100) {
        let bytes = state.image.to_bytes();
        assert!(bytes[..1024].iter().chain(&bytes[2048..]).all(|&b| b == 1));
    }
}

/// Writes that neither begin nor end at a sector tear at the medium's sectors, not at their own.
#[test]
fn unaligned_writes_tear_at_sectors() {
    let dev = RecordingDevice::new(Image::zeroed(4096));
    dev.write_at(&[1; 1000], 300).unwrap();
    dev.write_zeroes(2000, 600).unwrap();
    let log = dev.log();
    let mut edges = BTreeSet::new();
    for state in log.crash_states(6, 300) {
        let bytes = state.image.to_bytes();
        edges.extend((1..4096).filter(|&i| bytes[i] != bytes[i - 1]));
    }
    assert_eq!(edges, BTreeSet::from([300, 512, 1024, 1300]));
}

#[test]
fn memory_tears_at_words() {
    let dev = RecordingDevice::new(Image::zeroed(4096)).with_atomic_write(8);
    dev.write_at(&[1; 40], 20).unwrap();
    let mut edges = BTreeSet::new();
    for state in dev.log().crash_states(10, 300) {
        assert_eq!(state.device().atomic_write(), 8);
        let bytes = state.image.to_bytes();
        edges.extend((1..4096).filter(|&i| bytes[i] != bytes[i - 1]));
    }
    assert_eq!(edges, BTreeSet::from([20, 24, 32, 40, 48, 56, 60]));
}

#[test]
fn a_state_can_be_made_again() {
    let log = three_epochs();
    let all = |seed| log.crash_states(seed, 50).collect::<Vec<_>>();
    let bytes = |s: &CrashState| (s.cut, s.image.to_bytes());
    let first = all(7);
    assert!(first.iter().map(bytes).eq(all(7).iter().map(bytes)));
    assert!(!first.iter().map(bytes).eq(all(8).iter().map(bytes)));
    for state in &first {
        let again = log.crash_state(7, state.epoch, state.shape).unwrap();
        assert_eq!(bytes(&again), bytes(state), "{state}");
    }
    assert!(log.crash_state(7, 3, Shape::Ordered).is_none());
}

#[test]
fn recovery_on_a_state_leaves_the_others_alone() {
    let log = three_epochs();
    let before: Vec<Vec<u8>> = log.crash_states(9, 5).map(|s| s.image.to_bytes()).collect();
    let after: Vec<Vec<u8>> = log
        .crash_states(9, 5)
        .map(|state| {
            let dev = state.device();
            let bytes = dev.image().to_bytes();
            dev.write_at(&[0xff; 60_000], 0).unwrap();
            bytes
        })
        .collect();
    assert!(before == after);
}

/// Thousands of states of a 64 MiB volume come out of a few megabytes of pages.
#[test]
fn states_share_their_pages() {
    let dev = RecordingDevice::new(Image::zeroed(64 << 20));
    for i in 0..1000_u64 {
        dev.write_at(&[i as u8; 4096], (i * 7919 % 16_000) * 4096).unwrap();
        if i % 20 == 19 {
            dev.flush().unwrap();
        }
    }
    let log = dev.log();
    let states: Vec<CrashState> = log.crash_states(10, 20).collect();
    assert_eq!(states.len(), 51 * 21);
    let pages: HashSet<_> =
        states.iter().flat_map(|s| s.image.pages().values()).map(std::sync::Arc::as_ptr).collect();
    assert!(pages.len() < 1000 * 21, "{} pages", pages.len());
    let last = states.last().unwrap();
    assert_eq!(last.image.to_bytes(), dev.image().to_bytes());
}

/// Which of pages 1 to 3 each small state of the first epoch holds: 1 whole, 0 absent, 2 in part.
fn small_epoch(limit: usize) -> Vec<[u8; 3]> {
    let log = three_epochs();
    let first = log.small_states(1, limit).take_while(|s| s.epoch == 0);
    let shown = |page: &Vec<bool>| if whole(page) { 1 } else { 2 * u8::from(!absent(page)) };
    first
        .map(|s| sectors(&s.image)[1..=3].iter().map(shown).collect::<Vec<_>>().try_into().unwrap())
        .collect()
}

#[test]
fn small_states_are_prefixes_and_single_losses() {
    let seen = small_epoch(1000);
    assert_eq!(seen[..4], [[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]]);
    let all: BTreeSet<_> = seen.iter().copied().collect();
    let lost = [[0, 1, 1], [1, 0, 1]];
    let alone = [[0, 1, 0], [0, 0, 1]];
    let torn = [[2, 1, 1], [1, 2, 1], [1, 1, 2], [2, 0, 0], [1, 2, 0]];
    let expected = seen[..4].iter().chain(&lost).chain(&alone).chain(&torn).copied().collect();
    assert_eq!(all, expected);
    // Each of the torn ones comes in four forms: half, half, first sector, last sector.
    assert_eq!(seen.len(), 4 + 2 + 2 + 4 * torn.len());
}

#[test]
fn a_bound_keeps_the_prefixes_and_a_sample() {
    let few = small_epoch(3);
    assert_eq!(few[..4], [[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]]);
    assert!((5..=7).contains(&few.len()));
    assert_eq!(few, small_epoch(3));
}

#[test]
fn the_same_content_has_the_same_fingerprint() {
    let log = three_epochs();
    let mut contents = std::collections::HashMap::new();
    for state in log.small_states(1, 1000).chain(log.crash_states(1, 40)) {
        let bytes = state.image.to_bytes();
        let print = *contents.entry(bytes).or_insert(state.fingerprint);
        assert_eq!(print, state.fingerprint, "{state}");
        let again = log.crash_state(1, state.epoch, state.shape).unwrap();
        assert!(
            (again.fingerprint, again.cut) == (print, state.cut)
                && again.image.to_bytes() == state.image.to_bytes()
        );
    }
    let prints: BTreeSet<u64> = contents.values().copied().collect();
    assert_eq!(prints.len(), contents.len());
}

/// A log that begins behind earlier changes, and one that has them itself, have the same states.
#[test]
fn a_fingerprint_does_not_depend_on_where_the_log_begins() {
    let prints = |begins: bool| {
        let dev = RecordingDevice::new(Image::from_bytes(vec![7; 16384]));
        dev.write_at(&[1; 4096], 0).unwrap();
        dev.write_at(&[2; 512], 8192).unwrap();
        dev.flush().unwrap();
        if begins {
            dev.begin();
        }
        dev.write_at(&[3; 512], 4096).unwrap();
        dev.flush().unwrap();
        dev.write_at(&[4; 512], 0).unwrap();
        dev.write_at(&[7; 512], 8192).unwrap();
        let log = dev.log();
        let contents = log.small_states(1, 100).map(|s| (s.image.to_bytes(), s.fingerprint));
        contents.collect::<std::collections::HashMap<_, _>>()
    };
    let (whole, begun) = (prints(false), prints(true));
    assert!(begun.len() > 4 && begun.iter().all(|(bytes, print)| whole.get(bytes) == Some(print)));
    let distinct: BTreeSet<u64> = begun.values().copied().collect();
    assert_eq!(distinct.len(), begun.len());
}

/// A write that puts back what the base holds leaves the base, and a state that says nothing new is
/// left out.
#[test]
fn states_that_say_nothing_new_are_left_out() {
    let dev = RecordingDevice::new(Image::from_bytes(vec![7; 8192]));
    dev.write_at(&[7; 512], 0).unwrap();
    dev.flush().unwrap();
    dev.write_at(&[8; 512], 512).unwrap();
    dev.write_at(&[7; 512], 512).unwrap();
    let log = dev.log();
    let prints: Vec<u64> = log.small_states(1, 1000).map(|s| s.fingerprint).collect();
    assert_eq!(prints.len(), 2);
    assert_eq!(prints[0], 0);
    dev.mark("promised");
    let log = dev.log();
    let marks: Vec<usize> = log.small_states(1, 1000).map(|s| s.marks(&log).count()).collect();
    assert_eq!(marks, [0, 0, 1, 1]);
}
