//! Reads monotonic clocks to measure durations. Use `SystemTime` for dates only.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use executor_core::time::Timestamp;
use rustix::time::{ClockId, clock_gettime};

/// Returns the time since boot, including time in suspend.
pub fn uptime() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    // Neither field is negative, and the nanoseconds are below 1,000,000,000.
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// Returns the wall-clock time at the first call in this process plus the time that has passed since. Later changes of
/// the wall clock have no effect.
pub fn steady() -> Timestamp {
    static FIRST: OnceLock<(Timestamp, Duration)> = OnceLock::new();
    let (date, at) = FIRST.get_or_init(|| (SystemTime::now().into(), uptime()));
    let passed = uptime().saturating_sub(*at);
    Timestamp(date.0.saturating_add(u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX)))
}

/// Returns the age of a process. `start_time` is the time at which the process started, in clock ticks since boot.
pub fn age_of(start_time: u64) -> Duration {
    let ticks = rustix::param::clock_ticks_per_second().max(1);
    let start = Duration::from_nanos((u128::from(start_time) * 1_000_000_000 / u128::from(ticks)) as u64);
    uptime().saturating_sub(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_of_new_process_is_short() {
        let before = uptime();
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let age = age_of(crate::identity::read(child.id() as i32).unwrap().start_time);
        let passed = uptime() - before;
        child.kill().unwrap();
        child.wait().unwrap();
        // A start time is rounded down to a tick.
        assert!(age <= passed + Duration::from_millis(20), "{age:?} of {passed:?}");
    }

    #[test]
    fn steady_time_never_goes_back() {
        let first = steady();
        assert!(steady() >= first);
    }
}
