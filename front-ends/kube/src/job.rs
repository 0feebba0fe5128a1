//! Defines the parameters of Jobs and CronJobs, and parses schedules (rule P62 of `docs/guides/kube-rules.md`).

/// Parameters of a Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRun {
    /// Number of pods that must succeed.
    pub completions: u32,
    /// Maximum number of pods that run at the same time.
    pub parallelism: u32,
    /// Number of retries after which the job has failed.
    pub backoff_limit: u32,
    /// True if each pod has an index.
    pub indexed: bool,
    /// True if the job must not run.
    pub suspended: bool,
    /// Maximum duration, in seconds, after which the job has failed.
    pub deadline_seconds: Option<u64>,
}

/// Parameters of a CronJob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CronSpec {
    pub schedule: Schedule,
    /// Time zone of the schedule; `None` for the time zone of the host.
    pub time_zone: Option<String>,
    /// Concurrency policy: `Allow`, `Forbid` or `Replace`.
    pub concurrency: String,
    /// True if the CronJob must not run.
    pub suspended: bool,
}

/// A cron schedule of five fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    fields: [Field; 5],
}

/// Values of a field, and whether the field was `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    values: Vec<u8>,
    any: bool,
}

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
/// Names and ranges of the fields.
const FIELDS: [(&str, u8, u8); 5] =
    [("minute", 0, 59), ("hour", 0, 23), ("day of month", 1, 31), ("month", 1, 12), ("day of week", 0, 6)];

impl Schedule {
    /// Parses a schedule: five fields, or `@hourly`, `@daily`, `@midnight`, `@weekly`, `@monthly`, `@yearly`,
    /// `@annually`.
    ///
    /// # Errors
    /// Returns a message if the string is not a schedule.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.contains("TZ=") {
            return Err("names a time zone: use `timeZone`".into());
        }
        let text = match text {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other if other.starts_with("@every ") => {
                return Err("`@every` is not supported: use five fields, such as */10 * * * *".into());
            }
            other if other.starts_with('@') => {
                return Err("is not one of @hourly, @daily, @midnight, @weekly, @monthly, @yearly".into());
            }
            other => other,
        };
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let Ok(words) = <[&str; 5]>::try_from(words.as_slice()) else {
            return Err(format!(
                "has {} fields; a schedule has 5: minute, hour, day of month, month, day of week",
                words.len()
            ));
        };
        let mut fields = Vec::with_capacity(5);
        for (word, (name, low, high)) in words.into_iter().zip(FIELDS) {
            let names: &[&str] = match name {
                "month" => &MONTHS,
                "day of week" => &DAYS,
                _ => &[],
            };
            let field = field(word, low, high, names).ok_or_else(|| {
                format!("the {name} `{}` is not valid: use {low} to {high}", word.chars().take(40).collect::<String>())
            })?;
            fields.push(field);
        }
        match <[Field; 5]>::try_from(fields) {
            Ok(fields) => Ok(Self { fields }),
            Err(_) => Err("does not have 5 fields".into()),
        }
    }

    /// Returns the schedule as values of `OnCalendar=` in a systemd timer. There are two values if both day fields are
    /// restricted, because cron then runs if either field matches.
    pub fn on_calendar(&self, time_zone: Option<&str>) -> Vec<String> {
        let [minute, hour, day, month, weekday] = &self.fields;
        let list = |field: &Field| match field.any {
            true => "*".to_owned(),
            false => field.values.iter().map(u8::to_string).collect::<Vec<_>>().join(","),
        };
        let days: Vec<&str> = weekday
            .values
            .iter()
            .map(|day| ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"][usize::from(*day % 7)])
            .collect();
        let zone = time_zone.map(|zone| format!(" {zone}")).unwrap_or_default();
        let line =
            |days: &str, day: &str| format!("{days}*-{}-{day} {}:{}:00{zone}", list(month), list(hour), list(minute));
        let days = format!("{} ", days.join(","));
        match (day.any, weekday.any) {
            (_, true) => vec![line("", &list(day))],
            (true, false) => vec![line(&days, "*")],
            // Both day fields are restricted: cron runs if either matches.
            (false, false) => vec![line("", &list(day)), line(&days, "*")],
        }
    }
}

fn field(text: &str, low: u8, high: u8, names: &[&str]) -> Option<Field> {
    let value = |text: &str| -> Option<u8> {
        let lower = text.to_ascii_lowercase();
        if let Some(at) = names.iter().position(|name| *name == lower) {
            return u8::try_from(at).ok().map(|at| at + low);
        }
        text.parse().ok().filter(|value| (low..=high).contains(value))
    };
    let mut values = Vec::new();
    let mut any = false;
    for part in text.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, step.parse::<u8>().ok().filter(|step| *step > 0)?),
            None => (part, 1),
        };
        let (first, last) = match range {
            "*" | "?" => {
                any |= step == 1;
                (low, high)
            }
            range => match range.split_once('-') {
                Some((first, last)) => (value(first)?, value(last)?),
                None if part.contains('/') => (value(range)?, high),
                None => (value(range)?, value(range)?),
            },
        };
        if first > last {
            return None;
        }
        values.extend((first..=last).step_by(usize::from(step)));
    }
    values.sort_unstable();
    values.dedup();
    Some(Field { values, any })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p62_schedules_become_calendar_events() {
        let calendar =
            |text: &str, zone: Option<&str>| Schedule::parse(text).map(|schedule| schedule.on_calendar(zone));
        let one = |text: &str| Ok(vec![text.to_owned()]);
        assert_eq!(calendar("@daily", Some("Europe/Berlin")), one("*-*-* 0:0:00 Europe/Berlin"));
        assert_eq!(calendar("*/20 1-3 * jan,12 *", None), one("*-1,12-* 1,2,3:0,20,40:00"));
        assert_eq!(calendar("5 4 * * mon-fri", None), one("Mon,Tue,Wed,Thu,Fri *-*-* 4:5:00"));
        assert_eq!(calendar("0 0 13 * 5", None), Ok(vec!["*-*-13 0:0:00".into(), "Fri *-*-* 0:0:00".into()]));
        for text in [
            "",
            "* * * *",
            "60 * * * *",
            "* * 0 * *",
            "* * * 13 *",
            "* * * * 8",
            "5-1 * * * *",
            "*/0 * * * *",
            "@reboot",
            "@every 1h",
            "TZ=UTC * * * * *",
            "a * * * *",
        ] {
            assert!(calendar(text, None).is_err(), "{text}");
        }
    }
}
