//! Validates limits, tags and the additional file of a log, and the operator's directories for such files.

use std::path::{Path, PathBuf};

use super::ViolationReason::{NotAllowed, OutOfRange};
use super::volumes::check_offered_dir;
use super::{DraftLogging, FieldFault, Policy, Report, pairs, shorten, surroundings};
use crate::limits::{LOG_RATE_MAX, LOG_TAGS_MAX};
use crate::plan::{LogLimits, Logging};

/// Maximum number of the operator's directories of log files.
const DIRS_MAX: usize = 1000;

/// Checks limits, tags and file, and fills in the policy's defaults.
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
    if let Err(why) = file(&logging.file, policy) {
        report.add("log_file", why);
    }
    Logging { limits, tags: logging.tags.clone(), file: logging.file.clone() }
}

fn file(path: &Path, policy: &Policy) -> Result<(), FieldFault> {
    if path.as_os_str().is_empty() {
        return Ok(());
    }
    surroundings::plain_path(path)?;
    if policy.log_dir_around(path).is_some() {
        return Ok(());
    }
    let listed = match &policy.log_dirs[..] {
        [] => "is empty".to_owned(),
        dirs => format!("has {}", dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(", ")),
    };
    let dir = path.parent().unwrap_or(path);
    let why = format!(
        "`{}` is not below a directory of policy.log_dirs, which {} in this daemon's configuration; add {:?} or a \
         directory above it",
        shorten(&path.display().to_string()),
        shorten(&listed),
        shorten(&dir.display().to_string()),
    );
    Err(NotAllowed.because(why))
}

impl Policy {
    /// Returns the directory of `log_dirs` that contains the path, and the rest of the path.
    pub fn log_dir_around<'a>(&'a self, path: &'a Path) -> Option<(&'a Path, &'a Path)> {
        let rest = |dir: &'a PathBuf| Some((&**dir, path.strip_prefix(dir).ok()?));
        self.log_dirs.iter().filter_map(rest).find(|(_, rest)| !rest.as_os_str().is_empty())
    }
}

/// Checks the operator's directories of log files. `reserved` holds directories of the executor.
///
/// # Errors
/// Returns the entry and the reason if an entry is invalid.
pub fn check_log_dirs(dirs: &[PathBuf], reserved: &[&Path]) -> Result<(), String> {
    if dirs.len() > DIRS_MAX {
        return Err(format!("has {} entries; at most {DIRS_MAX} are allowed", dirs.len()));
    }
    dirs.iter().try_for_each(|dir| check_offered_dir(dir, reserved).map_err(|why| format!("{}: {why}", dir.display())))
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
        file: planned.file.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::{Draft, recheck, validate};

    #[test]
    fn log_limits_come_from_request_or_policy() {
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

    /// CRI rule G8: a log file must be below a directory of the operator, by its plain path.
    #[test]
    fn log_file_outside_of_policy_fails() {
        let open = Policy { log_dirs: vec!["/var/log/pods".into(), "/srv/logs".into()], ..Policy::default() };
        let check = |file: &str, policy: &Policy| {
            let logging = DraftLogging { file: file.into(), ..DraftLogging::default() };
            validate(&Draft { id: "c", path: "/bin/true", logging, ..Draft::default() }, policy)
        };
        for file in ["/var/log/pods/a/0.log", "/srv/logs/x", "/var/log/pods/.../..a"] {
            let plan = check(file, &open).unwrap();
            assert_eq!(plan.logging.file, PathBuf::from(file));
            assert_eq!(recheck(&plan, &open), Ok(()), "{file}");
            assert_eq!(recheck(&plan, &Policy::default()).unwrap_err()[0].field, "log_file", "{file}");
        }
        for (file, words) in [
            ("/var/log/pods", "is not below a directory of policy.log_dirs, which has /var/log/pods, /srv/logs"),
            ("/var/log/podsx/a", "add \"/var/log/podsx\""),
            ("/var/log/pods/../x", "contains `..`"),
            ("/var/log/pods/a/", "without `.`"),
            ("/var/log/pods//a", "without `.`"),
            ("var/log/pods/a", "absolute"),
            ("/", "root directory"),
        ] {
            let violations = check(file, &open).unwrap_err();
            assert_eq!(violations[0].field, "log_file", "{file}");
            assert!(violations[0].description.contains(words), "{file}: {violations:?}");
        }
        let closed = check("/var/log/pods/a", &Policy::default()).unwrap_err();
        assert!(closed[0].description.contains("policy.log_dirs, which is empty"), "{closed:?}");
    }

    #[test]
    fn log_dirs_invalid_entry_fails() {
        let own = [Path::new("/run/executor"), Path::new("/var/lib/executor")];
        check_log_dirs(&["/var/log/pods".into()], &own).unwrap();
        for (dir, words) in [
            ("log", "absolute"),
            ("/", "root directory"),
            ("/var/log/", "at its end"),
            ("/proc/x", "under /proc"),
            ("/var/lib/executor/logs", "directory of the executor"),
            ("/var", "directory of the executor"),
        ] {
            let why = check_log_dirs(&[dir.into()], &own).unwrap_err();
            assert!(why.contains(words), "{dir}: {why}");
        }
        assert!(check_log_dirs(&vec!["/a".into(); DIRS_MAX + 1], &own).unwrap_err().contains("at most"));
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
