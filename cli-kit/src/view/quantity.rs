//! Sizes, durations and times as text for people.

use std::time::{Duration, SystemTime};

use prost_types::Timestamp;

/// Placeholder for an unknown time.
const NOTHING: &str = "-";

/// Formats a size: `64 MiB`, `1.5 GiB`, `1 byte`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return if bytes == 1 { "1 byte".into() } else { format!("{bytes} bytes") };
    }
    let mut unit = 0;
    while unit + 1 < UNITS.len() && bytes >> (10 * (unit + 2)) > 0 {
        unit += 1;
    }
    let shift = 10 * (unit + 1);
    // Round tenths down, so that free space is never overstated.
    let tenths = (u128::from(bytes) * 10) >> shift;
    match tenths % 10 {
        0 => format!("{} {}", tenths / 10, UNITS[unit]),
        tenth => format!("{}.{tenth} {}", tenths / 10, UNITS[unit]),
    }
}

/// Formats a duration: `0.87 ms`, `12.3 ms`, `1.23 s`, `10 s`, `2m 5s`, `3h 10m`.
pub fn span(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match duration.as_secs() {
        0 if seconds < 0.01 => format!("{:.2} ms", seconds * 1e3),
        0 => format!("{:.1} ms", seconds * 1e3),
        whole @ 1..60 if duration.subsec_nanos() == 0 => format!("{whole} s"),
        1..60 => format!("{seconds:.2} s"),
        whole => two_units(whole),
    }
}

fn two_units(seconds: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3600, "h"), (60, "m"), (1, "s")];
    let first = UNITS.iter().position(|(unit, _)| seconds >= *unit).unwrap_or(UNITS.len() - 1);
    let (unit, name) = UNITS[first];
    let rest = UNITS.get(first + 1).map(|(unit, name)| (seconds % UNITS[first].0 / unit, name));
    match rest {
        Some((count, rest_name)) if count > 0 => format!("{}{name} {count}{rest_name}", seconds / unit),
        _ => format!("{}{name}", seconds / unit),
    }
}

/// Formats a protobuf duration like [`span`].
pub fn wire_span(duration: prost_types::Duration) -> String {
    Duration::try_from(duration).map_or_else(|_| NOTHING.into(), span)
}

/// Formats the time since `then` in one unit: `5s`, `3m`, `2h`, `4d`.
pub fn age(then: Option<&Timestamp>, now: SystemTime) -> String {
    let Some(then) = then.and_then(system_time) else { return NOTHING.into() };
    let seconds = now.duration_since(then).unwrap_or_default().as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Formats the time until `then`, in at most two units: `in 2m 5s`; `now` if `then` has passed.
pub fn left(then: Option<&Timestamp>, now: SystemTime) -> String {
    let Some(then) = then.and_then(system_time) else { return NOTHING.into() };
    match then.duration_since(now).unwrap_or_default().as_secs() {
        0 => "now".into(),
        seconds => format!("in {}", two_units(seconds)),
    }
}

/// Formats a time in UTC, with milliseconds: `2026-01-31T12:00:00.123Z`.
pub fn time(timestamp: Option<&Timestamp>) -> String {
    timestamp
        .and_then(system_time)
        .map_or_else(|| NOTHING.into(), |time| humantime::format_rfc3339_millis(time).to_string())
}

/// Converts a timestamp; `None` if it is before 1970 or after 9999, the last year of RFC 3339.
pub fn system_time(timestamp: &Timestamp) -> Option<SystemTime> {
    let writable = (0..253_402_300_800).contains(&timestamp.seconds) && (0..1_000_000_000).contains(&timestamp.nanos);
    if writable { SystemTime::try_from(*timestamp).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Option<Timestamp> {
        Some(Timestamp { seconds, nanos: 0 })
    }

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000)
    }

    #[test]
    fn sizes_are_printed_with_unit() {
        let table = [
            (0, "0 bytes"),
            (1, "1 byte"),
            (1023, "1023 bytes"),
            (1024, "1 KiB"),
            (64 << 20, "64 MiB"),
            (3 << 29, "1.5 GiB"),
            ((1 << 30) - 1, "1023.9 MiB"),
            (1 << 50, "1 PiB"),
            (u64::MAX, "16383.9 PiB"),
        ];
        for (size, text) in table {
            assert_eq!(bytes(size), text);
        }
    }

    #[test]
    fn spans_and_ages() {
        let table = [
            (Duration::from_micros(870), "0.87 ms"),
            (Duration::from_micros(12_340), "12.3 ms"),
            (Duration::from_millis(1234), "1.23 s"),
            (Duration::from_secs(60), "1m"),
            (Duration::from_secs(125), "2m 5s"),
            (Duration::from_secs(11_400), "3h 10m"),
            (Duration::from_secs(86_400 * 3), "3d"),
        ];
        for (duration, text) in table {
            assert_eq!(span(duration), text);
        }
        for (seconds, text) in [(999_995, "5s"), (999_800, "3m"), (990_000, "2h"), (600_000, "4d"), (1_000_009, "0s")] {
            assert_eq!(age(at(seconds).as_ref(), now()), text);
        }
        assert_eq!(age(None, now()), "-");
    }

    /// A time that RFC 3339 cannot represent is formatted as a dash and does not panic.
    #[test]
    fn impossible_times_are_dashes() {
        assert_eq!(time(at(0).as_ref()), "1970-01-01T00:00:00.000Z");
        for seconds in [i64::MIN, -1, 253_402_300_800, i64::MAX] {
            assert_eq!(time(at(seconds).as_ref()), "-");
        }
        assert_eq!(time(Some(&Timestamp { seconds: 0, nanos: -1 })), "-");
    }
}
