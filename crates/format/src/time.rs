//! Times of inodes: 34 bits of seconds and 30 bits of nanoseconds.
//!
//! The old field has the low 32 bits of the seconds, signed; two bits of the extra field count
//! the times 2^32 that are added to it, so that years from 1901 to 2446 fit. An inode without
//! the extra field ends in 2038. Times out of range are clamped, as the kernel does.

/// A point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Seconds since 1970.
    pub sec: i64,
    /// Nanoseconds, below 10^9.
    pub nsec: u32,
}

const NSEC_MAX: u32 = 999_999_999;

impl Timestamp {
    /// The first that can be kept.
    pub const MIN: Self = Self { sec: i32::MIN as i64, nsec: 0 };
    /// The last that can be kept with the extra field.
    pub const MAX: Self = Self { sec: (i32::MAX as i64) + (3 << 32), nsec: 0 };
    /// The last that can be kept without it.
    pub const MAX_SHORT: Self = Self { sec: i32::MAX as i64, nsec: 0 };

    /// Returns a time of whole seconds.
    pub fn from_sec(sec: i64) -> Self {
        Self { sec, nsec: 0 }
    }

    /// Decodes the fields on disk; `extra` is `None` where the inode has no room for it.
    pub(crate) fn decode(low: u32, extra: Option<u32>) -> Self {
        let (epoch, nsec) = extra.map_or((0, 0), |e| (i64::from(e & 3), e >> 2));
        Self { sec: i64::from(low as i32) + (epoch << 32), nsec: nsec.min(NSEC_MAX) }
    }

    /// Encodes the fields on disk.
    pub(crate) fn encode(self, has_extra: bool) -> (u32, u32) {
        let t = self.clamped(has_extra);
        let epoch = (t.sec - i64::from(t.sec as i32)) >> 32;
        (t.sec as u32, (epoch as u32 & 3) | t.nsec << 2)
    }

    /// Returns the nearest time that an inode can keep: the one that will be read back. The first
    /// and the last second have no parts, as the kernel clamps.
    pub fn clamped(self, has_extra: bool) -> Self {
        if has_extra {
            let whole = self.sec <= Self::MIN.sec || self.sec >= Self::MAX.sec;
            let nsec = if whole { 0 } else { self.nsec.min(NSEC_MAX) };
            Self { nsec, ..self }.clamp(Self::MIN, Self::MAX)
        } else {
            Self::from_sec(self.sec).clamp(Self::MIN, Self::MAX_SHORT)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of the kernel's documentation of inode timestamps: epoch bits, sign, seconds.
    #[test]
    fn epochs_as_the_kernel_tabulates_them() {
        for (epoch, low, sec) in [
            (0, 0x8000_0000u32, -0x8000_0000i64),
            (0, 0xFFFF_FFFF, -1),
            (0, 0x7FFF_FFFF, 0x7FFF_FFFF),
            (1, 0x8000_0000, 0x8000_0000),
            (1, 0x0000_0000, 0x1_0000_0000),
            (2, 0xFFFF_FFFF, 0x1_FFFF_FFFF),
            (3, 0x7FFF_FFFF, 0x3_7FFF_FFFF),
        ] {
            let t = Timestamp { sec, nsec: 7 };
            assert_eq!(Timestamp::decode(low, Some(epoch | 7 << 2)), t);
            let edge = sec == Timestamp::MIN.sec || sec == Timestamp::MAX.sec;
            assert_eq!(t.encode(true), (low, if edge { epoch } else { epoch | 7 << 2 }));
        }
    }

    #[test]
    fn out_of_range_is_clamped() {
        let far = Timestamp { sec: i64::MAX, nsec: 5 };
        let (low, extra) = far.encode(true);
        assert_eq!(Timestamp::decode(low, Some(extra)), Timestamp::MAX);
        assert_eq!(Timestamp::decode(far.encode(false).0, None), Timestamp::MAX_SHORT);
        assert_eq!(Timestamp::from_sec(i64::MIN).clamped(true), Timestamp::MIN);
        assert_eq!(Timestamp::decode(0, Some(u32::MAX)).nsec, NSEC_MAX);
    }
}
