//! Creates and parses ULIDs: identifiers that sort by their time of creation.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ulid::Ulid;

/// Failure of the random number generator.
#[derive(Debug, thiserror::Error)]
#[error("the system's random number generator failed")]
pub struct NoRandomness;

/// Returns a ULID that sorts after `last`, even if the clock was set back.
///
/// # Errors
/// Returns an error if the random number generator fails.
pub fn after(last: Option<&str>, now: SystemTime) -> Result<String, NoRandomness> {
    let mut random = [0; 16];
    getrandom::fill(&mut random[..10]).map_err(|_| NoRandomness)?;
    let random = u128::from_le_bytes(random);
    let milliseconds = u64::try_from(now.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()).unwrap_or(0);
    let fresh = Ulid::from_parts(milliseconds, random);
    match last.and_then(|last| Ulid::from_string(last).ok()) {
        Some(last) if last >= fresh => Ok(Ulid(last.0.saturating_add(1)).to_string()),
        _ => Ok(fresh.to_string()),
    }
}

/// Returns true if a string is a ULID in canonical form.
pub fn is_ulid(text: &str) -> bool {
    Ulid::from_string(text).is_ok_and(|id| id.to_string() == text)
}

/// Returns the creation time of a ULID, which is exact to a millisecond; `None` if the string is not a ULID.
pub fn time_of(id: &str) -> Option<SystemTime> {
    let id = Ulid::from_string(id).ok()?;
    UNIX_EPOCH.checked_add(Duration::from_millis(id.timestamp_ms()))
}

/// Formats a time for claims (RFC 3339).
pub fn timestamp(time: SystemTime) -> String {
    humantime::format_rfc3339_nanos(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_increase_when_clock_goes_back() {
        let now = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let mut last = after(None, now).unwrap();
        for step in [0, 0, 1, 0] {
            let next = after(Some(&last), now - Duration::from_secs(step)).unwrap();
            assert!(next > last && is_ulid(&next) && next.len() == 26, "{last} {next}");
            last = next;
        }
        assert_eq!(time_of(&after(None, now).unwrap()), Some(now));
        assert!(
            !is_ulid("01E5G8ZYP714JVM8NHTJQ4FH1")
                && !is_ulid("../../etc/passwd")
                && !is_ulid("01e5g8zyp714jvm8nhtjq4fh15")
        );
        assert!(is_ulid("01E5G8ZYP714JVM8NHTJQ4FH15"));
    }
}
