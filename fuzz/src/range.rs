//! Target: versions and version ranges in catalogs.

use executor_bundles::range::{Range, version};

/// Parses the first line of the input as a version range, and the second line as a version.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (first, second) = text.split_once('\n').unwrap_or((text, "1.2.3"));
    let parsed = version(second.trim_end());
    let range = Range::parse(first);
    if let (Ok(range), Ok(version)) = (&range, &parsed) {
        let again = Range::parse(&range.to_string());
        assert!(
            again.is_ok_and(|again| again.has(version) == range.has(version)),
            "the printed range differs from the range"
        );
    }
    if let Ok(version) = parsed
        && !second.contains('x')
    {
        let exactly = Range::parse(&format!("={}", second.trim_end()));
        assert!(exactly.is_ok_and(|exactly| exactly.has(&version)), "the range =VERSION lacks VERSION");
    }
}
