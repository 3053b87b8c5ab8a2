//! Times that a user writes, as `touch -d` and `touch -t` take them.

use crate::quote::quoted;
use crate::time::Time;
use jiff::civil::{Date, DateTime};
use jiff::fmt::rfc2822;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, Zoned};

/// Reads a date in words or figures; what it leaves out is taken from `now`.
///
/// # Errors
/// What can be written, for a text that is none of it.
pub(crate) fn parse(text: &str, now: Time) -> Result<Time, String> {
    let trimmed = text.trim();
    let parsed = seconds(trimmed).or_else(|| {
        let timestamp = in_words(trimmed, now)
            .or_else(|| absolute(trimmed))
            .or_else(|| rfc2822::parse(trimmed).ok().map(|zoned| zoned.timestamp()));
        Some(of(timestamp?))
    });
    parsed.ok_or_else(|| {
        format!(
            "{} is not a date: write 2026-11-21 19:44:42.5 (with +0100 or UTC behind it for another time zone), \
             @SECONDS, now, yesterday, or '3 days ago'",
            quoted(text)
        )
    })
}

/// Reads `[[CC]YY]MMDDhhmm[.ss]` in the zone of this machine.
///
/// # Errors
/// The form, for a text that has another.
pub(crate) fn parse_stamp(text: &str, now: Time) -> Result<Time, String> {
    stamp(text, now).ok_or_else(|| format!("{} is not of the form [[CC]YY]MMDDhhmm[.ss]", quoted(text)))
}

fn stamp(text: &str, now: Time) -> Option<Time> {
    let (digits, seconds) = text.split_once('.').unwrap_or((text, "00"));
    let figures = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if !figures(digits) || !figures(seconds) || seconds.len() != 2 {
        return None;
    }
    let (year, rest) = digits.split_at_checked(digits.len().checked_sub(8)?)?;
    let year = match (year.len(), year.parse::<i16>()) {
        (0, _) => zoned(now)?.year(),
        // As POSIX has it.
        (2, Ok(year @ 69..)) => 1900 + year,
        (2, Ok(year)) => 2000 + year,
        (4, Ok(year)) => year,
        _ => return None,
    };
    let part = |at: usize| rest.get(at..at + 2)?.parse::<i8>().ok();
    // A leap second is the one behind it.
    let (seconds, leap) = match seconds.parse().ok()? {
        60 => (59, 1),
        seconds => (seconds, 0),
    };
    let civil = DateTime::new(year, part(0)?, part(2)?, part(4)?, part(6)?, seconds, 0).ok()?;
    let time = of(civil.to_zoned(TimeZone::system()).ok()?.timestamp());
    Some(Time { sec: time.sec + leap, ..time })
}

/// Parses `@SECONDS[.FRACTION]`, of any size that a volume can store.
fn seconds(text: &str) -> Option<Time> {
    let text = text.strip_prefix('@')?;
    let (whole, fraction) = text.split_once(['.', ',']).unwrap_or((text, "0"));
    let sec: i64 = whole.parse().ok()?;
    if fraction.is_empty() || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let nsec: u32 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    // @-1.5 is half a second before @-1.
    Some(match (whole.starts_with('-'), nsec) {
        (true, 1..) => Time { sec: sec.checked_sub(1)?, nsec: 1_000_000_000 - nsec },
        _ => Time { sec, nsec },
    })
}

/// Parses `now`, `today`, `yesterday`, `tomorrow`, `2 days`, `3 hours ago`.
fn in_words(text: &str, now: Time) -> Option<Timestamp> {
    let now = zoned(now)?;
    let text = text.to_ascii_lowercase();
    let words: Vec<&str> = text.split_whitespace().collect();
    let span = match words.as_slice() {
        ["now" | "today"] => Span::new(),
        ["yesterday"] => Span::new().days(-1),
        ["tomorrow"] => Span::new().days(1),
        [count, unit] => of_unit(count.parse().ok()?, unit)?,
        [count, unit, "ago"] => of_unit(count.parse::<i64>().ok()?.checked_neg()?, unit)?,
        _ => return None,
    };
    Some(now.checked_add(span).ok()?.timestamp())
}

fn of_unit(count: i64, unit: &str) -> Option<Span> {
    let span = Span::new();
    match unit.strip_suffix('s').unwrap_or(unit) {
        "sec" | "second" => span.try_seconds(count),
        "min" | "minute" => span.try_minutes(count),
        "hour" => span.try_hours(count),
        "day" => span.try_days(count),
        "week" => span.try_weeks(count),
        "month" => span.try_months(count),
        "year" => span.try_years(count),
        _ => return None,
    }
    .ok()
}

/// Parses a date with or without time and zone, as ISO 8601 and stat(1) write it.
fn absolute(text: &str) -> Option<Timestamp> {
    let (civil, zone) = split_zone(text);
    let civil = civil.trim_end();
    let civil = civil.parse::<DateTime>().or_else(|_| civil.parse::<Date>().map(Date::into)).ok()?;
    match zone {
        None => Some(civil.to_zoned(TimeZone::system()).ok()?.timestamp()),
        Some(zone) => format!("{civil}{zone}").parse().ok(),
    }
}

/// Returns the zone at the end, as `Z` or `+hh:mm`, and what stands before it.
fn split_zone(text: &str) -> (&str, Option<&str>) {
    for name in ["UTC", "GMT", "Z", "utc", "gmt", "z"] {
        if let Some(civil) = text.strip_suffix(name) {
            return (civil, Some("Z"));
        }
    }
    // The minus of a date comes before the first colon.
    let Some(time) = text.find(':') else { return (text, None) };
    match text[time..].rfind(['+', '-']) {
        Some(sign) => (&text[..time + sign], Some(&text[time + sign..])),
        None => (text, None),
    }
}

fn zoned(time: Time) -> Option<Zoned> {
    let nsec = i32::try_from(time.nsec).ok()?;
    Some(Timestamp::new(time.sec, nsec).ok()?.to_zoned(TimeZone::system()))
}

/// Converts a timestamp. The nanoseconds of a time are counted forward, also before 1970.
fn of(timestamp: Timestamp) -> Time {
    let nanoseconds = timestamp.as_nanosecond();
    let (sec, nsec) = (nanoseconds.div_euclid(1_000_000_000), nanoseconds.rem_euclid(1_000_000_000));
    Time { sec: sec as i64, nsec: nsec as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time { sec: 1_700_000_000, nsec: 250 };

    #[test]
    fn reads_dates() {
        for (text, sec, nsec) in [
            ("1970-01-01 00:00:01.5 UTC", 1, 500_000_000),
            ("2003-04-05T06:07:08.090807060Z", 1_049_522_828, 90_807_060),
            ("2003-04-05 06:07:08.090807060 +0000", 1_049_522_828, 90_807_060),
            ("2003-04-05 06:07 +01:00", 1_049_519_220, 0),
            ("1969-12-31 23:59:59.25 -0000", -1, 250_000_000),
            ("Sat, 05 Apr 2003 06:07:08 +0000", 1_049_522_828, 0),
            ("@12", 12, 0),
            ("@-1.25", -2, 750_000_000),
            ("@15032385535.123456789", 15_032_385_535, 123_456_789),
            ("now", NOW.sec, NOW.nsec),
            ("2 hours ago", NOW.sec - 7200, NOW.nsec),
            ("1 week", NOW.sec + 604_800, NOW.nsec),
        ] {
            assert_eq!(parse(text, NOW), Ok(Time { sec, nsec }), "{text}");
        }
        for text in ["", "x", "@", "@1.", "@1.x", "2003-13-01", "3 parsecs", "2003-04-05 25:00", "1 2 3"] {
            assert!(parse(text, NOW).is_err(), "{text}");
        }
    }

    #[test]
    fn reads_stamps() {
        let civil = |time: Time| zoned(time).expect("a date").strftime("%Y-%m-%d %H:%M:%S").to_string();
        for (text, expected) in [
            ("200304050607.08", "2003-04-05 06:07:08"),
            ("6804050607", "2068-04-05 06:07:00"),
            ("6904050607", "1969-04-05 06:07:00"),
            ("04050607", "2023-04-05 06:07:00"),
            ("200304050607.60", "2003-04-05 06:08:00"),
        ] {
            assert_eq!(parse_stamp(text, NOW).map(civil), Ok(expected.to_owned()), "{text}");
        }
        for text in ["", "1", "0405060", "20030405060", "200313050607", "04050607.1", "+4050607", "04é0607"]
        {
            assert!(parse_stamp(text, NOW).is_err(), "{text}");
        }
    }
}
