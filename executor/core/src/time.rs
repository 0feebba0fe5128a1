//! Defines the timestamps in records and log lines.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

/// Nanoseconds since the Unix epoch. Valid until the year 2554.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Converts to the standard library's type.
    pub fn to_system_time(self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_nanos(self.0)
    }

    /// Formats as RFC 3339 in UTC with nine decimals, as in CRI log files.
    pub fn rfc3339(self) -> String {
        humantime::format_rfc3339_nanos(self.to_system_time()).to_string()
    }

    /// Parses the format of [`Timestamp::rfc3339`].
    pub fn parse_rfc3339(text: &str) -> Option<Self> {
        humantime::parse_rfc3339(text).ok().map(Self::from)
    }

    /// Returns the time since `earlier`; zero if the clock was set back in between.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns this point plus `time`, or the last point that can be represented.
    pub fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl From<SystemTime> for Timestamp {
    /// Times before 1970 become 0; times after 2554 become the last time that can be represented.
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rfc3339())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc3339_time_round_trips_in_nanoseconds() {
        let time = Timestamp(1_790_000_000_123_456_789);
        assert_eq!(time.rfc3339(), "2026-09-21T14:13:20.123456789Z");
        assert_eq!(Timestamp::parse_rfc3339(&time.rfc3339()), Some(time));
        assert_eq!(Timestamp::parse_rfc3339("yesterday"), None);
    }
}
