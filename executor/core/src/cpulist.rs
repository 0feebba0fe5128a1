//! Parses lists of CPUs or memory nodes in the kernel's format (`0-3,7`, cpuset(7)).

use std::fmt;
use std::str::FromStr;

/// Highest number of a CPU or memory node. A list therefore has at most 4096 ranges.
const HIGHEST: u32 = 8191;
/// Maximum length of a list, in bytes; enough for a list of every other CPU.
pub const CPU_LIST_MAX: usize = 24 << 10;

/// A set of numbers, as ascending ranges with a gap between any two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuList(Vec<(u32, u32)>);

/// Error from parsing a list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCpuList {
    /// The list is too long; holds its length in bytes.
    #[error("is {0} bytes; the maximum is {CPU_LIST_MAX}")]
    Long(usize),
    /// An entry that is neither a number nor a range.
    #[error("{0:?} is not a number or a range; use a list such as 0-3,7, with numbers up to {HIGHEST}")]
    Entry(String),
    /// A range whose end is less than its start.
    #[error("{0} ends before it starts")]
    Backwards(String),
}

impl CpuList {
    /// Returns the lowest number of this set that the other set does not contain.
    pub fn first_missing_in(&self, other: &Self) -> Option<u32> {
        let in_other = |number: u32| other.0.iter().find(|(first, last)| (*first..=*last).contains(&number));
        for &(first, last) in &self.0 {
            // There is a gap between any two ranges of a set, so either a single range of the other set covers this
            // range, or a number is missing.
            match in_other(first) {
                None => return Some(first),
                Some((_, end)) if *end < last => return Some(end + 1),
                Some(_) => {}
            }
        }
        None
    }
}

impl FromStr for CpuList {
    type Err = BadCpuList;

    fn from_str(text: &str) -> Result<Self, BadCpuList> {
        if text.len() > CPU_LIST_MAX {
            return Err(BadCpuList::Long(text.len()));
        }
        let mut ranges = Vec::new();
        for entry in text.trim_end_matches('\n').split(',') {
            let bad = || BadCpuList::Entry(entry.chars().take(40).collect());
            let number = |text: &str| {
                let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
                text.parse().ok().filter(|number| plain && *number <= HIGHEST).ok_or_else(bad)
            };
            let (first, last) = entry.split_once('-').unwrap_or((entry, entry));
            let (first, last): (u32, u32) = (number(first)?, number(last)?);
            if last < first {
                return Err(BadCpuList::Backwards(entry.to_owned()));
            }
            ranges.push((first, last));
        }
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::new();
        for (first, last) in ranges {
            match merged.last_mut() {
                Some((_, end)) if first <= *end + 1 => *end = last.max(*end),
                _ => merged.push((first, last)),
            }
        }
        Ok(Self(merged))
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (first, last)) in self.0.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { "," })?;
            if first == last { write!(f, "{first}")? } else { write!(f, "{first}-{last}")? }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_one_form() {
        for (text, form) in [
            ("0", "0"),
            ("0-3,7", "0-3,7"),
            ("7,0,1,2-3", "0-3,7"),
            ("0-5,2-3,6\n", "0-6"),
            ("1-1", "1"),
            ("8191", "8191"),
            ("007", "7"),
        ] {
            let list: CpuList = text.parse().unwrap();
            assert_eq!(list.to_string(), form, "{text}");
            assert_eq!(form.parse(), Ok(list));
        }
        for text in
            ["", ",", "0,", "a", "-1", "1-", "+1", " 1", "3-1", "8192", "0-99999999999", "0:2", "0-3:1/2", "all"]
        {
            assert!(text.parse::<CpuList>().is_err(), "{text:?}");
        }
        assert_eq!("0".repeat(CPU_LIST_MAX + 1).parse::<CpuList>(), Err(BadCpuList::Long(CPU_LIST_MAX + 1)));
    }

    proptest::proptest! {
        #[test]
        fn first_missing_cpu_is_lowest(one: std::collections::BTreeSet<u8>, other: std::collections::BTreeSet<u8>) {
            let list = |numbers: &std::collections::BTreeSet<u8>| -> Option<CpuList> {
                let text = numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
                text.parse().ok()
            };
            if let (Some(asked), Some(present)) = (list(&one), list(&other)) {
                let expected = one.difference(&other).next().copied().map(u32::from);
                proptest::prop_assert_eq!(asked.first_missing_in(&present), expected);
            }
        }
    }
}
