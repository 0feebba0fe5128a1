//! Validates limits and tags of a log.

use super::ViolationReason::{NotAllowed, OutOfRange};
use super::{DraftLogging, Policy, Report, pairs};
use crate::limits::{LOG_RATE_MAX, LOG_TAGS_MAX};
use crate::plan::{LogLimits, Logging};

/// Checks limits and tags, and fills in the policy's defaults.
pub(super) fn check(logging: &DraftLogging, policy: &Policy, report: &mut Report) -> Logging {
    pairs("log_tags", &logging.tags, LOG_TAGS_MAX, report);
    let bytes = Rate {
        field: "log_limits.bytes_per_second",
        asked: logging.bytes_per_second,
        default: policy.default_log_bytes_per_second,
        max: policy.log_bytes_per_second_max,
        key: "log_bytes_per_second_max",
    };
    let lines = Rate {
        field: "log_limits.lines_per_second",
        asked: logging.lines_per_second,
        default: policy.default_log_lines_per_second,
        max: policy.log_lines_per_second_max,
        key: "log_lines_per_second_max",
    };
    let limits = LogLimits { bytes_per_second: bytes.check(report), lines_per_second: lines.check(report) };
    Logging { limits, tags: logging.tags.clone() }
}

/// A requested limit, with the policy's default and maximum; -1 = no limit.
struct Rate {
    field: &'static str,
    asked: Option<i64>,
    default: i64,
    max: i64,
    /// Key of the policy's maximum.
    key: &'static str,
}

impl Rate {
    /// Returns the limit in force.
    fn check(self, report: &mut Report) -> Option<u64> {
        let Self { field, asked, default, max, key } = self;
        // Without a configured default, the maximum is the default.
        let default = if default == -1 && max >= 0 { max } else { default };
        let limit = asked.unwrap_or(default);
        if !(-1..=LOG_RATE_MAX).contains(&limit) {
            let why = format!("is {limit}; 0 to {LOG_RATE_MAX} is allowed, or -1 for no limit");
            report.add(field, OutOfRange.because(why));
        } else if max >= 0 && !(0..=max).contains(&limit) {
            let is = if limit < 0 { "is -1 (no limit)".to_owned() } else { format!("is {limit}") };
            let why = format!("{is}; this daemon's configuration allows at most {max} ({key})");
            report.add(field, NotAllowed.because(why));
        }
        u64::try_from(limit).ok()
    }
}

/// Converts a plan's settings back to the settings of a request.
pub(super) fn drafted(planned: &Logging) -> DraftLogging {
    let limit = |limit: Option<u64>| Some(limit.map_or(-1, |limit| i64::try_from(limit).unwrap_or(i64::MAX)));
    DraftLogging {
        bytes_per_second: limit(planned.limits.bytes_per_second),
        lines_per_second: limit(planned.limits.lines_per_second),
        tags: planned.tags.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::{Draft, recheck, validate};

    #[test]
    fn limits_come_from_the_request_or_from_the_policy() {
        let capped = |default, max| Policy {
            default_log_bytes_per_second: default,
            log_bytes_per_second_max: max,
            ..Policy::default()
        };
        let table = [
            (None, capped(-1, -1), Ok(None)),
            (None, capped(100, -1), Ok(Some(100))),
            (None, capped(-1, 200), Ok(Some(200))),
            (Some(-1), capped(100, -1), Ok(None)),
            (Some(0), capped(100, 200), Ok(Some(0))),
            (Some(200), capped(100, 200), Ok(Some(200))),
            (Some(201), capped(100, 200), Err("is 201; this daemon's configuration allows at most 200")),
            (Some(-1), capped(100, 200), Err("is -1 (no limit); this daemon's configuration allows at most 200")),
            (Some(-2), capped(-1, -1), Err("is -2; 0 to 1125899906842624 is allowed, or -1 for no limit")),
            (Some(i64::MAX), capped(-1, -1), Err("is 9223372036854775807; 0 to")),
        ];
        for (asked, policy, expected) in table {
            let logging = DraftLogging { bytes_per_second: asked, ..DraftLogging::default() };
            let draft = Draft { id: "c", path: "/bin/true", logging, ..Draft::default() };
            match (validate(&draft, &policy), expected) {
                (Ok(plan), Ok(limit)) => {
                    assert_eq!(plan.logging.limits.bytes_per_second, limit, "{asked:?}");
                    assert_eq!(recheck(&plan, &policy), Ok(()), "{asked:?}");
                }
                (Err(violations), Err(words)) => {
                    assert_eq!(violations[0].field, "log_limits.bytes_per_second");
                    assert!(violations[0].description.starts_with(words), "{violations:?}");
                }
                (reported, _) => panic!("{asked:?}: {reported:?}"),
            }
        }
    }

    #[test]
    fn tags_have_the_form_of_labels() {
        let of = |name: &str, value: &str| DraftLogging {
            tags: [(name.to_owned(), value.to_owned())].into(),
            lines_per_second: Some(-7),
            ..DraftLogging::default()
        };
        let fields = |logging| {
            let draft = Draft { id: "c", path: "/bin/true", logging, ..Draft::default() };
            let violations = validate(&draft, &Policy::default()).unwrap_err();
            violations.into_iter().map(|violation| violation.field).collect::<Vec<_>>()
        };
        assert_eq!(fields(of("instance_id", "7")), ["log_limits.lines_per_second"]);
        assert_eq!(fields(of("a b", "")), ["log_tags", "log_limits.lines_per_second"]);
        assert_eq!(fields(of("a", &"x".repeat(257))), ["log_tags[a]", "log_limits.lines_per_second"]);
        let tags = (0..33).map(|index| (index.to_string(), String::new())).collect();
        assert_eq!(fields(DraftLogging { tags, ..DraftLogging::default() }), ["log_tags"]);
    }
}
