//! The headers of a zstd stream (RFC 8878): how much memory a decoder needs, found out without
//! decoding.

use std::io;

/// Headers of frames and blocks that are read at most. A block unpacks to 128 KiB or less.
const HEADERS_MAX: u32 = 1 << 20;
const FRAME: u32 = 0xFD2F_B528;
/// The first of 16 magic numbers of frames that a decoder skips.
const SKIPPABLE: u32 = 0x184D_2A50;

/// Returns the bytes of the largest window of a stream of `len` bytes; `None` if it cannot be read
/// to its end, is damaged, or has too many headers. `read` fills a buffer from a place in it.
pub(crate) fn largest_window(len: u64, read: impl FnMut(u64, &mut [u8]) -> io::Result<()>) -> Option<u64> {
    let mut stream = FrameReader { len, at: 0, read };
    let (mut largest, mut headers) = (0, 0);
    while stream.at < len && headers < HEADERS_MAX {
        headers += 1;
        let magic = u32::from_le_bytes(stream.take()?);
        if magic & !0xF == SKIPPABLE {
            let size = u32::from_le_bytes(stream.take()?);
            stream.pass_over(size.into());
            continue;
        }
        if magic != FRAME {
            return None;
        }
        let [descriptor] = stream.take()?;
        largest = largest.max(stream.window(descriptor)?);
        loop {
            headers += 1;
            let [low, middle, high] = stream.take()?;
            let header = u32::from_le_bytes([low, middle, high, 0]);
            match header >> 1 & 3 {
                // One byte that is repeated.
                1 => stream.pass_over(1),
                0 | 2 => stream.pass_over((header >> 3).into()),
                _ => return None,
            }
            if header & 1 != 0 {
                break;
            }
            if headers >= HEADERS_MAX {
                return None;
            }
        }
        if descriptor & 4 != 0 {
            // The checksum.
            stream.pass_over(4);
        }
    }
    (stream.at == len).then_some(largest)
}

struct FrameReader<R> {
    len: u64,
    at: u64,
    read: R,
}

impl<R: FnMut(u64, &mut [u8]) -> io::Result<()>> FrameReader<R> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        let end = self.at.checked_add(N as u64).filter(|end| *end <= self.len)?;
        (self.read)(self.at, &mut bytes).ok()?;
        self.at = end;
        Some(bytes)
    }

    /// Passes over so many bytes, which may be more than there are.
    fn pass_over(&mut self, bytes: u64) {
        self.at = self.at.saturating_add(bytes);
    }

    /// Returns the window of the frame with this descriptor. Passes over the rest of its header.
    fn window(&mut self, descriptor: u8) -> Option<u64> {
        let single = descriptor & 0x20 != 0;
        let mut window = 0;
        if !single {
            let [byte] = self.take()?;
            let base = 1_u64 << (10 + (byte >> 3));
            window = base + base / 8 * u64::from(byte & 7);
        }
        // The number of a dictionary.
        self.pass_over([0, 1, 2, 4][usize::from(descriptor & 3)]);
        let size = match (descriptor >> 6, single) {
            (0, false) => 0,
            (0, true) => u64::from(self.take::<1>()?[0]),
            (1, _) => u64::from(u16::from_le_bytes(self.take()?)) + 256,
            (2, _) => u64::from(u32::from_le_bytes(self.take()?)),
            _ => u64::from_le_bytes(self.take()?),
        };
        Some(if single { size } else { window })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panic")]
mod tests {
    use super::*;
    use std::io::Write;

    fn window_of(bytes: &[u8]) -> Option<u64> {
        largest_window(bytes.len() as u64, |at, buf| {
            buf.copy_from_slice(&bytes[at as usize..at as usize + buf.len()]);
            Ok(())
        })
    }

    fn packed(bytes: &[u8], window_log: Option<u32>, size: bool) -> Vec<u8> {
        let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
        if let Some(log) = window_log {
            encoder.window_log(log).unwrap();
        }
        encoder.include_checksum(size).unwrap();
        if size {
            encoder.set_pledged_src_size(Some(bytes.len() as u64)).unwrap();
        }
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn the_largest_of_all_frames_counts() {
        let bytes: Vec<u8> = (0..1_000_000_u32).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect();
        let small = packed(&bytes, Some(17), false);
        assert_eq!(window_of(&small), Some(1 << 17));
        // One segment: its size is its window.
        for len in [0, 200, 300, 70_000] {
            assert_eq!(window_of(&packed(&bytes[..len], None, true)), Some(len as u64), "{len}");
        }
        let skipped = [&0x184D_2A53_u32.to_le_bytes()[..], &5_u32.to_le_bytes(), b"12345"].concat();
        let all = [&small[..], &skipped, &packed(&bytes, Some(27), false), &small].concat();
        assert_eq!(window_of(&all), Some(1 << 27));
        assert_eq!(window_of(&packed(&[7; 3 << 20], Some(20), false)), Some(1 << 20));
    }

    #[test]
    fn damage_is_not_passed_over() {
        let packed = packed(&[1; 300_000], Some(18), true);
        for len in 1..packed.len() {
            assert_eq!(window_of(&packed[..len]), None, "{len}");
        }
        assert_eq!(window_of(&[&packed[..], b"behind"].concat()), None);
        assert_eq!(window_of(b""), Some(0));
        let empty_blocks = [&packed[..6], &[0; 4 << 20]].concat();
        assert_eq!(window_of(&empty_blocks), None);
    }
}
