//! Times as ls and stat show them, in the zone of this machine (`TZ`).

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

/// Seconds and nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Time {
    pub(crate) sec: i64,
    pub(crate) nsec: u32,
}

impl Time {
    fn zoned(self) -> Option<Zoned> {
        let nsec = i32::try_from(self.nsec).ok()?;
        Some(Timestamp::new(self.sec, nsec).ok()?.to_zoned(TimeZone::system()))
    }

    /// Formats `2026-11-21 19:44:42.123456789 +0000`; seconds since 1970 if no calendar has the
    /// time.
    pub(crate) fn full(self) -> String {
        match self.zoned() {
            Some(z) => z.strftime("%Y-%m-%d %H:%M:%S.%9f %z").to_string(),
            None => format!("{}.{:09}", self.sec, self.nsec),
        }
    }

    /// Formats `2026-11-21 19:44:42 +0000`, for times that have no fraction.
    pub(crate) fn seconds(self) -> String {
        self.zoned().map_or_else(|| self.sec.to_string(), |z| z.strftime("%Y-%m-%d %H:%M:%S %z").to_string())
    }

    /// Formats `Nov 21 19:44`, or `Nov 21  2025` if it is more than half a year away from `now` or
    /// in its future.
    pub(crate) fn short(self, now: Time) -> String {
        const HALF_A_YEAR: i64 = 31_556_952 / 2;
        let Some(z) = self.zoned() else { return self.sec.to_string() };
        let recent = self <= now && self.sec > now.sec.saturating_sub(HALF_A_YEAR);
        z.strftime(if recent { "%b %e %H:%M" } else { "%b %e  %Y" }).to_string()
    }

    /// Formats `2026-11-21T19:44:42.123456789Z`, for machines.
    pub(crate) fn iso(self) -> String {
        match i32::try_from(self.nsec).ok().and_then(|n| Timestamp::new(self.sec, n).ok()) {
            Some(t) => t.strftime("%Y-%m-%dT%H:%M:%S.%9fZ").to_string(),
            None => format!("@{}.{:09}", self.sec, self.nsec),
        }
    }

    pub(crate) fn now() -> Self {
        let now = Timestamp::now();
        Self { sec: now.as_second(), nsec: u32::try_from(now.subsec_nanosecond()).unwrap_or(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iso_is_utc() {
        assert_eq!(Time { sec: 0, nsec: 5 }.iso(), "1970-01-01T00:00:00.000000005Z");
        assert_eq!(Time { sec: i64::MAX, nsec: 0 }.iso(), format!("@{}.000000000", i64::MAX));
        // The last second that ext4 can hold, and the first.
        assert_eq!(Time { sec: 15_032_385_535, nsec: 0 }.iso(), "2446-05-10T22:38:55.000000000Z");
        assert_eq!(Time { sec: -2_147_483_648, nsec: 0 }.iso(), "1901-12-13T20:45:52.000000000Z");
    }

    #[test]
    fn old_and_future_times_show_the_year() {
        let now = Time { sec: 1_700_000_000, nsec: 0 };
        assert!(!Time { sec: now.sec - 86_400, nsec: 0 }.short(now).contains("2023"));
        assert!(Time { sec: now.sec + 86_400, nsec: 0 }.short(now).ends_with("2023"));
        assert!(Time { sec: 86_400 * 30, nsec: 0 }.short(now).ends_with("1970"));
    }
}
