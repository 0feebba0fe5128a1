//! Parses sizes, numbers of CPUs, durations, points in time and labels.
//!
//! Converts the text of a flag to the number that the API expects. Arithmetic is exact: no floating point, and an
//! overflow is an error.

use std::time::{Duration, SystemTime};

use executor_client::v1;

/// Parses a size in bytes: `67108864`, `64M`, `64MiB`, `1.5G`. Units are powers of 1024 and case-insensitive.
pub fn size(text: &str) -> Result<u64, String> {
    const HOW: &str = "a size is a number with an optional unit: 67108864, 64M, 64MiB, 1.5G";
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        _ => return Err(HOW.into()),
    };
    above_zero(scaled(digits, unit).ok_or(HOW)?)
}

/// Parses a number of CPUs, such as `2`, `0.5` or `1.25`. Returns thousandths of a CPU.
pub fn cpus(text: &str) -> Result<u64, String> {
    let millis = scaled(text, 1000).ok_or("must be a number of processors, such as 2, 0.5 or 1.25")?;
    // The daemon's limits. An error of the daemon would show the number in thousandths.
    if (10..=4_096_000).contains(&millis) { Ok(millis) } else { Err(format!("is {text}; 0.01 to 4096 is allowed")) }
}

/// Parses a count of 1 or more. 0 is rejected, because the API uses it for the daemon's default.
pub fn count(text: &str) -> Result<u64, String> {
    above_zero(text.parse().map_err(|_| "must be a whole number")?)
}

/// Parses a duration: `500ms`, `10s`, `1m30s`.
pub fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|bad| format!("{bad}; use a duration such as 500ms, 10s or 1m30s"))
}

/// Parses a grace period: a duration, or a number of seconds.
pub fn grace(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) => Ok(Duration::from_secs(seconds)),
        Err(_) => duration(text),
    }
}

/// Number of log lines; `None` for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lines(pub Option<u64>);

/// Parses a number of log lines: `20` or `all`. A negative number means all, as in docker.
pub fn lines(text: &str) -> Result<Lines, String> {
    if text == "all" || text.parse::<i64>().is_ok_and(|lines| lines < 0) {
        return Ok(Lines(None));
    }
    text.parse().map(|lines| Lines(Some(lines))).map_err(|_| "must be a number of lines, or `all`".into())
}

/// A resource limit of a process.
#[derive(Clone, Debug, PartialEq)]
pub enum Ulimit {
    /// Maximum number of open files.
    Files(u64),
    /// A limit of another resource.
    Of(v1::Ulimit),
}

/// Parses a resource limit: `nofile=1024`, `nofile=1024:1024`, `nproc=100`, `memlock=-1` or `core=0`.
pub fn ulimit(text: &str) -> Result<Ulimit, String> {
    let (name, limit) = text.split_once('=').ok_or("a limit is NAME=LIMIT, or NAME=SOFT:HARD: nofile=1024")?;
    let (soft, hard) = limit.split_once(':').unwrap_or((limit, limit));
    let number = |text: &str| {
        let limit = if text == "unlimited" { Ok(-1) } else { text.parse::<i64>() };
        limit.ok().filter(|limit| *limit >= -1).ok_or_else(|| format!("{name} takes whole numbers, or -1: {name}=1024"))
    };
    let (soft, hard) = (number(soft)?, number(hard)?);
    if hard != -1 && (soft == -1 || soft > hard) {
        return Err(format!("{name} has a soft limit of {soft} above its hard limit of {hard}"));
    }
    match (name, u64::try_from(hard)) {
        ("nofile", _) if soft != hard => {
            Err(format!("nofile has different limits, {soft} and {hard}; both must be equal: nofile={hard}"))
        }
        ("nofile", Ok(hard @ 1..)) => Ok(Ulimit::Files(hard)),
        ("nofile", _) => Err("nofile must be more than 0".into()),
        _ if name != "core" || hard == 0 => Ok(Ulimit::Of(v1::Ulimit { name: name.to_owned(), soft, hard })),
        _ => Err("core files are never written, because they hold secrets: use core=0".into()),
    }
}

/// Parses a point in time: RFC 3339, or a duration before `now`.
pub fn instant(text: &str, now: SystemTime) -> Result<SystemTime, String> {
    if let Ok(time) = humantime::parse_rfc3339_weak(text) {
        return Ok(time);
    }
    let back = humantime::parse_duration(text)
        .map_err(|_| "must be a time such as 2026-01-31T12:00:00Z, or a duration before now such as 10m")?;
    now.checked_sub(back).ok_or_else(|| "is too far in the past".into())
}

/// Parses a label: `app=web`.
pub fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("a label is NAME=VALUE".into()),
    }
}

/// Parses bytes per second: a size, 0, or `none` or -1 for no limit.
pub fn rate(text: &str) -> Result<i64, String> {
    match text {
        "0" => Ok(0),
        "none" | "-1" => Ok(-1),
        _ => size(text).ok().and_then(|bytes| i64::try_from(bytes).ok()).ok_or_else(|| {
            "a rate is a number of bytes per second with an optional unit (16K), 0, or `none` for no limit".into()
        }),
    }
}

/// Parses lines per second, or `none` or -1 for no limit.
pub fn line_rate(text: &str) -> Result<i64, String> {
    match text {
        "none" | "-1" => Ok(-1),
        _ => text
            .parse::<i64>()
            .ok()
            .filter(|lines| *lines >= 0)
            .ok_or_else(|| "must be a number of lines per second, or `none` for no limit".into()),
    }
}

/// Parses a decimal number `digits[.digits]`, and returns the number times `unit`, rounded down.
fn scaled(text: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let number = |part: &str| -> Option<u128> {
        let plain = !part.is_empty() && part.len() <= 18 && part.bytes().all(|b| b.is_ascii_digit());
        if plain { part.parse().ok() } else { None }
    };
    let unit = u128::from(unit);
    let tens = 10u128.pow(u32::try_from(fraction.len()).ok().filter(|&n| n <= 18)?);
    let total = number(whole)? * unit + number(fraction)? * unit / tens;
    u64::try_from(total).ok()
}

fn above_zero(value: u64) -> Result<u64, String> {
    if value == 0 { Err("must be more than 0".into()) } else { Ok(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_parsed() {
        for (text, number) in [("0", 0), ("none", -1), ("-1", -1), ("16K", 16 << 10), ("100", 100)] {
            assert_eq!(rate(text), Ok(number), "{text}");
        }
        for text in ["", "-2", "x", "16X", "99999999T"] {
            assert!(rate(text).is_err(), "{text}");
        }
        assert_eq!((line_rate("100"), line_rate("0"), line_rate("none")), (Ok(100), Ok(0), Ok(-1)));
        assert!(line_rate("-2").is_err() && line_rate("16K").is_err());
    }

    #[test]
    fn sizes_are_parsed() {
        let good = [
            ("1", 1),
            ("67108864", 64 << 20),
            ("64M", 64 << 20),
            ("64m", 64 << 20),
            ("64MiB", 64 << 20),
            ("64mb", 64 << 20),
            ("1GiB", 1 << 30),
            ("1.5G", 3 << 29),
            ("0.5k", 512),
            ("1.1k", 1126),
            ("2T", 2 << 40),
            ("12b", 12),
        ];
        for (text, bytes) in good {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in
            ["", "0", "0.0M", "M", "-1", "+1", "1 M", "64X", "1.2.3", "1.", ".5", "16777216T", "99999999999999999999"]
        {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn processors_and_counts() {
        for (text, millis) in [("2", 2000), ("0.5", 500), ("1.25", 1250), ("0.01", 10), ("4096", 4_096_000)] {
            assert_eq!(cpus(text), Ok(millis), "{text}");
        }
        for text in ["0", "0.0001", "-1", "two", "1M", ""] {
            assert!(cpus(text).is_err(), "{text}");
        }
        assert_eq!(count("7"), Ok(7));
        assert!(count("0").is_err() && count("x").is_err());
    }

    #[test]
    fn limits_as_docker_writes_them() {
        assert_eq!(ulimit("nofile=20"), Ok(Ulimit::Files(20)));
        assert_eq!(ulimit("nofile=1024:1024"), Ok(Ulimit::Files(1024)));
        let of = |text: &str| match ulimit(text) {
            Ok(Ulimit::Of(v1::Ulimit { name, soft, hard })) => (name, soft, hard),
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(of("nproc=3"), ("nproc".into(), 3, 3));
        assert_eq!(of("memlock=-1:unlimited"), ("memlock".into(), -1, -1));
        assert_eq!((of("core=0:0"), of("stack=8:-1")), (("core".into(), 0, 0), ("stack".into(), 8, -1)));
        for (text, why) in [
            ("nofile", "NAME=LIMIT"),
            ("nofile=", "whole numbers"),
            ("nofile=-1", "more than 0"),
            ("nofile=0", "more than 0"),
            ("nofile=9:8", "soft limit of 9 above"),
            ("nofile=8:9", "nofile=9"),
            ("nproc=-2", "whole numbers"),
            ("nproc=-1:5", "soft limit of -1 above"),
            ("core=1", "never written"),
        ] {
            let error = ulimit(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        let counts = ["all", "0", "7", "-1"].map(|text| lines(text).unwrap().0);
        assert_eq!(counts, [None, Some(0), Some(7), None]);
        assert!(lines("x").is_err());
    }

    #[test]
    fn durations_and_instants() {
        assert_eq!((grace("10"), grace("0")), (Ok(Duration::from_secs(10)), Ok(Duration::ZERO)));
        assert_eq!(grace("1m30s"), duration("1m30s"));
        assert!(grace("-1").is_err() && grace("").is_err());
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert!(duration("10").unwrap_err().contains("10s"), "the error for a number without a unit shows a unit");
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        assert_eq!(instant("10m", now), Ok(now - Duration::from_secs(600)));
        assert_eq!(instant("1970-01-01T00:00:05Z", now), Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(5)));
        assert!(instant("yesterday", now).is_err());
    }
}
