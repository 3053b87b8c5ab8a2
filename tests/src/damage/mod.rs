//! Volumes damaged on purpose: a good volume, a script of changes to its structures, and checksums
//! made anew, so that what reads it gets past them to the damage.
//!
//! A script is bytes, nine for each change, and any bytes are one: a fuzzer draws them as it likes,
//! a test draws them from a seed. What the structures are and where is looked up in the good
//! volume.

mod anatomy;
mod mend;

pub use anatomy::{Region, RegionKind};

use anatomy::Anatomy;
use rand::Rng;
use rand::rngs::StdRng;

/// A good volume that waits for damage.
#[derive(Debug)]
pub struct Victim {
    bytes: Vec<u8>,
    anatomy: Anatomy,
}

/// Bytes of a script for one change: kind, which of it (2), offset (2), how, value (3).
const STEP: usize = 9;

/// Values next to which bounds lie.
const ODD: [u32; 16] = [
    0,
    1,
    2,
    7,
    8,
    12,
    0x7f,
    0xff,
    0x100,
    0x7fff,
    0x8000,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
];

impl Victim {
    /// Looks a good volume over.
    ///
    /// # Panics
    /// If it is not as mke2fs makes it.
    pub fn new(bytes: Vec<u8>) -> Self {
        let anatomy = Anatomy::of(&bytes);
        Self { bytes, anatomy }
    }

    /// The good volume.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its structures.
    pub fn regions(&self) -> &[Region] {
        &self.anatomy.regions
    }

    /// A script of `changes` to structures of `kinds` (all, if there are none).
    pub fn draw(&self, rng: &mut StdRng, kinds: &[RegionKind], changes: usize) -> Vec<u8> {
        let mut script = vec![0; changes * STEP];
        rng.fill(script.as_mut_slice());
        let present = self.anatomy.kinds();
        for step in script.chunks_exact_mut(STEP).filter(|_| !kinds.is_empty()) {
            let wanted = kinds[rng.random_range(0..kinds.len())];
            if let Some(i) = present.iter().position(|k| *k == wanted) {
                step[0] = i as u8;
            }
        }
        script
    }

    /// The volume after the changes of `script`. With checksums made anew, if `mend`.
    pub fn damaged(&self, script: &[u8], mend: bool) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        let kinds = self.anatomy.kinds();
        for step in script.chunks_exact(STEP) {
            let kind = kinds[usize::from(step[0]) % kinds.len()];
            let of_kind: Vec<&Region> = self.anatomy.regions.iter().filter(|r| r.kind == kind).collect();
            let which = usize::from(u16::from_le_bytes([step[1], step[2]]));
            let region = of_kind[which % of_kind.len()];
            let offset = usize::from(u16::from_le_bytes([step[3], step[4]])) % region.len;
            // Most of what matters is at the head of a block.
            let offset = if step[5] & 0x80 != 0 && region.len > 64 { offset % 64 } else { offset };
            let value = u32::from_le_bytes([step[6], step[7], step[8], 0]);
            change(&mut bytes[region.at..region.at + region.len], offset, step[5] & 0x7f, value);
        }
        if mend {
            self.anatomy.mend(&mut bytes);
        }
        bytes
    }
}

/// One change to the bytes of a structure.
fn change(region: &mut [u8], offset: usize, how: u8, value: u32) {
    let odd = ODD[value as usize % ODD.len()];
    let (value, width, swap) = match how % 12 {
        0 => (value & 0xff, 1, false),
        1 => (u32::from(region[offset] ^ (1 << (value % 8))), 1, false),
        2 => (u32::from(region[offset].wrapping_add((value % 5) as u8).wrapping_sub(2)), 1, false),
        3 => (odd, 1, false),
        4 | 5 => (odd, 2, false),
        6 => (odd, 4, false),
        // Block and inode numbers of small volumes.
        7 | 8 => (value % 4096, 4, false),
        9 => (value % 4096, 4, true),
        10 => (odd, 4, true),
        _ => (value, 4, false),
    };
    // Fields lie at multiples of their width, but for those of directory entries' names.
    let offset = if width == 1 { offset } else { offset & !(width - 1) };
    let bytes = if swap { value.to_be_bytes() } else { value.to_le_bytes() };
    for (to, from) in region[offset..].iter_mut().zip(bytes).take(width) {
        *to = from;
    }
}
