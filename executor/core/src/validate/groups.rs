//! Validates the supplementary groups that a request adds for every process.

use super::ViolationReason::{Duplicate, TooMany};
use super::{Report, fits, parse_principal, shorten};
use crate::limits::EXTRA_GROUPS_MAX;
use crate::plan::{Principal, UserNamespace};

/// Checks the names and numbers of the groups.
pub(super) fn check(names: &[&str], namespace: UserNamespace, report: &mut Report) -> Vec<Principal> {
    if names.len() > EXTRA_GROUPS_MAX {
        let why = format!("has {} entries; at most {EXTRA_GROUPS_MAX}", names.len());
        report.add("extra_groups", TooMany.because(why));
        return Vec::new();
    }
    let mut groups: Vec<Principal> = Vec::with_capacity(names.len());
    for (index, text) in names.iter().enumerate() {
        let field = format!("extra_groups[{index}]");
        match parse_principal(text, "group").and_then(|group| fits(group, "group", namespace)) {
            Err(why) => report.add(field, why),
            Ok(group) if groups.contains(&group) => {
                report.add(field, Duplicate.because(format!("`{}` is given twice", shorten(text))));
            }
            Ok(group) => groups.push(group),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_numbers_or_names() {
        let of = |asked: &[&str], namespace| {
            let mut report = Report::default();
            let groups = check(asked, namespace, &mut report);
            (groups, report.0.into_iter().map(|violation| violation.field).collect::<Vec<_>>())
        };
        let (groups, faults) = of(&["44", "audio"], UserNamespace::Own);
        assert_eq!((groups, faults.len()), (vec![Principal::Id(44), Principal::Name("audio".into())], 0));
        let (_, faults) = of(&["", "44", "44", "a:b", "65536", "4294967295"], UserNamespace::Own);
        assert_eq!(
            faults,
            ["extra_groups[0]", "extra_groups[2]", "extra_groups[3]", "extra_groups[4]", "extra_groups[5]"]
        );
        assert!(of(&["65536"], UserNamespace::Host).1.is_empty());
        assert_eq!(of(&["1"; EXTRA_GROUPS_MAX + 1], UserNamespace::Own).1, ["extra_groups"]);
    }
}
