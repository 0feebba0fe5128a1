//! Reads the version of the running kernel.

/// Major and minor number of a kernel version.
pub type KernelVersion = (u32, u32);

/// Returns the version of the running kernel.
pub fn running() -> KernelVersion {
    parse(&rustix::system::uname().release().to_string_lossy())
}

/// Returns the first two numbers of a version. A missing number is 0.
pub fn parse(version: &str) -> KernelVersion {
    let mut parts = version.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_two_numbers() {
        let versions = [("6.1.0-57-cloud-amd64", (6, 1)), ("6.18", (6, 18)), ("5", (5, 0)), ("", (0, 0))];
        for (text, version) in versions {
            assert_eq!(parse(text), version, "{text}");
        }
        assert!(running() > (2, 6));
    }
}
